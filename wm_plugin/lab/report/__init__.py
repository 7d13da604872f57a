"""`wm report`: one page of training runs, evaluations and rollouts, whoever made them.

`events` and `logs` read what trainers wrote, `sources` sorts what a user points at, and `arms` puts runs together that differ in
their seeds alone. `training`, `measured`, `played` and `cards` make figures, tables and predictions of these, `compared` sets
arms beside one of them, and `overview` puts all in order. `document` is the page, with `chart` and `plots` for its figures;
`export` and `picture` are its other forms.
"""

from wm_plugin.lab.report.document import Comparison, Report, Sample, Section, Table, difference, render, write

__all__ = ["Comparison", "Report", "Sample", "Section", "Table", "difference", "render", "write"]

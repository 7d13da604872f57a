"""`wm report`: one page of training runs, evaluations and rollouts.

`logs` reads what trainers wrote, `sources` sorts the paths that a user names, and `arms` groups runs that differ only in their
seeds. `training`, `measured`, `played` and `cards` make figures, tables and predictions, `compared` sets arms beside one of them,
and `overview` puts all in order. `document` is the page, with `chart` for its figures; `export` writes it as data.
"""

from wm_plugin.lab.report.document import Comparison, Report, Sample, Section, Table, difference, render, write

__all__ = ["Comparison", "Report", "Sample", "Section", "Table", "difference", "render", "write"]

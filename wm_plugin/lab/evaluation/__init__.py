"""Measures and shows what a world model predicts. Imports neither host.

Import from the modules: `one_step`, `fidelity`, `consistency`, `bench`, `rules`, `measures`, `compare`, `audit`, `inspect`,
`report`, of which `report.logs` reads what trainers wrote.
"""

__all__: list[str] = []  # the modules are the interface: some need torch or extras

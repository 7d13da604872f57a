"""Measures and shows what a world model predicts. Imports neither host.

Import from the modules: `one_step`, `fidelity`, `consistency`, `compare`, `audit`, `inspect`, `report`.
"""

__all__: list[str] = []  # the modules are the interface: some need torch or extras

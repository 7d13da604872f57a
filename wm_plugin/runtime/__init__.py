"""Servers, event loops, processes and sandboxes, without anything about world models.

Import from the modules: `server`, `predict`, `workers`, `sandbox`, `background`, `checks`.
"""

__all__: list[str] = []  # the modules are the interface: some need extras

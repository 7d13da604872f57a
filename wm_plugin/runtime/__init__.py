"""Processes, sandboxes, event loops and text files, without anything about world models. Import from the modules."""

__all__: list[str] = []  # the modules are the interface: some need extras

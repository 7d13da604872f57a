"""What both hosts share: the config of a run, the dressing of worlds, the episode, columns, and the hooks we rely on."""

__all__: list[str] = []  # the modules are the interface: some need extras

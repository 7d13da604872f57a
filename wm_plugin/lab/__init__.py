"""Studies: agents that make data, evaluation, reports, pipelines, and policies small enough for a CPU."""

__all__: list[str] = []  # the modules are the interface: some need extras

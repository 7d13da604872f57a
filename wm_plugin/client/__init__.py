"""Clients of model servers and local models: completions, predictions, and the world model behind a simulated world."""

__all__: list[str] = []  # the modules are the interface: some need extras

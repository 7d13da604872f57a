"""A policy small enough to train from scratch on two CPU cores, for the demo, the tests and the recipes' CPU variants."""

__all__: list[str] = []  # modules are imported by name: they need transformers

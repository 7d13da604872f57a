"""Where the tokens of a rollout came from: chat templates, spans, and a coloured view of them.

Import from the modules: `spans`, `chat`, `message`, `tokenizer`, `view`.
"""

__all__: list[str] = []  # the modules are the interface: some need torch

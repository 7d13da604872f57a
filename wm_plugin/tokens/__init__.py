"""Tokenizers and chat templates, the origin of a rollout's tokens, and a coloured view of them.

Import from the modules: `tokenizer`, `chat`, `spans`, `message`, `view`.
"""

__all__: list[str] = []  # the modules are the interface: `spans` imports torch, `view` does not

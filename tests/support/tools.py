"""Worlds of two tools, for both hosts. What the tools say is in methods that subclasses override."""

import json
from typing import Any


def call(_tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': _tool, 'arguments': arguments})}\n</tool_call>"


class Tools:
    """Two tools whose results differ in length and in bytes a character. Neither raises: the hosts word that differently."""

    def reset(self, **_: Any) -> None:
        self.calls = 0

    def run_code(self, code: str) -> str:
        """Run code.

        Args:
            code: The code.

        Returns:
            What it printed.
        """
        self.calls += 1
        return self._printed(code)

    def lookup_doc(self, name: str) -> str:
        """Look a word up.

        Args:
            name: The word.

        Returns:
            Its documentation.
        """
        self.calls += 1
        return self._shown(name)

    def _printed(self, code: str) -> str:
        return f"OUT[{code}] -> {len(code) * 7}"

    def _shown(self, name: str) -> str:
        return f"DOC {name}: größer 漢字 ✓"


class ToolEnvironment(Tools):
    """`run_code` counts, and raises on some arguments."""

    def _printed(self, code: str) -> str:
        if "raise" in code:
            raise RuntimeError("host-made failure")
        return f"OUT[{code}] -> {self.calls * 7}"

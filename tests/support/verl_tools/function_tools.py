"""Tools as verl's `function_tool_path` takes them."""

from verl.tools.function_tool import function_tool


@function_tool
def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return word

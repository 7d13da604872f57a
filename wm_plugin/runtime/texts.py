"""Reads text files that a user names."""

from pathlib import Path

from wm_plugin.errors import UserError


def read_text(path: Path, what: str) -> str:
    """The text of a file.

    Args:
        what: the setting that the error names.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{what}: {str(path)!r} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: {str(path)!r} is not UTF-8 text (byte {error.start})") from None

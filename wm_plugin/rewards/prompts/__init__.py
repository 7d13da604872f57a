"""The instructions for judges: Markdown files of this package by name, or a user's by path."""

from importlib import resources
from pathlib import Path

from wm_plugin.errors import UserError, nearest, shown

PROMPTS = ("judge_binary", "judge_real", "reference", "rubric", "turing", "verifier")
DOMAINS = ("android", "general", "mcp", "os", "search", "swe", "terminal", "web")  # with guidance for the rubric
ABSOLUTE = ("search",)  # domains in which the real observation is the reference for everything: no content is free


def matching(domain: str) -> str:
    """Return what the rubric asks to match in a domain."""
    return packaged("matching_search" if domain in ABSOLUTE else "matching")


def load(name_or_path: str) -> str:
    """Return a prompt's text. An argument with a `/` or the ending `.md` is a path.

    Raises:
        UserError: there is no such prompt or file, or the file is empty or not UTF-8.
    """
    if not isinstance(name_or_path, str):
        raise UserError(f"a judge's prompt is {shown(name_or_path)}; write its name, or the path of a Markdown file")
    if "/" in name_or_path or name_or_path.endswith(".md"):
        return _read(Path(name_or_path), name_or_path)
    if name_or_path not in PROMPTS:
        raise UserError(
            f"there is no judge's prompt {name_or_path!r}{nearest(name_or_path, PROMPTS)}; give your own as a path: "
            f"./{name_or_path}.md"
        )
    return packaged(name_or_path)


def packaged(name: str) -> str:
    """Return the text of a file in this package, such as `rubric`, `data` or `domain_web`."""
    return (resources.files(__name__) / f"{name}.md").read_text(encoding="utf-8").strip()


def _read(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 at byte {error.start}") from None
    except (OSError, ValueError) as error:  # a name that no file can have
        raise UserError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise UserError(f"{name}: the file is empty")
    return text

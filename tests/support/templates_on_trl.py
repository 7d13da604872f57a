"""How each family's chat template is followed on TRL. Run as a script, it writes the table's column, and the templates."""

import json
import lzma
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trl

from support import templates
from wm_plugin.errors import UserError
from wm_plugin.tokens.chat import make_locator
from wm_plugin.tokens.spans import ToolBlock
from wm_plugin.trl.templates import rollout_template


class Host:
    """TRL's tokens of results, and our spans in them, with a tokenizer and the template that TRL takes for it."""

    def __init__(self, tokenizer: Any, template: str | None) -> None:
        self._host = SimpleNamespace(
            processing_class=tokenizer,
            _tokenizer=tokenizer,
            chat_template=template,
            chat_template_kwargs={},
            _is_vlm=False,
        )
        self._locator = make_locator(tokenizer, template)

    def ids(self, tools: Any, contents: Any) -> list[int]:
        messages = [{"role": "tool", "name": name, "content": text} for name, text in zip(tools, contents, strict=True)]
        return list(trl.GRPOTrainer._get_tool_suffix_ids(self._host, messages))

    def locate(self, tools: Any, contents: Any, ids: list[int], cut: int | None = None) -> list[tuple[int, int]]:
        """The tokens of each content; `cut`: of a block that ends after so many tokens."""
        block = ToolBlock(tuple(tools), tuple(contents), ids[:cut], None if cut is None else ids)
        return self._locator.locate([block])[0]


def host_of(tokenizer: Any, name: str) -> Host:
    return Host(tokenizer, rollout_template(tokenizer))


def cell(name: str) -> str:
    tokenizer = templates.make_tokenizer(name)
    try:
        template = rollout_template(tokenizer)
    except UserError as error:
        return templates.refused(str(error))
    host = Host(tokenizer, template)
    how = templates.outcome(tokenizer, host.ids, host.locate)
    return how if template is None else how.replace("exact", "exact, by TRL's training variant", 1)


def main() -> None:
    assert trl.__version__ == templates.RELEASE, f"trl {trl.__version__} is not the release of the table"
    templates.FILE.write_bytes(lzma.compress(json.dumps(shipped(), ensure_ascii=False, indent=0).encode()))
    templates.TEMPLATES.update(shipped())
    templates.write_table("trl", {name: cell(name) for name in sorted(templates.FAMILIES)})


def shipped() -> dict[str, str]:
    """The templates that the installed TRL ships."""
    folder = Path(trl.__file__).parent / "chat_templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


if __name__ == "__main__":
    main()

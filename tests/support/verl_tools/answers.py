"""A tool with a lifetime, as verl's `tool_config_path` takes them, and rows that have the columns of verl's own tool data."""

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class CheckAnswer(BaseTool):
    """Knows the answer of its row, which `create_kwargs` bring."""

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return kwargs["create_kwargs"]["ground_truth"], ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        answer = parameters["answer"]
        return ToolResponse(text=f"{answer} is right" if answer == instance_id else f"{answer} is wrong"), 0.0, {}


def rows(count: int, agent_name: str = "tool_agent") -> list[dict[str, Any]]:
    """Sums, with the columns that verl's preprocessing of GSM8K for its tool loop writes."""
    return [
        {
            "data_source": "openai/gsm8k",
            "agent_name": agent_name,
            "prompt": [{"role": "user", "content": f"What is {number} and 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {
                "split": "train",
                "index": number,
                "need_tools_kwargs": True,
                "tools_kwargs": {"check_answer": {"create_kwargs": {"ground_truth": str(number + 1)}}},
            },
        }
        for number in range(count)
    ]

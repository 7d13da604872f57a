"""TRL's stock trainer in a world behind OpenEnv's server, in the form of TRL's guide to OpenEnv: no line of this package.

python stock_openenv.py URL POLICY ROWS.json OUT.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

EPISODES: list[dict[str, Any]] = []


def train(policy: str, rows: list[dict[str, Any]], environment: type, folder: Path) -> list[Any]:
    """Two steps; the log without times. The policy writes moves and ends at random, and nothing else."""
    tokenizer, config = AutoTokenizer.from_pretrained(policy), AutoConfig.from_pretrained(policy)
    kept = {tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list("UDLR"))}
    args = GRPOConfig(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=200,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        shuffle_dataset=False,
        use_cpu=True,
        seed=0,
        generation_kwargs={"suppress_tokens": [token for token in range(config.vocab_size) if token not in kept]},
    )
    trainer = GRPOTrainer(policy, args=args, train_dataset=Dataset.from_list(rows), environment_factory=environment)
    trainer.train()
    timed = ("time", "runtime", "per_second")
    return [{key: one for key, one in line.items() if not key.endswith(timed)} for line in trainer.state.log_history]


def main(url: str, policy: str, rows: str, out: str) -> None:
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.mcp_client import MCPToolClient

    class Grid:
        def __init__(self) -> None:
            self.client = MCPToolClient(base_url=url)
            self.client.sync().connect()

        def reset(self, seed: int, **_: Any) -> str:
            self.reward, self.done = 0.0, False
            self.episode: dict[str, Any] = {"seed": seed, "calls": [], "seen": []}
            text: str = self.client.reset(seed=seed).observation.text
            return text

        def move(self, direction: str) -> str:
            """
            Move one cell.

            Args:
                direction: One of U, D, L, R.

            Returns:
                The board.
            """
            if self.done:
                raise ValueError("Game over.")
            self.episode["calls"].append(direction)
            result = self.client.step(CallToolAction(tool_name="move", arguments={"direction": direction}))
            self.reward, self.done = result.reward, result.done
            if result.observation.error:
                raise ValueError(result.observation.error.message)
            self.episode["seen"].append(result.observation.result)
            seen: str = result.observation.result
            return seen

        def get_reward(self) -> float:
            EPISODES.append(self.episode | {"reward": self.reward})
            return self.reward

    log = train(policy, json.loads(Path(rows).read_text()), Grid, Path(out).parent / "served")
    ours = [name for name in sys.modules if name.partition(".")[0] == "wm_plugin"]
    Path(out).write_text(json.dumps({"log": log, "episodes": EPISODES, "ours": ours}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What the SFT tests of both hosts train on, and the loss that both must find: computed with plain transformers."""

import random
from pathlib import Path

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM

from wm_plugin.data import Trajectory, Turn
from wm_plugin.data.building import build
from wm_plugin.data.schema import Action, Observation, Source
from wm_plugin.data.write import write
from wm_plugin.lab.tiny.__main__ import main as make_policy

ROWS = 6
# what the scripts of the recipes read
VARIABLES = {"TRAJECTORIES": "mine.jsonl", "DOMAIN": "mcp", "CORPUS": "a.txt b.md"}
VARIABLES |= dict.fromkeys(("SERVER", "SERVER_MODEL", "JUDGE", "JUDGE_MODEL"), "x")
MASKS = {"trl": "assistant_masks", "verl": "loss_mask"}


def make_data(folder: Path, host: str) -> tuple[Path, Path]:
    """A random policy, and dialogues in which turn information leaves about half of the turns without a loss."""
    policy, out = folder / "runs" / "tiny_random", folder / "runs" / "wm_sft_word2world_tiny" / f"{host}.parquet"
    make_policy(["--out", str(policy), "--random"])
    out.parent.mkdir(parents=True)
    write((_trajectory(number) for number in range(ROWS)), policy / "rollouts.jsonl")
    built = build(policy / "rollouts.jsonl", "word2world", host, out, tokenizer=policy, turn_information=True)
    assert built.rows == ROWS
    assert built.exclusions.dropped["echo"] > ROWS  # several in a dialogue
    return policy, out


def check_samples(calls: list[list[str]], name: str, host: str, file: str, limit: int, model: str) -> None:
    """Of the calls before the trainer's, the one that makes the recipe's samples; `limit` and `model` are the recipe's, too."""
    (built,) = [call for call in calls if "build" in call or "best" in call]
    large = not name.endswith("_tiny")
    assert ("best" in built) is ("wm_sft_agentworld" in name)  # with thoughts
    assert (built.count("--corpus") == (2 if large else 1)) is ("cpt" in name)
    assert (built[built.index("--out") + 1], built[built.index("--host") + 1]) == (file, host)
    if large:
        assert built[built.index("--max-tokens") + 1] == str(limit)
        assert built[built.index("--tokenizer") + 1] == model
    if name == "wm_sft_rwml":
        (filtered,) = [call for call in calls if "filter" in call]
        assert "invalid_actions" in filtered[filtered.index("--filters") + 1]
        assert filtered[filtered.index("--out") + 1] in built
    if large and "agentworld" in name:
        (filtered,) = [call for call in calls if "filter" in call]
        assert filtered[filtered.index("--for") + 1] == "agentworld"  # how worlds refuse is learnt
        assert filtered[filtered.index("--domain") + 1] == VARIABLES["DOMAIN"]
    if "agent_sft" in name:
        assert built[built.index("--as") + 1] == ("imitation" if large else "rft")
    if name in ("wm_sft_word2world", "agent_sft"):
        assert built[built.index("--too-long") + 1] == "truncate"
        assert not [call for call in calls if "filter" in call]  # failed actions are targets


def _trajectory(number: int) -> Trajectory:
    luck, turns = random.Random(number), []
    for _ in range(luck.randint(3, 6)):
        acted = f"go to {luck.randrange(99)}"
        seen = acted if luck.random() < 0.6 else f"you see {luck.randrange(10**6)} doors"
        turns.append(Turn(action=Action(text=acted), observations=(Observation(kind="environment", text=seen),)))
    last = Turn(
        action=Action(text="look"), observations=(Observation(kind="environment", text=f"a hall of {number} lamps"),)
    )
    return Trajectory(turns=(*turns, last), task_id=str(number), source=Source(format="wm", file="f", row=number))


def expected_loss(policy: Path, out: Path, host: str) -> float:
    """The mean negative log-likelihood of the tokens that count, over all rows, each by itself."""
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for row in pyarrow.parquet.read_table(out).to_pylist():
        ids, mask = torch.tensor(row["input_ids"]), torch.tensor(row[MASKS[host]], dtype=torch.bool)
        with torch.no_grad():
            logps = model(ids[None]).logits[0, :-1].double().log_softmax(-1)
        nll = -logps.gather(1, ids[1:, None])[:, 0]
        total += float(nll[mask[1:]].sum())
        count += int(mask.sum())
    return total / count

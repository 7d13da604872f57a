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

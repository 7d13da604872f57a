"""Runs of verl's main_ppo whose policy says a script: rows, a tokenizer learnt from what is said, and a random model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.agreement import FOLDER
from support.run_on_verl import Run, run_recipe
from support.script_on_verl import variables
from support.tiny import byte_level, fast, qwen2
from wm_plugin.verl.data import write

PROMPT, RESPONSE = 4096, 2048
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def run_script(
    recipe: str,
    folder: Path,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    script: Mapping[str, Sequence[str]],
    texts: Iterable[Any],
    *overrides: str,
    batch: int,
    policy: str = "tiny_random",
) -> Run:
    """Train on the rows named `train`, validate on the others, or on the same where there are none.

    Args:
        rows: verl's rows of each file.
        script: by a text that only a prompt has, the turns that follow it.
        texts: what the tokenizer learns besides the script.
        batch: prompts of a step, each with two rollouts.
        policy: the folder of `runs` where the recipe looks for one.
    """
    for name, some in rows.items():
        write(list(some), folder / f"{name}.parquet")
    ended = {key: [f"{turn}<|im_end|>" for turn in turns] for key, turns in script.items()}
    (folder / "script.json").write_text(json.dumps(ended))
    learnt = [json.dumps(one) for one in (ended, *texts)]
    tokenizer = fast(byte_level(learnt, 3000), (FOLDER / "chat_template.jinja").read_text())
    path = folder / "runs" / policy
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    qwen2(len(tokenizer), eos, pad, max_position_embeddings=PROMPT + RESPONSE).save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "grid.parquet").touch()  # the script makes what is not there
    files = [f"{folder}/{name}.parquet" for name in rows if name != "train"] or [f"{folder}/train.parquet"]
    return run_recipe(
        recipe,
        folder,
        f"data.train_files={folder}/train.parquet",
        f"data.val_files=[{', '.join(files)}]",
        f"data.train_batch_size={batch}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={RESPONSE}",
        f"{ACTOR}.ppo_mini_batch_size={batch}",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2",
        f"{ROLLOUT}.n=2",
        f"{ROLLOUT}.multi_turn.max_tool_response_length=100000",
        *overrides,
        environment=variables(folder / "script.json"),
    )

"""A policy on TRL that predicts what comes, and what its predictions' scores add to each token, by hand."""

import re

import torch

from support.on_trl import Batches, call, run
from wm_plugin.hosting.config import RunConfig
from wm_plugin.trl import WorldModelGRPOTrainer
from wm_plugin.worlds.worlds import load

ROWS = load("grid").rows(8)
MOVES = [call("move", direction=one) for one in "UDLR"]
GUESSES = ["....\n....\n....\n...A>", "A", "(", ""]
COEFF = 0.5


class Foreseeing(Batches, WorldModelGRPOTrainer):
    """Draws what a turn says: moves with predictions, of which some are right, calls of no tool, and plain words."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        turns = []
        for ids in prompt_ids:
            move, kind = MOVES[int(torch.randint(4, ()))], int(torch.randint(8, ()))
            board = re.findall(r"[#.AGP]{4}\n[#.AGP]{4}\n[#.AGP]{4}\n[#.AGP]{4}[>!]", self.processing_class.decode(ids))
            text = board[-1] if kind < 4 else GUESSES[kind % 4]  # right where a wall is in the way
            said = f"<prediction>{text}</prediction>" if kind < 6 else ""
            turns.append(["I stop.", said + call("fly")][int(torch.randint(2, ()))] if kind == 7 else said + move)
        return [self.processing_class(f"{turn}<|im_end|>").input_ids for turn in turns], None

    def _calculate_rewards(self, *args):
        found = super()._calculate_rewards(*args)  # of all ranks
        start = self.accelerator.process_index * len(args[2])
        own = found[start : start + len(args[2])].nansum(dim=1).tolist()
        self.played = [*getattr(self, "played", []), *zip(args[2], args[3], own, strict=True)]
        return found


def trained(prediction, *, cls=Foreseeing, steps=1, dtype=torch.float64, world_model=None, **fields):
    environment = RunConfig.read({"environment": "grid", "prediction_reward": prediction}).factory
    args = {"max_steps": steps, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    args |= {"max_completion_length": 400, **fields}
    given = {"rows": ROWS, "environment": environment, "reward_funcs": None, "world_model": world_model}
    return run(cls, args=args, dtype=dtype, **given)


def by_hand(dialogues, coeff=COEFF):
    """What the scores add to the tokens of each turn of dialogues in groups of four: read from the messages."""
    scores = []
    for messages in dialogues:
        own = []
        for place, message in enumerate(messages[:-1]):
            if message["role"] != "assistant":
                continue
            results = [one["content"] for one in messages[place + 1 : place + 2]]
            said = re.findall("<prediction>(.*?)</prediction>", message["content"], re.DOTALL)
            right = bool(said) and said[-1].strip() == results[0].strip() and not results[0].startswith("{'error'")
            over = any(one["role"] == "tool" and one["content"].endswith("!") for one in messages[:place])
            own.append(None if over else float(right))
        scores.append(own)
    groups = [scores[start : start + 4] for start in range(0, len(scores), 4)]
    means = [[one for row in group for one in row if one is not None] for group in groups]
    means = [sum(one) / max(len(one), 1) for one in means]
    return [
        [0.0 if score is None else coeff * (score - means[row // 4]) for score in own] for row, own in enumerate(scores)
    ]

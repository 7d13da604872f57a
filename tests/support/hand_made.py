"""A policy of the grid whose preferences and world model are functions."""

from functools import cache
from types import SimpleNamespace

import torch

from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.worlds.grid import GridEnvironment

TOKENIZER = make_tokenizer()
CHARACTERS = [TOKENIZER.decode([token]) for token in range(len(TOKENIZER))]
TOKENS = {character: token for token, character in enumerate(CHARACTERS)}


def even(boards):
    return (0.0, 0.0, 0.0, 0.0)


class Written:
    """A cache that is the text itself."""

    def __init__(self, rows) -> None:
        self.rows = rows  # each a list of characters; None is padding

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.rows = [list(row) for row in self.rows for _ in range(repeats)]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.rows = [list(self.rows[index]) for index in indices]

    def crop(self, columns: int) -> None:
        assert columns < 0
        self.rows = [row[:columns] for row in self.rows]


class HandMade(torch.nn.Module):
    """A policy by a function of (boards so far) to odds of the moves; its world model is one of (board, move) to a board."""

    def __init__(self, world, prefers=even) -> None:
        super().__init__()
        self.world, self.prefers = cache(world), prefers
        self.config = SimpleNamespace(name_or_path="hand-made", layer_types=None)
        self.generation_config = SimpleNamespace(eos_token_id=list(range(len(CHARACTERS))))
        self.device = torch.device("cpu")

    def forward(self, input_ids, past_key_values=None, attention_mask=None, **_):
        written = past_key_values or Written([[] for _ in input_ids])
        new = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        for row, ids, seen in zip(written.rows, input_ids.tolist(), new.tolist(), strict=True):
            row += [CHARACTERS[token] if one else None for token, one in zip(ids, seen, strict=True)]
        logits = torch.full((len(written.rows), 1, len(CHARACTERS)), -1e9)
        for row, written_row in enumerate(written.rows):
            *parts, after = "".join(one for one in written_row if one is not None).split(":")
            if after:  # a move, and the first part of the board that it leads to
                board = self.world(parts[-1][-20:], after[0]) + ":"
                logits[row, 0, TOKENS[board[len(after) - 1]]] = 0.0
            else:
                for move, odds in zip("UDLR", self.prefers([part[-20:] for part in parts]), strict=True):
                    logits[row, 0, TOKENS[move]] = odds
        return SimpleNamespace(logits=logits, past_key_values=written)


def right(board: str, move: str) -> str:
    """The world as it is, without its limit of turns."""
    environment = GridEnvironment()
    if board[-1] == "!":
        return board
    environment.reset(board[:-1])
    return environment.move(move)

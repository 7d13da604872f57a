"""Serve a judge and a reasoner on localhost for the tiny recipes of Qwen-AgentWorld. There is no language model in it.

    python -m wm_plugin.lab.tiny judge COMMAND...        serves on port 8399 while the command runs, and ends with its exit code

The judge answers the questions of `RubricReward`, `JudgeReward` and `ReferenceReward` by the share of words that are right. The
reasoner writes a thought, and predicts a text that the session has shown. So a recipe runs, with a reward that can be learnt.
A judge with `--noise P` gives to a share P of the questions a verdict drawn at random, the same whenever the question is asked.
"""

import json
import random
from typing import Any

from wm_plugin.rewards.rubric import DIMENSIONS
from wm_plugin.rewards.words import WordF1Reward

_score = WordF1Reward()


def reply(body: dict[str, Any], noise: float = 0.0) -> str:
    """Answer a request: as a judge if its last message consists of blocks, else as a reasoner."""
    texts = [str(message.get("content") or "") for message in body["messages"]]
    rng = random.Random(json.dumps([texts, body.get("seed")]))
    if not texts[-1].startswith("[[begin "):
        return _guess(body["messages"], rng)
    is_random = rng.random() < noise
    observed = _block(texts[-1], "observed")
    if "[[begin first " in texts[-1]:
        first, second = _score([_block(texts[-1], "first"), _block(texts[-1], "second")], [observed] * 2)
        right = "tie" if first == second else "first" if first > second else "second"
        verdict: dict[str, Any] = {"closer": rng.choice(["first", "second", "tie"]) if is_random else right}
    else:
        (share,) = _score([_block(texts[-1], "predicted")], [observed])
        share = rng.randrange(5) / 4 if is_random else share
        verdict = dict.fromkeys(DIMENSIONS, 1 + round(4 * share)) | {"score": share}
    return f"Words were compared.\n<final_evaluation>\n{json.dumps(verdict)}\n</final_evaluation>"


def _block(question: str, name: str) -> str:
    """Return a block's text; all markers of a question have the same number."""
    number = question.partition("]]")[0].rpartition(" ")[2]
    return question.partition(f"[[begin {name} {number}]]\n")[2].partition(f"\n[[end {name} {number}]]")[0]


def _guess(messages: list[dict[str, Any]], rng: random.Random) -> str:
    """Write a thought, and predict an earlier observation or a paragraph of the first message."""
    said = [str(message["content"]) for message in messages if message.get("role") == "assistant"]
    known = said or str(messages[0].get("content")).split("\n\n")
    tag = "predicted_observation"
    thought = f"The session has shown {len(said)} observations. I expect one like them."
    return f"<think>\n{thought}\n</think>\n\n<{tag}>\n{rng.choice(known[-3:])}\n</{tag}>"

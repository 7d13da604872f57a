"""Rewards for predictions of the next observation, and for whole episodes.

A reward is `(predictions, targets, **columns) -> list[float]`; higher is better. A prediction is a text, or None where there is
none, which scores 0. Trainers pass whole model outputs, so a reward in a trainer's config needs a `tag` and extracts the
predictions itself:

    wm.reward={path:"wm_plugin.rewards:RwmlReward",kwargs:{model:"Qwen/Qwen3-Embedding-8B",tag:next_state}}        verl

`figures` holds the metrics of a reward's last call: a dict of numbers.
"""

from typing import TYPE_CHECKING

from wm_plugin._lazy import lazy
from wm_plugin.registry import Registry
from wm_plugin.rewards.extract import Prediction, extract

if TYPE_CHECKING:
    from wm_plugin.rewards.comparison import ReferenceReward, TuringReward
    from wm_plugin.rewards.detect import GuardedReward
    from wm_plugin.rewards.embedding import EmbeddingReward
    from wm_plugin.rewards.episode import EpisodeReward, discounted, rescale_by_effective_actions
    from wm_plugin.rewards.exact import ExactReward
    from wm_plugin.rewards.hybrid import HybridReward
    from wm_plugin.rewards.json_match import JsonMatchReward
    from wm_plugin.rewards.judge import JudgeReward
    from wm_plugin.rewards.rouge import RougeReward
    from wm_plugin.rewards.rubric import RubricReward
    from wm_plugin.rewards.rules import RuleReward
    from wm_plugin.rewards.rwml import RwmlReward
    from wm_plugin.rewards.words import WordF1Reward

_MODULES = {  # name in a config -> module:class
    "embedding": "embedding:EmbeddingReward",
    "exact": "exact:ExactReward",
    "guarded": "detect:GuardedReward",
    "hybrid": "hybrid:HybridReward",
    "json": "json_match:JsonMatchReward",
    "judge": "judge:JudgeReward",
    "reference": "comparison:ReferenceReward",
    "rouge": "rouge:RougeReward",
    "rubric": "rubric:RubricReward",
    "rules": "rules:RuleReward",
    "rwml": "rwml:RwmlReward",
    "turing": "comparison:TuringReward",
    "word_f1": "words:WordF1Reward",
}
REWARDS = Registry("reward", **{name: f"{__name__}.{path}" for name, path in _MODULES.items()})

__all__ = [
    "REWARDS",
    "EmbeddingReward",
    "EpisodeReward",
    "ExactReward",
    "GuardedReward",
    "HybridReward",
    "JsonMatchReward",
    "JudgeReward",
    "Prediction",
    "ReferenceReward",
    "RougeReward",
    "RubricReward",
    "RuleReward",
    "RwmlReward",
    "TuringReward",
    "WordF1Reward",
    "discounted",
    "extract",
    "rescale_by_effective_actions",
]

_EPISODE = dict.fromkeys(("EpisodeReward", "discounted", "rescale_by_effective_actions"), "episode")
# Imported on first use: some modules import torch, which `extract` does not need.
__getattr__ = lazy(
    __name__, _EPISODE | {name: module for module, name in (path.split(":") for path in _MODULES.values())}
)

"""Rewards for predictions of the next observation, and for whole episodes.

A reward of predictions is `(predictions, targets, **columns) -> list[float]`, higher is better. A prediction is a text, or None
where there is none, which gets 0. `extract` takes it out of a model's output. Hosts hand over whole outputs, so a reward in a
trainer's config needs a `tag`, and extracts the predictions itself:

    wm.reward={path:"wm_plugin.rewards:RwmlReward",kwargs:{model:"Qwen/Qwen3-Embedding-8B",tag:next_state}}        verl

A reward's `figures` are metrics of its last call: a dict of numbers.
"""

from typing import TYPE_CHECKING

from wm_plugin.registry import Registry, lazy
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

REWARDS = Registry(
    "reward",
    embedding="wm_plugin.rewards.embedding:EmbeddingReward",
    exact="wm_plugin.rewards.exact:ExactReward",
    guarded="wm_plugin.rewards.detect:GuardedReward",
    hybrid="wm_plugin.rewards.hybrid:HybridReward",
    json="wm_plugin.rewards.json_match:JsonMatchReward",
    judge="wm_plugin.rewards.judge:JudgeReward",
    reference="wm_plugin.rewards.comparison:ReferenceReward",
    rouge="wm_plugin.rewards.rouge:RougeReward",
    rubric="wm_plugin.rewards.rubric:RubricReward",
    rules="wm_plugin.rewards.rules:RuleReward",
    rwml="wm_plugin.rewards.rwml:RwmlReward",
    turing="wm_plugin.rewards.comparison:TuringReward",
    word_f1="wm_plugin.rewards.words:WordF1Reward",
)

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

_HOMES = {
    "EmbeddingReward": "embedding",
    "EpisodeReward": "episode",
    "ExactReward": "exact",
    "GuardedReward": "detect",
    "HybridReward": "hybrid",
    "JsonMatchReward": "json_match",
    "JudgeReward": "judge",
    "ReferenceReward": "comparison",
    "RougeReward": "rouge",
    "RubricReward": "rubric",
    "RuleReward": "rules",
    "RwmlReward": "rwml",
    "TuringReward": "comparison",
    "WordF1Reward": "words",
    "discounted": "episode",
    "rescale_by_effective_actions": "episode",
}

__getattr__ = lazy(__name__, _HOMES)  # some modules import torch, which `extract` does not need

"""Our patches of verl apply to the installed release with plain `patch`, and change what they say."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from support.patched import apply, copied, loaded, patch_named
from wm_plugin.runtime.patches import site_of

NAMES = ["verl-metric-names", "verl-optional-trl", "verl-tool-spans"]


@pytest.mark.parametrize("name", NAMES)
def test_it_applies_and_goes_back(name, tmp_path):
    patch = patch_named(name)
    files = copied(patch, tmp_path)
    before = [path.read_text() for path in files]
    assert patch.state(tmp_path) == "fits" == patch.state(site_of("verl"))
    apply(name, tmp_path)
    assert patch.state(tmp_path) == "applied"
    apply(name, tmp_path, "-R")
    assert [path.read_text() for path in files] == before


def test_only_words_of_a_name_reduce(tmp_path):
    aggregator, reducer = copied(patch_named("verl-metric-names"), tmp_path)
    means = {"wm/env/terminal/success": 0.5, "timing/minutes": 0.5, "climax": 0.5, "loss": 0.5, "assumed/right": 0.5}
    others = {"critic/score/max": 1.0, "max_reward": 1.0, "num_turns/min": 0.0, "rollout_is_min": 0.0}
    sums = {"perf/total_num_tokens": 1.0, "tokens/sum": 1.0}  # of iterations; of micro-batches and ranks it is a mean

    def reduced(state):
        return loaded(reducer, f"{state}_metrics").reduce_metrics({name: [0.0, 1.0] for name in means | others})

    def aggregated(state):
        made = loaded(aggregator, f"{state}_aggregator").MetricsAggregator()
        for value in (0.0, 1.0):
            made.add_step_metrics(dict.fromkeys(means | others | sums, value), sample_count=1)
        return made.get_aggregated_metrics()

    for stock in (reduced("stock"), aggregated("stock")):
        assert stock["wm/env/terminal/success"] == 0.0  # as released
        assert {name: stock[name] for name in others} == others
    assert aggregated("stock")["assumed/right"] == 1.0
    apply("verl-metric-names", tmp_path)
    assert reduced("patched") == means | others
    assert aggregated("patched") == means | others | sums


def test_a_trl_without_value_heads_does_no_harm(tmp_path, monkeypatch):
    (path,) = copied(patch_named("verl-optional-trl"), tmp_path)
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))  # newer releases have no such class
    config = SimpleNamespace(num_attention_heads=2, num_key_value_heads=2, model_type="tiny")
    model = type("Model", (), {"__module__": __name__})()
    model.config = config

    def load_a_model(module):
        monkeypatch.setattr(module, "is_trl_available", lambda: True)
        module.apply_monkey_patch(model, use_remove_padding=False)

    with pytest.raises(ImportError, match="AutoModelForCausalLMWithValueHead"):
        load_a_model(loaded(path, "stock_monkey_patch"))
    apply("verl-optional-trl", tmp_path)
    load_a_model(loaded(path, "patched_monkey_patch"))

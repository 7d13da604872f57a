"""Results of tools in the chat template of every family: which tokens are theirs, and the table of docs/trl.md."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from support import templates
from support.real_tokenizers import PACKAGES, load
from support.templates_on_verl import Host, cell
from wm_plugin.errors import UserError
from wm_plugin.verl import trainer as trainers

TABLE = templates.read_table()
FOLLOWED = [name for name, row in TABLE.items() if row["verl"].startswith("exact")]


@pytest.mark.parametrize("name", templates.params(sorted(templates.FAMILIES)))
def test_each_family_is_followed_as_the_table_says(name):
    assert TABLE[name]["verl"] == cell(name), "python -m support.templates_on_verl (in tests) writes the table"


@pytest.mark.parametrize("name", templates.params(FOLLOWED))
def test_tokens_of_several_bytes(name):
    """They run over the edges of results, and belong to that in which they begin."""
    tokenizer = templates.make_tokenizer(name, merges=True)
    host = Host(tokenizer, templates.FAMILIES[name].model_type)
    assert templates.outcome(tokenizer, host.ids, host.locate, templates.CASES[-2:]).startswith("exact")


@pytest.mark.parametrize("calls", [1, 4])
def test_a_template_of_one_call_a_turn_is_refused_where_several_are_run(calls, monkeypatch):
    def init(trainer):
        trainer.tokenizer, trainer.processor = templates.make_tokenizer("llama3_1"), None

    monkeypatch.setattr(trainers.PPOTrainerSync, "_init_tokenizer", init)
    monkeypatch.setattr(trainers, "_model_type", lambda config: "llama")
    trainer = object.__new__(trainers.WorldModelTrainer)
    trainer._wm_on, trainer._wm = True, SimpleNamespace(protocol="tools", objectives=SimpleNamespace(active=True))
    rollout = {"multi_turn": {"max_parallel_calls": calls}}
    trainer.config = OmegaConf.create({"data": {}, "actor_rollout_ref": {"rollout": rollout}})
    if calls == 1:
        trainer._init_tokenizer()
    else:
        with pytest.raises(UserError, match="verl refuses the chat template .* single tool-calls at once"):
            trainer._init_tokenizer()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_real_tokenizers(package):
    templates.check_real_tokenizer(
        load(package), "verl", lambda tokenizer, name: Host(tokenizer, templates.FAMILIES[name].model_type)
    )

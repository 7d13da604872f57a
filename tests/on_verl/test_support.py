"""What we rely on in verl is there, and what could not be exact is refused with a way out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl")

import yaml
from omegaconf import OmegaConf, open_dict
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from support.upstream import taken_from_host
from support.verl_recipes import composed
from support.verl_recipes import stock as composed_stock
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.hooks import Hook
from wm_plugin.objectives import EchoConfig, Objective, echo_loss
from wm_plugin.objectives.echo import PRESET_FIELDS
from wm_plugin.verl import support
from wm_plugin.verl.agent_loop import WorldModelLoopMixin
from wm_plugin.verl.config import REWARD_KEYS, WorldModelConfig, read_config
from wm_plugin.verl.data import verl_rows, write
from wm_plugin.verl.names import AGENT_LOOP, TRAINER_MODE
from wm_plugin.verl.registration import _check, _check_command
from wm_plugin.verl.rewards import BatchedRewardManager
from wm_plugin.verl.rows import check_files
from wm_plugin.verl.sampler import _RewardMixin
from wm_plugin.verl.trainer import WorldModelTrainerMixin
from wm_plugin.verl.worker import WorldModelActorRolloutRefWorker, WorldModelTrainingWorker
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.wrappers.rewarded import rewarded

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "support" / "verl_tools"
ACTOR = "actor_rollout_ref.actor"
AGENT = "actor_rollout_ref.rollout.agent"
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
MODEL = "actor_rollout_ref.model"
OURS = f"{AGENT}.default_agent_loop=wm_tool_agent"
BARE = f"{__name__}:BareEnvironment"


class BareEnvironment:
    """Leaves the reward to the trainer."""

    def reset(self, **_): ...

    def push(self) -> str:
        """Push."""
        return "It stays shut."


def stock(*overrides, groups="echo"):
    """With a model, since verl's own default is a folder."""
    return composed_stock("wm.coeff=0.05", f"{MODEL}.path=Qwen/Qwen3-4B", *overrides, groups=groups)


@pytest.mark.parametrize("hook", [*support.HOOKS, *support.CPU_HOOKS], ids=str)
def test_a_hook_is_where_we_need_it(hook, monkeypatch):
    monkeypatch.setattr(support, "HOOKS", (hook,))
    assert support.missing_hooks() == []


OVERRIDES = {  # ours -> the host's, and the name by which the list of hooks has it
    WorldModelTrainerMixin: (PPOTrainerSync, "PPOTrainer"),
    WorldModelLoopMixin: (ToolAgentLoop, "ToolAgentLoop"),
    WorldModelTrainingWorker: (TrainingWorker, "TrainingWorker"),
    WorldModelActorRolloutRefWorker: (ActorRolloutRefWorker, "ActorRolloutRefWorker"),
    _RewardMixin: (ReplayBuffer, "ReplayBuffer"),
    BatchedRewardManager: (RewardManagerBase, "RewardManagerBase"),
}
INHERITED = {"ct_merge_context_msg": "AgentLoopBase"}  # the class that the list names instead


@pytest.mark.parametrize("ours", OVERRIDES, ids=lambda cls: cls.__name__)
def test_the_list_of_hooks_is_closed(ours):
    host, name = OVERRIDES[ours]
    listed = {hook.path for hook in support.HOOKS}
    taken = taken_from_host(ours, host) - {"batcher"}
    assert {f"{INHERITED.get(used, name)}.{used}" for used in taken} <= listed


def test_a_hook_that_moved_is_named(monkeypatch):
    name = "verl.trainer.ppo.v1.trainer_base"
    hooks = (
        Hook(name, "PPOTrainer.no_such_method"),
        Hook(name, "PPOTrainer._update_actor", ("batch", "other")),
        Hook("verl.no_such_module", "x"),
    )
    monkeypatch.setattr(support, "HOOKS", hooks)
    assert support.missing_hooks() == [
        f"{name}.PPOTrainer.no_such_method is gone",
        f"{name}.PPOTrainer._update_actor no longer takes other",
        "verl.no_such_module.x is gone",
    ]
    with pytest.raises(UserError, match="lacks what the world-model term needs: .*no_such_method is gone") as error:
        support.check_config(stock())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["PPOTrainer._init_dataloader", "ToolAgentLoop.response_length"])
def test_a_run_with_a_hook_taken_away_is_refused(name, monkeypatch):
    moved = [hook._replace(path=f"{hook.path}_as_it_was") if hook.path == name else hook for hook in support.HOOKS]
    monkeypatch.setattr(support, "HOOKS", tuple(moved))
    with pytest.raises(UserError, match=f"{name}_as_it_was is gone; install another version"):
        support.check_config(stock())


def test_the_group_lists_every_field_with_its_default():
    """So that `wm.<field>=…` needs no `+`, and the file says what there is."""
    listed = yaml.safe_load((ROOT / "recipes/verl/wm/echo.yaml").read_text())["wm"]
    expected = {name: field.default for name, field in EchoConfig.model_fields.items()}
    expected |= {name: field.default for name, field in WorldModelConfig.model_fields.items() if name != "objective"}
    expected |= dict.fromkeys(PRESET_FIELDS)  # null: the preset's, or the default
    assert set(listed) == set(expected) | set(REWARD_KEYS)
    assert {name: listed[name] for name in expected} == expected


def test_an_objective_without_presets_stands_beside_the_group(monkeypatch):
    class Mine(Objective):
        def loss(self, logps, weights, num_tokens):
            return echo_loss(logps, weights, num_tokens)

    monkeypatch.setitem(sys.modules, "my_objectives", SimpleNamespace(Mine=Mine))
    assert read_config(stock("+wm.objective=my_objectives:Mine", "wm.coeff=null")).objective == Mine(0.05)


def test_a_preset_sets_what_is_not_written():
    assert read_config(stock("wm.preset=prime-rl", "wm.coeff=null")).objective == EchoConfig(preset="prime-rl")
    written = read_config(stock("wm.preset=rllm", "wm.include_errors=false", "wm.coeff=0.3")).objective
    assert written == EchoConfig(0.3, preset="rllm", include_errors=False)
    support.check_config(
        stock("wm.preset=verl-recipe", "wm.coeff=null", "actor_rollout_ref.rollout.temperature=0.8")
    )  # tempered, as there
    named = "wm.world_model={tools: {coeff: 0.3, roles: [tool]}, users: {preset: rllm}}"
    objectives = read_config(stock(named, "wm.coeff=null")).objectives
    assert objectives == {"tools": EchoConfig(0.3, roles=("tool",)), "users": EchoConfig(preset="rllm")}
    with pytest.raises(UserError, match="wm.world_model names the run's objectives; write coeff in one of them"):
        read_config(stock(named))
    split = ["wm.preset=openenv", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"]
    with pytest.raises(UserError, match="preset openenv divides by the tokens of each micro-batch"):
        support.check_config(stock(*split))


def test_the_group_turns_stock_verl_into_ours():
    config = stock()
    assert config.trainer.v1.trainer_mode == TRAINER_MODE
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == AGENT_LOOP
    wm = support.check_config(config)
    assert wm.objective == EchoConfig(0.05)
    assert wm.environment is None


def test_fields_reach_the_objective():
    config = stock(
        "wm.tools={look: 0.3, move: 1}",
        "wm.schedule=linear",
        "wm.schedule_steps=10",
        "wm.select=wm_plugin.objectives.echo:echo_loss",
        "+wm.alpha=0.5",
        "~wm.coeff",
    )
    objective = read_config(config).objective
    assert objective.tools == {"look": 0.3, "move": 1.0}
    assert objective.coeff_at(5) == 0.25
    assert objective.select.__name__ == "echo_loss"


REFUSED = {
    "an unknown field": (["+wm.coef=1"], "wm has no field 'coef'; did you mean 'coeff'"),
    "both names of the coefficient": (
        ["wm.coeff=0.1", "+wm.alpha=0.1"],
        "wm gets coeff twice (alpha is the same); keep one",
    ),
    "no loss": (
        ["+wm.objective=wm_plugin.objectives:Objective"],
        "wm.objective is 'wm_plugin.objectives:Objective', which is no objective",
    ),
    "no objective": (["+wm.objective=json:loads"], "wm.objective is 'json:loads', which is no objective; write echo"),
    "a bad value": (["wm.coeff=-1"], "coeff is -1"),
    "a bad share": (["wm.max_lost=2"], "wm.max_lost is 2; write a number >= 0 and <= 1"),
    "no turns": (["wm.max_turns=0"], "wm.max_turns is 0"),
    "turns of no tokens": (["wm.max_turn_tokens=0"], "wm.max_turn_tokens is 0; write a whole number"),
    "a turn budget's field": (
        ["wm.environment=grid", "wm.turn_budget={evry: 3}"],
        "wm.turn_budget has no field 'evry'; did you mean 'every'?",
    ),
    "two budgets": (
        ["wm.environment=grid", "wm.turn_budget={start: 3}", "wm.max_turns=3"],
        "wm.turn_budget says what max_turns says; leave one of them out",
    ),
    "an unknown environment": (["wm.environment=grit"], "there is no 'grit'; did you mean 'grid'"),
    "an episode's feature without one": (["wm.protocol=tags"], "wm.protocol is for episodes in an environment"),
    "a feature that does not fit": (
        ["wm.environment=grid", "wm.verify={world_model: {model: w}}"],
        "wm.verify: GridEnvironment says of no tool",
    ),
    "two sets of tools": (
        ["wm.environment=grid", "actor_rollout_ref.rollout.multi_turn.function_tool_path=x.py"],
        "brings its own tools",
    ),
    "a reward that nobody asks": (["wm.reward=json:loads"], "reward.reward_manager.source=importlib"),
    "temperature": (["actor_rollout_ref.rollout.temperature=0.7"], "wm.tempered=true"),
    "verl's asynchronous mode on others": (
        ["trainer.v1.trainer_mode=separate_async"],
        "write trainer.v1.trainer_mode=world_model_separate_async",
    ),
    "the stock mode": (["trainer.v1.trainer_mode=sync"], "trainer.v1.trainer_mode=world_model"),
    "the legacy trainer": (["trainer.use_v1=false"], "write trainer.use_v1=true"),
    "an engine": ([f"{ACTOR}.strategy=veomni"], "known to be exact on fsdp, fsdp2, megatron"),
    "FSDP-Turbo": ([f"{ACTOR}.strategy=fsdp_turbo"], "actor.strategy is 'fsdp_turbo'"),
    "dynamic context parallelism": (
        [f"{ACTOR}.strategy=megatron", f"+{ACTOR}.megatron.dynamic_context_parallel=true"],
        "actor.megatron.dynamic_context_parallel is true",
    ),
    "distillation": (["distillation.enabled=true"], "distillation.enabled is true"),
    "verl's tool loop": (
        [f"{AGENT}.default_agent_loop=tool_agent"],
        f"default_agent_loop is verl's 'tool_agent', which does not say which tokens are the environment's; write {OURS}",
    ),
    "verl's loop of one turn": ([f"{AGENT}.default_agent_loop=single_turn_agent"], f"write {OURS}"),
    "an agent loop that is not there": (
        [f"{AGENT}.default_agent_loop=wm_tool_agnet"],
        "default_agent_loop is 'wm_tool_agnet'; did you mean 'wm_tool_agent'?",
    ),
    "an environment in verl's tool loop": (
        ["wm.coeff=0", "wm.environment=grid", f"{AGENT}.default_agent_loop=tool_agent"],
        "wm.environment is driven by our agent loop, and default_agent_loop is verl's 'tool_agent'",
    ),
    "an unknown tool of an environment": (
        ["wm.environment=grid", "wm.tools=[mvoe]"],
        "wm.tools: there is no tool 'mvoe'; did you mean 'move'?",
    ),
    "an unknown tool of several environments": (
        ["wm.environment={a: grid, b: maze}", "wm.tools={move: 1, plan: 0.5}"],
        "wm.tools: there is no tool 'plan'",
    ),
    "an unknown tool of a file of functions": (
        [f"{MULTI_TURN}.function_tool_path={DATA}/function_tools.py", "wm.tools=[look_pu]"],
        "wm.tools: there is no tool 'look_pu'; did you mean 'look_up'?",
    ),
    "an unknown tool of a file of classes": (
        [f"{MULTI_TURN}.tool_config_path={DATA}/tools.yaml", "wm.tools=[serach]"],
        "wm.tools: there is no tool 'serach'; did you mean 'search'?",
    ),
    "an environment without a reward, and none beside it": (
        ["wm.coeff=0", f"wm.environment={BARE}", "data.train_files=/no/such/file.parquet"],
        "BareEnvironment has no get_reward, and no reward is configured; write get_reward, or wm.reward=NAME",
    ),
    "an environment without a reward, and nobody to ask for one": (
        [f"wm.environment={BARE}", "reward.num_workers=0", "reward.custom_reward_function.path=x.py"],
        "reward.num_workers=0 asks no other reward; write 1 or more",
    ),
    "a guard without validations": (["wm.guard=true"], "wm.guard watches validations, and trainer.test_freq is -1"),
    "a role": (["wm.roles=[tols]"], "roles[0] is 'tols'; did you mean 'tool'?"),
    "no tools, if that is to stop": (["wm.on_silence=stop"], "the run has no tools; write wm.environment=NAME"),
    "a config that selects nothing, if that is to stop": (["wm.on_silence=stop", "wm.tools=[]"], "tools is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_exact_is_refused(case):
    overrides, message = REFUSED[case]
    with pytest.raises(UserError, match=re.escape(message)) as error:
        support.check_config(stock(*overrides))
    assert "\n" not in str(error.value)


ALLOWED = {
    "a user's own loop": [f"{AGENT}.default_agent_loop=mine", f"{AGENT}.agent_loop_config_path={DATA}/loops.yaml"],
    "a loop that only the workers know": [
        f"{AGENT}.default_agent_loop=theirs",
        "actor_rollout_ref.model.external_lib=some.module",
    ],
    "a file of loops that is not here": [
        f"{AGENT}.default_agent_loop=theirs",
        f"{AGENT}.agent_loop_config_path=/no/such.yaml",
    ],
    "tools of functions": [f"{MULTI_TURN}.function_tool_path={DATA}/function_tools.py", "wm.tools=[look_up]"],
    "tools of classes": [f"{MULTI_TURN}.tool_config_path={DATA}/tools.yaml", "wm.tools={search: 1}"],
    "tools that name themselves": [f"{MULTI_TURN}.tool_config_path={DATA}/unnamed.yaml", "wm.tools=[any]"],
    "a file of tools that fails here": [f"{MULTI_TURN}.function_tool_path={DATA}/loops.yaml", "wm.tools=[any]"],
    "a reward function": [f"wm.environment={BARE}", "reward.custom_reward_function.path=x.py"],
    "a reward model": [f"wm.environment={BARE}", "reward.reward_model.enable=true"],
    "a reward of verl's": [f"wm.environment={BARE}", "data.train_files={scored}"],
    "files elsewhere": [f"wm.environment={BARE}", "data.train_files='hdfs://there/train.parquet'"],
}


def rows(path, *sources):
    """A file of rows for verl, of these values of `data_source`."""
    prompt = {"prompt": [{"role": "user", "content": ""}]}
    files = [verl_rows([prompt], source) for source in sources]
    write([row for file in files for row in file], path)
    return path


@pytest.mark.parametrize("case", ALLOWED)
def test_what_may_be_in_order_is_left_alone(case, tmp_path):
    scored = rows(tmp_path / "rows.parquet", "openai/gsm8k", "math_dapo")
    overrides = [text.replace("{scored}", str(scored)) for text in ALLOWED[case]]
    assert support.check_config(stock(*overrides)).objective.active


def test_an_environment_without_a_reward_may_have_one_of_ours():
    assert support.check_config(
        stock(f"wm.environment={BARE}", "wm.reward={path: exact, kwargs: {tag: answer}}", groups="[echo,reward]")
    )


def test_rows_that_verl_has_no_reward_for_are_named(tmp_path):
    file = rows(tmp_path / "rows.parquet", "openai/gsm8k", "my_package.worlds")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"data_source": "of_mine"}) + "\n")
    for path, source in ((file, "my_package.worlds"), (tmp_path / "rows.jsonl", "of_mine")):
        with pytest.raises(UserError, match=f"verl has none for rows of data_source '{source}'"):
            support.check_config(stock(f"wm.environment={BARE}", f"data.train_files={path}"))


def test_columns_of_other_types_are_left_to_verl(tmp_path):
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"data_source": [["a"]], "agent_name": [{"a": 1}], "prompt": ["x"]}), file)
    assert support.check_config(stock("wm.environment=grid", f"data.train_files={file}", "data.train_batch_size=1"))


def test_a_run_without_tools_is_spoken_of_before_it_starts(capsys):
    config = stock()
    _check(config)
    assert capsys.readouterr().err.startswith(
        "wm: the world-model objective has no token to train on: the run has no tools"
    )
    for overrides in (["wm.coeff=0"], ["wm.environment=grid"], ALLOWED["a user's own loop"]):
        _check(stock(*overrides))
        assert capsys.readouterr().err == ""
    _check(stock("wm.environment=grid", "wm.tools={move: 0}"))
    assert "the multiplier 0" in capsys.readouterr().err


def test_a_coefficient_that_nobody_wrote_is_said_before_the_run(capsys):
    config = stock("wm.environment=grid")
    with open_dict(config):
        del config.wm.coeff
    _check(config)
    assert capsys.readouterr().err.startswith("wm: wm.coeff is not written: nothing is trained on environment tokens")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"data.train_files has no rows: .*; give it rows"),
        ('{"promt": []}\n' * 4, r"has no column 'prompt'; did you mean 'promt'\?; its columns: 'promt'"),
        ('{"prompt": []}\n' * 3, "has 3 rows, fewer than a step takes: write data.train_batch_size=3 or less"),
        ('{"prompt": []}\n' * 4, None),
    ],
    ids=["empty", "no prompt", "few", "enough"],
)
def test_rows_that_nothing_can_be_trained_on_are_refused_before_ray_starts(tmp_path, text, reason):
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text(text)
    records = [json.loads(line) for line in text.splitlines()]
    pq.write_table(pa.Table.from_pylist(records) if records else pa.table({"prompt": pa.array([], pa.string())}), table)
    for path in (lines, table):
        config = stock("wm.environment=grid", f"data.train_files={path}", "data.train_batch_size=4")
        if reason is None:
            _check(config)
            continue
        with pytest.raises(UserError, match=reason):
            _check(config)


def test_files_that_are_not_here_are_refused_on_one_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = rows(tmp_path / "rows.parquet", "mine")
    (tmp_path / "text.parquet").write_text("not a parquet file")
    here, gone = f"data.train_files={path}", "data.val_files=[hdfs://there/x.parquet,gone.parquet]"
    check_files(stock(here, "data.val_files=hdfs://there/x.parquet"))
    for overrides, message in (
        ([here, gone], "data.val_files: there is no file 'gone.parquet'; python -m wm_plugin.verl.data writes"),
        (
            [here, f"data.val_files={tmp_path / 'text.parquet'}"],
            "text.parquet cannot be read as parquet (Parquet magic bytes",
        ),
        ([], "data.train_files: there is no file '~/data/rlhf/gsm8k/train.parquet'"),
    ):
        with pytest.raises(UserError, match=re.escape(message)) as refused:
            check_files(stock(*overrides))
        assert "\n" not in str(refused.value)
    check_files(stock(here, gone, "trainer.nnodes=2"))
    check_files(stock(here, gone, "data.custom_cls.path=mine.py"))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    check_files(stock(here, gone))


@pytest.fixture
def with_values(tmp_path, monkeypatch):
    """A config with other values, in a folder with a folder `model`, which is the user's home."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    composed = stock("wm.environment=grid")

    def change(**values):
        config = composed.copy()
        for name, value in values.items():
            OmegaConf.update(config, name, value, force_add=True)
        return config

    return change


MISSING = [
    ("path", "./nope", "there is no such folder; name one that is there, or a model on the Hub (owner/name)"),
    ("path", "runs/first/nope", "there is no such folder"),
    ("hf_config_path", "../nope", "there is no such folder"),
    ("tokenizer_path", "/nope", "there is no such folder"),
    ("path", "~/nope", "there is no such folder"),
    ("path", "~/model", "verl does not expand ~; write '{home}/model'"),
]


def test_a_model_folder_that_is_missing_is_named_before_ray_starts(with_values, tmp_path):
    for name, value, message in MISSING:
        with pytest.raises(UserError, match=re.escape(message.replace("{home}", str(tmp_path)))) as error:
            _check(with_values(**{f"{MODEL}.{name}": value}))
        assert str(error.value).startswith(f"{MODEL}.{name} is {value!r}")
        assert "\n" not in str(error.value)


def test_a_model_that_may_be_there_is_left_to_verl(with_values, monkeypatch):
    for path in ("./model", "owner/name", "gpt2", "hdfs://there/models/name"):
        _check(with_values(**{f"{MODEL}.path": path}))
    for name, value in (("trainer.nnodes", 2), ("ray_kwargs.ray_init.address", "auto")):  # another node may have it
        _check(with_values(**{f"{MODEL}.path": "/nope", name: value}))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    _check(with_values(**{f"{MODEL}.path": "/nope"}))


@pytest.mark.parametrize(
    ("fast", "processor", "message"),
    [
        (True, SimpleNamespace(), "SimpleNamespace: vision-language processors are not supported"),
        (False, None, "SimpleNamespace is a slow tokenizer"),
    ],
)
def test_a_processor_of_images_and_a_slow_tokenizer_are_refused(fast, processor, message):
    with pytest.raises(UserError, match=message) as error:
        support.check_tokenizer(SimpleNamespace(is_fast=fast), processor, {}, None)
    assert "\n" not in str(error.value)


def test_a_group_that_hydra_did_not_find_is_named():
    for override, value in (("+wm=echo", "'echo'"), ("+wm=[echo,reward]", r"\['echo', 'reward'\]")):
        config = composed("ppo_trainer", override, module="verl.trainer.config")
        message = (
            rf"wm is {value}, a plain value: Hydra does not find our groups without 'hydra.searchpath=\[pkg://wm_pl"
        )
        with pytest.raises(UserError, match=message):
            support.check_config(config)


SEARCH_PATH = "hydra.searchpath=[pkg://wm_plugin.recipes.verl]"


def test_a_command_without_the_search_path_is_stopped_before_hydra_reads_it(capsys):
    """Hydra would say of `+wm=echo wm.coeff=0.05` that there is no wm.coeff."""
    for words in (["+wm=echo", "wm.coeff=0.05"], ["a=b", "++wm=[echo,reward]"]):
        with pytest.raises(SystemExit) as stop:
            _check_command(words)
        assert stop.value.code == 2
        assert "without 'hydra.searchpath=[pkg://wm_plugin.recipes.verl]'" in capsys.readouterr().err
    for words in ([SEARCH_PATH, "+wm=echo"], ["--config-name=mine", "+wm=echo"], ["+wm.coeff=1"], []):
        assert _check_command(words) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wm.coeff=0.05"], f"wm.coeff is a field of a group that the command lacks; add '{SEARCH_PATH}' +wm=echo"),
        (
            [SEARCH_PATH, "wm.coeff=0.05"],
            f"wm.coeff is a field of a group that the command lacks; add '{SEARCH_PATH}' +wm=echo",
        ),
        ([SEARCH_PATH, "+wm=echo", "wm.coef=1"], "wm has no field 'coef'; did you mean 'coeff'?"),
        ([SEARCH_PATH, "+wm=[echo,cpu]", "wm.guards.k=1"], "wm has no field 'guards'; did you mean 'guard'?"),
        ([SEARCH_PATH, "+wm=cpu", "wm.coeff=1"], "wm.coeff is a field of the group echo; write '+wm=[cpu,echo]'"),
        (
            [SEARCH_PATH, "+wm=reward", "wm.coeff=1"],
            "wm.coeff is a field of the group echo; write '+wm=[reward,echo]'",
        ),
    ],
)
def test_a_field_that_no_group_of_the_command_has_is_one_line_before_hydra_reads_it(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        _check_command(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"wm: {message}\n"


def test_fields_of_the_commands_groups_are_left_to_hydra():
    for words in (["+wm=[echo,reward]", "wm.reward=rouge", "wm.guard.k=2"], ["++wm=echo", "wm.world_model.a.coeff=1"]):
        assert _check_command([SEARCH_PATH, *words]) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--config-name=mine", "wm.coeff=1", "wm.own=1"],
        [SEARCH_PATH, "+wm=mine", "wm.own=1"],
        [SEARCH_PATH, "+wm=[echo,groups/mine]", "wm.own=1"],
        [SEARCH_PATH, "+wm=echo", "wm.objective=mine:Objective", "wm.own=1"],
        [SEARCH_PATH, "+wm=echo", "+wm.objective=mine:Objective", "wm.own=1"],
    ],
)
def test_a_config_a_group_and_an_objective_of_ones_own_may_have_any_field(words):
    assert _check_command(words) is None


@pytest.mark.parametrize("case", ["temperature", "verl's asynchronous mode on others", "the legacy trainer"])
def test_at_coefficient_0_verl_may_do_as_it_likes(case):
    overrides, _ = REFUSED[case]
    wm = support.check_config(stock(*overrides, "wm.coeff=0"))
    assert not wm.objective.active


def test_tempered_asks_for_it():
    assert support.check_config(stock("actor_rollout_ref.rollout.temperature=0.7", "wm.tempered=true"))


def test_a_turn_budget_and_the_reward_of_episodes_are_read():
    wm = support.check_config(
        stock(
            "wm.coeff=0",
            "wm.environment=grid",
            "wm.turn_budget={start: 6, every: 2}",
            "wm.episode_reward={rescale: true}",
        )
    )
    assert wm.turn_budget == TurnBudget(6, 2)
    assert wm.first_turns == 7
    (environment,) = wm.classes().values()
    assert environment is rewarded(GridEnvironment, rescale=True)
    assert support.check_config(stock("wm.max_turns=4")).first_turns == 4
    assert support.check_config(stock()).first_turns is None


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_a_release_outside_the_range_is_refused(version, monkeypatch):
    monkeypatch.setattr(support.verl, "__version__", version)
    with pytest.raises(UserError, match=f"verl {version} is outside the supported range >=0.9.1,<0.10"):
        support.check_config(stock())


def test_a_config_without_the_block_says_how_to_add_it():
    config = stock()
    with open_dict(config):
        del config.wm
    with pytest.raises(UserError, match=r"add 'hydra.searchpath=\[pkg://wm_plugin.recipes.verl\]' \+wm=echo"):
        support.check_config(config)


def run(*arguments, **environment):
    values = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_USE_EXTERNAL_PLUGINS": "none", **environment}
    return subprocess.run([sys.executable, *arguments], env=values, capture_output=True, text=True)


# a check of the config and the one before Hydra; all others stop a run in the same way as the first
STOPPED = {
    "a field": ([SEARCH_PATH, "+wm=echo", "+wm.coef=1"], "wm: wm has no field 'coef'; did you mean 'coeff'?"),
    "no search path": (
        ["+wm=echo", "wm.coeff=0.05"],
        "wm: +wm=echo is one of our groups, which Hydra does not find without 'hydra.searchpath=[pkg://wm_plugin.recipes.verl]'; "
        "add that",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STOPPED)
def test_main_refuses_in_one_line_before_ray_starts(tmp_path, case):
    overrides, message = STOPPED[case]
    command = ["-m", "verl.trainer.main_ppo", f"hydra.run.dir={tmp_path}", *overrides]
    done = run(*command, VERL_USE_EXTERNAL_MODULES="wm_plugin.verl")
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == message
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_plugin_imports_nothing_of_verl():
    code = """
import sys, verl
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
assert "world_model" not in TRAINER_REGISTRY  # VERL_USE_EXTERNAL_PLUGINS=none
before = {name for name in sys.modules if name.startswith(("verl", "ray", "torch"))}
import wm_plugin.verl
assert before == {name for name in sys.modules if name.startswith(("verl", "ray", "torch"))}
from wm_plugin.verl import registration
registration.arm(); registration.arm()
assert TRAINER_REGISTRY["world_model"] is registration._make_trainer
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
assert _agent_loop_registry["wm_tool_agent"]["_target_"].startswith("wm_plugin.verl.")
"""
    done = run("-c", code, VERL_PLATFORM="nvidia")  # verl's own: that for a CPU is the plugin's
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"VERL_USE_EXTERNAL_PLUGINS": "wm_plugin"}, {"VERL_USE_EXTERNAL_MODULES": "wm_plugin.verl"}]
)
def test_the_plugin_is_loaded_inside_verls_import_and_waits_for_its_registries(how):
    """As in every process of verl's: the module of ours, and none of verl's before its time."""
    code = """
import sys, verl
early = "verl.trainer.ppo.v1.trainer_base" in sys.modules
assert "wm_plugin.verl" in sys.modules
from verl.utils import config
assert config.validate_config.__module__ == "wm_plugin.verl.registration"
from verl.trainer.ppo.v1 import get_trainer_cls
print(early, get_trainer_cls("world_model").__module__)
"""
    done = run("-c", code, **how)
    assert done.stdout.splitlines()[-1:] == ["False wm_plugin.verl.registration"], done.stderr[-2000:]


def test_without_the_block_our_check_is_silent():
    from verl.utils import config as verl_config

    import wm_plugin.verl  # noqa: F401

    config = stock("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
    with open_dict(config):
        config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu = 1
        config.wm.coeff = -1
    with pytest.raises(UserError, match="coeff is -1"):
        verl_config.validate_config(config, use_reference_policy=False, use_critic=False)
    with open_dict(config):
        del config.wm
    assert verl_config.validate_config(config, use_reference_policy=False, use_critic=False) is None

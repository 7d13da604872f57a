"""Every recipe for verl: composed as main_ppo composes it, checked by verl and by us, and passed on by its script."""

from pathlib import Path

import pytest

pytest.importorskip("verl")

import datasets
import yaml
from hydra import compose, initialize_config_dir
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import config as verl_config
from verl.utils.config import omega_conf_to_dataclass

from recipes import rows
from support.papers import CONSTANTS, EVALUATED, LEVELS
from support.scripts import RECIPES, calls_of, listed, trl_words
from support.verl_recipes import composed, of_recipe, unknown_keys
from wm_plugin.hosting import config_file
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.hosting.world import missing_columns
from wm_plugin.registry import import_object
from wm_plugin.rewards.episode import EpisodeReward
from wm_plugin.verl.config import read_config
from wm_plugin.verl.data import verl_rows, write
from wm_plugin.verl.support import check_config
from wm_plugin.worlds import ENVIRONMENTS

NAMES = [name for name, one in listed("verl").items() if one.system in ("ECHO", "WMAct")]
WMACT = [name for name in NAMES if name.startswith("wmact")]
ON_BOTH = [name for name, one in listed("trl").items() if one.run_here == "no" and one.algorithm in ("GRPO", "GSPO")]
FILES = [
    path.stem
    for path in sorted((RECIPES / "verl").glob("*.yaml"))
    if not path.stem.startswith("sft")  # tests/on_verl/test_wm_sft.py has these
]
# verl leaves these mappings open, or has fields in their classes that are not in its YAML
OPEN = (
    "actor_rollout_ref.model.override_config",
    "critic.model.override_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "critic.fsdp.mixed_precision",
    "ray_kwargs.ray_init",
    "wm.environment",  # a name, or names of several
    "wm.turn_budget",  # ours, with classes of their own
    "wm.episode_reward",
    "wm.prediction_reward",
    "wm.reward",
)


@pytest.fixture(scope="module")
def stock():
    return composed("ppo_trainer", module="verl.trainer.config")


def unknown(values, stock):
    """The paths in a recipe that neither verl's config nor the group `wm` has."""
    group = {"reward": None, "reward_batch": 1} | yaml.safe_load((RECIPES / "verl" / "wm" / "echo.yaml").read_text())[
        "wm"
    ]
    return list(unknown_keys(values, stock, closed=OPEN, group=group))


def test_there_is_a_large_and_a_tiny_recipe_of_each_algorithm():
    names = ("deepdive", "forth_all", "forth_code", "grpo", "gspo", "ppo", "swe", "terminal_grpo", "terminal_gspo")
    both = [*(f"echo_{name}" for name in names), "wmact_grpo", "wmact_ppo"]
    others = {f"echo_forth_{which}_{run}" for which in ("all", "code") for run in ("500", "glm")} | {"echo_sql_135m"}
    assert {f"{name}{size}" for name in both for size in ("", "_tiny")} | others == set(NAMES)


@pytest.mark.parametrize("name", FILES)
def test_every_key_exists(name, stock):
    assert not unknown(yaml.safe_load((RECIPES / "verl" / f"{name}.yaml").read_text()), stock)


def test_a_misspelt_key_is_found(stock):
    """Hydra adds what a primary config misspells, and verl never reads it."""
    values = {"trainer": {"save_frq": 1, "save_freq": 1}, "wm": {"coef": 1, "coeff": 1}, "critc": {"optim": {"lr": 1}}}
    assert unknown(values, stock) == ["trainer.save_frq", "wm.coef", "critc.optim.lr"]


def multi_turn(config):
    values = config.actor_rollout_ref.rollout.multi_turn
    return values.max_tool_response_length, values.tool_response_truncate_side, values.max_parallel_calls


def test_the_group_lets_tools_results_be_whole_and_the_users_own_values_win(tmp_path, stock):
    search = "hydra.searchpath=[pkg://wm_plugin.recipes.verl,pkg://verl.trainer.config]"
    group = ("ppo_trainer", search, "+wm=echo")
    module = "verl.trainer.config"
    assert multi_turn(stock) == (256, "middle", 1)
    assert multi_turn(composed(*group, module=module)) == (8192, "right", 4)
    path = "actor_rollout_ref.rollout.multi_turn"
    own = (f"{path}.max_tool_response_length=500", f"{path}.tool_response_truncate_side=left")
    for overrides in ((*group, *own), (group[0], *own, *group[1:])):
        assert multi_turn(composed(*overrides, module=module)) == (500, "left", 4)
    # a config file of the user's own: Hydra puts a group of the command line behind it, and one that it lists where it lists it
    values = "actor_rollout_ref: {rollout: {multi_turn: {max_tool_response_length: 700, max_parallel_calls: 1}}}\n"
    (tmp_path / "plain.yaml").write_text(f"defaults: [ppo_trainer, _self_]\n{values}")
    (tmp_path / "lists.yaml").write_text(f"defaults: [ppo_trainer, {{wm: echo}}, _self_]\n{values}")
    with initialize_config_dir(str(tmp_path), version_base=None):
        assert multi_turn(compose("plain", overrides=list(group[1:]))) == (8192, "right", 4)
        assert multi_turn(compose("lists", overrides=[search])) == (700, "right", 1)


@pytest.mark.parametrize("name", NAMES)
def test_verl_and_the_plugin_accept_the_config(name, policy):
    config = of_recipe(name, f"actor_rollout_ref.model.path={policy}")
    verl_config.validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    wm = read_config(config)
    assert wm.objective.active == name.startswith("echo")
    assert config.trainer.v1.trainer_mode == "world_model"
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "wm_tool_agent"
    assert need_critic(config) == ("ppo" in name)
    assert (config.actor_rollout_ref.actor.policy_loss.loss_mode == "gspo") == ("gspo" in name)


@pytest.mark.parametrize("name", [name for name in NAMES if "ppo" in name])
def test_the_critic_is_updated_twelve_times_a_policy_update(name):
    config = of_recipe(name)
    prompts, actor, critic = config.data.train_batch_size, config.actor_rollout_ref.actor, config.critic
    assert prompts // actor.ppo_mini_batch_size * actor.ppo_epochs == 1
    assert prompts // critic.ppo_mini_batch_size * critic.ppo_epochs == 12
    fewest = min(passes for passes in range(1, 13) if 12 % passes == 0 and prompts % (12 // passes) == 0)
    assert critic.ppo_epochs == fewest == 3


@pytest.mark.parametrize("name", WMACT)
def test_wmacts_rewards_and_budget(name):
    wm = read_config(of_recipe(name))
    tiny = name.endswith("tiny")
    assert wm.turn_budget == (TurnBudget(6, 1) if tiny else TurnBudget(30, 100))
    assert wm.episode_reward == EpisodeReward(rescale=True, format_penalty=0.1)
    # all of them, so that `wm.episode_reward.<field>=…` needs no `+`
    assert wm.episode_reward.model_fields_set == set(EpisodeReward.model_fields)
    assert wm.max_turns is None
    with_echo = read_config(of_recipe(name, "wm.coeff=0.05"))  # one line, and nothing else changes
    assert (with_echo.objective.coeff, with_echo.turn_budget) == (0.05, wm.turn_budget)


EPOCHS = {"forth": 432, "deepdive": 2230, "swe": 2440}  # prompts of an epoch; verl stops at the last epoch, too


@pytest.mark.parametrize("name", [*CONSTANTS, "wmact_ppo"])
def test_the_papers_constants(name, policy):
    config = of_recipe(name, "trainer.save_freq=7")
    wm, rollout, actor, trainer = (
        read_config(config),
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.actor,
        config.trainer,
    )
    prompts, budget = config.data.train_batch_size, wm.turn_budget
    found = {
        "model": config.actor_rollout_ref.model.path,
        "completions": prompts * rollout.n,
        "group": rollout.n,
        "coeff": wm.objective.coeff,
        "tools": wm.objective.tools,
        "zero_variance_groups": wm.objective.zero_variance_groups,
        "steps": trainer.total_training_steps,
        "rate": actor.optim.lr,
        "optimizer": {"MuonWithAdamW": "muon", "SignSGD": "sign_sgd"}.get(actor.optim.optimizer),
        "warmup": actor.optim.lr_warmup_steps,
        "weight_decay": actor.optim.weight_decay,  # WMAct's paper has Adam
        "temperature": rollout.temperature,
        "turns": wm.max_turns and wm.max_turns - 1,
        "turn_tokens": wm.max_turn_tokens,
        "response": config.data.max_response_length,
        "protocol": wm.protocol,
        "turn_budget": budget and (budget.start, budget.every),
    }
    constants = CONSTANTS[name.replace("ppo", "grpo")]
    assert {key: found[key] for key in constants} == constants
    assert actor.ppo_mini_batch_size * actor.ppo_epochs == prompts  # one update of the newest rollouts
    longest = config.data.max_prompt_length + config.data.max_response_length
    assert actor.ppo_max_token_len_per_gpu >= longest
    for world, count in EPOCHS.items():
        if world in name:
            assert count // prompts * trainer.total_epochs >= trainer.total_training_steps
    assert (trainer.nnodes, trainer.save_freq) == (4 if "glm" in name else 1, 7)
    assert (rollout.multi_turn.format == "glm") == ("glm" in name)
    if name.startswith("wmact"):
        assert not any((actor.entropy_coeff, actor.use_kl_loss, config.algorithm.use_kl_in_reward))
        assert (rollout.val_kwargs.n, rollout.val_kwargs.do_sample) == (8, True)
    if "ppo" in name:
        critic = config.critic
        assert (critic.optim.lr, critic.optim.lr_warmup_steps, config.trainer.critic_warmup) == (5e-6, 50, 0)
        assert critic.optim.weight_decay == 0
        assert critic.ppo_max_token_len_per_gpu >= longest
        assert (config.algorithm.gamma, config.algorithm.lam) == (1.0, 1.0)
    config = of_recipe(name, f"actor_rollout_ref.model.path={policy}")
    verl_config.validate_config(config, need_reference_policy(config), need_critic(config))
    assert check_config(config).objective == wm.objective


@pytest.mark.parametrize("kind", ["all", "code"])
def test_forths_episodes_take_the_turns(kind):
    name = f"echo_forth_{kind}"
    config = of_recipe(name, "wm.coeff=0", TURNS="10")
    assert (config.wm.max_turns, config.wm.coeff) == (13, 0)  # wordle and sql take 12
    assert config.data.train_files == f"runs/{name}/rows/train.parquet"
    assert {Path(path).stem for path in config.data.val_files} == set(EVALUATED)


@pytest.mark.parametrize("world", ["alfworld", "tau2"])
def test_policy_rls_world(world):
    named = read_config(of_recipe(f"policy_{world}")).environment
    assert ({named} if isinstance(named, str) else set(named.values())) == {world}


@pytest.mark.parametrize(
    ("overrides", "first_turns", "rescale", "turn_penalty"),
    [
        (["wm.episode_reward.rescale=false"], 31, False, 0),  # EntirePlan: its rows have one turn
        (["wm.turn_budget=null", "wm.max_turns=31", "wm.episode_reward.rescale=false"], 31, False, 0),
        (["wm.turn_budget=null", "wm.max_turns=31"], 31, True, 0),
        (["wm.turn_budget=null", "wm.max_turns=31", "wm.episode_reward.turn_penalty=0.1"], 31, True, 0.1),
    ],
)
def test_the_overrides_of_the_ablation(overrides, first_turns, rescale, turn_penalty):
    wm = read_config(of_recipe("wmact_ppo", *overrides))
    assert wm.first_turns == first_turns
    assert wm.episode_reward == EpisodeReward(rescale, format_penalty=0.1, turn_penalty=turn_penalty)


def _on_trl(name):
    """The settings of TRL's recipe, flags of its launcher included."""
    words = trl_words(name)
    settings = {}
    for place, word in enumerate(words):
        if word == "--config":
            config_file.merge(settings, config_file.read(words[place + 1]))
        elif word.startswith("--"):
            settings[word[2:]] = yaml.safe_load(words[place + 1])
    return settings


@pytest.mark.parametrize("name", ON_BOTH)
def test_both_hosts_update_and_evaluate_alike(name):
    """By themselves verl decays weights and evaluates one greedy answer, and TRL does neither."""
    config, trl = of_recipe(name), _on_trl(name)
    rollout, optimizer = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor.optim
    assert (optimizer.lr, optimizer.weight_decay) == (trl["learning_rate"], trl.get("weight_decay", 0.0))
    validation = rollout.val_kwargs
    assert (validation.n, validation.do_sample) == (trl["num_generations_eval"], True)
    assert validation.temperature == rollout.temperature == trl["temperature"]
    assert (validation.top_p, validation.top_k) == (rollout.top_p, rollout.top_k)


LARGE = {"echo_forth_all", "wmact_grpo"}  # seconds for their rows; recipes like them are fast
SAME_ROWS = {"echo_gspo", "echo_gspo_tiny", "echo_forth_all_500", "echo_forth_all_glm", "echo_forth_code_glm"}
SAME_ROWS |= {"echo_terminal_gspo", "echo_terminal_gspo_tiny"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in NAMES if n not in SAME_ROWS]
)
def test_the_launcher_writes_data_that_the_environment_takes(name, tmp_path):
    calls = calls_of("verl", name, tmp_path)
    (call,) = [call for call in calls if call[1].endswith("rows.py")]
    config = of_recipe(name)
    validation = config.data.val_files
    settings, folder = config_file.read(call[2]), call[3]
    settings |= {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in call[4:]}
    found = rows.sets(settings)
    assert {config.data.train_files, *([validation] if isinstance(validation, str) else validation)} <= {
        f"{folder}/{one}.parquet" for one in found
    }
    wm, sources = read_config(config), {}
    for source, (function, arguments) in found.items():
        (row, *_) = import_object(function, field="rows")(**one_row(arguments))
        assert not missing_columns(wm.class_of(row), row)
        sources[source] = arguments, row
    world = next((world for world in ("forth", "deepdive", "swe") if world in name), None)
    if world is not None:
        tiny = name.endswith("tiny")
        assert set(sources) == {
            "train",
            *(("grid", world) if tiny else ("seen", "unseen") if world == "swe" else EVALUATED),
        }
        assert sources[next(reversed(sources)) if world == "swe" else world][1].get("max_turns", 200) == (
            4 if tiny else 200
        )
    elif "terminal" in name:
        assert set(sources) == {"train", *(("grid", "terminal") if name.endswith("tiny") else ("seen", "unseen"))}
    elif name.startswith("wmact") and not name.endswith("tiny"):
        check_wmacts_sets(sources)
        read_by_verl(sources, wm, tmp_path)


def one_row(arguments):
    """Arguments of a function of rows, for one row of each world."""
    if "environments" not in arguments:
        return arguments | {"count": 1}
    worlds = arguments["environments"].items()
    return arguments | {
        "environments": {world: 1 if isinstance(rows, int) else {**rows, "count": 1} for world, rows in worlds}
    }


def check_wmacts_sets(sources):
    """Every level of the paper, each of 256 held-out rows, in many turns and in one."""
    sets = dict(sources)
    arguments, row = sets.pop("train")
    assert arguments == {"environments": {"sokoban": {"count": 10000}}, "seed": 0}
    assert row["environment"] == "sokoban"
    assert set(sets) == {f"{name}{end}" for name in LEVELS for end in ("", "_single")}
    for name, level in LEVELS.items():
        (arguments, row), (_, single) = sets[name], sets[f"{name}_single"]
        (options,) = arguments["environments"].values()
        assert (options["count"], options["held_out"], arguments["seed"]) == (256, True, 1)
        assert (row["environment"], row["level"]) == (name.partition("_")[0], level)
        assert "max_turns" not in row
        assert single == row | {"max_turns": 1, "prompt": single["prompt"]}  # the same level in one turn


def read_by_verl(sources, wm, folder):
    """verl reads all files at once; each row begins an episode of its world, with its own number of turns."""
    paths = []
    for source, (_, row) in sources.items():
        paths.append(str(folder / f"{source}.parquet"))
        write(verl_rows([row], source), Path(paths[-1]))
    whole = datasets.concatenate_datasets([datasets.load_dataset("parquet", data_files=p)["train"] for p in paths])
    assert whole["data_source"] == list(sources)
    for row in whole:
        columns = {name: value for name, value in row["extra_info"].items() if value is not None}
        environment = wm.class_of(columns)()
        assert "<action>" in environment.reset(**columns)
        assert environment.max_turns == (1 if row["data_source"].endswith("_single") else 30)


def test_verl_reads_files_of_several_worlds(tmp_path):
    pytest.importorskip("bm25s")
    wm, parts = read_config(of_recipe("echo_forth_all")), []
    for world in wm.environment:
        path = tmp_path / f"{world}.parquet"
        arguments = {"environments": {world: 2}, "held_out": True}
        rows = import_object("wm_plugin.worlds.mixture:dataset_rows", field="rows")(**arguments)
        write(verl_rows(rows, world), path)
        parts.append(datasets.load_dataset("parquet", data_files=str(path))["train"])
    whole = datasets.concatenate_datasets(parts)
    assert whole["data_source"] == [world for world in wm.environment for _ in range(2)]
    for row in whole:
        environment = wm.class_of(row["extra_info"])
        assert environment is ENVIRONMENTS.get(row["data_source"])
        assert not missing_columns(
            environment, [name for name, value in row["extra_info"].items() if value is not None]
        )

"""The training entry point: YAML and flags, one-line refusals, and every recipe."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl
import yaml
from datasets import Dataset, IterableDataset
from huggingface_hub.errors import EntryNotFoundError
from transformers import AutoModelForCausalLM, AutoTokenizer

from hosting.test_config_file import FILES
from support.on_trl import NEEDS_ENVIRONMENTS
from support.small_llama import fields, make_model, write_gguf
from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.hosting import config_file
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.trl import gguf, train
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.wrappers.rewarded import rewarded

GGUF = """environment: grid
train_rows: wm_plugin.worlds.grid:dataset_rows
train_rows_kwargs: {count: 4}
echo_coeff: 0.5
chat_template: qwen2_5
learning_rate: 0.0
per_device_train_batch_size: 2
num_generations: 2
max_steps: 1
max_completion_length: 8
logging_steps: 1
use_cpu: true
bf16: false
save_strategy: "no"
report_to: []
attn_implementation: eager
"""
RECIPES = Path(__file__).parents[2] / "recipes" / "trl"


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


BASE = "output_dir: x\nuse_cpu: true\nbf16: false\n"


def test_flags_win_over_the_file(tmp_path):
    path = write(tmp_path, BASE + "echo_coeff: 0.05\nlearning_rate: 1e-6\necho_tools: {run_query: 0.3}\n")
    script, config, _, _ = train.parse(["--config", path, "--echo_schedule", "step", "--echo_schedule_steps=5"])
    echo = config.echo_config()
    assert (script.environment, config.learning_rate) == (None, 1e-6)
    assert (echo.coeff, echo.tools, echo.schedule_steps) == (0.05, {"run_query": 0.3}, 5)
    for flag, tools in (("a,b", ("a", "b")), ('{"a": 0.1}', {"a": 0.1})):
        _, config, _, _ = train.parse(["--config", path, "--echo_alpha", "0.5", "--echo_tools", flag])
        assert (config.echo_coeff, config.echo_config().tools) == (0.5, tools)


@pytest.mark.parametrize("name", ["alpha", "echo_alpha"])
def test_alpha_is_the_coefficient_in_files_and_flags_and_both_is_an_error(tmp_path, name):
    path = write(tmp_path, f"{BASE}{name}: 0.05")
    assert train.parse(["--config", path])[1].echo_coeff == 0.05
    for flags in (["--alpha", "0.5"], ["--echo_alpha=0.5"], ["--echo_coeff", "0.5"]):  # a flag wins over the file
        assert train.parse(["--config", path, *flags])[1].echo_coeff == 0.5
    with pytest.raises(UserError, match=f"--{name} and --echo_coeff are the same; keep one"):
        train.parse(["--config", path, f"--{name}", "0.5", "--echo_coeff=0.5"])
    path = write(tmp_path, f"{BASE}echo_coeff: 0.05\n{name}: 0.05")
    with pytest.raises(UserError, match=f"gives 'echo_coeff' twice \\(as '{name}' too\\); keep one"):
        train.parse(["--config", path])


def test_every_list_takes_one_value(tmp_path):
    """As a flag does; YAML would have a text read character by character."""
    lists = [action.dest for action in train._parser()._actions if action.nargs in ("+", "*")]
    assert {"reward_funcs", "rewards", "tools", "lora_target_modules", "reward_weights"} <= set(lists)
    text = BASE + "reward_funcs: builtins:len\ntools: json:loads\necho_roles: tool\n"
    text += (
        "rewards: {path: rouge, kwargs: {tag: x}}\nreward_weights: 2\nlora_target_modules: q_proj\necho_tools: move\n"
    )
    script, config, model, _ = train.parse(["--config", write(tmp_path, text)])
    assert (script.reward_funcs, script.tools) == (["builtins:len"], ["json:loads"])
    assert script.rewards == [{"path": "rouge", "kwargs": {"tag": "x"}}]
    assert config.reward_weights == [2]
    assert (config.echo_config().roles, config.echo_config().tools) == (("tool",), ("move",))
    assert model.lora_target_modules in (["q_proj"], "q_proj")  # TRL's own, of one
    script, config, _, _ = train.parse(
        ["--config", write(tmp_path, BASE + "reward_funcs: null\necho_roles: [tool, user]\n")]
    )
    assert (script.reward_funcs, config.echo_roles) == (None, ["tool", "user"])


def test_help_shows_ours_first_and_trls_on_request(capsys):
    assert train.main(["--help"]) == 0
    ours = capsys.readouterr().out
    assert "--reward_funcs" in ours
    assert "--echo_turn_information" in ours
    assert "--learning_rate" not in ours
    assert ours.count("\n") < 210
    assert "wm train --help-all" in ours
    assert train.main(["--help-all"]) == 0
    everything = capsys.readouterr().out
    assert "--echo_guard" in ours
    assert everything.index("--reward_funcs") < everything.index("--echo_coeff") < everything.index("--learning_rate")


@pytest.mark.parametrize("name", ["./not_there", "/not/there", "not/there/at_all"])
def test_a_model_folder_that_is_missing(tmp_path, capsys, name):
    text = BASE + f"environment: grid\nmodel_name_or_path: {name}\n"
    assert train.main(["--config", write(tmp_path, text)]) == 2
    assert capsys.readouterr().err == f"wm train: model_name_or_path is {name!r}: there is no such folder\n"


class Refused(Exception):
    """What the Hub's client raises, as far as it is read."""

    def __init__(self, status):
        self.response = SimpleNamespace(status_code=status)


NO_REPOSITORY = "it has none of this name and revision that your token may read"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("Name or service\nnot known"), "Name or service not known"),
        (TimeoutError(), "TimeoutError()"),
        (ValueError("Repo id must be"), "Repo id must be"),
        (Refused(404), NO_REPOSITORY),
        (Refused(401), NO_REPOSITORY),
        (Refused(503), "We couldn't connect to the Hub."),  # transformers waits for a Hub that is busy
        (EntryNotFoundError("an adapter's"), "We couldn't connect to the Hub."),
    ],
)
def test_a_model_that_is_neither_a_folder_nor_on_the_hub(tmp_path, capsys, monkeypatch, error, reason):
    def ask(url, token):
        assert url.endswith("/runs/tiny/resolve/main/config.json")
        raise error

    def load(**_):
        raise OSError("We couldn't connect to the Hub.\nCheckout your internet connection.")  # in transformers' words

    monkeypatch.setattr(train, "get_hf_file_metadata", ask)
    monkeypatch.setattr(train, "WorldModelGRPOTrainer", load)
    text = BASE + "environment: grid\nmodel_name_or_path: runs/tiny\n"
    assert train.main(["--config", write(tmp_path, text)]) == 2
    assert capsys.readouterr().err == (
        "no folder 'runs/tiny' here; asking the Hub\n"
        "wm train: model_name_or_path is 'runs/tiny': there is no such folder, and no such model came from the Hub "
        f"({reason})\n"
    )


def test_a_model_in_the_hubs_cache_is_not_asked_for(tmp_path, capsys, monkeypatch):
    def load(**_):
        raise UserError("loaded")

    def ask(*_, **__):
        raise AssertionError("asked")

    snapshot, refs = tmp_path / "models--runs--tiny" / "snapshots" / "abc", tmp_path / "models--runs--tiny" / "refs"
    snapshot.mkdir(parents=True)
    refs.mkdir()
    (snapshot / "config.json").write_text("{}")
    (refs / "main").write_text("abc")
    monkeypatch.setattr(train, "get_hf_file_metadata", ask)
    monkeypatch.setattr(train, "WorldModelGRPOTrainer", load)
    text = BASE + "environment: grid\nmodel_name_or_path: runs/tiny\n"
    text += f"model_init_kwargs: {{cache_dir: {tmp_path}}}\n"
    assert train.main(["--config", write(tmp_path, text)]) == 2
    assert capsys.readouterr().err.endswith("wm train: loaded\n")


@pytest.mark.parametrize(
    ("line", "flags", "echo"),
    [
        ("", [], None),
        ("echo_turn_information: true", [], 0.05),
        ("echo_turn_information: {echo: 0.2}", [], 0.2),
        ("echo_turn_information: {echo: 0.2}", ["--echo_turn_information", "false"], None),
        ("", ["--echo_turn_information", "true"], 0.05),
        ("", ["--echo_turn_information", '{"echo": 0.3}'], 0.3),
    ],
)
def test_turn_information_in_files_and_flags(tmp_path, line, flags, echo):
    path = write(tmp_path, BASE + f"{line}")
    _, config, _, _ = train.parse(["--config", path, *flags])
    ratios = config.echo_config().turn_information
    assert (ratios and ratios["echo"]) == (echo or False)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("echo_coef: 1", [], "'echo_coef' in the config file is not a setting; did you mean 'echo_coeff'?"),
        ("echo_coeff: -1", [], "echo_coeff is -1; write a number >= 0"),
        ("echo_coeff: lots", [], "echo_coeff is 'lots'; write a number"),
        ("max_steps: few", [], "max_steps is 'few'; write a number"),
        ("- 1", [], "holds no mapping"),
        ("env: [a]", [], "env is ['a']; write environment variables as NAME: value"),
        ("a: [", [], "is not YAML"),
        ("echo_coeff: 1\necho_coeff: 2", [], "is not YAML: a key appears twice, 'echo_coeff' in line 2; keep one"),
        ("echo_coeff: 1", ["--echo-coef=2"], "--echo-coef is not a flag; did you mean '--echo_coeff'?"),
        ("echo_tools: '{broken'", [], "echo_tools is '{broken'; write a list of names"),
        ("echo_select: json:load_it", [], "json has no 'load_it'; did you mean 'load'?"),
        ("echo_guard: {k: 0}", [], "echo_guard.k is 0; write a whole number"),
        ("echo_turn_information: ja", [], "echo_turn_information is 'ja'; write true, false, or ratios"),
        ("reward_funcs:\n- rouge", [], "reward_funcs: 'rouge' is a reward of this package; write it under rewards"),
        ("rewards:\n- rogue", [], "rewards, entry 1: reward: there is no 'rogue'; did you mean 'rouge'?"),
        ("echo_coeff: 0", ["--rewards", "{path"], "rewards is not JSON"),
        ("echo_coeff: 0", ["--turn_budget", "30"], "turn_budget is '30'; write fields, e.g. {start: 30, every: 100}"),
        ("echo_coeff: 0", ["--turn_budget", "{start"], "turn_budget is not JSON"),
        ("echo_coeff: 0", ["--max_lost", "2"], "max_lost is 2.0; write a number >= 0 and <= 1"),
        ("turn_budget: {start: 3}\nmax_tool_calling_iterations: 3", [], "leave one of them out"),
        ("episode_reward: {rescale: true}", [], "episode_reward is for episodes in an environment"),
        ("environment: grid\nepisode_reward: {rescal: 1}", [], "episode_reward has no field 'rescal'; did you mean"),
        ("environment: grid", ["--episode_reward", "{rescale"], "episode_reward is not JSON"),
        (
            "environment: grid",
            ["--episode_reward", "{rescal: 1}"],
            "episode_reward has no field 'rescal'; did you mean",
        ),
        ("environment: grid", ["--episode_reward={rescal: 1}"], "episode_reward has no field 'rescal'; did you mean"),
        ("environment: {a: 3}", [], "environment is {'a': 3}; write a name (wm env list), package.module:Class"),
        ("max_steps:\n- 2", [], "max_steps is [2]; write a number"),
        ("max_steps: 2001-01-01", [], "max_steps is datetime.date(2001, 1, 1); write a number"),
        ("gradient_checkpointing:\n- true", [], "gradient_checkpointing is [True]; write true or false"),
        ("output_dir: {a: b}", [], "output_dir is {'a': 'b'}; write text"),
    ],
)
def test_bad_settings_are_one_line_and_exit_2(tmp_path, capsys, text, arguments, message):
    text += "\nuse_cpu: true\nbf16: false\nmodel_name_or_path: unused" if ":" in text and "[" not in text else ""
    assert train.main(["--config", write(tmp_path, text), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


LIGHT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        assert name not in {blocked!r}, name
sys.meta_path.insert(0, Blocked())
from wm_plugin.cli.main import main
{code}
"""


def light(code, *blocked):
    """What code prints that has `main` of the command, and must not import some packages."""
    text = LIGHT.format(blocked=blocked, code=code)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)


def test_the_command_says_what_is_wrong_with_a_file_before_trl_is_imported():
    code = f"for arguments, _ in {FILES!r}: assert main(['train', *arguments]) == 2"
    done = light(code, "torch", "transformers", "datasets")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(FILES)
    assert all(message in line for line, (_, message) in zip(lines, FILES, strict=True)), lines


@pytest.mark.slow
def test_help_does_not_wait_for_trl():
    done = light("assert main(['train', '--help']) == 0", "transformers", "datasets")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--echo_coeff" in done.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"echo_tools": ["mvoe"]}, "echo_tools: there is no tool 'mvoe'; did you mean 'move'?"),
        ({"temperature": 0.7}, "temperature is 0.7"),
        ({"environment": "gird"}, "environment: there is no 'gird'; did you mean 'grid'?"),
        ({"train_rows": "wm_plugin.worlds.grid:dataset_row"}, "did you mean 'dataset_rows'?"),
        ({"train_rows_kwargs": {"size": 3}}, "train_rows_kwargs do not fit"),
        ({"train_rows": "wm_plugin.worlds.sql:dataset_rows"}, "the dataset has no column 'board'"),
        ({"environment": None}, "No reward source|no environment tokens can occur"),
        ({"environment": None, "reward_funcs": ["builtins:len"]}, "no environment tokens can occur"),
        ({"model_name_or_path": "no/such/model"}, "model_name_or_path is 'no/such/model': there is no such folder"),
        ({"gradient_accumulation_steps": 3, "steps_per_generation": 2}, "make one a multiple of the other"),
    ],
)
def test_what_does_not_fit_together_is_one_line_and_exit_2(tmp_path, policy, capsys, changes, message):
    values = config_file.read(str(RECIPES / "echo_grpo_tiny.yaml"))
    values.update({"model_name_or_path": str(policy), "output_dir": str(tmp_path), "max_steps": 1}, **changes)
    values["train_rows_kwargs"] = {"count": 16, "seed": 0} | changes.get("train_rows_kwargs", {})
    assert train.main(["--config", write(tmp_path, yaml.safe_dump(values))]) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("wm train: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert "Traceback" not in error


@NEEDS_ENVIRONMENTS
def test_a_template_that_cannot_carry_tools(tmp_path, policy, capsys):
    copy = tmp_path / "policy"
    shutil.copytree(policy, copy)
    for path in (*copy.glob("*.jinja"), copy / "tokenizer_config.json"):
        if path.suffix == ".jinja":
            path.write_text("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
    arguments = ["--config", str(RECIPES / "echo_grpo_tiny.yaml"), "--model_name_or_path", str(copy)]
    assert train.main(arguments) == 2
    assert "chat template does not support tool calling" in capsys.readouterr().err


@NEEDS_ENVIRONMENTS
def test_a_chat_template_of_trls_or_of_a_file_takes_the_place_of_the_tokenizers(tmp_path, policy, capsys):
    pytest.importorskip("trl", minversion="1.5")
    arguments = ["--config", str(RECIPES / "echo_grpo_tiny.yaml"), "--model_name_or_path", str(policy)]
    arguments += ["--output_dir", str(tmp_path), "--train_rows_kwargs", '{"count": 32}']
    tokenizer = train.build([*arguments, "--chat_template=qwen2_5"])[0].processing_class
    assert tokenizer.chat_template == (Path(trl.__file__).parent / "chat_templates/qwen2_5.jinja").read_text()
    assert "tool_call" in str(tokenizer.response_template)  # TRL's, not the tiny policy's
    assert tokenizer.padding_side == "left"
    own = tmp_path / "own.jinja"
    own.write_text((policy / "chat_template.jinja").read_text() + "{# mine #}")
    tokenizer = train.build([*arguments, f"--chat_template={own}"])[0].processing_class
    assert tokenizer.chat_template == own.read_text()
    assert tokenizer.response_template["start_anchor"] == ":"  # the tokenizer's own
    assert train.main([*arguments, "--chat_template=qwen2_6"]) == 2
    said = capsys.readouterr().err
    assert "wm train: chat_template is 'qwen2_6'" in said
    assert "did you mean 'qwen" in said


@pytest.mark.parametrize("how", ["file", "flags"])
def test_wmacts_settings_in_files_and_flags(tmp_path, how):
    text = BASE + "environment: grid\n"
    given = {"turn_budget": {"start": 5}, "episode_reward": {"rescale": True, "action_penalty": 0.1}}
    flags = [] if how == "file" else [x for key in given for x in (f"--{key}", json.dumps(given[key]))]
    path = write(tmp_path, text + (yaml.safe_dump(given) if how == "file" else "turn_budget: {start: 9, every: 3}"))
    script, config, _, _ = train.parse(["--config", path, *flags])
    assert config.make_turn_budget() == TurnBudget(5, 100)
    environment = train.run_config(script).factory
    assert environment is rewarded(GridEnvironment, rescale=True, action_penalty=0.1)
    _, config, _, _ = train.parse(["--config", path, "--turn_budget", "null"])
    assert config.make_turn_budget() is None


MADE = SimpleNamespace(  # a module of the user's
    number=3,
    not_rows=lambda: 7,
    texts=lambda: ["a row"],
    none=list,
    mixed=lambda: [{"prompt": value} for value in ("one", 1)],
    fails=lambda: [{"prompt": 1 / 0}],
    dataset=lambda: Dataset.from_list([{"prompt": "go"}]),
    stream=lambda: Dataset.from_list([{"prompt": "go"}]).to_iterable_dataset(),
)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("made:number", "train_rows: made:number is no function"),
        ("made:not_rows", "train_rows: made:not_rows returned int, not a list of rows"),
        ("made:texts", "train_rows: row 0 of made:texts is str, not a mapping of columns"),
        ("made:none", "train_rows: made:none returned no rows"),
        ("made:mixed", "train_rows: a column of made:mixed has values of different types in different rows"),
        (
            "made:fails",
            r"train_rows: made:fails raised ZeroDivisionError: division by zero \(.*test_train.py, line \d+\)",
        ),
        ("rows.jsonl", "train_rows is 'rows.jsonl', a file, .* for files write dataset_name: FOLDER"),
    ],
)
def test_rows_of_a_users_function_that_are_none(tmp_path, monkeypatch, rows, message):
    monkeypatch.setitem(sys.modules, "made", MADE)
    script, *_ = train.parse(["--config", write(tmp_path, BASE), "--train_rows", rows])
    with pytest.raises(UserError, match=message) as refused:
        train._rows(script, None, "train")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("rows", "kind"), [("made:dataset", Dataset), ("made:stream", IterableDataset)])
def test_a_hosts_dataset_is_taken_as_it_is(tmp_path, monkeypatch, rows, kind):
    monkeypatch.setitem(sys.modules, "made", MADE)
    script, *_ = train.parse(["--config", write(tmp_path, BASE), "--train_rows", rows])
    assert isinstance(train._rows(script, None, "train"), kind)


def test_rows_in_a_folder_of_files(tmp_path):
    """What the message above tells a user to write."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"prompt": "go"}\n')
    script, *_, mixture = train.parse(["--config", write(tmp_path, BASE), "--dataset_name", str(tmp_path / "rows")])
    assert train._rows(script, mixture, "train").to_list() == [{"prompt": "go"}]


def test_sets_of_evaluation_rows(tmp_path):
    path = write(tmp_path, BASE + "environment: grid")

    def rows(function, kwargs):
        flags = [
            "--eval_rows",
            f"wm_plugin.worlds.{function}:dataset_rows",
            "--eval_rows_kwargs",
            json.dumps(kwargs),
        ]
        return train._rows(train.parse(["--config", path, *flags])[0], None, "eval")

    sets = rows("grid", {"a": {"count": 2}, "b": {"count": 3, "seed": 1}})
    assert {name: len(found) for name, found in sets.items()} == {"a": 2, "b": 3}
    assert len(rows("grid", {"count": 2})) == 2
    assert len(rows("mixture", {"environments": {"grid": 2}})) == 2  # an argument that is a mapping is no set
    sets = rows("mixture", {"held_out": {"environments": {"grid": 2}}, "b": {"environments": {"grid": 1}}})
    assert {name: len(one) for name, one in sets.items()} == {"held_out": 2, "b": 1}  # though an argument has the name
    with pytest.raises(UserError, match=r"eval_rows_kwargs.b do not fit wm_plugin.worlds.grid:dataset_rows: .*'size'"):
        rows("grid", {"a": {"count": 2}, "b": {"size": 3}})
    with pytest.raises(UserError, match="eval_rows_kwargs do not fit"):
        rows("grid", {"a": {"count": 2}, "b": 3})


def test_a_run_goes_on_from_its_last_whole_checkpoint(tmp_path, capsys):
    assert train._checkpoint("auto", str(tmp_path / "none")) is None
    states = {9: "{}", 10: '{"global_step": 10}', 11: '{"global_step": 11, "log_hi', 12: None, 13: ""}
    for step, text in states.items():
        (tmp_path / f"checkpoint-{step}").mkdir()
        if text is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    for resume in ("auto", True):
        assert train._checkpoint(resume, str(tmp_path)) == str(tmp_path / "checkpoint-10")
    assert re.findall(r"(checkpoint-\d+) is left out", capsys.readouterr().err) == [
        *("checkpoint-13", "checkpoint-12", "checkpoint-11") * 2
    ]
    assert train._checkpoint(None, str(tmp_path)) is None
    asked = str(tmp_path / "checkpoint-11")
    with pytest.raises(
        UserError, match=f"resume_from_checkpoint: {asked}/trainer_state.json is damaged; write another"
    ):
        train._checkpoint(asked, str(tmp_path))


def test_a_gguf_file_trains_and_is_saved_as_a_dense_model(tmp_path):
    pytest.importorskip("gguf")
    tokens = len(fields()["tokenizer.ggml.tokens"])
    write_gguf(tmp_path / "model.gguf", make_model(tokens))
    path = write(tmp_path, f"model_name_or_path: {tmp_path}/model.gguf\noutput_dir: {tmp_path}/out\n{GGUF}")
    trainer, _ = train.build(["--config", path])
    assert (trainer.model.dtype, trainer.model.config._attn_implementation) == (torch.float32, "eager")
    before = {name: weights.clone() for name, weights in trainer.model.state_dict().items()}
    trainer.train()
    assert trainer.state.log_history[0]["echo/tokens"] == 0  # a random model makes no call
    trainer.save_model(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert "quantization_config" not in saved.config.to_dict()
    for name, weights in saved.state_dict().items():
        torch.testing.assert_close(weights, before[name], msg=name)  # its learning rate is 0
    assert "<tool_call>" in AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template


@pytest.mark.parametrize(
    ("name", "flags", "why"),
    [
        ("missing.gguf", [], "there is no such file"),
        ("broken.gguf", [], "not read"),
        ("broken.gguf", ["--use_vllm", "true"], "vLLM would have to load"),
    ],
)
def test_a_gguf_file_that_cannot_be_trained_is_one_line(tmp_path, name, flags, why):
    pytest.importorskip("gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    path = write(tmp_path, f"model_name_or_path: {tmp_path}/{name}\noutput_dir: {tmp_path}/out\n{GGUF}")
    with pytest.raises(UserError, match=why):
        train.build(["--config", path, *flags])


def test_a_gguf_file_needs_the_package_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "broken.gguf").touch()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"a model in a GGUF file needs gguf: .*\[pretrained\]"):
        gguf.load(str(tmp_path / "broken.gguf"))


def test_a_run_that_scored_nothing_is_saved_and_ends_with_2(tmp_path, monkeypatch, capsys, policy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def rows(count=8): return [{'prompt': [{'role': 'user', 'content': 'go'}], 'target': 'x'}] * count\n"
        "class Lift: ...\nlift = Lift()\n"
    )
    text = yaml.safe_load(GGUF) | {"environment": None, "train_rows": "mine:rows", "train_rows_kwargs": {"count": 8}}
    text |= {"rewards": [{"path": "exact", "kwargs": {"tag": "next_state"}}], "echo_coeff": 0, "max_steps": 3}
    text |= {"model_name_or_path": str(policy), "output_dir": "out", "disable_tqdm": True}
    path = write(tmp_path, yaml.safe_dump(text))
    assert train.main(["--config", path]) == 2
    captured = capsys.readouterr()
    assert captured.err.strip().splitlines()[-1].startswith("wm train: reward exact scored nothing in any batch")
    assert (tmp_path / "out" / "model.safetensors").exists()
    for flags, reason in (
        (["--tools", "mine:Lift"], "tools has <class 'mine.Lift'>, and a tool is a function"),
        (["--environment", "mine:lift"], "environment: 'mine:lift' is an instance of Lift; name the class"),
    ):
        assert train.main(["--config", path, *flags]) == 2
        assert reason in capsys.readouterr().err
    assert train.main(["--config", path, "--train_rows_kwargs", '{"count": 0}']) == 2
    assert capsys.readouterr().err.strip() == "wm train: train_rows: mine:rows returned no rows"
    train.main(["--config", path, "--train_rows_kwargs", '{"count": 0}', "--eval_rows", "mine:rows"])
    assert "nothing is evaluated on eval_rows: eval_strategy is no\n" in capsys.readouterr().err

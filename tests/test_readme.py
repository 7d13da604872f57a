"""The examples of the README and the pages run as they stand; tests/test_commands.py has their commands."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.commands import DOCS, PAGES, README, ROOT, blocks
from support.environments import new_world
from support.openenv_servers import serving
from support.patterns import trees
from wm_plugin.data.contexts import load_contexts
from wm_plugin.lab import pipelines
from wm_plugin.worlds import from_file
from wm_plugin.worlds.fictional import spec
from wm_plugin.worlds.ready import uses
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import ControlConfig

# A user's own script, around the README's diff. `move` is the one tool that the tiny tokenizer can call in one token.
SCRIPT = """
from datasets import Dataset
from trl import GRPOConfig
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

def move(direction: str) -> str:
    '''Move.

    Args:
        direction: One of U, D, L, R.
    '''
    return "went " + direction

def reward(completions, **_):
    return [float(len(messages) > 1) for messages in completions]

run_query = move
tokenizer = make_tokenizer()
model = make_model(tokenizer, seed=0)
model.warnings_issued = {{}}
args = GRPOConfig(
    "runs/mine", max_steps=1, logging_steps=1, per_device_train_batch_size=64, use_cpu=True, bf16=False, report_to=[]
)
dataset = Dataset.from_list([{{"prompt": [{{"role": "user", "content": "Where to?"}}]}}] * 64)
{code}
print("KEYS", sorted(key for key in trainer.state.log_history[0] if key.startswith("echo/")))
print("TOKENS", trainer.state.log_history[0].get("echo/tokens", 0))
"""


def run(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.host
def test_the_diff_turns_a_script_of_trl_into_one_with_the_objective(side, tmp_path):
    pytest.importorskip("trl", minversion="1.8")
    (diff,) = blocks(README, "diff")
    sign = {"before": " -", "after": " +"}[side]
    code = "\n".join(line[1:] for line in diff.splitlines() if not line or line[0] in sign)
    # the tokenizer of a real model would come with it
    code = code.replace("model=model,", "model=model, processing_class=tokenizer,")
    printed = run(SCRIPT.format(code=code), tmp_path)
    tokens = float(re.search(r"TOKENS (.*)", printed).group(1))
    assert (tokens > 0) == (side == "after")
    assert ("'echo/nll'" in printed) == (side == "after")


@pytest.mark.slow
@pytest.mark.host
def test_the_first_example_prints_what_it_says(tmp_path):
    pytest.importorskip("trl", minversion="1.8")
    page = ROOT / "docs" / "trl.md"
    code = blocks(page, "python")[0]
    promised = re.search(r"it prints:\n\n```\n(.*?)```", page.read_text(), re.S).group(1)
    printed = [line for line in run(code, tmp_path).splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in printed] == [line.split(":")[0] for line in promised.splitlines()]
    nll = [float(re.search(r"nll ([\d.]+)", line).group(1)) for line in printed]
    assert nll == sorted(nll, reverse=True)
    # another machine's arithmetic may differ in the last digits, and so in what is sampled
    first = [float(re.search(r"nll ([\d.]+)", line).group(1)) for line in (printed[0], promised.splitlines()[0])]
    assert first[0] == pytest.approx(first[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.host
def test_the_example_with_a_function_as_a_tool_learns_from_its_results(tmp_path):
    pytest.importorskip("trl", minversion="1.8")
    (code,) = [code for code in blocks(ROOT / "docs" / "trl.md", "python") if "tools=[move]" in code]
    assert float(run(code, tmp_path).splitlines()[-1]) > 0


SLOW = ("trl.md", "verl.md")  # their examples import and build the most


@pytest.mark.host
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in DOCS],
    ids=lambda page: page.name,
)
def test_the_examples_of_the_docs_run(page, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    examples = []
    for code in blocks(page, "python"):
        hosts = set(re.findall(r"^(?:from|import) (?:wm_plugin\.)?(trl|verl)\b", code, re.M))
        # those that train are in the slow tests above
        if "trainer.train()" not in code and all(find_spec(host) for host in hosts):
            examples.append(code)
    # one after the other, with names of their own, and where a process of their own would take seconds to start, in this one
    if page.name in SLOW:
        run(f"for code in {examples!r}: exec(code, {{'__name__': '__main__'}})", tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        for code in examples:
            exec(code, {"__name__": "__main__"})


SIMULATION = next(page for page in DOCS if page.stem == "agentworld")


OPENENV = "openenv:http://localhost:8000"


def yaml_examples():
    return [
        pytest.param(text, id=f"{page.stem}-{number}", marks=pytest.mark.slow if OPENENV in text else ())
        for page in DOCS
        for number, text in enumerate(blocks(page, "yaml"))
    ]


@pytest.mark.host
@pytest.mark.parametrize("text", yaml_examples())
def test_the_settings_in_yaml_are_read_and_fit_together(text, tmp_path, monkeypatch):
    values = yaml.safe_load(text)
    new_world(tmp_path, monkeypatch)  # which a page names
    if "*" in values:  # hidden contexts by task
        (tmp_path / "contexts.yaml").write_text(text)
        assert load_contexts(tmp_path / "contexts.yaml")
    elif "wm" in values:
        pytest.importorskip("verl")
        from wm_plugin.verl.config import read_config

        read_config(values)
    elif "perturbations" in values:
        ControlConfig.read(values, "control")
    elif "strategy" in values:
        (tmp_path / "mine.yaml").write_text(text)
        spec.load(str(tmp_path / "mine.yaml"))
    elif "steps" in values:
        (tmp_path / "mine.yaml").write_text(text)
        pipeline = pipelines.read(tmp_path / "mine.yaml")
        assert {step.name.partition(":")[0] for step in pipelines.expand(pipeline)} == values["steps"].keys()
    elif "tasks" in values:
        (tmp_path / "desk.yaml").write_text(text)
        assert len(from_file.dataset_rows(3, path=str(tmp_path / "desk.yaml"))) == 3
        assert from_file.world_of(str(tmp_path / "desk.yaml"))
    elif values.get("environment") == "desk.yaml":  # the file before it on the page
        (tmp_path / "desk.yaml").write_text(
            next(one for one in blocks(SIMULATION, "yaml") if one.startswith("# desk.yaml"))
        )
        monkeypatch.chdir(tmp_path)
        check_settings_of_trl(text, tmp_path)
    elif values.get("environment") == OPENENV:
        with serving("support.openenv_broken:app") as url:
            check_settings_of_trl(text.replace(OPENENV, f"openenv:{url}"), tmp_path)
    elif "max_parallel_calls" in values:
        group = yaml.safe_load((ROOT / "recipes" / "verl" / "wm" / "echo.yaml").read_text())
        assert values.items() <= group["actor_rollout_ref"]["rollout"]["multi_turn"].items()
    else:
        check_settings_of_trl(text, tmp_path)


def check_settings_of_trl(text, folder):
    pytest.importorskip("trl", minversion="1.8")
    from wm_plugin.hosting.world import tool_names
    from wm_plugin.registry import import_object
    from wm_plugin.rewards.make import check_spec
    from wm_plugin.trl import train

    path = folder / "mine.yaml"
    path.write_text(text)
    flags = ["--output_dir", str(folder), "--use_cpu", "true", "--bf16", "false"]
    script, config, *_ = train.parse(["--config", str(path), *flags])
    for reward in script.rewards or ():
        check_spec(reward, reward["path"])
    environment = train.run_config(script).factory
    worlds = environment.values() if isinstance(environment, dict) else filter(None, [environment])
    tools = {name for world in worlds for name in tool_names(world)}
    assert {*(config.echo_config().tool_names or ())} <= tools
    for split in ("train", "eval"):
        rows, arguments = getattr(script, f"{split}_rows"), getattr(script, f"{split}_rows_kwargs") or {}
        if rows is not None:
            function = import_object(rows, field=f"{split}_rows")
            several = split == "eval" and train._are_sets(arguments, function)
            for one in arguments.values() if several else [arguments]:
                inspect.signature(function).bind(**one)


@pytest.mark.slow
@pytest.mark.host
def test_the_asynchronous_examples_fit_the_host(tmp_path):
    """Up to the trainer, which needs vLLM's server and a GPU: its configs are made, and its arguments bound."""
    pytest.importorskip("trl.experimental.async_grpo")
    pytest.importorskip("openenv")
    examples = [code for code in blocks(ROOT / "docs" / "trl.md", "python") if "async_grpo" in code]
    assert len(examples) == 2
    script = "from wm_plugin.lab.tiny.__main__ import main\nmain(['--random', '--out', 'tiny'])\n"
    for code in examples:
        for old, new in (
            ("Qwen/Qwen2.5-7B-Instruct", "tiny"),
            ("max_steps=200)", "max_steps=200, use_cpu=True, bf16=False)"),
            ("WorldModelAsyncGRPOTrainer(\n", "__import__('inspect').signature(WorldModelAsyncGRPOTrainer).bind(\n"),
            ("HarnessRolloutWorker(\n", "__import__('inspect').signature(HarnessRolloutWorker).bind(\n"),
            ("trainer.train()\n", ""),
        ):
            assert old in code or old.startswith("Harness")
            code = code.replace(old, new)
        script += f"exec({code!r}, {{'__name__': '__main__'}})\n"
    run(script, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name}: {target}"


def test_troubleshooting_quotes_messages_that_exist():
    """But for those that it calls verl's."""
    ours = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                ours.add("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                ours.add(node.value)
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quotes = re.findall(r"\*\*`([^`]+)`\*\*(?! \(verl's\))", text)
    assert len(quotes) > 10
    assert [quote for quote in quotes if not any(quote in message for message in ours)] == []


TESTED = ("bash", "python", "yaml", "diff")  # here, in tests/test_commands.py, and in those of on_trl and on_verl
OTHERS = {  # what something prints, and a trainer's file that no test here can read
    "trl.md": [""],  # test_the_first_example_prints_what_it_says
    "your_own.md": [""],  # test_what_wm_env_check_prints
    "worlds.md": ["toml"],  # prime-rl's; test_the_file_for_prime_rl_is_toml
}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "recipes" / "README.md", ROOT / "patches" / "README.md"], ids=str)
def test_every_block_is_run_or_parsed(page):
    text = page.read_text()
    languages = re.findall(r"^ *```(.*)\n(?:.*\n)*? *```$", text, re.M)
    assert len(languages) * 2 == len(re.findall("^ *```", text, re.M))
    assert [one for one in languages if one not in TESTED] == OTHERS.get(page.name if page in DOCS else "", [])


def test_the_file_for_prime_rl_is_toml():
    (text,) = blocks(ROOT / "docs" / "worlds.md", "toml")
    assert tomllib.loads(text)["orchestrator"]["train"]["source"]["env"]["taskset"]["resets"] == [
        {"seed": 0},
        {"seed": 1},
    ]


def test_what_wm_env_check_prints(tmp_path, monkeypatch):
    """The lines on the page are those of the world that `wm env new` writes, without its irreversible tools."""
    promised = re.search(
        r"irreversible tools:\n\n```\n(.*?)```", (ROOT / "docs" / "your_own.md").read_text(), re.S
    ).group(1)
    world = load(new_world(tmp_path, monkeypatch))
    monkeypatch.setattr(world.environment, "irreversible", (), raising=False)
    lines = (f"add {'; '.join(use.add)} ({use.docs})" if use.add else "ready" for use in uses(world, ()))
    assert list(lines) == [line.split(": ", 1)[1] for line in promised.splitlines()]


def test_the_readme_is_short_and_names_every_page():
    text = README.read_text()
    assert len(text.splitlines()) < 110
    assert [page.name for page in DOCS if f"(docs/{page.name})" not in text] == []

"""What a trainer logs of its rollouts, read back: the prompts that our tools make of it are those of training."""

import json
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from support.on_trl import Scripted, ToolEnvironment, make_tokenizer, run
from wm_plugin.cli.main import main
from wm_plugin.data.host_dumps import EVERY, FILE, RENDERED
from wm_plugin.data.readers import read
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.inspect import Inspection, Inspector, Inspectors
from wm_plugin.lab.evaluation.one_step import evaluate
from wm_plugin.lab.evaluation.rollout_rows import inspect_row, read_rows
from wm_plugin.lab.tiny import policy as tiny
from wm_plugin.objectives import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer

Rollout = dict[str, list[int]]
SAID = ("system", "Be kind."), ("user", "go"), ("user", "on")
GO = [{"prompt": [{"role": role, "content": text} for role, text in SAID]}] * 4


class Keeps:
    """Keeps rollouts as they are trained: the prompt's tokens, those after it, which were sampled, and which count."""

    seen: ClassVar[list[Rollout]] = []

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        for row in range(len(inputs)):
            own = output["completion_mask"][row].bool()
            columns = {"ids": "completion_ids", "sampled": "tool_mask", "weights": "wm_weights"}
            kept = {name: output[column][row][own].tolist() for name, column in columns.items()}
            prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
            self.seen.append({"prompt": prompt, **kept})
        return output


class Kept(Keeps, Scripted, WorldModelGRPOTrainer):
    """Scripted turns."""


class Walks(Keeps, WorldModelGRPOTrainer):
    """The tiny policy's calls, a token each."""

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        return [self.processing_class.encode("UDLR"[int(torch.randint(4, ()))]) for _ in prompt_ids], None


class Door:
    """One tool, and something to see at the start."""

    def reset(self, **_: Any) -> str:
        return " A door."

    def knock(self, times: int) -> str:
        """Knock.

        Args:
            times: How often.

        Returns:
            What is heard.
        """
        return "Come in." * times


class Steps:
    """Says what is soon learnt."""

    def reset(self, **_: Any) -> str:
        return " go "

    def move(self, direction: str) -> str:
        """Move.

        Args:
            direction: One of U, D, L, R.
        """
        return " and on" if direction else ""


def look(far: bool) -> str:
    """Look around.

    Args:
        far: Whether to climb a tree before.
    """
    return "grass" * (1 + far)


def trained(
    folder: Path, factory: Any, rows: list[dict[str, Any]], cls: Any = Kept, given: Any = None, **fields: Any
) -> tuple[Path, Any, list[Rollout]]:
    """A run's last dump, its trainer, and the rollouts in the dump. `given`: to the trainer; `fields`: of its config."""
    Keeps.seen.clear()
    args = {"output_dir": str(folder), "max_steps": 1, "num_generations": 2, "gradient_accumulation_steps": 1}
    args |= {"log_completions": True, "num_completions_to_print": 0, "reward_weights": [3.0], **fields}
    given = {"processing_class": make_tokenizer(), "world_model": EchoConfig(1.0, on_silence="warn"), **(given or {})}
    trainer, _ = run(cls, args=args, rows=rows, environment=factory, **given)
    given["processing_class"].save_pretrained(folder / "policy")
    dump = max((folder / "completions").glob("*.parquet"))
    return dump, trainer, Keeps.seen[-len(list(read(dump))) :]


def walking() -> dict[str, Any]:
    """The tiny policy, whose prompts show the tools, and a mood that an argument of the template changes."""
    tokenizer = tiny.make_tokenizer()
    shown = "{%- for tool in tools or [] -%}{{- tool.function | tojson -}}{%- endfor -%}{{- mood or 'x' -}}"
    tokenizer.chat_template = shown + tokenizer.chat_template
    model = tiny.make_model(tokenizer, 0, positions=1024)
    return {"processing_class": tokenizer, "model": model, "dtype": torch.float32}


def rendered(path: Path, tokenizer: Any, ends: Any = ()) -> tuple[list[Inspection], int]:
    """Rollouts as `wm masks` and `--as policy` render them, and of how many these say that training had other tokens."""
    inspectors = Inspectors(partial(Inspector, tokenizer, EchoConfig(1.0), end_ids=ends))
    return [inspect_row(inspectors, row) for _, row in read_rows(path)], inspectors.differ


def prompts_of(path: Path, trainer: Any) -> list[list[int]]:
    return [one.ids[: one.prompt_tokens] for one in rendered(path, trainer.processing_class)[0]]


def asked(*arguments: Any, capsys: Any) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_prompts_of_a_dump_are_those_of_its_training(tmp_path, capsys):
    dump, trainer, seen = trained(tmp_path, ToolEnvironment, GO)
    prompts = [one["prompt"] for one in seen]
    for row, inspection in zip(seen, rendered(dump, trainer.processing_class)[0], strict=True):
        own = [piece for piece in inspection.pieces if piece.kind in ("content", "scaffold")]
        environment = [id for piece in own for id in inspection.ids[piece.start : piece.end]]
        assert environment == [id for id, sampled in zip(row["ids"], row["sampled"], strict=True) if not sampled]
        assert inspection.ids[: inspection.prompt_tokens] == row["prompt"]
    rows = list(read(dump))
    assert [one.reward for one in rows] == [3 * one.metadata["reward"] for one in rows]
    assert len({one.reward for one in rows}) > 1
    out = tmp_path / "x.jsonl"
    masks = ["masks", "--tokenizer", tmp_path / "policy"]
    convert, ask = ["data", "convert", "--out", out], partial(asked, capsys=capsys)
    calls = sum(any(turn.action.calls for turn in one.turns) for one in rows)
    # a stock trainer leaves no schemas: it is told, and counted
    declared = (dump.parent / FILE).read_bytes()
    (dump.parent / FILE).unlink()
    found = ask(*convert, dump.parent)
    assert (found["trajectories"], found["without_schemas"], len(found["notes"])) == (4, calls, 1)
    assert prompts_of(out, trainer) != prompts
    build = ["data", "build", out, "--as", "imitation", "--host", "trl", "--out", tmp_path / "rows.jsonl"]
    for command in (build, [*masks, out], [*masks, dump]):
        found = ask(*command)
        assert sum("tool schemas" in note for note in found["notes"]) == 1
        assert found.get("without_schemas", calls) == calls
    module = "support.on_trl:ToolEnvironment"
    for options in (
        [f"--environment={module}"],
        [f"--tools={module}"],
        [f"--tools={module}.lookup_doc, {module}.run_code"],
        [f"--tools={module}.lookup_doc", f"--tools={module}.run_code"],
    ):
        assert ask(*convert, dump, *options)["without_schemas"] == 0
        assert prompts_of(out, trainer) == prompts
        if "tools" in options[0]:
            found = ask(*masks, dump, *options)
            assert (found["without_schemas"], [one["prompt_tokens"] for one in found["rollouts"]]) == (
                0,
                [*map(len, prompts)],
            )
    (dump.parent / FILE).write_bytes(declared)
    ask(*convert, dump.parent, "--workers", "2")
    assert prompts_of(out, trainer) == prompts_of(dump, trainer) == prompts
    for command in (build, [*masks, out], [*masks, dump]):
        assert not any("carry no tool schemas" in note for note in ask(*command)["notes"])


def test_each_of_several_environments_has_its_own(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": name}], "environment": name} for name in ("door", "code")]
    dump, trainer, seen = trained(tmp_path, {"door": Door, "code": ToolEnvironment}, rows)
    assert prompts_of(dump, trainer) == [one["prompt"] for one in seen]
    assert {len(trajectory.context.action_space) for trajectory in read(dump)} == {1, 2}


def test_a_resumed_run_with_other_tools_leaves_earlier_rows_theirs(tmp_path):
    runs = []
    for number, (world, weight) in enumerate(
        [(ToolEnvironment, 3.0), (Door, 3.0), (ToolEnvironment, 3.0), (Door, 2.0)]
    ):
        fields = {"reward_weights": [weight], "max_tool_calling_iterations": 1}
        dump, trainer, seen = trained(tmp_path, world, GO, Walks, {**walking(), "tools": [look]}, **fields)
        runs.append((dump.rename(dump.with_name(f"{number}.parquet")), trainer, seen, weight))
    for dump, trainer, seen, weight in runs:
        assert prompts_of(dump, trainer) == [one["prompt"] for one in seen]
        assert all(one.reward == weight * one.metadata["reward"] for one in read(dump))
    assert [*json.loads((tmp_path / "completions" / FILE).read_text())] == [EVERY, f"{EVERY}~2", f"{EVERY}~3"]


@pytest.mark.parametrize("steps", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_a_policy_is_evaluated_on_the_tokens_of_its_training(steps, tmp_path, capsys):
    """Of a policy that has learnt its world, little is left where prompts lack the schemas that training showed."""
    given = walking()
    tokenizer, model = given["processing_class"], given["model"]
    fields = {
        "max_steps": steps,
        "logging_steps": steps,
        "learning_rate": 1e-2,
        "max_grad_norm": 1.0,
        "num_generations": 4,
    }
    fields |= {"per_device_train_batch_size": 4 if steps == 1 else 16, "max_tool_calling_iterations": 3}
    rows = [{"prompt": [{"role": "user", "content": letter}]} for letter in "abcdefgh"]
    kwargs = {"chat_template_kwargs": {"mood": "merry"}}
    dump, trainer, seen = trained(tmp_path, Steps, rows, Walks, given, **fields, **kwargs)
    trainer.model.save_pretrained(tmp_path / "policy")
    ids = [one["prompt"] + one["ids"] for one in seen]
    assert [one.ids for one in rendered(dump, tokenizer, model.generation_config.eos_token_id)[0]] == ids
    masks = [[0] * len(one["prompt"]) + [int(weight > 0) for weight in one["weights"]] for one in seen]
    truth = evaluate(trainer.model, ids, masks)

    def figures(source: Any, *more: Any) -> tuple[dict[str, float], dict[str, Any]]:
        found = asked(
            "eval", "one-step", source, "--as", "policy", "--model", tmp_path / "policy", *more, capsys=capsys
        )
        values = {
            one["name"]: one["with_failed" if one["name"] == "exact" else "value"] for one in found["measures"][:6]
        }
        return values, found

    read_back = tmp_path / "x.jsonl"
    asked("data", "convert", dump, "--out", read_back, capsys=capsys)
    for source in (dump, read_back):
        measured, found = figures(source)
        assert measured["exact"] == pytest.approx(truth.exact_share)
        assert measured["nll"] == pytest.approx(truth.mean_nll, rel=1e-4)
        assert (found["without_schemas"], found["other_tokens"], found["notes"]) == (0, 0, [])
    # another template, and arguments that are not known
    (tmp_path / "other.jinja").write_text(tokenizer.chat_template.replace("- tool.function", "- tool"))
    other, found = figures(dump, "--chat-template", tmp_path / "other.jinja")
    assert found["other_tokens"] == len(seen)
    assert "had other tokens in training" in " ".join(found["notes"])
    file = dump.parent / FILE
    file.unlink()
    without, found = figures(dump)
    assert found["without_schemas"] == len(seen)
    assert "carry no tool schemas" in " ".join(found["notes"])
    supplied, found = figures(dump, "--tools", f"{__name__}:Steps")
    assert found["without_schemas"] == 0  # and only the mood is missing
    apart = [abs(one["nll"] - measured["nll"]) for one in (supplied, other, without)]
    assert 1e-6 < min(apart[:2]) < max(apart[:2]) < apart[2]
    if steps > 1:
        assert (measured["exact"], without["exact"]) == (1, 0)
        assert without["nll"] > measured["nll"] + 1


def test_a_damaged_file_of_schemas_is_one_line(tmp_path):
    row = {"prompt": [{"role": "user", "content": "go"}], "completion": [{"role": "assistant", "content": "x"}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    for text in (
        "[]",
        '{"*": {"tools": [1]}}',
        '{"*": {"tools": {}}}',
        '{"*": {"rewards": {"x": "y"}}}',
        "{",
        '{"a": 1}',
    ):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UserError, match=FILE):
            list(read(tmp_path / "c.jsonl"))
    # what it says of rows is a file's text: nonsense is no traceback
    (tmp_path / FILE).write_text(
        json.dumps({EVERY: {"chat_template_kwargs": {"tokenize": 1, "x": []}, "fingerprint": "y"}})
    )
    assert next(read(tmp_path / "c.jsonl")).metadata[RENDERED]["fingerprint"] == "y"
    with pytest.raises(UserError, match="chat template cannot write"):
        rendered(tmp_path / "c.jsonl", make_tokenizer())


@pytest.mark.parametrize(
    ("tools", "line"),
    [
        ("gird", "--tools: there is no 'gird'; did you mean 'grid'?; or write package.module:function"),
        ("support.on_trl:ToolEnviroment", "support.on_trl has no 'ToolEnviroment'; did you mean 'ToolEnvironment'?"),
        ("support.on_trl:ToolEnvironment.run", "has no 'run'"),
        ("no_such_module:f", "--tools: there is no module 'no_such_module'"),
        ("support.on_trl:config", "--tools: support.on_trl:config has no schema"),
        ("support.on_trl:Stock.__doc__", "is of type str; name a function, a class or a world"),
    ],
)
def test_a_wrong_name_of_a_tool_is_one_line(tools, line, tmp_path, capsys):
    row = {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "x"}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    out = tmp_path / "x.jsonl"
    assert (
        main(["data", "convert", str(tmp_path / "c.jsonl"), "--format", "openai", "--out", str(out), "--tools", tools])
        == 2
    )
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not out.exists()

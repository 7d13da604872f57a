"""What a trainer logs of its rollouts, read back: the prompts that our tools make of it are those of training."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.on_trl import Scripted, ToolEnvironment, make_tokenizer, run
from wm_plugin.cli.main import main
from wm_plugin.data.chat import chat
from wm_plugin.data.host_dumps import FILE
from wm_plugin.data.readers import read
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.inspect import Inspector
from wm_plugin.objectives import EchoConfig
from wm_plugin.trl import WorldModelGRPOTrainer


class Kept(Scripted, WorldModelGRPOTrainer):
    """Keeps the tokens of its prompts, in their order."""

    seen: ClassVar[list[list[int]]] = []

    def _generate(self, prompts: list, *args: Any, **kwargs: Any) -> Any:
        output = super()._generate(prompts, *args, **kwargs)
        self.seen.extend(output[0])
        return output


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


def trained(folder: Path, factory: Any, rows: list[dict[str, Any]]) -> tuple[Path, Any, list[list[int]]]:
    """A run's dump, its tokenizer, and the tokens of its prompts."""
    tokenizer, Kept.seen = make_tokenizer(), []
    args = {"output_dir": str(folder), "max_steps": 1, "num_generations": 2, "gradient_accumulation_steps": 1}
    args |= {"log_completions": True, "reward_weights": [3.0]}
    run(Kept, args=args, rows=rows, environment=factory, processing_class=tokenizer, world_model=EchoConfig(0.5))
    tokenizer.save_pretrained(folder / "tokenizer")
    return next((folder / "completions").glob("*.parquet")), tokenizer, Kept.seen


def prompts_of(path: Path, tokenizer: Any) -> list[list[int]]:
    """The tokens before a rollout, as `wm masks` and `--as policy` make them."""
    inspector = Inspector(tokenizer, EchoConfig(1.0))
    found = []
    for trajectory in read(path):
        messages = chat(trajectory.context, trajectory.turns)
        first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
        tools = trajectory.context.action_space
        inspection = inspector.messages(messages[:first], messages[first:], tools)
        found.append(inspection.ids[: inspection.prompt_tokens])
    return found


def asked(folder: Path, *arguments: str, capsys: Any) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_prompts_of_a_dump_are_those_of_its_training(tmp_path, capsys):
    dump, tokenizer, seen = trained(tmp_path, ToolEnvironment, [{"prompt": [{"role": "user", "content": "go"}]}] * 4)
    assert prompts_of(dump, tokenizer) == seen
    rows = list(read(dump))
    assert [one.reward for one in rows] == [3 * one.metadata["reward"] for one in rows]
    assert len({one.reward for one in rows}) > 1
    out = tmp_path / "x.jsonl"
    masks = ["masks", "--tokenizer", str(tmp_path / "tokenizer"), "--json"]
    # a stock trainer leaves no schemas: their place is told
    declared = (dump.parent / FILE).read_bytes()
    (dump.parent / FILE).unlink()
    assert asked(tmp_path, "data", "convert", str(dump.parent), "--out", str(out), capsys=capsys)["trajectories"] == 4
    assert prompts_of(out, tokenizer) != seen
    build = ["data", "build", str(out), "--as", "imitation", "--host", "trl", "--out", str(tmp_path / "rows.jsonl")]
    for command in (build, [*masks, str(out)], [*masks, str(dump)]):
        assert sum("tool schemas" in note for note in asked(tmp_path, *command, capsys=capsys)["notes"]) == 1
    told = ["--environment", "support.on_trl:ToolEnvironment"]
    functions = [f"--tools=support.on_trl:ToolEnvironment.{name}" for name in ("lookup_doc", "run_code")]
    for options in (told, functions):
        asked(tmp_path, "data", "convert", str(dump), "--out", str(out), *options, capsys=capsys)
        assert prompts_of(out, tokenizer) == seen
    (dump.parent / FILE).write_bytes(declared)
    asked(tmp_path, "data", "convert", str(dump.parent), "--out", str(out), "--workers", "2", capsys=capsys)
    assert prompts_of(out, tokenizer) == seen
    for command in (build, [*masks, str(out)], [*masks, str(dump)]):
        assert not any("tool schemas" in note for note in asked(tmp_path, *command, capsys=capsys)["notes"])


def test_each_of_several_environments_has_its_own(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": name}], "environment": name} for name in ("door", "code")]
    dump, tokenizer, seen = trained(tmp_path, {"door": Door, "code": ToolEnvironment}, rows)
    assert prompts_of(dump, tokenizer) == seen
    assert {len(trajectory.context.action_space) for trajectory in read(dump)} == {1, 2}


def test_a_damaged_file_of_schemas_is_one_line(tmp_path):
    row = {"prompt": [{"role": "user", "content": "go"}], "completion": [{"role": "assistant", "content": "x"}]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    for text in ("[]", '{"tools": {"*": [1]}}', '{"tools": {"*": {}}}', '{"rewards": {"x": "y"}}', "{", '{"a": 1}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UserError, match=FILE):
            list(read(tmp_path / "c.jsonl"))

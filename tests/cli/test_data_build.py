"""`wm data build` from flags to rows, for either host."""

import json

import pytest

from support.built import rows
from wm_plugin.data import Trajectory, Turn, expand
from wm_plugin.data.schema import Action, Observation
from wm_plugin.data.write import write, write_transitions
from wm_plugin.lab.tiny.policy import make_tokenizer
from wm_plugin.lab.tiny.rollouts import rollouts

pytestmark = pytest.mark.host
pytest_plugins = ["support.built"]


def test_too_long_samples_are_left_out_and_counted(wm, grid, tokenizer, tmp_path):
    arguments = ("data", "build", grid, "--as", "word2world", "--host", "trl", "--out", tmp_path / "x.jsonl")
    arguments = (*arguments, "--tokenizer", tokenizer)
    wm.json(*arguments)
    every = [len(row["input_ids"]) for row in rows(tmp_path / "x.jsonl")]
    limit = sorted(every)[5]
    result = wm.json(*arguments, "--max-tokens", limit)
    assert result["rows"] == sum(length <= limit for length in every) == 12 - result["left_out"]["too long"]
    assert result["tokens"] == sum(length for length in every if length <= limit)


@pytest.mark.parametrize(("host", "mask"), [("trl", "assistant_masks"), ("verl", "loss_mask")])
def test_too_long_dialogues_may_be_truncated(wm, grid, tokenizer, tmp_path, host, mask):
    out = tmp_path / "x.parquet"
    arguments = ("data", "build", grid, "--as", "word2world", "--host", host, "--tokenizer", tokenizer, "--out", out)
    wm.text(*arguments)
    every = rows(out)
    limit = sorted(len(row["input_ids"]) for row in every)[5]
    result = wm.json(*arguments, "--max-tokens", limit, "--too-long", "truncate")
    made = rows(out)
    assert made == [{name: row[name][:limit] for name in ("input_ids", mask)} for row in every]
    longer = [len(row["input_ids"]) - limit for row in every if len(row["input_ids"]) > limit]
    assert (result["rows"], result["truncated"], result["tokens_cut"]) == (12, len(longer), sum(longer))
    assert result["counted_tokens"] == sum(sum(row[mask]) for row in made)
    error = wm.error(*arguments, "--max-tokens", 5, "--too-long", "truncate")
    assert "no sample is left to write (left out: too long: 12)" in error


def test_texts_of_ones_own_follow_the_trajectories(wm, grid, tokenizer, tmp_path):
    (tmp_path / "law.md").write_text("A lease ends with its term.")
    (tmp_path / "more.jsonl").write_text('{"text": "Iron melts."}\n{"text": "  "}\n')
    out, corpus = tmp_path / "x.jsonl", ["--corpus", tmp_path / "law.md", "--corpus", tmp_path / "more.jsonl"]
    arguments = ["data", "build", grid, "--as", "cpt", "--prompts", "mcp", "--host", "trl", "--tokenizer", tokenizer]
    wm.json(*arguments, "--out", out, *corpus)
    *dialogues, first, second = rows(out)
    assert len(dialogues) == 12
    text = make_tokenizer().decode([i for i, m in zip(first["input_ids"], first["assistant_masks"], strict=True) if m])
    assert text == "A lease ends with its term.<|im_end|>"
    assert sum(second["assistant_masks"]) == len("Iron melts.") + 1


def test_own_successes_at_most_so_many_of_a_task(wm, tmp_path):
    def episode(task, number):
        observed = (Observation(kind="environment", text=f"room {number}"),)
        turns = (Turn(action=Action(text=f"go {task}{number}"), observations=observed),)
        return Trajectory(turns=turns, task_id=task, success=number % 2 == 0, reward=number / 4)

    episodes = [episode(task, number) for task in "ab" for number in range(5)]
    write(episodes, tmp_path / "t.jsonl")
    arguments = ["data", "build", tmp_path / "t.jsonl", "--as", "rft", "--host", "trl", "--out", tmp_path / "x.jsonl"]
    for options, count in (([], 6), (["--success-reward", 0.75], 8), (["--per-task", 2], 4)):
        assert wm.json(*arguments, *options)["rows"] == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--as rmwl", '"rmwl" for --as'),
        ("--host vrl", 'Did you mean "verl"?'),
        ("--as agentworld", "agentworld needs prompts: name a domain"),
        ("--as imitation --prompts rwml", "imitation has no option prompts"),
        ("--as rwml --turn-information", "rwml has no option turn_information"),
        ("--as imitation --turn-information", "imitation has no option turn_information"),
        ("--as word2world --history 2", "word2world has no option history"),
        ("--prompts rmwl", "there are no prompts 'rmwl'"),
        ("--corpus a.md", "rwml-sft has no option corpora, which is for cpt"),
        ("--as imitation --per-task 2", "imitation has no option per_task, which is for rft"),
        ("--as rft --per-task 0", "per_task is 0"),
        ("--hidden all --world-context", "--hidden and --world-context say the same"),
        ("--max-tokens 9", "max_tokens needs a tokenizer"),
        ("--as word2world --too-long cut", '"cut" for --too-long'),
        ("--as word2world --too-long truncate", "needs max_tokens"),
        ("--as rwml --tokenizer t --max-tokens 9 --too-long truncate", "rwml ends with"),
        ("--tokenizer t --max-tokens 9 --too-long truncate", "rwml-sft ends with the part that counts"),
        ("--tokenizer ./no/such/folder", "tokenizer ./no/such/folder: no tokenizer, there is no such folder"),
        ("--out x.csv", "x.csv: write a name"),
        ("--host verl", "x.jsonl: verl's SFT reads parquet only"),
        ("--history -1", "history is -1"),
    ],
)
def test_mistakes_are_one_line(wm, grid, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    command = ("data", "build", grid, "--as", "rwml-sft", "--host", "trl", "--out", "x.jsonl")
    assert message in wm.error(*command, *arguments.split())
    assert not list(tmp_path.glob("x*"))


@pytest.mark.parametrize(
    ("kind", "host", "suffix", "says"),
    [
        ("word2world", "trl", "jsonl", True),
        ("imitation", "trl", "jsonl", True),
        ("rwml-sft", "trl", "jsonl", False),  # prompt and completion: stock TRL trains on the completion
        ("rwml", "trl", "jsonl", False),
        ("word2world", "verl", "parquet", False),  # verl trains on the assistant's messages
    ],
)
def test_what_a_stock_trainer_reads_otherwise_is_said(wm, grid, tmp_path, kind, host, suffix, says):
    out = tmp_path / f"x.{suffix}"
    result = wm.json("data", "build", grid, "--as", kind, "--host", host, "--out", out)
    notes = " ".join(result["notes"])
    assert result["assistant_only_loss"] == ("assistant_only_loss: true" in notes) == says
    assert result["calls_as_text"] == (12 if kind == "imitation" else 0)
    assert ("as JSON text" in notes) == (kind == "imitation")
    if kind == "imitation":
        call = rows(out)[0]["messages"][1]["tool_calls"][0]
        assert set(json.loads(call["function"]["arguments"])) == {"direction"}


def test_transitions_are_no_trajectories(wm, tmp_path):
    write_transitions(expand(rollouts(2, 0)), tmp_path / "t.jsonl")
    command = ("data", "build", tmp_path / "t.jsonl", "--as", "word2world", "--host", "trl")
    line = wm.error(*command, "--out", tmp_path / "x.jsonl")
    assert "holds transitions, but word2world is made of trajectories" in line

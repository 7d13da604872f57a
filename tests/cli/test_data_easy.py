"""`wm data easy` and `wm lab best` from flags to files, against a chat server of the tests' own."""

import json
import random

import pytest

from support.predictions import PROMPTS, Scripted, chat_server, choices, grid_trajectories, grid_transitions
from wm_plugin.cli import flags
from wm_plugin.data.transitions import read_transitions
from wm_plugin.data.write import write, write_transitions


@pytest.fixture
def source(tmp_path):
    (tmp_path / "short.yaml").write_text(PROMPTS)
    path = tmp_path / "grid.jsonl"
    write_transitions(grid_transitions(60), path)
    return path


def copies(body, _):
    """Right for a move that changes nothing and for no other: the last board it was shown."""
    shown = body["messages"][-1]["content"].split("\n\n")[0].removeprefix("# Initial state\n")
    said = f"<next_state>\n{shown}\n</next_state>"
    return choices(*[said] * body.get("n", 1), reasoning_content="It stays.")


def easy(source, url, *more):
    return (
        *("data", "easy", source, "--out", source.parent / "out.jsonl", "--server", url, "--server-model", "m"),
        *("--k", "4", "--prompts", source.parent / "short.yaml", "--reward", "exact", *more),
    )


def best(source, url, *more):
    return (
        *("lab", "best", source, "--out", source.parent / "best.jsonl", "--server", url, "--server-model", "m"),
        *("--prompts", source.parent / "short.yaml", "--judge", "rouge", "--threshold", "0.1", *more),
    )


def test_easy_samples_are_thinned_out(wm, source):
    transitions = grid_transitions(60)
    copied = sum(t.observation.text == t.context.initial_state for t in transitions)
    assert 5 < copied < len(transitions)
    with chat_server(copies) as there:
        result = wm.json(*easy(source, there.url, "--threshold", "0.5", "--keep", "0"))
    out = source.parent / "out.jsonl"
    assert "was anything sampled?" in result.pop("notes")[0]
    assert result == {
        "transitions": len(transitions),
        "observations": {"tool": 0, "user": 0, "environment": len(transitions)},
        "trained_on": 0,
        "predicted": len(transitions),
        "easy": copied,
        "easy_share": copied / len(transitions),
        "threshold": 0.5,
        "tau_easy": 0.0,
        "kept": len(transitions) - copied,
        "dropped": copied,
        "means": {"0.00": len(transitions) - copied, "1.00": copied},
        "failed": 0,
        "malformed": 0,
        "alike": len(transitions),
        "out": str(out),
        "scores": str(source.parent / "out.easy.jsonl"),
    }
    kept = list(read_transitions(out))
    assert kept == [t for t in transitions if t.observation.text != t.context.initial_state]
    inspected = wm.json("data", "inspect", out)
    assert inspected["datasets"][str(out)]["easy_share"] == pytest.approx(copied / len(transitions))


def test_a_second_threshold_asks_nobody_again(wm, source):
    with chat_server(copies) as there:
        first = wm.json(*easy(source, there.url, "--threshold", "0.5"))
        asked = len(there.seen)
        second = wm.json(*easy(source, there.url, "--target-easy-share", "0"))
        assert len(there.seen) == asked
    assert (second["easy"], second["threshold"]) == (0, 0.0)
    assert second["kept"] == second["predicted"] == first["predicted"]


@pytest.mark.slow
def test_trajectories_are_expanded_and_failures_counted(wm, source):
    trajectories = source.parent / "trajectories.jsonl"
    write(grid_trajectories(60), trajectories)
    broken = grid_transitions(60)[7].context.initial_state

    def answer(body, count):
        return (400, {"error": "too long"}) if broken in body["messages"][-1]["content"] else copies(body, count)

    with chat_server(answer) as there:
        result = wm.json(*easy(trajectories, there.url))
    assert result["transitions"] == len(grid_transitions(60))
    assert result["failed"] > 0
    assert result["failed"] % 4 == 0


@pytest.mark.slow
def test_a_server_that_is_down_is_one_line(wm, source):
    with chat_server(copies) as there:
        url = there.url
    line = wm.error(*easy(source, url, "--shard-size", "2"))
    assert line.startswith(f"wm: {url}: 8 of 8 predictions failed")
    assert not (source.parent / "out.jsonl").exists()


def test_the_filter_model_is_trained_on_other_tasks_than_it_predicts(wm, source, monkeypatch):
    """With stand-ins for the training and the model: which transitions go where."""
    from wm_plugin.data import easy as filters

    trained = []
    monkeypatch.setattr(
        filters, "import_object", lambda *_, **__: lambda model, rows, out, **options: trained.append((rows, options))
    )
    monkeypatch.setattr(flags, "LocalPredictor", lambda *_, **__: Scripted())
    served = ("--server", "", "--server-model", "m")
    arguments = [one for one in easy(source, "", "--filter-share", "0.3") if one not in served] + ["--model", "base"]
    result = wm.json(*arguments)
    rows, options = trained[0]
    assert result["trained_on"] == len(rows) > 0
    assert result["predicted"] + len(rows) == result["transitions"] == len(grid_transitions(60))
    assert options == {"seed": 0, "epochs": 2.0, "learning_rate": 2e-6, "batch_size": 32}
    assert rows[0]["completion"][0]["content"].startswith("<think>\n\n</think>\n\n<next_state>\n")
    assert "<think>" not in rows[0]["prompt"][-1]["content"]
    scored = {json.loads(line)["trajectory"] for line in (source.parent / "out.easy.jsonl").read_text().splitlines()}
    training = {t.trajectory for t in grid_transitions(60) if filters.trains_filter(t, 0.3)}
    assert not scored & training

    held_out = source.parent / "validation.jsonl"
    write_transitions(grid_transitions(4, seed=9), held_out)
    result = wm.json(*arguments, "--filter-data", held_out, "--work", source.parent / "other")
    assert (result["trained_on"], result["predicted"]) == (len(grid_transitions(4, seed=9)), result["transitions"])
    assert "raise --filter-share" in wm.error(*arguments, "--filter-share", "0", "--work", source.parent / "third")


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (easy, "--model m", "name one model: --model, --filter-model or --server; not --model and --server"),
        (easy, "--reward rwml", "not all observations are tools' results: comparing texts by their embeddings"),
        (easy, "--reward exat", "reward: there is no 'exat'; did you mean 'exact'?"),
        (easy, "--keep 10", "--keep is 10; write a number >= 0 and <= 1"),
        (easy, "--threshold 0.1 --target-easy-share 0.3", "--target-easy-share finds the threshold"),
        (easy, "--filter-data x", "--filter-data is for training"),
        (easy, "--out x.parquet", "x.parquet: write a name that ends in .jsonl"),
        (easy, "--prompts rwlm", "there are no prompts 'rwlm'; did you mean 'rwml'"),
        (best, "--host vrl", "did you mean 'verl'"),
        (best, "--host verl", "verl's SFT reads parquet only"),
        (best, "--judge-args {", "--judge-args is no JSON"),
        (best, "--judge-args []", "--judge-args is []; write an object"),
        (best, '--judge-args {"stepp":1}', "rouge does not take these arguments"),
        (best, "--compare refference", "did you mean 'reference'"),
        (best, "--max-tokens 9", "--max-tokens is 9, and needs a --tokenizer"),
    ],
)
def test_mistakes_are_one_line(wm, source, make, more, message):
    assert message in wm.error(*make(source, "http://127.0.0.1:9/v1", *more.split()))


def test_best_keeps_the_thought_of_the_best_output(wm, source):
    out = source.parent / "best.jsonl"

    def answer(body, count):
        status, value = copies(body, count)
        if random.Random(body["seed"]).random() < 0.5:
            value["choices"][0]["message"]["content"] = "I do not know."
        return status, value

    with chat_server(answer) as there:
        result = wm.json(*best(source, there.url, "--judge", "exact", "--threshold", "1"))
        assert "no sample is left to write" in wm.error(*best(source, there.url, "--threshold", "2"))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    right = [t for t in grid_transitions(60) if t.observation.text == t.context.initial_state]
    assert 0 < result["retained"] == len(rows) <= len(right)
    assert result["retain_rate"] == result["retained"] / result["candidates"]
    assert result["candidates"] <= result["transitions"] == len(grid_transitions(60))
    first = next(t for t in right if (t.trajectory, t.turn) == (rows[0]["trajectory"], rows[0]["turn"]))
    (answered,) = rows[0]["completion"]
    assert answered["content"].startswith("<think>\nIt stays.\n</think>\n\n<next_state>\n")
    assert first.observation.text in answered["content"]
    assert rows[0]["prompt"][-1]["role"] == "user"
    assert rows[0]["score"] == 1.0


@pytest.mark.host
@pytest.mark.parametrize("host", ["trl", "verl"])
def test_best_by_a_judge_and_in_pairs_as_tokens(wm, tmp_path, host):
    """From trajectories to rows of tokens with thoughts, by a reasoner and a judge behind a real server."""
    import pyarrow.parquet

    from wm_plugin.lab.tiny.judge import reply
    from wm_plugin.lab.tiny.policy import make_tokenizer
    from wm_plugin.lab.tiny.serving import serving

    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    write(grid_trajectories(6), tmp_path / "grid.jsonl")
    out = tmp_path / "sft.parquet"
    with serving(reply) as url:
        server = {"server": {"base_url": url, "model": "judge"}}
        arguments = ("--prompts", "mcp", "--server", url, "--server-model", "reasoner", "--threshold", 0.1)
        judge = ("--judge", "rubric", "--judge-args", json.dumps(server | {"scale": "unit"}))
        compare = ("--compare", "reference", "--compare-args", json.dumps(server), "--turn-information")
        written = ("--host", host, "--tokenizer", tmp_path / "tokenizer", "--out", out)
        result = wm.json("lab", "best", tmp_path / "grid.jsonl", *arguments, *judge, *compare, *written)
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert 0 < len(rows) == result["rows"] == result["retained"] <= result["candidates"]
    assert result["compared"] > 0
    tokenizer = make_tokenizer()
    mask = {"trl": "assistant_masks", "verl": "loss_mask"}[host]
    for row in rows:
        counted = tokenizer.decode([token for token, counts in zip(row["input_ids"], row[mask], strict=True) if counts])
        assert counted.startswith("<think>\nThe session has shown ")
        assert "</think>" in counted
        assert "<predicted_observation>\n" in counted


def test_a_judge_that_fails_says_nothing(wm, source):
    """What it could not score is no candidate; a trainer's reward would give it the lowest score."""

    def answer(body, count):
        asked = body["messages"][-1]["content"]
        if not asked.startswith("[[begin "):
            text = random.Random(body["seed"]).choice(["good", "bad"])
            return choices(f"<next_state>\n{text}\n</next_state>")
        if "\nbad\n" in asked:
            return 400, {"error": {"message": "no"}}
        scores = dict.fromkeys(("format", "factuality", "consistency", "realism", "quality"), 5)
        return choices(f"<final_evaluation>\n{json.dumps(scores)}\n</final_evaluation>")

    with chat_server(answer) as there:
        judge = {"server": {"base_url": there.url, "model": "j"}, "scale": "unit", "max_failure_share": 1.0}
        flags = ("--n", "2", "--judge", "rubric", "--judge-args", json.dumps(judge), "--threshold", "0.5")
        result = wm.json(*best(source, there.url, *flags))
    assert 0 < result["candidates"] == result["retained"] < result["transitions"]

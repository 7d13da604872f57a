"""Predictions: sampling from the model itself, servers with their habits and failures, and killed runs."""

import json
from pathlib import Path

import pytest

from support.predictions import PROMPTS, Scripted, chat_server, choices, grid_transitions, save_tiny
from wm_plugin.client.predict import LocalPredictor, ServerPredictor, load_model
from wm_plugin.client.server import Server
from wm_plugin.data.predictions import predictions
from wm_plugin.data.prompts import load
from wm_plugin.errors import UserError


def ask(*texts):
    return [[{"role": "user", "content": text}] for text in texts]


def server(url, **options):
    return Server(url, **({"model": "model", "temperature": 1.0, "backoff": 0.001, "max_retries": 2} | options))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(PROMPTS)
    return load(str(path))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("transformers")
    return save_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.host
def test_k_outputs_a_conversation_in_order_and_the_same_for_a_seed(tiny):
    predictor = LocalPredictor(tiny, max_new_tokens=5)
    conversations = ask("a", "abcdef", "abc")
    found = predictor(conversations, k=3, seed=1)
    assert [len(outputs) for outputs in found] == [3, 3, 3]
    assert len({text for outputs in found for text in outputs}) > 5
    assert predictor(conversations, k=3, seed=1) == found
    assert predictor(conversations, k=3, seed=2) != found


@pytest.mark.host
def test_padding_and_batches_change_no_greedy_output(tiny):
    conversations = ask("a", "abcdefgh" * 4, "abc", "#..A\n")
    together = LocalPredictor(tiny, temperature=0, max_new_tokens=6)(conversations, k=2, seed=0)
    alone = LocalPredictor(tiny, temperature=0, max_new_tokens=6, batch_size=1)
    assert together == [alone([conversation], k=2, seed=0)[0] for conversation in conversations]
    assert all(first == second for first, second in together)


@pytest.mark.host
def test_outputs_follow_the_models_own_distribution_and_not_its_generation_config(tiny):
    """4000 first characters against the softmax; the generation config would have given one and the same."""
    import torch

    predictor = LocalPredictor(tiny, max_new_tokens=1, batch_size=1000)
    predictor.model.generation_config.update(top_k=1, top_p=0.1, repetition_penalty=5.0, temperature=0.1)
    (outputs,) = predictor(ask("abc"), k=4000, seed=0)
    with torch.no_grad():
        probabilities = predictor.model(torch.tensor([predictor.tokenizer("abc:").input_ids])).logits[0, -1].softmax(-1)
    for token in probabilities.topk(20).indices.tolist():
        text = predictor.tokenizer.decode([token], skip_special_tokens=True)
        if not text:  # shared by the special tokens
            continue
        share = outputs.count(text) / 4000
        assert share == pytest.approx(float(probabilities[token]), abs=0.02)


@pytest.mark.host
def test_a_turn_ends_at_the_end_tokens_of_the_generation_config_and_of_the_template(tiny):
    predictor = LocalPredictor(tiny, max_new_tokens=30)
    config, tokenizer = predictor.model.generation_config, predictor.tokenizer
    config.eos_token_id = list(range(len(tokenizer)))
    assert all(len(text) <= 1 for text in predictor(ask("abc"), k=20, seed=0)[0])
    end, other = tokenizer.eos_token_id, tokenizer.pad_token_id
    for ends, found in ((other, [other, end]), ([end, other], [end, other])):  # a base model's, and its own
        config.eos_token_id = ends
        assert predictor.ends == found


@pytest.mark.host
def test_global_random_numbers_are_left_alone_and_weights_tell_models_apart(tiny):
    import torch

    state, predictor = torch.get_rng_state(), LocalPredictor(tiny, max_new_tokens=2)
    predictor(ask("a"), k=2, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    before = predictor.settings
    assert LocalPredictor(tiny, max_new_tokens=2).settings == before
    with torch.no_grad():
        predictor.model.lm_head.weight[0, 0] += 1
    assert LocalPredictor(predictor.model, predictor.tokenizer).settings["weights"] != before["weights"]


@pytest.mark.host
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all: "),
    ],
)
def test_invalid_local_settings(tiny, options, message):
    with pytest.raises(UserError, match=message) as caught:
        LocalPredictor(**({"model": tiny} | options))
    assert "\n" not in str(caught.value)


def test_a_server_that_gives_several_is_asked_once():
    with chat_server(lambda body, _: choices(*(f"{body['seed']}.{n}" for n in range(body["n"])))) as there:
        found = ServerPredictor(server(there.url))(ask("a", "b"), k=3, seed=0)
    assert len(there.seen) == 2
    assert [len(set(outputs)) for outputs in found] == [3, 3]
    assert len({body["seed"] for body in there.seen}) == 2
    assert there.seen[0]["temperature"] == 1.0


def one_only(body, _):
    return choices(f"{body['messages'][0]['content']}{body['seed']}")


def refuses_n(body, _):
    return (400, {"error": "n must be 1"}) if "n" in body else one_only(body, _)


@pytest.mark.parametrize("answer", [one_only, refuses_n])
def test_a_server_that_gives_one_only_is_asked_k_times_with_as_many_seeds(answer):
    with chat_server(answer) as there:
        predictor = ServerPredictor(server(there.url))
        first = predictor(ask("a", "b"), k=4, seed=0)
        asked = len(there.seen)
        again = predictor(ask("a", "b"), k=4, seed=0)
    assert again == first  # learning what the server does changes nothing
    assert all(len(set(outputs)) == 4 for outputs in first)
    assert len(there.seen) - asked == 8
    assert "n" not in there.seen[-1]


def test_what_fails_for_good_is_missing_and_counted():
    def answer(body, _):
        if body["messages"][0]["content"] == "long":
            return 400, {"error": "too long"}
        return (200, {"choices": []}) if body["messages"][0]["content"] == "empty" else one_only(body, _)

    with chat_server(answer) as there:
        predictor = ServerPredictor(server(there.url), max_failure_share=0.5)
        found = predictor(ask("a", "long", "b", "empty"), k=2, seed=0)
    assert [len(outputs) for outputs in found] == [2, 0, 2, 0]
    assert predictor.failed == 4


def test_too_many_failures_stop_in_one_line():
    with chat_server(lambda *_: (500, b"out of memory\nat line 3")) as there:
        predictor = ServerPredictor(server(there.url, max_retries=1))
        with pytest.raises(
            UserError, match="6 of 6 predictions failed, more than 5% .*500: out of memory at line 3"
        ) as caught:
            predictor(ask("a", "b"), k=3, seed=0)
    assert "\n" not in str(caught.value)
    assert predictor.failed == 0


@pytest.mark.parametrize(
    ("content", "thinking", "output"),
    [
        ("It rains.", False, "It rains."),
        ("It rains.", True, "<think>\nClouds.\n</think>\n\nIt rains."),
        (None, False, ""),
    ],
)
def test_reasoning_is_left_out_or_put_in_front(content, thinking, output):
    with chat_server(lambda *_: choices(content, reasoning_content="Clouds.")) as there:
        assert ServerPredictor(server(there.url), thinking=thinking)(ask("a"), k=1, seed=0) == [[output]]


def run(transitions, predictor, prompts, folder, **options):
    options = {"k": 2, "shard_size": 5} | options
    return list(predictions(transitions, predictor, prompts, folder=folder, **options))


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def test_every_transition_has_its_outputs_and_shards_are_of_about_one_size(prompts, tmp_path):
    transitions = grid_transitions(6)[:11]
    predictor = Scripted()
    found = run(transitions, predictor, prompts, tmp_path / "work")
    assert [transition for transition, _ in found] == transitions
    assert len({text for _, outputs in found for text in outputs}) == 22
    assert predictor.asked == [3, 4, 4]
    assert list(files(tmp_path / "work")) == ["manifest.json", *(f"predictions-0000{n}.jsonl" for n in range(3))]


def test_resuming_asks_nothing_twice_and_gives_the_same(prompts, tmp_path):
    transitions = grid_transitions(6)
    whole = run(transitions, Scripted(), prompts, tmp_path / "whole")
    first = predictions(transitions, Scripted(), prompts, k=2, shard_size=5, folder=tmp_path / "work")
    next(first)
    first.close()
    assert len(files(tmp_path / "work")) == 2
    unfinished = tmp_path / "work" / ".wm-0-predictions-00001.jsonl.unfinished"  # of a killed run
    unfinished.write_text("{")
    predictor = Scripted()
    assert run(transitions, predictor, prompts, tmp_path / "work") == whole
    assert len(predictor.asked) == -(-len(transitions) // 5) - 1
    unfinished.unlink(missing_ok=True)
    assert files(tmp_path / "work") == files(tmp_path / "whole")


def test_half_a_surrogate_pair_survives(prompts, tmp_path):
    transitions = grid_transitions(2)[:1]
    predictor = Scripted(answer=lambda *_: "\ud83d cut, \u2028 and é")
    first = run(transitions, predictor, prompts, tmp_path)
    assert run(transitions, Scripted(), prompts, tmp_path) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 3}, "k 2 -> 3"),
        ({"seed": 7}, "seed 0 -> 7"),
        ({"shard_size": 6}, "shard_size 5 -> 6"),
        ({"predictor": Scripted("other")}, 'model "scripted" -> "other"'),
        ({"thinking": False}, "conversations "),
        ({"transitions": grid_transitions(3, seed=5)}, "transitions "),
    ],
)
def test_other_settings_are_refused_by_name(prompts, tmp_path, change, message):
    run(grid_transitions(3), Scripted(), prompts, tmp_path)
    same = {"transitions": grid_transitions(3), "predictor": Scripted(), "prompts": prompts, "folder": tmp_path}
    with pytest.raises(UserError, match=f"predictions of other settings .*{message}") as caught:
        run(**same | change)
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(prompts, tmp_path):
    transitions = grid_transitions(3)
    run(transitions, Scripted(), prompts, tmp_path)
    shard = tmp_path / "predictions-00000.jsonl"
    whole = json.loads(shard.read_text())
    for damaged in (json.dumps(whole[:-1]), shard.read_text()[:-9], "", "null", "5"):
        shard.write_text(damaged)
        with pytest.raises(UserError, match="predictions-00000.jsonl: damaged"):
            run(transitions, Scripted(), prompts, tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="without their manifest.json"):
        run(transitions, Scripted(), prompts, tmp_path)


def test_transitions_must_be_iterable_twice(prompts, tmp_path):
    with pytest.raises(TypeError, match="only once"):
        run(iter(grid_transitions(2)), Scripted(), prompts, tmp_path)
    with pytest.raises(UserError, match="k is 0"):
        run(grid_transitions(2), Scripted(), prompts, tmp_path, k=0)
    assert run([], Scripted(), prompts, tmp_path / "nothing") == []


@pytest.mark.host
@pytest.mark.parametrize("weights", [b"", b"PK\x03\x04x"])
def test_damaged_weights_are_one_line(tmp_path, weights):
    save_tiny(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(weights)
    with pytest.raises(UserError, match=f"^{tmp_path}/model: .") as error:
        load_model(tmp_path / "model")
    assert "\n" not in str(error.value)

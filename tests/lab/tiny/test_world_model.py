"""The tiny world model: its dialogues lie as the policy's episodes, it learns from rows of `wm data build`, and it is served."""

import os
import subprocess
import sys
import urllib.request
from urllib.error import URLError

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from wm_plugin.client.server import Completion, Server
from wm_plugin.data.kinds import samples
from wm_plugin.data.rows import sft_row, write_rows
from wm_plugin.data.transitions import expand
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny import serve, world_model
from wm_plugin.lab.tiny.__main__ import main
from wm_plugin.lab.tiny.policy import HEADER, make_model, make_tokenizer, transcript
from wm_plugin.lab.tiny.rollouts import rollouts
from wm_plugin.lab.tiny.serving import serving

pytestmark = pytest.mark.host
FORESIGHT = os.path.join(os.path.dirname(__file__), "..", "..", "..", "recipes", "pipelines", "rwml_grid_prompts.yaml")
PROMPTS = os.path.join(os.path.dirname(__file__), "..", "..", "..", "recipes", "pipelines", "sim_tiny_prompts.yaml")


def rows(folder, name, count, seed):
    write(rollouts(count, seed), folder / f"{name}.rollouts.jsonl")
    made = samples(folder / f"{name}.rollouts.jsonl", "word2world", prompts=PROMPTS)
    write_rows((sft_row(one, "trl", single=False) for one in made), folder / f"{name}.jsonl")
    return folder / f"{name}.jsonl"


def test_a_cell_is_as_far_from_the_same_one_before_as_in_the_policys_text(tmp_path):
    tokenizer = world_model.world_tokenizer()
    found = world_model.read_rows(rows(tmp_path, "x", 4, 0), tokenizer)
    for ids, mask in zip(*found, strict=True):
        text = tokenizer.decode(ids)
        start, moves = text.split(HEADER, 1)
        turns = moves.split("<|im_end|>")
        assert turns.pop() == ""
        assert all(turn[0] in "UDLR" and turn[1:21].count("\n") == 3 for turn in turns)
        assert len(start) == 20
        assert sum(mask) == sum(len(turn) for turn in turns)  # without the move, with the end


def test_a_policy_foresees_by_its_own_text_to_the_letter(tmp_path):
    make_model(make_tokenizer(), 0, 4).save_pretrained(tmp_path / "policy")
    assert main(["--foresees", str(tmp_path / "policy"), "--out", str(tmp_path / "texts")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "texts")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "texts")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id  # and not every move
    episodes = list(rollouts(6, 0))
    write(episodes, tmp_path / "rollouts.jsonl")
    write_transitions(expand(episodes), tmp_path / "transitions.jsonl", [])
    found = list(samples(tmp_path / "transitions.jsonl", "rwml", prompts=FORESIGHT))
    assert len(found) == sum(len(episode.turns) for episode in episodes)
    whole = [
        transcript(
            [
                episode.context.initial_state,
                *(
                    part
                    for turn in episode.turns
                    for part in (turn.action.calls[0].arguments["direction"], turn.observations[0].text)
                ),
            ]
        )
        for episode in episodes
    ]
    for one in found:
        asked = tokenizer.apply_chat_template(one.messages, tokenize=False, add_generation_prompt=True)
        assert any(text.startswith(asked + one.columns["target"] + HEADER) for text in whole)
        assert len(tokenizer(one.columns["target"]).input_ids) == 20
    with pytest.raises(UserError, match="--foresees: .*none is no folder of a model"):
        main(["--foresees", str(tmp_path / "none"), "--out", str(tmp_path / "other")])


def test_it_learns_and_another_file_is_refused(tmp_path):
    tokenizer = make_tokenizer()
    make_model(tokenizer, 0, 4).save_pretrained(tmp_path / "start")
    train, held = rows(tmp_path, "train", 32, 0), rows(tmp_path, "held", 8, 1)
    model, own = make_model(tokenizer, 0, 4), world_model.world_tokenizer()
    held_out = world_model.read_rows(held, own)
    losses = []
    from wm_plugin.lab.evaluation.one_step import evaluate

    losses.append(evaluate(model, *held_out).mean_nll)
    world_model.fit(model, world_model.read_rows(train, own), held_out, steps=8, batch=8, seed=0)
    losses.append(evaluate(model, *held_out).mean_nll)
    assert losses[1] < losses[0] - 0.5
    (tmp_path / "other.jsonl").write_text('{"prompt": 1}\n')
    with pytest.raises(UserError, match="other.jsonl, row 0: no messages"):
        world_model.read_rows(tmp_path / "other.jsonl", own)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("world"), world_model.world_tokenizer()
    model = make_model(tokenizer, 0)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with serving(serve.Batches(folder, max_tokens=8)) as url:
        yield url, folder


def ask(url, texts, **options):
    server = Server(url, "world", api_key_env=None, **options)
    return server.complete([[{"role": "user", "content": text}] for text in texts]), server


def test_answers_of_a_batch_are_those_of_one_after_the_other(served):
    url, _ = served
    texts = [f"{n}..\nA{n}" for n in range(12)]
    together, server = ask(url, texts, max_tokens=6)
    alone = [ask(url, [text], max_tokens=6)[0][0] for text in texts]
    assert together == alone
    assert all(isinstance(one, Completion) for one in together)
    assert any(one.cut for one in together)
    assert server.completion_tokens > 0
    assert server.prompt_tokens >= sum(map(len, texts))


def test_seeds_give_other_answers_at_a_temperature(served):
    url, _ = served
    server = Server(url, "world", api_key_env=None, temperature=1.0, max_tokens=6)
    question = [{"role": "user", "content": "A"}]
    first, second, again = server.complete([question] * 3, seeds=[1, 2, 1])
    assert first == again != second


@pytest.mark.slow
def test_it_serves_as_long_as_a_command_runs(served, tmp_path):
    _, folder = served
    code = "import os, sys; assert sys.argv[1] == os.environ['WM_TINY_SERVER'] + '/x'; print(sys.argv[1]); raise SystemExit(7)"
    command = [
        sys.executable,
        "-m",
        "wm_plugin.lab.tiny",
        "serve",
        "--model",
        str(folder),
        sys.executable,
        "-c",
        code,
        "$WM_TINY_SERVER/x",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 7
    assert done.stdout.startswith("http://127.0.0.1:")
    with pytest.raises(URLError, match="refused"):
        urllib.request.urlopen(done.stdout.split()[0], timeout=5)

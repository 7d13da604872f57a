"""verl on a CPU: what is sampled, when a turn ends, and what a test's script says."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

pytest.importorskip("verl")

import torch
import verl.utils.config
from omegaconf import OmegaConf
from verl.experimental.agent_loop.tool_parser import ToolParser

from support.script_on_verl import Script
from support.verl_recipes import stock
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer
from wm_plugin.verl import registration
from wm_plugin.verl.cpu.generation import Generator

GREEDY = {"temperature": 0.0, "logprobs": True}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path, tokenizer = tmp_path_factory.mktemp("policy"), make_tokenizer()
    tokenizer.save_pretrained(path)
    model = make_model(tokenizer, seed=0)
    model.save_pretrained(path)
    return path, tokenizer, model.eval()


def generator(policy, seed=0):
    path, _, model = policy
    made = Generator(str(path), "float32", seed)
    made.load(model.state_dict(), version=1)
    return made


def generate(made, prompts, params, *, max_tokens=9, forced=None):
    requests = [made.request(prompt, params, max_tokens, forced) for prompt in prompts]
    made.run(requests)
    return requests


def naive_log_probs(model, prompt, tokens, temperature=1.0):
    logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def test_turns_of_several_tokens_end_at_a_stop_token_or_at_the_limit(policy):
    _, tokenizer, model = policy
    made, prompts = generator(policy), tokenizer(["a", "longer prompt"]).input_ids
    with torch.no_grad():
        for prompt, request in zip(
            prompts, generate(generator(policy), prompts, GREEDY), strict=True
        ):  # one token a turn
            assert request.token_ids == [int(model(torch.tensor([prompt])).logits[0, -1].argmax())]
    made.stop_ids = frozenset()
    params = {"temperature": 0.7}
    endless = generate(made, prompts, params, max_tokens=6)
    assert [len(request.token_ids) for request in endless] == [6, 6]
    with torch.no_grad():
        for prompt, request in zip(prompts, endless, strict=True):
            expected = naive_log_probs(model, prompt, request.token_ids, temperature=0.7)
            torch.testing.assert_close(torch.tensor(request.log_probs), expected, atol=1e-5, rtol=0)
    made.load(model.state_dict(), version=1)  # the same numbers once more
    stop = endless[0].token_ids[2]
    [stopped] = generate(made, prompts[:1], {**params, "stop_token_ids": [stop]}, max_tokens=6)
    assert stopped.token_ids == endless[0].token_ids[: endless[0].token_ids.index(stop) + 1]


def test_the_seed_and_not_the_order_of_arrival_decides(policy):
    _, tokenizer, _ = policy
    prompts = tokenizer(["a", "b"]).input_ids * 20

    def outcomes(order, seed=0):
        requests = generate(generator(policy, seed), order, {"temperature": 1.0})
        return Counter((tuple(request.prompt_ids), *request.token_ids) for request in requests)

    shuffled = random.Random(0).sample(prompts, len(prompts))
    assert outcomes(prompts) == outcomes(shuffled)
    assert outcomes(prompts) != outcomes(prompts, seed=1)
    assert len(outcomes(prompts)) > 2  # the twenty of one prompt are not one


def test_a_script_says_its_turns_in_order_and_then_the_last_one(policy, tmp_path):
    path, tokenizer, model = policy
    file = tmp_path / "script.json"
    file.write_text(json.dumps(["look<|im_end|>", "go<|im_end|>", "end<|im_end|>"]))
    script = Script(file, str(path))
    said, prompts = [], tokenizer(["first", "second"]).input_ids
    for _ in range(4):
        turns = [script.next_turn(prompt) for prompt in prompts]
        said.append(turns)
        prompts = [[*prompt, *turn, 7] for prompt, turn in zip(prompts, turns, strict=True)]  # and a result
    assert [[tokenizer.decode(turn) for turn in turns] for turns in said] == [
        [f"{text}<|im_end|>"] * 2 for text in ("look", "go", "end", "end")
    ]
    file.write_text(json.dumps({"first": ["look<|im_end|>"], "second": ["go<|im_end|>"]}))  # turns for each prompt
    turns = map(Script(file, str(path)).next_turn, tokenizer(["the second", "the first"]).input_ids)
    assert [tokenizer.decode(turn) for turn in turns] == ["go<|im_end|>", "look<|im_end|>"]
    [prompt] = tokenizer(["first"]).input_ids
    [request] = generate(generator(policy), [prompt], {"temperature": 1.0}, forced=said[0][0])
    assert request.token_ids == said[0][0]
    with torch.no_grad():
        expected = naive_log_probs(model, prompt, request.token_ids)
    torch.testing.assert_close(torch.tensor(request.log_probs), expected, atol=1e-5, rtol=0)


def test_one_character_is_a_call(policy):
    parser = ToolParser.get_tool_parser("wm_tiny", policy[1])

    def parsed(text):
        content, calls = asyncio.run(parser.extract_tool_calls(policy[1](text).input_ids))
        return content, [(call.name, json.loads(call.arguments)) for call in calls]

    assert parsed("U") == ("", [("move", {"direction": "U"})])
    assert parsed("x") == ("x", [])
    assert parsed("UD") == ("UD", [])
    assert parsed("") == ("", [])


def test_the_group_makes_any_config_one_for_a_cpu_and_leaves_the_rest():
    ours, theirs = stock(groups="[echo,cpu]"), stock()
    assert ours.actor_rollout_ref.rollout.name == "hf_cpu"
    assert ours.ray_kwargs.ray_init.num_gpus == ours.trainer.n_gpus_per_node == 1
    assert ours.reward.num_workers == ours.actor_rollout_ref.rollout.agent.num_workers == 1  # of eight that import all
    for part in (ours.actor_rollout_ref.actor, ours.critic):
        assert part.strategy == "fsdp2"
    for part in ("algorithm", "data.train_batch_size", "actor_rollout_ref.actor.optim", "trainer.v1", "wm"):
        assert OmegaConf.select(ours, part) == OmegaConf.select(theirs, part)
    assert stock(groups="cpu").get("wm") is None  # stock verl on a CPU


def test_the_group_without_the_variable_is_stopped_in_one_line(monkeypatch, capsys):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    with pytest.raises(SystemExit, match="2"):
        verl.utils.config.validate_config(stock(groups="cpu"), False, False)
    said = "the group wm: cpu needs a variable of the environment; write VERL_PLATFORM=cpu before the command"
    assert capsys.readouterr().err == f"wm: {said}\n"


def test_the_variable_without_the_group_is_stopped_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(registration, "_is_main_ppo", lambda: True)
    with pytest.raises(SystemExit, match="2"):
        verl.utils.config.validate_config(stock(groups=None), False, False)
    said = "VERL_PLATFORM is cpu, and the config is one for GPUs; add the group cpu, as in '+wm=[echo,cpu]'"
    assert capsys.readouterr().err == f"wm: {said}\n"


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 1.1}, {"stop": ["x"]}])
def test_sampling_that_the_rollout_does_not_know_is_refused(policy, params):
    with pytest.raises(ValueError, match="the CPU rollout"):
        generator(policy).request([1], {"temperature": 1.0, **params}, max_tokens=2)


@pytest.mark.slow  # imports verl twice
@pytest.mark.parametrize(("platform", "known"), [("cpu", True), ("", False)])
def test_the_pieces_wait_for_the_variable(platform, known):
    code = "import sys, verl; from verl.plugin.platform import PlatformRegistry\n"
    code += f"assert (PlatformRegistry.get('cpu') is not None) == ('wm_plugin.verl.cpu' in sys.modules) == {known}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "VERL_PLATFORM": platform}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]

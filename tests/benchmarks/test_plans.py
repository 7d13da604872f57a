import random

import pytest
import torch

pytest.importorskip("transformers", minversion="5.13")

from plans import (
    MAX_MOVES,
    OBSERVATION_TOKENS,
    PlanEnvironment,
    demonstrate,
    encode,
    make_boards,
    make_model,
    make_tokenizer,
    play,
    warm_start,
)
from wm_plugin.lab.tiny.policy import EOS
from wm_plugin.lab.tiny.warm_start import OBSERVATION, POLICY
from wm_plugin.worlds.wrappers.rewarded import rewarded

pytestmark = pytest.mark.host

TOKENIZER = make_tokenizer()
BOARD = "A.#.\n..G.\n....\n...."


def test_a_plan_ends_at_the_goal_and_counts_the_moves_that_changed_nothing() -> None:
    environment = PlanEnvironment()
    assert environment.reset(BOARD) == "A.#...G.........>"
    assert environment.move("UL") == "A.#...G.........>"
    assert environment.move("DRRUU") == "..#...P.........!"  # what follows the goal is not run
    assert (environment.success, environment.turns, environment.over) == (True, 2, True)
    assert environment.metrics == {"actions": 5, "effective": 3, "invalid": 0}


def test_wasted_moves_are_free_until_the_reward_is_rescaled() -> None:
    rewards = {}
    for plan in ("DRR", "UULLDRR"):
        for environment in (PlanEnvironment(), rewarded(PlanEnvironment, rescale=True)()):
            environment.reset(BOARD)
            environment.move(plan)
            rewards[plan, type(environment) is PlanEnvironment] = environment.get_reward()
    assert rewards == {
        ("DRR", True): 1,
        ("UULLDRR", True): 1,
        ("DRR", False): 1,
        ("UULLDRR", False): pytest.approx(3 / 7),
    }


def test_a_plan_has_a_limit_and_no_other_letters() -> None:
    environment = PlanEnvironment()
    environment.reset(BOARD, max_turns=3)
    assert environment.move("U" * (MAX_MOVES + 3)).startswith(f"Invalid: 1 of {MAX_MOVES + 1}\n")
    assert environment.move("X").startswith("Invalid: 1 of 1\n")
    assert environment.move(None).startswith("Invalid: 1 of 1\n")
    assert environment.over
    with pytest.raises(ValueError, match="over"):
        environment.move("U")


def test_encode_is_what_the_chat_template_writes() -> None:
    episode = demonstrate(make_boards(1, 2)[0], random.Random(3))
    (ids,), (kinds,) = encode(TOKENIZER, [episode])
    messages = [{"role": "user", "content": episode[0]}]
    for index, part in enumerate(episode[1:]):
        call = {"type": "function", "function": {"name": "move", "arguments": {"direction": part}}}
        plan = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages.append({"role": "tool", "name": "move", "content": part} if index % 2 else plan)
    messages.append({"role": "assistant", "content": ""})
    assert ids == TOKENIZER.apply_chat_template(messages, return_dict=False)
    plans = [id for id, kind in zip(ids, kinds, strict=True) if kind == POLICY]
    assert TOKENIZER.decode(plans) == EOS.join([*episode[1::2], "", ""])
    assert kinds.count(OBSERVATION) == OBSERVATION_TOKENS * (len(episode) // 2)


def test_trl_accepts_the_template_and_parses_plans() -> None:
    pytest.importorskip("trl", minversion="1.10")
    from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

    assert supports_tool_calling(TOKENIZER)
    assert is_chat_template_prefix_preserving(TOKENIZER)
    prefix = TOKENIZER(BOARD + ":").input_ids
    for text, plan in (("UUR" + EOS, "UUR"), ("DDDDDDDD", "DDDDDDDD"), ("LUx", "LU"), (EOS, None), ("x", None)):
        parsed = parse_response(TOKENIZER, TOKENIZER(text).input_ids, prefix=prefix, tools=[PlanEnvironment().move])
        calls = [call["function"] for call in parsed.get("tool_calls") or []]
        assert calls == ([{"name": "move", "arguments": {"direction": plan}}] if plan else []), text


@pytest.fixture(scope="module")
def started():
    torch.set_num_threads(1)
    model = make_model(TOKENIZER, 0)
    warm_start(model, TOKENIZER, 0, steps=40, demonstrations=300)
    return model


@pytest.mark.slow
def test_the_warm_start_learns_to_write_plans_and_is_seeded(started) -> None:
    boards = make_boards(40, 5, held_out=True)
    untrained, trained = (play(model, TOKENIZER, boards, 0) for model in (make_model(TOKENIZER, 0), started))
    assert sum(one["actions"] for one in trained) > 5 * sum(one["actions"] for one in untrained)
    assert all(one["invalid"] == 0 for one in trained)
    torch.manual_seed(7)
    first, again = make_model(TOKENIZER, 1), make_model(TOKENIZER, 1)
    for model in (first, again):
        warm_start(model, TOKENIZER, 1, steps=2, demonstrations=64)
        torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))

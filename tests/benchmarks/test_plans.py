import random

import pytest
import torch

pytest.importorskip("transformers", minversion="5.13")

from plans import (
    LEVELS,
    MAX_MOVES,
    MAX_TURNS,
    OBSERVATION_TOKENS,
    TURN_TOKENS,
    PlanEnvironment,
    dataset_rows,
    demonstrate,
    encode,
    make_boards,
    make_model,
    make_tokenizer,
    play,
    warm_start,
)
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.policy import EOS
from wm_plugin.lab.tiny.warm_start import OBSERVATION, POLICY
from wm_plugin.worlds.maze import distances
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


def test_levels_differ_in_their_distance_and_splits_in_their_walls() -> None:
    def layouts(boards):
        return {board.replace("A", ".").replace("G", ".") for board in boards}

    for level, far in LEVELS.items():
        trained, held_out = (make_boards(60, 0, level=level, held_out=split) for split in (False, True))
        for board in trained + held_out:
            walls = board.replace("A", ".").replace("G", ".")
            assert distances(walls, board.index("G"))[board.index("A")] in far
        assert not layouts(trained) & layouts(held_out)
        assert make_boards(60, 0, level=level) == trained
    assert max(LEVELS["standard"]) < min(LEVELS["hard"]) <= max(LEVELS["hard"]) <= MAX_MOVES
    with pytest.raises(UserError, match="level"):
        make_boards(1, 0, level="hrad")


def test_rows_hold_the_turns_of_their_episodes() -> None:
    (row,) = dataset_rows(1, 3, max_turns=1)
    environment = PlanEnvironment()
    assert environment.reset(**row).endswith(">")
    assert environment.move("U").endswith("!")
    assert environment.over
    environment.reset(row["board"])
    assert environment.max_turns == MAX_TURNS


def test_demonstrations_arrive_but_waste_moves() -> None:
    rng = random.Random(0)
    actions = effective = arrived = 0
    for board in make_boards(200, 1):
        parts = demonstrate(board, rng)
        environment = PlanEnvironment()
        assert parts[::2] == [environment.reset(board), *map(environment.move, parts[1::2])]
        assert environment.over
        actions += environment.metrics["actions"]
        effective += environment.metrics["effective"]
        arrived += environment.success
    assert arrived > 190
    assert 0.5 < effective / actions < 0.7


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


def test_a_turn_ends_after_any_token_that_is_no_move() -> None:
    ends = make_model(TOKENIZER, 0).generation_config.eos_token_id
    assert not set(ends) & set(TOKENIZER("UDLR").input_ids)
    assert len(ends) == make_model(TOKENIZER, 0).config.vocab_size - 4


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


@pytest.mark.slow
def test_the_first_turn_of_an_episode_is_the_whole_of_one_of_a_single_turn(started) -> None:
    boards = make_boards(60, 6)
    before = torch.get_rng_state()
    whole, single = (play(started, TOKENIZER, boards, 4, max_turns=turns) for turns in (MAX_TURNS, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert [one["success"] and one["turns"] == 1 for one in whole] == [one["success"] for one in single]
    assert max(one["turns"] for one in single) == 1 < max(one["turns"] for one in whole) <= MAX_TURNS


def test_play_is_what_the_policy_prefers() -> None:
    model = make_model(TOKENIZER, 0)
    with torch.no_grad():
        for parameter in model.lm_head.parameters():
            parameter.zero_()  # every token is as likely as another: four moves in as many as there are
    played = play(model, TOKENIZER, make_boards(400, 8), 0)
    gave_up = sum(one["turns"] == 0 for one in played) / len(played)
    assert gave_up == pytest.approx(1 - 4 / model.config.vocab_size, abs=0.03)
    assert TURN_TOKENS == 1 + MAX_MOVES + 1 + OBSERVATION_TOKENS

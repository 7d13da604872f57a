import pytest
import torch

pytest.importorskip("transformers")

from support.hand_made import TOKENIZER, HandMade, right
from wm_plugin.lab.tiny.look_ahead import DISCOUNT, _predict, coin, imagine, look_ahead
from wm_plugin.lab.tiny.policy import make_model, play, transcript
from wm_plugin.worlds.grid import make_boards

pytestmark = pytest.mark.host

ROWS = "....\n....\n....\n"  # above a last row with the agent and the goal


def still(board: str, move: str) -> str:
    return board


def values(world, text: str, turns: int) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    return imagine(HandMade(world), TOKENIZER, [text], turns, generator)[0].tolist()


def test_a_move_to_the_goal_is_worth_1_and_nothing_where_no_time_is_left() -> None:
    beside = ROWS + "..AG>:"
    assert values(right, beside, 1) == [0, 0, 0, 1]  # U D L R
    *others, best = values(right, beside, 6)
    assert best == 1
    assert all(0 <= value < 1 for value in others)
    assert values(right, ROWS + ".A.G>:", 1) == [0, 0, 0, 0]


def test_the_goal_later_is_worth_less_and_the_share_of_episodes_counts() -> None:
    two_away = ROWS + "#A.G>:"
    draws = torch.tensor([values(right, two_away, 2) for _ in range(3)])
    assert torch.equal(draws[0], draws[2])  # the generator decides, and nothing else
    generator = torch.Generator().manual_seed(1)
    drawn = imagine(HandMade(right), TOKENIZER, [two_away] * 80, 2, generator)
    assert drawn[:, :3].eq(0).all()
    shares = drawn[:, 3] / DISCOUNT  # of four episodes
    assert set((4 * shares).round(decimals=4).tolist()) <= {0, 1, 2, 3, 4}
    assert shares.mean().item() == pytest.approx(0.25, abs=0.08)  # the second move is one of four


def test_texts_do_not_mix_and_the_whole_episode_is_read() -> None:
    left, right_of = ROWS + "GA..>:", ROWS + "..AG>:"
    for batch in ([left, right_of], [right_of, left]):
        worth = imagine(HandMade(right), TOKENIZER, batch, 1, torch.Generator())
        assert [row.argmax().item() for row in worth] == [2 if text == left else 3 for text in batch]
    moved = transcript([ROWS + "A..G>", "R", ROWS + ".A.G>", "R", ROWS + "..AG>"])
    assert values(right, moved, 1) == [0, 0, 0, 1]


def reached(model, boards: list[str], advise=None) -> int:
    return sum(episode.success for episode in play(model, TOKENIZER, boards, 0, advise))


def test_a_true_world_model_is_worth_what_the_real_world_is_and_a_coin_nothing() -> None:
    boards = make_boards(12, 11, held_out=True)
    true, false = HandMade(right), HandMade(still)
    plain = reached(true, boards)
    assert reached(true, boards, look_ahead(true, TOKENIZER, 0)) > plain + 3
    for model in (true, false):  # which only moves as it does, in the real world
        assert reached(model, boards, look_ahead(model, TOKENIZER, 0, oracle=True)) > plain + 3
    assert reached(true, boards, coin(0)) <= plain + 3


def test_the_oracle_values_moves_as_a_true_world_model_does() -> None:
    texts = [transcript([board + ">"]) for board in make_boards(6, 15, held_out=True)]
    model = HandMade(right)
    own, real = (
        imagine(model, TOKENIZER, texts, 3, torch.Generator().manual_seed(0), oracle=oracle) for oracle in (False, True)
    )
    assert torch.equal(own, real)
    assert own.max() > 0


def test_where_no_success_is_imagined_it_plays_as_without_looking_ahead() -> None:
    boards = make_boards(5, 13, held_out=True)
    model = HandMade(still)
    assert play(model, TOKENIZER, boards, 3, look_ahead(model, TOKENIZER, 3)) == play(model, TOKENIZER, boards, 3)
    assert model.training  # its mode is as it was


def test_boards_are_predicted_as_without_a_cache() -> None:
    model = make_model(TOKENIZER, 0).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # predictions that depend on the context
        text = torch.tensor([TOKENIZER(board + ">:").input_ids for board in make_boards(5, 14)])
        past = model(input_ids=text, use_cache=True, logits_to_keep=1).past_key_values
        moves = torch.tensor(TOKENIZER("UDLRU").input_ids)
        boards, logits = _predict(model, past, moves, torch.tensor(TOKENIZER(":").input_ids))
        ids = torch.cat([text, moves[:, None]], 1)
        for column in range(20):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
            assert torch.equal(boards[:, column], ids[:, -1])
        header = torch.tensor(TOKENIZER(":").input_ids).expand(5, 1)
        torch.testing.assert_close(logits, model(input_ids=torch.cat([ids, header], 1)).logits[:, -1])
    assert past.get_seq_length() == ids.shape[1] + 1

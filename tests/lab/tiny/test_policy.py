from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.__main__ import main
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer, play
from wm_plugin.worlds.grid import GridEnvironment, make_boards

pytestmark = pytest.mark.host

BOARD = make_boards(1, 0)[0] + ">"
TEXT = BOARD + " {'error': \"x\"}!\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    main(["--out", str(folder), "--seed", "3", "--random"])
    return folder


def test_one_token_a_character_and_back() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer(TEXT).input_ids
    assert len(ids) == len(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer("é").input_ids == []


def test_a_saved_directory_loads_as_it_was(saved) -> None:
    tokenizer, loaded = make_tokenizer(), AutoTokenizer.from_pretrained(saved)
    assert loaded(TEXT).input_ids == tokenizer(TEXT).input_ids
    assert loaded.decode(loaded(TEXT).input_ids) == TEXT
    for name in ("chat_template", "eos_token_id", "pad_token_id", "padding_side"):
        assert getattr(loaded, name) == getattr(tokenizer, name), name
    if hasattr(tokenizer, "response_template"):  # the older schema is not saved
        assert loaded.response_template == tokenizer.response_template
    model, reloaded = make_model(tokenizer, 3), AutoModelForCausalLM.from_pretrained(saved)
    assert reloaded.generation_config.eos_token_id == list(range(model.config.vocab_size))
    for (name, mine), (_, theirs) in zip(model.named_parameters(), reloaded.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_the_template_renders_a_move_as_one_character() -> None:
    move = {"type": "function", "function": {"name": "move", "arguments": {"direction": "L"}}}
    messages = [
        {"role": "user", "content": "ab>"},
        {"role": "assistant", "content": "", "tool_calls": [move]},
        {"role": "tool", "name": "move", "content": "cd!"},
        {"role": "assistant", "content": ""},
    ]
    assert make_tokenizer().apply_chat_template(messages, tokenize=False) == "ab>:Lcd!:<|im_end|>"


def test_trl_accepts_the_template_and_parses_every_token(saved) -> None:
    pytest.importorskip("trl", minversion="1.10")
    from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

    for tokenizer in (make_tokenizer(), AutoTokenizer.from_pretrained(saved)):
        assert supports_tool_calling(tokenizer)
        assert is_chat_template_prefix_preserving(tokenizer)
        prefix = tokenizer(BOARD + ":").input_ids
        for token in range(len(tokenizer)):
            parsed = parse_response(tokenizer, [token], prefix=prefix, tools=[GridEnvironment().move])
            text = tokenizer.decode([token])
            calls = [call["function"] for call in parsed.get("tool_calls") or []]
            assert calls == ([{"name": "move", "arguments": {"direction": text}}] if text in "UDLR" else []), text


def test_the_model_is_tiny_seeded_and_leaves_the_global_generator_alone() -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (make_model(tokenizer, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert sum(tensor.numel() for tensor in first.values()) < 200_000
    four = make_model(tokenizer, 0, heads=4)
    assert four.config.num_attention_heads == four.config.num_key_value_heads == 4
    assert all(tensor.shape == first[name].shape for name, tensor in four.state_dict().items())


class Chooser(torch.nn.Module):
    """Prefers one move and says so with fixed probabilities."""

    def __init__(self, probabilities: dict[str, float]) -> None:
        super().__init__()
        tokenizer = make_tokenizer()
        self.logits = torch.full((len(tokenizer),), 9.0)  # tokens that are not allowed are the likeliest
        for action, probability in probabilities.items():
            self.logits[tokenizer(action).input_ids] = torch.tensor(probability).log()

    def forward(self, input_ids, logits_to_keep, past_key_values, use_cache):
        logits = self.logits.expand(len(input_ids), logits_to_keep, -1)
        return SimpleNamespace(logits=logits, past_key_values=DynamicCache() if use_cache else past_key_values)


def test_play_samples_valid_moves_with_the_policys_probabilities() -> None:
    boards = make_boards(400, 2, held_out=True)
    odds = {"U": 0.1, "D": 0.2, "L": 0.3, "R": 0.4}
    played = play(Chooser(odds), make_tokenizer(), boards, seed=0)
    moves = [move for episode in played for move in episode.parts[1::2]]
    for action, probability in odds.items():
        assert moves.count(action) / len(moves) == pytest.approx(probability, abs=0.05)
    for board, episode in zip(boards, played, strict=True):
        environment = GridEnvironment()
        assert episode.parts[::2] == [environment.reset(board), *map(environment.move, episode.parts[1::2])]
        assert (episode.success, episode.turns) == (environment.success, environment.turns)
        assert environment.over
    assert 0 < sum(episode.success for episode in played) < len(played)


def test_play_conditions_every_move_on_the_whole_episode() -> None:
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # sharp preferences that depend on the context
    boards = make_boards(40, 4)
    draws = torch.rand(len(boards), 6, generator=torch.Generator().manual_seed(7))
    for row, episode in enumerate(play(model, tokenizer, boards, seed=7)):
        for turn, move in enumerate(episode.parts[1::2]):
            pairs = zip(episode.parts[: 2 * turn + 1 : 2], [*episode.parts[1 : 2 * turn + 1 : 2], ""], strict=True)
            ids = torch.tensor([tokenizer("".join(board + ":" + action for board, action in pairs)).input_ids])
            with torch.no_grad():
                odds = model(input_ids=ids).logits[0, -1, tokenizer("UDLR").input_ids].softmax(-1)
            edges = torch.cat([torch.zeros(1), odds.cumsum(-1)])
            choice = "UDLR".index(move)
            assert edges[choice] - 1e-4 <= draws[row, turn] <= edges[choice + 1] + 1e-4


def test_a_folder_with_something_else_is_refused(saved, tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        main(["--out", str(tmp_path), "--random"])
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    with pytest.raises(UserError, match="is a file"):
        main(["--out", str(tmp_path / "config.json"), "--random"])
    before = sorted(path.name for path in saved.iterdir())
    main(["--out", str(saved), "--seed", "3", "--random"])
    assert sorted(path.name for path in saved.iterdir()) == before

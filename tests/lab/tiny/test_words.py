"""The tokenizer of a tiny world model: words of files, and bytes for everything else."""

import json

import pytest

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

from wm_plugin.data.sample import Sample
from wm_plugin.data.tokenize import Tokeniser
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny import words
from wm_plugin.lab.tiny.__main__ import main
from wm_plugin.lab.tiny.policy import template

pytestmark = pytest.mark.host

TEXT = "You pick up the wooden key from the ground. You open the safe with the wooden key. "
DIALOGUE = [
    {"role": "system", "content": "You are a world.\n"},
    {"role": "user", "content": 'act({"command": "look"})'},
    {"role": "assistant", "content": "A hall.\nIt has a door ✓ <b>"},
    {"role": "user", "content": "act"},
    {"role": "assistant", "content": "The end. [SUCCESS]"},
]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT * 20)
    row = {"messages": [{"role": "user", "content": "zzyzx zzyzx", "more": [{"deep": "plugh plugh"}], "n": 1}]}
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(row)}\n\n" * 20)
    return [tmp_path / "a.txt", tmp_path / "b.jsonl"]


def test_frequent_words_are_tokens_and_nothing_is_lost(files):
    tokenizer = words.make_tokenizer(files, 400)
    assert len(tokenizer) <= 400
    assert tokenizer.tokenize("You pick up the key") == ["You", "Ġpick", "Ġup", "Ġthe", "Ġkey"]
    assert tokenizer.tokenize(" zzyzx plugh")[-2:] == ["Ġzzyzx", "Ġplugh"]  # of values in JSON, however deep
    for text in ("naïve ✓ 漢字\t\n", "\x00", "🙂 you"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    again = words.make_tokenizer(files, 400)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_of_a_dialogue_the_worlds_turns_count_to_their_ends(files):
    tokenizer = words.make_tokenizer(files, 400)
    train = [message["role"] == "assistant" for message in DIALOGUE]
    ids, mask, _ = Tokeniser(tokenizer)(Sample(DIALOGUE, train))
    counted = tokenizer.decode([token for token, counts in zip(ids, mask, strict=True) if counts])
    assert counted == "".join(
        f"{message['content']}<|im_end|>" for message in DIALOGUE if message["role"] == "assistant"
    )
    prompt = tokenizer.apply_chat_template(DIALOGUE[:2], tokenize=False, add_generation_prompt=True)
    assert tokenizer(prompt).input_ids == ids[: len(tokenizer(prompt).input_ids)]
    assert prompt.endswith(words.HEADER)


def test_the_size_is_a_bound_and_has_room_for_bytes(files):
    assert len(words.make_tokenizer(files, 259)) == 259
    with pytest.raises(UserError, match="no room for all bytes; write 259 or more"):
        words.make_tokenizer(files, 258)


def test_files_without_a_text_are_one_line(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="the files have no text"):
        words.make_tokenizer([tmp_path / "empty.txt"])
    with pytest.raises(UserError, match=r"none\.txt: cannot be read"):
        words.make_tokenizer([tmp_path / "none.txt"])
    (tmp_path / "bad.jsonl").write_text('{"a": "b"}\n{')
    with pytest.raises(UserError, match=r"bad\.jsonl:2: not JSON"):
        words.make_tokenizer([tmp_path / "bad.jsonl"])


def test_the_command_writes_a_world_model(files, tmp_path, capsys):
    out = tmp_path / "model"
    names = list(map(str, files))
    assert main(["--out", str(out), "--words", *names, "--vocabulary", "300", "--seed", "3"]) == 0
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    assert len(tokenizer) == 300
    assert tokenizer.get_vocab() == words.make_tokenizer(files, 300).get_vocab()
    assert tokenizer.chat_template == template("words")
    assert tokenizer.tokenize(f"a{words.HEADER}b")[1] == words.HEADER
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (4, 128)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    with pytest.raises(UserError, match="--vocabulary needs --words"):
        main(["--out", str(tmp_path / "other"), "--vocabulary", "300"])

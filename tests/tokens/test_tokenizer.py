"""Loading a tokenizer: one way, one error."""

import json
import sys

import pytest

from wm_plugin.errors import MissingExtraError, UserError
from wm_plugin.tokens.tokenizer import load_tokenizer, template_end, turn_ends

pytest.importorskip("transformers")

pytestmark = pytest.mark.host


def test_from_a_folder_also_by_home(tmp_path, monkeypatch):
    from wm_plugin.lab.tiny.policy import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setenv("HOME", str(tmp_path))
    ids = load_tokenizer(tmp_path / "tokenizer")("abc").input_ids
    assert load_tokenizer("~/tokenizer")("abc").input_ids == ids


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nowhere",
            r"^--tokenizer /.*/nowhere: no tokenizer, there is no such folder; name one that save_pretrained wrote$",
        ),
        (
            "empty",
            r"^--tokenizer /.*/empty: no tokenizer \(\w+: .*\); name a folder that save_pretrained wrote, or a model on the Hub$",
        ),
        ("broken", r"^--tokenizer /.*/broken: no tokenizer \(\w+: .*\); name"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    (tmp_path / "broken" / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(tmp_path / name, field="--tokenizer")
    assert "\n" not in str(error.value)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"a tokenizer needs transformers: pip install .*\[trl\]'"):
        load_tokenizer("anything")


@pytest.mark.parametrize(("ids", "ends"), [(7, [7]), ([7, 8], [7, 8])])
def test_the_model_says_which_tokens_end_a_turn(ids, ends, tmp_path):
    assert turn_ends(tmp_path) == []
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert turn_ends(tmp_path) == ends


def test_the_template_says_which_token_ends_a_turn():
    from wm_plugin.lab.tiny.policy import make_tokenizer

    tokenizer = make_tokenizer()
    assert template_end(tokenizer) == tokenizer.eos_token_id
    for template in (
        "{% for message in messages %}{{ message.content }};{% endfor %}",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}",
    ):
        tokenizer.chat_template = template
        assert template_end(tokenizer) is None

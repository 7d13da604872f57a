import pytest

from wm_plugin.errors import UserError
from wm_plugin.tiny.policy import make_tokenizer
from wm_plugin.tokens.tokenizer import load_tokenizer


def test_a_directory_is_loaded(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)("go").input_ids == make_tokenizer()("go").input_ids


def test_errors_name_the_setting(tmp_path):
    with pytest.raises(UserError, match=r"^--tokenizer: there is no directory '.*none'"):
        load_tokenizer(tmp_path / "none", "--tokenizer")
    with pytest.raises(UserError, match="^tokenizer: .* cannot be loaded"):
        load_tokenizer(tmp_path)

"""Results of tools in the chat template of every family: which tokens are theirs, and the table of docs/templates.md."""

from unicodedata import normalize

import pytest

from support import templates
from support.real_tokenizers import PACKAGES, load
from support.templates_on_verl import Host, cell

TABLE = templates.read_table()
FOLLOWED = [name for name, row in TABLE.items() if row["verl"].startswith("exact")]


@pytest.mark.parametrize("name", sorted(templates.FAMILIES))
def test_each_family_is_followed_as_the_table_says(name):
    assert TABLE[name]["verl"] == cell(name), "python -m support.templates_on_verl (in tests) writes the table"


@pytest.mark.parametrize("name", FOLLOWED)
def test_tokens_of_several_bytes(name):
    """They run over the edges of results, and belong to that in which they begin."""
    tokenizer = templates.make_tokenizer(name, merges=True)
    host = Host(tokenizer, templates.FAMILIES[name].model_type)
    assert templates.outcome(tokenizer, host.ids, host.locate, templates.CASES[-3:]).startswith("exact")


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_real_tokenizers(package):
    """With every family's template. They compose letters, so that results are given as they write them."""
    tokenizer = load(package)
    cases = [
        case._replace(contents=tuple(normalize("NFC", text) for text in case.contents)) for case in templates.CASES
    ]
    for name in FOLLOWED:
        templates.equip(tokenizer, name)
        host = Host(tokenizer, templates.FAMILIES[name].model_type)
        expected = TABLE[name]["verl"].replace("exact, by TRL's training variant", "exact")
        assert templates.outcome(tokenizer, host.ids, host.locate, cases) == expected, name

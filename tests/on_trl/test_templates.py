"""Results of tools in the chat template of every family: which tokens are theirs, and the table of docs/trl.md."""

import pytest
import trl

from support import templates
from support.real_tokenizers import PACKAGES, load

pytestmark = pytest.mark.skipif(
    trl.__version__ != templates.RELEASE,
    reason=f"the table is of trl {templates.RELEASE}, and this is {trl.__version__}",
)

if trl.__version__ == templates.RELEASE:  # older releases lack some of what it asks
    from support.templates_on_trl import Host, cell, shipped
    from wm_plugin.trl.templates import rollout_template

TABLE = templates.read_table()
FOLLOWED = [name for name, row in TABLE.items() if row["trl"].startswith("exact")]
FEW = templates.CASES[-2:]


def test_every_template_that_trl_ships_is_in_the_table():
    assert shipped() == templates.TEMPLATES
    names = {name for name in shipped() if not name.endswith("_training")}
    assert templates.VISION.isdisjoint(templates.FAMILIES)
    assert templates.VISION | set(templates.FAMILIES) == names
    assert list(TABLE) == sorted(templates.FAMILIES)


@pytest.mark.parametrize("name", templates.params(sorted(templates.FAMILIES)))
def test_each_family_is_followed_as_the_table_says(name):
    assert TABLE[name]["trl"] == cell(name), "python -m support.templates_on_trl (in tests) writes the table"


@pytest.mark.parametrize("name", templates.params(FOLLOWED))
def test_tokens_of_several_bytes(name):
    """They run over the edges of results, and belong to that in which they begin."""
    tokenizer = templates.make_tokenizer(name, merges=True)
    host = Host(tokenizer, rollout_template(tokenizer))
    assert templates.outcome(tokenizer, host.ids, host.locate, FEW).startswith("exact")


@pytest.mark.parametrize("name", templates.params(FOLLOWED))
def test_a_completion_that_ends_inside_results_has_a_part_of_their_tokens(name):
    tokenizer = templates.make_tokenizer(name)
    host = Host(tokenizer, rollout_template(tokenizer))
    tools, contents = ("run_code", "lookup_doc"), ("ok 3", "größer")
    ids = host.ids(tools, contents)
    whole = host.locate(tools, contents, ids)
    for cut in {0, 1, *(edge + step for part in whole for edge in part for step in (-1, 0, 1)), len(ids)}:
        part = host.locate(tools, contents, ids, cut)
        assert part == [(min(start, cut), min(end, cut)) for start, end in whole]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_real_tokenizers(package):
    templates.check_real_tokenizer(
        load(package), "trl", lambda tokenizer, _: Host(tokenizer, rollout_template(tokenizer))
    )

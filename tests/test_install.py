"""The command that a message gives for an extra that is missing works where this package came from."""

import json
import re
import shutil
from pathlib import Path

import pytest

from wm_plugin import errors
from wm_plugin.errors import install

ROOT = Path(__file__).parents[1]


class Distribution:
    def __init__(self, record):
        self.record = record

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.record


@pytest.fixture
def come_from(monkeypatch, tmp_path):
    """An installed copy of the package, with pip's record of where it came from and the other packages there."""

    def make(record, *others):
        def version(name):
            if name not in others:
                raise errors.metadata.PackageNotFoundError(name)
            return "1"

        record = record if record is None or isinstance(record, str) else json.dumps(record)
        monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "wm_plugin" / "errors.py"))
        monkeypatch.setattr(errors.metadata, "distribution", lambda _: Distribution(record))
        monkeypatch.setattr(errors.metadata, "version", version)

    return make


def test_a_checkout_is_named_by_its_folder():
    assert install("parquet") == f"pip install -e '{ROOT}[parquet]'"


REPOSITORY = {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


def test_an_installed_copy_is_named_by_where_it_came_from(come_from, tmp_path):
    folder, gone = tmp_path.as_uri(), (tmp_path / "gone").as_uri()
    for record, wanted in (
        ({"url": folder, "dir_info": {}}, f"wm-plugin[rules] @ {folder}"),
        (REPOSITORY, "wm-plugin[rules] @ git+https://host/x.git@abc"),
        *((record, "wm-plugin[rules]") for record in ({"url": gone, "dir_info": {}}, None, "{")),  # an index, say
    ):
        come_from(record)
        assert install("rules") == f"pip install '{wanted}'"
    come_from(REPOSITORY)
    assert install() == "pip install 'wm-plugin @ git+https://host/x.git@abc'"


def test_a_package_in_somebody_elses_project_is_no_checkout(come_from, tmp_path):
    come_from(None)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "pyproject.toml").write_text('[project]\nname = "theirs"\n')
    assert install("rules") == "pip install 'wm-plugin[rules]'"
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "site-packages")
    assert install("rules") == f"pip install -e '{tmp_path / 'site-packages'}[rules]'"


@pytest.mark.parametrize(("extra", "other"), [("trl", "verl"), ("demo", "verl"), ("verl", "trl")])
def test_a_host_is_not_advised_into_the_environment_of_the_other(come_from, extra, other):
    come_from(None, other)
    assert install(extra).startswith(f"pip install 'wm-plugin[{extra}]' in an environment of its own ({other}, which")
    come_from(None)
    assert install(extra) == f"pip install 'wm-plugin[{extra}]'"


def test_no_page_or_message_says_what_works_after_a_release_only():
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.*")]
    files += [path for path in (ROOT / "wm_plugin").rglob("*.*") if path.suffix in (".py", ".md", ".html", ".yaml")]
    for path in files:
        if path.suffix != ".pyc":
            assert not re.search(r"pip install[^\n]*\bwm[-_]plugin\b(?!\{)", path.read_text()), path

"""Which releases of the hosts were tried: the table, what the doctor says of it, and the script that writes it."""

from datetime import date
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

import compat
from upstream import body
from wm_plugin.hosting import tried

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(monkeypatch):
    rows = [
        {"host": "trl", "release": release, "transformers": "5.1", "torch": "2", "ok": ok, "date": date(2026, 11, day)}
        for release, ok, day in (("1.0.0", True, 1), ("1.9.2", True, 2), ("1.10.0", False, 3), ("1.16.0", True, 4))
    ]
    rows += [rows[0] | {"host": "verl", "release": "1.12.0"}]
    monkeypatch.setattr(tried, "tried", lambda: rows)


@pytest.mark.parametrize(
    ("version", "state", "detail"),
    [
        ("1.9.2", "ok", "1.9.2 on 2026-11-02 with transformers 5.1 and torch 2: its hooks, and two training steps"),
        ("1.10.0", "info", "1.10.0 was not; the nearest that were: 1.9.2 (2026-11-02) and 1.16.0 (2026-11-04)"),
        ("1.17.0.dev0", "info", "1.17.0.dev0 was not; the nearest that were: 1.16.0 (2026-11-04)"),
        ("0.9", "info", "0.9 was not; the nearest that were: 1.0.0 (2026-11-01)"),
    ],
)
def test_what_the_doctor_says_of_a_release(table, version, state, detail):
    check = tried.check_tried("trl", version)
    assert (check.name, check.state, check.detail) == ("trl tried", state, detail)


def test_the_table_has_the_ends_of_the_supported_ranges_and_nothing_that_failed():
    rows = tried.tried()
    assert all(row["ok"] for row in rows)
    found = {host: [Version(row["release"]) for row in rows if row["host"] == host] for host in ("trl", "verl")}
    assert (found["trl"][0], found["verl"][0]) == (Version("1.0.0"), Version("0.9.1"))
    for versions in found.values():
        assert versions == sorted(set(versions))
    assert tried.page() == (ROOT / "docs/compatibility.md").read_text()
    assert ": failed" not in tried.page()


def test_a_release_that_failed_is_said_to_have(monkeypatch):
    rows = [{**row, "ok": False} for row in tried.tried()]
    monkeypatch.setattr(tried, "tried", lambda: rows)
    assert tried.page().count(": failed | ") == len(rows)


@pytest.mark.host
def test_a_release_after_the_last_that_was_tried_is_one_that_trl_warns_of():
    pytest.importorskip("trl")
    from wm_plugin.trl import versions

    newest = max(Version(row["release"]) for row in tried.tried() if row["host"] == "trl")
    assert versions.UNTESTED.release == (newest.major, newest.minor + 1)


def test_a_row_takes_the_place_of_that_of_its_release():
    cell = compat.cells()[1]
    cell.versions = {"trl": "1.9.2", "transformers": "5.23.0", "torch": "2.13.0", "python": "3.11"}
    cell.tests, cell.trained, cell.ok = "30 passed", "tiny recipe", True
    once = compat.merged((ROOT / "wm_plugin/hosting/tried.yaml").read_text(), [cell.row("2026-11-28")])
    cell.tests, cell.ok = "29 passed, 1 failed", False
    before, after = yaml.safe_load(once), yaml.safe_load(compat.merged(once, [cell.row("2026-12-01")]))
    assert [row["release"] for row in before] == [row["release"] for row in after]
    (row,) = [row for row in after if row["release"] == "1.9.2"]
    assert row == {
        "host": "trl",
        "release": "1.9.2",
        "transformers": "5.23.0",
        "torch": "2.13.0",
        "python": "3.11",
        "hooks": "29 passed, 1 failed",
        "steps": "tiny recipe",
        "ok": False,
        "date": date(2026, 12, 1),
    }
    assert [row for row in after if row["release"] != "1.9.2"] == [row for row in before if row["release"] != "1.9.2"]


def test_the_issue_names_what_moved():
    text = body("verl", "0.10.0.dev", ["a.b.C.d is gone", "a.e no longer takes x"])
    assert text.splitlines()[0] == "verl 0.10.0.dev on its main branch has moved what we rely on:"
    assert "- `a.b.C.d is gone`\n- `a.e no longer takes x`\n" in text
    assert "`wm_plugin/verl/support.py`" in text

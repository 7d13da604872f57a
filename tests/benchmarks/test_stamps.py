"""Every committed result says what it was measured with, and `make bench-check` names those whose code has changed since."""

import json
import re

import pytest

import stamps
from stamps import RESULTS, ROOT, STAMPS, changed, read, stamp

FOLDER = ROOT / STAMPS.parent


def test_every_result_has_an_entry_and_every_entry_a_result():
    there = {path.stem for path in FOLDER.iterdir()} - {STAMPS.stem}
    assert there == set(RESULTS) == set(read())
    for name, patterns in RESULTS.items():
        for pattern in patterns:
            assert any(ROOT.glob(pattern)), f"{name}: there is no {pattern}"


def test_every_script_stamps_what_it_writes():
    for name, (script, *_) in RESULTS.items():
        # `finish` of grid_135m.py stamps
        stamped = script.startswith("recipes/") or re.search(r"\b(stamp|finish)\(", (ROOT / script).read_text())
        assert stamped, f"{name}: {script}"


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_its_commit_and_versions(name):
    page = FOLDER / f"{name}.md"
    for one in read()[name]:
        assert {"commit", "date", "versions", "settings", "files"} <= set(one)
    assert not page.exists() or set(stamps.heads(read()[name])) <= set(page.read_text().split("\n"))


def test_files_that_have_changed_are_named_without_git(tmp_path, monkeypatch):
    monkeypatch.setattr(stamps, "RESULTS", {"speed": ("code/a.py", "code/more/*.py")})
    for path, text in (("code/a.py", "1"), ("code/more/b.py", "2"), (STAMPS.parent / "speed.md", "# Speed\n\nFast.\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    page = tmp_path / STAMPS.parent / "speed.md"
    assert changed("speed", tmp_path) == ["code/a.py", "code/more/b.py"]  # of which nothing is recorded
    stamp(page, {"seeds": 2}, ["one"], root=tmp_path)
    stamp(tmp_path / "speed.md", {})  # a trial elsewhere
    assert changed("speed", tmp_path) == []
    title, _, head, empty, text, end = page.read_text().split("\n")
    assert (title, empty, text, end) == ("# Speed", "", "Fast.", "")
    assert head.startswith(f"Measured with commit {stamps.UNKNOWN} (20")

    (tmp_path / "code/more/b.py").write_text("3")
    (tmp_path / "code/more/c.py").write_text("new")
    assert changed("speed", tmp_path) == ["code/more/b.py", "code/more/c.py"]
    stamp(page, {"seeds": 3}, ["two"], root=tmp_path)  # beside the first part, which is of other code
    assert changed("speed", tmp_path) == ["code/more/b.py", "code/more/c.py"]
    first, second = read(tmp_path)["speed"]
    assert (first["parts"], second["parts"], first["settings"] == second["settings"]) == (["one"], ["two"], False)
    stamp(page, {"seeds": 3}, ["one"], root=tmp_path)  # in its place
    assert changed("speed", tmp_path) == []
    stamp(page, {}, [], root=tmp_path)  # the page alone
    assert [one["parts"] for one in read(tmp_path)["speed"]] == [["two"], ["one"]]
    assert page.read_text().count("Measured with commit") == 1  # both alike
    with pytest.raises(SystemExit, match="add other to RESULTS"):
        stamp(page.with_name("other.json"), {}, root=tmp_path)
    (tmp_path / "code/a.py").unlink()
    assert changed("speed", tmp_path) == ["code/a.py"]
    assert json.loads((tmp_path / STAMPS).read_text()).keys() == {"speed"}

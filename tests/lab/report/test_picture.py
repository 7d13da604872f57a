"""The page in Chromium: nothing on its console, every figure with axis and unit in the DOM, and a picture of all of it."""

import re
import shutil

import pytest

pytest.importorskip("jinja2")

from support.trainer_logs import write_state
from wm_plugin.errors import UserError
from wm_plugin.lab.report import overview, picture, render, sources

BROWSER = next(filter(None, map(shutil.which, picture.BROWSERS)), None)
NEEDS = pytest.mark.skipif(BROWSER is None, reason="needs the system package chromium")


@pytest.fixture
def document(tmp_path):
    for seed in range(3):
        values = {"reward": {step: (step + seed) / 20 for step in range(1, 15)}, "loss": {1: 1.0, 9: 0.5}}
        write_state(tmp_path / f"echo_seed{seed}", values)
    return render(overview.report(overview.overview(sources.collect([str(tmp_path)]), {})))


def test_without_chromium_the_error_names_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt install chromium"):
        picture.find_browser()


@pytest.mark.parametrize("answer", ["exit 3", "echo nothing", "echo '<html data-height=\"900\">'"])
def test_a_chromium_that_fails_is_one_line(monkeypatch, tmp_path, answer):
    program = tmp_path / "chromium"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setattr(picture, "find_browser", lambda: str(program))
    with pytest.raises(UserError, match=r"a PNG: .*report\.html") as refused:
        picture.take("<body></body>", tmp_path / "x.png")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "x.png").exists()


@NEEDS
@pytest.mark.system
@pytest.mark.slow
def test_the_page_in_chromium(document, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(document, encoding="utf-8")
    flags = ["--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()]
    done = picture.run(BROWSER, flags, str(tmp_path))
    assert "CONSOLE" not in done.stderr.decode(errors="replace")
    dom = done.stdout.decode()
    figures = re.findall(r"<figure.*?</figure>", dom, re.DOTALL)
    assert len(figures) == document.count("<figure") >= 2
    for figure in figures:
        assert re.search(r"<h3>.+<small>\(.+\)</small></h3>", figure)
        assert re.search(r"<figcaption>.+</figcaption>", figure)
        assert figure.count("<text") > 3


@NEEDS
@pytest.mark.system
@pytest.mark.slow
def test_a_console_error_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><script>console.error('wrong')</script>")
    done = picture.run(BROWSER, ["--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()], str(tmp_path))
    assert "CONSOLE" in done.stderr.decode(errors="replace")


@NEEDS
@pytest.mark.system
@pytest.mark.slow
def test_the_picture_is_as_tall_as_the_page(document, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "x.png"
    picture.take(document, path)
    with image.open(path) as taken:
        width, height = taken.size
        corners = [taken.convert("L").getpixel(place) for place in ((3, 3), (width - 4, height - 4))]
    assert width == 2400
    assert height > 1600
    assert min(corners) > 200  # the page's ground


@pytest.mark.parametrize(("theme", "media"), [("light", "@media not all"), ("dark", "@media all")])
def test_a_theme_holds_for_the_page_and_its_tokens(document, theme, media):
    assert document.count("prefers-color-scheme") == 2
    themed = picture._themed(document, theme)
    assert (themed.count("prefers-color-scheme"), themed.count(media)) == (0, 2)

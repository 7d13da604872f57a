"""A page as a PNG, taken by Chromium, which is a system package. Nothing is loaded, and no script of the page's runs."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from wm_plugin.errors import UserError

Theme = Literal["light", "dark"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_WIDTH, _TALLEST = 1200, 16_000  # pixels of a picture; Chromium paints no taller ones
_SMALLEST = 0.5  # of the sizes in which a page is painted; one that is longer still is cut
_SECONDS = 120
_HEIGHT = re.compile(rb'data-height="(\d{1,6})"')
_DARK = "@media (prefers-color-scheme: dark)"
_DARK_TOKENS = "@media (prefers-color-scheme:dark)"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Chromium asks nobody, keeps nothing, and looks the same everywhere
_FLAGS = (
    "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--no-default-browser-check", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND", "--force-color-profile=srgb",
)  # fmt: skip


def find_browser() -> str:
    """The path of Chromium.

    Raises:
        UserError: it is not installed.
    """
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise UserError(
        "a PNG is taken by Chromium, which is not here: apt install chromium (or brew install --cask chromium), or write "
        "report.html and open it"
    )


def take(document: str, path: Path, theme: Theme = "light") -> None:
    """Write the picture of a page of ours, from its top to its end, to `path`.

    Raises:
        UserError: there is no Chromium, or it fails.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory() as folder:
        page, image = Path(folder, "page.html"), Path(folder, "page.png")
        page.write_text(_measuring(document, theme), encoding="utf-8", errors="replace")
        done = run(browser, [f"--window-size={_WIDTH},800", "--dump-dom", page.as_uri()], folder)
        height = _HEIGHT.search(done.stdout)
        if height is None:
            raise UserError("a PNG: Chromium did not lay out the page; write report.html and open it")
        tall = min(int(height[1]), int(_TALLEST / _SMALLEST))
        scale = min(2.0, _TALLEST / tall)  # a long page is painted smaller
        page.write_text(_themed(document, theme), encoding="utf-8", errors="replace")
        size = [f"--window-size={_WIDTH},{tall}", f"--force-device-scale-factor={scale:.3f}"]
        run(browser, [*size, f"--screenshot={image}", page.as_uri()], folder)
        if not image.is_file():
            raise UserError("a PNG: Chromium wrote no picture; write report.html and open it")
        path.write_bytes(image.read_bytes())


def run(browser: str, arguments: list[str], folder: str) -> "subprocess.CompletedProcess[bytes]":
    """Chromium, at its end, with what it printed. Its own files go into `folder`.

    Raises:
        UserError: it fails, or takes two minutes.
    """
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root cannot have; the page has no script anyway
    command = [browser, *_FLAGS, *sandbox, f"--user-data-dir={folder}/profile", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"a PNG: {browser} did not end within {_SECONDS} seconds; write report.html and open it"
        ) from None
    except OSError as error:
        raise UserError(f"a PNG: {browser} cannot be started ({error.strerror})") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"a PNG: {browser} failed ({last[:200] or f'exit code {done.returncode}'}); write report.html")
    return done


def _themed(document: str, theme: Theme) -> str:
    media = "@media all" if theme == "dark" else "@media not all"
    return document.replace(_DARK, media, 1).replace(_DARK_TOKENS, media, 1)


def _measuring(document: str, theme: Theme) -> str:
    """The page with one script of ours, which writes down how tall it is. Only the first policy is the page's own."""
    script = "document.documentElement.dataset.height = document.documentElement.scrollHeight"
    document = document.replace(_POLICY, f"{_POLICY}; script-src 'sha256-{_digest(script)}'", 1)
    return _themed(document, theme).replace("</body>", f"<script>{script}</script></body>")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

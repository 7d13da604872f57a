"""`wm` in the tests' own process."""

import json

import pytest

from wm_plugin.cli import main


class Wm:
    """Calls `wm` with words, which may be numbers and paths."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, *words):
        """The exit code, and what is printed: on standard output and standard error."""
        code = main.main([str(word) for word in words])
        return code, *self.capsys.readouterr()

    def json(self, *words, code=0):
        """What a verb prints with --json; with any exit code if it is None."""
        found, out, err = self(*words, "--json")
        assert code in (found, None), err
        return json.loads(out.splitlines()[-1])

    def text(self, *words, code=0):
        """What a verb prints for people."""
        found, out, err = self(*words)
        assert (found, err) == (code, ""), err
        return out

    def error(self, *words):
        """The one line about bad input."""
        code, out, err = self(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("wm: ")
        return err


@pytest.fixture
def wm(capsys):
    return Wm(capsys)

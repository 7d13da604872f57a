"""Random inputs for everything that reads what others wrote: nothing raises what it should not, hangs or exhausts the machine."""

import json
import math
import random
import shutil
from array import array
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from support.formats import DOCUMENTS
from support.fuzz import attack, mutated, text, value
from support.serving import Handler, serving
from wm_plugin.cli import main
from wm_plugin.client import replies
from wm_plugin.client.server import KINDS as FAILURES
from wm_plugin.client.server import Completion, Failure, Server
from wm_plugin.data.errors import RowError
from wm_plugin.data.kinds import KINDS
from wm_plugin.errors import UserError
from wm_plugin.rewards import REWARDS
from wm_plugin.worlds.agents.policies import read_action

pytestmark = pytest.mark.slow  # they take a minute of the processor together


def wm(*arguments: str) -> int:
    """Run the command here: an exit code of ours and one line of error, or none."""
    out, error = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main.main(list(arguments))
    assert code in (0, 1, 2), (code, arguments)
    lines = error.getvalue().strip().splitlines()
    if code == 2:
        assert lines, arguments
        assert lines[-1].startswith("wm"), (arguments, lines)
        assert len(lines) == 1 or lines[0].startswith("usage"), (arguments, lines)
    return code


# of our own format, with something in every field
FULL = {
    "turns": [
        {
            "action": {"text": "go", "thought": "hm", "calls": [{"name": "f", "arguments": {"q": 1}, "id": "a"}]},
            "observations": [
                {"kind": "tool", "text": '{"id": 421}', "tool": "f", "call": 0, "data": {"a": 1}, "error": True}
            ],
            "actor": "agent",
        }
    ]
    * 3,
    "context": {
        "task": "t",
        "action_space": [{"type": "function", "function": {"name": "f", "parameters": {}}}, {"name": "g"}],
        "initial_state": "a hall",
        "demonstrations": ["d"],
        "simulation_instruction": "s",
    },
    "task_id": "x",
    "success": True,
    "reward": 1.0,
    "metadata": {"user_profile": {"known_info": "Ann"}},
    "version": 1,
}
ROWS = [*DOCUMENTS.items(), *[("own", [FULL])] * 6]


def through(folder: Path, data: bytes, name: str, kind: str, *options: str) -> int:
    """Rows through every step; the exit code of `convert`. What it wrote can be read by all that follow."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source, out, filtered = folder / "x.json", folder / "converted.jsonl", str(folder / "filtered.jsonl")
    source.write_bytes(data)
    code = wm("data", "convert", str(source), "--format", name, "--out", str(out))
    if code == 0:
        assert wm("data", "filter", str(out), *options, "--out", filtered) == 0
        assert wm("data", "expand", str(out), "--out", str(folder / "expanded.jsonl")) == 0
        assert wm("data", "inspect", str(out), "--json") == 0
        prompts = ["--prompts", "mcp"] if hasattr(KINDS[kind], "family") else []
        for path in (str(out), filtered):  # 2: no sample is left, for one
            wm("data", "build", path, "--host", "trl", "--as", kind, *prompts, "--out", str(folder / "built.jsonl"))
    return code


@pytest.mark.parametrize(("name", "document"), [*DOCUMENTS.items(), ("own", [FULL])])
def test_rows_that_are_not_mutated_are_read(tmp_path, name, document):
    rows = document if isinstance(document, list) else [document]
    for form in ("auto", name):
        assert through(tmp_path / "run", "\n".join(map(json.dumps, rows)).encode(), form, "imitation", "--profile") == 0


def test_rows(tmp_path):
    def once(draw: random.Random) -> None:
        name, document = draw.choice(ROWS)
        if isinstance(document, list) and draw.random() < 0.9:  # many rows at once: most of the time goes to the steps
            rows = [mutated(draw, row) for row in document * 30]
        else:
            rows = [mutated(draw, document)]
        data = "\n".join(map(json.dumps, rows)).encode()
        if draw.random() < 0.2:  # cut off, or a damaged byte
            place = draw.randrange(len(data) + 1)
            data = data[:place] + (b"" if draw.random() < 0.5 else draw.randbytes(2) + data[place:])
        options = draw.sample(["--mask-values", "--profile"], draw.randint(0, 2))
        through(tmp_path / "run", data, draw.choice(["auto", name]), draw.choice(list(KINDS)), *options)

    attack(once, 1.5)


def test_actions():
    """What a policy says becomes an action or is refused."""

    def once(draw: random.Random) -> None:
        arguments: Any = mutated(draw, {text(draw, 1): text(draw, 3) for _ in range(draw.randint(0, 3))})
        function = {"name": text(draw, 1), "arguments": draw.choice([arguments, json.dumps(arguments)])}
        call = {"type": "function", "function": function}
        tagged = f"<tool_call>{json.dumps(function)}</tool_call>"
        messages = ({"content": text(draw), "tool_calls": [call]}, {"content": mutated(draw, tagged)}, value(draw))
        message = draw.choice(messages)
        with suppress(RowError):
            read_action(message if isinstance(message, dict) else {"content": message})

    attack(once)


class Judge(Server):
    """A server that says what it is told to."""

    reply: Any = ""

    def complete(self, conversations: Any, **_: Any) -> Any:
        return [self.reply() for _ in conversations]


def test_judges():
    server = Judge("http://localhost/v1", "judge", max_retries=1)
    names = ("judge", "reference", "rubric", "turing")
    rewards = [
        REWARDS.get(name)(server, tag=tag, max_failure_share=1.0) for name in names for tag in (None, "next_state")
    ]
    rewards.append(REWARDS.get("hybrid")(REWARDS.get("rubric")(server, max_failure_share=1.0)))

    def once(draw: random.Random) -> None:
        fields = {
            name: value(draw, 1)
            for name in draw.sample(["score", "format", "factuality", "verdict", "choice", "reason"], 3)
        }

        def reply() -> Any:
            told = f"<final_evaluation>{json.dumps(fields)}</final_evaluation>"
            pieces = [told if draw.random() < 0.5 else mutated(draw, told), text(draw, 2)]
            draw.shuffle(pieces)
            if draw.random() < 0.1:
                return Failure(draw.choice(FAILURES), text(draw, 1))
            return Completion("".join(map(str, pieces)), cut=draw.random() < 0.1)

        Judge.reply = staticmethod(reply)
        rows = draw.randint(1, 3)
        columns = {
            name: [draw.choice([None, text(draw, 2)]) for _ in range(rows)]
            for name in ("context", "action", "reference")
        }
        rules = [
            draw.choice([None, {"same": True}, {"json": "$.a"}, {"regex": "a+"}, text(draw, 2)]) for _ in range(rows)
        ]
        reward = draw.choice(rewards)
        try:
            scores = reward(
                [draw.choice([None, text(draw)]) for _ in range(rows)], [text(draw)] * rows, verifier=rules, **columns
            )
        except UserError:  # a rule that is none, for one
            return
        assert len(scores) == rows
        assert all(isinstance(score, float) and math.isfinite(score) and 0 <= score <= 10 for score in scores), (
            reward,
            scores,
        )

    attack(once)


@contextmanager
def answering(answer: Any) -> Any:
    """The address of a server that writes what `answer()` returns, and closes the connection."""

    class Answering(Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with suppress(OSError):
                self.wfile.write(answer())
            self.close_connection = True

    with serving(Answering) as url:
        yield url


def test_servers():
    pytest.importorskip("aiohttp")
    body = {
        "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
        "data": [{"index": 0, "embedding": [0.5, 1.0]}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    replied = b""
    with answering(lambda: replied) as url:
        server = Server(url, "m", max_retries=0, timeout=20, max_reply=1 << 20)
        server.answered = 1  # a server that refuses the key from the beginning is the user's to mend

        def once(draw: random.Random) -> None:
            nonlocal replied
            data = json.dumps(mutated(draw, body, draw.randint(0, 3))).encode()
            if draw.random() < 0.2:
                data = data[: draw.randrange(len(data) + 1)] + draw.randbytes(draw.randint(0, 3))
            status = draw.choice(["200 OK"] * 8 + ["401 No", "429 Slow", "500 Oh", "301 Moved", "999 Odd", "abc"])
            headers = draw.sample(
                [
                    *(
                        f"Content-Length: {len(data)}",
                        "Content-Length: 5",
                        "Content-Length: -1",
                        "Transfer-Encoding: chunked",
                    ),
                    *(
                        "Content-Encoding: gzip",
                        "Content-Encoding: br",
                        "Retry-After: nan",
                        "Retry-After: Mon, 99 x",
                        "Location: /a",
                    ),
                    *("Set-Cookie: " + "a" * 5000, "X: \x01", "Content-Type: text/\xff; charset=none"),
                ],
                draw.choice((0, 0, 1, 2)),
            )
            head = "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""])
            replied = head.encode("latin-1") + data
            (answer,) = server.complete([[{"role": "user", "content": "a"}]])
            assert isinstance(answer, Failure | Completion)
            if isinstance(answer, Failure):
                assert answer.kind in FAILURES
                assert "\n" not in answer.message
            (vector,) = server.post("/embeddings", [{}], lambda reply: replies.vector(reply["data"][0]["embedding"]))
            assert isinstance(vector, Failure | array)
            assert all(math.isfinite(number) and number >= 0 for number in server.figures.values())

        attack(once)

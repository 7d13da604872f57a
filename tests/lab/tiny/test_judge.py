"""The server of the tiny recipes: it judges by words, compares, guesses, and lives as long as a command."""

import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial

import pytest

from wm_plugin.client.predict import ServerPredictor
from wm_plugin.client.server import Server
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny import judge
from wm_plugin.lab.tiny.serving import serving
from wm_plugin.rewards import JudgeReward, ReferenceReward, RubricReward
from wm_plugin.rewards.extract import extract


@pytest.fixture(scope="module")
def server():
    with serving(judge.reply) as url:
        yield {"base_url": url, "model": "judge"}


def test_it_judges_by_the_words_that_are_right(server):
    """By hand: all of them, half of them, none."""
    texts, observed = ["a b", "a c", "c d"], ["a b"] * 3
    assert RubricReward(server)(texts, observed) == [25.0, 15.0, 5.0]
    assert JudgeReward(server)(texts, observed) == [1.0, 0.5, 0.0]


def test_it_compares(server):
    reward = ReferenceReward(server)
    assert reward(["a b", "c", "c", "c"], ["a b"] * 4, reference=["a", "a", "d", "c"]) == [1.0, 0.0, 0.5, 0.5]


def test_a_share_of_the_verdicts_is_drawn_and_the_others_are_as_without_noise(server):
    texts, observed = [f"a {number}" for number in range(200)], ["a b"] * 200
    with serving(partial(judge.reply, noise=0.5)) as url:
        noisy = {"base_url": url, "model": "judge"}
        scores = RubricReward(noisy)(texts, observed)
        assert RubricReward(noisy)(texts, observed) == scores
        closer = ReferenceReward(noisy)(["a b"] * 200, observed, reference=texts)
    assert RubricReward(server)(texts, observed) == [15.0] * 200
    assert set(scores) == {5.0, 10.0, 15.0, 20.0, 25.0}
    assert 90 < scores.count(15.0) < 150  # half, and a fifth of the other half
    assert 110 < closer.count(1.0) < 160  # half, and a third of the other half


def test_it_guesses_from_what_the_session_has_shown(server):
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "up"},
        {"role": "assistant", "content": "a wall"},
        {"role": "user", "content": "down"},
    ]
    predictor = ServerPredictor(Server(**server), thinking=True)
    ((first, second, third),) = predictor([messages], k=3, seed=0)
    for text in (first, second, third):
        assert text.startswith("<think>")
        assert extract(text, "predicted_observation").prediction == "a wall"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"{}",
        b'{"messages": []}',
        b'{"messages": 3, "n": {}}',
        b'{"messages": [{"content": "a"}], "n": 1e999}',
    ],
)
def test_what_is_no_question_is_an_error_of_the_request(server, body):
    request = urllib.request.Request(f"{server['base_url']}/chat/completions", data=body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    assert error.value.code == 400


def test_it_runs_beside_a_command_and_ends_with_its_code():
    command = [sys.executable, "-m", "wm_plugin.lab.tiny", "judge", "--port", "0"]
    command += ["--", sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, check=False).returncode == 7
    done = subprocess.run(command[:6], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "wm_plugin.lab.tiny: name a command to run beside the server\n")


def test_a_taken_port_is_one_line(server):
    port = int(server["base_url"].rpartition(":")[2].partition("/")[0])
    with pytest.raises(UserError, match=f"port {port}: Address already in use"), serving(judge.reply, port):
        pass

import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import ToyEnvironment, call_an_engine
from support.rows import BAD
from wm_plugin.errors import UserError
from wm_plugin.worlds.kit import process
from wm_plugin.worlds.kit.commands import MAX_COMMAND, NOT_A_COMMAND, clean, expert
from wm_plugin.worlds.kit.process import EngineProcess, LostError

TOY = "support.processes:Toy"


def alive(pid: int) -> bool:
    """Whether there is such a process, zombies included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def running(pid: int) -> bool:
    """Whether it does anything: one whose parent is gone may wait for a reaper that a container does not have."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def gone(pid: int, within: float = 20.0) -> bool:
    end = time.monotonic() + within
    while running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not running(pid)


@pytest.fixture(scope="module")
def shared() -> Iterator[EngineProcess]:
    process = EngineProcess(TOY)
    yield process
    process.close()


def test_values_go_there_and_back(shared: EngineProcess) -> None:
    for value in (None, 5, "é\n\0\ud800", "x" * 3_000_000, {"a": [1, 2.5, True]}):
        assert shared.call("echo", value) == value


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_a_value_that_does_not_travel_is_refused_before_it_is_sent(shared: EngineProcess, value: object) -> None:
    pid = shared.pid
    try:
        shared.call("echo", value)
    except UserError as error:
        text = str(error)
        assert text.startswith("a world takes plain numbers and texts, not ")
        assert "\n" not in text
    assert shared.call("echo", 1) == 1
    assert shared.pid == pid or pid is None


@pytest.mark.parametrize(
    "answer", [b"7", b"{}", b"{", b"[" * 999, b'{"value": ' + b"9" * 999 + b"}", b'{"value": "' + b"x" * 2000]
)
def test_an_answer_that_is_none_loses_the_engine(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """An engine's libraries may write into the socket, or be taken over by what they play."""
    monkeypatch.setattr(process, "LARGEST", 1000)
    engine = EngineProcess(TOY)
    assert engine.call("echo", 1) == 1
    engine._channel.close()
    engine._channel, other = socket.socketpair()
    with other:
        other.sendall(answer + (b"" if len(answer) > 1500 else b"\n"))
        with pytest.raises(LostError):
            engine.call("echo", 1, timeout=5.0)
    assert engine.pid is None


def test_hashes_are_fixed_and_the_hosts_path_is_known(shared: EngineProcess) -> None:
    about = shared.call("about")
    plain = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True
    )
    assert about["hash"] == int(plain.stdout)
    assert set(filter(None, sys.path)) <= set(about["path"])


def test_what_an_engine_prints_goes_nowhere(shared: EngineProcess, capfd: pytest.CaptureFixture[str]) -> None:
    assert shared.call("say", "NOISE") == ""  # nor is there anything to read
    assert capfd.readouterr() == ("", "")


def test_errors_of_the_user_keep_the_process_and_others_end_it() -> None:
    process = EngineProcess(TOY)
    pid = process.call("about")["pid"]
    assert pid == process.pid != os.getpid()
    with pytest.raises(UserError, match="^count is below 0$"):
        process.call("start", -1)
    assert process.call("about")["pid"] == pid
    with pytest.raises(LostError, match="AttributeError: .*nothing"):
        process.call("nothing")
    assert process.pid is None
    with pytest.raises(UserError, match="Nobody"):
        EngineProcess("support.processes:Nobody").call("echo", 1)


def test_a_hang_is_killed_after_its_time_with_all_that_it_started() -> None:
    process = EngineProcess(TOY)
    pid, child = process.call("about")["pid"], process.call("child")
    assert running(child)
    began = time.monotonic()
    with pytest.raises(LostError, match="no answer within 0.5 s"):
        process.call("hang", timeout=0.5)
    assert time.monotonic() - began < 15
    assert not alive(pid)  # reaped, too
    assert gone(child)
    assert process.call("echo", 1) == 1  # another one
    process.close()


def test_a_death_is_told_with_its_code() -> None:
    process = EngineProcess(TOY)
    pid = process.call("about")["pid"]
    with pytest.raises(LostError):
        process.call("die")
    assert not alive(pid)
    pid = process.call("about")["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LostError):
        process.call("echo", 1)
    assert not alive(pid)
    process.close()


def test_no_process_outlives_its_object() -> None:
    process = EngineProcess(TOY)
    pid = process.call("about")["pid"]
    del process
    gc.collect()
    assert not alive(pid)


HOST = """
import os, sys, threading
from wm_plugin.worlds.kit.process import EngineProcess
process = EngineProcess("support.processes:Toy")
print(process.call("about")["pid"], process.call("child"), flush=True)
threading.Thread(target=process.call, args=("hang",), daemon=True).start() if "busy" in sys.argv else None
import time; time.sleep(0.2)
if "wait" in sys.argv:
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    "how",
    [["idle"], ["busy", "wait"], *(pytest.param(how, marks=pytest.mark.slow) for how in (["busy"], ["idle", "wait"]))],
)
def test_no_process_outlives_its_host(how: list[str]) -> None:
    """The host ends by itself, or is killed and can do nothing about it; the engine is idle, or never answers."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", HOST, *how], stdout=subprocess.PIPE, env=environment) as host:
        assert host.stdout is not None
        pids = [int(pid) for pid in host.stdout.readline().split()]
        assert all(map(running, pids))
        if "wait" in how:
            host.kill()
    assert all(map(gone, pids))


def test_a_fork_of_the_host_leaves_the_process_alone(shared: EngineProcess) -> None:
    pid = shared.call("about")["pid"]
    child = os.fork()
    if child == 0:
        os._exit(0 if shared._end is None or shared._end() is None else 1)  # what runs when an interpreter ends
    assert os.waitpid(child, 0)[1] == 0
    assert shared.call("about")["pid"] == pid


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_works_in_daemonic_workers(method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    worker = context.Process(target=call_an_engine, args=(theirs, TOY), daemon=True)
    worker.start()
    assert ours.poll(60)
    assert ours.recv() == "from a daemon"
    worker.join(20)


def test_nothing_is_inherited_but_the_channel(shared: EngineProcess) -> None:
    with socket.socket() as secret:
        os.set_inheritable(secret.fileno(), True)
        process = EngineProcess(TOY)
        process.call("echo", 1)
        links = [os.readlink(f"/proc/{process.pid}/fd/{name}") for name in os.listdir(f"/proc/{process.pid}/fd")]
        assert os.readlink(f"/proc/self/fd/{secret.fileno()}") not in links
        process.close()


# Worlds on it


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyEnvironment]:
    environment = ToyEnvironment()
    yield environment
    environment._process.close()


def test_an_episode_is_counted(toy: ToyEnvironment) -> None:
    assert toy.reset() == "count 0"
    assert [toy.act(command) for command in ("up", "jump", "\0", " up ", "up")] == [
        "count 1",
        "what?",
        NOT_A_COMMAND,
        "count 2",
        "count 3\nThe task is done.",
    ]
    assert toy.metrics == {"actions": 5, "effective": 3, "invalid": 2, "lost": 0}
    assert (toy.over, toy.success, toy.turns, toy.get_reward()) == (True, True, 5, 1.0)
    with pytest.raises(ValueError, match="over"):
        toy.act("up")


def test_turns_end_an_episode_and_a_reset_forgets_it(toy: ToyEnvironment) -> None:
    toy.reset(max_turns=2)
    toy.act("up")
    assert toy.act("stay") == "count 1\nThe episode is over."
    assert (toy.over, toy.success, toy.get_reward()) == (True, False, 1 / 3)
    assert toy.reset(count=1) == "count 1"
    assert (toy.over, toy.turns, toy.get_reward()) == (False, 0, 0.0)
    assert toy.metrics == dict.fromkeys(("actions", "effective", "invalid", "lost"), 0)


@pytest.mark.parametrize("how", ["hang", "die", "fail"])
def test_a_lost_process_costs_its_episode_and_nothing_else(toy: ToyEnvironment, how: str) -> None:
    toy.reset()
    toy.act("up")
    toy._process.timeout = 0.5 if how == "hang" else 10.0
    text = toy.act(how)
    toy._process.timeout = 10.0
    assert text.startswith("The world was lost (")
    assert text.endswith("The episode is over.")
    assert (toy.over, toy.success, toy.get_reward(), toy.metrics["lost"]) == (True, False, 0.0, 1)
    assert toy.reset() == "count 0"
    assert toy.metrics["lost"] == 0
    assert toy.act("up") == "count 1"


def test_a_process_that_died_between_episodes_costs_nothing(toy: ToyEnvironment) -> None:
    toy.reset()
    assert toy._process.pid is not None
    os.kill(toy._process.pid, signal.SIGKILL)
    assert toy.reset(count=2) == "count 2"
    assert toy.metrics["lost"] == 0


def test_a_refused_column_leaves_the_environment_over(toy: ToyEnvironment) -> None:
    with pytest.raises(UserError, match="below 0"):
        toy.reset(count=-1)
    assert toy.over


def test_the_expert_gives_up_where_the_episode_ends(toy: ToyEnvironment) -> None:
    choose = expert()
    for start in (0, 2):
        toy.reset(count=start)
        while (choice := choose(toy)) is not None:
            toy.act(**choice[1])
        assert (toy.success, toy.turns) == (True, 3 - start)


@pytest.mark.parametrize(
    "command",
    ["", " \n", "\0", "\ud800", "é", "x" * (MAX_COMMAND + 1), "x" * 10**7, None, 5, True, ["up"], {"a": 1}, b"up"],
)
def test_what_is_no_command(command: object) -> None:
    assert clean(command) is None
    assert clean("  go \t to\nkitchen ") == "go to kitchen"

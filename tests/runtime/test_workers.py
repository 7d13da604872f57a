"""Processes and threads whose tasks die, hang and fail."""

import os
import sys
import threading
from multiprocessing import resource_tracker

import pytest

from support.workers import bad_start, start
from wm_plugin.errors import UserError
from wm_plugin.runtime.workers import Lost, Processes, Threads, uninterrupted


def test_results_come_in_the_order_of_the_tasks():
    workers = Processes(start, (100,), workers=2, timeout=30)
    try:
        assert workers.map(range(12)) == [100 + task for task in range(12)]
        assert workers.map([]) == []
        assert workers.map([5]) == [105]  # the same processes go on
    finally:
        workers.close()


def test_a_start_leaves_the_environment_alone(monkeypatch):
    """A process that another thread starts while the environment changes may fail with code 255."""
    before, options, seen = dict(os.environ), list(sys.warnoptions), []
    monkeypatch.setattr(
        resource_tracker, "ensure_running", lambda: seen.append((dict(os.environ), list(sys.warnoptions)))
    )
    with uninterrupted():
        pass
    assert seen == [(before, [*options, "ignore:resource_tracker:UserWarning"])]
    assert sys.warnoptions == options


def test_a_dead_and_a_hung_process_cost_their_task_and_no_other():
    workers = Processes(start, (0,), workers=2, timeout=1.0)
    try:
        found = workers.map([1, "die", 2, "hang", "fail", 3])
    finally:
        workers.close()
    assert [found[index] for index in (0, 2, 5)] == [1, 2, 3]
    assert found[1] == Lost("died", "its process ended with code 7")
    assert found[3] == Lost("timeout", "no end within 1 s")
    assert found[4] == Lost("error", "RuntimeError: broken in two lines")


def test_a_users_mistake_stops_all():
    for made in (Processes(start, (0,), workers=1, timeout=30), Threads(lambda: start(0), workers=2, timeout=30)):
        with pytest.raises(UserError, match="write another task"):
            made.map([1, "mistake", 2])
        made.close()
    for made in (Processes(bad_start, (), workers=1, timeout=30), Threads(bad_start, workers=1, timeout=None)):
        with pytest.raises(UserError, match="nothing can be started"):
            made.map([1])
        made.close()
    with pytest.raises(UserError, match="workers is 0; write a number >= 1"):
        Processes(start, (0,), workers=0, timeout=1)


def test_a_process_that_cannot_start_loses_its_task():
    workers = Processes(lambda: None, (), workers=1, timeout=30)  # which cannot be sent to a process
    try:
        (lost,) = workers.map([1])
    finally:
        workers.close()
    assert lost.kind == "error"
    assert "pickle" in lost.reason


def test_a_hung_thread_is_left_behind():
    free = threading.Event()

    def work(task):
        if task == "hang":
            free.wait(60)
        elif task == "fail":
            raise RuntimeError("broken")
        return task

    found = Threads(lambda: work, workers=1, timeout=0.2).map([1, "hang", 2, "fail", 3])
    free.set()
    assert found == [1, Lost("timeout", "no end within 0.2 s"), 2, Lost("error", "RuntimeError: broken"), 3]

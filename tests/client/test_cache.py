"""Replies on disk: what is told apart, what stays, and what a broken file does."""

import multiprocessing
import pickle
import sqlite3
import threading
import warnings

import pytest

from wm_plugin.client.cache import ReplyCache
from wm_plugin.errors import UserError

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello \ud800"}], "temperature": 0.0, "seed": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "cache.db"


def test_replies_are_there_in_another_run(path):
    cache = ReplyCache(path)
    key = cache.key(BODY)
    assert cache.get([key]) == {}
    cache.put({key: "reply ✓\n"} | {str(n): "x" for n in range(2000)})
    again = pickle.loads(pickle.dumps(ReplyCache(path)))
    assert again.get([again.key(dict(reversed(BODY.items()))), "other"]) == {key: "reply ✓\n"}
    assert len(again.get(map(str, range(3000)))) == 2000


def test_everything_that_matters_is_in_the_key(path):
    cache = ReplyCache(path)
    others = [BODY | {"model": "n"}, BODY | {"temperature": 1.0}, BODY | {"seed": 1}, BODY | {"messages": []}]
    assert len({*map(cache.key, (BODY, *others)), ReplyCache(path, tag="fp8").key(BODY)}) == 6


def _write(path, start, number):
    start.wait()
    cache = ReplyCache(path)
    for n in range(50):
        cache.put({f"{number}/{n}": "x"})
        assert cache.get([f"{number}/{n}"])


def test_several_processes_at_once(path):
    context = multiprocessing.get_context("fork")
    start = context.Event()
    workers = [context.Process(target=_write, args=(path, start, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(ReplyCache(path).get(f"{number}/{n}" for number in range(4) for n in range(50))) == 200


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_that_another_process_is_making(tmp_path, begin):
    other = sqlite3.connect(tmp_path / "cache.db", check_same_thread=False, isolation_level=None)
    other.execute(begin)
    end = threading.Timer(0.3, other.execute, ["COMMIT"])
    end.start()
    assert ReplyCache(tmp_path / "cache.db").get(["a"]) == {}
    end.join()
    other.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough " * 20, b"SQLite format 3\0" + b"\xff" * 200])
def test_a_file_that_is_no_cache_is_an_error_and_stays(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rows.jsonl: cannot be used as a cache .*; remove it, or name another"):
        ReplyCache(path)
    assert path.read_bytes() == content
    with pytest.raises(UserError, match="cannot be used as a cache"):
        ReplyCache(tmp_path)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    other = (tmp_path / "other.db").read_bytes()
    with pytest.raises(UserError, match="it is another database"):
        ReplyCache(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == other
    assert {file.name for file in tmp_path.iterdir()} == {"rows.jsonl", "other.db"}


def test_a_cache_that_breaks_later_stops_nothing(path):
    cache = ReplyCache(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE replies")
    with pytest.warns(UserWarning, match=r"cache.db: the cache of replies is left out from now on \(no such table"):
        assert cache.get(["a"]) == {}
    with warnings.catch_warnings(action="error"):
        cache.put({"a": "x"})
        assert cache.get(["a"]) == {}


@pytest.mark.parametrize("value", ["NULL", "x'00ff'", "CAST(x'ff41' AS TEXT)"])
def test_a_damaged_reply_is_asked_for_again(path, value):
    cache = ReplyCache(path)
    cache.put({"a": "first", "b": "other"})
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE replies SET reply = {value} WHERE key = 'a'")
    assert cache.get("ab") == {"b": "other"}
    cache.put({"a": "second"})
    assert cache.get("ab") == {"a": "second", "b": "other"}


def test_a_reply_that_is_not_unicode_is_not_kept_and_stops_nothing(path):
    cache = ReplyCache(path)
    cache.put({"a": "half \ud83d", "b": "whole", "\ud83d": "c"})
    assert cache.get("ab") == {"b": "whole"}

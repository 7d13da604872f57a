"""Replies on disk: what is told apart, what stays, and what a broken file does."""

import multiprocessing
import pickle
import sqlite3
import threading

import pytest

from wm_plugin.client.cache import ReplyCache
from wm_plugin.errors import UserError

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello \ud800"}], "temperature": 0.0, "seed": 0}


def test_what_was_put_is_there_in_another_run(tmp_path):
    cache = ReplyCache(tmp_path / "deep" / "cache.db")
    key = cache.key(BODY)
    assert cache.get([key]) == {}
    cache.put({key: "reply ✓\n"})
    assert cache.get([key, "other"]) == {key: "reply ✓\n"}
    again = pickle.loads(pickle.dumps(ReplyCache(tmp_path / "deep" / "cache.db")))
    assert again.get([again.key(dict(reversed(BODY.items())))]) == {key: "reply ✓\n"}
    assert (cache.hits, cache.misses, len(cache)) == (1, 2, 1)


def test_all_that_matters_is_in_the_key(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db")
    others = [BODY | {"model": "n"}, BODY | {"temperature": 1.0}, BODY | {"seed": 1}, BODY | {"messages": []}]
    keys = {cache.key(body) for body in (BODY, *others)}
    assert len(keys | {ReplyCache(tmp_path / "cache.db", tag="fp8").key(BODY)}) == 6


def test_the_least_recently_used_go(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db", max_entries=3)
    for key in "abc":
        cache.put({key: key})
    cache.get(["a"])
    cache.put({"d": "d"})
    assert sorted(cache.get("abcd")) == ["a", "c", "d"]


def test_many_keys_at_once(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db")
    cache.put({str(n): "x" for n in range(2000)})
    assert len(cache.get(map(str, range(3000)))) == 2000


def _write(path, start, number):
    start.wait()
    cache = ReplyCache(path)
    for n in range(50):
        cache.put({f"{number}/{n}": "x"})
        assert cache.get([f"{number}/{n}"])


def test_several_processes_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Event()
    workers = [context.Process(target=_write, args=(tmp_path / "cache.db", start, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(ReplyCache(tmp_path / "cache.db")) == 200


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_that_another_process_is_making(tmp_path, begin):
    other = sqlite3.connect(tmp_path / "cache.db", check_same_thread=False, isolation_level=None)
    other.execute(begin)
    end = threading.Timer(0.3, other.execute, ["COMMIT"])
    end.start()
    assert len(ReplyCache(tmp_path / "cache.db")) == 0
    end.join()
    other.close()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 20, b"SQLite format 3\0" + b"\xff" * 200]
)
def test_a_file_that_is_no_cache_is_an_error_and_stays(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"rows.jsonl: cannot be used as a cache of replies \(.*\); remove it, or name another"
    ):
        ReplyCache(path)
    assert path.read_bytes() == content


def test_another_database_is_none(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(UserError, match="it is another database"):
        ReplyCache(tmp_path / "other.db")


def test_a_folder_is_none(tmp_path):
    with pytest.raises(UserError, match="cannot be used as a cache"):
        ReplyCache(tmp_path)


def test_a_cache_that_breaks_later_stops_nothing(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db")
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute("DROP TABLE replies")
    with pytest.warns(UserWarning, match=r"cache.db: the cache of replies is left out from now on \(no such table"):
        assert cache.get(["a"]) == {}
    cache.put({"a": "x"})
    assert cache.get(["a"]) == {}
    assert len(cache) == 0


def test_the_length_of_a_cache_that_breaks_stops_nothing(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db")
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute("DROP TABLE replies")
    with pytest.warns(UserWarning, match="left out from now on"):
        assert len(cache) == 0


@pytest.mark.parametrize("value", ["NULL", "x'00ff'", "CAST(x'ff41' AS TEXT)"])
def test_a_damaged_reply_is_asked_for_again(tmp_path, value):
    cache = ReplyCache(tmp_path / "cache.db", max_entries=5)
    cache.put({"a": "first", "b": "other"})
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute(f"UPDATE replies SET reply = {value}, used = {value} WHERE key = 'a'")
    assert cache.get("ab") == {"b": "other"}
    cache.put({"a": "second"})
    assert cache.get("ab") == {"a": "second", "b": "other"}
    assert (cache.hits, cache.misses) == (3, 1)


def test_a_reply_that_is_not_unicode_is_not_kept_and_stops_nothing(tmp_path):
    cache = ReplyCache(tmp_path / "cache.db")
    cache.put({"a": "half \ud83d", "b": "whole", "\ud83d": "c"})
    assert cache.get("ab") == {"b": "whole"}


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="max_entries is 0; write a number >= 1"):
        ReplyCache(tmp_path / "cache.db", max_entries=0)

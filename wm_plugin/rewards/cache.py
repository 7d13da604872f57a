"""Judges' replies on disk: a prediction that was judged once is not paid for again, by any process, in any run."""

import hashlib
import json
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError

_OURS = 0x776D7263  # application_id in the file's head: "wmrc"
_LAYOUT = 1  # user_version
_AT_ONCE = 500  # variables in a statement
_BUSY = 30.0  # seconds that a process waits for another's write


class ReplyCache:
    """Replies by what was asked: an SQLite file, for several threads and processes of one machine.

    The key is everything that a request holds: model, messages (so the prompts' text, too), sampling parameters. Not the server's
    address: the same model on another port gives the same replies. Where two servers serve different weights under one name,
    give each a `tag`.

    A file that is damaged or no cache of ours is an error when it is opened: it may be a wrong path. If it breaks later (a full
    disk), a warning says so once, and the run goes on without it.

    Args:
        path: of the file; made with its folders if it is not there.
        max_entries: the least recently used go when there are more; None keeps all.
        tag: told apart from other tags.

    Raises:
        UserError: the file cannot be opened or is not a cache.
    """

    def __init__(self, path: str | Path, *, max_entries: int | None = 1_000_000, tag: str = "") -> None:
        if max_entries is not None and max_entries < 1:
            raise UserError(f"max_entries is {max_entries}; write a number >= 1, or leave it out")
        self.path, self.max_entries, self.tag = Path(path), max_entries, tag
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._broken = False
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_lock"} | {"_connection": None, "_process": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def key(self, body: Mapping[str, Any]) -> str:
        """The key of a request's body."""
        text = json.dumps([self.tag, body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """The replies that are there, by key."""
        wanted = list(keys)
        found: dict[str, str] = {}
        with self._lock:
            try:
                connection = self._open()
                for start in range(0, len(wanted), _AT_ONCE):
                    some = wanted[start : start + _AT_ONCE]
                    marks = ",".join("?" * len(some))
                    found |= connection.execute(f"SELECT key, reply FROM replies WHERE key IN ({marks})", some)
                if found and self.max_entries is not None:  # how recently matters only where some must go
                    with connection:
                        connection.executemany(
                            "UPDATE replies SET used = (SELECT MAX(used) FROM replies) + 1 WHERE key = ?",
                            [(key,) for key in found],
                        )
            except sqlite3.Error as error:
                self._give_up(error)
            self.hits += len(found)
            self.misses += len(wanted) - len(found)
        return found

    def put(self, replies: Mapping[str, str]) -> None:
        """Keep replies by key, and let the least recently used go where there are too many."""
        with self._lock:
            try:
                connection = self._open()
                with connection:
                    connection.executemany(
                        "INSERT OR REPLACE INTO replies VALUES (?, ?, (SELECT COALESCE(MAX(used), 0) FROM replies) + 1)",
                        list(replies.items()),
                    )
                    if self.max_entries is not None:
                        connection.execute(
                            "DELETE FROM replies WHERE key IN (SELECT key FROM replies ORDER BY used DESC LIMIT -1 OFFSET ?)",
                            (self.max_entries,),
                        )
            except (sqlite3.Error, UnicodeEncodeError) as error:
                self._give_up(error)

    def __len__(self) -> int:
        with self._lock:
            return int(self._open().execute("SELECT COUNT(*) FROM replies").fetchone()[0])

    @property
    def hit_share(self) -> float:
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def _open(self) -> sqlite3.Connection:
        """The process's connection: SQLite's do not survive a fork."""
        if self._broken:
            raise sqlite3.OperationalError("given up")
        if self._connection is None or self._process != os.getpid():
            try:
                self._connection, self._process = self._connect(), os.getpid()
            except (sqlite3.Error, OSError) as error:
                raise UserError(
                    f"{self.path}: cannot be used as a cache of replies ({error}); remove it, or name another file"
                ) from None
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_BUSY, check_same_thread=False)  # `_lock` sees to it
        _wait_for(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # of several processes that find no file, one makes it
            kind = connection.execute("PRAGMA application_id").fetchone()[0]
            layout = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            if tables and (kind, layout) != (_OURS, _LAYOUT):
                raise sqlite3.DatabaseError("it is another database")
            if not tables:
                connection.execute(f"PRAGMA application_id = {_OURS}")
                connection.execute(f"PRAGMA user_version = {_LAYOUT}")
                connection.execute(
                    "CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT, used INTEGER) WITHOUT ROWID"
                )
                connection.execute("CREATE INDEX recency ON replies (used)")
        return connection

    def _give_up(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            warnings.warn(f"{self.path}: the cache of replies is left out from now on ({error})", stacklevel=3)


def _wait_for(change: Callable[[], object]) -> None:
    """SQLite waits for other processes' writes by itself, but not where one of them changes the journal's mode."""
    until = time.monotonic() + _BUSY
    while True:
        try:
            change()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)

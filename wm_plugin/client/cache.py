"""Judges' replies on disk, so that no process and no later run pays twice for the same judgement."""

import hashlib
import json
import os
import sqlite3
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wm_plugin.errors import UserError

_APPLICATION = 0x776D7263  # application_id in the file's head: "wmrc"
_MAX_VARIABLES = 500  # of one statement
_TIMEOUT = 30.0  # seconds to wait for another process's write


class ReplyCache:
    """Replies by request, in an SQLite file that several threads and processes of one machine can share.

    The key is a hash of the whole request: model, messages (and so the prompts), sampling parameters. It does not contain the
    server's address, because the same model on another port gives the same replies. If two servers serve different weights
    under one name, give each cache its own `tag`.

    A file that is damaged or not a cache is an error on opening, because the path may be wrong. If the file fails later (a full
    disk), there is one warning, and the run continues without the cache. A single damaged reply counts as not cached, and
    the next `put` replaces it; a reply that is not valid Unicode is not stored.

    Args:
        path: the file. It is created, with its folders, if it does not exist.

    Raises:
        UserError: the file cannot be opened or is not a cache.
    """

    def __init__(self, path: str | Path, *, tag: str = "") -> None:
        self.path, self.tag = Path(path), tag
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._broken = False
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "tag": self.tag}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def key(self, body: Mapping[str, Any]) -> str:
        """Return the key of a request's body."""
        text = json.dumps([self.tag, body], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the cached replies by key, without the keys that are not cached."""
        wanted = list(keys)
        replies: dict[str, str] = {}
        with self._lock, self._errors_as_warning():
            for start in range(0, len(wanted), _MAX_VARIABLES):
                part = wanted[start : start + _MAX_VARIABLES]
                marks = ",".join("?" * len(part))
                rows = self._open().execute(f"SELECT key, reply FROM replies WHERE key IN ({marks})", part)
                replies |= {key: reply for key, reply in rows if isinstance(reply, str) and isinstance(key, str)}
        return replies

    def put(self, replies: Mapping[str, str]) -> None:
        """Store replies by key."""
        valid = [(key, reply) for key, reply in replies.items() if _is_unicode(key + reply)]
        with self._lock, self._errors_as_warning(), self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO replies (key, reply) VALUES (?, ?)", valid)

    def _open(self) -> sqlite3.Connection:
        """Return this process's connection; SQLite connections do not survive a fork."""
        if self._broken:
            raise sqlite3.OperationalError("the cache failed before")
        if self._connection is None or self._process != os.getpid():
            try:
                self._connection, self._process = self._connect(), os.getpid()
            except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: an impossible file name
                raise UserError(
                    f"{self.path}: cannot be used as a cache of replies ({error}); remove it, or name another file"
                ) from None
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_TIMEOUT, check_same_thread=False)  # `_lock` guards it
        try:
            connection.text_factory = _text
            _check(connection)  # first: nothing of another database is changed
            with suppress(sqlite3.OperationalError):  # another process is making the file, and does the same
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                connection.execute("BEGIN IMMEDIATE")  # only one of several processes creates the table
                if not _check(connection):
                    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    connection.execute("CREATE TABLE replies (key TEXT PRIMARY KEY, reply TEXT) WITHOUT ROWID")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _errors_as_warning(self) -> Iterator[None]:
        """Warn at the first error, and leave the cache out from then on."""
        try:
            yield
        except sqlite3.Error as error:
            if not self._broken:
                self._broken = True
                text = f"{self.path}: the cache of replies is left out from now on ({error})"
                warnings.warn(text, stacklevel=4)


def _check(connection: sqlite3.Connection) -> int:
    """Return the number of tables; raise a DatabaseError if they are another program's."""
    # In this order: another process may be making the file, which has its id and its table at once.
    tables: int = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
    kind = connection.execute("PRAGMA application_id").fetchone()[0]
    if kind != _APPLICATION and (tables or kind):
        raise sqlite3.DatabaseError("it is another database")
    return tables


def _text(raw: bytes) -> str | None:
    """Decode a text of the file; None if it is damaged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _is_unicode(text: str) -> bool:
    """Tell whether a text has no lone surrogates, which JSON can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""A local web: pages with addresses, and a search over them. Made of a number, or read from a file of the user's own.

The pages of a made web are those of the world `fictional`: one invented world of each of its specifications, so that no model
knows what they state. A number makes the same web in every process.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from wm_plugin.data.files import BROKEN, Record, open_file, parse
from wm_plugin.errors import UserError, shown
from wm_plugin.worlds.fictional.spec import SHIPPED
from wm_plugin.worlds.fictional.world import World, world_of
from wm_plugin.worlds.kit.reading import MAX_LINE
from wm_plugin.worlds.kit.search import Index, tokens

ADDRESS = "https://web.test/"  # of the pages that have none; RFC 2606 keeps the domain for tests
_SLUG, _LONGEST_URL, _LONGEST_TITLE = 60, 120, 80  # characters
_LARGEST = 1 << 20  # characters of a page in a file
_DIGITS = 9  # of a web's number
_KEPT = 4  # webs; a run has few


class Page(NamedTuple):
    """A page, in lines that are not too long to be shown."""

    url: str
    title: str
    lines: list[str]


class Web:
    """Pages by their addresses.

    Args:
        pages: (title, text, address or "") of each.
        worlds: that the pages are of, for questions about them.
    """

    def __init__(self, pages: Iterable[tuple[str, str, str]], worlds: tuple[World, ...] = ()) -> None:
        self.worlds = worlds
        self.pages: dict[str, Page] = {}
        self.by_title: dict[str, Page] = {}
        for title, text, url in pages:
            url = url or self._address(title)
            if url in self.pages:
                raise UserError(f"deepdive: two pages have the address {url}")
            lines = [part for line in text.splitlines() for part in textwrap.wrap(line, MAX_LINE) or [""]]
            self.pages[url] = Page(url, title, lines)
            self.by_title.setdefault(title, self.pages[url])
        if not self.pages:
            raise UserError("deepdive: a web needs a page")

    def _address(self, title: str) -> str:
        slug = "-".join(re.findall(r"\w+", title.casefold()))[:_SLUG] or "page"
        number, url = 1, f"{ADDRESS}{slug}"
        while url in self.pages:
            number += 1
            url = f"{ADDRESS}{slug}-{number}"
        return url

    @cached_property
    def index(self) -> Index:
        """The search over its pages; a title counts twice, as the pages of `fictional` begin with theirs."""
        return Index([f"{page.title}\n{chr(10).join(page.lines)}" for page in self.pages.values()])

    @cached_property
    def _in_order(self) -> list[Page]:
        return list(self.pages.values())

    def find(self, query: str, most: int) -> list[tuple[Page, str]]:
        """Return the pages that fit a query best, each with its line that has most of the query's words."""
        words = set(tokens(query))
        found = [self._in_order[place] for place in self.index.search(query, most)]

        def shared(line: str) -> int:
            return len(words.intersection(tokens(line)))

        return [(page, max(page.lines, key=shared, default="")) for page in found]


@lru_cache(_KEPT)
def web_of(corpus: str) -> Web:
    """Return the web of a number, or of a file by its path."""
    if corpus.isascii() and corpus.isdigit() and len(corpus) <= _DIGITS:
        worlds = tuple(world_of(spec, int(corpus)) for spec in SHIPPED)
        pages = [page for world in worlds for page in world.pages.values()]
        # the first line of a text is the title
        return Web(((page.title, page.text.partition("\n")[2].strip(), "") for page in pages), worlds)
    if not corpus.endswith((".jsonl", ".jsonl.gz")):  # rows come from datasets: they name no other file
        number = f"a number of at most {_DIGITS} digits"
        raise UserError(f"deepdive: the corpus {shown(corpus)} is neither {number} nor a file *.jsonl")
    return Web(_read(corpus))


def records(path: str) -> Iterator[Record]:
    """Yield the records of a file with one JSON object a line."""
    try:
        with open_file(Path(path)) as file:
            for row, line in enumerate(file):
                if line.strip():
                    yield parse(row, line)
    except BROKEN as error:
        raise UserError(f"deepdive: {shown(path)} cannot be read: {error}") from None


def text_of(record: Record, column: str, path: str, most: int, *, needed: bool = True) -> str:
    """Return the text in a column of a line, which may be missing unless it is `needed`."""
    value = record.value.get(column) if isinstance(record.value, dict) else None
    if value is None and not needed and isinstance(record.value, dict):
        return ""
    if not isinstance(value, str) or not (value.strip() or not needed) or len(value) > most:
        where = f"deepdive: {shown(path)}: line {record.row + 1}"
        raise UserError(f"{where}: `{column}` needs a text of at most {most:,} characters")
    return value


def _read(path: str) -> Iterator[tuple[str, str, str]]:
    for record in records(path):
        title = " ".join(text_of(record, "title", path, 10 * _LONGEST_TITLE).split())
        yield title, text_of(record, "text", path, _LARGEST), text_of(record, "url", path, _LONGEST_URL, needed=False)

"""Our own files, as `write` makes them: a `Trajectory` per line, or per row of parquet in the column `trajectory`."""

from collections.abc import Iterator
from typing import Any

from wm_plugin.data import files
from wm_plugin.data.errors import RowError
from wm_plugin.data.schema import VERSION, Fields, Source


def matches(head: files.Head) -> bool:
    if head.layout == "parquet":
        return "trajectory" in head.sample
    return isinstance(head.sample, dict) and {"turns", "context", "version"} <= head.sample.keys()


def convert(record: Any, source: Source) -> Iterator[Fields]:
    del source  # a trajectory keeps its original source
    if isinstance(record, dict) and isinstance(record.get("trajectory"), str):  # of parquet
        line = files.parse(0, record["trajectory"].encode(errors="surrogatepass"))
        if line.error is not None:
            raise line.error
        record = line.value
    version = record.get("version", VERSION) if isinstance(record, dict) else VERSION
    if type(version) is not int:  # the schema would make a number of a text
        raise RowError("`version` is no whole number", "wrong type")
    if version > VERSION:
        raise RowError(f"written by a later release (version {version}, known is {VERSION})", "later version")
    yield record

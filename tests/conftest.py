"""What is collected: the core, what depends on a host, or both; and of the hosts the one that is installed."""

import gc
import os
import re
import signal
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# what an example takes depends on what else the machine does; by day a few, the same each time, at night all and new ones
NIGHT = "WM_ALL_EXAMPLES" in os.environ
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=not NIGHT,
    max_examples=100 if NIGHT else 40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

HOSTS = ("trl", "verl", "ray", "transformers", "tokenizers")
FOLDERS = {Path(__file__).parent / f"on_{host}" for host in ("trl", "verl")}
WHOLE_FILE = re.compile(r"^pytestmark = .*mark\.host\b", re.MULTILINE)


def pytest_addoption(parser):
    group = parser.getgroup("wm_plugin")
    group.addoption("--core", action="store_true", help="without the tests marked `host`, and with the hosts blocked")
    group.addoption("--host", action="store_true", help="the tests marked `host` alone")


def pytest_configure(config):
    # behind a shell it may be ignored, and what tests start would ignore it, too
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--core"):
        sys.modules.update(dict.fromkeys(HOSTS))


def installed(host: str) -> bool:
    try:
        metadata.version(host)
    except metadata.PackageNotFoundError:
        return False
    return True


collect_ignore = [f"on_{host}" for host in ("trl", "verl") if not installed(host)]


def of_a_host(path: Path) -> bool:
    return not FOLDERS.isdisjoint(path.parents)


def pytest_ignore_collect(collection_path, config):
    """By their text, because importing takes seconds, and is not possible where the hosts are blocked."""
    if not collection_path.match("test_*.py"):
        return None
    if config.getoption("--core"):
        return True if of_a_host(collection_path) or WHOLE_FILE.search(collection_path.read_text()) else None
    if config.getoption("--host"):
        return None if of_a_host(collection_path) or "mark.host" in collection_path.read_text() else True
    return None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if of_a_host(item.path):
            item.add_marker(pytest.mark.host)
    core, host = config.getoption("--core"), config.getoption("--host")
    if core or host:
        left_out = [item for item in items if (item.get_closest_marker("host") is None) == host]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if (item.get_closest_marker("host") is None) == core]


def pytest_collection_finish():
    """What was imported stays: to search it for garbage is a third of a tiny training, as trainers call gc.collect()."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _keys_of_one_test(monkeypatch):
    """A key that is held makes every text slower to redact, and tests hold hundreds."""
    from wm_plugin.runtime import secrets  # not in the process that only hands out the tests

    monkeypatch.setattr(secrets, "_forms", set(secrets._forms))
    monkeypatch.setattr(secrets, "_pattern", secrets._pattern)


def refuse_to_skip(report, config):
    """A test that needs a host and is not marked would run nowhere on verl."""
    if report.skipped and config.getoption("--core"):
        reason = str(report.longrepr[2])
        if re.search(rf"could not import '({'|'.join(HOSTS)})\b", reason):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid} needs a host: mark it with pytest.mark.host\n{reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    refuse_to_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    refuse_to_skip(report, collector.config)
    return report

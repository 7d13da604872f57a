"""The doctor's checks of a host: its release, and the names that an adapter relies on."""

from packaging.version import Version

from wm_plugin.errors import install
from wm_plugin.hosting.checks import Check, check_hooks, check_range, installed
from wm_plugin.hosting.hooks import Hook, VersionRange

SUPPORTED = VersionRange("trl", Version("1.0"), Version("2"), "trl")


def test_a_package_is_installed_or_not():
    assert installed("pytest")
    assert not installed("no-such-package-of-anybody")


def test_a_release_is_in_the_range_or_there_is_a_way_out():
    assert check_range(SUPPORTED, "1.9") == Check("trl", "ok", "1.9 is in the supported range >=1.0,<2")
    outside = "0.24 is outside the supported range >=1.0,<2"
    assert check_range(SUPPORTED, "0.24") == Check("trl", "fail", outside, install("trl"))


def test_hooks_are_all_there_or_named():
    hooks = [Hook("json", "loads"), Hook("json", "JSONDecoder.decode", ("s",))]
    assert check_hooks("json", "2", hooks) == Check("json hooks", "ok", "all 2 found")
    lost = [*hooks, Hook("json", "load_all"), Hook("json", "dumps", ("thing",))]
    said = "json 2: json.load_all is gone; json.dumps no longer takes thing"
    assert check_hooks("json", "2", lost) == Check("json hooks", "fail", said, "install another version of json")

"""Hooks in a made-up host: what is there, what is gone, what has changed."""

import pytest
from packaging.version import Version

from wm_plugin.errors import install
from wm_plugin.hosting.hooks import Hook, VersionRange, assigned_attributes, missing_hooks

SUPPORTED = VersionRange("host", Version("1.2"), Version("2"), "host")


class Base:
    declared: int

    def __init__(self) -> None:
        self.plain = 1
        self.first, self.second = 1, 2
        self.annotated: int = 3
        other = Base
        other.not_ours = 1


class Derived(Base):
    of_the_class = 1

    def method(self, batch: int) -> None:
        self.late = batch


@pytest.mark.parametrize(
    ("path", "parameters", "missing"),
    [
        ("Derived", (), ""),
        ("Derived.method", ("batch",), ""),
        ("Derived.method", ("batch", "metrics"), "no longer takes metrics"),
        ("Derived.of_the_class", (), ""),
        ("Derived.plain", (), ""),
        ("Derived.second", (), ""),
        ("Derived.annotated", (), ""),
        ("Derived.declared", (), ""),
        ("Derived.late", (), ""),
        ("Derived.not_ours", (), "is gone"),
        ("Derived.nowhere", (), "is gone"),
        ("Nobody.method", (), "is gone"),
    ],
)
def test_a_hook_is_there_or_named(path, parameters, missing):
    lines = missing_hooks([Hook(__name__, path, parameters)])
    assert lines == ([f"{__name__}.{path} {missing}"] if missing else [])


def test_a_module_that_is_gone():
    assert missing_hooks([Hook("no.such.module", "x")]) == ["no.such.module.x is gone"]


def test_a_class_without_source_has_the_attributes_of_its_class_alone():
    assert assigned_attributes(int) == frozenset()
    assert missing_hooks([Hook("builtins", "int.real"), Hook("builtins", "int.nothing")]) == [
        "builtins.int.nothing is gone"
    ]


@pytest.mark.parametrize(("version", "inside"), [("1.1.9", False), ("1.2", True), ("1.9.1", True), ("2.0", False)])
def test_a_range_of_releases(version, inside):
    assert (version in SUPPORTED) is inside
    problem = SUPPORTED.problem(version)
    if inside:
        assert problem is None
    else:
        assert problem == f"host {version} is outside the supported range >=1.2,<2; {install('host')}"

"""The packages of the wheel: those of wm_plugin, and the folders beside it that ship inside it."""

from setuptools import find_namespace_packages, find_packages, setup

BESIDE = ("patches", "recipes")

setup(
    packages=[
        *find_packages(include=["wm_plugin", "wm_plugin.*"]),
        *(f"wm_plugin.{found}" for name in BESIDE for found in find_namespace_packages(include=[name, f"{name}.*"])),
    ],
    package_dir={"wm_plugin": "wm_plugin", **{f"wm_plugin.{name}": name for name in BESIDE}},
)

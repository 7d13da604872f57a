"""Sentences, statements and programs, with what is made of them: `worlds/cases.yaml`."""

from pathlib import Path
from typing import Any

import yaml

CASES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "worlds" / "cases.yaml").read_text(encoding="utf-8")
)

"""What `make generate` makes is what is committed."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_files_are_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert {path: path.read_text() for path in generate.generated()} == generate.generated(), "run make generate"

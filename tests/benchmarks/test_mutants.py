"""Which modules are mutated, and how."""

import yaml

from mutants import REASONS, ROOT, TARGETS, mutants, page

SOURCE = '''
"""A docstring: 1 < 2."""
def é(a: int = 1) -> bool:
    if a < 2 and True:
        raise ValueError(a + 1)
    a += 1
    return f"{a + 1}" in a
'''


def test_every_module_of_objectives_and_hosting_is_mutated_and_has_tests():
    modules = {
        f"{room}/{path.stem}" for room in ("objectives", "hosting") for path in (ROOT / "wm_plugin" / room).glob("*.py")
    }
    assert modules - {"objectives/__init__", "hosting/__init__"} == {name for name in TARGETS if "rewards" not in name}
    assert all((ROOT / path).exists() for tests in TARGETS.values() for path in tests)
    assert yaml.safe_load(REASONS.read_text()).keys() <= TARGETS.keys()


def test_mutants_by_hand():
    found = {(one.line, one.what) for one in mutants(SOURCE)}
    assert found == {
        (3, "def é(a: int = «1 → 2») -> bool:"),
        (4, "«if a < 2 and True: → not»"),
        (4, "if «a < 2 and True → Or»:"),
        (4, "if «a < 2 → LtE» and True:"),
        (4, "if a < «2 → 3» and True:"),
        (4, "if a < 2 and «True → False»:"),
        (6, "«a += 1 → Sub»"),
        (6, "a += «1 → 2»"),
        (7, '«return f"{a + 1}" in a → return None»'),
        (7, 'return «f"{a + 1}" in a → NotIn»'),
    }
    names: dict = {}
    (changed,) = [one for one in mutants("a = 1 | 2 > 0\n") if "LtE" in one.what or "GtE" in one.what]
    exec(compile(changed.tree, "x", "exec"), names)
    assert names["a"] is True


def test_the_page_counts_and_explains():
    one = {"possible": 9, "tried": 4, "survivors": ["«x | 1 → Add»"]}
    rows = {"hosting/tried": {"possible": 2, "tried": 2, "survivors": []}, "hosting/config": one}
    text = page(rows, {"hosting/config": {"«x | 1 → Add»": "x is 0"}})
    assert "changed 2 modules in 6 small ways" in text
    assert "5 changes (83%) make a test fail" in text
    assert "| `hosting/config` | 9 | 4 | 3 | 1 |\n| `hosting/tried` | 2 | 2 | 2 | 0 |\n" in text
    assert text.endswith("| `hosting/config`: `«x \\| 1 → Add»` | x is 0 |\n")

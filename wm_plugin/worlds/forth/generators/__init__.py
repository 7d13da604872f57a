"""Problems by families: a task with numbers drawn for it, a solution, one that is wrong, and tests by a reference in Python.

Every family has `EACH` problems or fewer, always the same ones. The solutions pass the tests on the real gforth
(tests/environments). Families of level 6 are held out, and none of them is a family of another level with other numbers.
"""

import random

from wm_plugin.worlds.forth.generators import advanced, held_out, loops, simple
from wm_plugin.worlds.forth.generators.drafts import Draft, Family

EACH = 11

FAMILIES: dict[str, tuple[Family, ...]] = simple.FAMILIES | loops.FAMILIES | advanced.FAMILIES | held_out.FAMILIES


def generated() -> list[tuple[str, str, Draft]]:
    """The name, the level and the draft of every problem; the first case is the example that a prompt shows."""
    problems = []
    for level, families in FAMILIES.items():
        for family in families:
            name, rng = family.__name__.replace("_", "-"), random.Random(f"forth {family.__name__}")
            known: set[tuple[object, ...]] = set()
            for _ in range(50 * EACH):
                word = f"{name}-{len(known) + 1}"
                draft = family(rng, word)
                if draft.numbers in known:
                    continue
                known.add(draft.numbers)
                problems.append((word, level, draft._replace(cases=list(dict.fromkeys(draft.cases)))))
                if len(known) == EACH:
                    break
    return problems

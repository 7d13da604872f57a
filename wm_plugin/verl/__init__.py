"""The world-model objective on verl, for its stock main: `'hydra.searchpath=[pkg://wm_plugin.recipes.verl]' +wm=echo`.

verl loads this module in each of its processes, by the entry point group `verl.plugins` or by
`VERL_USE_EXTERNAL_MODULES=wm_plugin.verl`. It runs inside `import verl`, so it is quick and imports nothing of verl: it only asks
to be called when verl's registries are imported, and puts names into them. Without a block `wm` in a run's config none of our
code runs.
"""

import importlib.util
import sys

from wm_plugin.errors import no_host

if sys.modules.get("verl") is None and importlib.util.find_spec("verl") is None:
    no_host("verl")

from wm_plugin.verl import registration

__all__: list[str] = []  # verl finds what it needs by name: see `names` and `registration`

try:
    registration.arm()
except Exception as error:
    # verl logs it at DEBUG and goes on without us
    print(f"wm: the verl plug-in failed to load: {error}", file=sys.stderr)
    raise

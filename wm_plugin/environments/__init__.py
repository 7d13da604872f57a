"""Where rollouts come from, one world a file.

Every environment is a class in the form that TRL's `environment_factory` takes, and that our verl agent loop drives too:

* `reset(**columns) -> str`: starts the episode that a dataset row describes and returns the first observation;
* every public method is a tool; it returns the next observation as text;
* `get_reward() -> float`: the outcome of the episode;
* the properties `over`, `success` and `turns`, and a mapping `metrics` where there are more figures.
"""

from wm_plugin.registry import Registry

ENVIRONMENTS = Registry(
    "environment",
    alfworld="wm_plugin.environments.alfworld:AlfworldEnvironment",
    dialogue="wm_plugin.environments.dialogue:DialogueEnvironment",
    docs="wm_plugin.environments.docs:DocsEnvironment",
    forth="wm_plugin.environments.forth:ForthEnvironment",
    grid="wm_plugin.environments.grid:GridEnvironment",
    maze="wm_plugin.environments.maze:MazeEnvironment",
    scienceworld="wm_plugin.environments.scienceworld:ScienceworldEnvironment",
    shop="wm_plugin.environments.shop:ShopEnvironment",
    sokoban="wm_plugin.environments.sokoban:SokobanEnvironment",
    sql="wm_plugin.environments.sql:SqlEnvironment",
    tau2="wm_plugin.environments.tau2:Tau2Environment",
    taxi="wm_plugin.environments.taxi:TaxiEnvironment",
    textworld="wm_plugin.environments.textworld:TextworldEnvironment",
    wordle="wm_plugin.environments.wordle:WordleEnvironment",
)

__all__ = ["ENVIRONMENTS"]

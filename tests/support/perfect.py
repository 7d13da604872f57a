"""A world model without a fault behind a real server: the rules of the world itself, which answer a simulation's questions."""

from contextlib import contextmanager

from support.openai_server import OpenAIServer
from support.world_models import RealWorld
from wm_plugin.worlds.worlds import load


@contextmanager
def perfect(name, rows, **options):
    """An `OpenAIServer` that answers for episodes of these rows of a world. `options` are the server's."""
    world = RealWorld(load(name), rows)
    with OpenAIServer(lambda body: world.answer(body["messages"]).text, **options) as server:
        yield server


def settings(server, **fields):
    """The fields of `SimulationConfig` for a server."""
    return {"url": server.base_url, "model": "world", "api_key_env": None, **fields}

"""`wm env serve`."""

from collections.abc import Iterator
from typing import Annotated, Any

from wm_plugin.cli.flags import RowFlags, WorldName, is_url
from wm_plugin.cli.numbers import Count, bounds
from wm_plugin.cli.output import prints
from wm_plugin.cli.support import find, read_block
from wm_plugin.errors import UserError
from wm_plugin.worlds.openenv_server import application, listen
from wm_plugin.worlds.openenv_server import serve as run
from wm_plugin.worlds.served import Source
from wm_plugin.worlds.wrappers.control import ControlConfig
from wm_plugin.worlds.wrappers.simulation_config import SimulationConfig


def show(result: dict[str, Any]) -> None:
    print(f"{result['environment']} at {result['url']}: up to {result['sessions']} sessions at once; Ctrl-C ends it")


@prints(show)
def serve(
    name: WorldName,
    /,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, bounds(0, 65535)] = 8000,
    sessions: Count = 256,
    idle: Annotated[float, bounds(1, 1e9)] = 300.0,
    rows: RowFlags = RowFlags(),
    simulation: str | None = None,
    simulation_model: str | None = None,
    control: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Serve a world by OpenEnv's protocol, for any trainer that has a client of it.

    Each session has a world of its own, which ends with it. reset(seed=N) begins the episode of the row with this seed; level,
    split and held_out choose among the world's rows, and row={...} gives the columns of a row. A step is one tool call. Runs
    until Ctrl-C. docs/worlds.md has clients.

    As JSON, one line when the server is ready: `environment`, `url`, `sessions`.

    Args:
        name: A world by name (wm env list), as package.module:Class, or with --simulation a file of tools.
        host: Address to listen on. Whoever reaches it may play; there is no password.
        port: Port; 0 takes a free one.
        sessions: Sessions at once. One more is refused.
        idle: Seconds after which a session that no WebSocket holds is closed.
        simulation: Play in a world model: a file of the fields of SimulationConfig, as for wm env rollout, or the URL of an
            OpenAI-compatible server.
        simulation_model: The world model's name on the server at --simulation URL.
        control: Perturb what the agent observes: a file as for wm lab control --config (a curriculum's factor is 1).
    """
    from wm_plugin.hosting.config import RunConfig  # it takes seconds: torch

    world = find(name)
    config = RunConfig(
        environment=name,
        simulation=_simulation(simulation, simulation_model),
        control=None if control is None else read_block(control, "--control", "control", ControlConfig),
    )
    environment = config.dressed(name)
    source = Source(world, environment, rows.seed, rows.level, rows.split, rows.held_out)
    rows.rows(world, 1)  # says what does not fit
    with listen(host, port) as listening:
        app = application(source, sessions=sessions, idle=idle)
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listening.getsockname()[1]}"
        yield {"environment": world.name, "url": url, "sessions": sessions}
        run(app, listening)


def _simulation(place: str | None, model: str | None) -> Any:
    if place is None or not is_url(place):
        if model is not None:
            raise UserError("--simulation-model goes with --simulation URL; a file names the model itself")
        return place and read_block(place, "--simulation", "simulation", SimulationConfig)
    if model is None:
        raise UserError("--simulation is a server; name its model with --simulation-model")
    return SimulationConfig(model=model, url=place)

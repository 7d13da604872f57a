"""Nothing that is hidden reaches an agent or a judge: a canary in each hidden field, looked for in all that they are shown.

The hosts' own rollouts are in on_trl/test_world_context.py and on_verl/test_agent_loop.py.
"""

import json

import pytest

from support.openai_server import OpenAIServer
from wm_plugin.client.server import Server
from wm_plugin.data import expand
from wm_plugin.data.building import build
from wm_plugin.data.chat import chat
from wm_plugin.data.hidden import HIDDEN
from wm_plugin.data.kinds import KINDS
from wm_plugin.data.prompts import dialogue, load, render
from wm_plugin.data.render import reward_columns, write_context
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.write import write
from wm_plugin.lab.agents.reflection import question as reflected
from wm_plugin.lab.evaluation.cases import Demonstrations
from wm_plugin.worlds.agents.acting import Situation
from wm_plugin.worlds.agents.policies import ServerPolicy

CANARY = "canary"  # in each hidden field, with the field's name
AT = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": AT}}
CONTEXT = Context(
    task="Find the key.",
    action_space=(TOOL,),
    initial_state="A hall.",
    demonstrations=("Go, then look.",),
    **{field: f"{CANARY} {field}" for field in HIDDEN},
)


def episode(task: str) -> Trajectory:
    turns = [
        Turn(
            action=Action(calls=(Call(name="look", arguments={"at": at}),)),
            observations=(Observation(kind="tool", text=f"{at}, {task}", tool="look", call=0),),
        )
        for at in ("door", "mat")
    ]
    return Trajectory(turns=tuple(turns), context=CONTEXT, task_id=task, success=True, reward=1.0)


EPISODE = episode("t1")
(FIRST, SECOND) = expand([EPISODE])


def shown(value: object) -> str:
    return json.dumps(value, default=str)


def test_the_world_model_is_shown_all_of_it():
    """Or the canaries could not be found anywhere."""
    texts = [
        write_context(CONTEXT, world=True),
        shown(dialogue(EPISODE, load("word2world"), world_context=True).messages),
    ]
    assert all(f"{CANARY} {field}" in text for text in texts for field in HIDDEN)


AGENTS = {
    "chat": lambda: chat(CONTEXT, EPISODE.turns),
    "an agent in a world model": lambda: list(Situation(EPISODE)),
    "self-reflection": lambda: reflected(EPISODE, 1, [EPISODE.turns[0]]),
    "a context as text": lambda: write_context(CONTEXT),
    "columns of judges": lambda: reward_columns(SECOND, "mcp"),
    "RWML, where the policy predicts": lambda: render(SECOND, load("rwml")).messages,
    "a domain": lambda: render(SECOND, load("mcp")).messages,
    "demonstrations without the hidden state": lambda: chat(
        Demonstrations([episode("t2")], 1).shown(EPISODE, load("word2world"), world_context=False).context
    ),
}


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_hidden_is_in(name):
    text = shown(AGENTS[name]())
    assert "door" in text or "A hall." in text or "Find the key." in text  # it shows something
    assert CANARY not in text


def test_a_policy_behind_a_server_is_not_told():
    with OpenAIServer(reply=lambda body: "I give up.") as server:
        ServerPolicy(Server(server.base_url, "m"), "seed")(EPISODE, None)
        (raw,) = server.received
    assert b"A hall." in raw
    assert CANARY.encode() not in raw


@pytest.mark.parametrize(
    ("kind", "host"),
    # verl's rows of agentworld-sft are tokens; TRL's, of the same samples, are texts
    [(kind, host) for kind in sorted(KINDS) for host in ("trl", "verl") if (kind, host) != ("agentworld-sft", "verl")],
)
def test_rows_of_each_kind_are_without_it_unless_it_is_trained_with(tmp_path, kind, host):
    source, out = tmp_path / "x.jsonl", tmp_path / f"out.{'jsonl' if host == 'trl' else 'parquet'}"
    if host == "verl":
        read_table = pytest.importorskip("pyarrow.parquet").read_table
    write([EPISODE], source)
    prompts = "mcp" if getattr(KINDS[kind], "family", "") is None else None
    build(source, kind, host, out, prompts=prompts)
    text = out.read_text() if host == "trl" else shown(read_table(out).to_pylist())
    assert (CANARY in text) is (kind == "word2world")

"""Real OpenEnv servers, of its template and with MCP tools, in verl's own tool loop and main_ppo."""

import pytest

pytest.importorskip("verl")

from support import openenv_servers as servers
from support.agent_loop import call, make_tokenizer, rollout
from support.environments import SEED, episodes
from support.scripted_on_verl import run_script
from wm_plugin.hosting.world import tool_names
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl.data import verl_rows
from wm_plugin.verl.names import INFO, ORIGINS
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.mixture import dataset_rows
from wm_plugin.worlds.worlds import load


def counted(output, tokenizer):
    """(tool, text) of the spans that count."""
    origins = [Origin.unpack(values) for values in output.extra_fields[ORIGINS]]
    spans = [span for span, weight in weigh(origins, output.extra_fields["objective"]) if weight]
    return [(span.tool, tokenizer.decode(output.response_ids[span.start : span.end])) for span in spans]


@pytest.mark.slow
def test_what_counts_is_what_each_tool_said_and_not_that_a_server_left():
    tokenizer = make_tokenizer()
    with servers.serving("support.openenv_safe:app") as safe, servers.serving("support.openenv_broken:app") as broken:
        compare, wrong = call("compare", number=41), call("compare", number="x", other=1)
        turns = [compare + wrong, call("compare", number=13), call("open-safe", code=42), "Open."]
        row = {"extra_info": {"index": 0, "seed": 42}}
        output = rollout(tokenizer, turns, {"environment": f"openenv:{safe}"}, row=row, response_length=4000)
        assert counted(output, tokenizer) == [
            ("compare", "yes"),
            ("compare", "Error: Error calling tool 'compare': 13 brings bad luck"),
            ("open-safe", '{"open":true}\nThe episode is over.'),
        ]
        assert (output.reward_score, output.extra_fields[INFO]["lost"]) == (1.0, 0)
        row = {"extra_info": {"fault": "closes"}}
        turns = [call("step", word="go"), "Gone."]
        output = rollout(tokenizer, turns, {"environment": f"openenv:{broken}"}, row=row)
        assert "The world was lost" in tokenizer.decode(output.response_ids)
        assert counted(output, tokenizer) == []
        assert (output.reward_score, output.extra_fields[INFO]["lost"]) == (0.0, 1)


@pytest.mark.nightly
def test_two_steps_in_two_servers_show_what_is_shown_without_a_host(tmp_path):
    folder = servers.template(tmp_path)
    with servers.serving("echo1.server.app:app", folder) as echo, servers.serving("support.openenv_safe:app") as safe:
        paths = {"echo": f"openenv:{echo}", "safe": f"openenv:{safe}"}
        found = [episodes(path, "verl", 1)[0] for path in paths.values()]
        rows = dataset_rows({name: {"world": path, "count": 1} for name, path in paths.items()}, seed=SEED)
        classes = [load(path).environment for path in paths.values()]
        schemas = [tool_schema(getattr(one, tool)) for one in classes for tool in tool_names(one)]
        done = run_script(
            "echo_grpo_tiny",
            tmp_path,
            {"train": verl_rows(rows, "worlds")},
            {episode.played.context.initial_state: episode.turns for episode in found},
            [schemas, *(episode.played.model_dump(mode="json") for episode in found)],
            f"wm.environment={{{', '.join(f'{name}: {chr(34)}{path}{chr(34)}' for name, path in paths.items())}}}",
            "actor_rollout_ref.rollout.multi_turn.format=hermes",
            "trainer.total_training_steps=2",
            "trainer.total_epochs=2",
            batch=2,
        )
    assert done.code == 0, done.output[-3000:]
    assert len(done.steps) == 2
    called = {turn.action.calls[0].name for episode in found for turn in episode.played.turns}
    assert len(called) > 1
    for step in done.steps:
        assert step["wm/lost"] == step["wm/env/lost"] == 0
        assert step["critic/score/mean"] == pytest.approx(sum(episode.played.reward for episode in found) / 2)
        assert step["echo/tokens"] == sum(step[f"echo/tool/{tool}/tokens"] for tool in called)
        assert all(step[f"echo/tool/{tool}/tokens"] > 0 for tool in called)
    assert done.steps[0]["echo/nll"] != done.steps[1]["echo/nll"]

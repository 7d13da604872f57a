"""Every environment in verl's own main_ppo: two training steps, and the episodes that the rollout without a host has."""

import os

import pytest

pytest.importorskip("verl")


from support.environments import OWN, SEED, episodes, new_world, world
from support.scripted_on_verl import run_script
from wm_plugin.hosting.figures import summary
from wm_plugin.hosting.world import tool_methods
from wm_plugin.verl.data import verl_rows
from wm_plugin.worlds.kit.protocol import tool_schema
from wm_plugin.worlds.mixture import dataset_rows


@pytest.mark.slow
def test_every_environment_is_trained_in_for_two_steps_and_shows_what_it_shows_without_a_host(tmp_path, monkeypatch):
    worlds = {name: name for name in OWN if not world(name, skip=False).missing()}
    assert len(worlds) >= 6
    worlds["mine"] = new_world(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    names = [*worlds.values()]
    found = {name: episodes(name, "verl", 1)[0] for name in names}
    rows = dataset_rows(
        {key: 1 if key == name else {"world": name, "count": 1} for key, name in worlds.items()}, seed=SEED
    )
    for row in rows:
        row["prompt"] = [dict(message) for message in row["prompt"]]
    schemas = [
        tool_schema(method)
        for name in names
        for method in (getattr(world(name).environment, tool) for tool in tool_methods(world(name).make()))
    ]
    script = {episode.played.context.initial_state: episode.turns for episode in found.values()}
    done = run_script(
        "echo_grpo_tiny",
        tmp_path,
        {"train": verl_rows(rows, "worlds")},
        script,
        [schemas, *(episode.played.model_dump(mode="json") for episode in found.values())],
        f"wm.environment={{{', '.join(f'{key}: {name}' for key, name in worlds.items())}}}",
        "actor_rollout_ref.rollout.multi_turn.format=hermes",
        "trainer.total_training_steps=2",
        "trainer.total_epochs=2",
        batch=len(names),
    )
    assert done.code == 0, done.output[-3000:]
    figures = [episode.played.metadata["figures"] for episode in found.values()]
    rewards = [episode.played.reward for episode in found.values()]
    assert len(done.steps) == 2
    for step in done.steps:
        assert step["wm/lost"] == 0
        assert step["echo/tokens"] > 0
        if "terminal" in worlds:
            assert step["echo/tool/run/tokens"] > 0
        assert step["critic/score/mean"] == pytest.approx(sum(rewards) / len(rewards))
        shown = {name: value for name, value in step.items() if name.startswith("wm/env/")}
        for name, value in summary(figures).items():
            assert shown[name] == pytest.approx(value), name
        assert shown["wm/env/truncated"] == 0
        assert 6 <= shown["wm/env/budget"] <= 7  # the recipe allows 7 turns, the grid itself 6
        called = sum(value for name, value in shown.items() if name.startswith("wm/env/calls/"))
        assert called > 0
    assert done.steps[0]["echo/nll"] != done.steps[1]["echo/nll"]  # the first step changed the weights

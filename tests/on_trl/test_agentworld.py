"""Qwen-AgentWorld on TRL: from rollouts through `wm data build` to what a judge is asked, byte for byte as on verl."""

import asyncio

import datasets

from support import agentworld
from wm_plugin.trl.rewards import reward_functions


def call(function, rows):
    """As TRL calls it."""
    completions = [[{"role": "assistant", "content": agentworld.output(row["target"])}] for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    host = {"completion_ids": [[0]] * len(rows), "trainer_state": None, "log_extra": None, "log_metric": None}
    prompts = [row["prompt"] for row in rows]
    return asyncio.run(function(prompts=prompts, completions=completions, **host, **columns))


def test_the_judge_is_asked_the_same_on_both_hosts(tmp_path):
    expected, scores = agentworld.measured(tmp_path)
    assert expected == agentworld.stored()
    for suffix in (".jsonl", ".parquet"):
        built = agentworld.build(tmp_path, "trl", suffix)
        rows = list(datasets.load_dataset(suffix[1:].replace("jsonl", "json"), data_files=str(built), split="train"))
        with agentworld.judge() as server:
            (function,) = reward_functions([agentworld.block(server)])
            assert call(function, rows) == [scores[row["target"]] for row in rows]
            assert agentworld.requests(server) == expected


def test_a_row_without_a_context_shows_its_prompt():
    prompt = [{"role": "system", "content": "Be a shell."}, {"role": "user", "content": "ls"}]
    with agentworld.judge() as server:
        (function,) = reward_functions([agentworld.block(server)])
        call(function, [{"prompt": prompt, "target": "a"}])
        assert server.received == [agentworld.prompt_request()]

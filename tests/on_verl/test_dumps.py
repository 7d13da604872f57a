"""verl's dumps of rollouts with our columns, read back: the prompts that our tools make of them are those of training."""

import asyncio

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.agent_loop import call, config, episode, make_tokenizer
from wm_plugin.data.chat import chat
from wm_plugin.data.readers import read
from wm_plugin.lab.evaluation.inspect import Inspector
from wm_plugin.objectives import EchoConfig
from wm_plugin.verl import dumps
from wm_plugin.verl.names import PROMPT


class Doors:
    """A corridor."""

    def reset(self, start: int) -> str:
        return f" Door {start}."

    def walk(self, steps: int) -> str:
        """Walk.

        Args:
            steps: How many.
        """
        return f"{steps} further"


class Halls(Doors):
    def listen(self) -> str:
        """Listen."""
        return "steps"


def test_the_prompts_of_a_dump_are_those_of_its_training(tmp_path):
    tokenizer, folder = make_tokenizer(), str(tmp_path / "rollouts")
    worlds = {"doors": f"{__name__}:Doors", "halls": f"{__name__}:Halls"}
    settings = config({"environment": worlds})
    prompt = [{"role": "system", "content": "Be kind.\nuser\nno"}, {"role": "user", "content": "Go."}]
    kept, rows = dumps.Prompts(), []
    for number, name in enumerate(["doors", "halls", "doors"]):
        row = {"raw_prompt": prompt, "extra_info": {"start": number, "environment": name}}
        turns = [call("walk", steps=2), "Done."]
        assert PROMPT not in asyncio.run(episode(tokenizer, turns, settings, row)).extra_fields
        settings.trainer = {"rollout_data_dir": folder}
        output = asyncio.run(episode(tokenizer, turns, settings, row))
        kept.keep(f"{number}", output.extra_fields[PROMPT])
        rows.append(output)
        del settings["trainer"]
    columns = {"uid": ["2", "0", "1"]}  # verl sorts by them
    rows = [rows[2], rows[0], rows[1]]
    columns |= kept.columns(columns["uid"], folder)
    texts = [[tokenizer.decode(getattr(row, ids), skip_special_tokens=True) for row in rows] for ids in IDS]
    PPOTrainer._write_generations(*texts, [None] * 3, [1.0] * 3, columns, folder, 1)
    found = list(read(tmp_path / "rollouts" / "1.jsonl"))
    assert [len(one.context.action_space) for one in found] == [1, 1, 2]
    inspector = Inspector(tokenizer, EchoConfig(1.0))
    for trajectory, row in zip(found, rows, strict=True):
        messages = chat(trajectory.context, trajectory.turns)
        inspection = inspector.messages(messages[:2], messages[2:], trajectory.context.action_space)
        assert inspection.ids == [*row.prompt_ids, *row.response_ids]
    # of rollouts that came before a restart nothing is known
    assert kept.columns(["0"], folder) == {}


IDS = ("prompt_ids", "response_ids")

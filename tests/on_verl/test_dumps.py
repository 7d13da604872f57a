"""verl's dumps of rollouts with our columns, read back: the prompts that our tools make of them are those of training."""

import asyncio
import json
import re
from functools import partial

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.agent_loop import call, config, episode, make_tokenizer
from support.tiny import qwen2
from wm_plugin.cli.main import main
from wm_plugin.data.chat import conversation
from wm_plugin.data.host_dumps import EVERY, FILE, RENDERED
from wm_plugin.data.readers import read
from wm_plugin.lab.evaluation.inspect import Inspector, Inspectors
from wm_plugin.lab.evaluation.one_step import evaluate
from wm_plugin.lab.evaluation.rollout_rows import inspect_row, read_rows
from wm_plugin.objectives import EchoConfig
from wm_plugin.tokens.spans import Origin
from wm_plugin.verl import dumps
from wm_plugin.verl.names import ORIGINS, PROMPT

IDS = ("prompt_ids", "response_ids")
ROWS = [
    {"role": "system", "content": "Be kind.\nuser\nno"},
    {"role": "user", "content": "Go."},
    {"role": "user", "content": ""},
]


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


def played(tokenizer, name, number, folder):
    """A rollout as our agent loop returns it, for a trainer that dumps rollouts, if there is a folder."""
    settings = config({"environment": {"doors": f"{__name__}:Doors", "halls": f"{__name__}:Halls"}})
    settings.data.apply_chat_template_kwargs = {"mood": "merry"}
    if folder:
        settings.trainer = {"validation_data_dir": folder}
    row = {"raw_prompt": ROWS, "extra_info": {"start": number, "environment": name}}
    return asyncio.run(episode(tokenizer, [call("walk", steps=2), "Done."], settings, row))


def dump(tokenizer, rows, kept, folder, step):
    """Write what verl's trainer writes of rollouts, in the order in which it sorts them."""
    texts = [[tokenizer.decode(getattr(row, ids), skip_special_tokens=True) for row in rows] for ids in IDS]
    for number, row in enumerate(rows):
        kept.keep(f"{number}", json.loads(json.dumps(row.extra_fields[PROMPT])))  # from another process
    columns = {"uid": [f"{number}" for number in range(len(rows))]}
    columns |= kept.columns(columns["uid"], folder)
    PPOTrainer._write_generations(*texts, [None] * len(rows), [1.0] * len(rows), columns, folder, step)


def test_the_prompts_of_a_dump_are_those_of_its_training(tmp_path, capsys):
    tokenizer, folder = make_tokenizer(), tmp_path / "rollouts"
    tokenizer.chat_template = "{{- mood }}" + tokenizer.chat_template
    assert PROMPT not in played(tokenizer, "doors", 0, None).extra_fields
    names = ["halls", "doors", "doors"]
    rows = [played(tokenizer, name, number, str(folder)) for number, name in enumerate(names)]
    kept = dumps.Prompts()
    dump(tokenizer, rows, kept, str(folder), 1)
    dump(tokenizer, rows[1:], dumps.Prompts(), str(folder), 2)  # after a restart, which knows only one of the worlds
    inspectors = Inspectors(partial(Inspector, tokenizer, EchoConfig(1.0)))
    (folder / "3.jsonl").write_text(
        re.sub(r'"output": ".*?[^\\\\]"', '"output": "no marks"', (folder / "1.jsonl").read_text())
    )
    assert (folder / "3.jsonl").read_text().count("no marks") == 3
    for step, own in ((1, rows), (2, rows[1:]), (3, rows)):
        found = list(read(folder / f"{step}.jsonl"))
        assert [len(one.context.action_space) for one in found] == [2, 1, 1][-len(own) :]
        for trajectory, row in zip(found, own, strict=True):
            messages, tools = conversation(trajectory), trajectory.context.action_space
            inspector = inspectors.of(trajectory.metadata[RENDERED], tools)
            assert inspector.messages(messages[:3], messages[3:], tools).ids == [*row.prompt_ids, *row.response_ids]
        found = [inspect_row(inspectors, row).ids for _, row in read_rows(folder / f"{step}.jsonl")]  # as wm masks does
        assert found == [[*row.prompt_ids, *row.response_ids] for row in own]
    assert inspectors.differ == 0
    assert [*json.loads((folder / FILE).read_text())] == [EVERY, f"{EVERY}~2"]
    # of rollouts that came before a restart nothing is known
    assert kept.columns(["0"], str(folder)) == {}
    # the figures of a policy are those of the tokens that were trained
    torch.manual_seed(0)
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 1024, "initializer_range": 0.2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **size, **ends)).eval()
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    ids = [[*row.prompt_ids, *row.response_ids] for row in rows]
    masks = [[0] * len(one) for one in ids]
    for mask, row in zip(masks, rows, strict=True):
        for span in (Origin.unpack(origin).span for origin in row.extra_fields[ORIGINS]):
            start, end = (len(row.prompt_ids) + place for place in span[:2])
            mask[start:end] = [int(span.content)] * (end - start)
    truth = evaluate(model, ids, masks).mean_nll

    def asked(*flags):
        command = ["eval", "one-step", folder / "1.jsonl", "--as", "policy", "--model", tmp_path / "policy", "--json"]
        main([*map(str, command), *flags])
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        (nll,) = (one["value"] for one in found["measures"] if (one["name"], one["by"]) == ("nll", ""))
        return nll, found["without_schemas"], found["other_tokens"]

    assert asked() == (pytest.approx(truth, rel=1e-4), 0, 0)
    # beside a Qwen2 the same files are read as its tokenizer, which cuts numbers otherwise
    qwen2(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id).save_pretrained(tmp_path / "policy")
    assert asked()[1:] == (0, 3)
    model.save_pretrained(tmp_path / "policy")
    (folder / FILE).unlink()
    without, lacking, _ = asked()
    assert lacking == 3
    assert abs(without - truth) > 1e-2

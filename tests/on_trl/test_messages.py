"""Stock TRL trains on what `wm data convert --to messages` writes: calls, results, tools, and rows that differ in their keys."""

import json

import pytest
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from support.formats import ATIF, RESPONSES
from support.templates import make_tokenizer
from support.tiny import qwen2
from wm_plugin.data.readers import read_rows
from wm_plugin.data.write import write

SAID = [{"role": "assistant", "content": "<think>so</think>no call"}]


@pytest.mark.parametrize(("kind", "template"), [("json", "qwen2_5"), ("parquet", "qwen3")])
def test_stock_trl_trains_on_what_the_agent_said(kind, template, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ATIF))
    plain = {**RESPONSES, "response": {"output": SAID}}
    (tmp_path / "b.jsonl").write_text(json.dumps(plain) + "\n" + json.dumps(RESPONSES) + "\n")
    out = tmp_path / f"out.{'parquet' if kind == 'parquet' else 'jsonl'}"
    write([row for name in ("b.jsonl", "a.json") for row in read_rows(tmp_path / name)], out, to="messages")
    tokenizer = make_tokenizer(template)
    config = SFTConfig(
        str(tmp_path / "run"),
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_length=None,
        per_device_train_batch_size=3,
        assistant_only_loss=True,
    )
    trainer = SFTTrainer(
        qwen2(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id),
        config,
        train_dataset=load_dataset(kind, data_files=str(out), split="train"),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    seen = {}
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        trained = tokenizer.decode(ids[labels != -100])
        seen[tokenizer.decode(ids)] = trained
    assert len(seen) == 3
    no_call, *acted = sorted(seen, key=lambda text: "no call" not in text)
    assert "no call" in seen[no_call]
    assert "Be kind." not in seen[no_call]
    for text in acted:
        assert '{"name": "run", "arguments": {"command": "ls"}}' in seen[text]  # the call, and its text alone
        assert "a.py" in text
        assert "a.py" not in seen[text]
        assert '"function": {"name": "run"' in text.partition("<|im_start|>user")[0]  # the tools
    trainer.train()

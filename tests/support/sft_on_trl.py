"""A tokenizer for SFT with the term. Run by torchrun, a step of it on two ranks: `sft_on_trl.py OUT.json CASES`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from datasets import Dataset
from tokenizers import AddedToken
from trl import SFTConfig

from support.agent_sft import SCHEMAS
from support.on_trl import Gradients, make_model, make_tokenizer, write_and_leave
from wm_plugin import EchoConfig
from wm_plugin.trl import WorldModelSFTTrainer

TOKENIZER = make_tokenizer()
# as `make_tokenizer` does of tools that are functions: the system's message is one token
_SYSTEM = [{"role": "system", "content": "a task"}, {"role": "user", "content": ""}]
_TEXT = TOKENIZER.apply_chat_template(_SYSTEM, tools=SCHEMAS, tokenize=False).partition("<|im_start|>user")[0]
TOKENIZER.add_tokens([AddedToken(_TEXT, special=False, normalized=False)])


class Ours(WorldModelSFTTrainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        return super().training_step(*args, **kwargs)


def main() -> None:
    out, cases = sys.argv[1], json.loads(sys.argv[2])

    results = []
    for case in cases:
        gradients = Gradients()
        args = SFTConfig(
            output_dir=str(Path(out).with_suffix("")),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            logging_steps=1,
            max_steps=1,
            learning_rate=0.0,
            **{"max_grad_norm": 1e9, "max_length": None, **case["fields"]},
        )
        trainer = Ours(
            make_model(TOKENIZER),
            args,
            train_dataset=Dataset.from_list(case["rows"]),
            processing_class=TOKENIZER,
            callbacks=[gradients],
            world_model=EchoConfig(0.7),
        )
        trainer.train()
        row = trainer.state.log_history[0]
        results.append(
            {
                "gradient": gradients.steps[0].tolist(),
                "logged": {key: value for key, value in row.items() if key.startswith("echo") or key == "loss"},
                "micro_batches": trainer.seen,
                "ranks": dist.get_world_size(),
            }
        )
    write_and_leave(out, {"cases": results})


if __name__ == "__main__":
    main()

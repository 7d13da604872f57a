"""Updates on two ranks, with the term and without it; rank 0 saves what came out.

The ranks are forks of one process that has imported everything: that is most of the work.

Usage: distributed_on_verl.py MODEL_FOLDER OUT.pt '[{"echo": {...}, "actor": {...}, "settings": {...}, "rollouts": {...}}, ...]'
"""

import json
import os
import sys
from pathlib import Path

os.environ["VERL_PLATFORM"] = "cpu"

import torch
import torch.distributed as dist
import torch.multiprocessing

from support import on_verl
from support.on_verl import make_batch, make_rollouts, make_worker, policy_loss, with_term
from wm_plugin import EchoConfig

RANKS = 2


def run_case(worker, case: dict) -> dict:
    """Gradients, rows and sums of each rank. A rank's rollouts are its part of all of them, as verl's dispatch cuts them."""
    rank = dist.get_rank()
    rollouts = make_rollouts(**case["rollouts"])
    share = len(rollouts) // RANKS
    mine = rollouts[rank * share : (rank + 1) * share]
    echo, base, settings = EchoConfig(**case["echo"]), policy_loss(**case["actor"]), case["settings"]
    stock = on_verl.update(worker, base, make_batch(mine, ranks=RANKS, **settings))
    ours = on_verl.update(worker, with_term(base, echo), make_batch(mine, echo, ranks=RANKS, **settings))
    results: list = [None] * RANKS
    rows = [[rank * share + row for row in update] for update in ours.rows]
    dist.all_gather_object(results, {"rows": rows, "sums": ours.sums, "losses": ours.losses})
    return {"stock": stock.gradients, "ours": ours.gradients, "ranks": results}


def run_rank(rank: int, port: int, model: str, out: str, cases: list[dict]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_PORT=str(port))
    worker = make_worker(Path(model))
    results = [run_case(worker, case) for case in cases]
    if rank == 0:
        torch.save(results, out)
    dist.barrier()
    dist.destroy_process_group()


def main(model: str, out: str, cases: list[dict]) -> None:
    with on_verl.rank_environment():
        port = int(os.environ["MASTER_PORT"])
    arguments = (port, model, out, cases)
    torch.multiprocessing.start_processes(run_rank, arguments, nprocs=RANKS, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))

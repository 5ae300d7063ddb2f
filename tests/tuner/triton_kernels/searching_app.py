# ruff: noqa: T201 - a program, with a kernel as they are written
"""A program under `triton.autotune` in which each process's own search would end differently; prints what it did.

`searching_app.py PREFERRED [STORE RANK]`: the block that wins its searches; the file of two ranks' store.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import triton
import triton.language as tl

PREFERRED = int(sys.argv[1])
ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if ON_CPU else f"cuda:{sys.argv[3] if sys.argv[3:] else 0}"
BLOCKS = (32, 64)


def timed(launch, quantiles=None):
    """In the place of Triton's benchmark, so that processes differ as noise would make them; slow as one is."""
    del quantiles
    launch()
    time.sleep(0.5)
    timed.count += 1
    return [0.1 if timed.count % len(BLOCKS) == BLOCKS.index(PREFERRED) else 1.0] * 3


timed.count = -1


@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in BLOCKS], key=["n"], do_bench=timed)
@triton.jit
def added(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + place, tl.load(x + place, mask=place < n, other=0.0), mask=place < n)


def main():
    if not ON_CPU:
        torch.cuda.set_device(DEVICE)
    if sys.argv[2:]:
        store = f"file://{sys.argv[2]}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=int(sys.argv[3]), world_size=2)
    chosen, launches = [], []
    for n in (100, 200):
        x, y = torch.ones(n, device=DEVICE), torch.zeros(n, device=DEVICE)
        for _ in range(3):
            added[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)  # noqa: B023
        launches.append(y.max().item())
        chosen.append(added.best_config.kwargs["BLOCK"])
    if sys.argv[2:]:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    print(json.dumps({"timed": timed.count + 1, "chosen": chosen, "launches": launches}))


main()

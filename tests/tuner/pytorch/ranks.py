"""Two ranks of one program, each a process of its own with its own copy of a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def two_ranks(program: str, *arguments: str | Path) -> Any:
    """What each rank of that program came to: `locked_rank`, or `warm_rank` for each of its words."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", f"tests.tuner.pytorch.{program}", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])

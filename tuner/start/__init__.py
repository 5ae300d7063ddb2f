"""Programs of other people's, run with something of ours in them: this folder stands before those of their modules."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RUN = "TILEWRIGHT_RUN"
"""The variable that starts `tuner/autotune/program.py`."""


def run_watched(command: Sequence[str], variable: str, instructions: Mapping[str, Any]) -> int:
    """The program's exit code, after it has ended; raises OSError where it does not start.

    `variable` says what is started in it, `instructions` what that is told: `sitecustomize.py` reads both.
    """
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, variable: json.dumps(instructions)}
    status = subprocess.run(list(command), env=environment, check=False).returncode
    return status if status >= 0 else 128 - status  # as shells say a signal

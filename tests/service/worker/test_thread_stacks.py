"""Threads of ours factorise matrices, also where the shell sets no limit to stacks: each then has 2 MiB by default."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

FACTORISED = """
import threading, numpy, tilewright.service.worker
thread = threading.Thread(target=lambda: numpy.linalg.inv(numpy.eye(300)) is not None and print("done"))
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY, reason="the hard limit of stacks is finite"
)
def test_a_thread_of_a_worker_has_room_for_a_prediction():
    command = ["sh", "-c", 'ulimit -s unlimited; exec "$0" -c "$1"', sys.executable, FACTORISED]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr

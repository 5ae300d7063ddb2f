from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.tuner.devices import host_memory
from tilewright.tuner.devices.cpu.process import Ended, failure
from tilewright.tuner.outcome import Outcome

GIB = 1 << 30
FREE = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {8 * GIB // 1024} kB\n"}
V1 = "sys/fs/cgroup/memory"


@pytest.fixture
def machine(tmp_path):
    """Makes a machine of these files; the folder that stands for its root."""

    def make(files: dict[str, str]) -> Path:
        for name, text in (FREE | files).items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 8),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "7\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "9:cpu:/\n4:memory:/docker/0123\n0::/\n",  # the host's path, seen from inside
                f"{V1}/memory.limit_in_bytes": f"{3 * GIB}\n",
                f"{V1}/memory.usage_in_bytes": f"{2 * GIB}\n",
                f"{V1}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.usage_in_bytes": f"{2 * GIB}\n",
            },
            8,
        ),
    ],
    ids=["no group", "version 2, limited above", "version 1, in a container", "version 1, unlimited"],
)
def test_what_is_left_is_the_machines_part_or_less_under_a_limit(machine, files, left):
    assert host_memory.available_bytes(machine(files)) == left * GIB


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "low 0\noom 5\noom_kill 3\n"},
        {"proc/self/cgroup": "4:memory:/a\n", f"{V1}/a/memory.oom_control": "under_oom 0\noom_kill 3\n"},
        {"proc/vmstat": "nr_free_pages 7\noom_kill 3\n"},
    ],
    ids=["version 2", "version 1", "no group"],
)
def test_kills_for_memory_are_counted(machine, files):
    assert host_memory.kills(machine(files)) == 3


def test_a_process_and_its_children_are_offered_to_the_kernel():
    script = (
        "import subprocess; from tilewright.tuner.devices.host_memory import be_killed_first; be_killed_first();"
        "subprocess.run(['cat', '/proc/self/oom_score_adj'])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(said) >= 500


def test_a_program_that_was_killed_for_memory_is_no_fault_of_its_configuration():
    assert failure(Ended(-9, "", "", lacked_memory=True), 1.0).outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(-9, "", ""), "from outside by SIGKILL"),
        (Ended(-15, "", ""), "from outside by SIGTERM"),
        (Ended(64, "", "out.y.0: cannot be written: No space left on device"), "No space left on device"),
        (Ended(1, "", "g++: fatal error: Killed signal terminated program cc1plus"), "Killed signal"),
        (Ended(None, "", "", starved_s=6.0), "for a processor"),
    ],
)
def test_what_the_surroundings_did_is_an_outcome_of_its_own(ended, words):
    found = failure(ended, 10.0)
    assert (found.outcome, words in found.log) == (Outcome.INTERRUPTED, True)


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (Ended(-11, "", ""), Outcome.LAUNCH_FAILED),
        (Ended(70, "", "out of bounds"), Outcome.LAUNCH_FAILED),
        (Ended(None, "", "", starved_s=0.5), Outcome.TIMED_OUT),
    ],
)
def test_what_a_program_did_itself_is_held_against_it(ended, outcome):
    assert failure(ended, 10.0).outcome is outcome

"""Device models: known ones, occupancy, and what a GPU says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.kernels.problem import Limits
from tilewright.tuner.compile.compilation import Compilation
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.devices import host_memory
from tilewright.tuner.devices.cpu.process import Ended, failure
from tilewright.tuner.devices.cuda import read_bandwidth
from tilewright.tuner.devices.cuda.model import limits_of, model_of, slug_of
from tilewright.tuner.devices.known_models import model_of_product, product_of
from tilewright.tuner.devices.occupancy import blocks_per_multiprocessor, occupancy
from tilewright.tuner.outcome import Outcome


@pytest.mark.parametrize(
    ("capability", "shared_kib"),
    [("7.0", 96), ("7.5", 64), ("8.6", 99), ("9.0", 227), ("10.3", 227), ("11.0", 227), ("12.0", 99), ("12.1", 99)],
)
def test_a_product_of_any_capability_has_its_limits(capability, shared_kib):
    figures = {"compute_capability": capability, "multiprocessors": "48", "memory_gib": "16"}
    model = model_of_product("A new one", product_of(figures))
    assert model.limits.compute_capability == tuple(map(int, capability.split(".")))
    assert model.limits.max_shared_bytes == shared_kib * 1024


def test_a_capability_that_there_is_not_is_refused_with_those_that_there_are():
    figures = {"compute_capability": "6.9", "multiprocessors": "48", "memory_gib": "16"}
    with pytest.raises(ValueError, match=r"must be one of 7\.0, 7\.2, .* 12\.1"):
        product_of(figures)


H200 = Limits((9, 0), 132, 150 << 30, 1024, 232448, 233472)
TURING = Limits((7, 5), 40, 16 << 30, 1024, 65536, 65536, 65536, 1024, 16)


# Expected values by the driver's cuOccupancyMaxActiveBlocksPerMultiprocessor on an H200; tests/gpu compares more.
@pytest.mark.parametrize(
    ("registers", "shared_bytes", "threads", "limits", "blocks"),
    [
        (32, 0, 1024, H200, 2),
        (33, 0, 1024, H200, 1),
        (255, 0, 256, H200, 1),
        (16, 0, 32, H200, 32),
        (16, 48000, 128, H200, 4),
        (94, 16384, 128, H200, 5),
        (32, 1024, 1024, TURING, 1),
        (64, 20000, 128, TURING, 3),
        (255, 0, 1024, H200, 0),
    ],
)
def test_blocks_on_a_multiprocessor(registers, shared_bytes, threads, limits, blocks):
    assert blocks_per_multiprocessor(registers, shared_bytes, threads, limits) == blocks


def test_occupancy_is_a_share_of_resident_warps():
    assert occupancy(32, 0, 256, H200) == 1.0
    assert occupancy(94, 16384, 128, H200) == pytest.approx(5 * 4 / 64)
    assert occupancy(255, 0, 1024, H200) == 0.0


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "WARP_SIZE": 32,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "L2_CACHE_SIZE": 62914560,
    "CLOCK_RATE": 1980000,
    "MEMORY_CLOCK_RATE": 3201000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
}


def test_an_h200_by_its_attributes():
    model = model_of("NVIDIA H200", ATTRIBUTES, 150 << 30, 4197.0)
    assert model.slug == "nvidia-h200"
    assert model.limits == H200
    assert model.datasheet_gflops["float32"] == pytest.approx(66908, rel=1e-4)  # the data sheet says 67 TFLOP/s
    assert model.datasheet_gflops["float64"] == pytest.approx(33454, rel=1e-4)  # and 34
    assert model.datasheet_gflops["fp64_tensor"] == pytest.approx(66908, rel=1e-4)  # and 67
    assert model.datasheet_gb_per_s == 4800.0


def test_unknown_products_have_a_computed_bandwidth_unknown_generations_no_peak():
    model = model_of("NVIDIA Future 1", {**ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR": 99}, 1 << 30, None)
    assert model.datasheet_gb_per_s == pytest.approx(4917, rel=1e-3)
    assert model.datasheet_gflops == {}
    assert limits_of(ATTRIBUTES, 1).compute_capability == (9, 0)


def test_slugs():
    assert slug_of("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert slug_of("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"


SOURCE = Path(read_bandwidth.__file__).with_name("read.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_it_compiles_without_spills_in_every_unrolling(arch):
    for unroll in sorted({geometry[0] for geometry in read_bandwidth.GEOMETRIES}):
        compiled = compile_now(Compilation(SOURCE, (("UNROLL", str(unroll)),), arch, "read_all", "nvrtc"))
        assert compiled.resources.spill_bytes == 0
        assert compiled.resources.registers <= 64  # 1,024 threads of a block have no more


def test_every_geometry_is_a_launch():
    for loads, threads, blocks in read_bandwidth.GEOMETRIES:
        assert loads >= 1
        assert threads % 32 == 0
        assert threads <= 1024
        assert blocks >= 1


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

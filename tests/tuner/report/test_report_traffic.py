"""Bytes by prediction and by ncu."""

import math

import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.report.rows import Traffic
from tilewright.tuner.report.traffic import (
    ASKED,
    DRAM,
    L2_SECTORS,
    Watched,
    _sorted,
    counted,
    predicted_bytes,
    read_rows,
    tile_of,
    traffic_of,
)

NAMES = ["ID", "Kernel Name", *ASKED, L2_SECTORS, *DRAM]
RAW = "\n".join(
    [
        "==PROF== Connected to process 1",
        ",".join(f'"{name}"' for name in NAMES),
        '"","","byte","byte","sector","byte","byte"',
        '"0","gemm","1,600","0","10","7","5"',
        '"1","gemm","400","100","n/a","7","5"',
        '"2","splitKreduce","1","1","1","1","1"',
        '"3","cutlass_gemm","2","2","2","2","2"',
    ]
)


def problem(kernel="gemm", size=1024, dtype="float32"):
    return catalogue().get(kernel).problem({"m": size, "n": size, "k": size}, dtype)


@pytest.mark.parametrize("kernel", ["gemm", "linear"])
def test_tiles_are_those_that_the_launch_covers_the_output_with(kernel):
    """As many blocks as tiles wherever a block computes one whole tile."""
    declared, asked = catalogue().get(kernel), problem(kernel, size=4096)
    looked_at = set()
    for name in ("tiled", "wpt", "wpt_strided", "register", "tensor3xtf32"):
        if name not in {variant.name for variant in declared.variants}:
            continue
        variant = declared.variant(name)
        for configuration in list(declared.space(asked, H200, [name]).feasible)[::97]:
            values = configuration.values
            if values.get("SPLIT_K", 1) != 1 or values.get("SHARE_K", 128) != 128:
                continue
            tile_m, tile_n = tile_of(configuration)
            tiles = math.ceil(4096 / tile_m) * math.ceil(4096 / tile_n)
            assert math.prod(variant.launch(values, asked).grid) == tiles, configuration
            looked_at.add(name)
    assert len(looked_at) >= 4


def test_the_tile_of_tensor_cores_on_hopper_follows_the_operand_in_shared_memory():
    values = {"BLOCKS_R": 2, "CONSUMERS": 2, "TILE_S": 128}
    one, other = (tile_of(Configuration.of("tensor3xtf32_sm90", values | {"SHARED_A": shared})) for shared in (1, 0))
    assert one == (128, 256)
    assert other == (256, 128)


def test_square_tiles_ask_for_one_part_in_their_width():
    asked = problem()
    whole = predicted_bytes(asked, (1, 1))
    assert whole == 2 * 1024**3 * 4
    assert predicted_bytes(asked, (32, 32)) == whole / 32
    assert predicted_bytes(problem(dtype="float64"), (1, 1)) == 2 * whole


def test_counters_are_read_from_raw_pages():
    first, second, *_ = rows = read_rows(RAW)
    assert len(rows) == 4
    assert traffic_of(first) == Traffic(asked_bytes=1600.0, l2_bytes=320.0, dram_bytes=12.0)
    assert traffic_of(second) == Traffic(asked_bytes=500.0, l2_bytes=None, dram_bytes=12.0)
    assert read_rows("==ERROR== no permission") == []


def test_launches_belong_to_configurations_in_order_and_the_rest_to_the_library():
    one, two = Configuration.of("naive", {"BLOCK_X": 32}), Configuration.of("tiled", {"TILE_WIDTH": 16})
    found = _sorted(read_rows(RAW), [Watched(problem(), [one, two], library=True)])
    assert found.steps["float32", two].asked_bytes == 500
    assert found.library == Traffic(asked_bytes=6.0, l2_bytes=96.0, dram_bytes=6.0)


def test_without_ncu_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on the PATH" in counted("GPU-none", []).missing


def test_what_ncu_says_when_it_counts_nothing_is_told(monkeypatch, tmp_path):
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho ERR_NVGPUCTRPERM\nexit 1\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = counted("GPU-none", [Watched(problem(), [])])
    assert found.steps == {}
    assert "ERR_NVGPUCTRPERM" in found.missing

"""Bytes that a launch moves: predicted from its tiles, and as ncu, NVIDIA's profiler, counts them."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm import register_space, tensor_mma_space, tensor_sm90_space
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.report.rows import Traffic

SECTOR_BYTES = 32
"""Bytes of a sector of the L1 and L2 caches (Nsight Compute's documentation, "Memory Tables")."""

ASKED = ("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_bytes_pipe_lsu_mem_global_op_ldgsts.sum")
L2_SECTORS = "lts__t_sectors_op_read.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Watched:
    """Configurations of one problem that are launched for ncu; with `library`, its call as the last."""

    problem: Problem
    configurations: Sequence[Configuration]
    library: bool = False


@dataclass(frozen=True)
class Counted:
    """The counts by configuration and the library's sum, or the reason why nothing was counted."""

    steps: Mapping[tuple[str, Configuration], Traffic]
    library: Traffic | None = None
    missing: str = ""


def tile_of(configuration: Configuration) -> tuple[int, int]:
    """Rows and columns of the output that share what is fetched from global memory; (1, 1) where nothing is shared.

    Of products only: gemm's and linear's variants.
    """
    c, variant = configuration.values, configuration.variant
    if variant == "tiled":
        return c.TILE_WIDTH, c.TILE_WIDTH
    if variant in {"wpt", "wpt_strided"}:
        return c.TILE_M, c.TILE_N
    if variant == "register":
        return register_space.tile_m(c), register_space.tile_n(c)
    if variant.endswith("_sm90"):
        return _hopper_tile(configuration)
    if variant.startswith("tensor"):
        return tensor_mma_space.tile_m(c), tensor_mma_space.tile_n(c)
    return 1, 1


def _hopper_tile(configuration: Configuration) -> tuple[int, int]:
    c = configuration.values
    if configuration.variant == TENSOR3XFP16_SM90.name:
        return c.TILE_M * c.CLUSTER, c.TILE_N
    sides = (c.TILE_S, tensor_sm90_space.tile_r(c))
    return sides if c.SHARED_A else (sides[1], sides[0])


def predicted_bytes(problem: Problem, tile: tuple[int, int]) -> float:
    """Bytes that loads ask of global memory for a product with such tiles: 2 m n k / TILE_WIDTH numbers."""
    m, n, k = (problem.shape[axis] for axis in "mnk")
    return m * n * k * problem.item_bytes * (1 / tile[0] + 1 / tile[1])


def counted(device_uuid: str, watched: Sequence[Watched]) -> Counted:
    """The counts of ncu in a process of its own, one launch each; the reason where it cannot count."""
    if shutil.which("ncu") is None:
        return Counted({}, missing="ncu (Nsight Compute) is not on the PATH")
    with tempfile.TemporaryDirectory(prefix="tilewright-ncu-") as folder:
        path = Path(folder) / "launches.json"
        path.write_text(json.dumps(_as_json(device_uuid, watched)), encoding="utf-8")
        output = ""
        # One metric that is not known here makes ncu refuse all: asynchronous copies are left out then.
        for metrics in (ASKED, ASKED[:1]):
            rows, output = _run(path, [*metrics, L2_SECTORS, *DRAM])
            if rows:
                return _sorted(rows, watched)
    return Counted({}, missing=f"ncu counted nothing: {output}")


def _as_json(device_uuid: str, watched: Sequence[Watched]) -> dict[str, object]:
    launches = [
        {
            "problem": each.problem.as_json(),
            "configurations": [c.as_json() for c in each.configurations],
            "library": each.library,
        }
        for each in watched
    ]
    return {"device": device_uuid, "launches": launches}


def _run(path: Path, metrics: Sequence[str]) -> tuple[list[Mapping[str, str]], str]:
    """The profiled launches in order, metric by metric; and the last words of ncu where there are none."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    command += ["--print-units", "base", "--metrics", ",".join(metrics)]
    command += [sys.executable, "-P", "-m", "tilewright.tuner.report.profiled", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [], f"no end after {_TIMEOUT_S:.0f} s"
    output = " ".join((done.stdout + done.stderr).split())[-300:]
    return ([], output) if done.returncode else (read_rows(done.stdout), output)


def read_rows(text: str) -> list[Mapping[str, str]]:
    """The launches of ncu's raw page as CSV: names, units, then a line a launch, behind its own messages."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    names, _units, *values = csv.reader(lines[start:])
    return [dict(zip(names, row, strict=True)) for row in values if len(row) == len(names)]


def traffic_of(row: Mapping[str, str]) -> Traffic:
    """One launch's counters; None of those that it does not have."""
    sectors = _number(row, (L2_SECTORS,))
    return Traffic(_number(row, ASKED), None if sectors is None else sectors * SECTOR_BYTES, _number(row, DRAM))


def _number(row: Mapping[str, str], names: Sequence[str]) -> float | None:
    found = []
    for name in names:
        try:
            found.append(float(row[name].replace(",", "")))
        except (KeyError, ValueError):
            continue
    return sum(found) if found else None


def _sorted(rows: Sequence[Mapping[str, str]], watched: Sequence[Watched]) -> Counted:
    traffic, rest = {}, [traffic_of(row) for row in rows]
    for each in watched:
        kernel = catalogue().get(each.problem.kernel)
        for configuration in each.configurations:
            launches = 1 + len(kernel.variant(configuration.variant).before)
            if len(rest) >= launches:
                traffic[each.problem.dtype, configuration] = _together(rest[:launches])
            rest = rest[launches:]
    library = None
    if rest and any(each.library for each in watched):
        library = _together(rest)
    return Counted(traffic, library)


def _together(launches: Sequence[Traffic]) -> Traffic:
    return Traffic(*(_sum([getattr(t, name) for t in launches]) for name in ("asked_bytes", "l2_bytes", "dram_bytes")))


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

"""Begins to watch a library when the program has imported it, and writes what was launched when the program ends."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from . import with_cupy, with_pycuda, with_triton
from .recorder import Contents, Recorder

RECORDERS: list[Recorder] = []
_drivers: list[with_pycuda.Driver] = []


def watch(module: ModuleType, instructions: str, process: int) -> None:
    """Watches the module, which was just imported. `process`: the id of the process that Python was started in."""
    name = module.__name__
    if name == "triton":
        recorder = _recorder(with_triton.Triton(), instructions)
        recorder.is_child = os.getpid() != process
        with_triton.watch(recorder)
    elif name in {"cupy", "pycuda.driver"}:
        recorder = _recorder(with_cupy.CuPy(module) if name == "cupy" else with_pycuda.PyCuda(module), instructions)
        recorder.is_child = os.getpid() != process
        if name == "cupy":
            with_cupy.watch(module, recorder)
        else:
            _drivers.append(with_pycuda.watch(module, recorder))
    else:
        importlib.import_module("pycuda.driver")  # which it is of no use without
        if name == "pycuda.compiler":
            _drivers[-1].watch_compiler(module)
        else:
            _drivers[-1].watch_arrays(module)


def _recorder(library: Any, instructions: str) -> Recorder:
    told = json.loads(instructions)
    if not RECORDERS:
        contents = Contents(Path(told["folder"]), told["limit_bytes"], lambda: _write(Path(told["folder"])))
        os.register_at_fork(after_in_child=_enter_child)
    else:
        contents = RECORDERS[0].contents
    RECORDERS.append(Recorder(library, contents))
    return RECORDERS[-1]


def _enter_child() -> None:
    for recorder in RECORDERS:
        recorder.enter_child()


def _write(folder: Path) -> None:
    """A file of this process's launches, in a folder that whoever started it reads."""
    if any(recorder.is_child for recorder in RECORDERS):
        return
    rows = []
    for recorder in RECORDERS:
        recorder.settle(wait=True)
        for function in recorder.functions.values():
            for launches in function.all:
                rows += [
                    _row(recorder, function, launches.calls, row, launches.rows.values())
                    for row in launches.rows.values()
                ]
    if rows and folder.is_dir():
        document = {"refusal": RECORDERS[0].contents.refusal, "rows": rows}
        part = folder / f"{os.getpid()}.part"
        part.write_text(json.dumps(document), encoding="utf-8")
        part.rename(folder / f"{os.getpid()}.json")


def _row(recorder: Recorder, function: Any, calls: int, row: Any, rows: Any) -> dict[str, Any]:
    of_row = calls * row.looked_at / sum(one.looked_at for one in rows)
    grid, block, shared = row.geometry
    return {
        "name": function.name,
        "library": recorder.library.name,
        **function.facts,
        "grid": [int(one) for one in grid],
        "block": [int(one) for one in block],
        "shared_bytes": int(shared or 0),
        "arguments": row.arguments,
        "constants": row.constants,
        "calls": round(of_row),
        "is_exact": len(rows) == 1,
        "time_ms": row.time_ms / row.timed * of_row if row.timed else None,
        **row.facts,
    }

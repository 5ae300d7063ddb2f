"""What a script's `run_kernel` would have computed, as the answer of a kernel that is tuned: by the CPU device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.own import own_kernel
from tilewright.tuner.adopt.run import AdoptionError
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TunerError

Folder = Callable[[Mapping[str, Any], Path], Path]
"""Makes the folder of a call inside another one; raises AdoptionError."""


def with_answers(record: Mapping[str, Any], files: Path, folder_of: Folder) -> dict[str, Any]:
    """The record with the answer in files; without an answer, and with a note, where it cannot be computed here."""
    call = record["answer_run"]
    try:
        with tempfile.TemporaryDirectory(dir=files) as temporary:
            results = _results(folder_of({**call, "answer_run": None}, Path(temporary)))
        for place, of in call["places"].items():
            if results[of] is None:
                raise AdoptionError(f"{call['kernel_name']} does not write argument {of + 1}")
            np.save(files / str(record["answer"][int(place)]), results[of])
    except TunerError as error:
        reason = str(error).strip().splitlines()[0]
        note = (
            f"the answer is what {call['kernel_name']} computes, which failed on the CPU device: it is not taken over"
        )
        return {**record, "answer": None, "verify": None, "notes": [*record["notes"], f"{note} ({reason})"]}
    note = f"the answer is what {call['kernel_name']} computes on the CPU device"
    return {**record, "notes": [*record["notes"], note]}


def _results(folder: Path) -> list[np.ndarray[Any, Any] | None]:
    """What the kernel's only configuration leaves in each of its arguments; None of one that it does not write."""
    kernel, device = own_kernel(folder), CpuDevice()
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    try:
        bench = device.bench(kernel, problem, seed=1)
        bench.close()
        written = {tensor.name: tensor.dtype_for(problem) for tensor in kernel.outputs}
        values = bench.expected.references
        return [values[a.name].value.astype(written[a.name]) if a.name in written else None for a in kernel.arguments]
    finally:
        device.close()

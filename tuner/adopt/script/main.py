"""Runs a script with Kernel Tuner's calls intercepted, and writes what they ask for into a folder.

`call<n>.json` holds the n-th call, with arrays in .npy files beside it; `end.json` how the script ended.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import io
import json
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import draws
from .functions import UnclearError
from .record import POSITIONAL, Call, FromKernel
from .stand_ins import install

ENVIRONMENT = {
    "device_name": "made-up device",
    "cuda_version": "12.0",
    "compute_capability": "80",
    "iterations": 7,
    "compiler_options": [],
}
"""The device facts that Kernel Tuner would give: scripts name files by them."""


_TEST = re.compile(r"^def test_\w*\(", re.MULTILINE)


class Result(dict[str, Any]):
    """A configuration with made-up measurements: each one that is asked for is 1."""

    def __missing__(self, name: str) -> float:
        return 1.0


class Interception:
    """Takes the place of Kernel Tuner's functions."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._count = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing was called."""
        return not self._count

    def tune_kernel(self, *given: Any, **options: Any) -> tuple[list[Result], dict[str, Any]]:
        """One result with made-up measurements, and the facts of a made-up device."""
        options |= dict(zip(POSITIONAL["tune_kernel"], given, strict=False))
        self._record("tune_kernel", options)
        tuned = {name: list(values) for name, values in (options.get("tune_params") or {}).items()}
        result = Result({name: values[0] for name, values in tuned.items() if values} | {"time": 1.0})
        return [result], {**ENVIRONMENT, "best_config": result}

    def run_kernel(self, *given: Any, **options: Any) -> list[Any]:
        """The arguments as they were: nothing is run."""
        options |= dict(zip(POSITIONAL["run_kernel"], given, strict=False))
        self._record("run_kernel", options)
        arguments = options.get("arguments") or ()
        return [
            FromKernel.of(one, options, place) if isinstance(one, np.ndarray) else one
            for place, one in enumerate(arguments)
        ]

    def python_kernel(self, *given: Any, **options: Any) -> Callable[..., Any]:
        """A kernel that can be called, and runs nothing."""
        names = ("kernel_name", "kernel_source", "problem_size", "arguments", "params")
        options |= dict(zip(names, given, strict=False))
        options["kernel_source"] = options.pop("kernel_string", options.get("kernel_source"))
        made = self.run_kernel(**options)
        written = [one for one, is_output in zip(made, options.get("outputs") or (), strict=False) if is_output]
        return lambda *_arguments: written[0] if len(written) == 1 else written

    def _record(self, function: str, options: dict[str, Any]) -> None:
        self._count += 1
        try:
            record = Call(function, options, self._limit_bytes).record(self._folder, self._count)
        except UnclearError as unclear:
            name = str(options.get("kernel_name"))
            record = {"kernel_name": name, "is_run": function == "run_kernel", "refused": str(unclear)}
        _write(self._folder / f"call{self._count}.json", record)


def main(folder: str, limit_bytes: str, script: str, *arguments: str) -> None:
    """Runs the script in its own folder."""
    out, path = Path(folder).resolve(), Path(script).resolve()
    interception = Interception(out, int(limit_bytes))
    names = {
        "tune_kernel": interception.tune_kernel,
        "run_kernel": interception.run_kernel,
        "PythonKernel": interception.python_kernel,
    }
    end: dict[str, Any] = {"stand_ins": install(names).imported}
    draws.install()
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.chdir(path.parent)
    sys.argv = [str(path), *arguments]
    with tempfile.TemporaryDirectory() as written:
        _divert_writing(Path(written), except_in=out.resolve())
        try:
            runpy.run_path(str(path), run_name="__main__")
            if interception.is_idle and _TEST.search(path.read_text(encoding="utf-8")):
                _run_tests(path)
        except SystemExit as stop:
            if stop.code:
                end["failure"] = f"it exited with {stop.code}"
        except BaseException as error:  # noqa: BLE001 - whatever somebody's script raises
            end |= _failure(error, path)
    _write(out / "end.json", end)


def _run_tests(script: Path) -> None:
    """Lets a file of tests call its own tests; assertions about made-up results do not matter."""
    if importlib.util.find_spec("pytest") is not None:
        importlib.import_module("pytest").main([str(script), "-q", "-p", "no:cacheprovider", "-p", "no:randomly"])


def _failure(error: BaseException, script: Path) -> dict[str, Any]:
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(script)]
    where = f", line {lines[-1]}" if lines else ""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return {"failure": f"{type(error).__name__}: {error}{where}", "missing": missing}


def _divert_writing(folder: Path, *, except_in: Path) -> None:
    """Sends files that the script writes elsewhere: made-up results must not replace measured ones."""
    real, diverted = builtins.open, dict[str, Path]()

    def opened(file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            key = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - no links are followed
            if set(mode) & set("wax+") and not key.startswith(f"{except_in}{os.sep}"):
                diverted.setdefault(key, folder / str(len(diverted)))
            file = diverted.get(key, file)
        return real(file, mode, *given, **options)

    builtins.open = io.open = opened


def _write(path: Path, record: dict[str, Any]) -> None:
    """The whole file or none."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, default=_number), encoding="utf-8")
    part.rename(path)


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)

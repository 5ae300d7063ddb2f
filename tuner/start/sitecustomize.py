"""Starts what watches a program that Tilewright runs: Python imports this at its start, by PYTHONPATH.

It waits until the program imports a module that is watched, and imports the module of this name that it stands before.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

FOLDER = str(Path(__file__).parent)
CAPTURE = "tilewright_capture"


class WhenImported(importlib.abc.MetaPathFinder):
    """Finds modules as usual, and calls `then` with those of these names after they were imported."""

    def __init__(self, names: Iterable[str], then: Callable[[ModuleType], None]) -> None:
        self._names, self._then = set(names), then

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a watched module, whose loader does one thing more."""
        if name not in self._names:
            return None
        self._names.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_call(module: ModuleType) -> None:
                load(module)
                self._then(module)

            spec.loader.exec_module = load_and_call  # type: ignore[method-assign]
        return spec


def _record(_torch: ModuleType) -> None:
    try:
        recording = importlib.import_module("tilewright.tuner.pytorch.recording.program")
    except ImportError as error:
        sys.stderr.write(f"tilewright record: nothing is recorded, because this Python cannot import it ({error})\n")
        return
    recording.start(os.environ["TILEWRIGHT_RECORD"])


def _capture(module: ModuleType) -> None:
    """Starts the capture from the package's folder: the program's Python need not have Tilewright."""
    if CAPTURE not in sys.modules:
        place = Path(FOLDER).parent / "capture" / "program"
        spec = importlib.util.spec_from_file_location(
            CAPTURE, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        if spec is None or spec.loader is None:
            return
        sys.modules[CAPTURE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[CAPTURE])
    importlib.import_module(f"{CAPTURE}.start").watch(module, os.environ["TILEWRIGHT_CAPTURE"], PROCESS)


def _run(_triton: ModuleType) -> None:
    try:
        program = importlib.import_module("tilewright.tuner.autotune.program")
    except ImportError as error:
        sys.stderr.write(f"tilewright run: triton.autotune stays as it is; this Python cannot import it ({error})\n")
        return
    program.start()


PROCESS = os.getpid()
WATCHED = {
    "TILEWRIGHT_RECORD": (("torch",), _record),
    "TILEWRIGHT_RUN": (("triton",), _run),
    "TILEWRIGHT_CAPTURE": (("cupy", "pycuda.driver", "pycuda.compiler", "pycuda.gpuarray", "triton"), _capture),
}
"""For each variable that asks for it: the modules to wait for, and the function to call with each."""


def _import_next() -> None:
    """Imports the sitecustomize that Python would have found."""
    sys.path[:] = [one for one in sys.path if one != FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


if __name__ == "sitecustomize":
    _import_next()
    if "TILEWRIGHT_CAPTURE" in os.environ:
        with contextlib.suppress(OSError):  # a process that outlived the capture
            Path(json.loads(os.environ["TILEWRIGHT_CAPTURE"])["folder"], "started").touch()
    for variable, (names, then) in WATCHED.items():
        if variable in os.environ:
            sys.meta_path.insert(0, WhenImported(names, then))

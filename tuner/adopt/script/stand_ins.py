"""Modules in place of `kernel_tuner`, and of `cupy` and `pycuda` where there is no GPU.

They have every name that is asked of them. Stand-ins accept anything and return further stand-ins; arrays of CuPy are
NumPy's.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Self

import numpy as np


class Anything(float):
    """An object that can be called, read and iterated over (it is empty); as a number it is 1."""

    def __new__(cls, *_args: object, **_options: object) -> Self:
        """A stand-in, whatever the arguments."""
        return super().__new__(cls, 1.0)

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __call__(self, *_args: object, **_options: object) -> Any:
        """A stand-in for the result, of which nothing is known either."""
        return Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, _key: object) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Tunable(Anything):
    """An argument of Kernel Tuner's that changes with the configuration."""


class TunablePrecision(Tunable):
    """An array in the precision that a parameter names."""

    def __init__(self, parameter: str, array: Any, *others: object, **options: object) -> None:
        super().__init__()
        self.parameter, self.array = parameter, np.asarray(array)
        self.is_plain = not others and not options


def _pinned(shape: Any, dtype: Any = np.float32, *_args: object, **_options: object) -> Any:
    return np.zeros(shape, dtype)


def _random(size: Any = None, dtype: Any = np.float64) -> Any:
    return np.asarray(np.random.random(size), dtype)  # noqa: NPY002 - the script may have seeded it


_ARRAYS = {
    "asnumpy": np.asarray,
    "empty_pinned": _pinned,
    "zeros_pinned": _pinned,
    "pagelocked_empty": _pinned,
    "pagelocked_zeros": _pinned,
    "Tunable": Tunable,
    "TunablePrecision": TunablePrecision,
    "get_best_config": lambda results, *_args, **_options: results[0],
    "get_config_string": lambda config, *_args, **_options: str(config),
}
"""Names that mean something in whichever of the modules they are."""


class StandInModule(ModuleType):
    """A module that has every name, and can be called where a function is asked of it.

    Names of `like`, a module of NumPy, are its own.
    """

    def __init__(self, name: str, like: Any = None, names: dict[str, Any] | None = None) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # so that it has submodules
        self.__dict__.update(names or {})
        self._like = like

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _ARRAYS:
            return _ARRAYS[name]
        if self._like is np.random and name in {"random", "rand", "random_sample"}:
            return _random if name != "rand" else lambda *shape, dtype=np.float64: _random(shape, dtype)
        if self._like is np and name == "random":
            return importlib.import_module(f"{self.__name__}.random")
        if self._like is not None and hasattr(self._like, name):
            return getattr(self._like, name)
        if name[:1].isupper():
            return type(name, (Anything,), {})
        return importlib.import_module(f"{self.__name__}.{name}")

    def __call__(self, *_args: object, **_options: object) -> Any:
        """A stand-in for the result, of which nothing is known either."""
        return Anything()


class StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for `packages` and all their submodules. `names` are Kernel Tuner's that do something."""

    def __init__(self, packages: Sequence[str], names: dict[str, Callable[..., Any]]) -> None:
        self._packages, self._names = packages, names
        self.imported: list[str] = []

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The spec of a stand-in; None for other modules."""
        del path, target
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stand-in for the module of that name."""
        package, _, inside = spec.name.partition(".")
        if not inside:
            self.imported.append(package)
        like: Any = np if package == "cupy" else None
        for part in inside.split(".") if inside and like is not None else ():
            like = getattr(like, part, None)
        return StandInModule(spec.name, like, self._names if package == "kernel_tuner" else None)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: a stand-in is complete when it is made."""


def install(names: dict[str, Callable[..., Any]]) -> StandIns:
    """The finder of stand-ins, which is asked first from now on; `names` are what Kernel Tuner's modules hold."""
    has_gpu = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")  # noqa: PTH110 - one call each
    packages = ["kernel_tuner"]
    for users in (("cupy", "cupyx"), ("pycuda",)):
        if not has_gpu or importlib.util.find_spec(users[0]) is None:
            packages += users
    finder = StandIns(packages, names)
    sys.meta_path.insert(0, finder)
    return finder

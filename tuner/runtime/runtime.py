"""The runtime of an application: its launchers, by problem or for every size of an axis."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.sources.folders import folders_of
from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.known.local_service import local_address
from tilewright.tuner.runtime.known.sources import Sources
from tilewright.tuner.runtime.launcher import Launcher
from tilewright.tuner.runtime.launches.devices import resolved
from tilewright.tuner.runtime.packed_launcher import PackedLauncher
from tilewright.tuner.runtime.words import named_problem
from tilewright.tuner.switches import is_on

LARGEST = 8192
"""The largest size that a launcher of every size is made for, unless its kernel or a range says another."""


class Runtime(Sources):
    """Launchers, and the sources that they get their configurations from.

    `bundle` is what `tilewright bundle` wrote; with `public_key` it must be signed by that key and, without
    `allow_older_bundle`, be no older than what was used here before, and its cubins are loaded instead of compiling.
    `url` and `key` name a service: it is asked, for at most `service_limit_s`, where there is no bundle.
    `report_misses` lets it know in the background what was not tuned. `pinned` goes before everything. `kernels` are
    those that problems are of. `only_tuned`: where there is no result, or it does not compile, UntunedError and
    LaunchError instead of the default. `shipped_records`: whether the measurements that come with the package predict
    what nobody else knows. `check_first_use`: whether a configuration that was not verified at its shape is checked
    when it is used first; None: as TILEWRIGHT_FIRST_USE says. `any_size_operators`: whether the
    operators of `tilewright.torch` take launchers of every number of rows.
    """

    def best(
        self, kernel: str, *, dtype: str = "float32", device: str | None = None, **named: int | OptionValue
    ) -> Launcher | AnySizeLauncher:
        """The launcher of a problem, axes and options by name; the same object for the same question.

        Without an axis whose size may come with the launch, such as m of gemm, or with a range of its sizes, such as
        `batch="1..64"`, it is the launcher of every size of it; with `batch_invariant=True` one row's result then
        depends neither on how many others there are nor on them.
        With a `device` ("cpu", "cuda", "cuda:1") its configuration is chosen at once, else with the first launch.
        Raises InvalidProblemError, UnknownNameError, WrongDeviceError.
        """
        declared = self.kernels.get(kernel)
        missing = [axis for axis in declared.axes if axis not in named]
        is_open = any(isinstance(named.get(axis), str) for axis in declared.axis_names)
        if is_open or (len(missing) == 1 and missing[0] in declared.launch_axes):
            return self.any_size(kernel, named, dtype=dtype, device=device)
        return self.launcher(kernel, named, dtype=dtype, device=device)

    def launcher(
        self, kernel: str, named: Mapping[str, Any], *, dtype: str = "float32", device: str | None = None
    ) -> Launcher:
        """The launcher of one problem, all of whose axes are named; raises as `best`."""
        question = kernel, dtype, device, tuple(sorted(named.items()))
        launcher = self._launchers.get(question)
        if launcher is None:
            declared = self.kernels.get(kernel)
            problem = named_problem(declared, dtype, named)
            kind = PackedLauncher if problem.options.get("packed_b") else Launcher
            launcher = kind(declared, problem, resolved(device) if device else None, self)
            if device and 0 not in dict(problem.axes).values():
                launcher.choice()
            launcher = self._launchers.setdefault(question, launcher)
        return launcher

    def any_size(
        self,
        kernel: str,
        named: Mapping[str, Any],
        *,
        dtype: str = "float32",
        device: str | None = None,
        largest: int | None = None,
    ) -> AnySizeLauncher:
        """The launcher of every size of the one axis that is not named, or has a range; the same object each time.

        `largest`: what `prepare` makes ready for unless a range says so; larger ones run too. Raises as `best`.
        """
        question = kernel, dtype, device, largest, tuple(sorted(named.items()))
        launcher = self._any_size.get(question)
        if launcher is None:
            declared = self.kernels.get(kernel)
            shape = {name: value for name, value in named.items() if name in declared.axis_names}
            options = {name: value for name, value in named.items() if name not in declared.axis_names}
            shape |= {axis: (1, largest or _largest(declared, axis)) for axis in declared.axes if axis not in shape}
            family = Family.of(declared, shape, dtype, options)

            def exact(size: int) -> Launcher:
                return self.launcher(kernel, {**named, family.axis: size}, dtype=dtype, device=device)

            launcher = AnySizeLauncher(
                declared, family, resolved(device) if device else None, self.families, exact, choices=self
            )
            launcher = self._any_size.setdefault(question, launcher)
        return launcher

    def operator_launcher(self, kernel: str, named: Mapping[str, Any], dtype: str) -> Launcher | AnySizeLauncher:
        """The launcher of one problem, or of all its sizes if the setting says so and its kernel allows that."""
        declared = self.kernels.get(kernel)
        for axis in reversed(declared.launch_axes if self._any_size_operators else ()):  # a batch before its rows
            with suppress(InvalidProblemError):  # its size is compiled in, as that of a transposed A
                if axis in named:
                    return self.any_size(kernel, {**named, axis: f"1..{_largest(declared, axis)}"}, dtype=dtype)
        return self.launcher(kernel, named, dtype=dtype)

    def _forget(self, problems: Iterable[Problem]) -> None:
        super()._forget(problems)
        self._launchers: dict[Any, Launcher] = {}
        self._any_size: dict[Any, AnySizeLauncher] = {}

    def serves_any_size(self, kernel: str) -> bool:
        """Whether operators on the kernel launch any number of rows without code of its own."""
        return self._any_size_operators and bool(self.kernels.get(kernel).launch_axes)


def best(
    kernel: str, *, dtype: str = "float32", device: str | None = None, **named: int | OptionValue
) -> Launcher | AnySizeLauncher:
    """`Runtime.best` of this process's runtime, which the environment's settings describe."""
    return default_runtime().best(kernel, dtype=dtype, device=device, **named)


@cache
def default_runtime(*, only_tuned: bool = False) -> Runtime:
    """Made when first asked for; raises BrokenBundleError, ServiceAddressError, LaunchError for a wrong setting."""
    setting = os.environ.get
    try:
        folders = folders_of(setting("TILEWRIGHT_KERNEL_FOLDERS") or "")
    except ValueError as error:
        raise LaunchError(f"TILEWRIGHT_KERNEL_FOLDERS: {error}") from error
    return Runtime(
        bundle=setting("TILEWRIGHT_BUNDLE") or None,
        public_key=setting("TILEWRIGHT_BUNDLE_KEY") or None,
        allow_older_bundle=is_on("TILEWRIGHT_ALLOW_OLDER_BUNDLE"),
        url=setting("TILEWRIGHT_URL") or local_address(),
        key=setting("TILEWRIGHT_KEY") or None,
        report_misses=is_on("TILEWRIGHT_REPORT_MISSES"),
        only_tuned=only_tuned,
        shipped_records=is_on("TILEWRIGHT_SHIPPED_RECORDS", unset="true"),
        any_size_operators=is_on("TILEWRIGHT_ANY_SIZE"),
        kernels=Catalogue.load(folders) if folders else None,
    )


def _largest(kernel: Kernel, axis: str) -> int:
    return kernel.largest_at_launch.get(axis, LARGEST)

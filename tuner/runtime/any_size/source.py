"""The runtime as a family's launcher sees it."""

from __future__ import annotations

from typing import Protocol

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.memory.room import NoRoomError


class RangeSource(Protocol):
    """The source of ranges: `runtime.Runtime`'s `families`."""

    def ranges(self, kernel: Kernel, family: Family, place: TargetDevice, /) -> Ranges:
        """The configurations of the family on a device model."""

    def is_found(self, family: Family, place: TargetDevice, /) -> bool:
        """Whether `ranges` asks no service and predicts nothing."""

    def default(self, kernel: Kernel, family: Family, place: TargetDevice, /) -> Choice:
        """The kernel's default for every size; raises LaunchError."""

    def without_workspace(self, kernel: Kernel, family: Family, place: TargetDevice, error: NoRoomError, /) -> Choice:
        """A default without a workspace at any size; raises the given error if only tuned configurations may run."""

    def first_use(self, kernel: Kernel, family: Family, place: TargetDevice, choice: Choice, /) -> FirstUse | None:
        """The check of that choice at its first launch; None where none is needed."""

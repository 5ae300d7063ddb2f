"""A call whose tensors stay in one place, so that a graph can read and write them: what goes in, comes out, changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, apart, rebuilt


class FrozenCall:
    """Tensors of its own for the arguments of a call, and those that its code makes of them.

    `key` says which calls are alike. Raises UnknownPartError for arguments that cannot be copied.
    """

    def __init__(self, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        parts = Parts()
        self.key: Hashable = apart((positional, named), parts)
        self.numbers: Sequence[Tensor] = parts.tensors
        with torch.inference_mode(mode=False):  # so that a later call may write into them in any mode
            self.inputs = [one.clone() for one in parts.tensors]
        self._given: Any = None
        self._own = Parts()
        self._after: Any = None
        self._made: list[Tensor] = []
        self._changed: list[int] = []

    def put(self, numbers: Sequence[Tensor]) -> None:
        """Copies them into the inputs."""
        for own, new in zip(self.inputs, numbers, strict=True):
            own.copy_(new)

    def run(self, code: Callable[..., Any]) -> Any:
        """The code's result for arguments that are made of the inputs."""
        self._given, self._own = rebuilt(self.key, self.inputs), Parts()
        apart(self._given, self._own)
        return code(*self._given[0], **self._given[1])

    def finish(self, result: Any, versions: Sequence[int]) -> None:
        """Keeps what the last run has made and changed; raises UnknownPartError where it cannot be copied.

        `versions`: those of the inputs before it.
        """
        after = Parts(self._own)
        self._after = apart((result, self._given), after)
        self._made = after.tensors[len(self.inputs) :]
        self._changed = [at for at, one in enumerate(self.inputs) if one._version != versions[at]]  # noqa: SLF001 - as in shared.py

    def versions(self) -> list[int]:
        """How often each input was changed."""
        return [one._version for one in self.inputs]  # noqa: SLF001 - as above

    @property
    def changes_shape(self) -> bool:
        """Whether what is left in the arguments makes the next call with them another kind of call."""
        parts = Parts()
        return apart(self._given, parts) != self.key

    def replayed(self, parts: Parts, replay: Callable[[], object]) -> Any:
        """The result for a call whose arguments have these parts, whose objects are then as the code leaves them."""
        self.put(parts.tensors)
        replay()
        for at in self._changed:
            parts.tensors[at].copy_(self.inputs[at])
        made = [one.clone() for one in self._made]
        return rebuilt(self._after, [*parts.tensors, *made], list(parts.objects))[0]

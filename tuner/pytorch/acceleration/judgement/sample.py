"""The call by which a model is judged: its arguments, and what calls change, which is put back before each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, apart, has_state, rebuilt


class Sample:
    """The sample's arguments: called with a model or a form of it, it gives the model's result for them.

    Where calls change something (a cache among the arguments, a tensor in place, a buffer), each has arguments of its
    own, as they were in the beginning, and the result has them beside the output.
    """

    def __init__(self, given: Any) -> None:
        self.positional: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        if isinstance(given, Mapping):
            self.named = dict(given)
        else:
            self.positional = tuple(given) if isinstance(given, tuple | list) else (given,)
        self.changes: list[str] = []
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._tensors: list[Tensor] = []
        self._form: Any = None
        self._ready: Any = None

    @property
    def has_state(self) -> bool:
        """Whether calls change something."""
        return bool(self.changes)

    def learn(self, model: nn.Module) -> Any:
        """The model's result, from a call that finds out what calls change."""
        parts = Parts()
        form = apart((self.positional, self.named), parts, strict=False)
        buffers = {name: (one, one.clone()) for name, one in model.named_buffers()}
        with torch.inference_mode(mode=False):  # so that changes are counted
            own = [one.clone() for one in parts.tensors]
        versions = [one._version for one in own]  # noqa: SLF001 - as in shared.py
        given = rebuilt(form, own)
        result = model(*given[0], **given[1])
        self._kept = [(one, before) for one, before in buffers.values() if not torch.equal(one, before)]
        self.changes = [f"the buffer {name}" for name, two in buffers.items() if not torch.equal(*two)]
        changed = [at for at, one in enumerate(own) if one._version != versions[at]]  # noqa: SLF001 - as above
        if changed or has_state(parts):
            self._form, self._tensors = form, own
            self._kept += [(own[at], parts.tensors[at]) for at in changed]
            self.changes.append("its arguments")
        self.put_back()
        return (result, given) if self._form is not None else result

    def put_back(self) -> None:
        """Puts everything back as before the calls, and makes the next call's arguments ready."""
        if self._kept:
            with torch.inference_mode():
                for one, before in self._kept:
                    one.copy_(before)
        if self._form is not None:
            self._ready = rebuilt(self._form, self._tensors)

    def __call__(self, model: Callable[..., Any]) -> Any:
        """The model's result for the sample, which is put back as it was where calls change it."""
        if not self.changes:
            return model(*self.positional, **self.named)
        if self._form is None:
            self.put_back()
            return model(*self.positional, **self.named)
        if self._ready is None:
            self.put_back()
        given, self._ready = self._ready, None
        result = model(*given[0], **given[1])
        return result, given

"""A model's `forward` that replays itself as a CUDA graph, and its call, whose tensors stay in one place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.tuner.pytorch.acceleration.graphs.graph_capture import CaptureError, captured
from tilewright.tuner.pytorch.acceleration.installation.quantised import is_current, layers_with
from tilewright.tuner.pytorch.acceleration.judgement import outputs
from tilewright.tuner.pytorch.acceleration.judgement.sample import Sample
from tilewright.tuner.pytorch.acceleration.judgement.standard import Standard
from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, UnknownPartError, apart, rebuilt
from tilewright.tuner.pytorch.operator import PLAIN, is_watched
from tilewright.tuner.pytorch.plans import is_off


def graph_of(
    model: nn.Module, run: Sample, standard: Standard, compiled: Callable[..., Any] | None = None
) -> GraphForward:
    """A CUDA graph of the model as it is now, whose replays are right; raises CaptureError, or PyTorch's own errors.

    `compiled`: what torch.compile made of the model, which is captured instead.
    """
    forward = GraphForward(model, vars(model).get("forward"))
    differs = max(outputs.tolerance_of(standard.expected), standard.tolerance or 0.0)
    run(lambda *given, **named: forward.capture(given, named, differs, compiled))
    verdict = standard.verdict(run(forward))
    if not verdict.is_right:
        raise CaptureError(f"a replay is {verdict}")
    return forward


class GraphForward:
    """The `forward` of a whole model. `before`: the instance's own forward, or None; `is_on`: it replays.

    It replays for tensors that lie as those of the capture, of its thread and its stream, while every parameter and
    buffer is where it was, and weights that it has as whole numbers are what they were; otherwise, with gradients and
    in training, the model runs as before. Outputs are copies, and what calls change in their arguments is changed in
    those that were given. A copy, and what is read from a file, has no graph.
    """

    def __init__(self, model: nn.Module, before: Callable[..., Any] | None = None) -> None:
        self.model, self.is_on = model, False
        self._stand_before(before)

    def _stand_before(self, before: Callable[..., Any] | None) -> None:
        self.before, self._forward = before, before or type(self.model).forward.__get__(self.model)

    def __reduce__(self) -> tuple[type[GraphForward], tuple[nn.Module, Callable[..., Any] | None]]:
        """Pickles the model without its graph."""
        return GraphForward, (self.model, self.before)

    def put(self) -> None:
        """Makes it the model's forward; the model must have the same replacements as at the capture."""
        self._stand_before(vars(self.model).get("forward"))
        self.model.forward = self

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """The model's result, from the graph where it was captured for such arguments."""
        parts = Parts()
        if self.is_on and self._is_captured(positional, named, parts):
            return self._call.replayed(parts, self._graph.replay)
        return self._forward(*positional, **named)

    def capture(
        self,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        tolerance: float,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        """Captures such a call, and compares replays with other numbers; raises CaptureError, or what PyTorch does.

        `compiled`: what torch.compile made of the model, to be captured instead of the model's own code.
        """
        self._places = [
            (place, name, one, one.data_ptr())
            for module in self.model.modules()
            for place in (module._parameters, module._buffers)  # noqa: SLF001 - no public name has them without a call each
            for name, one in place.items()
            if one is not None
        ]
        self._buffers = [(one, one.clone()) for one in self.model.buffers()]
        self._quantised = layers_with(self.model)
        self._thread, self._stream = threading.get_ident(), torch.cuda.current_stream()
        code = self._forward if compiled is None else compiled
        self._code = code  # kept, with the tensors that it has
        try:
            self._call = call = FrozenCall(positional, named)
            given = list(call.numbers)
            changed = [one.flip(-1) if one.dim() else one for one in given]
            if all(torch.equal(one, other) for one, other in zip(given, changed, strict=True)):
                raise CaptureError("no argument could be changed, so that replays cannot be checked")
            versions: list[int] = []

            def before() -> None:
                self._put_back()
                call.put(given)
                versions[:] = call.versions()

            self._graph, result = captured(lambda: call.run(code), is_compiled=compiled is not None, before=before)
            call.finish(result, versions)
        except UnknownPartError as error:
            raise CaptureError(f"what goes in or comes out{error}; give or return tensors in its place") from error
        self.is_on = True
        for numbers in (changed, given, changed):
            self._check(numbers, tolerance)
        self._put_back()

    @property
    def remark(self) -> str:
        """A remark on calls that are not replayed though their arguments are the same objects; empty without such."""
        if not self._call.changes_shape:
            return ""
        return (
            "What a call leaves in its arguments, such as a cache that grows, makes the next call another one: the "
            "graph is replayed for the sample's lengths. A cache of a fixed size (StaticCache) stays alike."
        )

    def _put_back(self) -> None:
        with torch.inference_mode():
            for one, before in self._buffers:
                one.copy_(before)

    def _check(self, numbers: Sequence[Tensor], tolerance: float) -> None:
        results = []
        for code in (self._code, self):
            self._put_back()
            given = rebuilt(self._call.key, [one.clone() for one in numbers])
            results.append((code(*given[0], **given[1]), given))
        if not outputs.difference(results[1], results[0]) <= tolerance:
            raise CaptureError("a replay with other numbers computes something else")

    def _is_captured(self, positional: tuple[Any, ...], named: dict[str, Any], parts: Parts) -> bool:
        is_asked_otherwise = torch.is_grad_enabled() or self.model.training or is_watched() or is_off()
        if is_asked_otherwise or torch.cuda.is_current_stream_capturing():
            return False
        try:
            is_alike = apart((positional, named), parts) == self._call.key
        except UnknownPartError:
            return False
        return (
            is_alike
            and all(type(one) in PLAIN for one in parts.tensors)
            and threading.get_ident() == self._thread
            and torch.cuda.current_stream() == self._stream
            and all(place.get(name) is one and one.data_ptr() == at for place, name, one, at in self._places)
            and all(map(is_current, self._quantised))
        )


class FrozenCall:
    """A call whose arguments, and the tensors that its code makes of them, have memory of their own.

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
        """Copies the arguments into the graph's inputs."""
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
        """Whether the call leaves its arguments in such a state that the next call with them is another kind."""
        parts = Parts()
        return apart(self._given, parts) != self.key

    def replayed(self, parts: Parts, replay: Callable[[], object]) -> Any:
        """The result for a call whose arguments have these parts; leaves the arguments as the code does."""
        self.put(parts.tensors)
        replay()
        for at in self._changed:
            parts.tensors[at].copy_(self.inputs[at])
        made = [one.clone() for one in self._made]
        return rebuilt(self._after, [*parts.tensors, *made], list(parts.objects))[0]

"""The choice of the library's fastest call for a problem, in the L2 state that ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.library import cudnn
from tilewright.tuner.library.cublas import WORKSPACE_BYTES, Cublas, LibraryCall, has_call
from tilewright.tuner.library.cublaslt import CublasLt
from tilewright.tuner.library.layer import LayerEnd, WideWeights, has_narrow_weights, is_layer
from tilewright.tuner.library.names import CUBLASLT
from tilewright.tuner.library.place import Addressed, LibraryPlace
from tilewright.tuner.library.product import fused_product, product_of
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.verify import speaks_for_library
from tilewright.tuner.outcome import L2, Executable, Verification

ROUNDS = 5
"""Rounds of one sample each, in turn. Enough to order calls that differ by more than noise, which is all that
matters."""

STILL_IN = 1.25
"""A call whose first time is this many times the best's is not timed again."""


LEVEL = 1.01
"""The ratio to the least median that still counts as equal: a few samples do not tell more."""


class TimesCalls(Protocol):
    """The part of a bench that the choice needs."""

    def verify_timed(self, executable: Executable) -> Verification:
        """One launch with the inputs that are timed, compared with the reference."""

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """See `device.Bench`."""


class HasCalls(TimesCalls, Protocol):
    """A bench on a GPU whose problem the library may compute."""

    kernel: Kernel
    problem: Problem
    scalars: dict[str, float]

    @property
    def device(self) -> LibraryPlace:
        """The context that the bench is in."""

    @property
    def arrays(self) -> Addressed:
        """The problem's arrays in the library's memory."""

    def executable(self, enqueue: Callable[[], None]) -> Executable:
        """The executable that makes this call once, for `verify` and `sample`."""

    def forget(self, executable: Executable) -> None:
        """Frees what the bench holds for it."""


@dataclass
class Candidate:
    """A call that can be launched, with its times so far."""

    call: LibraryCall
    executable: Executable = field(repr=False)
    times_ms: list[float] = field(default_factory=list)


def fastest(bench: TimesCalls, candidates: Iterable[Candidate], l2: L2) -> Candidate | None:
    """The candidate of the least median time, of those that compute the right result; None where none does.

    One that can be made by its name goes before what is hardly faster. One that fails is left out; a failure that broke
    the context is raised.
    """
    timed = [candidate for candidate in candidates if _sampled(bench, candidate, l2, 2)]
    running: list[Candidate] = []
    for candidate in sorted(timed, key=lambda one: one.times_ms[0]):  # what is far behind is not verified
        if running and candidate.times_ms[0] > STILL_IN * running[0].times_ms[0]:
            break
        if _is_right(bench, candidate):
            running.append(candidate)
    for _ in range(ROUNDS if len(running) > 1 else 0):
        running = [candidate for candidate in running if _sampled(bench, candidate, l2, 1)]
    ranked = sorted(running, key=lambda candidate: statistics.median(candidate.times_ms))
    limit_ms = LEVEL * statistics.median(ranked[0].times_ms) if ranked else 0.0
    named = (one for one in ranked if one.call.is_named and statistics.median(one.times_ms) <= limit_ms)
    return next(named, ranked[0] if ranked else None)


def _is_right(bench: TimesCalls, candidate: Candidate) -> bool:
    """Whether it is, or nobody can tell."""
    if not candidate.call.is_comparable:
        return True
    try:
        verification = bench.verify_timed(candidate.executable)
    except TrialFailure as failure:
        if failure.sticky:
            raise
        return False
    return verification.is_right or not speaks_for_library(verification)


def _sampled(bench: TimesCalls, candidate: Candidate, l2: L2, count: int) -> bool:
    """Whether it gave `count` samples; only the last is kept, as those before warm up."""
    try:
        samples = bench.sample(candidate.executable, l2, count)
    except TrialFailure as failure:
        if failure.sticky:
            raise
        return False
    candidate.times_ms.append(samples[-1])
    return statistics.is_time(samples[-1])


def has_library(kernel: str) -> bool:
    """Whether an installed library computes what this kernel does, or its beginning."""
    return cudnn.is_available() if kernel == "conv2d" else has_call(kernel)


def has_same_result(kernel: str) -> bool:
    """Whether an installed library's result is what this kernel's should be."""
    return has_library(kernel) and not has_narrow_weights(kernel)


class CudaLibrary:
    """cuBLAS and cuBLASLt, or cuDNN, for one bench's problem. Made and closed in the bench's context."""

    def __init__(self, bench: HasCalls) -> None:
        self._bench = bench
        self._convolves = bench.kernel.name == "conv2d"
        self._memory: Any = bench.device.allocate(cudnn.WORKSPACE_BYTES if self._convolves else WORKSPACE_BYTES)
        place = bench.device.stream.handle, int(self._memory)
        self._libraries: list[Any] = [cudnn.Cudnn(*place)] if self._convolves else [Cublas(*place), CublasLt(*place)]
        self._weights: WideWeights | None = None  # made when the first call is
        self._choice: tuple[LibraryCall | None] | None = None

    def candidates(self) -> list[Candidate]:
        """Every call of the library for this problem, as executables of the bench."""
        return [Candidate(call, self._bench.executable(call.enqueue)) for call in self._calls()]

    def plain(self) -> LibraryCall | None:
        """The call that an application would make; None where the library has none."""
        return next(self._calls(), None)

    def own_choice(self) -> LibraryCall | None:
        """The first call of cuBLASLt's heuristic, which launchers of any size make; None where cuBLASLt has no call."""
        return next((call for call in self._calls() if call.is_named and call.name.startswith(CUBLASLT)), None)

    def _calls(self) -> Iterator[LibraryCall]:
        """The library's calls, each made when it is asked for."""
        bench = self._bench
        kernel, problem, addresses = bench.kernel, bench.problem, bench.arrays.addresses
        if self._convolves:
            end = LayerEnd(bench.device, kernel, problem, addresses).after
            yield from self._libraries[0].calls(problem, addresses, end)
            return
        if has_narrow_weights(kernel.name):
            self._weights = self._weights or WideWeights(bench.device, kernel, problem, addresses)
            product = product_of(problem, addresses | {"W": self._weights.address}, bench.scalars)
            for library in self._libraries:
                yield from map(self._weights.named, library.calls(product))
            return
        if is_layer(kernel) and not problem.is_half:  # which would be rounded twice: what is not fused is no baseline
            end = LayerEnd(bench.device, kernel, problem, addresses).after
            for library in self._libraries:
                yield from map(end, library.calls(product_of(problem, addresses, bench.scalars)))
        fused = fused_product(problem, addresses, bench.scalars)
        for library in self._libraries if fused is not None else ():
            yield from library.calls(fused)

    def fastest(self) -> LibraryCall | None:
        """The fastest call that is right, chosen on the first use; None where no call is right."""
        if self._choice is None:
            candidates = self.candidates()
            chosen = fastest(self._bench, candidates, self._bench.kernel.l2_of(self._bench.problem))
            self._choice = (None if chosen is None else chosen.call,)
            for candidate in candidates:
                self._bench.forget(candidate.executable)
        return self._choice[0]

    def close(self) -> None:
        """Frees handles and workspace."""
        while self._libraries:
            self._libraries.pop().close()
        del self._memory, self._weights

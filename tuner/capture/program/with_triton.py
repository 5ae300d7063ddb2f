"""Watches Triton: launches of functions under `triton.jit`, plain, under `triton.autotune` and `triton.heuristics`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, NamedTuple

from .recorder import Function, Recorder
from .triton_facts import OPTIONS, Frame, bound_arguments, function_facts, grid_samples, grid_sizes, word
from .triton_source import UnclearSourceError, whole_source

WARPS = 4
"""Triton's own `num_warps`."""

SAMPLE = 16384
"""Elements of an array that are kept of each kind of launch, at equal distances: what such inputs look like."""


class HostEvent:
    """A moment of the host's clock, by which interpreted launches are timed."""

    def record(self) -> None:
        """Notes the present time."""
        self.at_s = time.perf_counter()


class Triton:
    """The library as the recorder needs it. Arrays are PyTorch's."""

    name = "Triton"
    errors: tuple[type[Exception], ...] = (RuntimeError,)
    is_interpreted = False

    @property
    def torch(self) -> Any:
        """PyTorch, which a program that launches Triton functions has imported."""
        return sys.modules["torch"]

    def event(self) -> Any:
        """A new event."""
        return HostEvent() if self.is_interpreted else self.torch.cuda.Event(enable_timing=True)

    def is_over(self, event: Any) -> bool:
        """Whether the GPU has passed the event."""
        return self.is_interpreted or bool(event.query())

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """The milliseconds between two events."""
        return (end.at_s - start.at_s) * 1e3 if isinstance(start, HostEvent) else float(start.elapsed_time(end))

    def synchronize(self) -> None:
        """Waits for the GPU."""
        if not self.is_interpreted:
            self.torch.cuda.synchronize()

    def is_capturing(self) -> bool:
        """Whether launches become a graph, which has no times and no contents."""
        return not self.is_interpreted and bool(self.torch.cuda.is_current_stream_capturing())

    def described(self, argument: Any) -> dict[str, Any]:
        """The argument's description: an array with strides in elements; a number with the type that Triton passes."""
        if isinstance(argument, self.torch.Tensor):
            return {
                "kind": "tensor",
                "bytes": _elements(argument) * argument.element_size(),
                "dtype": str(argument.dtype).rpartition(".")[2],
                "shape": tuple(argument.shape),
                "strides": tuple(argument.stride()),
            }
        if argument is None:
            return {"kind": "none"}
        if isinstance(argument, bool):
            return {"kind": "scalar", "dtype": "uint8", "value": int(argument)}
        if isinstance(argument, int):
            dtype = "int32" if -(2**31) <= argument < 2**31 else "int64" if argument < 2**63 else "uint64"
            return {"kind": "scalar", "dtype": dtype, "value": argument}
        if isinstance(argument, float):
            return {"kind": "scalar", "dtype": "float32", "value": argument}
        return {"kind": type(argument).__name__}

    def contents(self, argument: Any) -> Any:
        """The bytes of memory from an array's first element to its last; None for an argument that is not an array."""
        if not isinstance(argument, self.torch.Tensor):
            return None
        flat = self._flat(argument)
        return flat.cpu().contiguous().view(self.torch.uint8).numpy().copy()

    def constant(self, _owner: Any, _symbol: str) -> Any:
        """Always None: Triton has no constant memory."""
        return

    def sample(self, argument: Any) -> Any:
        """Some of an array's elements; None for other arguments, and for types that NumPy does not have."""
        if not isinstance(argument, self.torch.Tensor) or argument.is_complex() or not argument.numel():
            return None
        flat = self._flat(argument)[:: max(1, -(-_elements(argument) // SAMPLE))]
        if argument.dtype in {self.torch.float64, self.torch.float32}:
            return flat.cpu().numpy().copy()
        if argument.dtype.is_floating_point:
            return flat.float().cpu().numpy()
        return (flat.view(self.torch.uint8) if argument.dtype is self.torch.bool else flat).cpu().numpy().copy()

    def _flat(self, argument: Any) -> Any:
        return self.torch.as_strided(argument.detach(), (_elements(argument),), (1,))


def _elements(tensor: Any) -> int:
    """Elements of memory from the first to the last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride())  # noqa: B905 - Python 3.9 has no strict
    return 1 + sum(int((size - 1) * stride) for size, stride in steps)


class Calls(threading.local):
    """The call of Triton's that this thread is in. `is_tuning`: launches are those of Triton's own search."""

    frame: Frame | None = None
    is_tuning = False


class Launch(NamedTuple):
    """A launch on its way to Triton: the function, Triton's own `run`, and its arguments."""

    function: Any
    real: Any
    args: tuple[Any, ...]
    grid: Any
    kwargs: dict[str, Any]

    def run(self, *, warmup: bool = False) -> Any:
        """The result of the function's launch by Triton."""
        return self.real(self.function, *self.args, grid=self.grid, warmup=warmup, **self.kwargs)

    @property
    def given(self) -> list[str]:
        """The names of the arguments that the call passes."""
        return [*self.function.arg_names[: len(self.args)], *self.kwargs]


class Watcher:
    """Takes the place of the methods that launch."""

    def __init__(self, recorder: Recorder, library: Triton) -> None:
        self.recorder, self.library, self.calls = recorder, library, Calls()
        self._functions: dict[Any, Function] = {}
        self._kept: list[Any] = []  # so that no other object gets the address of one

    def watch_decorators(self, autotuner: Any) -> None:
        """Watches the Autotuner and Heuristics of `triton.runtime.autotuner`."""
        calls, tuner, heuristics = self.calls, autotuner.Autotuner, autotuner.Heuristics
        bench, run, run_heuristics = tuner._bench, tuner.run, heuristics.run  # noqa: SLF001

        def benched(this: Any, *args: Any, **kwargs: Any) -> Any:
            before, calls.is_tuning = calls.is_tuning, True
            try:
                return bench(this, *args, **kwargs)
            finally:
                calls.is_tuning = before

        def in_frame(real: Any, note: Any) -> Any:
            def called(this: Any, *args: Any, **kwargs: Any) -> Any:
                before = calls.frame
                frame = calls.frame = before or Frame([*this.arg_names[: len(args)], *kwargs])
                note(frame, this)
                try:
                    return real(this, *args, **kwargs)
                finally:
                    calls.frame = before

            return called

        def note_tuner(frame: Frame, this: Any) -> None:
            frame.tuner = this

        def note_heuristics(frame: Frame, this: Any) -> None:
            frame.heuristics = {**frame.heuristics, **this.values}

        tuner._bench, tuner.run = benched, in_frame(run, note_tuner)  # noqa: SLF001
        heuristics.run = in_frame(run_heuristics, note_heuristics)

    def watch_functions(self, kind: Any, *, is_interpreted: bool) -> None:
        """Watches the launches of `kind`, which is JITFunction or InterpretedFunction."""
        real, calls = kind.run, self.calls

        def run(this: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup or calls.is_tuning:
                return real(this, *args, grid=grid, warmup=warmup, **kwargs)
            key = tuple([_key(one) for one in args]) + tuple([_key(one) for one in kwargs.values()])
            tuner = calls.frame.tuner if calls.frame else None
            try:
                function = self._functions[id(this), id(tuner)]
            except KeyError:
                function = self._functions[id(this), id(tuner)] = self._function(this)
                self._kept.append((this, tuner))
            launches = function[key]
            left = launches.left
            if left:
                launches.left = left - 1
                return real(this, *args, grid=grid, warmup=warmup, **kwargs)
            self.library.is_interpreted = is_interpreted
            return self._look(launches, function, Launch(this, real, args, grid, kwargs))

        kind.run = run

    def _function(self, this: Any) -> Function:
        told = function_facts(this, self.calls.frame)
        facts: dict[str, Any] = {"source": None, "options": (), "folders": (), "triton": told}
        try:
            facts["source"] = whole_source(this)
        except UnclearSourceError as error:
            told["unclear"] = str(error)
        function = Function(this.__name__, facts)
        self.recorder.functions[id(this), len(self._kept)] = function
        return function

    def _look(self, launches: Any, function: Function, launch: Launch) -> Any:
        if self.library.is_capturing():
            return launch.run()
        bound = bound_arguments(launch.function, launch.args, launch.kwargs)
        told, frame = function.facts["triton"], self.calls.frame
        passed = [bound[name] for name in told["passed"]]
        if not self.library.is_interpreted and not launches.rows:
            compiled = launch.run(warmup=True)  # now, and not between the events
            getattr(compiled, "_init_handles", lambda: None)()

        def between(start: Any, end: Any) -> Any:
            if start is None:
                return launch.run()
            start.record()
            result = launch.run()
            end.record()
            return result

        def describe() -> dict[str, Any]:
            keeps_all = self.recorder.contents.limit_bytes is not None
            samples = [None if keeps_all else self.library.sample(one) for one in passed]
            options = {name: launch.kwargs[name] for name in OPTIONS if launch.kwargs.get(name) is not None}
            return {
                "given": sorted(frame.given) if frame else launch.given,
                "constexprs": {name: word(bound[name]) for name in told["constexprs"] if name in bound},
                "launch_options": options,
                "grids": grid_samples(launch.grid, bound, told, options),
                "samples": ["" if one is None else self.recorder.contents.save(one) for one in samples],
            }

        threads = 32 * (launch.kwargs.get("num_warps") or WARPS)
        geometry = (grid_sizes(launch.grid, bound), (threads, 1, 1), 0)
        return self.recorder.look(launches, function, geometry, passed, between, describe=describe)


def _key(value: Any) -> Any:
    """The argument's key, the same in all launches of one kind."""
    if hasattr(value, "data_ptr"):
        return value.shape, value.dtype, value.stride()
    if isinstance(value, float):
        return float
    try:
        hash(value)
    except TypeError:
        return type(value)
    return value


def watch(recorder: Recorder) -> None:
    """Every launch from now on."""
    library = recorder.library
    assert isinstance(library, Triton)  # noqa: S101
    watcher = Watcher(recorder, library)
    from triton.runtime import autotuner, interpreter, jit  # noqa: PLC0415 - the program has just imported Triton

    watcher.watch_decorators(autotuner)
    watcher.watch_functions(jit.JITFunction, is_interpreted=False)
    watcher.watch_functions(interpreter.InterpretedFunction, is_interpreted=True)

"""autotune(): in the place of `triton.autotune`, with its arguments. It asks what is known and never tunes."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.kernels.errors import KernelError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import function_of, is_same_function
from tilewright.tuner.autotune.posed import NotPosedError, layout_of, problem_of
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.errors import ServiceWarning, UntunedWarning, warn
from tilewright.tuner.runtime.launcher import place_of, resolved
from tilewright.tuner.runtime.runtime import Runtime, default_runtime
from tilewright.tuner.triton.module import compiler_options, constexprs


def autotune(
    configs: Sequence[Any], key: Sequence[str], *arguments: Any, runtime: Runtime | None = None, **named: Any
) -> Callable[[Any], ChosenFunction]:
    """A decorator like `triton.autotune`, whose arguments it takes; `runtime` is this process's unless it is given."""
    import triton  # noqa: PLC0415 - takes a second, and the extra `triton`

    decorate = triton.autotune(configs, key, *arguments, **named)  # refuses what it refuses
    return lambda fn: ChosenFunction(decorate(fn), runtime)


class ChosenFunction:
    """A Triton function that is launched with the configuration known to be the best.

    What is not said here is as with Triton's own autotuner, which it has as `tuner` and which never measures anything.
    The first of its configurations that its pruning keeps is used for calls that no declared kernel describes.
    """

    def __init__(self, tuner: Any, runtime: Runtime | None) -> None:
        self.tuner, self._own_runtime = tuner, runtime
        self.best_config: Any = None
        self._chosen: dict[tuple[Any, ...], Any] = {}
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        """As the autotuner has it: `fn`, `configs`, `keys`, `warmup` and whatever else is asked for."""
        return getattr(self.__dict__["tuner"], name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The launch on that grid."""
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """One launch; what is known of the problem is looked for at the first of its kind."""
        named = {**dict(zip(self.tuner.arg_names, args, strict=False)), **kwargs}
        key = self._key(named)
        if key not in self._chosen:
            self._chosen[key] = self._config(named) or self._first(args, kwargs)
        config = self.best_config = self._chosen[key]
        if config.pre_hook is not None:
            config.pre_hook({**named, **config.all_kwargs()})
        return self.tuner.fn.run(*args, **kwargs, **config.all_kwargs())

    def _key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Triton's own key, and the devices."""
        kinds = (f"{v.dtype} {getattr(v, 'device', '')}" for v in named.values() if hasattr(v, "dtype"))
        return (*(named.get(name) for name in self.tuner.keys), *kinds)

    def _first(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The first that the application's own pruning keeps: some of the others may compute something else."""
        self.tuner.nargs = dict(zip(self.tuner.arg_names, args, strict=False))  # where Triton looks for them
        try:
            return self.tuner.prune_configs(kwargs)[0]
        finally:
            self.tuner.nargs = None

    def _config(self, named: Mapping[str, Any]) -> Any:
        """The known configuration of the problem; None for calls that no declared kernel describes."""
        try:
            runtime = self._own_runtime or default_runtime()  # now: an application may set its address first
            kernel = self._declared(runtime)
            problem, place = self._posed(kernel, named)
            choice = runtime.choose(kernel, problem, place)
            return self._as_config(kernel, problem, agreed(choice.configuration, problem, place), named)
        except (NotPosedError, TunerError, KernelError) as error:
            if not self._has_warned:
                self._has_warned = True
                name = self.tuner.base_fn.__name__
                warn(f"{name} is launched with the first of its configurations: {error}", UntunedWarning)
            return None

    def _declared(self, runtime: Runtime) -> Kernel:
        """The kernel that declares this very function, with those variants that do; raises NotPosedError."""
        function = self.tuner.base_fn
        entry = function.__name__
        try:
            text = textwrap.dedent(inspect.getsource(function))
        except OSError as error:
            raise NotPosedError(f"its source cannot be read: {error}") from error
        declared = [k for k in runtime.kernels.kernels() if k.is_triton and k.entry == entry]
        for kernel in declared:
            same = tuple(v for v in kernel.variants if is_same_function(kernel.source(v.name), text, entry))
            if same:
                default = kernel.default_variant if kernel.default_variant in {v.name for v in same} else ""
                return replace(kernel, variants=same, default_variant=default)
        if not declared:
            raise NotPosedError(f"no kernel folder declares the function {entry}; name it in TILEWRIGHT_KERNEL_FOLDERS")
        names = ", ".join(kernel.name for kernel in declared)
        raise NotPosedError(f"{names} declares another function of that name; what was measured is not this one")

    def _posed(self, kernel: Kernel, named: Mapping[str, Any]) -> tuple[Problem, TargetDevice]:
        """The problem, and the device model that the arrays are on."""
        function = function_of(kernel.source(kernel.variants[0].name), kernel.entry)
        passed = function.passed if function else ()
        missing = [name for name in passed if name not in named]
        if missing:
            raise NotPosedError(f"{', '.join(missing)} was not given")
        problem = problem_of(kernel, [named[name] for name in passed], named)
        layout = next(layout_of(named[n]) for n, a in zip(passed, kernel.arguments, strict=True) if a in kernel.tensors)
        return problem, place_of(resolved(layout.kind if layout.ordinal is None else f"cuda:{layout.ordinal}"))

    def _as_config(
        self, kernel: Kernel, problem: Problem, configuration: Configuration, named: Mapping[str, Any]
    ) -> Any:
        """The configuration in Triton's words, with each constexpr that the call leaves open.

        Hooks are those of the application's first one.
        """
        import triton  # noqa: PLC0415 - it is loaded

        function = function_of(kernel.source(configuration.variant), kernel.entry)
        open_names = [n for n in function.constexprs if n not in named] if function else []
        definitions = kernel.definitions(problem, configuration)
        hook = self.tuner.configs[0].pre_hook
        return triton.Config(constexprs(open_names, definitions), **compiler_options(definitions), pre_hook=hook)


def agreed(configuration: Configuration, problem: Problem, place: TargetDevice) -> Configuration:
    """The choice of the first rank that asked, where torch.distributed is at work; else the configuration itself.

    By the key-value store of the process group, of which no rank waits for another as it would in a collective.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return configuration
    topic = hashlib.sha256(f"{place.slug} {problem.canonical}".encode()).hexdigest()
    own = json.dumps(configuration.as_json())
    try:
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch names no other way to it
        first = store.compare_set(f"tilewright/{topic}", "", own)
    except (RuntimeError, AttributeError) as error:
        warn(f"ranks may choose differently for {problem}: torch's store did not answer ({error})", ServiceWarning)
        return configuration
    return Configuration.from_json(json.loads(first))

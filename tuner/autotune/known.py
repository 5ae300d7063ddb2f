"""Known configurations for the calls of an autotuned Triton function, by the problem that each call poses."""

from __future__ import annotations

import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.kernels.errors import KernelError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import function_of, is_same_function
from tilewright.tuner.autotune.one_search import ranks_store
from tilewright.tuner.autotune.posed import NotPosedError, layout_of, problem_of
from tilewright.tuner.errors import TunerError
from tilewright.tuner.runtime.arrays.views import Layout
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.errors import ServiceWarning, UntunedError, UntunedWarning, warn
from tilewright.tuner.runtime.launches.devices import place_of, resolved
from tilewright.tuner.runtime.runtime import Runtime, default_runtime
from tilewright.tuner.triton.module import compiler_options, constexprs


class KnownConfigs:
    """Configurations for the calls of one function under `triton.autotune`, by what is known of their problems.

    `only_tuned`: none where nothing but the declaration's default is known.
    """

    def __init__(self, tuner: Any, runtime: Runtime | None = None, *, only_tuned: bool = False) -> None:
        self._tuner, self._own_runtime, self._only_tuned = tuner, runtime, only_tuned
        defaults = inspect.signature(tuner.base_fn).parameters.values()
        self._defaults = {one.name: one.default for one in defaults if one.default is not one.empty}
        self._has_warned = False

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name."""
        return {**dict(zip(self._tuner.arg_names, args, strict=False)), **kwargs}

    def search(self, named: Mapping[str, Any]) -> str | None:
        """The key of a search for this call: function, configurations, key, device model and Triton's version, as text.

        None where a part of it is not known.
        """
        import triton  # noqa: PLC0415 - it is loaded

        try:
            place = _place_of(layout_of(next(value for value in named.values() if hasattr(value, "data_ptr"))))
            function = self._text()
        except (StopIteration, NotPosedError, TunerError):
            return None
        values = [str(named.get(name)) for name in self._tuner.keys]
        dtypes = [str(value.dtype) for value in named.values() if hasattr(value, "dtype")]
        configurations = [str(config) for config in self._tuner.configs]
        return repr((triton.__version__, place.slug, function, configurations, values, dtypes))

    def _text(self) -> str:
        """Triton's hash of the function and of all that it calls; its source where it is interpreted."""
        function = self._tuner.fn
        while not hasattr(function, "cache_key") and hasattr(function, "fn"):
            function = function.fn
        return getattr(function, "cache_key", None) or self._source()

    def key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Triton's own key, and the devices."""
        kinds = (f"{v.dtype} {getattr(v, 'device', '')}" for v in named.values() if hasattr(v, "dtype"))
        return (*(named.get(name) for name in self._tuner.keys), *kinds)

    def config(self, named: Mapping[str, Any], *, otherwise: str) -> Any:
        """The configuration known for the problem, as Triton's Config; None for calls that no kernel describes.

        `otherwise`: what the call is launched with then, for the warning.
        """
        try:
            # Now: an application may set its address first.
            runtime = self._own_runtime or default_runtime(only_tuned=self._only_tuned)
            named = {**self._defaults, **named}
            kernel = self._declared(runtime)
            problem, place = self._posed(kernel, named)
            choice = runtime.choose(kernel, problem, place)
            return self._as_config(kernel, problem, agreed(choice.configuration, problem, place), named)
        except (NotPosedError, TunerError, KernelError) as error:
            if isinstance(error, UntunedError) or not self._has_warned:  # the former for each problem
                self._has_warned = self._has_warned or not isinstance(error, UntunedError)
                warn(f"{self._tuner.base_fn.__name__} is launched with {otherwise}: {error}", UntunedWarning)
            return None

    def _declared(self, runtime: Runtime) -> Kernel:
        """The kernel that declares this very function, with the variants that use it; raises NotPosedError."""
        entry, text = self._tuner.base_fn.__name__, self._source()
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

    def _source(self) -> str:
        try:
            return textwrap.dedent(inspect.getsource(self._tuner.base_fn))
        except OSError as error:
            raise NotPosedError(f"its source cannot be read: {error}") from error

    def _posed(self, kernel: Kernel, named: Mapping[str, Any]) -> tuple[Problem, TargetDevice]:
        """The problem, and the device model that the arrays are on."""
        variant = kernel.variants[0]
        function = function_of(kernel.source(variant.name), kernel.entry)
        example = kernel.definitions(kernel.problem(kernel.example_shape), variant.space().default())
        passed = [name for name in function.passed if name not in example] if function else []
        missing = [name for name in passed if name not in named]
        if missing:
            raise NotPosedError(f"{', '.join(missing)} was not given")
        problem = problem_of(kernel, [named[name] for name in passed], named)
        tuned = {parameter.name for parameter in variant.parameters}
        compiled = {n: t for n, t in kernel.definitions(problem, variant.space().default()).items() if n not in tuned}
        for name in (*function.passed, *function.constexprs) if function else ():
            if name in compiled and name in named and not is_value(named[name], compiled[name]):
                raise NotPosedError(f"{name} is {named[name]!r}, and {compiled[name]} in {problem}")
        layout = next(layout_of(named[n]) for n, a in zip(passed, kernel.arguments, strict=True) if a in kernel.tensors)
        return problem, _place_of(layout)

    def _as_config(
        self, kernel: Kernel, problem: Problem, configuration: Configuration, named: Mapping[str, Any]
    ) -> Any:
        """The configuration in Triton's words, with each constexpr that the call leaves open.

        Its hook is that of the application's configuration with the most values in common.
        """
        import triton  # noqa: PLC0415 - it is loaded

        function = function_of(kernel.source(configuration.variant), kernel.entry)
        open_names = [n for n in function.constexprs if n not in named] if function else []
        definitions = kernel.definitions(problem, configuration)
        values = constexprs(open_names, definitions)

        def common(config: Any) -> int:
            return sum(config.kwargs.get(name) == value for name, value in values.items())

        hook = max(self._tuner.configs, key=common).pre_hook
        return triton.Config(values, **compiler_options(definitions), pre_hook=hook)


def _place_of(layout: Layout) -> TargetDevice:
    return place_of(resolved(layout.kind if layout.ordinal is None else f"cuda:{layout.ordinal}"))


def is_value(given: Any, text: str) -> bool:
    """Whether the declared kernel is compiled with the same value as the call's constexpr."""
    value = getattr(given, "value", given)
    if isinstance(value, (bool, int, float, str, type(None))):
        known = constexprs(["it"], {"it": text})["it"] if not text.isidentifier() or text in WORDS else None
        return type(known) in {type(value), int} and bool(known == value) if value is not None else text == "None"
    return text in {str(value), getattr(getattr(value, "fn", value), "__name__", "")}


WORDS = {"True", "False", "None"}


def launched(
    tuner: Any, config: Any, named: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The result of a launch with that configuration, ahead of which its hook runs, as in Triton."""
    if config.pre_hook is not None:
        config.pre_hook({**named, **config.all_kwargs()})
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def agreed(configuration: Configuration, problem: Problem, place: TargetDevice) -> Configuration:
    """The choice of the first rank that asked, where torch.distributed is at work; else the configuration itself.

    By the key-value store of the process group, of which no rank waits for another as it would in a collective.
    """
    store = ranks_store()
    if store is None:
        return configuration
    topic = hashlib.sha256(f"{place.slug} {problem.canonical}".encode()).hexdigest()
    own = json.dumps(configuration.as_json())
    try:
        first = store.compare_set(f"tilewright/{topic}", "", own)
    except RuntimeError as error:
        warn(f"ranks may choose differently for {problem}: torch's store did not answer ({error})", ServiceWarning)
        return configuration
    return Configuration.from_json(json.loads(first))

"""Facts about a Triton function and its launches, beside its source."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .triton_source import function_text, literal

MOST_GRID_SAMPLES = 400
"""Configurations that the function of a grid is asked for, beside the one that is launched."""

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4)


class Frame:
    """A call of the program's on its way through the decorators: its tuner, its heuristics and its arguments."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = set(given)
        self.tuner: Any = None
        self.heuristics: dict[str, Any] = {}


def bound_arguments(this: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter of the function with its value."""
    plain = this.fn
    bound = dict(zip(this.arg_names, args))  # noqa: B905 - Python 3.9 has no strict
    bound.update({name: value for name, value in kwargs.items() if name in this.arg_names})
    defaults = {name: one.default for name, one in inspect.signature(plain).parameters.items()}
    return {name: bound.get(name, defaults[name]) for name in this.arg_names}


def grid_sizes(grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
    """The grid along x, y and z; it may be a function of the arguments."""
    sizes = grid(dict(bound)) if callable(grid) else grid
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    x, y, z = [*map(int, sizes), 1, 1][:3]
    return x, y, z


def function_facts(this: Any, frame: Frame | None) -> dict[str, Any]:
    """The facts about the function that are known before it is launched."""
    tuner = frame.tuner if frame else None
    heuristics = frame.heuristics if frame else {}
    constexprs = [name for name in this.arg_names if _is_constexpr(this.fn, name)]
    facts: dict[str, Any] = {
        "passed": [name for name in this.arg_names if name not in constexprs],
        "constexprs": constexprs,
        "heuristics": {name: function_text(one) for name, one in heuristics.items()},
    }
    if tuner is not None:
        configs = [
            {"values": {name: word(one) for name, one in config.kwargs.items()}}
            | {name: getattr(config, name) for name in OPTIONS if getattr(config, name, None) is not None}
            for config in tuner.configs
        ]
        key = getattr(tuner, "keys", None) or getattr(tuner, "key", None) or []
        reset = getattr(tuner, "reset_to_zero", None) or []
        named = [this.arg_names[one] if isinstance(one, int) else one for one in reset]
        facts |= {"configs": configs, "key": list(key), "reset_to_zero": named}
    return facts


def _is_constexpr(plain: Any, name: str) -> bool:
    annotation = plain.__annotations__.get(name)
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in text


def word(value: Any) -> Any:
    """A constexpr as JSON holds it: a plain value itself, a type or a function by its name, anything else as None."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ == "dtype" and literal(value) is not None:
        return {"dtype": str(value)}
    if hasattr(value, "fn"):
        return {"function": value.fn.__name__}
    return {"unknown": type(value).__name__}


def grid_samples(
    grid: Any, bound: Mapping[str, Any], facts: Mapping[str, Any], options: Mapping[str, int]
) -> list[Any]:
    """The grid's sizes for several values of constexprs, as its function tells them, beside those of the launch."""
    base = {name: bound[name] for name in facts["constexprs"] if isinstance(bound.get(name), int)}
    samples = []
    for values in _tried(base, facts) if callable(grid) else [base]:
        try:
            sizes = grid_sizes(grid, {**bound, **options, **values})
        except Exception:  # noqa: BLE001, S112 - somebody's function, of values that it may not be for
            continue
        samples.append({"values": values, "grid": sizes})
    return samples


def _tried(base: Mapping[str, Any], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Constexprs to sample the grid with: the launch's, some with one value changed, the tuner's configurations."""
    configs = facts.get("configs") or []
    names = {name for one in configs for name in one["values"]} or set(base)
    whole = [{**base, **{n: v for n, v in one["values"].items() if isinstance(v, int)}} for one in configs]
    near = [
        {**base, name: max(1, int(value * scale))}
        for name, value in base.items()
        if name in names and not isinstance(value, bool)
        for scale in _SCALES
    ]
    small = {name: max(1, value // 8) if name in names and value > 1 else value for name, value in base.items()}
    return list(itertools.islice([dict(base), small, *near, *whole], MOST_GRID_SAMPLES))

"""Restrictions of a call as expressions of `c`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .functions import Functions, UnclearError

OF_CONSTRAINTS = {
    "MaxProdConstraint": ("_maxprod", "math.prod(({})) <= {}"),
    "MinProdConstraint": ("_minprod", "math.prod(({})) >= {}"),
    "MaxSumConstraint": ("_maxsum", "sum(({})) <= {}"),
    "MinSumConstraint": ("_minsum", "sum(({})) >= {}"),
    "ExactSumConstraint": ("_exactsum", "sum(({})) == {}"),
    "AllDifferentConstraint": (None, "len({{{}}}) == {count}"),
    "AllEqualConstraint": (None, "len({{{}}}) == 1"),
}
"""The constraints of python-constraint: where each keeps its number, and what it asks of values."""


def restrictions_of(given: Any, functions: Functions) -> list[dict[str, str]]:
    """`{"name": …, "expression": …}` of each; raises UnclearError."""
    listed = given if isinstance(given, list | tuple) else [given] if given else []
    return [_restriction(one, place, functions) for place, one in enumerate(listed, 1)]


def _restriction(one: Any, place: int, functions: Functions) -> dict[str, str]:
    if isinstance(one, str):
        return {"name": " ".join(one.split()), "expression": functions.expression(one, "restriction")}
    names: Sequence[str] | None = None
    if isinstance(one, tuple) and len(one) in {2, 3}:
        one, names = one[0], [str(name) for name in one[1]]
    kind = type(one).__name__
    if kind == "FunctionConstraint":
        one = one._func  # noqa: SLF001 - it has no other name
    elif kind.endswith("Constraint"):
        return _constraint(one, kind, list(names or functions.parameters), functions)
    if not callable(one):
        raise UnclearError(f"restriction {place} is a {kind}")
    called = f"restriction_{place}"
    if names is None:
        return {"name": called.replace("_", " "), "expression": functions.called(one, called, called)}
    own = _carried(one, called, functions)
    arguments = ", ".join(functions.expression(name, called) for name in names)
    return {"name": called.replace("_", " "), "expression": f"{own}({arguments})"}


def _carried(function: Callable[..., Any], name: str, functions: Functions) -> str:
    try:
        return functions.carried(function, name)
    except UnclearError as unreadable:
        raise UnclearError(f"{name}: {unreadable}; write it as a string") from unreadable


def _constraint(one: Any, kind: str, names: list[str], functions: Functions) -> dict[str, str]:
    if kind not in OF_CONSTRAINTS:
        raise UnclearError(f"the restriction {kind} is not known; write it as a string")
    attribute, form = OF_CONSTRAINTS[kind]
    if "math." in form:
        functions.imports["math"] = "import math"
    values = ", ".join(functions.expression(name, kind) for name in names)
    number = getattr(one, attribute) if attribute else None
    return {"name": f"{kind} of {', '.join(names)}", "expression": form.format(values, number, count=len(names))}


def admits(restrictions: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Whether the restrictions, as the script gives them, admit a configuration; those that cannot be asked do."""
    listed = restrictions if isinstance(restrictions, list | tuple) else [restrictions] if restrictions else []

    def asked(configuration: Mapping[str, Any]) -> bool:
        for one in listed:
            try:
                holds = (
                    eval(one, {"math": math, "np": np, "numpy": np}, dict(configuration))  # noqa: S307 - as it does
                    if isinstance(one, str)
                    else one(configuration)
                )
            except Exception:  # noqa: BLE001, S112 - somebody's code, which may take its arguments otherwise
                continue
            if not holds:
                return False
        return True

    return asked

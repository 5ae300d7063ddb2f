"""The coarsest type that a captured Triton function computes in: its configurations' results differ by its rounding."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.reference import TOLERANCE

PRECISE = {"ieee", "tf32x3", "bf16x3", "bf16x6"}
"""Triton's `input_precision` of products of float32 that are no coarser than float32."""


def arithmetic_of(source: str, dtypes: Iterable[str], constexprs: Mapping[str, Any]) -> str:
    """That type, of the arrays' dtypes, the half types that the source names, and TF32 where a product may be in it.

    Empty where it is float32 or float64, and where there are no such types. `constexprs` are those of the launch: they
    may say how exact a product is.
    """
    tree = ast.walk(ast.parse(source))
    named = {*dtypes}
    for node in tree:
        if isinstance(node, ast.Attribute) and node.attr in HALF:
            named.add(node.attr)
        elif isinstance(node, ast.Call) and _is_dot(node) and not _is_precise(node, constexprs):
            named.add("tfloat32")
    coarse = named & {*HALF, "tfloat32"}
    return max(coarse, key=lambda name: (TOLERANCE[name], name in HALF), default="")


def _is_dot(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "dot"


def _is_precise(call: ast.Call, constexprs: Mapping[str, Any]) -> bool:
    """Whether a product of float32 is as exact as float32; Triton's own way is TF32."""
    words = {one.arg: _value(one.value, constexprs) for one in call.keywords}
    return words.get("input_precision") in PRECISE or words.get("allow_tf32") is False


def _value(node: ast.expr, constexprs: Mapping[str, Any]) -> Any:
    """A constant, or the constexpr of that name; else None."""
    if isinstance(node, ast.Constant):
        return node.value
    return constexprs.get(node.id) if isinstance(node, ast.Name) else None

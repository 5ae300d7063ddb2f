"""Expressions and functions that a declaration is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_NUMPY_DTYPES = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {f"float{bits}" for bits in (16, 32, 64)}
)


def made(name: str, contents: Mapping[str, Any], shape: str) -> str | None:
    """An expression that makes such contents; None where Tilewright's own draws are like them."""
    match contents:
        case {"kind": "file"}:
            return f'np.load(FOLDER / "{name}.npy")'
        case {"kind": "full", "value": value, **more}:
            dtype = f", np.{more['dtype']}" if more.get("dtype") in _NUMPY_DTYPES else ""
            return f"np.full({shape}, {number(value)}{dtype})"
        case {"kind": "seeded", "method": method, "seed": seed, "elements": elements, "dtype": dtype}:
            drawn = f"np.random.RandomState({seed}).{method}({elements}).astype(np.{dtype})"
            return f"{drawn}.reshape({shape})"
        case {"kind": "normal", "mean": mean, "deviation": deviation}:
            return None if (mean, deviation) == (0, 1) else f"generator.normal({mean!r}, {deviation!r}, {shape})"
        case {"kind": "uniform", "low": low, "high": high}:
            is_standard = (low, high) == (0, 1)
            return (
                f"generator.{f'random({shape}, np.float32)' if is_standard else f'uniform({low!r}, {high!r}, {shape})'}"
            )
    return _drawn_whole(contents, shape)


def _drawn_whole(contents: Mapping[str, Any], shape: str) -> str:
    """An expression that makes whole numbers, or draws from a few."""
    match contents:
        case {"kind": "integers", "low": low, "high": high, "dtype": dtype}:
            return f"generator.integers({low}, {high}, {shape}, np.{dtype}, endpoint=True)"
        case {"kind": "choice", "values": values, "dtype": dtype}:
            return f"generator.choice(np.array([{', '.join(map(number, values))}], np.{dtype}), {shape})"
        case {"kind": "permutation", "dtype": dtype}:
            return f"generator.permutation(math.prod({shape})).astype(np.{dtype}).reshape({shape})"
        case {"kind": "places", "dtype": dtype}:
            return f"np.arange(math.prod({shape}), dtype=np.{dtype}).reshape({shape})"
    raise ValueError(contents)


def number(value: float) -> str:
    """The number in Python's syntax; infinities and NaN, which have no literal, by float()."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def is_zeros(contents: Mapping[str, Any]) -> bool:
    """Whether an array holds zeros alone."""
    return bool(contents["kind"] == "full" and contents["value"] == 0)


def quoted(text: str) -> str:
    """The text in double quotes."""
    return f'"{text}"'


def answer_file(name: str) -> str:
    """The name of the file with the argument's right values."""
    return f"answer_{name}.npy"


FUNCTION = 'def {}:\n    """{}"""\n    return {{{}}}'

REFERENCE = '''\
def reference(_problem, arrays, _scalars):
    """The script's answer for each argument, and the arrays before the launch."""
    return [{answers}], arrays'''

BY_ANSWER = '''\
def check(outputs, expected):
    """As numpy.allclose has it with the script's atol."""
    for name, right in zip([{names}], expected[0], strict=True):
        if right is not None and not np.allclose(right.ravel(), outputs[name].ravel(), atol={atol!r}):
            return f"{{name}} is off by up to {{np.abs(outputs[name].ravel() - right.ravel()).max():.3g}}"
    return None'''

BY_COMPUTED = '''\
def check(outputs, expected):
    """Within {tolerance!r} of the right size plus the mean size: the CPU computed the answer, and rounds otherwise."""
    for name, right in zip([{names}], expected[0], strict=True):
        if right is None:
            continue
        size = np.abs(right[np.isfinite(right)].astype(np.float64))
        atol = 0 if right.dtype.kind in "iub" or not size.size else max({atol!r}, {tolerance!r} * size.mean())
        if not np.allclose(right.ravel(), outputs[name].ravel(), rtol={tolerance!r}, atol=atol):
            return f"{{name}} is off by up to {{np.abs(outputs[name].ravel() - right.ravel()).max():.3g}}"
    return None'''

BY_PARTS = '''\
def check(outputs, expected):
    """Each block writes a part of a sum: the sums are compared with those of the default configuration."""
    for name, right in expected.items():
        found, tolerance = outputs[name], 0 if right.dtype.kind in "iu" else {tolerance}
        scale = np.abs(right).sum(dtype=np.float64)
        if name in [{parts}]:
            found, right = found.sum(dtype=np.float64), right.sum(dtype=np.float64)
        else:
            scale /= right.size
        if not np.allclose(found, right, rtol=tolerance, atol=tolerance * scale):
            return f"{{name}} is off by up to {{np.abs(np.subtract(found, right, dtype=np.float64)).max():.3g}}"
    return None'''

BY_VERIFY = '''\
def check(outputs, expected):
    """By the script's own function."""
    answer, arrays = expected
    results = [outputs.get(name, arrays.get(name)) for name in [{names}]]
    return None if {call} else "the script's verify does not accept it"'''

RESULTS = '''\
def reference(_problem, _arrays, _scalars):
    """What the program computed."""
    return {{
{results}
    }}'''

FAULT = '''\
def fault(p):
    """The sizes found there only: nothing says how its arrays follow from others."""
    for axis, sizes in {{{sizes}}}.items():
        if p.shape[axis] not in sizes:
            return axis, f"must be {{' or '.join(map(str, sizes))}}, as found there"
    return None'''

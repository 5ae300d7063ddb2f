"""Configurations that a job tries first: those of a request, and those in files of vLLM, SGLang and Triton.

Both keep one file for each device and shape, `E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json`: an
object from the number of rows to the parameters of a Triton kernel, of which the loader takes that of the nearest
number. Read in vLLM's `get_moe_configs` (commit 000d145) and `get_w8a8_block_fp8_configs`, whose file has K as well;
SGLang's loaders read the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.kernels.triton import OPTIONS
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.requests import StartRequest

MOST_STARTS = 16
ROWS_AXIS = "m"
NOT_ROWS = frozenset({"triton_version"})
"""Members of such a file that are no configurations."""


def checked_starts(kernel: Kernel, usable: Sequence[str], starts: Sequence[StartRequest]) -> tuple[Configuration, ...]:
    """The starts with every parameter; raises InvalidRequestError naming the one that no usable variant has."""
    return tuple(_complete(kernel, usable, f"starts.{place}", start) for place, start in enumerate(starts))


def _complete(kernel: Kernel, usable: Sequence[str], field: str, start: StartRequest) -> Configuration:
    defaults = {v.name: {p.name: p.default for p in v.parameters} for v in kernel.variants if v.name in usable}
    if start.variant is not None and start.variant not in defaults:
        raise InvalidRequestError(
            f"{field}.variant",
            f"{kernel.name} has no variant {start.variant!r} for this job; variants for it: {', '.join(defaults)}.",
            next(iter(defaults), None),
        )
    fitting = [
        name
        for name, values in defaults.items()
        if start.variant in {None, name} and start.configuration.keys() <= values.keys()
    ]
    if len(fitting) != 1:
        where = start.variant or kernel.name
        reason = (
            f"{len(fitting)} variants have these parameters; name one of {', '.join(fitting)}."
            if fitting
            else f"{where} has not all of the parameters {', '.join(sorted(start.configuration))}."
        )
        raise InvalidRequestError(f"{field}.{'variant' if fitting else 'configuration'}", reason)
    return Configuration.of(fitting[0], defaults[fitting[0]] | start.configuration)


def nearest_feasible(space: SearchSpace, starts: Sequence[Mapping[str, Any]]) -> list[Configuration]:
    """The starts of a job's row, each replaced by the nearest configuration of the space if it is not in it."""
    wanted = [Configuration.from_json(start) for start in starts]
    found = [start if start in space else space.nearest(start, exclude=frozenset()) for start in wanted]
    return list(dict.fromkeys(configuration for configuration in found if configuration is not None))


@dataclass(frozen=True)
class Starts:
    """The starts of a file, and what was left out: unknown parameters, values that are not whole numbers."""

    starts: list[StartRequest]
    unknown: frozenset[str] = frozenset()
    no_numbers: frozenset[str] = frozenset()


def starts_in(document: object, kernel: Kernel, shape: Mapping[str, int], rename: Mapping[str, str]) -> Starts:
    """The starts of a file, without unknown parameters and values that are not whole numbers.

    True and false are 1 and 0 of a parameter that has no other values.

    The file is one of vLLM's or SGLang's, whose rows nearest to the shape's m come first; what Triton keeps of its own
    search, the fastest first; or `{"variant": …, "configuration": {…}}`, or a list of such. `rename`: the kernel's name
    of a parameter by the file's. Raises InvalidRequestError.
    """
    if isinstance(document, list) or (isinstance(document, dict) and "configuration" in document):
        listed = document if isinstance(document, list) else [document]
        return Starts([StartRequest.model_validate(start) for start in listed[:MOST_STARTS]])
    parameters = [parameter for variant in kernel.variants for parameter in variant.parameters]
    known = {parameter.name for parameter in parameters}
    flags = {parameter.name for parameter in parameters if set(parameter.values) <= {0, 1}}
    starts: dict[tuple[tuple[str, int], ...], StartRequest] = {}
    unknown, no_numbers = set[str](), set[str]()
    for row in _ranked(document, kernel, shape):
        values = {rename.get(name, name): value for name, value in row.items()}
        values |= {name: int(value) for name, value in values.items() if name in flags and isinstance(value, bool)}
        unknown |= values.keys() - known
        no_numbers |= {name for name, value in values.items() if name in known and type(value) is not int}
        mapped = {name: value for name, value in values.items() if name in known and type(value) is int}
        starts.setdefault(tuple(sorted(mapped.items())), StartRequest(configuration=mapped))
    if not any(start.configuration for start in starts.values()):
        names = ", ".join(sorted(no_numbers or known))
        reason = "no whole number for any of" if no_numbers else f"none of the parameters of {kernel.name}:"
        raise InvalidRequestError("starts", f"the file has {reason} {names}.")
    return Starts(list(starts.values())[:MOST_STARTS], frozenset(unknown), frozenset(no_numbers))


def _ranked(document: object, kernel: Kernel, shape: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """The file's configurations in the order in which to try them."""
    if isinstance(document, dict) and "configs_timings" in document:
        return _by_triton(document["configs_timings"])
    rows = _rows(document)
    if ROWS_AXIS not in shape:
        reason = f"the file has a configuration for each m, and {kernel.name} has no axis m."
        raise InvalidRequestError("starts", reason)
    return [rows[m] for m in sorted(rows, key=lambda m: (abs(m - shape[ROWS_AXIS]), m))]


def _by_triton(timings: object) -> list[Mapping[str, Any]]:
    """The configurations of a file kept by `TRITON_CACHE_AUTOTUNING`, the fastest first, without failed ones.

    Their times are medians of one run each in Triton's own search: they order starts, and are no results.
    """
    try:
        pairs = [(config, float(timing[0] if isinstance(timing, list) else timing)) for config, timing in timings]  # type: ignore[attr-defined]
        pairs = sorted((pair for pair in pairs if math.isfinite(pair[1])), key=lambda pair: pair[1])
        return [
            {**config["kwargs"], **{o: config[o] for o in OPTIONS if config.get(o) is not None}} for config, _ in pairs
        ]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        reason = "configs_timings is no list of Triton's configurations with their times."
        raise InvalidRequestError("starts", reason) from error


def _rows(document: object) -> dict[int, Mapping[str, Any]]:
    if not isinstance(document, dict) or not document:
        raise InvalidRequestError("starts", "the file is neither a configuration nor an object of them by m.")
    rows: dict[int, Mapping[str, Any]] = {}
    for key, values in document.items():
        if key in NOT_ROWS:
            continue
        if not key.isdecimal() or not isinstance(values, dict):
            raise InvalidRequestError("starts", f"the member {key!r} is not a number of rows with values by parameter.")
        level = next((name for name, value in values.items() if isinstance(value, (dict, list))), None)
        if level is not None:
            reason = f"the member {key!r} has another level, {level!r}; a file has one, of m"
            raise InvalidRequestError("starts", f"{reason}: give the part for this problem.")
        rows[int(key)] = values
    return rows

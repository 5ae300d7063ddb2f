"""Tuning files of vLLM and SGLang: one for all shapes that differ in m alone, with a Triton kernel's parameters by m.

See jobs/starts.py, which reads such files, for what their loaders expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.jobs.starts import ROWS_AXIS

NEEDED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
"""Parameters that both servers' kernels read from such a file."""

GROUP = "GROUP_SIZE_M"
"""Has no default in their kernels, so that a file of rows without it serves a kernel of the user's alone."""


def serving_files(bundle: Mapping[str, Any], kernel: Kernel, rename: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The contents by file name, from a bundle's results for the kernel; of those with options, the default ones.

    A row is the default configuration where the best is not faster than it beyond the interval. `rename`: the kernel's
    name of a parameter by the file's. Raises InvalidRequestError where a parameter is missing that they need, and where
    the kernel has no axis m.
    """
    theirs = {ours: name for name, ours in rename.items()}
    names = {theirs.get(p.name, p.name) for variant in kernel.variants for p in variant.parameters}
    missing = [name for name in NEEDED if name not in names]
    if missing or ROWS_AXIS not in kernel.axes:
        what = f"no parameter {missing[0]}" if missing else "no axis m"
        raise InvalidRequestError(
            "kernel", f"{kernel.name} has {what}, which such a file needs; --rename maps a parameter's name."
        )
    defaults = {option.name: option.default for option in kernel.options}
    files: dict[str, dict[int, Any]] = {}
    for result in bundle["results"]:
        if result["kernel"] == kernel.name and defaults | result["options"] == defaults:
            values = {theirs.get(name, name): value for name, value in result["configuration"].items()}
            values = values if is_ahead_of_default(result) else default_row(kernel, rename)
            rows = files.setdefault(_file_name(result, bundle["device_model"]["name"]), {})
            rows[result["shape"][ROWS_AXIS]] = values
    return {name: {str(m): rows[m] for m in sorted(rows)} for name, rows in files.items()}


def is_ahead_of_default(result: Mapping[str, Any]) -> bool:
    """Whether a best was faster than the default configuration beyond its interval; older bundles do not tell."""
    if "gain_over_default" not in result:
        return True
    gain, interval = result["gain_over_default"], result["ci_ms"]
    return bool(gain and interval and result["time_ms"] * gain > interval[1])


def default_row(kernel: Kernel, rename: Mapping[str, str]) -> dict[str, int]:
    """The kernel's default configuration with the file's names."""
    theirs = {ours: name for name, ours in rename.items()}
    default = kernel.variants_from_default[0].space().default()
    return {theirs.get(name, name): value for name, value in default.items}


def described(rows: Mapping[str, Any], default: Mapping[str, int]) -> str:
    """A sentence on the rows that a file holds, and on what a server does with any other m."""
    of_default = [m for m, values in rows.items() if values == default]
    by_default = f"; those of {', '.join(of_default)} are the default configuration" if of_default else ""
    lacking = "" if all(GROUP in values for values in rows.values()) else f"; without {GROUP}, which their kernels take"
    return f"rows for m={', '.join(rows)}{by_default}; any other m takes the nearest row{lacking}"


def _file_name(result: Mapping[str, Any], device_name: str) -> str:
    """`E=8,N=7168,device_name=NVIDIA_H200.json`; half types are not named, as the loaders do not name them."""
    parts = [f"{axis.upper()}={size}" for axis, size in result["shape"].items() if axis != ROWS_AXIS]
    parts.append(f"device_name={device_name.replace(' ', '_')}")
    if result["dtype"] not in HALF:
        parts.append(f"dtype={result['dtype']}")
    return ",".join(parts) + ".json"

"""Checks a light installation: the wheel with its own requirements alone launches a kernel and says what it lacks.

Run with the Python of an environment that holds the wheel, outside of the source tree: python -I tools/check_light.py
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import time
import warnings
from pathlib import Path

LIGHT = {"ml_dtypes", "numpy", "pip", "platformdirs", "setuptools", "threadpoolctl", "tilewright"}


def main() -> None:
    """Print the checks; exit 1 with the first that failed."""
    more = {found.name.lower() for found in importlib.metadata.distributions()} - LIGHT
    if more:
        sys.exit(f"check_light: this is not a light installation, it has {', '.join(sorted(more))}")
    import_s = launch()
    command = Path(sys.executable).with_name("tilewright")
    refused = subprocess.run([command, "tune", "gemm"], capture_output=True, text=True, check=False)
    if refused.returncode != 1 or "tilewright[service]" not in refused.stderr or refused.stderr.count("\n") != 1:
        sys.exit(f"check_light: `tilewright tune` ended with {refused.returncode} and said {refused.stderr!r}")
    subprocess.run([command, "--help"], stdout=subprocess.DEVNULL, check=True)
    print(f"check_light: the launcher was imported in {import_s:.2f} s beside NumPy, and a gemm ran on the CPU device")


def launch() -> float:
    """Compute a product on the CPU device; return the seconds that importing the launcher took."""
    import numpy as np  # noqa: PLC0415 - not part of the time

    begun = time.perf_counter()
    from tilewright.tuner import runtime  # noqa: PLC0415 - its time is the result

    import_s = time.perf_counter() - begun
    warnings.simplefilter("ignore", runtime.UntunedWarning)
    a, b, c = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32), np.empty((4, 5), np.float32)
    runtime.best("gemm", m=4, n=5, k=6)(a, b, c)
    if not (c == 6).all():
        sys.exit(f"check_light: the product of ones is not 6 but {c}")
    return import_s


if __name__ == "__main__":
    main()

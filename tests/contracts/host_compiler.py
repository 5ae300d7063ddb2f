"""What the CPU device's compiler can do here; ziglang, the wheel where there is no other, can do less than g++."""

from __future__ import annotations

import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.bench import CpuBench
from tilewright.tuner.devices.cpu.check import CheckReport
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.errors import NoCompilerError

SANITIZING = pytest.mark.timeout(400)
"""For tests that sanitize: at first ziglang builds the sanitizer's library, minutes where the machine is busy."""


def needs_compiler() -> str:
    """The compiler's name; skips the test where there is none."""
    try:
        return find_compiler().name
    except NoCompilerError:
        pytest.skip("needs a C++ compiler")


def needs_cpp_library() -> None:
    """Skips the test where a source cannot include C++'s own headers."""
    if needs_compiler() == "ziglang":
        pytest.skip("ziglang is used without a C++ library: install g++")


def needs_line_numbers() -> None:
    """Skips the test where a sanitizer's report does not name the lines."""
    if needs_compiler() == "ziglang":
        pytest.skip("ziglang's programs have no AddressSanitizer and name no lines: install g++")


def checked(bench: CpuBench, configuration: Configuration, mode: str) -> CheckReport:
    """The sanitizer's report; skips the test where the compiler makes no such programs."""
    try:
        return bench.check(configuration, mode)
    except NoCompilerError as missing:
        pytest.skip(str(missing).splitlines()[0][:80])

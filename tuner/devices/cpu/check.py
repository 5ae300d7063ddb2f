"""Sanitizer runs: where a kernel reads or writes out of bounds, and where a barrier is missing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.tuner.devices.cpu.process import run_limited
from tilewright.tuner.errors import first_error

CHECKS = ("address", "thread")
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",
    "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:report_signal_unsafe=0",
}
_FRAME = re.compile(r"#\d+ .*? (\S+?\.cuh?):(\d+)")
_SUMMARY = re.compile(r"(?:ERROR: AddressSanitizer|WARNING: ThreadSanitizer): ([^\n(]+)")


@dataclass(frozen=True)
class SanitizerFinding:
    """A line of the kernel's source (with its headers inlined), its text, and what is wrong there."""

    line: int
    text: str
    message: str


@dataclass(frozen=True)
class CheckReport:
    """The findings of one sanitizer run. A race has a finding for each of its two lines."""

    mode: str
    findings: tuple[SanitizerFinding, ...]
    log: str

    @property
    def is_clean(self) -> bool:
        """Whether the run ended by itself and without a finding."""
        return not self.findings and not self.log


def check_program(command: Sequence[str], mode: str, source: str, timeout_s: float) -> CheckReport:
    """Runs an instrumented program and reads its report."""
    # ThreadSanitizer refuses to run where addresses are more random than it was built for.
    setarch = shutil.which("setarch") if mode == "thread" else None
    prefix = [setarch, "--addr-no-randomize"] if setarch else []
    ended = run_limited([*prefix, *command], timeout_s, _OPTIONS)
    if ended.code == 0:
        return CheckReport(mode, (), "")
    log = ended.errors or f"ended with {ended.code if ended.code is not None else f'the deadline of {timeout_s} s'}"
    summary = _SUMMARY.search(log)
    return CheckReport(mode, _findings(log, summary[1].strip() if summary else first_error(log), source), log)


def _findings(log: str, message: str, source: str) -> tuple[SanitizerFinding, ...]:
    """The innermost frame in the kernel's source of each stack in the report."""
    lines = source.splitlines()
    by_line: dict[int, SanitizerFinding] = {}
    for stack in re.split(r"\n\s*\n|(?=\n  \w)", log):
        frame = _FRAME.search(stack)
        if frame and 0 < int(frame[2]) <= len(lines):
            number = int(frame[2])
            by_line.setdefault(number, SanitizerFinding(number, lines[number - 1].strip(), message))
    return tuple(by_line.values())

"""A command that cannot do what it was asked to do, and the exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes, which scripts may rely on."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOTHING_FOUND = 3
    NO_DEVICE = 4
    INTERRUPTED = 130  # 128 + SIGINT, as shells count


class CommandError(Exception):
    """The command cannot do what it was asked to do; `code` is its exit code, or that of a program that it ran."""

    def __init__(self, message: str, code: int = ExitCode.FAILED) -> None:
        self.code = code
        super().__init__(message)

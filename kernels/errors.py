"""Errors in a request about a kernel, and in its declaration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class KernelError(Exception):
    """The request names something that the kernel does not have."""


class BrokenDeclarationError(KernelError):
    """A folder does not declare a kernel that can be tuned."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(f"{folder / 'declaration.py'}: {reason}")


class InvalidProblemError(KernelError):
    """A field of the problem has a value that the kernel does not take."""

    def __init__(self, field: str, reason: str, example: str) -> None:
        self.field, self.reason, self.example = field, reason, example
        super().__init__(f"{field}: {reason}. Example: {example}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.reason, self.example)


class InvalidLayoutError(KernelError):
    """An array has a shape or strides that no problem of the kernel has."""

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        self.name, self.reason, self.remedy = name, reason, remedy
        super().__init__(f"{name}: {reason}. {remedy}")


class UnknownNameError(KernelError):
    """There is no such kernel or variant."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"{kind}: there is no {kind} {name!r}. Known: {', '.join(self.known)}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.kind, self.name, self.known)

"""The names of the library's calls that say enough to make them again: library, version and algorithm."""

from __future__ import annotations

CUBLAS, CUBLASLT, OPENBLAS = "cuBLAS ", "cuBLASLt ", "OpenBLAS "
"""Prefixes of names of calls; the version follows."""

ALGORITHM = "algorithm"
"""The first word of a cublasLt algorithm's own; in results of earlier versions it is "heuristic"."""

OWN_CHOICE = "its own choice"
"""The name that stands for the first algorithm of cublasLt's heuristic at whatever size is launched."""


def is_launched(name: str) -> bool:
    """Whether launchers make the call of that name, if this version of the library is installed."""
    if not name.endswith(")"):
        return False  # another kernel follows, or it was not verified
    return name.startswith((CUBLAS, OPENBLAS)) or (name.startswith(CUBLASLT) and says_which(name))


def says_which(name: str) -> bool:
    """Whether the name of a call of cublasLt says which algorithm it runs."""
    return f" ({ALGORITHM} " in name or f" ({OWN_CHOICE}" in name


def version_of(name: str) -> str:
    """The version in it, which cuBLAS and cublasLt have in common."""
    return name.partition(" (")[0].partition(" ")[2]


def of_any_size(name: str) -> str:
    """The name of the library's call by its own choice, which has a meaning at other sizes too."""
    return f"{without_algorithm(name)} ({OWN_CHOICE})" if f" ({ALGORITHM} " in name else name


def without_algorithm(name: str) -> str:
    """The library and its version, for a time that may stem from other problems' algorithms."""
    return name.partition(f" ({ALGORITHM} ")[0]

"""A smooth function fitted to noisy rows of numbers, with its leave-out predictions for groups of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]

CENTRES = 256
"""Rows whose neighbourhoods each term of the function is made of."""

NOISE = 0.05
"""Variance of a row's value about the function, as a share of the function's own."""

STRAIGHT = 1.0
"""Weight that a straight line in each feature may have for nothing, against the smooth part's 1."""


UNCHANGED = 1e-9
"""A standard deviation below which a feature is the same in every row, and tells nothing."""

LEAST = 0.25
"""A feature whose deviation is less is not stretched to 1: it would lead where it varied by chance among few rows."""

AT_ONCE = 1024
"""Rows whose basis is in memory at a time: that of 9,000 rows of gemm takes 120 MB."""

STRIP = 256
"""Columns of a triangular matrix that are multiplied at a time."""

ROUNDED = 1e-9
"""The part by which a matrix's diagonal is raised if rounding left it without a root."""

JITTER = 1e-4
"""Added to the prior of each weight: centres that lie together would else make the equations singular."""


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Gives BLAS one thread in the block: for small matrices more threads would wait for each other.

    On a busy host of 32 cores they made a fit take 10 s instead of 1 (H200, 2026-11-29).
    """
    limit: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limit


@dataclass(frozen=True)
class Term:
    """Bumps in some of the features, around these centres."""

    columns: NDArray[np.intp]
    centres: Array

    def bumps(self, rows: Array) -> Array:
        """A Gaussian of each row's distance from each centre, as wide as two random rows lie apart; 1 at the centre."""
        centres = self.centres
        squares = (rows**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None, :] - 2 * rows @ centres.T
        used = max(1, int((np.ptp(centres, axis=0) > 0).sum()))
        return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2 * used)))


@dataclass(frozen=True)
class Smooth:
    """A Gaussian process by a subset of regressors: straight lines and kinks in each feature plus Gaussian bumps.

    Bumps are in some of the features or in all of them, one term each: what acts together. Rasmussen and Williams,
    Gaussian Processes for Machine Learning (2006), sections 2.7 and 8.3.1; Duvenaud, Nickisch and Rasmussen,
    Additive Gaussian Processes (2011).
    """

    level: float  # what it falls back to where there are no rows
    mean: Array
    scale: Array
    terms: tuple[Term, ...]
    weights: Array
    inverse: Array  # of the normal equations' matrix

    @classmethod
    def fit(
        cls,
        rows: Array,
        values: Array,
        seed: int = 0,
        *,
        most_centres: int = CENTRES,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> Smooth:
        """The function through these values, one a row; features are scaled to a standard deviation of at most 1.

        `groups` are the columns of each term; without them there is one term, of all columns.
        """
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        scale = np.where(deviation < UNCHANGED, np.inf, np.maximum(deviation, LEAST))
        generator = np.random.default_rng(seed)
        terms = []
        for columns in [np.arange(rows.shape[1])] if groups is None else map(np.array, groups):
            chosen = generator.permutation(len(rows))[:most_centres]
            terms.append(Term(columns, ((rows[chosen] - mean) / scale)[:, columns]))
        return cls._through(float(values.mean()), mean, scale, tuple(terms), rows, values)

    @classmethod
    def _through(
        cls, level: float, mean: Array, scale: Array, terms: tuple[Term, ...], rows: Array, values: Array
    ) -> Smooth:
        width = 1 + 2 * len(scale)
        system = np.diag(np.full(width + sum(len(term.centres) for term in terms), NOISE * (1 / STRAIGHT**2 + JITTER)))
        for term in terms:
            begin, width = width, width + len(term.centres)
            system[begin:width, begin:width] = NOISE * (term.bumps(term.centres) + JITTER * np.eye(width - begin))
        target = np.zeros(len(system))
        for begin in range(0, len(rows), AT_ONCE):
            some = slice(begin, begin + AT_ONCE)
            basis = _basis((rows[some] - mean) / scale, terms)
            system += basis.T @ basis
            target += basis.T @ (values[some] - level)
        inverse = np.asarray(np.linalg.inv(system), dtype=np.float64)
        inverse = (inverse + inverse.T) / 2  # exactly symmetric, so that one half says all of it
        return cls(level, mean, scale, terms, inverse @ target, inverse)

    def basis(self, rows: Array) -> Array:
        """The basis functions' values for each row."""
        return _basis((rows - self.mean) / self.scale, self.terms)

    def values(self, rows: Array) -> Array:
        """The fit's values on these rows, in a small part of the time that their deviations take."""
        return self.valued(self.basis(rows))

    def valued(self, basis: Array) -> Array:
        """The values of rows with this basis."""
        return np.asarray(self.level + basis @ self.weights)

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """The fit's values on these rows, and the standard deviation of each."""
        basis = self.basis(rows)
        return self.valued(basis), self.deviations(basis)

    def deviations(self, basis: Array) -> Array:
        """The standard deviations of values with this basis."""
        variance = sum((part**2).sum(axis=1, dtype=np.float64) for part in self._through_root(basis))
        return np.asarray(np.sqrt(NOISE * variance))

    def _through_root(self, basis: Array) -> Iterator[NDArray[np.float32]]:
        """The basis times the inverse's root, some columns at a time."""
        narrow = basis.astype(np.float32)
        return (narrow[:, begin:] @ strip for begin, strip in self._root)

    @cached_property
    def _root(self) -> list[tuple[int, NDArray[np.float32]]]:
        """The inverse's Cholesky factor: strips of columns, each from the row where it begins to differ from zero.

        Deviations take most of a prediction, and of a fit. Squares cannot cancel, so that single precision is enough.
        """
        try:
            root = np.linalg.cholesky(self.inverse)
        except np.linalg.LinAlgError:  # rounded so that it is not quite positive
            root = np.linalg.cholesky(self.inverse + ROUNDED * np.diag(np.diag(self.inverse)))
        narrow = root.astype(np.float32)
        return [(i, np.ascontiguousarray(narrow[i:, i : i + STRIP])) for i in range(0, len(narrow), STRIP)]

    def without(self, rows: Array, values: Array) -> tuple[Array, Array]:
        """The same on some fitted rows, as if the fit had left them out."""
        basis = self.basis(rows)
        known = sum((part @ part.T for part in self._through_root(basis)), np.zeros((len(rows), len(rows))))
        left_out = np.linalg.inv(np.eye(len(rows)) - known)
        variance = np.diag(left_out) - 1.0
        return values - left_out @ (values - self.level - basis @ self.weights), np.sqrt(
            NOISE * np.maximum(variance, 0.0)
        )


def _basis(scaled: Array, terms: Sequence[Term]) -> Array:
    bumps = [term.bumps(scaled[:, term.columns]) for term in terms]
    return np.hstack([np.ones((len(scaled), 1)), scaled, np.maximum(scaled, 0.0), *bumps])

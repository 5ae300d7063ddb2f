"""The right answer of attention, in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.attention.layout import has_mask
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

_OTHER_ROUNDOFFS = 14
"""4 for an exponential, 4 for the mean of the others', 2 for the division, 4 for the last step of a late largest."""

_FARTHEST = 800.0
"""exp(-800) is 0 in float64."""

_NEIGHBOURS = 128
"""Keys that share the scales of V's columns, at most; they may begin anywhere."""

_SHARE = 2.0**-14
"""An element of V counts with at least this share of the largest of its column among such keys and their neighbours."""

_ROWS = 512
"""Queries at a time, so that no array of scores is large."""


@np.errstate(invalid="ignore", over="ignore", divide="ignore")
def attention_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """softmax(Q Kᵀ scale + mask) V; rows whose every key is masked are 0, as PyTorch has them.

    Let s be a score, p its share, O the result and u the unit roundoff. A score is off by u sqrt(depth) times the sum
    of its products' absolute values, scaled, and by u for the size of a mask and of the score; this and what softmax
    adds (`_OTHER_ROUNDOFFS`, see softmax/reference.py) are a relative error E u of p, by which O moves by
    p E u (|v| + |O|). Sums over keys add sqrt(keys) u times the sum of p |v|. FP16 parts know an element of V to 2^-39
    of the largest of its column in a tile, so that an element counts with at least `_SHARE` of that.
    """
    shape = problem.shape
    batch, heads, queries, keys, depth = (shape[a] for a in ("batch", "heads", "queries", "keys", "depth"))
    q, k, v = (arrays[name].astype(np.float64) for name in "QKV")
    scale, group = scalars["scale"], heads // shape["kv_heads"]
    value = np.zeros((batch, heads, queries, depth))
    magnitude = np.zeros_like(value)
    for b in range(batch):
        for h in range(heads):
            own_k, own_v = k[b, h // group], v[b, h // group]
            counted = np.maximum(np.abs(own_v), _SHARE * _largest_around(own_v))
            for start in range(0, queries, _ROWS):
                rows = slice(start, min(start + _ROWS, queries))
                mask = _mask(problem, arrays, b, h, rows)
                p, error = _shares(q[b, h, rows], own_k, scale, mask, depth)
                found = value[b, h, rows] = p @ own_v
                weighted = p * np.where(p == 0.0, 0.0, error)  # an infinite score may have no share
                share = weighted.sum(axis=1, keepdims=True) * np.abs(found)
                magnitude[b, h, rows] = p @ counted + (weighted @ counted + share) / math.sqrt(keys)
    if problem.options["heads_inside"]:
        value, magnitude = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (value, magnitude))
    return Reference(value, magnitude, keys)


def _mask(problem: Problem, arrays: Arrays, b: int, h: int, rows: slice) -> NDArray[np.float64] | None:
    """Addends to the scores of these rows by the mask: minus infinity for a key that is left out."""
    if has_mask(problem):
        return np.asarray(arrays["M"][b, h, rows], dtype=np.float64)
    if problem.options["mask"] == "causal":
        i, j = np.arange(rows.start, rows.stop)[:, np.newaxis], np.arange(problem.shape["keys"])
        return np.where(j <= i, 0.0, -np.inf)
    return None


def _shares(
    q: NDArray[np.float64], k: NDArray[np.float64], scale: float, mask: NDArray[np.float64] | None, depth: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The share of each key, and its relative error in units of the roundoff."""
    scores = (q @ k.T) * scale
    error = (np.abs(q) @ np.abs(k).T) * (abs(scale) * math.sqrt(depth)) + np.abs(scores)
    if mask is not None:
        scores += mask
        error += np.where(np.isfinite(mask), np.minimum(np.abs(mask), _FARTHEST), 0.0)
    largest = scores.max(axis=1, keepdims=True)
    scores -= np.where(np.isneginf(largest), 0.0, largest)
    error += np.minimum(np.abs(scores), _FARTHEST) + _OTHER_ROUNDOFFS
    p = np.exp(scores)
    total = p.sum(axis=1, keepdims=True)
    p /= np.where(total == 0.0, 1.0, total)
    error += (p * np.where(p == 0.0, 0.0, error)).sum(axis=1, keepdims=True)
    return p, error


def _largest_around(v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest magnitude among the neighbours of each key, column by column."""
    keys, depth = v.shape
    chunks = -(-keys // _NEIGHBOURS)
    padded = np.zeros((chunks * _NEIGHBOURS, depth))
    padded[:keys] = np.abs(v)
    largest = padded.reshape(chunks, _NEIGHBOURS, depth).max(axis=1)
    around = largest.copy()
    around[1:] = np.maximum(around[1:], largest[:-1])
    around[:-1] = np.maximum(around[:-1], largest[1:])
    return np.repeat(around, _NEIGHBOURS, axis=0)[:keys]

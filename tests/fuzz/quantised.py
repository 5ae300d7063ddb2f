"""Random layers with quantised weights, whose rows are whole groups, and those at the edges of what variants do."""

from __future__ import annotations

import itertools
import random

from fuzz.sizes import EDGES, random_size

from tilewright.kernels.linear_quantized.declaration import MOST_ROWS
from tilewright.kernels.linear_quantized.held_space import MOST_ROWS as MOST_HELD
from tilewright.kernels.linear_quantized.reference import GROUP

MOST_GROUPS = 24
"""Of a row of weights."""


def random_layer(generator: random.Random) -> dict[str, int]:
    """Some rows of X, and of W."""
    n, m = random_size(generator), generator.randint(1, generator.choice((MOST_HELD, MOST_ROWS)))
    return {"m": m, "n": n, "k": GROUP * generator.randint(1, MOST_GROUPS)}


def edge_layers() -> list[dict[str, int]]:
    """Few rows of X and as many as there may be, of one group and of two."""
    sizes = itertools.product((1, 8, MOST_HELD, MOST_ROWS), EDGES, (GROUP, 2 * GROUP))
    return [{"m": m, "n": n, "k": k} for m, n, k in sizes]

"""Sizes of one axis: at random, and at the edges of tiles."""

from __future__ import annotations

import random

LARGEST = 700
EDGES = (1, 127, 129)
"""A single row, column or product, and one element more or less than a tile of 128, in every combination of axes."""

ALIGNMENTS = (1, 1, 1, 4, 8, 32)
"""A random size is a multiple of one of these: half of the axes end anywhere, half let vectors be used."""


def random_size(generator: random.Random) -> int:
    """From 1 to LARGEST."""
    step = generator.choice(ALIGNMENTS)
    return step * generator.randint(1, LARGEST // step)

"""Digits as a person draws them: strokes in a unit square, and their ink on a grid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

_DRAWN = {
    0: "50,15 35,20 27,40 27,60 35,80 50,85 65,80 73,60 73,40 65,20 50,15",
    1: "50,15 50,85",
    2: "30,30 36,18 50,14 64,20 68,33 60,50 42,68 28,84 72,84",
    3: "30,20 45,14 62,18 66,32 58,45 45,48 60,52 69,66 62,81 45,86 29,80",
    4: "58,15 28,60 75,60 / 60,40 60,87",
    5: "68,15 36,15 33,46 50,42 66,50 69,66 60,82 44,86 30,80",
    6: "60,14 42,30 32,55 34,76 50,86 66,76 66,60 52,50 36,60",
    7: "28,16 72,16 55,50 42,86 / 38,50 68,50",
    8: "50,50 36,40 34,25 50,14 66,25 63,40 50,50 34,62 32,78 50,87 68,78 66,62 50,50",
    9: "66,36 56,48 40,46 34,32 42,18 56,15 66,25 67,36 64,60 56,86",
}

STROKES = {
    digit: [
        [tuple(int(part) / 100 for part in point.split(",")) for point in stroke.split()] for stroke in text.split("/")
    ]
    for digit, text in _DRAWN.items()
}
"""One way to draw each, x to the right and y down. A seven without its bar is a coin's toss to the network."""


def ink(digit: int, side: int = 56, width: float = 0.075, scale: float = 1.0, shift: tuple[float, float] = (0, 0)):
    """(side, side), 0 to 1: how much of each pixel is ink; drawn smaller and elsewhere by `scale` and `shift`."""
    y, x = (np.mgrid[0:side, 0:side] + 0.5) / side
    drawn = np.zeros((side, side))
    for stroke in STROKES[digit]:
        points = [((px - 0.5) * scale + 0.5 + shift[0], (py - 0.5) * scale + 0.5 + shift[1]) for px, py in stroke]
        for (x0, y0), (x1, y1) in pairwise(points):
            length = (x1 - x0) ** 2 + (y1 - y0) ** 2
            along = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length, 0, 1)
            apart = np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))
            drawn = np.maximum(drawn, np.clip((width / 2 - apart) * side + 0.5, 0, 1))
    return drawn

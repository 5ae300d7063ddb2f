"""Digits drawn on the page as a hand would."""

from drawn_digits import STROKES


def draw(tab, digit, *, scale=1.0, shift=(0.0, 0.0)):
    """The strokes with the mouse, several steps a segment as a hand would."""
    box = tab.locator("#drawing").bounding_box()
    for stroke in STROKES[digit]:
        points = [
            (
                box["x"] + box["width"] * ((x - 0.5) * scale + 0.5 + shift[0]),
                box["y"] + box["height"] * ((y - 0.5) * scale + 0.5 + shift[1]),
            )
            for x, y in stroke
        ]
        tab.mouse.move(*points[0])
        tab.mouse.down()
        for x, y in points[1:]:
            tab.mouse.move(x, y, steps=6)
        tab.mouse.up()

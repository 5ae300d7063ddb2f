"""Shapes of the matrix, and what its page shows of them."""

from tilewright.service.dashboard.formatting import TIMES

LLAMA = {"m": 16, "n": 6144, "k": 4096}
SQUARE = {"m": 512, "n": 512, "k": 512}


def cells(page: str, row: str) -> list[str]:
    """The cells of the row whose shape is named."""
    matrix = page.partition('<table class="matrix">')[2]
    line = next(part for part in matrix.split("<tr>") if f">{row}</a>" in part)
    return line.split('<td class="cell ')[1:]


def shape(*sizes: int) -> str:
    """The sizes as the first column shows them."""
    return f" {TIMES} ".join(map(str, sizes))

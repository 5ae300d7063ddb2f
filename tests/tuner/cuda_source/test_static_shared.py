"""Static shared memory is told from the source, or is said not to be."""

from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.tuner.cuda_source.static_shared import static_shared_bytes

SOURCE = """
#define WIDTH (tile * block)
#ifndef tile
#define tile 7
#endif
#define PADDED WIDTH
#if (tile % 4 == 2) && \\
    defined WIDTH
#define EXTRA (32 - (WIDTH & 31) + 0x3u)
#undef PADDED
#define PADDED (WIDTH + EXTRA)
#endif
const int ROWS = tile * 2, other = 3;
#ifdef __CUDA_ARCH__
#define BY_ARCHITECTURE 3
#endif
#if tile == 3
#define PADDED sizeof(int)
#endif
#define PAD 1
#define TWICE 2
#undef TWICE
#define TWICE 3
"""


class Values:
    tile, block = 2, 32


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("float x[3];", 0),
        ("__shared__ float x[block];", 128),
        ("extern __shared__ float x[];", 0),
        ("__shared__ volatile double x[2][WIDTH + PAD];", 8 * 2 * 65),
        ("__shared__ float4 x[block / 5];", 16 * 6),
        ("__shared__ char x[5];\n__shared__ int n;", 16 + 16),
        ("#if tile == 2\n__shared__ int x[8];\n#else\n__shared__ int x[9];\n#endif\n__shared__ int y[1];", 36),
        ("#if tile > 2\n__shared__ int x[8];\n#else\n__shared__ int x[9];\n#endif", 36),
        (
            "#if tile > 2\n__shared__ int x[8];\n#elif defined(WIDTH)\n__shared__ int x[7];\n#else\n__shared__ T x;",
            28,
        ),
        ("__shared__ float x[ROWS][tile > 4 ? 3 : 5];", 4 * 4 * 5),
        ("__shared__ float x[min(tile, block)];", 8),
        ("const int own = block / 3;\n__shared__ float x[own];", 40),
        ("__shared__ int x[TWICE];", 12),
        ("#ifdef UNKNOWN\n__shared__ int x[8];\n#endif", 32),
    ],
)
def test_bytes_of_what_a_function_declares(body, right):
    text = static_shared_bytes(body, SOURCE, ["tile", "block"])
    assert eval(text or "0", {"c": Values}) == right  # noqa: S307


def test_macros_count_as_they_are_where_they_are_used():
    body = "__shared__ float x[PADDED];\n#undef PADDED\n#define PADDED 1\n__shared__ float y[PADDED];"
    text = static_shared_bytes(body, SOURCE.rpartition("#if tile == 3")[0], ["tile", "block"])
    right = {2: 4 * (64 + 32 + 3) + 4, 4: 4 * 128 + 4, 3: 4 * 96 + 4}
    for tile, size in right.items():
        assert eval(text, {"c": SimpleNamespace(tile=tile, block=32)}) == size  # noqa: S307
    several = SimpleNamespace(tile=np.array([*right]), block=np.array([32, 32, 32]))
    assert [*eval(text, {"c": several})] == [*right.values()]  # noqa: S307


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ T x[8];",
        "__shared__ int x[BY_ARCHITECTURE];",
        "__shared__ int x[PADDED];",
        "__shared__ int x[width];",
        "__shared__ int x[f(tile)];",
    ],
)
def test_what_cannot_be_told(body):
    assert static_shared_bytes(body, SOURCE, ["tile", "block"]) is None

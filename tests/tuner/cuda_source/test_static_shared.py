"""Static shared memory is told from the source, or is said not to be."""

import pytest

from tilewright.tuner.cuda_source.static_shared import static_shared_bytes

SOURCE = """
#define WIDTH (tile * block)
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
        ("#ifdef UNKNOWN\n__shared__ int x[8];\n#endif", 32),
    ],
)
def test_bytes_of_what_a_function_declares(body, right):
    text = static_shared_bytes(body, SOURCE, ["tile", "block"])
    assert eval(text or "0", {"c": Values}) == right  # noqa: S307


@pytest.mark.parametrize("body", ["__shared__ T x[8];", "__shared__ int x[TWICE];", "__shared__ int x[sizeof(int)];"])
def test_what_cannot_be_told(body):
    assert static_shared_bytes(body, SOURCE, ["tile", "block"]) is None

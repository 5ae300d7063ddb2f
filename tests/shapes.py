"""Shapes for tests that go through all kernels, some of which take only certain sizes."""

from tilewright.kernels.errors import InvalidProblemError


def shape_or_example(kernel, shape):
    """The shape where it is a problem of the kernel, else that of its example."""
    try:
        kernel.problem(shape)
    except InvalidProblemError:
        return dict(kernel.example_shape)
    return shape

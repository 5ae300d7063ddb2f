"""A problem's arrays on a GPU that is made of host memory: outputs of all dtypes, compared there, and their poison."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.made_gpu import at
from contracts.tally import LIMIT, PROBLEM, TALLY, UNTOLD

from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.devices.cuda.arrays import ProblemArrays
from tilewright.tuner.loop.expected import expected_by


def computed(arrays):
    """What the kernel would do."""
    keys = at(arrays.addresses["keys"], 1001, np.uint8)
    at(arrays.addresses["scaled"], 1001, np.float32)[:] = keys * np.float32(0.5)
    at(arrays.addresses["is_large"], 1001, np.int32)[:] = keys > LIMIT
    at(arrays.addresses["total"], 1001, np.int64)[:] += keys


@pytest.fixture
def made(gpu):
    return lambda kernel: ProblemArrays(gpu, kernel, PROBLEM, 7)


@pytest.fixture
def arrays(made):
    return made(TALLY)


@pytest.fixture
def untold(made):
    """Of the same kernel without a reference, whose default configuration has been right."""
    arrays = made(UNTOLD)
    computed(arrays)
    arrays.expect(expected_by(UNTOLD, PROBLEM, "default", arrays.outputs()))
    return arrays


def verified(arrays, name="scaled", part=slice(0), added=0):
    """The verification of what the kernel would do, with so much more in a part of an output."""
    arrays.reset_written()
    computed(arrays)
    dtypes = {tensor.name: tensor.dtype_for(PROBLEM) for tensor in arrays.kernel.outputs}
    at(arrays.addresses[name], 1001, dtypes[name])[part] += added
    return arrays.inspect().verification


def test_several_outputs_are_compared_there_with_each_kind_of_inputs(arrays):
    for kind in arrays.kinds:
        arrays.use(kind)
        verification = verified(arrays)
        assert (verification.wrong, verification.inputs, verification.verified) == (0, kind, "")
        assert arrays.case.expected is None
        assert arrays.inspect().trespasses() == []


WRONG = (
    ("total", slice(3, 4), 2**32),
    ("is_large", slice(5, 9), 7),
    ("scaled", slice(1000, 1001), np.nan),
    ("scaled", slice(2, 3), np.inf),
    ("scaled", slice(0, 1), 1e-3),
)
"""An output, what is changed of it, and what is added there."""


@pytest.mark.parametrize(("name", "part", "added"), WRONG)
@pytest.mark.parametrize("kernel", ["arrays", "untold"])
def test_it_says_what_the_host_would(request, kernel, name, part, added):
    arrays, said = request.getfixturevalue(kernel), (name, part.stop - part.start, (part.start,))
    found = verified(arrays, name, part, added)
    assert (found.tensor, found.wrong, found.first_wrong) == said
    outputs = arrays.outputs()
    arrays.reset_written()
    computed(arrays)
    trusted = expected_by(arrays.kernel, PROBLEM, "default", arrays.outputs())
    on_host = trusted.compare(outputs)
    assert (on_host.tensor, on_host.wrong, on_host.first_wrong, on_host.expected) == (*said, found.expected)
    assert found.got == pytest.approx(on_host.got, nan_ok=True)
    if kernel == "untold":
        assert (found.bound_ratio, found.verified) == (pytest.approx(on_host.bound_ratio), trusted.verified)


def test_infinities_and_nan_that_a_trusted_configuration_leaves_are_right(untold):
    outputs = {name: array.copy() for name, array in untold.outputs().items()}
    outputs["scaled"][:3] = np.inf, -np.inf, np.nan
    untold.expect(expected_by(UNTOLD, PROBLEM, "default", outputs))
    assert verified(untold, "scaled", slice(3), [np.inf, -np.inf, np.nan]).is_right
    assert verified(untold, "scaled", slice(3), [np.inf, np.inf, np.nan]).wrong == 1
    assert verified(untold).wrong == 3


@pytest.mark.parametrize("kernel", ["arrays", "untold"])
def test_an_integer_that_is_not_written_is_wrong_whatever_it_would_have_been(request, kernel):
    arrays = request.getfixturevalue(kernel)
    arrays.reset_written()
    at(arrays.addresses["scaled"], 1001, np.float32)[:] = at(arrays.addresses["keys"], 1001, np.uint8) * np.float32(0.5)
    at(arrays.addresses["total"], 1001, np.int64)[:] += at(arrays.addresses["keys"], 1001, np.uint8)
    verification = arrays.inspect().verification
    assert (verification.tensor, verification.wrong) == ("is_large", 1001)


def test_a_reference_that_is_none_of_the_outputs_integers_is_compared_on_the_host(made):
    def reference(problem, arrays, scalars):
        told = TALLY.reference(problem, arrays, scalars)
        return told | {"is_large": told["is_large"] + 2**32}  # would be right in 32 bits

    arrays = made(replace(TALLY, reference=reference))
    verification = verified(arrays)
    assert (verification.tensor, verification.wrong) == ("is_large", 1001)


@pytest.mark.parametrize("stride", [2, 3])
def test_a_write_between_the_elements_of_an_output_is_found(made, stride):
    *others, flags, total = TALLY.arguments
    arrays = made(replace(TALLY, arguments=(*others, replace(flags, strides=lambda _p: (stride,)), total)))
    keys = at(arrays.addresses["keys"], 1001, np.uint8)
    memory = at(arrays.addresses["is_large"], 1000 * stride + 1, np.int32)
    memory[::stride] = keys > LIMIT
    assert arrays.inspect().trespasses() == []
    memory[[stride + 1, 1000 * stride]] = 0  # the second is the last element
    assert arrays.inspect().trespasses() == ["1 elements between the rows of is_large were written"]


def test_a_write_between_the_rows_of_an_output_of_integers_is_found(gpu):
    """A matrix of 11 x 91 in rows of 100, which is compared there."""
    *others, flags, total = TALLY.arguments
    flags = replace(flags, shape=lambda _p: (11, 91), strides=lambda _p: (100, 1))

    def reference(problem, arrays, scalars):
        told = TALLY.reference(problem, arrays, scalars)
        return told | {"is_large": told["is_large"].reshape(11, 91)}

    kernel = replace(TALLY, arguments=(*others, flags, total), reference=reference)
    arrays = ProblemArrays(gpu, kernel, PROBLEM, 7)
    arrays.reset_written()
    memory = at(arrays.addresses["is_large"], 1091, np.int32)
    large = (random_arrays(kernel, PROBLEM, 7)["keys"] > LIMIT).reshape(11, 91)
    for row in range(11):
        memory[100 * row : 100 * row + 91] = large[row]
    assert arrays.case.expected is None
    assert arrays.inspect().trespasses() == []
    memory[[95, 1090]] = 3  # the second is the last element
    inspection = arrays.inspect()
    assert inspection.trespasses() == ["1 elements between the rows of is_large were written"]


def test_a_changed_byte_of_an_input_and_a_write_beside_an_array_of_bytes_are_found(arrays):
    arrays.reset_written()
    computed(arrays)
    at(arrays.addresses["keys"], 1005, np.uint8)[[1000, 1004]] = 77  # the last, and one behind the padding of 3 bytes
    assert arrays.inspect().trespasses() == [
        "1 words of 4 bytes beside keys were written",
        "the input keys was changed",
    ]

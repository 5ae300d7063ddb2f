"""A problem's arrays on a GPU that is made of host memory: outputs that the host compares, and their poison."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from contracts.tally import LIMIT, PROBLEM, TALLY

from tilewright.tuner.arrays import scalar_values
from tilewright.tuner.devices.cuda.arrays import ProblemArrays


def at(address, count, dtype):
    """The numbers that lie there."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


class Memory(np.ndarray):
    def __int__(self):
        return self.ctypes.data


def count_damage(_launch, band, words, answer):
    at(answer, 1, np.uint64)[0] += np.count_nonzero(at(band, words, np.uint32) != 0xFFFFFFFF)


def fingerprint(_launch, address, words, answer):
    at(answer, 1, np.uint64)[0] += hash(at(address, words, np.uint32).tobytes()) % 2**63


class MadeGpu:
    """A device of host memory; of the checks it has those that any kernel needs."""

    def allocate(self, size_bytes):
        return np.empty(size_bytes, np.uint8).view(Memory)

    def upload(self, address, data):
        ctypes.memmove(address, np.ascontiguousarray(data).ctypes.data, data.nbytes)

    def download(self, address, data):
        ctypes.memmove(data.ctypes.data, address, data.nbytes)

    def copy(self, target, source, size_bytes):
        ctypes.memmove(target, source, size_bytes)

    def fill(self, address, size_bytes, byte):
        ctypes.memset(address, byte, size_bytes)

    def compilation(self, *_):
        return None

    def compile(self, _):
        return SimpleNamespace(cubin=b"")

    def load(self, _cubin, name, _arguments):
        return SimpleNamespace(enqueue={"count_damage": count_damage, "fingerprint": fingerprint}.get(name))

    def synchronize(self):
        pass

    def free_bytes(self):
        return 1 << 30


def computed(arrays):
    """What the kernel would do."""
    keys = at(arrays.addresses["keys"], 1001, np.uint8)
    at(arrays.addresses["scaled"], 1001, np.float32)[:] = keys * np.float32(0.5)
    at(arrays.addresses["is_large"], 1001, np.int32)[:] = keys > LIMIT
    at(arrays.addresses["total"], 1001, np.int64)[:] += keys


@pytest.fixture
def arrays():
    return ProblemArrays(MadeGpu(), TALLY, PROBLEM, 7, scalar_values(TALLY, PROBLEM))


def test_several_outputs_are_compared_on_the_host_with_each_kind_of_inputs(arrays):
    for kind in arrays.kinds:
        arrays.use(kind)
        arrays.reset_written()
        computed(arrays)
        inspection = arrays.inspect()
        assert (inspection.verification.wrong, inspection.verification.inputs) == (0, kind)
        assert inspection.trespasses() == []


def test_an_integer_that_is_not_written_is_wrong_whatever_it_would_have_been(arrays):
    arrays.reset_written()
    at(arrays.addresses["scaled"], 1001, np.float32)[:] = at(arrays.addresses["keys"], 1001, np.uint8) * np.float32(0.5)
    at(arrays.addresses["total"], 1001, np.int64)[:] += at(arrays.addresses["keys"], 1001, np.uint8)
    verification = arrays.inspect().verification
    assert (verification.tensor, verification.wrong) == ("is_large", 1001)


def test_a_write_between_the_rows_of_an_output_is_found():
    *others, flags, total = TALLY.arguments
    kernel = replace(TALLY, arguments=(*others, replace(flags, strides=lambda _p: (3,)), total))
    arrays = ProblemArrays(MadeGpu(), kernel, PROBLEM, 7, scalar_values(kernel, PROBLEM))
    keys, memory = at(arrays.addresses["keys"], 1001, np.uint8), at(arrays.addresses["is_large"], 3001, np.int32)
    memory[::3] = keys > LIMIT
    assert arrays.inspect().trespasses() == []
    memory[[4, 3000]] = 0  # the second is the last element
    assert arrays.inspect().trespasses() == ["1 elements between the rows of is_large were written"]


def test_a_changed_byte_of_an_input_and_a_write_beside_an_array_of_bytes_are_found(arrays):
    arrays.reset_written()
    computed(arrays)
    at(arrays.addresses["keys"], 1005, np.uint8)[[1000, 1004]] = 77  # the last, and one behind the padding of 3 bytes
    assert arrays.inspect().trespasses() == [
        "1 words of 4 bytes beside keys were written",
        "the input keys was changed",
    ]

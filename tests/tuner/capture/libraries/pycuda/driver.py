from __future__ import annotations

import itertools
import time

import numpy as np

MEMORY: dict[int, np.ndarray] = {}
_ADDRESSES = itertools.count(1 << 32, 1 << 24)
_STACK = ["context"]


class Error(Exception):
    pass


class ManagedAllocationOrStub:
    pass


class DeviceAllocation:
    def __init__(self, size_bytes):
        self._address = next(_ADDRESSES)
        MEMORY[self._address] = np.zeros(size_bytes, np.uint8)

    def __int__(self):
        return self._address


mem_alloc = DeviceAllocation


def mem_get_address_range(address):
    for first, memory in MEMORY.items():
        if first <= address < first + memory.nbytes:
            return first, memory.nbytes
    raise Error("invalid value")


def memcpy_dtoh(host, address):
    host.view(np.uint8).reshape(-1)[:] = MEMORY[int(address)][: host.nbytes]


def memcpy_htod(address, host):
    MEMORY[int(address)][: host.nbytes] = host.view(np.uint8).reshape(-1)


class ArgumentHandler:
    def __init__(self, array):
        self.array, self.allocation = array, mem_alloc(array.nbytes)


class In(ArgumentHandler):
    pass


class Out(ArgumentHandler):
    pass


class Event:
    def record(self, stream=None):
        assert stream is None
        self._s = time.perf_counter()

    def query(self):
        if not _STACK:
            raise Error("no context")
        return True

    def time_till(self, end):
        return (end._s - self._s) * 1e3


class Context:
    @staticmethod
    def pop():
        _STACK.pop()

    @staticmethod
    def synchronize():
        if not _STACK:
            raise Error("no context")


class Function:
    def _launch_kernel(self, grid, block, arguments, shared, stream):
        assert isinstance(grid, tuple)
        assert isinstance(block, tuple)
        y, x, a, n = arguments
        count = int(n)
        MEMORY[int(y)].view(np.float32)[:count] = np.asarray(a, np.float32) * MEMORY[int(x)].view(np.float32)[:count]

    def __call__(self, *arguments, grid=(1, 1), block=None, shared=0, stream=None):
        handled = [one for one in arguments if isinstance(one, ArgumentHandler)]
        for one in handled:
            if isinstance(one, In):
                memcpy_htod(one.allocation, one.array)
        passed = [getattr(one, "allocation", getattr(one, "gpudata", one)) for one in arguments]
        self._launch_kernel(grid, block, passed, shared, stream)
        for one in handled:
            if isinstance(one, Out):
                memcpy_dtoh(one.array, one.allocation)

    def prepare(self, types):
        self.arg_format = types
        return self

    def prepared_call(self, grid, block, *arguments, shared_size=0):
        self._launch_kernel(grid, block, arguments, shared_size, None)

    def prepared_timed_call(self, grid, block, *arguments, shared_size=0):
        self._launch_kernel(grid, block, arguments, shared_size, None)
        return lambda: 1e-6

    def prepared_async_call(self, grid, block, stream, *arguments, shared_size=0):
        self._launch_kernel(grid, block, arguments, shared_size, stream)


class Module:
    def get_function(self, name):
        return Function()

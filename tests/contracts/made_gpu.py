"""A GPU that is made of host memory: what the bench asks of one, by a thread that runs the checks' own source."""

import ctypes
import hashlib
import subprocess
from types import SimpleNamespace

import numpy as np

from tilewright.tuner.devices.cpu.compile import find_compiler


def at(address, count, dtype):
    """The numbers that lie there."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


class Memory(np.ndarray):
    def __int__(self):
        return self.ctypes.data


ONE_THREAD = """
#include <math.h>
#include <stddef.h>
#include <string.h>
#define __global__
#define __device__
#define __forceinline__ inline
struct uint4 { unsigned x, y, z, w; };
struct { unsigned x; } blockIdx, threadIdx, blockDim = {1}, gridDim = {1};
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __shfl_down_sync(unsigned, T, int) { return T(0); }
template <class T> void atomicMax(T* to, T value) { if (value > *to) *to = value; }
template <class T> void atomicMin(T* to, T value) { if (value < *to) *to = value; }
template <class T> void atomicAdd(T* to, T value) { *to += value; }
static double __longlong_as_double(long long bits) { double x; memcpy(&x, &bits, 8); return x; }
static long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, 8); return bits; }
"""
LETTERS = {"P": ctypes.c_void_p, "Q": ctypes.c_uint64, "d": ctypes.c_double, "i": ctypes.c_int}


class MadeGpu:
    """A device of host memory and of one thread, which runs the checks as they are."""

    def __init__(self, folder):
        self.folder = folder

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

    def compilation(self, source, macros, _name):
        return ONE_THREAD + "".join(f"#define {name} {value}\n" for name, value in macros.items()) + source

    def compile(self, text):
        source = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.cpp"
        library = source.with_suffix(".so")
        if not library.exists():
            source.write_text(text)
            compiler = find_compiler()
            command = [*compiler.command, "-std=c++17", "-shared", "-fPIC", "-O1", "-o", library, source]
            subprocess.run(command, check=True)
        return SimpleNamespace(cubin=ctypes.CDLL(str(library)))

    def load(self, cubin, name, letters):
        function = getattr(cubin, name)
        function.argtypes = [LETTERS[letter] for letter in letters]
        return SimpleNamespace(enqueue=lambda _launch, *arguments: function(*arguments))

    def synchronize(self):
        pass

    def free_bytes(self):
        return 1 << 30

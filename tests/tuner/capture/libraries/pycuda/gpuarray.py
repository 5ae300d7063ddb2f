import numpy as np

import pycuda.driver as drv


class GPUArray:
    base = None

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides
        self.gpudata = drv.mem_alloc(int(np.prod(shape)) * self.dtype.itemsize)

    def get(self):
        host = np.empty(self.shape, self.dtype)
        drv.memcpy_dtoh(host, self.gpudata)
        return host


def to_gpu(host):
    array = GPUArray(host.shape, host.dtype)
    drv.memcpy_htod(array.gpudata, host)
    return array

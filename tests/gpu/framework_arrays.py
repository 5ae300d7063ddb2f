"""A product's operands, and how each framework holds them on the GPU."""

import numpy as np

M, N, K = 100, 52, 260
TOLERANCE = {"rtol": 2e-5, "atol": 2e-4}


def operands(dtype="float32", seed=1):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((M, K)).astype(dtype), generator.standard_normal((K, N)).astype(dtype)


class TorchArrays:
    def __init__(self, torch):
        self.torch = torch

    def put(self, host):
        return self.torch.from_numpy(host).cuda()

    def get(self, array):
        return array.cpu().numpy()

    def address(self, array):
        return array.data_ptr()


class CupyArrays:
    def __init__(self, cupy):
        self.cupy = cupy

    def put(self, host):
        return self.cupy.asarray(host)

    def get(self, array):
        return self.cupy.asnumpy(array)

    def address(self, array):
        return array.data.ptr


class PycudaArrays:
    def __init__(self, drv):
        import pycuda.gpuarray  # noqa: PLC0415

        self.gpuarray = pycuda.gpuarray

    def put(self, host):
        return self.gpuarray.to_gpu(host)

    def get(self, array):
        return array.get()

    def address(self, array):
        return array.ptr

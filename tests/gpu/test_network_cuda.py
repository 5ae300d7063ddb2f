"""The network on a GPU: PyCUDA's arrays, launched one by one and replayed as a graph; PyTorch's tensors where it is."""

import warnings

import numpy as np
import pytest

from tilewright.tuner.network.launch import ForwardGraph, LaunchedNetwork
from tilewright.tuner.network.network import Network
from tilewright.tuner.runtime import Runtime, UntunedWarning

pytestmark = pytest.mark.gpu
BATCH = 48
SIZES = [(784, 100, 100, 10), (33, 17, 5)]


@pytest.fixture(autouse=True)
def _defaults():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        yield


def batches(network, count):
    generator = np.random.default_rng(5)
    return [generator.standard_normal((BATCH, network.sizes[0])).astype(np.float32) for _ in range(count)]


def assert_equal(found, network, x):
    np.testing.assert_allclose(found, network.forward(x), atol=2e-6, rtol=5e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_and_their_graph_compute_what_numpy_does(device, sizes, fused):
    gpuarray = pytest.importorskip("pycuda.gpuarray")
    network = Network.random(sizes, seed=1)
    first, second = batches(network, 2)
    x, probabilities = gpuarray.to_gpu(first), gpuarray.zeros((BATCH, sizes[-1]), np.float32)
    launched = LaunchedNetwork(network, BATCH, gpuarray.to_gpu, Runtime().best, fused=fused)
    assert launched(x, probabilities, stream=device.stream) is probabilities
    device.synchronize()
    assert_equal(probabilities.get(), network, first)
    graph = ForwardGraph(launched, x, probabilities, device.stream.handle)
    x.set(second)
    graph.replay()
    device.synchronize()
    assert_equal(probabilities.get(), network, second)
    graph.close()


def test_tensors_of_pytorch_go_in_and_out_without_a_copy(device):
    torch = pytest.importorskip("torch")
    network = Network.random(SIZES[0], seed=1)
    first, second = batches(network, 2)
    x, probabilities = torch.from_numpy(first).cuda(), torch.zeros(BATCH, 10, device="cuda")
    launched = LaunchedNetwork(network, BATCH, lambda a: torch.from_numpy(a).cuda(), Runtime().best)
    launched(x, probabilities)
    torch.cuda.synchronize()
    assert_equal(probabilities.cpu().numpy(), network, first)
    pointers, held = (x.data_ptr(), probabilities.data_ptr()), torch.cuda.memory_allocated()
    x.copy_(torch.from_numpy(second))
    assert launched(x, probabilities) is probabilities
    torch.cuda.synchronize()
    assert_equal(probabilities.cpu().numpy(), network, second)
    assert (x.data_ptr(), probabilities.data_ptr()) == pointers
    assert torch.cuda.memory_allocated() == held


def test_pytorchs_own_capture_records_the_launches(device):
    torch = pytest.importorskip("torch")
    network = Network.random(SIZES[0], seed=1)
    first, second = batches(network, 2)
    x, probabilities = torch.from_numpy(first).cuda(), torch.zeros(BATCH, 10, device="cuda")
    launched = LaunchedNetwork(network, BATCH, lambda a: torch.from_numpy(a).cuda(), Runtime().best)
    launched(x, probabilities)  # a capture may not load code
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launched(x, probabilities)
    x.copy_(torch.from_numpy(second))
    graph.replay()
    torch.cuda.synchronize()
    assert_equal(probabilities.cpu().numpy(), network, second)

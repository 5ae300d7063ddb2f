"""The launcher on a GPU: arrays of PyCUDA, torch and CuPy as they lie, on the caller's stream and context."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import warnings

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile import Compilation, arch_of, compile_now
from tilewright.tuner.cpu_compile import find_compiler
from tilewright.tuner.devices import default_compiler
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.runtime import (
    ArgumentError,
    BundleWarning,
    ContextError,
    ForkedError,
    Runtime,
    UntunedWarning,
    WrongDeviceError,
)
from tilewright.tuner.runtime.gpu import gpu_place

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")]

M, N, K = 100, 52, 260
GEMM = catalogue().get("gemm")
TOLERANCE = {"rtol": 2e-5, "atol": 2e-4}


@pytest.fixture(scope="module")
def drv(gpu):
    """PyCUDA, with the primary context current, which torch and CuPy use too."""
    import pycuda.driver as drv  # noqa: PLC0415 - only where GPUs are

    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    yield drv
    context.pop()
    context.detach()


@pytest.fixture(scope="module")
def torch(drv):
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy(drv):
    return pytest.importorskip("cupy")


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    return Runtime()


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


@pytest.fixture(params=["pycuda", "torch", "cupy"])
def arrays(request):
    if request.param == "pycuda":
        return PycudaArrays(request.getfixturevalue("drv"))
    if request.param == "torch":
        return TorchArrays(request.getfixturevalue("torch"))
    return CupyArrays(request.getfixturevalue("cupy"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_every_framework_are_used_where_they_lie(arrays, runtime, dtype):
    a, b = operands(dtype)
    A, B, C = (arrays.put(x) for x in (a, b, np.full((M, N), np.nan, dtype)))
    before = [arrays.address(x) for x in (A, B, C)]
    launch = runtime.best("gemm", m=M, n=N, k=K, dtype=dtype)
    assert launch(A, B, C) is C
    np.testing.assert_allclose(arrays.get(C), a @ b, **TOLERANCE)
    launch(A, B, C, alpha=-0.5)
    np.testing.assert_allclose(arrays.get(C), -0.5 * (a @ b), **TOLERANCE)
    assert [arrays.address(x) for x in (A, B, C)] == before


def test_beta_adds_to_what_the_output_holds(torch, runtime):
    a, b = operands()
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.ones(M, N, device="cuda")
    runtime.best("gemm", m=M, n=N, k=K, beta_zero=False)(A, B, C, alpha=2.0, beta=3.0)
    np.testing.assert_allclose(C.cpu().numpy(), 2 * (a @ b) + 3, **TOLERANCE)


def test_transposed_views_become_options_and_others_are_refused(torch, cupy, runtime):
    a, b = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K)
    for arrays in (TorchArrays(torch), CupyArrays(cupy)):
        A, B, C = arrays.put(np.ascontiguousarray(a.T)).T, arrays.put(np.ascontiguousarray(b.T)).T, arrays.put(a @ b)
        C[...] = 0
        launch(A, B, C)
        np.testing.assert_allclose(arrays.get(C), a @ b, **TOLERANCE)
        wide = arrays.put(np.repeat(a, 2, axis=1))
        with pytest.raises(ArgumentError, match=r"^A: strides"):
            launch(wide[:, ::2], B, C)
        with pytest.raises(ArgumentError, match=r"^C: strides"):
            launch(A, B, arrays.put(np.ascontiguousarray((a @ b).T)).T)


class OnlyInterface:
    def __init__(self, tensor):
        self.__tensor = tensor

    @property
    def __cuda_array_interface__(self):
        return self.__tensor.__cuda_array_interface__


class OnlyDlpack:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **words):
        return self.tensor.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("kind", [OnlyInterface, OnlyDlpack])
def test_the_array_interface_and_dlpack_are_enough(torch, runtime, kind):
    a, b = operands()
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    runtime.best("gemm", m=M, n=N, k=K)(kind(A), kind(B), kind(C))
    np.testing.assert_allclose(C.cpu().numpy(), a @ b, **TOLERANCE)


def test_the_callers_stream_is_used(torch, cupy, drv, runtime):
    launch = runtime.best("gemm", m=M, n=N, k=K)
    a, b = operands()
    A, B, C = torch.empty(M, K, device="cuda"), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    source = torch.from_numpy(a).cuda()
    launch(A, B, C)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # about 10 ms: a launch on another stream would read A too early
        A.copy_(source)
        launch(A, B, C)
    side.synchronize()
    np.testing.assert_allclose(C.cpu().numpy(), a @ b, **TOLERANCE)
    for stream in (side, side.cuda_stream, drv.Stream(), cupy.cuda.Stream(non_blocking=True)):
        C.zero_()
        torch.cuda.synchronize()
        launch(A, B, C, stream=stream)
        torch.cuda.synchronize()
        np.testing.assert_allclose(C.cpu().numpy(), a @ b, **TOLERANCE)


def split_configuration(problem, limits):
    """A configuration whose blocks meet in a workspace."""
    space = GEMM.space(problem, limits, ["register"])
    for configuration in space.feasible:
        if GEMM.variant("register").workspace_bytes(configuration.values, problem):
            return configuration
    raise AssertionError("no configuration has a workspace")


@pytest.fixture
def split(drv, tmp_path, monkeypatch):
    """A launcher that needs a workspace, and its shape."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"m": 64, "n": 64, "k": 4096}
    problem = GEMM.problem(shape)
    configuration = split_configuration(problem, gpu_place(0).limits)
    return Runtime(pinned={problem: configuration}).best("gemm", **shape), shape


def test_a_captured_graph_replays_on_new_numbers(torch, split):
    launch, shape = split
    A = torch.zeros(shape["m"], shape["k"], device="cuda")
    B = torch.randn(shape["k"], shape["n"], device="cuda")
    C = torch.full((shape["m"], shape["n"]), torch.nan, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first launch of all: it loads and allocates, none of which is captured
        launch(A, B, C)
        launch(A, B, C)
    for _ in range(3):
        A.normal_()
        graph.replay()
        launch(A, B, eager := torch.empty_like(C))  # beside the replay, with a workspace of its own
        torch.cuda.synchronize()
        expected = A.double() @ B.double()
        torch.testing.assert_close(C.double(), expected, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(eager.double(), expected, rtol=1e-4, atol=1e-3)


def test_eight_threads_launch_at_once(torch, split):
    launch, shape = split
    wrong, done = [], []

    def work(seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        A = torch.randn(shape["m"], shape["k"], device="cuda", generator=generator)
        B = torch.randn(shape["k"], shape["n"], device="cuda", generator=generator)
        C = torch.empty(shape["m"], shape["n"], device="cuda")
        expected = A.double() @ B.double()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.synchronize()
            for _ in range(50):
                C.fill_(torch.nan)
                launch(A, B, C)
                error = (C.double() - expected).abs().max().item()
                if not error < 1e-2:
                    wrong.append((seed, error))
        done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert not wrong


def test_a_thread_without_a_context_uses_the_arrays_own(drv, runtime):
    arrays = PycudaArrays(drv)
    a, b = operands()
    A, B, C = (arrays.put(x) for x in (a, b, np.zeros((M, N), np.float32)))
    launch = runtime.best("gemm", m=M, n=N, k=K)
    failed = []

    def work():
        try:
            launch(A, B, C)
        except Exception as error:  # noqa: BLE001 - told in the main thread
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    drv.Context.synchronize()
    assert not failed
    np.testing.assert_allclose(C.get(), a @ b, **TOLERANCE)


def test_freed_memory_is_noticed_and_nothing_runs(drv, runtime):
    arrays = PycudaArrays(drv)
    a, b = operands()
    A, B, C = (arrays.put(x) for x in (a, b, np.full((M, N), 7, np.float32)))
    launch = runtime.best("gemm", m=M, n=N, k=K)
    launch(A, B, C)
    C.fill(np.float32(7))
    A.gpudata.free()
    with pytest.raises(ContextError, match=r"^A: .* freed"):
        launch(A, B, C)
    assert (C.get() == 7).all()


def test_memory_of_another_context_is_refused(drv, runtime):
    arrays = PycudaArrays(drv)
    a, b = operands()
    A, B, C = (arrays.put(x) for x in (a, b, np.zeros((M, N), np.float32)))
    launch = runtime.best("gemm", m=M, n=N, k=K)
    other = drv.Device(0).make_context()
    try:
        with pytest.raises(ContextError, match=r"^A belongs to another CUDA context"):
            launch(A, B, C)
        D, E, F = (arrays.put(x) for x in (a, b, np.zeros((M, N), np.float32)))
        launch(D, E, F)
        np.testing.assert_allclose(F.get(), a @ b, **TOLERANCE)
        addresses = [x.ptr for x in (D, E, F)]
        del D, E, F
    finally:
        other.pop()
        other.detach()
    launch(A, B, C)
    np.testing.assert_allclose(C.get(), a @ b, **TOLERANCE)
    assert all(addresses)


def test_a_new_context_gets_a_module_of_its_own(drv, runtime):
    arrays = PycudaArrays(drv)
    a, b = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K)
    for _ in range(3):  # handles of contexts are used again, their ids are not
        context = drv.Device(0).make_context()
        try:
            A, B, C = (arrays.put(x) for x in (a, b, np.zeros((M, N), np.float32)))
            launch(A, B, C)
            np.testing.assert_allclose(C.get(), a @ b, **TOLERANCE)
            del A, B, C
        finally:
            context.pop()
            context.detach()


def test_misaligned_and_shared_memory_is_refused(torch, runtime):
    a, b = operands()
    flat = torch.zeros(M * K + 1, device="cuda")
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    launch = runtime.best("gemm", m=M, n=N, k=K)
    with pytest.raises(ArgumentError, match=r"^A: starts 4 bytes past") as refused:
        launch(flat[1:].view(M, K), B, C)
    assert refused.value.argument == "A"
    with pytest.raises(ArgumentError, match=r"^C: shares memory with A"):
        launch(A, B, A.view(-1)[: M * N].view(M, N))


def test_arrays_elsewhere_are_refused(torch, runtime):
    a, b = operands()
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    with pytest.raises(WrongDeviceError, match="A on the CPU"):
        runtime.best("gemm", m=M, n=N, k=K)(a, B, C)
    with pytest.raises(WrongDeviceError, match="for cpu"):
        runtime.best("gemm", m=M, n=N, k=K, device="cpu")(A, B, C)
    with pytest.raises(WrongDeviceError, match="no cuda:99"):
        runtime.best("gemm", m=M, n=N, k=K, device="cuda:99")


def test_the_gpu_that_is_not_current_is_refused(torch, runtime):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K)
    A, B, C = (torch.from_numpy(x).to("cuda:1") for x in (a, b, np.zeros((M, N), np.float32)))
    with pytest.raises(WrongDeviceError, match="cuda:1"):
        launch(A, B, C)
    with torch.cuda.device(1):
        launch(A, B, C)
        np.testing.assert_allclose(C.cpu().numpy(), a @ b, **TOLERANCE)


def runtime_with(tmp_path, problem, cubin):
    """A runtime whose trusted bundle holds that code for `tiled`."""
    name = hashlib.sha256(cubin).hexdigest()
    result = problem.as_json() | {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": 16},
        "source": GEMM.source_hash("tiled"),
        "cubin": name,
    }
    document = {
        "format": "tilewright-bundle/1",
        "device_model": {"slug": gpu_place(0).slug},
        "results": [result],
        "cubins": {name: base64.b64encode(cubin).decode()},
    }
    (tmp_path / "bundle.json").write_text(json.dumps(document))
    runtime = Runtime(bundle=tmp_path / "bundle.json")
    runtime._bundle.is_trusted = True  # as after a checked signature, which needs no GPU
    return runtime


def test_the_code_of_a_trusted_bundle_is_loaded_instead_of_compiling(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"m": 48, "n": 48, "k": 48}
    told, other = GEMM.problem(shape), GEMM.problem(shape, options={"trans_b": True})
    arch = arch_of(gpu_place(0).limits.compute_capability)
    work = Compilation.of(GEMM, other, Configuration.of("tiled", {"TILE_WIDTH": 16}), arch, default_compiler())
    runtime = runtime_with(tmp_path, told, compile_now(work).cubin)
    A, B, C = (torch.randn(48, 48, device="cuda") for _ in range(3))
    runtime.best("gemm", **shape)(A, B, C)
    torch.testing.assert_close(C, A @ B.T, rtol=1e-4, atol=1e-3)  # the other problem's code, by which it is told apart
    assert not list(tmp_path.glob("cubin/*/*"))


def test_code_that_the_driver_refuses_is_compiled_instead(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"m": 48, "n": 48, "k": 48}
    A, B, C = (torch.randn(48, 48, device="cuda") for _ in range(3))
    launch = runtime_with(tmp_path, GEMM.problem(shape), b"\x7fELF" + bytes(512)).best("gemm", **shape)
    with pytest.warns(BundleWarning, match="cubin is of no use here"):
        launch(A, B, C)
    torch.testing.assert_close(C, A @ B, rtol=1e-4, atol=1e-3)


def test_memory_of_a_pool_is_taken(cupy, torch, runtime):
    """It belongs to no context, only to a GPU."""
    a, b = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        A, B, C = cupy.asarray(a), cupy.asarray(b), cupy.zeros((M, N), np.float32)
        launch(A, B, C)
        launch(OnlyInterface(A), OnlyInterface(B), OnlyInterface(C))
        np.testing.assert_allclose(cupy.asnumpy(C), a @ b, **TOLERANCE)
        del A, B, C


def test_a_tensor_in_the_hosts_memory_runs_on_the_cpu(torch, runtime):
    try:
        find_compiler()
    except NoCompilerError:
        pytest.skip("no C++ compiler")
    a, b = operands()
    C = torch.zeros(M, N)
    runtime.best("gemm", m=M, n=N, k=K)(torch.from_numpy(a), torch.from_numpy(b), C)
    np.testing.assert_allclose(C.numpy(), a @ b, **TOLERANCE)


def test_preparing_compiles_and_loads_ahead(torch, drv, runtime):
    launch = runtime.best("gemm", m=M, n=N, k=K)
    launch.prepare("cuda:0")
    (loaded,) = launch._on[launch.problem, "cuda"]._loaded.values()
    a, b = operands()
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    launch(A, B, C)
    assert list(launch._on[launch.problem, "cuda"]._loaded.values()) == [loaded]
    np.testing.assert_allclose(C.cpu().numpy(), a @ b, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told(torch, runtime):
    a, b = operands()
    A, B, C = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), torch.zeros(M, N, device="cuda")
    launch = runtime.best("gemm", m=M, n=N, k=K)
    launch(A, B, C)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            launch(A, B, C)
        except ForkedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_unknown_problem_is_warned_of_once(drv, runtime):
    arrays = PycudaArrays(drv)
    X, Y = arrays.put(np.ones((8, 24), np.float32)), arrays.put(np.zeros((8, 24), np.float32))
    launch = runtime.best("softmax", m=8, n=24)
    with pytest.warns(UntunedWarning, match="softmax m=8,n=24 float32 on nvidia-"):
        launch(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(X, Y)
    np.testing.assert_allclose(Y.get(), 1 / 24, rtol=1e-6)

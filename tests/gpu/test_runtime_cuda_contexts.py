"""The launcher and the driver: contexts, memory, devices, forks, and code that comes in a bundle."""

import base64
import hashlib
import json
import os
import threading

import numpy as np
import pytest
from foreign_arrays import OnlyInterface
from framework_arrays import TOLERANCE, K, M, N, PycudaArrays, operands

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import compile_now, default_compiler
from tilewright.tuner.runtime import BundleWarning, ContextError, ForkedError, Runtime, WrongDeviceError
from tilewright.tuner.runtime.launches.gpu import gpu_place

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")]

GEMM = catalogue().get("gemm")


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

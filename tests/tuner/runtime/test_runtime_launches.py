"""The launcher on the CPU device: what it computes, with which configuration, in threads and forks."""

import ctypes
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from contracts.row_sum import PROBLEM as ROW_SUM_PROBLEM
from contracts.row_sum import ROW_SUM
from contracts.tally import PROBLEM as TALLY_PROBLEM
from contracts.tally import TALLY, with_bug
from foreign_arrays import OnlyDlpack
from runtime_gemm import GEMM, ODD, TILED, Elsewhere, K, M, N, operands

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import NoDeviceError
from tilewright.tuner.runtime import ArgumentError, Choice, LaunchError, Runtime, UntunedWarning
from tilewright.tuner.runtime.arrays.arguments import stream_handle
from tilewright.tuner.runtime.arrays.views import READERS
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.host import host_place

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_output_given_is_filled_and_returned(runtime, dtype):
    a, b, c = operands(dtype)
    assert runtime.best("gemm", m=M, n=N, k=K, dtype=dtype)(a, b, c) is c
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_tensors_and_scalars_go_by_name_too(runtime):
    a, b, c = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K, beta_zero=False)
    c[:] = 1
    launch(a, C=c, B=b, alpha=2, beta=0.5)
    np.testing.assert_allclose(c, 2 * (a @ b) + 0.5, rtol=1e-4, atol=1e-4)
    launch(a, b, c)  # without them both are 1
    np.testing.assert_allclose(c, 3 * (a @ b) + 0.5, rtol=1e-4, atol=1e-4)


def test_a_launch_that_is_bound_takes_addresses_alone(runtime):
    a, b, c = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K, beta_zero=False)
    bound = launch.bind(a, b, c, is_fresh=True, alpha=2.0, beta=0.5)
    other = np.ones_like(c)
    bound(tuple(one.ctypes.data for one in (a, b, other)), other)
    np.testing.assert_allclose(other, 2 * (a @ b) + 0.5, rtol=1e-4, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"^C: shares memory with A"):
        bound(tuple(one.ctypes.data for one in (a, b, a)), a)


def test_an_output_without_elements_needs_no_launch(runtime):
    launch = runtime.best("gemm", m=0, n=N, k=K)
    empty = np.empty((0, N), np.float32)
    assert launch(np.empty((0, K), np.float32), np.ones((K, N), np.float32), empty) is empty
    with pytest.raises(ArgumentError, match=r"^A: has the shape \(1, 36\)"):
        launch(np.empty((1, K), np.float32), np.ones((K, N), np.float32), empty)
    launch.prepare("cpu")


def test_a_workspace_is_as_the_launch_before_left_it(cache):
    """Blocks that share an output count in it; a second launch finds the counters at zero again."""
    gemv, shape = catalogue().get("gemv"), {"m": 8, "n": 4096}
    problem, variant = gemv.problem(shape), gemv.variant("split")
    split = Configuration.of(
        "split", {"BLOCK": 128, "ROWS": 1, "SPLIT": 2, "THREADS_PER_ROW": 128, "UNROLL": 1, "VECTOR_WIDTH": 4}
    )
    assert variant.workspace_bytes(split.values, problem) > 0
    launch = Runtime(pinned={problem: split}).best("gemv", **shape)
    generator = np.random.default_rng(1)
    a, x = generator.standard_normal((8, 4096)).astype("f4"), generator.standard_normal(4096).astype("f4")
    y = np.empty(8, np.float32)
    for _ in range(3):
        y[:] = np.nan
        launch(a, x, y)
        np.testing.assert_allclose(y, a @ x, rtol=1e-3, atol=1e-3)
    assert launch.choice("cpu").configuration == split


def test_without_a_driver_a_gpu_is_refused_and_nothing_named_is_the_cpu(runtime):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        launch = runtime.best("gemm", m=M, n=N, k=K)
        assert launch.choice() == launch.choice("cpu")
        with pytest.raises(NoDeviceError, match="no CUDA driver"):
            launch.prepare("cuda")
        a, b, c = (Elsewhere(x.shape) for x in operands())
        with pytest.raises(NoDeviceError, match="no CUDA driver"):
            launch(a, b, c)
    else:
        pytest.skip("there is a driver")


def test_threads_share_a_launcher(runtime):
    launch = runtime.best("gemm", m=M, n=N, k=K)
    wrong, done = [], []

    def work(seed):
        generator = np.random.default_rng(seed)
        a, b = generator.standard_normal((M, K)).astype("f4"), generator.standard_normal((K, N)).astype("f4")
        c = np.empty((M, N), np.float32)
        for _ in range(20):
            c[:] = np.nan
            launch(a, b, c)
            if not np.allclose(c, a @ b, rtol=1e-4, atol=1e-5):
                wrong.append(seed)
        done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # NumPy's threads
def test_a_forked_child_launches_on_the_cpu_even_while_a_lock_was_held(runtime):
    launch = runtime.best("gemm", m=M, n=N, k=K)
    a, b, c = operands()
    launch(a, b, c)
    held = [launch._lock, runtime._lock, launch._on[launch.problem, "cpu"]._lock]
    for lock in held:  # by another thread, as far as the child can tell
        thread = threading.Thread(target=lock.__enter__)
        thread.start()
        thread.join()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            c[:] = np.nan
            launch(a, b, c)
            runtime.best("gemm", **ODD)(np.ones((7, 3), "f4"), np.ones((3, 5), "f4"), np.empty((7, 5), "f4"))
            status = 0 if np.allclose(c, a @ b, rtol=1e-4, atol=1e-5) else 2
        finally:
            os._exit(status)
    for lock in held:
        lock.renew()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_stream_of_any_kind_is_reduced_to_its_handle():
    def stream_with(name):
        return type("Stream", (), {name: 77})()

    protocol = type("Stream", (), {"__cuda_stream__": lambda _self: (0, 78)})()
    assert [stream_handle(stream_with(name)) for name in ("handle", "cuda_stream", "ptr")] == [77, 77, 77]
    assert (stream_handle(5), stream_handle(protocol)) == (5, 78)
    with pytest.raises(LaunchError, match="stream: str is not a CUDA stream"):
        stream_handle("default")


@pytest.mark.parametrize("device", [0, 1])
def test_an_array_in_host_memory_never_passes_for_one_on_a_gpu(device):
    host = np.ones((4, 8), np.float32)

    class ndarray:  # noqa: N801 - as CuPy names its own
        __module__ = "cupy"
        __cuda_array_interface__ = {}  # noqa: RUF012
        dtype, shape, strides = host.dtype, host.shape, host.strides
        data = SimpleNamespace(ptr=1 << 40, device_id=device)

    on_host, on_gpu = READERS[np.ndarray], READERS[ndarray]
    assert on_gpu.read(ndarray())[1] != on_host.read(host)[1]
    host.flags.writeable = False
    assert on_gpu.read(ndarray())[1] != on_host.read(host)[1]
    assert not on_host.layout(on_host.read(host)[1]).is_writable


def test_importing_the_launcher_loads_no_framework_and_no_driver():
    code = (
        "import sys, tilewright.tuner.runtime; "
        "print([m for m in ('pycuda', 'torch', 'cupy', 'fastapi', 'sqlalchemy') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


def test_a_scalar_of_an_array_package_is_no_array(launch):
    _, b, c = operands()
    with pytest.raises(LaunchError, match=r"numpy\.float32 is not an array"):
        launch(np.float32(1), b, c)


def test_an_array_that_offers_only_dlpack_is_used_in_place(runtime):
    a, b, c = operands()
    result = runtime.best("gemm", m=M, n=N, k=K)(OnlyDlpack(a.T.copy().T), OnlyDlpack(b), OnlyDlpack(c))
    assert result.array is c
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"^A: is int32, the problem is float32"):
        runtime.best("gemm", m=M, n=N, k=K)(OnlyDlpack(a.astype(np.int32)), b, c)


@pytest.fixture
def broken_first(cache, tmp_path):
    """row_sum, of which the service is said to have predicted a configuration that does not compile."""
    answers = AnswerCache(tmp_path)
    facts = {"variant": "broken", "configuration": {"THREADS": 128}, "match": "predicted"}
    answers.put(ROW_SUM_PROBLEM, host_place(), facts | {"source_hash": ROW_SUM.source_hash("broken")})
    return Runtime(kernels=Catalogue({"row_sum": ROW_SUM}), answers=answers)


def test_what_does_not_compile_gives_way_to_the_default_with_one_warning(broken_first):
    launch = broken_first.best("row_sum", m=37, n=300)
    assert launch.choice("cpu").configuration.variant == "broken"
    x, y = np.random.default_rng(1).standard_normal((37, 300), np.float32), np.full(37, np.nan, np.float32)
    launchers = [launch, launch, broken_first.best("row_sum", m=37, n=300, device="cpu")]
    with pytest.warns(UntunedWarning, match="does not compile") as said:
        assert [each(x, y) is y for each in launchers] == [True] * 3
    np.testing.assert_allclose(y, x.sum(axis=1, dtype=np.float64), rtol=1e-4, atol=1e-4)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert (launch.choice("cpu").origin, launch.choice("cpu").configuration.variant) == ("default", "good")


def test_what_was_pinned_is_not_replaced(cache):
    runtime = Runtime(
        kernels=Catalogue({"row_sum": ROW_SUM}), pinned={ROW_SUM_PROBLEM: Configuration.of("broken", {"THREADS": 128})}
    )
    with pytest.raises(LaunchError, match="does not compile"):
        runtime.best("row_sum", m=37, n=300, device="cpu")(np.ones((37, 300), np.float32), np.ones(37, np.float32))


def test_the_choice_for_arrays_is_that_of_their_layout(cache):
    """A transposed view is another problem, with a configuration of its own."""
    shape = {"m": M, "n": N, "k": K}
    wide = Configuration.of("tiled", {"TILE_WIDTH": 16})
    pinned = {GEMM.problem(shape): TILED, GEMM.problem(shape, "float32", {"trans_b": True}): wide}
    launch = Runtime(pinned=pinned).best("gemm", **shape)
    a, b, c = operands()
    turned = np.ascontiguousarray(b.T).T
    assert launch.choice(a, b, c).configuration == launch.choice("cpu").configuration == TILED
    assert launch.choice(a, turned, c).configuration == wide
    assert launch.choice(A=a, B=turned, C=c, device="cpu").configuration == wide
    with pytest.raises(ArgumentError, match="C: is missing"):
        launch.choice(a, b)


def packed_launch(**options):
    """The launcher of a problem whose B is packed ahead."""
    problem = GEMM.problem({"m": M, "n": N, "k": K}, "float32", {"packed_b": True} | options)
    transposed = GEMM.problem({"m": M, "n": N, "k": K}, "float32", {"packed_b": True, "trans_b": True} | options)
    return Runtime(pinned={problem: TILED, transposed: TILED}).best("gemm", m=M, n=N, k=K, packed_b=True, **options)


def test_a_packed_operand_takes_the_array_s_place(cache):
    a, b, c = operands()
    launch = packed_launch()
    packed = launch.pack(b)
    assert launch(a, packed, c) is c
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
    launch(A=a, B=launch.pack(np.ascontiguousarray(b.T).T), C=c, alpha=2.0)
    np.testing.assert_allclose(c, 2 * (a @ b), rtol=1e-4, atol=1e-5)
    assert launch.choice(a, packed, c).configuration == launch.choice(a, b, c).configuration == TILED


def test_what_is_not_packed_or_does_not_fit_is_refused(cache):
    a, b, c = operands()
    launch = packed_launch()
    with pytest.raises(ArgumentError, match=r"B: is not packed.*pack\(B\)"):
        launch(a, b, c)
    with pytest.raises(ArgumentError, match="B: has the shape"):
        launch.pack(b[:, 1:])
    assert not hasattr(Runtime().best("gemm", m=M, n=N, k=K), "pack")


def test_a_packed_problem_that_was_never_tuned_takes_what_is_known_of_the_usual_one(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    problem = GEMM.problem(ODD)
    known = Choice(TILED, "service", "exact")
    runtime = Runtime()
    monkeypatch.setattr(runtime, "_known", lambda _kernel, asked, _place, **_: known if asked == problem else None)
    choice = runtime.best("gemm", **ODD, packed_b=True).choice(device="cpu")
    assert (choice.configuration, choice.match) == (TILED, "nearest")


def test_arguments_of_several_dtypes_are_checked_and_every_output_is_returned(cache):
    runtime = Runtime(kernels=Catalogue({"tally": TALLY}), pinned={TALLY_PROBLEM: with_bug(0)})
    keys = np.arange(1001, dtype=np.uint8) % 10
    outputs = np.empty(1001, np.float32), np.empty(1001, np.int32), np.zeros(1001, np.int64)
    launch = runtime.best("tally", n=1001)
    scaled, is_large, total = launch(keys, *outputs, factor=3.0, limit=7)
    assert np.array_equal(scaled, 3.0 * keys)
    assert np.array_equal(is_large, keys > 7)
    assert np.array_equal(total, keys)
    assert launch(keys, *outputs)[2] is outputs[2]  # limit is what tuning passes, not 1
    assert np.array_equal(is_large, keys > 5)
    for changed, said in [
        ({"limit": 2.5}, "limit: 2.5 is no int64. Give a whole number that int64 holds"),
        ({"keys": keys.astype(np.int32)}, "keys: is int32, not uint8. Convert it to uint8"),
        ({"total": outputs[0]}, "total: is float32, not int64"),
    ]:
        arrays = dict(zip(("keys", "scaled", "is_large", "total"), (keys, *outputs), strict=True))
        with pytest.raises(ArgumentError, match=said):
            launch(**(arrays | changed))
    shared = np.zeros(1001, np.int64)
    with pytest.raises(ArgumentError, match="is_large: shares memory with total"):
        launch(keys, outputs[0], shared.view(np.int32)[:1001], shared)

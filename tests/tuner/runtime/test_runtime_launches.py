"""The launcher on the CPU device: what it computes, and what it refuses before anything runs."""

from __future__ import annotations

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
from foreign_arrays import OnlyDlpack

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import NoDeviceError
from tilewright.tuner.runtime import ArgumentError, LaunchError, Runtime, UntunedWarning, WrongDeviceError
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.host import host_place
from tilewright.tuner.runtime.launcher import stream_handle
from tilewright.tuner.runtime.views import READERS, contiguous_strides

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")

GEMM = catalogue().get("gemm")
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})
V4 = {"VECTOR_WIDTH": 4}
M, N, K = 24, 20, 36
ODD = {"m": 7, "n": 5, "k": 3}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One folder for all: equal programs are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def runtime(cache):
    """`tiled` for the problems of this file, so that compiling takes little."""
    shape = {"m": M, "n": N, "k": K}
    problems = [
        GEMM.problem(shape, dtype, {"trans_a": a, "trans_b": b, "beta_zero": zero})
        for dtype in ("float32", "float64")
        for a in (False, True)
        for b in (False, True)
        for zero in (False, True)
    ]
    return Runtime(pinned=dict.fromkeys([*problems, GEMM.problem(ODD)], TILED))


@pytest.fixture
def launch(runtime):
    return runtime.best("gemm", m=M, n=N, k=K)


def operands(dtype="float32"):
    generator = np.random.default_rng(3)
    a, b = generator.standard_normal((M, K)).astype(dtype), generator.standard_normal((K, N)).astype(dtype)
    return a, b, np.full((M, N), np.nan, dtype)


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


@pytest.mark.parametrize("asked", [{}, {"trans_a": True}, {"trans_b": True}])
def test_a_transposed_view_is_the_other_option(runtime, asked):
    """Whatever was asked, the four ways in which A and B may lie give the same product."""
    a, b, c = operands()
    launch = runtime.best("gemm", m=M, n=N, k=K, **asked)
    left = a.T if asked.get("trans_a") else a
    right = b.T if asked.get("trans_b") else b
    for first in (np.ascontiguousarray(left), np.asfortranarray(left)):
        for second in (np.ascontiguousarray(right), np.asfortranarray(right)):
            c[:] = np.nan
            launch(first, second, c)
            np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_an_axis_of_one_element_has_no_stride_that_counts(runtime):
    column = np.ones((5, 3), np.float32)[:, :1]
    launch = runtime.best("gemm", m=5, n=2, k=1, device="cpu")
    c = np.empty((5, 2), np.float32)
    with pytest.raises(ArgumentError, match=r"^A: strides \(3, 1\)"):
        launch(column, np.ones((1, 2), np.float32), c)
    launch(column.copy(), np.ones((1, 2), np.float32), c)
    assert (c == 1).all()


def refused_arguments():
    a, b, c = operands()
    buffer = np.empty(M * K + 4, np.float32)
    shifted = buffer[(1 - buffer.ctypes.data // 4) % 4 :][: M * K].reshape(M, K)
    frozen = c.copy()
    frozen.flags.writeable = False
    return {
        "another dtype": ({"A": a.astype(np.float64)}, "^A: is float64, the problem is float32"),
        "integers": ({"A": a.astype(np.int32)}, "^A: is int32"),
        "foreign byte order": ({"B": b.astype(">f4")}, "^B: is float32 in foreign byte order"),
        "another shape": ({"A": a[:-1]}, r"^A: has the shape \(23, 36\), the problem needs \(24, 36\)"),
        "turned": ({"B": b.T}, r"^B: has the shape \(20, 36\).*trans_b"),
        "flat": ({"A": a.ravel()}, "^A: has the shape"),
        "every other column": ({"A": np.repeat(a, 2, axis=1)[:, ::2]}, r"^A: strides \(72, 2\).*nor a transposed"),
        "every other row": ({"B": np.repeat(b, 2, axis=0)[::2]}, "^B: strides"),
        "backwards": ({"A": a[::-1]}, "^A: strides"),
        "one row for all": ({"A": np.broadcast_to(a[:1], a.shape)}, "^A: strides"),
        "a transposed output": ({"C": np.asfortranarray(c)}, "^C: strides"),
        "misaligned": ({"A": shifted}, "^A: starts 4 bytes past a multiple of 16"),
        "a read-only output": ({"C": frozen}, "^C: is read-only"),
        "the output is an input": ({"C": a.reshape(-1)[: M * N].reshape(M, N)}, "^C: shares memory with A"),
        "a scalar that is fixed": ({"beta": 0.5}, "^beta: is 0.5, but this problem says that it is 0"),
        "a scalar that is none": ({"alpha": "two"}, "^alpha: 'two' is not a number"),
        "no such argument": ({"D": a}, "^D: gemm has no such argument"),
        "one is missing": ({"B": None}, "^B: is missing"),
    }


@pytest.mark.parametrize("case", list(refused_arguments()))
def test_a_wrong_argument_is_named_and_nothing_runs(launch, case):
    a, b, c = operands()
    change, words = refused_arguments()[case]
    if case == "the output is an input":
        change = {"C": a.reshape(-1)[: M * N].reshape(M, N)}
    given = {"A": a, "B": b, "C": c} | change
    with pytest.raises(ArgumentError, match=words) as refused:
        launch(**given)
    assert refused.value.argument in words
    assert np.isnan(c).all()


def test_too_many_arrays_and_one_given_twice_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match="takes 3 arrays: A, B, C"):
        launch(a, b, c, c)
    with pytest.raises(ArgumentError, match=r"^A: is given twice"):
        launch(a, b, c, A=a)


def test_what_is_no_array_is_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match=r"builtins\.list is not an array"):
        launch(a.tolist(), b, c)


class Elsewhere:
    """Says that it lies on a GPU."""

    def __init__(self, shape):
        self.__cuda_array_interface__ = self.interface(shape)

    @property
    def __cuda_array_interface__(self):
        return self.told

    @__cuda_array_interface__.setter
    def __cuda_array_interface__(self, told):
        self.told = told

    @staticmethod
    def interface(shape):
        return {"data": (4096, False), "shape": shape, "typestr": "<f4", "version": 3, "strides": None}


def test_arrays_on_two_devices_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="A on a GPU, B on the CPU"):
        launch(Elsewhere(a.shape), b, c)


def test_a_launcher_for_a_gpu_takes_no_arrays_of_the_cpu(runtime):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="there is no device 'tpu'"):
        runtime.best("gemm", m=M, n=N, k=K, device="tpu")
    on_cpu = runtime.best("gemm", m=M, n=N, k=K, device="cpu")
    with pytest.raises(WrongDeviceError, match="for cpu, but the arrays are on cuda"):
        on_cpu(*(Elsewhere(x.shape) for x in (a, b, c)))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kernel": "gem"}, UnknownNameError, "no kernel 'gem'"),
        ({"k": None}, InvalidProblemError, "shape.k"),
        ({"k": -1}, InvalidProblemError, "shape.k"),
        ({"dtype": "float16"}, InvalidProblemError, "dtype"),
        ({"trans_c": True}, InvalidProblemError, "options.trans_c"),
        ({"k": 0}, InvalidProblemError, "shape.k: of an empty sum"),
    ],
)
def test_a_problem_that_is_none_is_refused_by_its_field(runtime, arguments, error, words):
    asked = {"kernel": "gemm", "m": M, "n": N, "k": K} | arguments
    with pytest.raises(error, match=words):
        runtime.best(**{name: value for name, value in asked.items() if value is not None})


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
    split = Configuration.of("split", {"BLOCK": 128, "ROWS": 1, "SPLIT": 2, "THREADS_PER_ROW": 128, "UNROLL": 1} | V4)
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


def test_strides_of_an_array_that_lies_in_order():
    assert contiguous_strides((4, 3, 2)) == (6, 2, 1)
    assert contiguous_strides(()) == ()


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
    with pytest.raises(ArgumentError, match=r"^A: is DLPack type 0, 32 bits"):
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


def test_only_a_dtype_that_there_is_is_proposed(runtime, launch):
    a, b, c = operands()
    with pytest.raises(ArgumentError, match=r'Convert it to float32, or ask best\(…, dtype="float64"\)$'):
        launch(a.astype("f8"), b, c)
    with pytest.raises(ArgumentError, match=r"Convert it to float32: gemm computes in float32, float64$"):
        launch(a.astype("f2"), b, c)

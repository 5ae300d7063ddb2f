"""Scratch memory on a GPU comes from PyTorch, keeps its limit, and is given back; without room another kernel runs."""

from contextlib import contextmanager

import pytest
from test_runtime_cuda import GEMM, split_configuration

from tilewright.kernels.family import Family
from tilewright.tuner.runtime import NoRoomError, Runtime, UntunedWarning, release
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.memory.room import ROOM, SETTING

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

SHAPE = {"m": 64, "n": 64, "k": 4096}
PROBLEM = GEMM.problem(SHAPE)
N = K = 4096


@pytest.fixture(autouse=True)
def before(torch, tmp_path, monkeypatch):
    """What checks and graphs of other tests keep."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    torch.zeros(1, device="cuda")
    release()
    return ROOM.taken_bytes(0)


@pytest.fixture
def pinned(drv):
    """A configuration of several blocks for a tile, and the bytes of its workspace."""
    configuration = split_configuration(PROBLEM, gpu_place(0).limits, "register")
    return configuration, GEMM.variant("register").workspace_bytes(configuration.values, PROBLEM)


def operands(torch, m=64, n=64, k=4096):
    return torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")


def check(torch, launch, a, b):
    c = torch.full((a.shape[0], b.shape[1]), torch.nan, device="cuda")
    launch(a, b, c)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=2e-3)


@contextmanager
def scarce(torch, free_bytes):
    """PyTorch may have no more than so many bytes beyond what it has."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + free_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_pytorch_counts_what_launches_keep_and_gets_it_back(torch, pinned, before):
    configuration, size_bytes = pinned
    launch, (a, b) = Runtime(pinned={PROBLEM: configuration}).best("gemm", **SHAPE), operands(torch)
    check(torch, launch, a, b)
    assert release() == size_bytes
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    c = torch.empty(64, 64, device="cuda")
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    launch(a, b, c)
    assert torch.cuda.memory_allocated() - allocated >= size_bytes
    assert ROOM.taken_bytes(0) - before == size_bytes
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
        launch(a, b, c)
    assert ROOM.taken_bytes(0) - before == 2 * size_bytes
    assert release() == 2 * size_bytes
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() == reserved  # the pool went with the last of it
    check(torch, launch, a, b)


def test_a_graph_keeps_its_workspace(torch, pinned):
    configuration, size_bytes = pinned
    launch, (a, b) = Runtime(pinned={PROBLEM: configuration}).best("gemm", **SHAPE), operands(torch)
    check(torch, launch, a, b)
    c = torch.empty(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, c)
    assert release() == size_bytes  # the stream's alone
    torch.cuda.empty_cache()
    others = [torch.full((size_bytes,), 255, dtype=torch.uint8, device="cuda") for _ in range(20)]
    for _ in range(3):
        a.normal_()
        graph.replay()
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=2e-3)
    assert all(bool((one == 255).all()) for one in others)


def test_a_first_launch_within_a_capture_takes_memory_of_no_graph(torch, pinned):
    configuration, _ = pinned
    launch, (a, b) = Runtime(pinned={PROBLEM: configuration}).best("gemm", **SHAPE), operands(torch)
    c, taken = torch.full((64, 64), torch.nan, device="cuda"), ROOM.taken_bytes(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, c)
    assert ROOM.taken_bytes(0) > taken
    graph.replay()
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=2e-3)
    del graph
    check(torch, launch, a, b)


def any_rows(torch):
    """A launcher of any number of rows in FP32: from 600 of them on by a configuration with a large workspace."""
    family, limits = Family.of(GEMM, {"m": (1, 8192), "n": N, "k": K}), gpu_place(0).limits
    variants = ["register", "tensor3xfp16_sm90"]
    if GEMM.variant(variants[1]) not in GEMM.usable_variants(family.largest, limits):
        pytest.skip("tensor3xfp16_sm90 does not run here")
    small = next(
        c
        for c in GEMM.space(family.largest, limits, ["register"]).feasible
        if not GEMM.variant("register").workspace_bytes(c.values, family.largest)
        and GEMM.variant("register").is_sound(c.values, family.at(1), limits)
    )
    large = GEMM.space(family.largest, limits, [variants[1]]).defaults()[0]
    runtime = Runtime()
    ranges = [SizeRange(600, Choice(small, "table", "range")), SizeRange(8192, Choice(large, "table", "range"))]
    runtime.families.pin({family: Ranges(ranges)}, gpu_place(0).slug)
    return runtime.best("gemm", n=N, k=K)


def test_a_size_without_memory_runs_what_needs_less(torch, before):
    launch, (a, b) = any_rows(torch), operands(torch, 1000, N, K)
    expected = a.double() @ b.double()
    c = torch.full((1000, N), torch.nan, device="cuda")
    launch(a, b, c)  # loads both
    launch(a[:5], b, c[:5])
    held = ROOM.taken_bytes(0)
    assert held - before > 100e6
    release()
    with scarce(torch, 8 << 20):
        c.fill_(torch.nan)
        launch(a, b, c)
        assert ROOM.taken_bytes(0) == before
    torch.testing.assert_close(c.double(), expected, rtol=1e-4, atol=2e-3)
    release()
    launch(a, b, c)
    assert ROOM.taken_bytes(0) == held


def test_the_limit_holds_for_all_launches_of_a_device(torch, pinned, before, monkeypatch):
    monkeypatch.setenv(SETTING, str(before / 1e6 + 60))
    launch, (a, b) = any_rows(torch), operands(torch, 1000, N, K)
    c = torch.full((1000, N), torch.nan, device="cuda")
    launch(a, b, c)
    assert ROOM.taken_bytes(0) - before <= 60e6
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=2e-3)
    monkeypatch.setenv(SETTING, "0")
    exact = Runtime(pinned={PROBLEM: pinned[0]}).best("gemm", **SHAPE)
    with pytest.raises(NoRoomError, match=f"MB of {SETTING}=0 are in use"):
        exact(*operands(torch), torch.empty(64, 64, device="cuda"))


@pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning")
def test_an_operator_without_memory_is_pytorchs(torch, before):
    import tilewright.torch as tw  # noqa: PLC0415

    problem, limits = GEMM.problem({"m": 1000, "n": N, "k": K}), gpu_place(0).limits
    starts = GEMM.space(problem, limits, ["tensor3xfp16_sm90"]).defaults()
    if not starts:
        pytest.skip("tensor3xfp16_sm90 does not run here")
    tw.use(Runtime(pinned={problem: starts[0]}, only_tuned=True))
    a, b = operands(torch, 1000, N, K)
    expected = a.double() @ b.double()
    torch.mm(a, b)  # the library has its own memory
    with scarce(torch, 48 << 20):
        found = tw.gemm(a, b)
        (decision,) = [one for one in tw.status() if one.operator == "gemm"]
        assert not decision.is_ours
        assert "no room" in decision.reason
        assert ROOM.taken_bytes(0) == before
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-3)
    release()
    torch.testing.assert_close(tw.gemm(a, b).double(), expected, rtol=1e-3, atol=2e-3)
    assert ROOM.taken_bytes(0) - before > 100e6
    tw.use(None)


@pytest.mark.filterwarnings(f"ignore::{UntunedWarning.__module__}.UntunedWarning")
def test_without_pytorch_the_driver_gives_memory(drv, tmp_path):
    """In a context that is not the primary one PyTorch has no memory."""
    import numpy as np  # noqa: PLC0415
    from pycuda import gpuarray  # noqa: PLC0415

    context = drv.Device(0).make_context()
    try:
        configuration = split_configuration(PROBLEM, gpu_place(0).limits, "register")
        launch, taken = Runtime(pinned={PROBLEM: configuration}).best("gemm", **SHAPE), ROOM.taken_bytes(0)
        host = [
            np.random.default_rng(1).standard_normal(shape).astype(np.float32) for shape in ((64, 4096), (4096, 64))
        ]
        a, b = map(gpuarray.to_gpu, host)
        for _ in range(2):
            c = gpuarray.zeros((64, 64), np.float32)
            launch(a, b, c)
            np.testing.assert_allclose(c.get(), host[0].astype(np.float64) @ host[1], rtol=1e-4, atol=2e-3)
            assert ROOM.taken_bytes(0) > taken
            assert release() > 0
    finally:
        context.pop()
        context.detach()

"""The launcher on a GPU: arrays of PyCUDA, torch and CuPy as they lie, on the caller's stream, in graphs, threads."""

import threading
import warnings

import numpy as np
import pytest
from foreign_arrays import OnlyDlpack, OnlyInterface
from framework_arrays import TOLERANCE, CupyArrays, K, M, N, PycudaArrays, TorchArrays, operands

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.errors import NoCompilerError
from tilewright.tuner.runtime import ArgumentError, Runtime, UntunedWarning
from tilewright.tuner.runtime.launches.gpu import gpu_place

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")]

GEMM = catalogue().get("gemm")


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


def split_configuration(problem, limits, variant):
    """A configuration of the variant with a workspace."""
    if GEMM.variant(variant) not in GEMM.usable_variants(problem, limits):
        pytest.skip(f"{variant} does not run here")
    for configuration in GEMM.space(problem, limits, [variant]).feasible:
        if GEMM.variant(variant).workspace_bytes(configuration.values, problem):
            return configuration
    raise AssertionError("no configuration has a workspace")


@pytest.fixture(params=["register", "tensor3xfp16_sm90"], ids=["one launch", "two launches"])
def split(request, drv, tmp_path, monkeypatch):
    """A launcher that needs a workspace, and its shape."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"m": 64, "n": 64, "k": 4096}
    problem = GEMM.problem(shape)
    configuration = split_configuration(problem, gpu_place(0).limits, request.param)
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


def test_an_overlapped_launch_waits_for_what_the_one_before_writes(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    limits, size, turns = gpu_place(0).limits, 384, 50
    if limits.compute_capability != (9, 0):
        pytest.skip("launches overlap from compute capability 9.0 on")
    problem = GEMM.problem(dict.fromkeys("mnk", size), options={"trans_b": True})
    variant = GEMM.variant("tensor3xtf32")
    feasible = GEMM.space(problem, limits, [variant.name]).feasible
    configuration = next(c for c in feasible if variant.launch(c.values, problem).overlaps)
    launch = Runtime(pinned={problem: configuration}).best("gemm", m=size, n=size, k=size, trans_b=True)
    turn = torch.linalg.qr(torch.randn(size, size, device="cuda", dtype=torch.float64))[0]
    start, turn_32 = torch.randn(size, size, device="cuda"), turn.float()
    one, other = start.clone(), torch.empty_like(start)
    for _ in range(turns):
        launch(one, turn_32, other)
        one, other = other, one
    expected = start.double() @ torch.linalg.matrix_power(turn.T, turns)
    torch.testing.assert_close(one.double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "variant", ["streamed_half", "streamed_half_sm90", "tensor_half", "tensor_half_sm90", "tensor_half_turned_sm90"]
)
def test_launches_of_half_types_compute_the_same_whether_or_not_one_waits_between_them(
    torch, tmp_path, monkeypatch, variant
):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    limits, m, size = gpu_place(0).limits, 40, 512
    if limits.compute_capability != (9, 0):
        pytest.skip("launches overlap from compute capability 9.0 on")
    problem = GEMM.problem({"m": m, "n": size, "k": size}, "bfloat16", {"trans_b": True})
    feasible = GEMM.space(problem, limits, [variant]).feasible
    turn = torch.linalg.qr(torch.randn(size, size, device="cuda"))[0].bfloat16()
    start = torch.randn(m, size, device="cuda").bfloat16()
    for configuration in (feasible[0], feasible[len(feasible) // 2], feasible[-1]):
        runtime = Runtime(pinned={problem: configuration})
        launch = runtime.best("gemm", m=m, n=size, k=size, dtype="bfloat16", trans_b=True)
        ends = []
        for waits in (True, False, False):
            one, other = start.clone(), torch.full_like(start, torch.nan)
            for _ in range(50):
                launch(one, turn, other)
                one, other = other, one
                if waits:
                    torch.cuda.synchronize()
            ends.append(one)
        assert torch.isfinite(ends[0]).all()
        assert all(torch.equal(ends[0], end) for end in ends[1:]), configuration


@pytest.mark.parametrize("trans_b", [False, True])
def test_an_operand_packed_once_serves_graphs_streams_and_other_sizes(torch, tmp_path, monkeypatch, trans_b):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    options = {"packed_b": True, "trans_b": trans_b}
    problems = [GEMM.problem({"m": m, "n": 200, "k": 4100}, "float32", options) for m in (64, 300)]
    chosen = {p: split_configuration(p, gpu_place(0).limits, "tensor3xfp16_sm90") for p in problems}
    runtime = Runtime(pinned=chosen)
    launch, other = (runtime.best("gemm", **p.stated_shape, **options) for p in problems)
    B = torch.randn((200, 4100) if trans_b else (4100, 200), device="cuda")
    packed, right = launch.pack(B), (B.T if trans_b else B).double()
    A, C = torch.zeros(64, 4100, device="cuda"), torch.empty(64, 200, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(A, packed, C)
    for scale in (0, 40, 0):  # also rows that FP16 parts do not hold
        A.normal_().mul_(torch.exp2(torch.randint(-scale, scale + 1, A.shape, device="cuda")))
        bound = A.double().abs() @ right.abs() * 4100**0.5 * 2.0**-23
        graph.replay()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.synchronize()
            launch(A, packed, eager := torch.full_like(C, torch.nan))
        torch.cuda.synchronize()
        for found in (C, eager):
            assert ((found.double() - A.double() @ right).abs() <= bound).all()
    more, out = torch.randn(300, 4100, device="cuda"), torch.empty(300, 200, device="cuda")
    other(more, packed, out)
    torch.testing.assert_close(out.double(), more.double() @ right, rtol=1e-4, atol=1e-3)
    assert len(packed._kept) == 1


def test_a_packed_operand_is_not_made_within_a_graph(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"m": 64, "n": 64, "k": 512}
    problem = GEMM.problem(shape, "float32", {"packed_b": True})
    runtime = Runtime(pinned={problem: split_configuration(problem, gpu_place(0).limits, "tensor3xfp16_sm90")})
    B = torch.randn(512, 64, device="cuda")
    packed = runtime.best("gemm", **shape, packed_b=True).pack(B)
    packed._kept.clear()
    A, C = torch.zeros(64, 512, device="cuda"), torch.empty(64, 64, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        A.zero_()
        with pytest.raises(ArgumentError, match="before the capture"):
            runtime.best("gemm", **shape, packed_b=True)(A, packed, C)


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


def test_a_tensor_in_the_hosts_memory_runs_on_the_cpu(torch, runtime):
    try:
        find_compiler()
    except NoCompilerError:
        pytest.skip("no C++ compiler")
    a, b = operands()
    C = torch.zeros(M, N)
    runtime.best("gemm", m=M, n=N, k=K)(torch.from_numpy(a), torch.from_numpy(b), C)
    np.testing.assert_allclose(C.numpy(), a @ b, **TOLERANCE)


def test_an_unknown_problem_is_warned_of_once(drv, runtime):
    """No records of gemm in float64 come with the package."""
    arrays = PycudaArrays(drv)
    A, B, C = (arrays.put(np.ones(shape)) for shape in ((8, 16), (16, 24), (8, 24)))
    launch = runtime.best("gemm", m=8, n=24, k=16, dtype="float64")
    with pytest.warns(UntunedWarning, match="gemm m=8,n=24,k=16 float64 on nvidia-"):
        launch(A, B, C)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch(A, B, C)
    np.testing.assert_allclose(C.get(), 16.0)

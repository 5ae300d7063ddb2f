"""On a GPU: cublasLt's algorithms have names that find them again, and the launcher makes the calls so named."""

import time

import pytest
from library_products import CASES, TOLERANCE

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.library.choice import CudaLibrary
from tilewright.tuner.library.names import is_launched
from tilewright.tuner.loop.study import Budget
from tilewright.tuner.loop.tune import tune
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.devices import place_of
from tilewright.tuner.runtime.launches.library_calls import call_of

pytestmark = pytest.mark.gpu

GEMM, LINEAR = catalogue().get("gemm"), catalogue().get("linear")
LONGEST_S = 60
KERNELS = {"gemm": GEMM, "linear": LINEAR}
SHAPE = {"m": 136, "n": 520, "k": 1032}


@pytest.fixture(autouse=True)
def no_turns():
    """Calls take turns here."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def names_of(device):
    """The names of the library's calls for a problem, each of which was verified."""
    benches = []

    def made(problem):
        bench = device.bench(KERNELS[problem.kernel], problem, 1)
        benches.append(bench)
        library = CudaLibrary(bench)
        candidates = library.candidates()
        for one in candidates:
            assert bench.verify_timed(one.executable).is_right, one.call.name
        found = [one.call.name for one in candidates if one.call.is_named]
        library.close()
        return found

    yield made
    for bench in benches:
        bench.close()


def learned(folder, problem, name, configuration):
    """A runtime that knows of this problem that the library's call of that name was faster than the configuration."""
    kernel = KERNELS[problem.kernel]
    runtime = Runtime(only_tuned=True, answers=AnswerCache(folder))
    facts = {
        "variant": configuration.variant,
        "configuration": dict(configuration.values),
        "match": "exact",
        "time_ms": 2.0,
        "library": {"name": name, "time_ms": 1.0, "faster": True},
        "source_hash": kernel.source_hash(configuration.variant),
    }
    runtime.learn(problem, place_of("cuda:0"), facts)
    return runtime


@pytest.fixture
def own(device):
    """A configuration of ours that is right at the problem, to stand beside the library's call."""

    def made(problem):
        return KERNELS[problem.kernel].space(problem, device.model.limits).defaults()[0]

    return made


def arrays_of(torch, problem):
    """Tensors in the declared order, and what comes out, in float64."""
    dtype, shape = getattr(torch, problem.dtype), problem.shape
    torch.manual_seed(0)

    def drawn(*sizes):
        return torch.randn(*sizes, device="cuda").to(dtype)

    m, n, k = (shape[axis] for axis in "mnk")
    if problem.kernel == "linear":
        x, w, b, y = drawn(m, k), drawn(n, k), drawn(n), drawn(m, n)
        expected = x.double() @ w.double().T + b.double()
        return (x, w, b, y), expected.relu() if problem.options["activation"] == "relu" else expected
    a, c = drawn(m, k), drawn(m, n)
    b = drawn(n, k) if problem.options["trans_b"] else drawn(k, n)
    return (a, b, c), a.double() @ (b.double().T if problem.options["trans_b"] else b.double())


def close(torch, found, expected, problem):
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE[problem.dtype], float(error)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_algorithm_is_found_again_by_its_name_and_computes_the_problem(torch, names_of, own, tmp_path, case):
    kernel, dtype, options = case
    problem = KERNELS[kernel].problem(SHAPE, dtype, options)
    names = names_of(problem)
    assert len(names) == len(set(names)) > 1
    assert all(is_launched(name) for name in names)
    assert names_of(problem) == names
    for place, name in enumerate((names[0], names[len(names) // 2], names[-1])):
        runtime = learned(tmp_path / str(place), problem, name, own(problem))
        launch = runtime.launcher(kernel, {**SHAPE, **options}, dtype=dtype)
        arrays, expected = arrays_of(torch, problem)
        before = arrays[-1].clone()
        if problem.options.get("beta_zero") is False:
            found = launch(*arrays, alpha=-0.5, beta=2.0)
            expected = 2 * before.double() - 0.5 * expected
        else:
            found = launch(*arrays)
        torch.cuda.synchronize()
        assert call_of(problem, launch.choice("cuda:0")) == (name, ""), name
        close(torch, found, expected, problem)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_call_is_made_in_a_graph_and_on_several_streams_at_once(torch, names_of, own, tmp_path, dtype):
    problem = LINEAR.problem(SHAPE, dtype, {"activation": "relu"})
    name = names_of(problem)[-1]
    launch = learned(tmp_path, problem, name, own(problem)).launcher(
        "linear", {**SHAPE, "activation": "relu"}, dtype=dtype, device="cuda:0"
    )
    (x, w, b, y), expected = arrays_of(torch, problem)
    launch.prepare()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):  # nothing was launched before
        launch(x, w, b, y)
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    close(torch, y, expected, problem)
    x.mul_(2)
    b.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    close(torch, y, 2 * expected, problem)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    outputs = [torch.empty_like(y) for _ in streams]
    for _ in range(20):
        for stream, output in zip(streams, outputs, strict=True):
            with torch.cuda.stream(stream):
                launch(x, w, b, output)
    torch.cuda.synchronize()
    for output in outputs:
        assert torch.equal(output, outputs[0])  # no two shared a workspace
        close(torch, output, 2 * expected, problem)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 136])
def test_routines_of_cublas_are_made_in_a_graph_and_on_several_streams_at_once(
    torch, names_of, own, tmp_path, dtype, rows
):
    shape = {**SHAPE, "m": rows}
    problem = GEMM.problem(shape, dtype)
    names = [name for name in names_of(problem) if name.startswith("cuBLAS ")]
    assert len(names) == 1 + (rows == 1 and dtype == "float32")  # the product of a vector
    for place, name in enumerate(names):
        launch = learned(tmp_path / str(place), problem, name, own(problem)).launcher("gemm", shape, dtype=dtype)
        (a, b, c), expected = arrays_of(torch, problem)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # nothing was launched before
            launch(a, b, c, alpha=-0.5)
        c.zero_()
        graph.replay()
        torch.cuda.synchronize()
        close(torch, c, -0.5 * expected, problem)
        assert call_of(problem, launch.choice(a, b, c)) == (name, "")
        streams, outputs = [torch.cuda.Stream() for _ in range(3)], [torch.empty_like(c) for _ in range(3)]
        for _ in range(20):
            for stream, output in zip(streams, outputs, strict=True):
                with torch.cuda.stream(stream):
                    launch(a, b, output)
        torch.cuda.synchronize()
        for output in outputs:
            assert torch.equal(output, outputs[0])
            close(torch, output, expected, problem)


def test_arrays_may_start_at_any_multiple_of_16_bytes(torch, names_of, own, tmp_path):
    problem = GEMM.problem(SHAPE, "bfloat16")
    for place, name in enumerate(names_of(problem)):
        launch = learned(tmp_path / str(place), problem, name, own(problem)).launcher("gemm", SHAPE, dtype="bfloat16")
        arrays, expected = arrays_of(torch, problem)
        moved = []
        for array in arrays:
            room = torch.empty(array.numel() + 8, device="cuda", dtype=array.dtype)[8:]
            moved.append(room.view(array.shape).copy_(array))
        assert {array.data_ptr() % 32 for array in moved} == {16}
        close(torch, launch(*moved), expected, problem)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name: name.replace("cuBLASLt ", "cuBLASLt 9"), "is installed"),
        (lambda name: name.replace("algorithm ", "algorithm 9"), "does not name this algorithm"),
    ],
)
def test_ours_runs_where_the_call_is_not_here(torch, names_of, own, tmp_path, change, reason):
    problem = GEMM.problem(SHAPE, "bfloat16")
    name = change(names_of(problem)[-1])
    launch = learned(tmp_path, problem, name, own(problem)).launcher("gemm", SHAPE, dtype="bfloat16")
    arrays, expected = arrays_of(torch, problem)
    close(torch, launch(*arrays), expected, problem)
    call, why_not = call_of(problem, launch.choice("cuda:0"))
    assert call is None
    assert reason in why_not


@pytest.mark.parametrize("which", [0, -1])
def test_an_operator_makes_the_call_only_where_it_beats_pytorchs_own(torch, names_of, own, tmp_path, which):
    import tilewright.torch as tw  # noqa: PLC0415 - it imports torch

    problem = LINEAR.problem(SHAPE, "bfloat16", {"activation": "none"})
    name = names_of(problem)[which]
    tw.use(learned(tmp_path, problem, name, own(problem)))
    try:
        (x, w, b, _), expected = arrays_of(torch, problem)
        begun = time.perf_counter()
        with torch.no_grad():
            while time.perf_counter() - begun < LONGEST_S:
                torch.cuda._sleep(4_000_000)  # about 2 ms, so that the GPU has not reached the call when it is enqueued
                close(torch, tw.linear(x, w, b), expected, problem)
                [found] = tw.status()
                if found.fallback == "not_found_yet":
                    continue
                assert name in found.reason
                if "takes turns" not in found.reason:
                    break
        assert "calls each" in found.reason, found.reason
        if found.is_ours:
            assert found.ours_ms < found.pytorch_ms
    finally:
        tw.use(None)


def test_accelerate_weighs_the_call_against_pytorchs_own(torch, names_of, own, tmp_path):
    import tilewright.torch as tw  # noqa: PLC0415 - it imports torch

    problem = LINEAR.problem({"m": 256, "n": 4096, "k": 4096}, "bfloat16", {"activation": "none"})
    name = names_of(problem)[0]
    tw.use(learned(tmp_path, problem, name, own(problem)))
    try:
        model = torch.nn.Sequential(torch.nn.Linear(4096, 4096)).cuda().bfloat16().eval()
        x = torch.randn(256, 4096, device="cuda").bfloat16()
        with torch.no_grad():
            expected = model(x)
            result = tw.accelerate(model, x, keep=False)
            torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
        [site] = [one for one in result.as_json()["sites"] if one["operator"] == "linear"]
        assert site["library"] == name
        assert site["ours_here_ms"] is not None
        assert "the library was faster" not in site["reason"]
    finally:
        tw.use(None)


def test_the_finals_name_the_fastest_call_and_the_answer_is_launched(torch, device, tmp_path):
    shape = {"m": 39, "n": 18944, "k": 3584}
    problem = GEMM.problem(shape, "bfloat16")
    bench = device.bench(GEMM, problem, 1)
    result = tune(bench, GEMM, GEMM.space(problem, device.model.limits), Budget(seconds=4), seed=1)
    bench.close()
    assert result.library is not None
    print(f"ours {result.best.time_ms:.4g} ms; {result.library}")  # noqa: T201 - for whoever runs it
    if result.library.faster and is_launched(result.library.name):
        ours = result.best.configuration
        launch = learned(tmp_path, problem, result.library.name, ours).launcher("gemm", shape, dtype="bfloat16")
        arrays, expected = arrays_of(torch, problem)
        close(torch, launch(*arrays), expected, problem)
        assert call_of(problem, launch.choice("cuda:0"))[0] == result.library.name

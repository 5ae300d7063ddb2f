"""On a GPU: ranges of a family that are the library's, whose calls share workspaces, streams and graphs with ours."""

from __future__ import annotations

import pytest
from library_products import CASES, TOLERANCE

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.tuner.families.limits import FamilyBudget
from tilewright.tuner.families.tune import tune_family
from tilewright.tuner.library import cublaslt
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.any_size.library import SizedLibrary
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.launches.library_calls import LibraryRefusedError

pytestmark = pytest.mark.gpu

N, K, MIDDLE, HIGH = 520, 1032, 64, 4096
SIZES = (1, MIDDLE, MIDDLE + 1, 300, HIGH, HIGH + 77)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def launcher(tmp_path):
    """That of a family whose sizes up to MIDDLE are ours, with a workspace of counters, and the rest the library's."""

    def made(kernel, dtype, options, variant=None):
        runtime, declared = Runtime(answers=AnswerCache(tmp_path / "answers")), catalogue().get(kernel)
        family = Family.of(declared, {"m": (1, HIGH), "n": N, "k": K}, dtype, options)
        space = declared.space(family.largest, gpu_place(0).limits, only=[variant] if variant else None)
        ours = Choice(space.defaults()[0], "table", "range", library_faster=False)
        name = f"cuBLASLt {cublaslt.version()} (its own choice)"
        theirs = Choice(ours.configuration, "table", "range", library_faster=True, library_name=name)
        ranges = Ranges([SizeRange(MIDDLE, ours), SizeRange(HIGH, theirs)])
        assert len(ranges) == 2
        runtime.families.pin({family: ranges}, gpu_place(0).slug)
        return runtime.any_size(kernel, {"n": N, "k": K, **options}, dtype=dtype, largest=HIGH)

    return made


def loaded(launch):
    """What is loaded for each of its ranges."""
    [launches] = launch._on.values()
    [family] = launches._loaded.values()
    return family._kernels


def arrays_of(torch, kernel, dtype, options, m):
    """Tensors in the declared order, and what comes out, in float64."""
    torch.manual_seed(m)

    def drawn(*sizes):
        return torch.randn(*sizes, device="cuda").to(getattr(torch, dtype))

    if kernel == "linear":
        x, w, b, y = drawn(m, K), drawn(N, K), drawn(N), drawn(m, N)
        expected = x.double() @ w.double().T + b.double()
        return (x, w, b, y), expected.relu() if options["activation"] == "relu" else expected
    a, c = drawn(m, K), drawn(m, N)
    b = drawn(N, K) if options.get("trans_b") else drawn(K, N)
    product = a.double() @ (b.double().T if options.get("trans_b") else b.double())
    return (a, b, c), product if options.get("beta_zero", True) else 2 * c.double() - 0.5 * product


def launched(launch, arrays, options):
    return launch(*arrays) if options.get("beta_zero", True) else launch(*arrays, alpha=-0.5, beta=2.0)


def close(found, expected, dtype):
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE[dtype], float(error)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_of_a_range_that_is_the_librarys_run_its_call(torch, launcher, case):
    kernel, dtype, options = case
    launch = launcher(kernel, dtype, options)
    for m in (*SIZES, *SIZES):
        arrays, expected = arrays_of(torch, kernel, dtype, options, m)
        close(launched(launch, arrays, options), expected, dtype)
    assert [isinstance(one, SizedLibrary) for one in loaded(launch)] == [False, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_workspace_that_both_share_keeps_the_counters_of_ours(torch, launcher, dtype):
    variant = "tensor3xtf32" if dtype == "float32" else "tensor_half"
    launch = launcher("gemm", dtype, {}, variant)
    launch.prepare("cuda:0")
    for m in (3, 2000, 17, HIGH, MIDDLE, 129, 5):
        arrays, expected = arrays_of(torch, "gemm", dtype, {}, m)
        for _ in range(3):
            close(launch(*arrays), expected, dtype)


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_range_of_the_library_is_captured_and_runs_on_any_stream(torch, launcher, is_prepared):
    launch, dtype = launcher("linear", "bfloat16", {"activation": "relu"}), "bfloat16"
    if is_prepared:
        launch.prepare("cuda:0")
    (x, w, b, y), expected = arrays_of(torch, "linear", dtype, {"activation": "relu"}, 700)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, w, b, y)
    y.zero_()
    graph.replay()
    close(y, expected, dtype)
    torch.cuda.synchronize()
    streams, outputs = [torch.cuda.Stream() for _ in range(3)], [torch.zeros_like(y) for _ in range(3)]
    for _ in range(5):
        for stream, out in zip(streams, outputs, strict=True):
            with torch.cuda.stream(stream):
                launch(x, w, b, out)
    torch.cuda.synchronize()
    for out in outputs:
        close(out, expected, dtype)


def test_ours_serves_the_range_from_then_on_where_the_library_refuses(torch, launcher, monkeypatch):
    launch = launcher("gemm", "float32", {})

    def refused(*_):
        raise LibraryRefusedError("a name", "status 7")

    monkeypatch.setattr(SizedLibrary, "launch", refused)
    for m in (300, 301):
        arrays, expected = arrays_of(torch, "gemm", "float32", {}, m)
        close(launch(*arrays), expected, "float32")
    assert not isinstance(loaded(launch)[1], SizedLibrary)


def test_operators_of_any_size_run_pytorchs_own_call_in_such_a_range(torch, launcher, tmp_path):
    import tilewright.torch as tw  # noqa: PLC0415

    launch = launcher("linear", "bfloat16", {"activation": "none"})
    runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "of operators"), any_size_operators=True)
    family = Family.of(catalogue().get("linear"), {"m": (1, 8192), "n": N, "k": K}, "bfloat16")
    runtime.families.pin({family: launch.ranges("cuda:0")}, gpu_place(0).slug)
    tw.use(runtime)
    try:
        for m in (16, 300):
            (x, w, b, _), expected = arrays_of(torch, "linear", "bfloat16", {"activation": "none"}, m)
            close(tw.linear(x, w, b), expected, "bfloat16")
        assert [one.is_ours for one in tw.status()] == [True, False]
        assert tw.status()[1].fallback == "library_faster"
    finally:
        tw.use(None)


@pytest.mark.timeout(300)
def test_a_family_tuned_here_gives_the_library_what_it_computes_faster(torch, device, tmp_path):
    """At every size that was measured, what a launcher runs is no slower than cublasLt's own choice."""
    gemm = catalogue().get("gemm")
    family = Family.of(gemm, {"m": (1, 2048), "n": 3584, "k": 3584}, "bfloat16")
    table = tune_family(device, gemm, family, FamilyBudget(seconds=0.5, sizes=5), seed=1)
    for span in table.spans:
        for size in (one for one in table.sizes if span.low <= one <= span.high):
            assert not span.is_library or table.own_choice_ms[size] < 1.05 * table.time_ms(size)
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"), shipped_records=False)
    runtime.tables.put(family, gpu_place(0).slug, table.as_json(gemm))
    launch = runtime.any_size("gemm", {"n": 3584, "k": 3584}, dtype="bfloat16", largest=2048)
    launch.prepare("cuda:0")
    is_library = [isinstance(one, SizedLibrary) for one in loaded(launch)]
    assert is_library == [span.is_library for span in table.spans]
    b = torch.randn(3584, 3584, device="cuda").bfloat16()
    for m in {end for span in table.spans for end in (span.low, span.high)}:
        a, c = torch.randn(m, 3584, device="cuda").bfloat16(), torch.empty(m, 3584, device="cuda").bfloat16()
        close(launch(a, b, c), a.double() @ b.double(), "bfloat16")

"""A library's call that the finals found faster is what the launcher makes, where that version is installed."""

from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
from made_bundles import bundle_file
from noting_cublaslt import noting_library
from runtime_gemm import GEMM, TILED

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches import host, library_calls, loaded_kernel
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.launches.library_calls import LoadedLibrary, call_of

SHAPE = {"m": 96, "n": 80, "k": 112}
LINEAR = catalogue().get("linear")
LINEAR_TILED = LINEAR.variant("tiled").space().default()


@pytest.fixture(scope="module")
def result(cache):
    """A tuned answer of this machine's own finals; one thread of OpenBLAS is far ahead of `tiled` on a CPU."""
    bench = CpuDevice().bench(GEMM, GEMM.problem(SHAPE), 1)
    try:
        found = finals(bench, [TILED], "warm", MeasurementPlan(final_rounds=6, final_samples=1))
    finally:
        bench.close()
    if found.library is None:
        pytest.skip("NumPy has another BLAS than OpenBLAS here")
    [winner] = found.finalists
    return {
        "variant": "tiled",
        "configuration": dict(TILED.values),
        "match": "exact",
        "time_ms": winner.time_ms,
        "library": asdict(found.library),
        "source_hash": GEMM.source_hash("tiled"),
    }


def runtime_of(folder, answer, problem=None):
    runtime = Runtime(only_tuned=True, answers=AnswerCache(folder))
    runtime.learn(problem or GEMM.problem(SHAPE), host_place(), answer)
    return runtime


def renamed(answer, name):
    return answer | {"library": answer["library"] | {"name": name}}


@pytest.fixture
def built(monkeypatch):
    """The problems whose own kernels were made ready."""
    made, build = [], host.HostFunction.__init__

    def noting(self, kernel, problem, choice):
        made.append(problem)
        build(self, kernel, problem, choice)

    monkeypatch.setattr(host.HostFunction, "__init__", noting)
    return made


def product_of(launch, result_holds=1.0, **scalars):
    """What a launch computes, and what it should."""
    generator = np.random.default_rng(3)
    a = generator.standard_normal((SHAPE["m"], SHAPE["k"])).astype("float32")
    b = generator.standard_normal((SHAPE["k"], SHAPE["n"])).astype("float32")
    c = np.full((SHAPE["m"], SHAPE["n"]), result_holds, "float32")
    return launch(a, b, c, **scalars), a.astype("float64") @ b.astype("float64")


@pytest.mark.usefixtures("cache")
def test_the_finals_name_a_call_which_is_launched_with_the_callers_scalars(result, tmp_path, built):
    assert result["library"]["faster"]
    launch = runtime_of(tmp_path, result).best("gemm", **SHAPE)
    found, product = product_of(launch, alpha=-0.5)
    np.testing.assert_allclose(found, -0.5 * product, rtol=1e-4, atol=1e-4)
    found, product = product_of(launch, result_holds=np.nan)
    np.testing.assert_allclose(found, product, rtol=1e-4, atol=1e-4)
    assert built == []
    assert call_of(launch.problem, launch.choice("cpu")) == (result["library"]["name"], "")


@pytest.mark.usefixtures("cache")
def test_a_launched_call_adds_to_what_the_result_holds(result, tmp_path, built):
    problem = GEMM.problem(SHAPE, "float32", {"beta_zero": False})
    launch = runtime_of(tmp_path, result, problem).best("gemm", **SHAPE, beta_zero=False)
    found, product = product_of(launch, alpha=-0.5, beta=2.0)
    np.testing.assert_allclose(found, 2 - 0.5 * product, rtol=1e-4, atol=1e-4)
    assert built == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OpenBLAS 0.1 of NumPy 1.0 (cblas_sgemm, 1 thread)", "is installed"),
        ("cuBLAS 13.1.0 (cublasSgemm_v2, FP32)", "the launcher makes no calls of this kind"),
    ],
)
def test_ours_runs_where_another_version_is_installed(result, tmp_path, built, name, reason):
    launch = runtime_of(tmp_path, renamed(result, name)).best("gemm", **SHAPE)
    found, product = product_of(launch)
    np.testing.assert_allclose(found, product, rtol=1e-4, atol=1e-4)
    assert built == [GEMM.problem(SHAPE)]
    call, why_not = call_of(launch.problem, launch.choice("cpu"))
    assert call is None
    assert name in why_not
    assert reason in why_not


@pytest.mark.usefixtures("cache")
def test_only_what_was_timed_at_this_problem_and_was_faster_is_launched(result, tmp_path):
    problem = GEMM.problem(SHAPE)
    choice = runtime_of(tmp_path, result).choose(GEMM, problem, host_place())
    for change in ({"match": "predicted"}, {"match": "nearest"}, {"library_faster": False}, {"library_name": None}):
        assert call_of(problem, replace(choice, **change)) == (None, "")


@pytest.mark.usefixtures("cache")
def test_a_bundle_keeps_the_call(result, tmp_path):
    facts = {**GEMM.problem(SHAPE).as_json(), **result, "source": result["source_hash"]}
    folder = bundle_file(tmp_path / "bundle", facts, device_model={"slug": host_place().slug})
    launch = Runtime(bundle=folder).best("gemm", **SHAPE)
    assert launch.choice("cpu").origin == "bundle"
    assert call_of(launch.problem, launch.choice("cpu"))[0] == result["library"]["name"]


@pytest.mark.usefixtures("cache")
def test_a_call_is_pinned_with_the_configuration_that_it_was_faster_than(result, tmp_path):
    problem, name = GEMM.problem(SHAPE), result["library"]["name"]
    runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path))
    runtime.pin({problem: TILED}, calls={problem: name})
    assert call_of(problem, runtime.choose(GEMM, problem, host_place()))[0] == name
    runtime.pin({problem: TILED})
    assert call_of(problem, runtime.choose(GEMM, problem, host_place()))[0] is None


@pytest.mark.usefixtures("cache")
def test_what_cannot_be_made_ready_is_not_tried_again(result, tmp_path):
    problem = GEMM.problem({**SHAPE, "m": 8})
    choice = replace(runtime_of(tmp_path, result).choose(GEMM, GEMM.problem(SHAPE), host_place()), origin="test")
    assert call_of(problem, choice)[0]
    library_calls.refuse(problem, choice.library_name, "there is no room for its workspace")
    assert "no room" in call_of(problem, choice)[1]
    assert call_of(GEMM.problem(SHAPE), choice)[0]


@pytest.mark.usefixtures("cache")
def test_a_layers_call_ends_with_bias_and_activation(result, tmp_path, built):
    shape = {"m": 16, "n": 24, "k": 40}
    problem = LINEAR.problem(shape, "float32", {"activation": "relu"})
    bench = CpuDevice().bench(LINEAR, problem, 1)
    name = bench.library_name()
    bench.close()
    answer = renamed(result, name) | {
        "configuration": dict(LINEAR_TILED.values),
        "source_hash": LINEAR.source_hash("tiled"),
    }
    launch = runtime_of(tmp_path, answer, problem).best("linear", **shape, activation="relu")
    generator = np.random.default_rng(3)
    x, w, b = (generator.standard_normal(size).astype("float32") for size in ((16, 40), (24, 40), (24,)))
    found = launch(x, w, b, np.empty((16, 24), "float32"))
    np.testing.assert_allclose(found, np.maximum(x @ w.T + b, 0), rtol=1e-4, atol=1e-4)
    assert built == []


GEMV = catalogue().get("gemv")
PLAIN = "cuBLASLt 13.1.2 (algorithm 66, tile 20, stages 13, {})"
SPLIT = "cuBLASLt 13.1.2 (algorithm 21, split-k 3, reduction 2, cluster 5, {})"
SMALL = {"m": 5, "n": 8, "k": 16}
STREAM, WORKSPACE = 77, 0x90000


@pytest.fixture
def library(monkeypatch):
    """In a context that no driver has made."""
    monkeypatch.setattr(loaded_kernel, "current_handle", lambda: 1)
    monkeypatch.setattr(library_calls, "current_id", lambda: 1)
    monkeypatch.setattr(library_calls, "allowed_while_capturing", nullcontext)
    library_calls._library_in.cache_clear()
    with noting_library() as noting:
        yield noting
    library_calls._library_in.cache_clear()


def launched(library, kernel, problem, name, scalars):
    """The arguments of cublasLtMatmul, as the launcher makes them: arrays lie at 0x10000, 0x20000 and so on."""
    loaded = LoadedLibrary(kernel, problem, name, 0)
    addresses = tuple(0x10000 * (1 + place) for place in range(len(kernel.tensors)))
    words = loaded.words()
    words.move((*addresses, WORKSPACE) if loaded.workspaces else addresses)
    words.change(STREAM, scalars)
    for step in words.steps:
        assert loaded.enqueue(*step) == 0
    [*_, arguments] = library.of("cublasLtMatmul")
    first, second, sources, out = (arguments[place] for place in (3, 5, 8, 10))
    assert sources == out
    return loaded, {
        "factors": (first, second),
        "out": out,
        "scalars": (arguments[2], arguments[7]),
        "end": arguments[-3:],
    }


@pytest.mark.parametrize(("zero", "beta"), [(True, 0.0), (False, 2.0)])
def test_a_matrix_product_has_its_operands_in_the_librarys_order_and_the_scalars(library, zero, beta):
    problem = GEMM.problem(SMALL, "float32", {"beta_zero": zero})
    loaded, passed = launched(library, GEMM, problem, SPLIT.format("FP32"), (-0.5, 2.0))
    assert passed["factors"] == (0x20000, 0x10000)  # column-major: the second is the first
    assert passed["out"] == 0x30000
    assert passed["scalars"] == (-0.5, beta)
    assert passed["end"] == [WORKSPACE, 128, STREAM]
    assert loaded.workspaces is not None


def test_what_needs_no_workspace_has_none(library):
    loaded, passed = launched(library, GEMM, GEMM.problem(SMALL, "bfloat16"), PLAIN.format("BF16"), (1.0, 0.0))
    assert loaded.workspaces is None
    assert passed["end"][1] == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_layer_has_its_bias_in_the_same_call(library, dtype):
    problem = LINEAR.problem(SMALL, dtype, {"activation": "relu"})
    name = PLAIN.format("FP32" if dtype == "float32" else "FP16")
    _, passed = launched(library, LINEAR, problem, name, ())
    assert passed["factors"] == (0x20000, 0x10000)
    assert passed["out"] == 0x40000
    assert passed["scalars"] == (1.0, 0.0)
    biases = [value for _, attribute, value, _ in library.of("cublasLtMatmulDescSetAttribute") if attribute == 8]
    assert biases[-1] == 0x30000


def test_a_vectors_product_is_one_of_matrices(library):
    problem = GEMV.problem({"m": 5, "n": 8}, "float32")
    _, passed = launched(library, GEMV, problem, PLAIN.format("FP32"), (3.0, 0.0))
    assert passed["factors"] == (0x10000, 0x20000)
    assert (passed["out"], passed["scalars"]) == (0x30000, (3.0, 0.0))


@pytest.mark.parametrize(
    ("kernel", "options", "name"),
    [
        (GEMM, {}, PLAIN.format("BF16")),
        (GEMM, {}, PLAIN.replace("66", "67").format("FP32")),
        (LINEAR, {"activation": "gelu"}, PLAIN.format("FP32")),
    ],
)
def test_what_the_heuristic_does_not_return_is_refused(library, kernel, options, name):
    with pytest.raises(LibraryError, match="does not name this algorithm"):
        LoadedLibrary(kernel, kernel.problem(SMALL, "float32", options), name, 0)


def test_launches_under_way_have_arguments_of_their_own_and_one_handle(library):
    loaded = LoadedLibrary(GEMM, GEMM.problem(SMALL), PLAIN.format("FP32"), 0)
    first, second = loaded.words(), loaded.words()
    first.move((1, 2, 3))
    second.move((4, 5, 6))
    assert [words.steps[0][3].value for words in (first, second)] == [2, 5]
    assert len(library.of("cublasLtCreate")) == 1

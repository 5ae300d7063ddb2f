"""A library's call that the finals found faster is what the launcher makes, where that version is installed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
from made_bundles import bundle_file
from noting_cublaslt import noting_library
from runtime_gemm import GEMM, TILED

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.variant import SHARED_COUNTER_BYTES
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.library import cublas
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.any_size.library import SizedLibrary
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches import host, library_calls, loaded_kernel
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.launches.library_calls import LibraryRefusedError, LoadedLibrary, call_of
from tilewright.tuner.runtime.memory.room import NoRoomError
from tilewright.tuner.runtime.memory.shared import shared_workspaces

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
        ("cuDNN 9.10.0 (algorithm 1, FP32)", "the launcher makes no calls of this kind"),
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
    caches = library_calls._library_in, library_calls._cublas_in, shared_workspaces
    for one in caches:
        one.cache_clear()
    with noting_library() as noting:
        yield noting
    for one in caches:
        one.cache_clear()


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


@pytest.mark.parametrize(
    ("kernel", "shape", "options", "function", "dtype"),
    [
        (GEMM, SMALL, {}, "cublasSgemm_v2", "float32"),
        (GEMM, SMALL, {"beta_zero": False}, "cublasGemmEx", "bfloat16"),
        (GEMM, {**SMALL, "m": 1}, {"trans_b": True}, "cublasSgemv_v2", "float32"),
        (GEMM, {**SMALL, "batch": 3}, {"accuracy": "tf32"}, "cublasGemmStridedBatchedEx", "float32"),
        (GEMV, {"m": 5, "n": 8}, {}, "cublasDgemv_v2", "float64"),
    ],
)
def test_a_routine_of_cublas_has_the_callers_arrays_scalars_stream_and_workspace(
    library, kernel, shape, options, function, dtype
):
    problem = kernel.problem(shape, dtype, options)
    word = {"float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}[dtype]
    precision = "TF32" if options.get("accuracy") == "tf32" else word
    name = f"cuBLAS 13.1.2 ({function.removesuffix('_v2')}, {precision})"
    assert cublas.why_not_here(name) == ""
    loaded = LoadedLibrary(kernel, problem, name, 0)
    first, second = loaded.words(), loaded.words()
    for words, stream, arrays in (
        (first, STREAM, (91, 92, 93)),
        (second, STREAM, (94, 95, 96)),
        (first, 78, (97, 98, 99)),
    ):
        words.move((*arrays, WORKSPACE))
        words.change(stream, (-0.5, 2.0))
        assert loaded.enqueue(*words.steps[0]) == 0
        arguments = library.of(function)[-1]
        is_swapped = kernel is GEMM  # column-major: the second is the first
        a, b, c = arrays
        assert [one for one in arguments if one in arrays] == ([b, a, c] if is_swapped else [a, b, c])
        assert -0.5 in arguments
        assert (2.0 in arguments) is (kernel is GEMM and options.get("beta_zero") is False)
    assert [arguments[1] for arguments in library.of("cublasSetStream_v2")] == [STREAM, 78]
    assert [arguments[1:] for arguments in library.of("cublasSetWorkspace_v2")] == [[WORKSPACE, 32 << 20]] * 2
    assert library.of("cublasSetMathMode")[-1][1] == {"BF16": 16, "TF32": 3}.get(precision, 0)
    assert len(library.of("cublasCreate_v2")) == 1


def test_a_layer_is_no_routine_of_cublas(library):
    with pytest.raises(LibraryError, match="does not name this algorithm"):
        LoadedLibrary(LINEAR, LINEAR.problem(SMALL, "bfloat16"), "cuBLAS 13.1.2 (cublasGemmEx, BF16)", 0)


class OneWorkspace:
    def __init__(self, address=WORKSPACE):
        self.given, self.at = [], address

    def address(self, stream, size_bytes):
        self.given.append((stream, size_bytes))
        if self.at is None:
            raise NoRoomError("there is no room")
        return self.at


@pytest.mark.parametrize("name", ["cuBLASLt 13.1.2 (its own choice)", SPLIT.format("FP32")])
def test_a_range_of_the_library_has_its_call_at_any_size(library, name):
    family, memory = Family.of(GEMM, {"m": (1, 64), "n": 8, "k": 16}), OneWorkspace()
    launches, is_first = SizedLibrary(GEMM, family, name, 0, memory), "own choice" in name
    for m, (a, b, c) in ((5, (1, 2, 3)), (64, (4, 5, 6)), (5, (7, 8, 9))):
        launches.launch(SizedCall(m, (a, b, c), (2.0, 0.0), STREAM))
        arguments = library.of("cublasLtMatmul")[-1]
        assert [arguments[place] for place in (3, 5, 8, 10)] == [b, a, c, c]
        assert arguments[2] == 2.0
        assert arguments[-2:] == [0 if is_first else 128, STREAM]
        assert is_first or arguments[-3] == WORKSPACE + SHARED_COUNTER_BYTES
    assert len(library.of("cublasLtMatmulAlgoGetHeuristic")) == 2  # once a size
    columns = [arguments[3] for arguments in library.of("cublasLtMatrixLayoutCreate")]
    assert {5, 64} < {*columns}
    assert set(memory.given) == (set() if is_first else {(STREAM, SHARED_COUNTER_BYTES + 128)})


def test_a_call_without_room_for_its_workspace_is_refused_before_it_runs(library):
    family = Family.of(GEMM, {"m": (1, 64), "n": 8, "k": 16})
    launches = SizedLibrary(GEMM, family, SPLIT.format("FP32"), 0, OneWorkspace(None))
    with pytest.raises(LibraryRefusedError, match="no room"):
        launches.launch(SizedCall(5, (1, 2, 3), (1.0, 0.0), STREAM))
    assert library.of("cublasLtMatmul") == []


def test_launches_under_way_have_arguments_of_their_own_and_one_handle(library):
    loaded = LoadedLibrary(GEMM, GEMM.problem(SMALL), PLAIN.format("FP32"), 0)
    first, second = loaded.words(), loaded.words()
    first.move((1, 2, 3))
    second.move((4, 5, 6))
    assert [words.steps[0][3].value for words in (first, second)] == [2, 5]
    assert len(library.of("cublasLtCreate")) == 1

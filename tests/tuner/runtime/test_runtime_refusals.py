"""What the launcher refuses before anything runs, and the words for it."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from faulty_kernels import faulty
from runtime_gemm import GEMM, Elsewhere, K, M, N, operands
from test_runtime_first_use import KINDS, NO_TAIL, SHAPE, TAIL, runtime_of, states

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import (
    ArgumentError,
    LaunchError,
    UntunedError,
    UntunedWarning,
    WrongDeviceError,
    WrongResultWarning,
)
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.first_use.first_use import UNVERIFIED
from tilewright.tuner.runtime.launches import devices
from tilewright.tuner.runtime.launches.devices import resolved


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
        "every other column": ({"A": np.repeat(a, 2, axis=1)[:, ::2]}, r"^A: strides \(72, 2\).*Make it contiguous"),
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


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
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


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_too_many_arrays_and_one_given_twice_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match="takes 3 arrays: A, B, C"):
        launch(a, b, c, c)
    with pytest.raises(ArgumentError, match=r"^A: is given twice"):
        launch(a, b, c, A=a)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_what_is_no_array_is_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match=r"builtins\.list is not an array"):
        launch(a.tolist(), b, c)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_arrays_on_two_devices_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="A on a GPU, B on the CPU"):
        launch(Elsewhere(a.shape), b, c)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_a_launcher_for_a_gpu_takes_no_arrays_of_the_cpu(runtime):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="there is no device 'tpu'"):
        runtime.best("gemm", m=M, n=N, k=K, device="tpu")
    on_cpu = runtime.best("gemm", m=M, n=N, k=K, device="cpu")
    with pytest.raises(WrongDeviceError, match="for cpu, but the arrays are on cuda"):
        on_cpu(*(Elsewhere(x.shape) for x in (a, b, c)))


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kernel": "gem"}, UnknownNameError, "no kernel 'gem'"),
        ({"k": None}, InvalidProblemError, "shape.k"),
        ({"k": -1}, InvalidProblemError, "shape.k"),
        ({"dtype": "int8"}, InvalidProblemError, "dtype"),
        ({"trans_c": True}, InvalidProblemError, "options.trans_c"),
        ({"k": 0}, InvalidProblemError, "shape.k: of an empty sum"),
    ],
)
def test_a_problem_that_is_none_is_refused_by_its_field(runtime, arguments, error, words):
    asked = {"kernel": "gemm", "m": M, "n": N, "k": K} | arguments
    with pytest.raises(error, match=words):
        runtime.best(**{name: value for name, value in asked.items() if value is not None})


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
def test_only_a_dtype_that_there_is_is_proposed(runtime, launch):
    a, b, c = operands()
    with pytest.raises(ArgumentError, match=r'Convert it to float32, or ask best\(…, dtype="float64"\)$'):
        launch(a.astype("f8"), b, c)
    with pytest.raises(ArgumentError, match=r"to float32: gemm computes in float32, float64, bfloat16, float16$"):
        launch(a.astype("i2"), b, c)


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("current", [None, 2])
@pytest.mark.parametrize("named", ["cpu", "cuda", "cuda:3", "cuda:", "cuda:x", "cuda:-1", "gpu:1", "cpu:0", "CUDA", ""])
def test_a_device_is_the_cpu_or_a_gpu_by_its_number_or_the_current_one(monkeypatch, named, current):
    monkeypatch.setattr(devices, "current_ordinal", lambda: current)
    if named in {"cpu", "cuda", "cuda:3"}:
        assert resolved(named) == (f"cuda:{current or 0}" if named == "cuda" else named)
        return
    with pytest.raises(WrongDeviceError, match=f"there is no device '{named}'. Name one like cpu, cuda or cuda:0"):
        resolved(named)


@pytest.fixture(scope="module")
def wrong_gemm(tmp_path_factory):
    return faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", TAIL, NO_TAIL)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("match", sorted(UNVERIFIED))
def test_a_wrong_configuration_is_withdrawn_before_anything_is_launched(tmp_path, wrong_gemm, match):
    runtime = runtime_of(tmp_path, wrong_gemm, match=match)
    launch = runtime.best("gemm", **SHAPE)
    with pytest.warns(WrongResultWarning, match=f"tiled TILE_WIDTH=8.*{match}"), pytest.warns(UntunedWarning):
        launch.prepare("cpu")
    assert states(runtime) == [("wrong", "tiled")]
    a, b, c = operands()
    with warnings.catch_warnings(action="error"):
        launch(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("cache")
def test_where_only_results_of_tuning_are_wanted_it_says_that_there_is_none(tmp_path, wrong_gemm):
    launch = runtime_of(tmp_path, wrong_gemm, only_tuned=True).best("gemm", **SHAPE)
    with pytest.warns(WrongResultWarning), pytest.raises(UntunedError):
        launch.prepare("cpu")


@pytest.mark.usefixtures("cache")
def test_arrays_say_which_problem_is_prepared(tmp_path, wrong_gemm):
    problem = wrong_gemm.get("gemm").problem(SHAPE, options={"trans_b": True})
    runtime = runtime_of(tmp_path, wrong_gemm, problem)
    a, b, c = operands()
    turned = np.ascontiguousarray(b.T).T
    with pytest.warns(WrongResultWarning, match="trans_b=true"), pytest.warns(UntunedWarning):
        runtime.best("gemm", **SHAPE).prepare(a, turned, c)
    assert np.isnan(c).all()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("settings", [{"check_first_use": False}, {"match": "exact"}])
def test_it_verifies_nothing_where_it_is_off_or_where_the_shape_was_verified(tmp_path, wrong_gemm, settings):
    runtime = runtime_of(tmp_path, wrong_gemm, **settings)
    with warnings.catch_warnings(action="error"):
        runtime.best("gemm", **SHAPE).prepare("cpu")
    assert runtime.first_uses() == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_with_rows_is_verified(tmp_path, kind):
    name = kind.partition(" ")[0]
    variant, values, shape, dtype, options = KINDS[kind]
    problem = catalogue().get(name).problem(shape, dtype, options)
    runtime = runtime_of(tmp_path, catalogue(), problem, Configuration.of(variant, values))
    runtime.best(name, dtype=dtype, **shape).prepare_for(problem, "cpu")
    assert states(runtime) == [("right", variant)]
    assert runtime.first_uses()[0].reason == "rows of the result are within their bounds"


def with_gemm(**members):
    gemm = replace(GEMM, **members)
    return Catalogue(catalogue().by_name | {"gemm": gemm})


@pytest.mark.usefixtures("cache")
def test_a_kernel_that_does_not_say_what_its_rows_are_is_verified_whole(tmp_path):
    kernels = with_gemm(row_axis="")
    runtime = runtime_of(tmp_path, kernels)
    runtime.best("gemm", **SHAPE).prepare("cpu")
    assert states(runtime) == [("right", "tiled")]


@pytest.mark.usefixtures("cache")
def test_the_kernels_own_check_is_asked(tmp_path):
    def check(outputs, _returned):
        return "" if outputs["C"].shape == (M, N) and np.isfinite(outputs["C"]).any() else "it is empty"

    runtime = runtime_of(tmp_path, with_gemm(row_axis="", reference=None, check=check))
    runtime.best("gemm", **SHAPE).prepare("cpu")
    assert states(runtime) == [("right", "tiled")]


@pytest.mark.usefixtures("cache")
def test_where_nothing_says_what_is_right_it_says_so(tmp_path):
    runtime = runtime_of(tmp_path, with_gemm(row_axis="", reference=None))
    launch = runtime.best("gemm", **SHAPE)
    launch.prepare("cpu")
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("waiting", "its check cannot be made ahead: gemm has no reference")
    launch(*operands())
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("unchecked", "gemm has no reference")


@pytest.mark.usefixtures("cache")
def test_a_fault_that_only_large_numbers_show_is_found(tmp_path, tmp_path_factory):
    right = "sum += Sum(tile_a[y][p]) * Sum(tile_b[p][x]);"
    wrong = "sum += (tile_a[y][p] > REAL(32768) ? Sum(2) : Sum(1)) * Sum(tile_a[y][p]) * Sum(tile_b[p][x]);"
    kernels = faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", right, wrong)
    runtime = runtime_of(tmp_path, kernels)
    with pytest.warns(WrongResultWarning), pytest.warns(UntunedWarning):
        runtime.best("gemm", **SHAPE).prepare("cpu")


@pytest.mark.usefixtures("cache")
def test_a_configuration_that_was_checked_is_not_verified_again(tmp_path, monkeypatch):
    runtime = runtime_of(tmp_path, catalogue())
    launch = runtime.best("gemm", **SHAPE)
    launch(*operands())
    assert states(runtime) == [("right", "tiled")]
    monkeypatch.setattr("tilewright.tuner.runtime.first_use.drawn._finding", lambda *_: pytest.fail("it verifies"))
    launch.prepare("cpu")


@pytest.mark.usefixtures("cache")
def test_what_would_take_too_long_on_the_host_is_not_verified(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.tuner.runtime.first_use.rows._MOST_FLOPS_OF_ROWS", 1000)
    runtime = runtime_of(tmp_path, catalogue())
    runtime.best("gemm", **SHAPE).prepare("cpu")
    (use,) = runtime.first_uses()
    assert use.state == "waiting"
    assert use.reason.endswith("gemm has no part of this problem's results that is small enough to compute here")


@pytest.mark.usefixtures("cache")
def test_an_input_is_packed_once_for_each_context_and_problem():
    made = []

    def make():
        made.append(SimpleNamespace(address=len(made) + 1))
        return made[-1]

    packed = PackedOperand("B", np.zeros(1))
    assert [packed.address(key, make) for key in ("one", "other", "one", "other")] == [1, 2, 1, 2]
    assert len(made) == 2

"""A configuration that was not verified at the shape that it serves is checked when it is used first."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from contracts.row_sum import ROW_KERNELS
from contracts.variant import needs_nvrtc
from faulty_kernels import faulty, planted
from runtime_gemm import GEMM, TILED, K, M, N, operands
from sampling import sampled

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.cache import compiled_by
from tilewright.tuner.compile.compilation import Compilation, symbol_of
from tilewright.tuner.runtime import ArgumentError, Runtime, UntunedError, UntunedWarning, WrongResultWarning
from tilewright.tuner.runtime.first_use.first_use import UNVERIFIED
from tilewright.tuner.runtime.first_use.product import definitions, source
from tilewright.tuner.runtime.first_use.rows import ROWS, RowsOf
from tilewright.tuner.runtime.known.service import Service
from tilewright.tuner.runtime.launches.host import host_place

SHAPE = {"m": M, "n": N, "k": K}
TAIL = "for (unsigned p0 = 0; p0 < K; p0 += TILE_WIDTH)"
NO_TAIL = "for (unsigned p0 = 0; p0 + (TILE_WIDTH == 8 ? 8 : 1) <= K; p0 += TILE_WIDTH)"
"""Tiles of 8 leave out the last terms where 8 does not divide K; other tiles are right."""


@pytest.fixture(scope="module")
def wrong_gemm(tmp_path_factory):
    return faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", TAIL, NO_TAIL)


def runtime_of(folder, kernels, problem=None, configuration=TILED, match="predicted", **settings):
    problem = problem or GEMM.problem(SHAPE)
    answers = planted(folder, kernels, problem, host_place(), configuration, match)
    return Runtime(answers=answers, kernels=kernels, **settings)


def states(runtime):
    return [(use.state, use.choice.configuration.variant) for use in runtime.first_uses()]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("match", sorted(UNVERIFIED))
def test_a_wrong_configuration_is_withdrawn_and_the_next_call_is_right(tmp_path, wrong_gemm, match):
    runtime = runtime_of(tmp_path, wrong_gemm, match=match)
    launch = runtime.best("gemm", **SHAPE)
    a, b, c = operands()
    with pytest.warns(WrongResultWarning, match=f"gemm m={M},n={N},k={K} float32 .*tiled TILE_WIDTH=8.*{match}"):
        launch(a, b, c)
    assert not np.allclose(c, a @ b, rtol=1e-4, atol=1e-4)  # what was used before the verdict stays as it is
    assert states(runtime) == [("wrong", "tiled")]
    with pytest.warns(UntunedWarning):
        launch(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    assert launch.choice("cpu").match == "default"


@pytest.mark.usefixtures("cache")
def test_what_a_launch_changes_is_compared_with_what_it_was(tmp_path):
    problem = GEMM.problem(SHAPE, options={"beta_zero": False})
    launch = runtime_of(tmp_path, catalogue(), problem).best("gemm", **SHAPE, beta_zero=False)
    a, b, c = operands()
    c[:] = 3
    expected = 2.0 * (a @ b) + 0.5 * c
    np.testing.assert_allclose(launch(a, b, c, alpha=2.0, beta=0.5), expected, rtol=1e-4, atol=1e-4)
    assert launch.choice("cpu").configuration == TILED


@pytest.mark.usefixtures("cache")
def test_the_service_is_told_of_a_wrong_configuration_once(tmp_path, wrong_gemm, monkeypatch):
    told = []
    monkeypatch.setattr(Service, "claim", lambda _self, *claimed: told.append(claimed))
    monkeypatch.setattr(Service, "ask", lambda *_: None)
    runtime = runtime_of(tmp_path, wrong_gemm, url="http://127.0.0.1:9")
    launch = runtime.best("gemm", **SHAPE)
    a, b, c = operands()
    with pytest.warns(WrongResultWarning):
        launch(a, b, c)
    with pytest.warns(UntunedWarning):
        launch(a, b, c)
    [(kernel, problem, place, driver, configuration, seen)] = told
    assert (kernel.name, problem, place, driver) == ("gemm", GEMM.problem(SHAPE), host_place(), "")
    assert configuration == TILED
    assert "out of bounds" in seen


@pytest.mark.usefixtures("cache")
def test_where_only_results_of_tuning_are_wanted_nothing_replaces_it(tmp_path, wrong_gemm):
    launch = runtime_of(tmp_path, wrong_gemm, only_tuned=True).best("gemm", **SHAPE)
    a, b, c = operands()
    with pytest.warns(WrongResultWarning):
        launch(a, b, c)
    with pytest.raises(UntunedError):
        launch(a, b, c)


@pytest.mark.usefixtures("cache")
def test_a_right_configuration_is_checked_once_and_stays(tmp_path):
    runtime = runtime_of(tmp_path, catalogue())
    launch = runtime.best("gemm", **SHAPE)
    a, b, c = operands()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            launch(a, b, c)
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("right", "rows of the result are within their bounds")
    assert (use.problem, use.choice.configuration) == (GEMM.problem(SHAPE), TILED)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("settings", [{"check_first_use": False}, {"match": "exact"}])
def test_nothing_is_checked_where_it_is_off_or_where_the_shape_was_verified(tmp_path, wrong_gemm, settings):
    runtime = runtime_of(tmp_path, wrong_gemm, **settings)
    a, b, c = operands()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.best("gemm", **SHAPE)(a, b, c)
    assert runtime.first_uses() == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("value", "is_on"), [("", False), ("0", False), ("off", False), ("true", True), (None, True)])
def test_one_setting_turns_it_off(tmp_path, monkeypatch, value, is_on):
    if value is None:
        monkeypatch.delenv("TILEWRIGHT_FIRST_USE", raising=False)
    else:
        monkeypatch.setenv("TILEWRIGHT_FIRST_USE", value)
    runtime = runtime_of(tmp_path, catalogue())
    runtime.best("gemm", **SHAPE)(*operands())
    assert [state for state, _ in states(runtime)] == ["right"] * is_on


@pytest.mark.usefixtures("cache")
def test_the_rows_of_an_output_that_is_read_are_kept_beforehand(tmp_path):
    problem = GEMM.problem(SHAPE, options={"beta_zero": False})
    runtime = runtime_of(tmp_path, catalogue(), problem)
    a, b, _ = operands()
    c = np.ones((M, N), np.float32)
    runtime.best("gemm", **SHAPE, beta_zero=False)(a, b, c, alpha=0.5, beta=3.0)
    np.testing.assert_allclose(c, 0.5 * (a @ b) + 3, rtol=1e-4, atol=1e-4)
    assert states(runtime) == [("right", "tiled")]


@pytest.mark.usefixtures("cache")
def test_a_fault_in_some_rows_of_the_last_matrix_of_a_batch_of_views_is_found(tmp_path, wrong_gemm):
    shape = SHAPE | {"batch": 3, "lda": K + 4, "stride_a": M * (K + 4)}
    runtime = runtime_of(tmp_path, wrong_gemm, GEMM.problem(shape))
    generator = np.random.default_rng(5)
    wide = generator.standard_normal((3, M, K + 4)).astype(np.float32)
    b, c = generator.standard_normal((3, K, N)).astype(np.float32), np.empty((3, M, N), np.float32)
    with pytest.warns(WrongResultWarning):
        runtime.best("gemm", **SHAPE, batch=3)(wide[:, :, :K], b, c)


KINDS = {
    "linear": ("tiled", {"TILE_WIDTH": 8}, {"m": 40, "n": 24, "k": 30}, "float32", {"activation": "gelu"}),
    "linear in bfloat16": ("tiled", {"TILE_WIDTH": 8}, {"m": 40, "n": 24, "k": 30}, "bfloat16", {}),
    "gemv": ("naive", {"BLOCK": 128}, {"m": 90, "n": 33}, "float64", {"trans_a": True}),
    "rms_norm": ("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1}, {"m": 50, "n": 21}, "float32", {}),
    **ROW_KERNELS,
}


@pytest.mark.in_turn(3)
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_with_rows_is_checked(tmp_path, kind):
    name = kind.partition(" ")[0]
    variant, values, shape, dtype, options = KINDS[kind]
    kernel = catalogue().get(name)
    problem = kernel.problem(shape, dtype, options)
    runtime = runtime_of(tmp_path, catalogue(), problem, Configuration.of(variant, values))
    generator = np.random.default_rng(7)
    arrays = [generator.standard_normal(t.shape(problem)).astype(t.dtype_for(problem)) for t in kernel.tensors]
    if options.get("trans_a"):
        arrays[0] = arrays[0].reshape(shape["n"], shape["m"])
    launch = runtime.best(name, dtype=dtype, **shape, **options)
    launch(*arrays)
    assert states(runtime) == [("right", variant)]
    assert "check" not in runtime.first_uses()[0].reason


@pytest.mark.usefixtures("cache")
def test_another_runtime_of_the_process_does_not_check_again_and_takes_what_was_withdrawn_as_wrong(
    tmp_path, wrong_gemm
):
    a, b, c = operands()
    first, second = runtime_of(tmp_path, catalogue()), runtime_of(tmp_path, catalogue())
    for one in (first, second):
        one.best("gemm", **SHAPE)(a, b, c)
    assert first.first_uses() == second.first_uses()
    first, second, third = (runtime_of(tmp_path, wrong_gemm) for _ in range(3))
    launch = second.best("gemm", **SHAPE)
    assert launch.choice("cpu").configuration == TILED  # chosen before it is known to be wrong
    with pytest.warns(WrongResultWarning):
        first.best("gemm", **SHAPE)(a, b, c)
    for one in (launch, third.best("gemm", **SHAPE)):
        with pytest.warns(UntunedWarning) as told:
            one(a, b, c)
        assert [warning.category for warning in told] == [UntunedWarning]
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("cache")
def test_a_runtime_without_the_check_uses_what_another_one_has_withdrawn(tmp_path, wrong_gemm):
    a, b, c = operands()
    with pytest.warns(WrongResultWarning):
        runtime_of(tmp_path, wrong_gemm).best("gemm", **SHAPE)(a, b, c)
    launch = runtime_of(tmp_path, wrong_gemm, check_first_use=False).best("gemm", **SHAPE)
    assert launch.choice("cpu").configuration == TILED


@pytest.mark.usefixtures("cache")
def test_a_launch_that_is_refused_leaves_the_check_to_the_next_one(tmp_path):
    runtime = runtime_of(tmp_path, catalogue())
    launch = runtime.best("gemm", **SHAPE)
    a, b, c = operands()
    shifted = np.empty(c.size + 1, np.float32)[1:].reshape(c.shape)
    with pytest.raises(ArgumentError):
        launch(a, b, shifted)
    assert states(runtime) == [("waiting", "tiled")]
    launch(a, b, c)
    assert states(runtime) == [("right", "tiled")]


@pytest.mark.usefixtures("cache")
def test_a_runtime_hears_once_of_what_is_withdrawn(tmp_path, wrong_gemm, monkeypatch):
    heard, withdrawn = [], Runtime.withdrawn

    def hear(self, use, finding):
        heard.append((use.problem, use.choice.configuration, finding.wrong > 0))
        withdrawn(self, use, finding)

    monkeypatch.setattr(Runtime, "withdrawn", hear)
    runtime = runtime_of(tmp_path, wrong_gemm)
    launch, arrays = runtime.best("gemm", **SHAPE), operands()
    with pytest.warns(WrongResultWarning):
        launch(*arrays)
    with pytest.warns(UntunedWarning):
        launch(*arrays)
    assert heard == [(GEMM.problem(SHAPE), TILED, True)]


@pytest.mark.usefixtures("cache")
def test_a_reference_that_fails_does_not_fail_the_call(tmp_path):
    def reference(*_):
        raise ZeroDivisionError("not today")

    kernels = Catalogue(catalogue().by_name | {"gemm": replace(GEMM, reference=reference)})
    runtime = runtime_of(tmp_path, kernels)
    a, b, c = operands()
    runtime.best("gemm", **SHAPE)(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    (use,) = runtime.first_uses()
    assert use.state == "unchecked"
    assert "it raised ZeroDivisionError: not today" in use.reason


@pytest.mark.usefixtures("cache")
def test_numbers_whose_sums_overflow_raise_no_false_alarm(tmp_path):
    runtime = runtime_of(tmp_path, catalogue())
    a, b, c = operands()
    a[0], b[:, 3] = 1e30, 1e30
    runtime.best("gemm", **SHAPE)(a, b, c)
    assert c[0, 3] == np.inf
    assert states(runtime) == [("right", "tiled")]


TYPES = [
    ("float32", {}),
    ("float64", {}),
    ("bfloat16", {}),
    ("float16", {}),
    ("bfloat16", {"output": "float32"}),
    ("float16", {"output": "float32"}),
]


CASES = [
    (arch, dtype, options)
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90")
    for dtype, options in TYPES
    if (arch, dtype) != ("sm_75", "bfloat16")  # no kernel takes it there
]


@needs_nvrtc
@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("arch", "dtype", "options"), sampled(CASES, lambda arch, *_: arch == "sm_90"), ids=str)
def test_the_source_compiles(arch, dtype, options):
    kernel = catalogue().get("gemm")
    problem = kernel.problem({"m": 64, "n": 64, "k": 64}, dtype, options)
    macros = tuple(sorted(definitions(kernel, problem).items()))
    compiled = compiled_by(None, Compilation(source(), macros, arch, "check_rows", "nvrtc"))
    for entry in ("keep_rows", "check_rows"):
        assert symbol_of(compiled.cubin, entry) == entry
    assert compiled.resources.spill_bytes <= 256  # where components are judged, once a block


def test_rows_are_taken_where_the_kernel_names_them_and_judges_by_a_reference():
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 4000, "n": 8, "k": 8})
    taken = RowsOf(gemm, problem)
    assert (taken.problem.shape["m"], len(taken.numbers)) == (ROWS, ROWS)
    assert (taken.numbers[0], taken.numbers[-1], taken.why_not) == (0, 3999, "")
    assert taken.numbers == sorted(set(taken.numbers))
    for other in (replace(gemm, row_axis=""), replace(gemm, check=lambda *_: None)):
        whole = RowsOf(other, problem)
        assert (whole.problem.shape["m"], whole.numbers, whole.why_not) == (4000, [], "")
        assert "small enough" in RowsOf(other, problem, most_flops=2 * 4000 * 64 - 1).why_not
    assert "no reference" in RowsOf(replace(gemm, reference=None), problem).why_not

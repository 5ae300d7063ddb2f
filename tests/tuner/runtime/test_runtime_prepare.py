"""`prepare` verifies what was never verified at its shape, ahead of the first launch and without arrays."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from faulty_kernels import faulty
from runtime_gemm import GEMM, M, N, operands
from test_runtime_first_use import KINDS, NO_TAIL, SHAPE, TAIL, runtime_of, states

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import UntunedError, UntunedWarning, WrongResultWarning
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.first_use.first_use import UNVERIFIED

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def wrong_gemm(tmp_path_factory):
    return faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", TAIL, NO_TAIL)


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


def test_where_only_results_of_tuning_are_wanted_it_says_that_there_is_none(tmp_path, wrong_gemm):
    launch = runtime_of(tmp_path, wrong_gemm, only_tuned=True).best("gemm", **SHAPE)
    with pytest.warns(WrongResultWarning), pytest.raises(UntunedError):
        launch.prepare("cpu")


def test_arrays_say_which_problem_is_prepared(tmp_path, wrong_gemm):
    problem = wrong_gemm.get("gemm").problem(SHAPE, options={"trans_b": True})
    runtime = runtime_of(tmp_path, wrong_gemm, problem)
    a, b, c = operands()
    turned = np.ascontiguousarray(b.T).T
    with pytest.warns(WrongResultWarning, match="trans_b=true"), pytest.warns(UntunedWarning):
        runtime.best("gemm", **SHAPE).prepare(a, turned, c)
    assert np.isnan(c).all()


@pytest.mark.parametrize("settings", [{"check_first_use": False}, {"match": "exact"}])
def test_it_verifies_nothing_where_it_is_off_or_where_the_shape_was_verified(tmp_path, wrong_gemm, settings):
    runtime = runtime_of(tmp_path, wrong_gemm, **settings)
    with warnings.catch_warnings(action="error"):
        runtime.best("gemm", **SHAPE).prepare("cpu")
    assert runtime.first_uses() == []


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


def test_a_kernel_that_does_not_say_what_its_rows_are_is_verified_whole(tmp_path):
    kernels = with_gemm(row_axis="")
    runtime = runtime_of(tmp_path, kernels)
    runtime.best("gemm", **SHAPE).prepare("cpu")
    assert states(runtime) == [("right", "tiled")]


def test_the_kernels_own_check_is_asked(tmp_path):
    def check(outputs, _returned):
        return "" if outputs["C"].shape == (M, N) and np.isfinite(outputs["C"]).any() else "it is empty"

    runtime = runtime_of(tmp_path, with_gemm(row_axis="", reference=None, check=check))
    runtime.best("gemm", **SHAPE).prepare("cpu")
    assert states(runtime) == [("right", "tiled")]


def test_where_nothing_says_what_is_right_it_says_so(tmp_path):
    runtime = runtime_of(tmp_path, with_gemm(row_axis="", reference=None))
    launch = runtime.best("gemm", **SHAPE)
    launch.prepare("cpu")
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("waiting", "its check cannot be made ahead: gemm has no reference")
    launch(*operands())
    (use,) = runtime.first_uses()
    assert (use.state, use.reason) == ("unchecked", "gemm has no reference")


def test_a_fault_that_only_large_numbers_show_is_found(tmp_path, tmp_path_factory):
    right = "sum += Sum(tile_a[y][p]) * Sum(tile_b[p][x]);"
    wrong = "sum += (tile_a[y][p] > REAL(32768) ? Sum(2) : Sum(1)) * Sum(tile_a[y][p]) * Sum(tile_b[p][x]);"
    kernels = faulty(tmp_path_factory.mktemp("kernels"), "gemm", "tiled.cu", right, wrong)
    runtime = runtime_of(tmp_path, kernels)
    with pytest.warns(WrongResultWarning), pytest.warns(UntunedWarning):
        runtime.best("gemm", **SHAPE).prepare("cpu")


def test_a_configuration_that_was_checked_is_not_verified_again(tmp_path, monkeypatch):
    runtime = runtime_of(tmp_path, catalogue())
    launch = runtime.best("gemm", **SHAPE)
    launch(*operands())
    assert states(runtime) == [("right", "tiled")]
    monkeypatch.setattr("tilewright.tuner.runtime.first_use.drawn._finding", lambda *_: pytest.fail("it verifies"))
    launch.prepare("cpu")


def test_what_would_take_too_long_on_the_host_is_not_verified(tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.tuner.runtime.first_use.rows._MOST_FLOPS_OF_ROWS", 1000)
    runtime = runtime_of(tmp_path, catalogue())
    runtime.best("gemm", **SHAPE).prepare("cpu")
    (use,) = runtime.first_uses()
    assert use.state == "waiting"
    assert use.reason.endswith("gemm has no part of this problem's results that is small enough to compute here")


def test_an_input_is_packed_once_for_each_context_and_problem():
    made = []

    def make():
        made.append(SimpleNamespace(address=len(made) + 1))
        return made[-1]

    packed = PackedOperand("B", np.zeros(1))
    assert [packed.address(key, make) for key in ("one", "other", "one", "other")] == [1, 2, 1, 2]
    assert len(made) == 2

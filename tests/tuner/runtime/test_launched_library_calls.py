"""A library's call that the finals found faster is what the launcher makes, where that version is installed."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from made_bundles import bundle_file
from runtime_gemm import GEMM, TILED

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches import host, library_calls
from tilewright.tuner.runtime.launches.host import host_place
from tilewright.tuner.runtime.launches.library_calls import call_of

SHAPE = {"m": 96, "n": 80, "k": 112}
LINEAR = catalogue().get("linear")
LINEAR_TILED = LINEAR.variant("tiled").space().default()

pytestmark = pytest.mark.usefixtures("cache")


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


def test_the_finals_name_a_call_which_is_launched_with_the_callers_scalars(result, tmp_path, built):
    assert result["library"]["faster"]
    launch = runtime_of(tmp_path, result).best("gemm", **SHAPE)
    found, product = product_of(launch, alpha=-0.5)
    np.testing.assert_allclose(found, -0.5 * product, rtol=1e-4, atol=1e-4)
    found, product = product_of(launch, result_holds=np.nan)
    np.testing.assert_allclose(found, product, rtol=1e-4, atol=1e-4)
    assert built == []
    assert call_of(launch.problem, launch.choice("cpu")) == (result["library"]["name"], "")


def test_a_launched_call_adds_to_what_the_result_holds(result, tmp_path, built):
    problem = GEMM.problem(SHAPE, "float32", {"beta_zero": False})
    launch = runtime_of(tmp_path, result, problem).best("gemm", **SHAPE, beta_zero=False)
    found, product = product_of(launch, alpha=-0.5, beta=2.0)
    np.testing.assert_allclose(found, 2 - 0.5 * product, rtol=1e-4, atol=1e-4)
    assert built == []


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


def test_only_what_was_timed_at_this_problem_and_was_faster_is_launched(result, tmp_path):
    problem = GEMM.problem(SHAPE)
    choice = runtime_of(tmp_path, result).choose(GEMM, problem, host_place())
    for change in ({"match": "predicted"}, {"match": "nearest"}, {"library_faster": False}, {"library_name": None}):
        assert call_of(problem, replace(choice, **change)) == (None, "")


def test_a_bundle_keeps_the_call(result, tmp_path):
    facts = {**GEMM.problem(SHAPE).as_json(), **result, "source": result["source_hash"]}
    folder = bundle_file(tmp_path / "bundle", facts, device_model={"slug": host_place().slug})
    launch = Runtime(bundle=folder).best("gemm", **SHAPE)
    assert launch.choice("cpu").origin == "bundle"
    assert call_of(launch.problem, launch.choice("cpu"))[0] == result["library"]["name"]


def test_a_call_is_pinned_with_the_configuration_that_it_was_faster_than(result, tmp_path):
    problem, name = GEMM.problem(SHAPE), result["library"]["name"]
    runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path))
    runtime.pin({problem: TILED}, calls={problem: name})
    assert call_of(problem, runtime.choose(GEMM, problem, host_place()))[0] == name
    runtime.pin({problem: TILED})
    assert call_of(problem, runtime.choose(GEMM, problem, host_place()))[0] is None


def test_what_cannot_be_made_ready_is_not_tried_again(result, tmp_path):
    problem = GEMM.problem({**SHAPE, "m": 8})
    choice = replace(runtime_of(tmp_path, result).choose(GEMM, GEMM.problem(SHAPE), host_place()), origin="test")
    assert call_of(problem, choice)[0]
    library_calls.refuse(problem, choice.library_name, "there is no room for its workspace")
    assert "no room" in call_of(problem, choice)[1]
    assert call_of(GEMM.problem(SHAPE), choice)[0]


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

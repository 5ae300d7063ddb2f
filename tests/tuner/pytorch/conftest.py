"""Operators with a runtime that knows every problem, by small configurations that compile quickly."""

from __future__ import annotations

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.answers import AnswerCache

ROWS = Configuration.of("walk", {"BLOCK": 32, "VECTOR_WIDTH": 1})

SMALL = {
    **dict.fromkeys(("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"), ROWS),
    "gemm": Configuration.of("tiled", {"TILE_WIDTH": 8}),
    "linear": Configuration.of("tiled", {"TILE_WIDTH": 8}),
    "gemv": Configuration.of("naive", {"BLOCK": 128}),
    "conv2d": Configuration.of("direct", {"THREADS": 256}),
    "linear_gated": Configuration.of("tiled", {"TILE_WIDTH": 8}),
    "linear_quantized": Configuration.of("rows", {"WARPS_PER_ROW": 1, "ROWS_PER_BLOCK": 2, "COLUMNS": 1, "UNROLL": 1}),
    "softmax": Configuration.of("online", {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}),
}


class Small(dict[Problem, Configuration]):
    """A pinned configuration for every problem of these kernels."""

    def __contains__(self, problem):
        return problem.kernel in SMALL

    def __missing__(self, problem):
        return SMALL[problem.kernel]


@pytest.fixture(scope="session")
def everything_tuned(tmp_path_factory):
    """A runtime that has a configuration for every problem."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        runtime = Runtime(only_tuned=True, kernels=catalogue())
        runtime._pinned = Small()
        yield runtime


@pytest.fixture(autouse=True)
def tuned(everything_tuned):
    """In use for the test."""
    torch, plans = pytest.importorskip("torch"), pytest.importorskip("tilewright.tuner.pytorch.plans")
    torch.manual_seed(0)
    plans.use(everything_tuned)
    yield everything_tuned
    plans.use(None)


@pytest.fixture
def untuned(tuned, tmp_path):
    """A runtime that knows nothing, in use for the test."""
    runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path))
    pytest.importorskip("tilewright.tuner.pytorch.plans").use(runtime)
    return runtime

"""A launcher of a small gemm, whose configurations are pinned."""

import pytest
from runtime_gemm import GEMM, ODD, TILED, K, M, N

from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.known.answers import AnswerCache


@pytest.fixture(scope="module")
def cache(shared_cache):
    """One folder for all: equal programs are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(shared_cache))
        yield


@pytest.fixture(autouse=True)
def another_process():
    """Nothing was used yet, as far as first uses are concerned."""
    first_use.forget()


@pytest.fixture
def runtime(cache):
    """`tiled` for the problems of these tests, so that compiling takes little."""
    shape = {"m": M, "n": N, "k": K}
    problems = [
        GEMM.problem(shape, dtype, {"trans_a": a, "trans_b": b, "beta_zero": zero})
        for dtype in ("float32", "float64")
        for a in (False, True)
        for b in (False, True)
        for zero in (False, True)
    ]
    return Runtime(pinned=dict.fromkeys([*problems, GEMM.problem(ODD)], TILED))


@pytest.fixture
def launch(runtime):
    return runtime.best("gemm", m=M, n=N, k=K)


@pytest.fixture
def answers(tmp_path):
    """Answers of a service that this test alone keeps."""
    return AnswerCache(tmp_path / "answers")

"""Operators whose answer is a call of the library: a lock's is made, a measured one has to beat PyTorch's own first."""

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.devices.cpu.device import CpuDevice  # noqa: E402
from tilewright.tuner.pytorch.acceleration import lock  # noqa: E402
from tilewright.tuner.runtime import Runtime  # noqa: E402
from tilewright.tuner.runtime.choice import Choice  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches.host import host_place  # noqa: E402

GEMM = catalogue().get("gemm")
PROBLEM = GEMM.problem({"m": 12, "n": 20, "k": 28})
TILED = Configuration.of("tiled", {"TILE_WIDTH": 8})
A, B = torch.randn(12, 28), torch.randn(28, 20)


@pytest.fixture
def name():
    """The call of this machine's library."""
    bench = CpuDevice().bench(GEMM, PROBLEM, 1)
    found = bench.library_name()
    bench.close()
    if found is None:
        pytest.skip("NumPy has another BLAS than OpenBLAS here")
    return found


@pytest.fixture
def runtime(untuned):
    return untuned


def answer(name):
    return {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": 8},
        "match": "exact",
        "time_ms": 2.0,
        "library": {"name": name, "time_ms": 1.0, "faster": True},
        "source_hash": GEMM.source_hash("tiled"),
    }


def decision():
    torch.testing.assert_close(tw.gemm(A, B), A @ B)
    [found] = tw.status()
    return found


def test_a_pinned_call_of_the_library_is_made_and_named(runtime, name):
    runtime.pin({PROBLEM: TILED}, calls={PROBLEM: name})
    found = decision()
    assert found.is_ours
    assert found.reason.startswith(f"{name}, which was faster than tiled")


def test_where_nothing_takes_turns_pytorchs_own_call_stays(runtime, name):
    runtime.learn(PROBLEM, host_place(), answer(name))
    found = decision()
    assert (found.is_ours, found.fallback) == (False, "library_faster")
    assert found.reason.startswith("the library was faster than tiled")
    assert "is not launched" not in found.reason


def test_the_status_says_why_a_call_is_not_made(runtime):
    runtime.learn(PROBLEM, host_place(), answer("OpenBLAS 0.1 of NumPy 1.0 (cblas_sgemm, 1 thread)"))
    assert "; OpenBLAS 0.1 of NumPy 1.0 (cblas_sgemm, 1 thread) is not launched: OpenBLAS " in decision().reason


@pytest.mark.parametrize("is_faster", [True, False])
def test_a_lock_keeps_the_call(tmp_path, name, is_faster):
    choice = Choice(TILED, "service", time_ms=2.0, library_faster=is_faster, library_ms=1.0, library_name=name)
    device, model = torch.device("cpu"), torch.nn.Linear(2, 2)
    document = {
        "environment": lock.environment(device),
        "model": lock.structure(model),
        "with_gradients": False,
        "kernels": [lock.kernel_as_json(PROBLEM, choice, GEMM.source_hash("tiled"))],
        "replacements": [],
    }
    path = tmp_path / "tilewright.lock"
    lock.write(path, document)
    tw.use(Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "answers")))
    lock.pin(lock.read(path, model, device, catalogue(), other_environment=False), host_place().slug)
    found = decision()
    assert found.is_ours
    assert found.reason.startswith(name) is is_faster

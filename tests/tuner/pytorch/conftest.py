"""Operators with a runtime that knows every problem, by small configurations that compile quickly."""

import pytest
from small_operators import Small

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.known.answers import AnswerCache


@pytest.fixture(scope="session")
def everything_tuned(shared_cache):
    """A runtime that has a configuration for every problem."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE_DIR", str(shared_cache))
        runtime = Runtime(only_tuned=True, kernels=catalogue())
        runtime._pinned.configurations = Small(8)
        yield runtime


@pytest.fixture(autouse=True)
def tuned(everything_tuned):
    """In use for the test."""
    torch, plans = pytest.importorskip("torch"), pytest.importorskip("tilewright.tuner.pytorch.plans")
    torch.set_num_threads(1)  # PyTorch's own wait for each other on a busy machine, longer than anything here takes
    torch.manual_seed(0)
    pytest.importorskip("tilewright.tuner.runtime.first_use.first_use").forget()
    plans.use(everything_tuned)
    yield everything_tuned
    plans.use(None)


@pytest.fixture(autouse=True)
def kept_folder(tuned, tmp_path, monkeypatch):
    """Where decisions of the test are kept: no test finds another's."""
    results = pytest.importorskip("tilewright.tuner.pytorch.acceleration.kept_results")
    monkeypatch.setattr(results, "folder", lambda: tmp_path / "accelerated")
    return tmp_path / "accelerated"


@pytest.fixture
def untuned(tuned, tmp_path):
    """A runtime that knows nothing, in use for the test."""
    runtime = Runtime(only_tuned=True, answers=AnswerCache(tmp_path))
    pytest.importorskip("tilewright.tuner.pytorch.plans").use(runtime)
    return runtime


@pytest.fixture
def slow_linear(monkeypatch):
    """A PyTorch whose linear layers take milliseconds, so that a kernel on the CPU can win."""
    pytest.importorskip("slowness").slow_down(monkeypatch, pytest.importorskip("torch").nn.Linear)


@pytest.fixture
def net():
    """The small network."""
    return pytest.importorskip("small_network").Net()


@pytest.fixture
def without_gradients():
    """PyTorch records none, as in an application that only computes."""
    with pytest.importorskip("torch").no_grad():
        yield

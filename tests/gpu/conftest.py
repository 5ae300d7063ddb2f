import pytest
from small_operators import Small
from turns_on_gpu import runtime_of  # noqa: F401 - a fixture of this folder

from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.runtime import Runtime


@pytest.fixture(scope="session")
def gpu():
    """The first GPU of this machine."""
    found = nvml.gpus()
    if not found:
        pytest.skip("no NVIDIA GPU on this machine")
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    return found[0]


@pytest.fixture(scope="module")
def device(gpu):
    from tilewright.tuner.devices.cuda.device import CudaDevice  # noqa: PLC0415 - PyCUDA is only where GPUs are

    device = CudaDevice(gpu)
    yield device
    device.close()


@pytest.fixture(scope="module")
def drv(gpu):
    """PyCUDA, with the primary context current, which torch and CuPy use too."""
    import pycuda.driver as drv  # noqa: PLC0415 - only where GPUs are

    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    yield drv
    context.pop()
    context.detach()


@pytest.fixture(autouse=True)
def no_turns(monkeypatch):
    """Ours is what runs in these tests, also where nobody has measured it; `test_turns*_cuda.py` have turns."""
    monkeypatch.setattr("tilewright.tuner.turns.turns.has_events", lambda _device: False)


@pytest.fixture(scope="module")
def torch(drv):
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def cupy(drv):
    return pytest.importorskip("cupy")


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    return Runtime()


@pytest.fixture(scope="module")
def operators_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tw(torch, operators_cache, tmp_path, monkeypatch):
    """The operators, with a configuration for every problem, where nothing is decided yet for any model."""
    import tilewright.torch as tw  # noqa: PLC0415
    from tilewright.tuner.pytorch.acceleration import kept_results  # noqa: PLC0415

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(operators_cache))
    monkeypatch.setattr(kept_results, "folder", lambda: tmp_path / "accelerated")
    runtime = Runtime(only_tuned=True)
    runtime._pinned.configurations = Small(16)
    tw.use(runtime)
    torch.manual_seed(0)
    yield tw
    tw.use(None)

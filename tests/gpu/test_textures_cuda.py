"""Textures on a GPU: what the hardware reads, what is freed, and what is refused."""

from collections import Counter

import pytest
from contracts import textured

from tilewright.tuner.devices.cuda import texture
from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.errors import TunerError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device(gpu):
    from tilewright.tuner.devices.cuda.device import CudaDevice  # noqa: PLC0415 - PyCUDA is only where GPUs are

    device = CudaDevice(gpu)
    yield device
    device.close()


def test_textures_follow_each_kind_of_inputs(device):
    bench = device.bench(textured.TEXTURED, textured.PROBLEM, seed=3)
    executable = bench.compile(textured.with_bug(0))
    for verification in (*bench.verify_each_kind(executable), bench.verify_timed(executable)):
        assert verification.wrong == 0, verification.message()
    bench.close()


def test_a_bench_frees_its_textures(device, monkeypatch):
    """By what the driver has done: free memory is that of the whole GPU, of which other processes take too."""
    done = Counter()

    def counted(name, *arguments):
        call(name, *arguments)  # raises where the driver refuses, as it does what is not there
        done[name] += 1

    monkeypatch.setattr(texture, "call", counted)
    device.bench(textured.TEXTURED, textured.PROBLEM, seed=3).close()
    assert done["cuTexObjectCreate"] == done["cuTexObjectDestroy"] > 0
    assert done["cuArray3DCreate_v2"] == done["cuArrayDestroy"] > 0
    assert done["cuMemAllocPitch_v2"] == done["cuMemFree_v2"] > 0


def test_a_texture_that_is_too_large_is_refused_by_name(device):
    shape = {"h": 1, "w": 1 << 18, "d": 1}
    with pytest.raises(TunerError, match=r"image of .* cannot be a texture of \(262144, 1\) texels: cuTexObjectCreate"):
        device.bench(textured.TEXTURED, textured.TEXTURED.problem(shape), seed=3)

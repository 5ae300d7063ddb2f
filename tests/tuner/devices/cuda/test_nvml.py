"""GPUs cut into slices (MIG), by what NVML answers on machines that have them: names and UUIDs as recorded there."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml
import pytest

from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.model import slug_of
from tilewright.tuner.devices.local import DeviceSpec, list_devices
from tilewright.tuner.errors import NoDeviceError

A100 = "GPU-5f0c1c3a-8b8e-7f3a-9d4e-2f9a8f1f7a10"
H100 = "GPU-9a7a1a2e-0d2b-4d2c-a1a4-5f44bb8c9d01"
SLICES = {
    "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb": "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
}


@dataclass
class Card:
    """What NVML answers of one GPU, or of one slice."""

    uuid: str
    name: str
    memory_bytes: int
    slices: list[Card | None] = field(default_factory=list)  # None: an empty place
    cut_up: bool | None = None  # None: this product cannot be


@pytest.fixture
def cards(monkeypatch) -> list[Card]:
    """A host with a GPU that is cut up and one that is not."""
    first, second = (Card(uuid, name, 5 << 30) for uuid, name in SLICES.items())
    host = [
        Card(A100, "NVIDIA A100-SXM4-40GB", 40 << 30, [first, None, second, None], cut_up=True),
        Card(H100, "NVIDIA H100 80GB HBM3", 80 << 30, cut_up=False),
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "_is_started", lambda: True)

    def mig_mode(card: Card) -> tuple[int, int]:
        if card.cut_up is None:
            raise pynvml.NVMLError_NotSupported
        return int(card.cut_up), int(card.cut_up)

    def mig_slice(card: Card, place: int) -> Card:
        found = card.slices[place]
        if found is None:
            raise pynvml.NVMLError_NotFound
        return found

    answers = {
        "nvmlDeviceGetCount": lambda: len(host),
        "nvmlDeviceGetHandleByIndex": lambda index: host[index],
        "nvmlDeviceGetUUID": lambda card: card.uuid,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=card.memory_bytes),
        "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(domain=0, bus=host.index(card) + 7, device=0),
        "nvmlDeviceGetCudaComputeCapability": lambda card: (8, 0) if card is host[0] else (9, 0),
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: len(card.slices),
        "nvmlDeviceGetMigDeviceHandleByIndex": mig_slice,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return host


@pytest.mark.usefixtures("cards")
def test_slices_stand_in_the_place_of_their_gpu_under_names_of_their_own():
    found = nvml.gpus()
    assert [(gpu.ordinal, gpu.uuid, gpu.parent_uuid) for gpu in found] == [
        *((place, uuid, A100) for place, uuid in enumerate(SLICES)),
        (2, H100, None),
    ]
    assert [gpu.name for gpu in found[:2]] == list(SLICES.values())
    assert {gpu.pci_bus_id for gpu in found[:2]} == {"0000:07:00.0"}
    assert [gpu.compute_capability for gpu in found] == [(8, 0), (8, 0), (9, 0)]
    assert found[0].memory_bytes == 5 << 30


def test_gpus_that_cannot_be_or_are_not_cut_up_are_whole(cards):
    cards[0].cut_up, cards[1].cut_up = False, None
    assert [(gpu.uuid, gpu.parent_uuid) for gpu in nvml.gpus()] == [(A100, None), (H100, None)]


def test_a_gpu_in_mig_mode_without_a_slice_is_not_offered_by_cuda(cards):
    cards[0].slices = [None, None]
    assert [gpu.uuid for gpu in nvml.gpus()] == [H100]


@pytest.mark.usefixtures("cards")
def test_a_slice_can_be_made_the_only_visible_device(monkeypatch):
    wanted = list(SLICES)[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    ((gpu),) = nvml.gpus()
    assert (gpu.ordinal, gpu.uuid, gpu.parent_uuid) == (0, wanted, A100)


@pytest.mark.parametrize(
    ("name", "profile", "slug"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb", "nvidia-a100-sxm4-40gb-mig-1g-5gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "1g.5gb+me", "nvidia-a100-sxm4-40gb-mig-1g-5gb-me"),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", "7g.80gb", "nvidia-h100-80gb-hbm3-mig-7g-80gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", "1c.3g.40gb", "nvidia-h100-80gb-hbm3-mig-1c-3g-40gb"),
        ("NVIDIA H200 MIG 1g.18gb", "1g.18gb", "nvidia-h200-mig-1g-18gb"),
        ("NVIDIA H200", None, "nvidia-h200"),
        ("Tesla T4", None, "tesla-t4"),
    ],
)
def test_the_profile_of_a_slice_is_part_of_its_model(name, profile, slug):
    gpu = nvml.Gpu(0, "MIG-1", name, "0000:07:00.0", 1, (9, 0), "GPU-1" if profile else None)
    assert (gpu.profile, slug_of(name)) == (profile, slug)


@pytest.mark.usefixtures("cards")
def test_the_device_of_a_slice_names_the_gpu_that_only_one_may_measure_on():
    entries = [entry for entry in list_devices() if entry.kind == "cuda"]
    assert [entry.physical_uuid for entry in entries] == [A100, A100, H100]


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(("uuid", "visible"), [(list(SLICES)[1], list(SLICES)[1]), (H100, None)])
def test_a_process_that_opens_a_slice_sees_nothing_else_and_one_that_opens_a_gpu_sees_all(monkeypatch, uuid, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)  # so that what is set here ends with the test
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "tilewright.tuner.devices.cuda.device", None)  # as where there is no PyCUDA
    with pytest.raises(NoDeviceError, match=r"pip install 'tilewright\[service,gpu\]'"):
        DeviceSpec(uuid).open()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    with pytest.raises(NoDeviceError, match="GPU-gone is no longer on this machine"):
        DeviceSpec("GPU-gone").open()

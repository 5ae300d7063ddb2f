from __future__ import annotations

from collections.abc import Iterator

import pytest

for name in ("fleet", "gate", "recovery", "surroundings"):
    pytest.register_assert_rewrite(name)

from fleet import Fleet  # noqa: E402
from gate import Gate  # noqa: E402
from surroundings import Clock, Mounts, Network, SmallDisk  # noqa: E402


@pytest.fixture
def fleet(fleet) -> Fleet:
    """Processes of a fault test share the machine with those of another, and with whatever else runs there."""
    fleet.patience_s = 240
    return fleet


@pytest.fixture
def gate(tmp_path, tmp_path_factory) -> Gate:
    folder = tmp_path / "gate"
    folder.mkdir()
    return Gate(folder, tmp_path_factory.getbasetemp() / "gated-programs")


@pytest.fixture
def working(fleet, gate):
    """A fleet whose one worker compiles through the gate."""
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    return fleet


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Mounts]:
    """Mounts a disk of so many megabytes under that name in the test's folder."""
    mounted: list[SmallDisk] = []

    def mount(name: str, megabytes: int) -> SmallDisk:
        mounted.append(SmallDisk.mount(tmp_path / name, megabytes))
        return mounted[-1]

    yield mount
    for disk in mounted:
        disk.unmount()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.lay()
        yield network
    finally:
        network.remove()


@pytest.fixture
def clock(tmp_path) -> Clock:
    folder = tmp_path / "clock"
    folder.mkdir()
    return Clock.make(folder)

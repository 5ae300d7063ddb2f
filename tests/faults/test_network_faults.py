"""A worker on another machine whose network is cut: no packet arrives, and nobody is told."""

from __future__ import annotations

import pytest
from chaos.world import machine
from fleet import Fleet
from recovery import Recovery
from sqlalchemy import select

from tilewright.service.store import embedded, models, schema

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.fixture
def apart(network, tmp_path, monkeypatch, gate):
    """A fleet whose database listens to the network, and what starts its worker on the other machine."""
    monkeypatch.setitem(embedded.SERVER_SETTINGS, "listen_addresses", network.address)
    server = embedded.EmbeddedPostgres(tmp_path / "postgres")
    fleet = Fleet(server.ensure(), tmp_path)
    access = next(server.home.glob("**/pg_hba.conf"))
    access.write_text(f"host all all {network.address}/30 trust\n" + access.read_text())
    server.stop()
    server.ensure()
    schema.upgrade(fleet.url)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other_machine = machine(tmp_path / "machine-id")
    if not other_machine:
        pytest.skip("a mount namespace is refused here")
    address = f"postgresql://{embedded.SUPERUSER}@{network.address}:{embedded.PORT}/{embedded.DATABASE}"
    there = {"TILEWRIGHT_DATABASE_URL": address, "TILEWRIGHT_DATA_DIR": str(elsewhere), **gate.environment}

    def start_there(*, on_the_network: bool = True):
        """A worker with the other machine's device: on that machine, or on one that has replaced it, here."""
        inside = (*network.inside, *other_machine) if on_the_network else other_machine
        return fleet.start_worker(inside=inside, **there)

    yield fleet, start_there
    network.mend()
    fleet.stop()
    server.stop()


def test_a_worker_that_is_cut_off_loses_its_job_and_nothing_else(apart, network, gate):
    fault = Recovery(
        "network cut between worker and database, and mended",
        "another worker goes on under a new epoch; the cut off one finds itself fenced, writes nothing and ends (75)",
        "first trial of the other worker",
    )
    fleet, start_there = apart
    cut_off = start_there()
    fleet.wait_for_device()
    job_id = fleet.request(trials=10, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
    fault.strikes()
    network.cut()
    fleet.start_worker(**gate.environment)
    fleet.until(lambda: fleet.job(job_id).epoch == 2)
    gate.open()
    fleet.wait_for_trials(job_id, 7)
    network.mend()
    assert cut_off.wait(fleet.patience_s) == 75
    fleet.assert_finished(job_id, 10, {1, 2})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert fleet.workers[1].poll() is None
    fault.is_over_with_a_trial(fleet, job_id, epoch=2)


def test_a_device_whose_host_went_away_without_a_word_can_be_served_again(apart, network, gate):
    fault = Recovery(
        "host lost without a word (network cut, then killed), its device served again",
        "the database lets go of the lost host's lock when its keepalives fail; until then a new worker is refused",
        "new worker registered",
    )
    fleet, start_there = apart
    gate.open()
    lost = start_there()
    fleet.wait_for_device()
    fault.strikes()
    network.cut()
    lost.kill()
    again = [start_there(on_the_network=False)]

    def serves() -> bool:
        if again[-1].poll() is not None:  # refused; its service manager starts it again
            again.append(start_there(on_the_network=False))
        with fleet.session() as session:
            worker = session.scalars(select(models.Device.worker)).one()
        return f":{again[-1].pid}:" in worker

    fleet.until(serves)
    fault.is_over()
    assert len(again) > 1  # the lost host's lock did hold for a time
    job_id = fleet.request(trials=3, shape=gate.shape)
    fleet.assert_finished(job_id, 3, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)

"""Devices that are drained, beside others that are not."""

from tilewright.service.operations.fleet.fleet import drain_device, resume_device, takes_jobs


def test_a_drained_device_takes_no_jobs_and_its_neighbours_do(rows):
    for uuid in ("GPU-1", "GPU-2", "GPU-3"):
        rows.device(uuid=uuid)

    def taking():
        return [takes_jobs(rows.session, uuid) for uuid in ("GPU-1", "GPU-2", "GPU-3", "GPU-404")]

    assert taking() == [True, True, True, False]
    drained = drain_device(rows.session, "GPU-2")
    assert (drained.uuid, drained.draining, taking()) == ("GPU-2", True, [True, False, True, False])
    resume_device(rows.session, "GPU-1")
    assert taking() == [True, False, True, False]
    resume_device(rows.session, "GPU-2")
    assert taking() == [True, True, True, False]

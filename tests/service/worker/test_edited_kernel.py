"""A folder of kernels that is edited while an API and a worker run: both go on with what is in it now."""

import shutil
from pathlib import Path

import pytest
from fleet import free_port
from sqlalchemy import select

from tilewright.service.client import ApiUnreachableError, Client
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.tuner.runtime.known.local_service import local_address

SHAPE = {"h": 13, "w": 21, "r": 3, "s": 3}


def answers(client):
    try:
        return client.kernels()
    except ApiUnreachableError:
        return None


@pytest.mark.exhaustive  # four processes of ours and two jobs; test_watched.py and test_staleness.py try the parts
def test_a_running_api_and_worker_follow_an_edited_source(fleet, monkeypatch):
    folder = fleet.folder / "convolution2d"
    shutil.copytree(Path(__file__).parents[3] / "examples/convolution2d", folder)
    port = free_port()
    fleet.start_worker(TILEWRIGHT_KERNEL_FOLDERS=str(folder))
    fleet.wait_for_device()
    fleet.start_api(port, TILEWRIGHT_KERNEL_FOLDERS=str(folder))
    with Client(f"http://127.0.0.1:{port}") as client:
        fleet.until(lambda: answers(client))
        with monkeypatch.context() as patch:
            patch.setenv("TILEWRIGHT_DATA_DIR", str(fleet.folder))
            assert local_address() == client.url  # where the launcher finds it
        model = client.device_models()[0].slug
        source = folder / "direct.cu"

        def best():
            return client.best("convolution2d", model, SHAPE, "float32", {})

        def tuned(trials):
            asked = {"kernel": "convolution2d", "shape": SHAPE, "variants": ["direct"], "sampler": "random"}
            request = JobRequest(**asked, device_model=model, budget=BudgetRequest(trials=trials))
            job, _ = client.request_job(request)
            done = fleet.wait_for_state(job.id, "done", "failed")
            assert (done.state, done.error) == ("done", None)

        tuned(2)
        # By default it answers from memory soon, which the edit must reach too.
        first = fleet.until(lambda: (now := best()).match == "exact" and not now.stale_because and now)
        source.write_text(source.read_text() + "static_assert(true);\n")
        stale = fleet.until(lambda: (now := best()).stale_because and now)
        assert (stale.stale_because, stale.source_hash) == (["source"], first.source_hash)
        assert client.source("convolution2d", "direct").source.endswith("static_assert(true);\n")

        def stored():
            with fleet.session() as session:
                texts = session.scalars(select(models.KernelVariant.source))
                return any(text.endswith("static_assert(true);\n") for text in texts)

        fleet.until(stored)  # by the worker, without a job and without a restart
        tuned(2)
        fresh = fleet.until(lambda: (now := best()).source_hash != first.source_hash and now)
        assert (fresh.match, fresh.stale_because) == ("exact", [])
        assert [row.stale for row in client.results(kernel="convolution2d").items] == [False]

"""Two workers of one device model on one study: real processes, the second with a machine id of its own."""

from __future__ import annotations

import math
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from factories import Rows
from fleet import free_port
from found import find_best
from sampling import EXHAUSTIVE
from sqlalchemy import select
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.service.client import ApiUnreachableError, Client
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.service.store import session as sessions
from tilewright.service.store.models import Study, TuningJob
from tilewright.service.worker import first_guess, leases
from tilewright.service.worker.first_guess import FirstGuess
from tilewright.service.worker.leases import Leases
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.runtime.known.local_service import local_address

OTHER_MACHINE = "from tilewright.tuner.devices.cpu import device\ndevice._machine_id = lambda: 'another'\n"
BEGIN_TOGETHER = """
import os, pathlib, time
from tilewright.tuner.devices.cpu.device import CpuDevice
made = CpuDevice.bench

def bench(*arguments):
    begun = pathlib.Path({folder!r})
    (begun / str(os.getpid())).touch()
    while len(list(begun.iterdir())) < 2:
        time.sleep(0.01)
    return made(*arguments)

CpuDevice.bench = bench
"""
ONE, TWO, THREE = (Configuration.of("naive", {"BLOCK_X": x}) for x in (8, 16, 32))


@pytest.fixture
def two_devices(fleet, tmp_path):
    """The UUIDs of two CPU devices of one model, each with its worker."""
    begun = tmp_path / "begun"
    begun.mkdir()
    for name, code in (("one", ""), ("other", OTHER_MACHINE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(code + BEGIN_TOGETHER.format(folder=str(begun)))
        fleet.start_worker(PYTHONPATH=str(tmp_path / name))

    def both():
        with fleet.session() as session:
            found = list(session.scalars(select(models.Device.uuid)))
        return found if len(found) == 2 else None

    return fleet.until(both)


@pytest.mark.exhaustive
def test_two_devices_share_a_study_and_try_nothing_twice(fleet, two_devices):
    jobs = [
        fleet.request(budget=BudgetRequest(trials=12), device=uuid, seed=seed) for seed, uuid in enumerate(two_devices)
    ]
    ended = [fleet.wait_for_state(job, "done", "failed", within_s=120) for job in jobs]
    assert [(job.state, job.error, job.trials_done) for job in ended] == [("done", None, 12)] * 2
    assert ended[0].study_id == ended[1].study_id
    trials = [fleet.trials(job) for job in jobs]
    numbers = sorted(trial.number for both in trials for trial in both)
    assert numbers == list(range(24))
    assert {len(both) for both in trials} == {12}
    assert len({trial.configuration_hash for both in trials for trial in both}) == 24
    assert {trial.device_id for trial in trials[0]} != {trial.device_id for trial in trials[1]}
    # At the same time: each had trials before the other ended.
    assert min(t.number for t in trials[0]) < max(t.number for t in trials[1])
    assert min(t.number for t in trials[1]) < max(t.number for t in trials[0])


@pytest.mark.usefixtures("configured")
def test_what_one_has_under_way_another_cannot_claim_until_its_trial_is_known(monkeypatch):
    monkeypatch.setattr(leases, "HEARD_S", math.inf)
    with Leases(1) as mine, Leases(1) as theirs, Leases(2) as elsewhere:
        assert mine.claim(ONE)
        assert not theirs.claim(ONE)
        assert elsewhere.claim(ONE)  # another study
        assert theirs.claim(TWO)
        mine.release(ONE)
        assert mine.claim(THREE)
        assert not theirs.claim(ONE)
        monkeypatch.setattr(leases, "HEARD_S", 0.0)
        assert mine.claim(THREE)  # on the way it gives back what is known by now
        assert theirs.claim(ONE)


@pytest.mark.usefixtures("configured")
def test_leases_end_with_their_holder():
    with Leases(1) as theirs:
        with Leases(1) as mine:
            assert mine.claim(ONE)
        assert theirs.claim(ONE)


def test_without_a_database_everything_is_granted():
    sessions.configure("postgresql://nobody@127.0.0.1:1/none")
    with Leases(1) as mine:
        assert mine.claim(ONE)
    sessions.configure(None)


GEMM = catalogue().get("gemm")
TILED = [Configuration.of("tiled", {"TILE_WIDTH": width}) for width in (32, 24, 16, 8, 4)]
NAIVE = [Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}) for x in (16, 32, 64) for y in (2, 4, 8)]
FOUND = TILED[3]
SHAPES = [{"m": m, "n": n, "k": k} for m, n, k in ((16, 24, 32), (24, 16, 16), (32, 32, 8), (8, 48, 24))]
ASKED = {"m": 20, "n": 28, "k": 20}


def begun(wait_s: float = PATIENCE_S) -> FirstGuess:
    return FirstGuess(GEMM, GEMM.problem(ASKED), "CPU-1", None, wait_s)


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("found", [FOUND, None])
def test_what_is_found_is_the_one_start(monkeypatch, found):
    monkeypatch.setattr(first_guess, "guess", lambda *_: found)
    assert begun().starts() == ([] if found is None else [FOUND])


@pytest.mark.usefixtures("configured")
def test_a_late_guess_is_not_waited_for(monkeypatch, caplog):
    caplog.set_level("INFO")
    is_over = threading.Event()
    monkeypatch.setattr(first_guess, "guess", lambda *_: FOUND if is_over.wait(PATIENCE_S) else None)
    assert begun(0.05).starts() == []
    assert "the search begins without" in caplog.text
    is_over.set()


@pytest.mark.usefixtures("configured")
def test_a_job_goes_on_without_a_guess_that_fails(monkeypatch, caplog):
    def fail(*_):
        raise NotFoundError("device", "CPU-1")

    monkeypatch.setattr(first_guess, "guess", fail)
    assert begun().starts() == []
    assert "The prediction failed (There is no device 'CPU-1'.); the search begins without it." in caplog.text


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize(
    ("trials", "done", "is_made"), [(10, 0, True), (None, 0, True), (9, 0, False), (10, 1, False), (None, 3, False)]
)
def test_a_job_that_could_not_try_it_asks_for_none(monkeypatch, trials, done, is_made):
    monkeypatch.setattr(first_guess, "guess", lambda *_: FOUND)
    monkeypatch.setattr(first_guess, "MOST_S", PATIENCE_S)
    job = TuningJob(budget_trials=trials, trials_done=done)
    made = FirstGuess.of(job, GEMM, GEMM.problem(ASKED), "CPU-1")
    assert ([] if made is None else made.starts()) == ([FOUND] if is_made else [])


@pytest.mark.usefixtures("configured")
def test_of_a_family_both_ends_and_the_middle_are_predicted(monkeypatch):
    monkeypatch.setattr(first_guess, "guess", lambda _reading, _kernel, problem, *_: TILED[problem.shape["m"] % 5])
    monkeypatch.setattr(first_guess, "MOST_S", PATIENCE_S)
    family = Family.of(GEMM, {**ASKED, "m": "1..64"})
    made = first_guess.first_guesses(TuningJob(budget_trials=100, trials_done=0), GEMM, family, "CPU-1")
    assert [one.starts() for one in made] == [[TILED[size % 5]] for size in (1, 8, 64)]


WITHOUT_HURRY = """
import sys
if "tilewright.service.worker.job_process" in sys.orig_argv:
    from tilewright.service.worker import first_guess
    first_guess.MOST_S = 60.0
"""


def tuned(fleet) -> None:
    """Studies of SHAPES on this machine's CPU, where wider tiles are faster."""
    with closing(open_device("cpu")) as cpu, fleet.session() as session:
        rows = Rows(session)
        for shape in SHAPES:
            best = rows.best(shape, 0.1, configuration=TILED[0], model=cpu.model, environment=cpu.environment)
            trial = rows.trial_of(best)
            study, job = session.get_one(Study, trial.study_id), session.get_one(TuningJob, trial.job_id)
            for place, slower in enumerate([*TILED[1:], *NAIVE], 2):
                rows.trial(study, job, slower, 0.1 * place)


@EXHAUSTIVE  # a worker and a job; those above, test_priors.py and test_tune.py try the parts
def test_a_job_first_tries_the_default_and_then_what_was_predicted(fleet, tmp_path):
    tuned(fleet)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_HURRY)
    fleet.start_worker(PYTHONPATH=str(tmp_path))
    fleet.until(lambda: "Serving" in fleet.said())
    with fleet.session() as session:
        predicted = find_best(session, "gemm", None, ASKED)
    assert predicted.match == "predicted"
    job = fleet.request(trials=10, shape=ASKED, variants=["naive", "tiled"])
    fleet.wait_for_trials(job, 2)
    fleet.cancel(job)
    tried = [(Configuration.from_json(trial.configuration), trial.outcome, trial.epoch) for trial in fleet.trials(job)]
    expected = Configuration.of(predicted.variant, predicted.configuration)
    assert expected in [configuration for configuration, *_ in tried[:2]], (tried, fleet.said())


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

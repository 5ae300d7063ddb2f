"""What a job tries first: a prediction, where there is one in time."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from factories import Rows
from found import find_best
from sampling import EXHAUSTIVE
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.store.models import Study, TuningJob
from tilewright.service.worker import first_guess
from tilewright.service.worker.first_guess import FirstGuess
from tilewright.tuner.devices.local import open_device

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

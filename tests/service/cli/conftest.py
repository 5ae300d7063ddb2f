"""The command line run in this process, against a database of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import emptying
import pytest
from factories import register_processor
from sqlalchemy import Engine, create_engine, select

from tilewright.kernels.space import Configuration
from tilewright.service.cli import main
from tilewright.service.operations import registry
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.models import JobState
from tilewright.service.store.session import sqlalchemy_url
from tilewright.tuner.outcome import Outcome

SHAPE = {"m": 64, "n": 32, "k": 48}
"""Of the problem that is tuned where a test asks for it."""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def cli_database(new_database: Callable[[str], str]) -> str:
    """A migrated database that the tests of the command line share; each finds it empty but for the kernels."""
    return new_database("cli")


@pytest.fixture(scope="session")
def cli_engine(cli_database: str) -> Iterator[Engine]:
    """Connections to that database, for emptying it."""
    engine = create_engine(sqlalchemy_url(cli_database))
    yield engine
    engine.dispose()


@pytest.fixture
def use_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes the settings name a database."""
    monkeypatch.delenv("TILEWRIGHT_DEBUG", raising=False)

    def use(url: str) -> None:
        monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", url)
        settings.cache_clear()
        store_session.configure(None)

    yield use
    store_session.configure(None)
    settings.cache_clear()


@pytest.fixture
def local(
    cli_database: str, cli_engine: Engine, registered_kernels: object, use_database: Callable[[str], None]
) -> Iterator[str]:
    """The settings name a migrated database that is empty but for the kernels."""
    use_database(cli_database)
    yield cli_database
    emptying.empty(cli_engine, registered_kernels)


@pytest.fixture
def unreachable(use_database: Callable[[str], None]) -> None:
    """The settings name a database that nobody serves: what asks it fails, with exit code 1."""
    use_database("postgresql://nobody@127.0.0.1:1/none")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run_command(*arguments: str) -> Ran:
        capsys.readouterr()
        status = main(arguments)
        captured = capsys.readouterr()
        return Ran(int(status), captured.out, captured.err)

    return run_command


@pytest.fixture
def registered(local: str) -> str:
    """UUID of a CPU device whose worker spoke just now; its kernels are registered too."""
    with store_session.session_scope() as session:
        register_processor(session)
    return "CPU-1"


@pytest.fixture
def tuned(registered) -> int:
    """The id of a study with one verified trial, which is its best."""
    kernel = registry.catalogue().get("gemm")
    configuration = Configuration.of("tiled", {"TILE_WIDTH": 8})
    with store_session.session_scope() as session:
        device = session.scalars(select(models.Device)).one()
        problem = registry.problem_row(session, kernel.problem(SHAPE))
        key = {"problem_id": problem.id, "device_model_id": device.model_id}
        study = models.Study(**key, environment_id=device.environment_id, space_hash="s", space_size=9, next_number=1)
        session.add(study)
        session.flush()
        job = models.TuningJob(**key, study_id=study.id, queue="q", budget_trials=1, state=JobState.DONE)
        session.add(job)
        session.flush()
        trial = models.Trial(
            study_id=study.id,
            number=0,
            job_id=job.id,
            job_revision=1,
            epoch=0,
            kernel_variant_id=registry.kernel_variant_ids(session, kernel)["tiled"],
            configuration=configuration.as_json(),
            configuration_hash=configuration_hash(kernel, configuration),
            outcome=Outcome.MEASURED,
            time_ms=2.0,
            ranking_l2="warm",
            warm_ms=2.0,
            bound_ratio=0.5,
        )
        session.add(trial)
        session.flush()
        session.add(
            models.BestConfiguration(
                **key,
                environment_id=device.environment_id,
                trial_id=trial.id,
                job_id=job.id,
                time_ms=2.0,
                ci_low_ms=1.9,
                ci_high_ms=2.1,
                l2="warm",
                gflops=1.0,
                gb_per_s=1.0,
                bound_ratio=0.5,
            )
        )
        return study.id

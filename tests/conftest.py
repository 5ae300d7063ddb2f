"""Real PostgreSQL for every test that asks: one server a session, one migrated database a test process."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import emptying
import hypothesis
import pytest
from sampling import take_turns
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, Pool
from threadpoolctl import threadpool_limits

from tilewright.service import GARBAGE_AFTER
from tilewright.service.operations import registry
from tilewright.service.operations.best import predictions
from tilewright.service.settings import settings
from tilewright.service.store import schema
from tilewright.service.store import session as store_session
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import sqlalchemy_url
from tilewright.tuner.devices.cpu.compile import MODES

pytest.register_assert_rewrite("fleet", "deployed", "contracts.device")
from fleet import PATIENT, QUICK, Fleet  # noqa: E402

threadpool_limits(limits=1, user_api="blas")  # on busy cores its threads wait for each other: 108 s instead of 2

HOME_VARIABLE = "TILEWRIGHT_TEST_POSTGRES_HOME"

# A machine with much else to do stands still for longer than an example may take.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts pytest in the background ignores SIGINT, and children inherit it; tests press Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The first process makes the folder; processes that xdist starts inherit the variable.
    if HOME_VARIABLE not in os.environ and not hasattr(config, "workerinput"):
        os.environ[HOME_VARIABLE] = tempfile.mkdtemp(prefix="tw-test-")
        config.stash[_owned] = Path(os.environ[HOME_VARIABLE])
    gc.disable()  # every collected test stays until the end: looking for garbage among them is in vain


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    made = yield
    if isinstance(made, list):  # all cases of one test, whichever are asked for
        take_turns(made)
    return made


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One after the other, so that one browser serves them: it takes a second of CPU time to start.
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


def pytest_collection_finish() -> None:
    # Thousands of tests stay until the end: no collection of garbage during the tests needs to walk over them.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER, 10, 10)


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(_owned, None)
    if home is not None:
        os.environ.pop(HOME_VARIABLE, None)
        EmbeddedPostgres(home / "postgres").stop()
        shutil.rmtree(home, ignore_errors=True)


_owned = pytest.StashKey[Path]()


@pytest.fixture(autouse=True, scope="session")
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the data of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setenv("TILEWRIGHT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        for name in ("TILEWRIGHT_DATABASE_URL", "TILEWRIGHT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("TILEWRIGHT_SHIPPED_RECORDS", "false")  # a test chooses what is known; some ship invented records
        settings.cache_clear()  # modules of tests have read them while they were collected
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_compiles() -> Iterator[None]:
    """Programs that this process makes compile in a quarter of the time: they run once. Commands and workers take -O3.

    Those that are loaded run launches of many blocks, and would take longer than -Og saves.
    """
    with pytest.MonkeyPatch.context() as patch:
        for mode, level in (("fast", "-Og"), ("library", "-O1")):
            patch.setitem(MODES, mode, tuple(flag.replace("-O3", level) for flag in MODES[mode]))
        yield


@pytest.fixture(autouse=True, scope="session")
def _kept_engines() -> Iterator[None]:
    """Statements are compiled once for a database that many tests share, not once a test; connections are new ones."""
    kept: dict[str, tuple[Engine, Pool]] = {}
    make = store_session._new_engine

    def kept_engine(url: str) -> Engine:
        if url not in kept:
            engine = make(url)
            kept[url] = engine, engine.pool
        engine, unused = kept[url]
        engine.pool = unused.recreate()  # the one before closes what is given back to it
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_session, "_new_engine", kept_engine)
        yield


@pytest.fixture(autouse=True)
def _own_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process fits to row ids, which are unique in its database alone: every test's database numbers from one."""
    monkeypatch.setattr(predictions, "_KEPT", predictions.Predictors())


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The server's own database; tests make theirs beside it. It need not outlive a power cut."""
    url = EmbeddedPostgres(Path(os.environ[HOME_VARIABLE]) / "postgres").ensure()
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        _administer(url, f"ALTER SYSTEM SET {setting} = off")
    _administer(url, "SELECT pg_reload_conf()")
    return url


def _at(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


def _administer(url: str, statement: str) -> None:
    engine = create_engine(sqlalchemy_url(url), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))


@pytest.fixture(scope="session")
def shared_cache() -> Path:
    """A cache folder of all test processes, where the CPU device's runtime is built once for each kind of program."""
    return Path(os.environ[HOME_VARIABLE]) / "cache"


@pytest.fixture(scope="session")
def template(postgres_url: str) -> str:
    """Name of a database that our own migrations built, with the kernels, which take longer to store than most tests.

    The first process that asks makes it, for all. Nobody connects to it: others may be copying it.
    """
    name, done = "template_of_tests", Path(os.environ[HOME_VARIABLE]) / "template"
    with done.open("a+") as made:
        fcntl.flock(made, fcntl.LOCK_EX)
        if not done.stat().st_size:
            _administer(postgres_url, f"CREATE DATABASE {name}")
            schema.upgrade(_at(postgres_url, name))
            engine = create_engine(sqlalchemy_url(_at(postgres_url, name)), poolclass=NullPool)
            with Session(engine) as session, session.begin():
                registry.register_kernels(session, registry.catalogue())
            made.write(name)
    return name


@pytest.fixture(scope="session")
def new_database(postgres_url: str, template: str) -> Callable[[str], str]:
    """Makes a migrated database, whose name begins as asked, in half a second; its address."""

    def make(purpose: str) -> str:
        name = f"{purpose}_{uuid.uuid4().hex[:12]}"
        _administer(postgres_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return _at(postgres_url, name)

    return make


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A database with nothing in it."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    _administer(postgres_url, f"CREATE DATABASE {name}")
    yield _at(postgres_url, name)
    _administer(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(postgres_url: str, new_database: Callable[[str], str]) -> Iterator[str]:
    """A migrated database of this test's own, for tests of several processes or transactions."""
    url = new_database("test")
    yield url
    _administer(postgres_url, f"DROP DATABASE {make_url(url).database} WITH (FORCE)")


@pytest.fixture(scope="session")
def registered_kernels(shared_engine: Engine) -> object:
    """What every migrated database holds of the kernels, for `emptying.empty`."""
    return emptying.kernels_in(shared_engine)


@pytest.fixture(scope="session")
def kept_database(new_database: Callable[[str], str], registered_kernels: object) -> emptying.KeptDatabase:
    """One migrated database for the tests of this process that commit; a new one takes a third of a second each."""
    return emptying.KeptDatabase(partial(new_database, "kept"), registered_kernels)


@pytest.fixture
def configured(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with nothing but the kernels, to which `session_scope()` in this process goes: the test's own, if any.

    Of a test without `database_url` it is one that is used again and again.
    """
    if "database_url" in request.fixturenames:
        url, kept = request.getfixturevalue("database_url"), None
    else:
        kept = request.getfixturevalue("kept_database")
        url = kept.url()
    store_session.configure(url)
    yield url
    store_session.configure(None)
    if kept is not None:
        kept.restore()


@pytest.fixture(scope="session")
def shared_engine(new_database: Callable[[str], str]) -> Iterator[Engine]:
    """The database of this test process, whose tests roll back what they write."""
    engine = create_engine(sqlalchemy_url(new_database("shared")))
    yield engine
    engine.dispose()


@pytest.fixture
def session(shared_engine: Engine) -> Iterator[Session]:
    """A session whose every write is gone after the test, its commits included."""
    with shared_engine.connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
            yield session
        transaction.rollback()


@pytest.fixture
def fleet(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Workers of this test's own database, all gone after the test."""
    settings = PATIENT if request.node.get_closest_marker("faults") is None else QUICK
    fleet = Fleet(database_url, tmp_path, settings=settings)
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def standing_fleet(new_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One worker for all tests of a module, which leave it running: starting one takes seconds of CPU time."""
    fleet = Fleet(new_database("standing"), tmp_path_factory.mktemp("standing"), settings=PATIENT)
    fleet.start_worker()
    fleet.wait_for_device()
    yield fleet
    fleet.stop()


@pytest.fixture
def embedded(fleet: Fleet) -> Iterator[tuple[Fleet, EmbeddedPostgres]]:
    """A fleet on an embedded server of its own, which the processes themselves bring back when it dies."""
    server = EmbeddedPostgres(fleet.folder / "postgres")
    fleet.url = server.enter()  # so that an API which ends does not stop it
    fleet.is_embedded = True
    schema.upgrade(fleet.url)
    yield fleet, server
    fleet.stop()
    server.stop()

"""What the keys of a project have together: quotas, turns in the queue, webhooks; and what stays as it was without."""

from collections.abc import Iterator

import pytest
from desk import SHAPE, request
from due_schedules import wanted
from sqlalchemy import select

from tilewright.service.errors import CeilingError, ConflictError, InvalidRequestError, NotFoundError
from tilewright.service.operations.access import keys, projects
from tilewright.service.operations.caller import Caller, Scope, acting_as
from tilewright.service.operations.jobs.jobs import cancel_job, jobs
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import (
    BudgetRequest,
    KeyRequest,
    ProjectQuotas,
    ProjectRequest,
    WebhookRequest,
)
from tilewright.service.operations.schedules.schedules import create_schedule, run_now, schedules
from tilewright.service.operations.webhooks.webhooks import create_webhook
from tilewright.service.settings import settings
from tilewright.service.store import models

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def few_of_a_key(monkeypatch) -> Iterator[None]:
    """Quotas of a key, in the settings, that are smaller than those of the projects."""
    for name, value in {"OPEN_JOBS_PER_KEY": 2, "QUEUED_SECONDS_PER_KEY": 100, "SCHEDULES_PER_KEY": 1}.items():
        monkeypatch.setenv(f"TILEWRIGHT_{name}", str(value))
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def key(session, name: str, project: str = "default", scope: Scope = Scope.TUNE, **more) -> Caller:
    token = keys.create_key(session, KeyRequest(name=name, scope=scope, project=project, **more)).token
    return keys.find_key(session, token).caller


def team(session, name: str, **quotas) -> None:
    projects.create_project(session, ProjectRequest(name=name, **quotas))


def ask(session, caller: Caller, m: int, **more):
    with acting_as(caller, "test"):
        return request_job(session, request(**{"trials": 1, "shape": SHAPE | {"m": m}} | more))[0]


def turn(session, caller: Caller, m: int) -> int:
    return session.scalar(select(models.TuningJob.turn).where(models.TuningJob.id == ask(session, caller, m).id))


def test_the_keys_of_a_project_share_its_quotas_and_others_have_their_own(session, few_of_a_key):
    team(session, "vision", max_open_jobs=4, max_queued_seconds=5000, max_schedules=2)
    one, two, other = key(session, "one", "vision"), key(session, "two", "vision"), key(session, "other")
    for m in (8, 16, 24):  # more than the settings give a key
        ask(session, one, m, budget=BudgetRequest(seconds=1000))
    with pytest.raises(CeilingError, match="project 'vision' may take 5000 s together; they take up to 3000 s"):
        ask(session, two, 32, budget=BudgetRequest(seconds=2500))
    last = ask(session, two, 32)
    with pytest.raises(CeilingError, match="The project 'vision' may have 4 jobs"):
        ask(session, two, 40)
    with acting_as(two, "test"):
        cancel_job(session, last.id)
    ask(session, two, 40)
    for m in (48, 56):
        ask(session, other, m)
    with pytest.raises(CeilingError, match="The key 'other' may have 2 jobs"):
        ask(session, other, 64)
    for caller, name in ((one, "a"), (two, "b")):
        with acting_as(caller, "test"):
            made = create_schedule(session, wanted(name=name, enabled=False))
    with acting_as(two, "test"), pytest.raises(CeilingError, match="The project 'vision' may have 2 schedules"):
        create_schedule(session, wanted(name="c"))
    with acting_as(two, "test"), pytest.raises(ConflictError, match="4 jobs of the project 'vision' are open"):
        run_now(session, made.id)
    ask(session, key(session, "boss", "vision", Scope.ADMIN), 72)


def test_a_ceiling_of_a_key_holds_within_its_project_too(session):
    team(session, "vision", max_open_jobs=4)
    small = key(session, "small", "vision", max_open_jobs=1)
    ask(session, small, 8)
    with pytest.raises(CeilingError, match="The key 'small' may have 1 jobs"):
        ask(session, small, 16)


def test_what_is_made_belongs_to_the_project_of_its_key(session):
    team(session, "vision")
    ours, theirs = key(session, "ours", "vision"), key(session, "theirs")
    mine, _ = ask(session, ours, 8), ask(session, theirs, 16)
    ask(session, Caller("this machine", Scope.ADMIN), 24)
    with acting_as(ours, "test"):
        made = create_schedule(session, wanted(enabled=False))
        (fired,) = run_now(session, made.id)
    assert {job.id for job in jobs(session, project="vision").items} == {mine.id, fired.id}
    assert len(jobs(session, project="default").items) == 2
    assert [one.id for one in schedules(session, "vision")] == [made.id]
    assert schedules(session, "default") == []
    rotated = keys.rotate_key(session, "ours")
    assert rotated.project == "vision"
    listed = {one.name: (one.keys, one.open_jobs, one.schedules) for one in projects.projects(session)}
    assert listed == {"default": (1, 2, 0), "vision": (2, 2, 1)}
    for find in (lambda: jobs(session, project="nobody"), lambda: key(session, "x", "nobody")):
        with pytest.raises(InvalidRequestError, match="known: default, vision"):
            find()


def test_quotas_are_changed_and_taken_away_one_by_one(session):
    team(session, "vision", max_open_jobs=1, max_schedules=1)
    projects.change_quotas(session, "vision", ProjectQuotas(max_queued_seconds=60.0))
    changed = projects.change_quotas(session, "vision", ProjectQuotas(max_open_jobs=None))
    assert (changed.max_open_jobs, changed.max_queued_seconds, changed.max_schedules) == (None, 60.0, 1)
    with pytest.raises(ConflictError):
        team(session, "vision")
    with pytest.raises(NotFoundError):
        projects.change_quotas(session, "nobody", ProjectQuotas())


def test_a_project_of_many_keys_gets_no_more_turns_than_one_with_a_single_key(session):
    team(session, "many")
    team(session, "single")
    single, many = key(session, "single", "single"), [key(session, f"many-{n}", "many") for n in range(3)]
    of_single = [turn(session, single, 8 * m) for m in range(1, 7)]
    of_many = [turn(session, caller, 1000 + 8 * (3 * m + n)) for m in range(2) for n, caller in enumerate(many)]
    assert of_single == [0, 1, 2, 3, 4, 5]
    assert sorted(of_many) == [0, 1, 2, 3, 4, 5]


def test_the_keys_of_one_project_alone_take_turns_as_ever(session):
    noisy, quiet = key(session, "noisy"), key(session, "quiet")
    assert [turn(session, noisy, 8 * m) for m in range(1, 5)] == [0, 1, 2, 3]
    assert [turn(session, quiet, 800 + 8 * m) for m in range(2)] == [0, 1]


def test_a_webhook_of_a_project_hears_of_its_jobs_alone(session, private_allowed):
    team(session, "vision")
    for name, project in (("ours", "vision"), ("all", None)):
        create_webhook(session, WebhookRequest(name=name, url="http://127.0.0.1:9/hook", project=project))
    callers = key(session, "ours", "vision"), key(session, "theirs")
    for place, caller in enumerate(callers):
        with acting_as(caller, "test"):
            cancel_job(session, ask(session, caller, 8 + 8 * place).id)
    delivery, hook = models.WebhookDelivery, models.Webhook
    heard = session.scalars(select(hook.name).join(delivery, delivery.webhook_id == hook.id)).all()
    assert sorted(heard) == ["all", "all", "ours"]

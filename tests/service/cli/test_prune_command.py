"""`tilewright db prune`: says what would go, drops it, and is told how long to keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models


def entries() -> int:
    with transaction() as session:
        return session.scalar(select(func.count()).select_from(models.AuditEntry))


def test_without_a_time_to_keep_it_is_a_usage_error(run, local):
    ran = run("db", "prune")
    assert ran.status == 2
    assert "--older-than" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_dry_run_changes_nothing_and_the_real_one_does(run, local):
    with transaction() as session:
        for days in (10, 400):
            at = datetime.now(UTC) - timedelta(days=days)
            session.add(models.AuditEntry(at=at, actor="command line", action="of the test", changed={}))
    arguments = ("db", "prune", "--older-than", "30", "--audit-older-than", "365", "--json")
    dry = run(*arguments, "--dry-run")
    assert dry.json == {"dry_run": True, "jobs": 0, "trials": 0, "sample_bytes": 0, "audit_entries": 1}
    assert entries() == 2
    assert run(*arguments).json == {"dry_run": False, "jobs": 0, "trials": 0, "audit_entries": 1}
    assert entries() == 1

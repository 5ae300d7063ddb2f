"""Emptying a database that many tests share: all but the kernels, which take longer to store than most tests.

The one row that says when chores were begun stays, too, and the project `default`.
"""

from __future__ import annotations

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations import registry
from tilewright.service.store.models import Base

OF_KERNELS = ("kernel_variants", "kernels")
KEPT = (*OF_KERNELS, "chore_rounds", "projects")
TABLES = [table.name for table in reversed(Base.metadata.sorted_tables) if table.name not in KEPT]
EMPTY = "; ".join(f"DELETE FROM {table}" for table in [*TABLES, "procrastinate_jobs", "projects WHERE id > 1"])  # noqa: S608 - our own names
WITHOUT_KERNELS = "; ".join(f"DELETE FROM {table}" for table in OF_KERNELS)  # noqa: S608
KERNELS = text(
    "SELECT (SELECT string_agg(name || declaration, ' ' ORDER BY id) FROM kernels),"
    " (SELECT string_agg(name || source_hash, ' ' ORDER BY id) FROM kernel_variants)"
)


def kernels_in(engine: Engine) -> object:
    """What is stored of the kernels."""
    with engine.begin() as connection:
        return connection.execute(KERNELS).one()


def empty(engine: Engine, kernels: object) -> None:
    """Leaves those kernels alone, as a worker registers them that starts."""
    with engine.begin() as connection:
        connection.exec_driver_sql(EMPTY)
        is_changed = connection.execute(KERNELS).one() != kernels
        if is_changed:
            connection.exec_driver_sql(WITHOUT_KERNELS)
    if is_changed:
        with Session(engine) as session, session.begin():
            registry.register_kernels(session, catalogue())  # whatever folders a test has named

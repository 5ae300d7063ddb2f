"""Alembic's environment: runs on the connection that service.store.schema hands over, and knows only our tables."""

from __future__ import annotations

from alembic import context

from tilewright.service.store.models import Base


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Whether a table of the database is ours: the job engine keeps its own, named procrastinate_*."""
    return not (kind == "table" and (name or "").startswith("procrastinate_"))


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=context.config.attributes["version_table"],
    include_name=include_name,
    compare_server_default=True,
)
context.run_migrations()

"""Keys from before there were projects belong to `default`, and a program of the version before adds more of them."""

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.operations.caller import DEFAULT_PROJECT_ID
from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url

ADD = text(
    "INSERT INTO api_keys (id, name, token_hash, prefix, scope) VALUES (gen_random_uuid(), :name, :name, 'tw_', 'tune')"
)
PROJECTS = text("SELECT k.name, p.name, p.id FROM api_keys k JOIN projects p ON p.id = k.project_id ORDER BY k.name")


def test_what_is_there_belongs_to_the_default_project(empty_database_url):
    schema.upgrade(empty_database_url, "0024")
    engine = create_engine(sqlalchemy_url(empty_database_url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(ADD, {"name": "before"})
    schema.upgrade(empty_database_url)
    with engine.begin() as connection:
        connection.execute(ADD, {"name": "older program"})
        default = ("default", DEFAULT_PROJECT_ID)
        assert connection.execute(PROJECTS).all() == [("before", *default), ("older program", *default)]
    schema.downgrade(empty_database_url, "0024")
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM api_keys")) == 2

"""The revision before this one knows no origins: going back, results of other installations go."""

from __future__ import annotations

import json

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tuned_results import SHAPE, Results

from tilewright.service.operations.exchange.export import ExportSelection, export_studies
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import schema
from tilewright.service.store.session import sqlalchemy_url


def test_a_downgrade_takes_imported_results_and_leaves_those_of_this_installation(database_url, configured):
    with transaction() as session:
        Results(session).tune(SHAPE)
    document = json.loads("".join(export_studies(ExportSelection(trials=True))))
    assert import_document(json.dumps(document).encode(), ImportOptions()).best == 1
    schema.downgrade(configured, "0006")
    engine = create_engine(sqlalchemy_url(configured), poolclass=NullPool)
    with engine.connect() as connection:
        counts = {
            table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()  # noqa: S608
            for table in ("environments", "studies", "tuning_jobs", "trials", "best_configurations")
        }
    assert counts == {"environments": 1, "studies": 1, "tuning_jobs": 1, "trials": 5, "best_configurations": 1}
    schema.upgrade(configured)
    assert len(json.loads("".join(export_studies(ExportSelection())))["studies"]) == 1

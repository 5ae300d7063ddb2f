"""Lists, documents, pages and commands of a filled service stay as they were recorded, unless a change was meant."""

import json
import os

import pytest
import recorded_answers
from caller import Caller, new_app
from factories import Rows

from tilewright.service.cli import main
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import session as store_session


@pytest.mark.in_turn(2)
def test_answers_are_those_of_the_record(new_database, tmp_path, monkeypatch, capsys):
    def run(command):
        main(command)
        return "\n".join(capsys.readouterr())

    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", url := new_database("recorded"))
    monkeypatch.setenv("COLUMNS", "160")
    settings.cache_clear()
    store_session.configure(url)
    try:
        with transaction() as session:
            recorded_answers.fill(Rows(session))
        client = Caller(new_app())
        recorded_answers.ask(client)
        texts = dict(recorded_answers.answers(client, run))
    finally:
        store_session.configure(None)
        monkeypatch.undo()
        settings.cache_clear()
    for number, (path, text) in enumerate(texts.items()):
        (tmp_path / f"{number:03}.txt").write_text(f"{path}\n{text}", encoding="utf-8")
    found = {path: recorded_answers.checksum(text) for path, text in texts.items()}
    if "RECORD_ANSWERS" in os.environ:
        recorded_answers.RECORD.write_text(json.dumps(found, indent=0), encoding="utf-8")
    recorded = json.loads(recorded_answers.RECORD.read_text(encoding="utf-8"))
    assert found == recorded, f"the texts are in {tmp_path}"

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tilewright.service.cli.explain import explain
from tilewright.service.settings_model import Settings


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALLOWED_HOSTS", '["a', "TILEWRIGHT_ALLOWED_HOSTS: must be a host name, several separated by commas"),
        ("DATABASE_URL", "mysql://host/tiles", "TILEWRIGHT_DATABASE_URL: must be the address of a PostgreSQL"),
        ("STALLED_AFTER_S", "10", "TILEWRIGHT_STALLED_AFTER_S: must be several times TILEWRIGHT_HEARTBEAT_S"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(monkeypatch, name, value, said):
    monkeypatch.setenv(f"TILEWRIGHT_{name}", value)
    monkeypatch.setenv("TILEWRIGHT_HEARTBEAT_S", "10")
    with pytest.raises(ValidationError) as raised:
        Settings()
    assert explain(raised.value).message.startswith(said)


@pytest.mark.parametrize("value", ["api.example, localhost", '["api.example", "localhost"]'])
def test_allowed_hosts_are_names_with_commas_or_a_json_list(monkeypatch, value):
    monkeypatch.setenv("TILEWRIGHT_ALLOWED_HOSTS", value)
    assert Settings().allowed_hosts == ["api.example", "localhost"]

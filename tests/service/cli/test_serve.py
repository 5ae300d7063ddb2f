"""What `serve` refuses before it serves."""

import pytest

from tilewright.service.operations import registry
from tilewright.service.settings import settings


@pytest.fixture
def folder_of_kernels(local, monkeypatch):
    """A function: names this folder in the settings."""

    def name(path):
        monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", path)
        settings.cache_clear()
        registry.watched_catalogue.cache_clear()

    yield name
    registry.watched_catalogue.cache_clear()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_refused_by_name(run, host, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOST", "127.0.0.1")  # so that what --host sets is taken back
    ran = run("serve", "--host", host)
    assert ran.status == 1
    assert f"cannot listen on {host}: it is not an address of this machine" in ran.err
    assert "TILEWRIGHT_HOST" in ran.err


def test_a_folder_of_kernels_that_is_not_there_ends_it(run, folder_of_kernels):
    folder_of_kernels("/nowhere")
    ran = run("serve")
    assert ran.status == 1
    assert "/nowhere/declaration.py: there is no such file" in ran.err

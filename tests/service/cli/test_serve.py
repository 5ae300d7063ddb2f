"""What `serve` refuses before it serves, and https."""

import ssl

import httpx
import pytest
from fleet import free_port
from tls_proxy import certificate_of

from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import KeyRequest
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


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_certificate_that_cannot_be_used_ends_it(run, command, monkeypatch, tmp_path):
    (tmp_path / "empty.pem").touch()
    monkeypatch.setenv("TILEWRIGHT_TLS_CERTIFICATE", str(tmp_path / "empty.pem"))
    settings.cache_clear()
    ran = run(command)
    assert ran.status == 1
    assert "TILEWRIGHT_TLS_CERTIFICATE" in ran.err


@pytest.mark.usefixtures("local")
def test_a_provider_without_the_library_for_it_ends_it_and_says_what_to_install(run, monkeypatch):
    given = {"OIDC_ISSUER": "https://login.example", "OIDC_CLIENT_ID": "tilewright", "OIDC_RIGHTS": "*=read"}
    for name, value in (given | {"REQUIRE_KEYS": "true", "PUBLIC_URL": "https://tiles.example"}).items():
        monkeypatch.setenv(f"TILEWRIGHT_{name}", value)
    settings.cache_clear()
    monkeypatch.setattr("tilewright.service.cli.commands.serve.find_spec", lambda _name: None)
    ran = run("serve")
    assert (ran.status, "pip install 'tilewright[service,oidc]'" in ran.err) == (1, True)


def test_with_a_certificate_it_speaks_https_and_its_cookies_are_for_https(fleet, tmp_path):
    certificate, port = certificate_of("localhost", tmp_path), free_port()
    fleet.start_api(port, TILEWRIGHT_TLS_CERTIFICATE=str(certificate), TILEWRIGHT_REQUIRE_KEYS="true")
    trusting = ssl.create_default_context(cafile=certificate)
    with httpx.Client(base_url=f"https://localhost:{port}", verify=trusting) as client:

        def is_ready():
            try:
                return client.get("/ready").status_code == 200
            except httpx.TransportError:
                return False

        fleet.until(is_ready)
        with fleet.session() as session:
            token = keys.create_key(session, KeyRequest(name="ci")).token
        origin = {"Origin": f"https://localhost:{port}"}
        signed_in = client.post("/v1/session", json={"key": token}, headers=origin)
        assert signed_in.headers["set-cookie"].startswith("__Host-tilewright_session=")
        assert client.get("/v1/kernels").status_code == 200, "by the cookie"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{port}/health")
    assert not list(fleet.folder.glob("api-*.address")), "launchers could not verify it by its address"

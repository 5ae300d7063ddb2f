"""Messages over real sockets: what arrives, what is not followed, what is cut off, and where nothing is sent."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleet import free_port
from sqlalchemy import select
from tls_proxy import certificate_of
from waiting import PATIENCE_S, until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations import registry
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import JobRequest, WebhookRequest
from tilewright.service.operations.webhooks import deliveries, webhooks
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker import pinned_post
from tilewright.service.worker.webhook_sender import WebhookSender, post
from tilewright.tuner.devices.device import DeviceModel, Environment

MODEL = DeviceModel("test-gpu", "Test GPU", "cuda", Limits((9, 0), 132, 1 << 30), 1, {}, None)


@pytest.fixture
def receiver() -> Iterator[SimpleNamespace]:
    """A server on a loopback port that keeps what it is told, and answers with `status`."""
    seen = SimpleNamespace(requests=[], status=204, headers={}, came=threading.Event())

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.requests.append((self.path, dict(self.headers), body))
            self.send_response(seen.status)
            for name, value in seen.headers.items():
                self.send_header(name, value)
            self.end_headers()
            seen.came.set()

        def log_message(self, *_arguments: object) -> None:
            """Nothing to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen.server, seen.port = server, server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield seen
        server.shutdown()
        thread.join()


def send(url: str) -> deliveries.DeliveryAttempt:
    return asyncio.run(post(url, {"Content-Type": "application/json"}, b"{}"))


@pytest.fixture
def ended_job(configured):
    """A function that ends a job, so that a message waits."""

    def make():
        with session_scope() as session:
            registry.register_kernels(session, catalogue())
            environment = Environment("580.1", "13.0", "nvrtc", "13.0", "PyCUDA", "default")
            registry.register_device(session, MODEL, "GPU-1", "host", 0, environment)
            job_id = request_job(session, JobRequest(kernel="gemm", shape={"m": 8, "n": 8, "k": 8}))[0].id
            cancel_job(session, job_id)
        return job_id

    return make


def wait_for_state(state: str) -> models.WebhookDelivery:
    def row():
        with session_scope() as session:
            return session.scalars(select(models.WebhookDelivery)).one()

    return until(lambda: (seen := row()).state.value == state and seen, lambda: (row().state, row().error))


@pytest.mark.usefixtures("private_allowed")
def test_a_message_arrives_signed_and_only_once(receiver, ended_job):
    with session_scope() as session:
        request = WebhookRequest(name="ci", url=f"http://127.0.0.1:{receiver.port}/hook?a=b")
        made = webhooks.create_webhook(session, request)
    job_id = ended_job()
    with WebhookSender(look_every_s=0.05), WebhookSender(look_every_s=0.05):
        delivered = wait_for_state("delivered")
    ((path, headers, body),) = receiver.requests
    assert path == "/hook?a=b"
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    said = json.loads(body)
    assert (said["type"], said["data"]["id"]) == ("job.cancelled", str(job_id))
    expected = deliveries.signature(made.secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == expected
    assert headers["webhook-id"] == str(delivered.id)
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 30
    assert (delivered.attempts, delivered.status_code) == (1, 204)


@pytest.mark.in_turn(2)
def test_a_running_api_sends_what_another_process_left(receiver, ended_job, fleet, private_allowed):
    with session_scope() as session:
        webhooks.create_webhook(session, WebhookRequest(name="ci", url=f"http://127.0.0.1:{receiver.port}/"))
    job_id = ended_job()
    fleet.start_api(free_port())  # private_allowed is in its environment
    assert receiver.came.wait(PATIENCE_S), (fleet.folder / "api.log").read_text()[-3000:]
    ((_path, _headers, body),) = receiver.requests
    said = json.loads(body)
    assert (said["type"], said["data"]["id"]) == ("job.cancelled", str(job_id))


@pytest.mark.usefixtures("private_allowed")
def test_a_message_that_was_refused_is_sent_again_with_the_same_id(receiver, ended_job, monkeypatch):
    monkeypatch.setattr(deliveries, "PAUSES_S", (0.05, 0.05, 0.05))
    receiver.status = 503
    with session_scope() as session:
        webhooks.create_webhook(session, WebhookRequest(name="ci", url=f"http://127.0.0.1:{receiver.port}/"))
    ended_job()
    with WebhookSender(look_every_s=0.02):
        assert receiver.came.wait(PATIENCE_S)
        receiver.status = 200
        delivered = wait_for_state("delivered")
    assert delivered.attempts >= 2
    assert {headers["webhook-id"] for _, headers, _ in receiver.requests} == {str(delivered.id)}


def test_nothing_is_sent_to_an_address_that_was_allowed_once(receiver, ended_job, private_allowed, monkeypatch):
    with session_scope() as session:
        webhooks.create_webhook(session, WebhookRequest(name="ci", url=f"http://localhost:{receiver.port}/"))
    ended_job()
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES", "false")
    settings.cache_clear()
    with WebhookSender(look_every_s=0.05):
        row = until(lambda: (seen := wait_for_state("waiting")).error and seen)
    assert "https" in row.error
    assert receiver.requests == []


@pytest.mark.usefixtures("private_allowed")
def test_a_name_that_turns_to_a_closed_address_between_two_attempts_is_not_called(receiver, ended_job, monkeypatch):
    """DNS rebinding: what was judged at one attempt is judged again at the next. Here 127.0.0.2 alone is allowed."""
    with session_scope() as session:
        webhooks.create_webhook(session, WebhookRequest(name="ci", url=f"http://rebind.example:{receiver.port}/"))
    ended_job()
    answers, look_up = iter(["127.0.0.2"]), socket.getaddrinfo

    def turning(host, port, *arguments, **names):
        return look_up(next(answers, "127.0.0.1") if host == "rebind.example" else host, port, *arguments, **names)

    monkeypatch.setattr(socket, "getaddrinfo", turning)
    monkeypatch.setattr(deliveries, "PAUSES_S", (0.05,))
    monkeypatch.setattr(pinned_post, "is_allowed", lambda address: str(address) == "127.0.0.2")
    with WebhookSender(look_every_s=0.02):
        row = wait_for_state("failed")
    assert row.attempts == 2, "nobody listens on 127.0.0.2"
    assert "127.0.0.1 is not a public address" in row.error
    assert receiver.requests == []


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1", "127.1"])
def test_a_name_that_leads_to_this_machine_is_refused(receiver, host):
    attempted = send(f"https://{host}:{receiver.port}/")
    assert attempted.status_code is None
    assert "is not a public address" in attempted.reason
    assert receiver.requests == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(receiver, monkeypatch):
    answers = [("93.184.216.34", 443), ("127.0.0.1", receiver.port)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: found)
    assert "127.0.0.1 is not a public address" in send("https://rebind.example/").reason


def test_the_address_that_was_judged_is_the_one_that_is_called(receiver, monkeypatch):
    """The name is looked up once; the second answer of a rebinding name is never heard."""
    asked = []

    def look_up(host, port, *_arguments, **_names):
        if host != "rebind.example":  # an address, on its way into a socket
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(pinned_post, "is_allowed", lambda address: str(address) == "127.0.0.1")
    monkeypatch.setattr(pinned_post, "check_url", _over_http)
    assert send(f"http://rebind.example:{receiver.port}/x").status_code == 204
    ((path, headers, _body),) = receiver.requests
    assert (path, headers["Host"]) == ("/x", f"rebind.example:{receiver.port}")
    assert asked == ["rebind.example"]


def _over_http(url: str):
    from tilewright.service.operations.webhooks.url import WebhookAddress  # noqa: PLC0415

    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    return WebhookAddress("http", host, int(port), f"/{path}")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate of hooks.example and its key, in one file."""
    return certificate_of("hooks.example", tmp_path_factory.mktemp("certificate"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(("host", "is_delivered"), [("hooks.example", True), ("other.example", False)])
def test_the_certificate_is_that_of_the_name_although_an_address_is_dialled(
    receiver, certificate, monkeypatch, host, is_delivered
):
    trusting = ssl.create_default_context(cafile=str(certificate))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    receiver.server.socket = served.wrap_socket(receiver.server.socket, server_side=True)
    place = ("127.0.0.1", receiver.port)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)])
    monkeypatch.setattr(pinned_post, "is_allowed", lambda _address: True)
    monkeypatch.setattr(pinned_post, "_certificates", lambda: trusting)
    attempted = send(f"https://{host}:{receiver.port}/")
    assert attempted.is_delivered is is_delivered, attempted
    if not is_delivered:
        assert "CERTIFICATE_VERIFY_FAILED" in attempted.reason
        assert receiver.requests == []


@pytest.mark.usefixtures("private_allowed")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_not_followed(receiver, status):
    receiver.status, receiver.headers = status, {"Location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
    attempted = send(f"http://127.0.0.1:{receiver.port}/")
    assert (attempted.status_code, attempted.is_delivered) == (status, False)
    assert [path for path, _, _ in receiver.requests] == ["/"]


@pytest.mark.usefixtures("private_allowed")
def test_a_proxy_of_the_environment_is_not_asked(receiver, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert send(f"http://127.0.0.1:{receiver.port}/").status_code == 204


@pytest.fixture
def drip() -> Iterator[int]:
    """The port of a server that answers one byte at a time, for ever."""
    listener, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            try:
                while not over.wait(0.02):
                    connection.sendall(b"x")
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    over.set()
    thread.join()
    listener.close()


@pytest.mark.usefixtures("private_allowed")
def test_an_answer_that_only_drips_is_cut_off_at_the_deadline(drip, monkeypatch):
    monkeypatch.setattr(pinned_post, "DEADLINE_S", 0.3)
    attempted = send(f"http://127.0.0.1:{drip}/")  # which would never end
    assert attempted.reason == "No answer within 0.3 s."


@pytest.mark.usefixtures("private_allowed")
def test_the_body_of_an_answer_is_never_read(monkeypatch):
    """A receiver that would send without end is hung up on after its head."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            try:
                while True:
                    connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            except OSError:
                ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    assert send(f"http://127.0.0.1:{listener.getsockname()[1]}/").is_delivered
    assert ended.wait(PATIENCE_S)
    thread.join()
    listener.close()


@pytest.mark.usefixtures("private_allowed")
def test_nobody_there_is_a_reason():
    assert "ConnectError" in send(f"http://127.0.0.1:{free_port()}/").reason
    assert send("http://no-such-host.invalid/").reason

"""POST /v1/digits: drawings recognised, bad ones refused, readers allowed."""

from datetime import timedelta

import numpy as np
import pytest
from caller import Caller
from drawn_digits import STROKES, ink
from factories import CPU, H100, H200, Rows
from sqlalchemy import func, text

from tilewright.service.api.middleware.access import wanted_scope
from tilewright.service.app import create_app
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.digits import post as digit_post
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import session as store_session
from tilewright.service.store.models import DeviceState, JobState

PATH = "/v1/digits"


@pytest.fixture
def asked():
    """The application; it needs no database for this."""
    return Caller(create_app())


def pixels(digit, side=56):
    return (ink(digit, side) * 255).astype(int).tolist()


@pytest.mark.parametrize(("digit", "side"), [(digit, (28, 56, 64)[digit % 3]) for digit in sorted(STROKES)])
def test_a_drawing_is_recognised(asked, digit, side):
    answer = asked.post(PATH, json={"pixels": pixels(digit, side)})
    assert answer.status_code == 200
    found = answer.json()
    assert found["digit"] == digit
    assert found["probabilities"][digit] == max(found["probabilities"])
    assert sum(found["probabilities"]) == pytest.approx(1)
    assert np.shape(found["cells"]) == (8, 8)


SQUARE = pixels(3, 16)


@pytest.mark.parametrize(
    ("drawing", "pointer"),
    [
        ({}, "#/pixels"),
        ({"pixels": []}, "#/pixels"),
        ({"pixels": SQUARE[:4]}, "#/pixels"),
        ({"pixels": [[0] * 65] * 65}, "#/pixels"),
        ({"pixels": SQUARE[:-1]}, "#"),
        ({"pixels": [*SQUARE[:-1], [0] * 15]}, "#"),
        ({"pixels": [*SQUARE[:-1], [256] * 16]}, "#/pixels/15/0"),
        ({"pixels": [*SQUARE[:-1], [0.5] * 16]}, "#/pixels/15/0"),
        ({"pixels": [*SQUARE[:-1], [True] * 16]}, "#/pixels/15/0"),
        ({"pixels": [[0] * 28] * 28}, "#/pixels"),
        ({"pixels": [[127] * 28] * 28}, "#/pixels"),
        ({"pixels": SQUARE, "size": 16}, "#/size"),
        ({"pixels": SQUARE, "on": ""}, "#/on"),
        ({"pixels": SQUARE, "on": "x" * 129}, "#/on"),
    ],
)
def test_a_drawing_that_is_none_is_refused_with_its_place(asked, drawing, pointer):
    answer = asked.post(PATH, json=drawing)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_body_that_is_too_large_or_no_json_is_refused(asked):
    large = asked.post(PATH, content=b"[" + b"0," * (1 << 20), headers={"Content-Type": "application/json"})
    assert large.status_code == 413
    assert asked.post(PATH, content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    assert asked.post(PATH, content=b"x", headers={"Content-Type": "image/png"}).status_code == 415


def test_another_origin_may_not_ask(asked):
    answer = asked.post(PATH, json={"pixels": SQUARE}, headers={"Origin": "http://elsewhere.example"})
    assert answer.status_code == 403


def test_the_page_says_how_good_the_network_is(asked):
    shown = asked.get("/digits")
    assert shown.status_code == 200
    assert "784-100-100-10" in shown.text
    assert "held-out" in shown.text
    assert "unsafe" not in shown.headers["content-security-policy"]


def test_the_documents_example_is_a_drawing(asked):
    schema = asked.app.openapi()["components"]["schemas"]["Drawing"]
    answer = asked.post(PATH, json=schema["examples"][0])
    assert answer.status_code == 200
    assert answer.json()["digit"] == 7


def test_a_key_that_may_read_is_enough():
    assert wanted_scope("POST", PATH) is Scope.READ
    assert wanted_scope("POST", "/v1/jobs") is Scope.TUNE


def test_the_answer_says_that_numpy_computed_it_here(asked):
    computed = asked.post(PATH, json={"pixels": SQUARE}).json()["computed"]
    assert (computed["on"], computed["layers"], computed["kernels_us"]) == ("api", [], None)
    assert 0 < computed["pass_us"] < 1e3 * computed["total_ms"]


@pytest.fixture
def devices(client):
    """An idle device, one of its model that runs a job, and three that take no work; nobody listens for any."""
    with transaction() as session:
        rows = Rows(session)
        busy = rows.device(H200, uuid="GPU-busy")
        study, problem, _ = rows.study()
        busy.worker = rows.job(problem, busy, study, JobState.RUNNING).worker = "host:1:cuda:1"
        rows.device(H200, uuid="GPU-idle")
        rows.device(H100).state = DeviceState.LOST
        rows.device(CPU).drain_requested_at = func.now()
        rows.device(H200, uuid="GPU-silent").heartbeat_at = func.now() - timedelta(hours=1)
        session.flush()
        session.execute(text("DELETE FROM devices WHERE uuid = 'GPU-nvidia-h200'"))
    return client


def test_the_places_are_the_devices_that_take_work(devices):
    found = devices.get(f"{PATH}/places").json()["items"]
    assert [(place["on"], place["measuring"]) for place in found] == [("GPU-busy", True), ("GPU-idle", False)]
    assert (found[1]["device_model"], found[1]["name"], found[1]["host"]) == ("nvidia-h200", "NVIDIA H200", "host")


@pytest.mark.parametrize(
    ("on", "reason"),
    [
        ("GPU-silent", "has no worker that is alive"),
        ("nvidia-h100", "is lost"),
        ("cpu:test", "is drained"),
    ],
)
def test_a_device_that_takes_no_work_is_refused_with_the_reason_and_the_way_out(devices, on, reason):
    answer = devices.post(PATH, json={"pixels": SQUARE, "on": on})
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/device-unavailable")
    assert reason in answer.json()["detail"]
    assert "Set `on` to api." in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) > 0


def test_a_place_that_nobody_knows_is_a_field_to_correct(devices):
    answer = devices.post(PATH, json={"pixels": SQUARE, "on": "GPU-17"})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "#/on"
    assert "GPU-idle" in error["detail"]
    assert "GPU-silent" not in error["detail"]


def test_the_idle_device_of_a_model_is_asked_and_named_if_it_does_not_answer_in_time(devices, monkeypatch):
    monkeypatch.setattr(digit_post, "WITHIN_S", 0.1)
    answer = devices.post(PATH, json={"pixels": SQUARE, "on": "nvidia-h200"})
    assert (answer.status_code, answer.json()["type"]) == (504, "/problems/no-answer")
    assert "GPU-idle" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "1"


def test_without_a_database_it_still_computes_here(asked):
    store_session.configure("postgresql://someone:secret@127.0.0.1:9/none")
    try:
        assert asked.post(PATH, json={"pixels": SQUARE}).status_code == 200
        assert asked.get("/digits").status_code == 200
        assert asked.post(PATH, json={"pixels": SQUARE, "on": "GPU-idle"}).status_code == 503
    finally:
        store_session.configure(None)

"""POST /v1/digits: drawings recognised, bad ones refused, readers allowed."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.service.api.access import wanted_scope
from tilewright.service.app import create_app
from tilewright.service.operations.caller import Scope

sys.path.insert(0, str(Path(__file__).parents[2] / "tuner"))
from caller import Caller
from drawn_digits import STROKES, ink

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
    assert "held out" in shown.text
    assert "unsafe" not in shown.headers["content-security-policy"]


def test_the_documents_example_is_a_drawing(asked):
    schema = asked.app.openapi()["components"]["schemas"]["Drawing"]
    answer = asked.post(PATH, json=schema["examples"][0])
    assert answer.status_code == 200
    assert answer.json()["digit"] == 7


def test_a_key_that_may_read_is_enough():
    assert wanted_scope("POST", PATH) is Scope.READ
    assert wanted_scope("POST", "/v1/jobs") is Scope.TUNE

"""The digits application as its author would test it: started by its command, asked by HTTP, on the CPU device."""

import http.client
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn_digits import STROKES, ink

from tilewright.tuner.runtime import best

APP = Path(__file__).parents[2] / "examples" / "digits" / "app.py"


@pytest.fixture(scope="module")
def port():
    started = subprocess.Popen(
        [sys.executable, APP, "--device", "cpu", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield int(re.search(r"http://127\.0\.0\.1:(\d+) ", started.stdout.readline())[1])
    finally:
        started.kill()
        started.communicate()


@pytest.fixture(scope="module")
def app():
    spec = importlib.util.spec_from_file_location("digits_app", APP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pixels(digit):
    return (ink(digit) * 255).astype(int).tolist()


def asked(port, body, path="/digits"):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_every_drawn_digit_is_recognised(port):
    for digit in STROKES:
        status, found = asked(port, {"pixels": pixels(digit)})
        assert (status, found["digit"]) == (200, digit)
        assert sum(found["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert found["computed"].startswith("the CPU device: 4 kernels in ")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"pixels": [[0] * 56] * 56}, "nothing is drawn"),
        ({"pixels": [[255] * 9] * 9}, "56 rows of 56"),
        ({"pixels": [[256] * 56] * 56}, "0 to 255"),
        ({"pixels": [["x"] * 56] * 56}, "could not convert"),
        ({}, "pixels"),
        ([], "list indices"),
    ],
)
def test_what_is_no_drawing_is_refused(port, body, detail):
    status, said = asked(port, body)
    assert status == 422
    assert detail in said["detail"]


def test_the_page_and_nothing_else_is_served(port):
    for path, status in (("/", 200), ("/page.js", 200), ("/app.py", 404), ("/../app.py", 404)):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", path)
        assert connection.getresponse().status == status


def spoiled(value):
    """A launcher whose softmax leaves `value` where probabilities should be."""

    def choose(kernel, **named):
        launch = best(kernel, **named)

        def launched(*arrays, stream=None):
            launch(*arrays, stream=stream)
            arrays[-1][:, 3] = value

        return launched if kernel == "softmax" else launch

    return choose


@pytest.mark.filterwarnings("ignore:no result for")
@pytest.mark.parametrize("value", [np.nan, 0.9])
def test_kernels_that_fail_are_told_and_give_no_digit(app, value):
    recogniser = app.Recogniser(app.find_place("cpu"), spoiled(value))
    with pytest.raises(app.WrongAnswerError, match="from NumPy's"):
        recogniser.recognise(pixels(5))

"""The page of the digits example as a person uses it: strokes of a mouse, a finger, the keys; failures are told."""

import importlib.util
import re
import threading
from pathlib import Path

import pytest
from accessible import serious
from drawn_digits import STROKES
from sampling import EXHAUSTIVE


def draw(tab, digit, *, scale=1.0, shift=(0.0, 0.0)):
    """The strokes with the mouse, several steps a segment as a hand would."""
    box = tab.locator("#drawing").bounding_box()
    for stroke in STROKES[digit]:
        points = [
            (
                box["x"] + box["width"] * ((x - 0.5) * scale + 0.5 + shift[0]),
                box["y"] + box["height"] * ((y - 0.5) * scale + 0.5 + shift[1]),
            )
            for x, y in stroke
        ]
        tab.mouse.move(*points[0])
        tab.mouse.down()
        for x, y in points[1:]:
            tab.mouse.move(x, y, steps=6)
        tab.mouse.up()


pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore:no result for")]

APP = Path(__file__).parents[2] / "examples" / "digits" / "app.py"
NARROW = 390


@pytest.fixture
def open_page(kept_tab, tabs_at):
    spec = importlib.util.spec_from_file_location("digits_app", APP)
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    with app.server(app.Recogniser(app.find_place("cpu")), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with tabs_at(f"http://127.0.0.1:{server.server_port}", kept=kept_tab) as open_tab:
            yield open_tab
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=EXHAUSTIVE)])
def test_digits_drawn_with_the_mouse_are_recognised(open_page, expect, every):
    tab = open_page("/")
    for digit in list(STROKES)[::every]:
        draw(tab, digit)
        # Answers come while the drawing grows: what half of it looks like is not what this is about.
        expect(tab.locator("#answer")).to_have_text(re.compile(rf" {digit}, (over 99\.9|[5-9]\d\.\d) %$"))
        expect(tab.locator("tr.best th")).to_have_text([str(digit)])
        tab.get_by_role("button", name="Clear").click()
        expect(tab.locator("#answer")).to_have_text("Nothing is drawn yet.")
        expect(tab.locator("tr.best")).to_have_count(0)


def test_the_keyboard_draws(open_page, expect):
    tab = open_page("/")
    tab.locator("#drawing").focus()
    tab.keyboard.press("Space")
    for _ in range(18):
        tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Space")
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    tab.keyboard.press("Delete")
    expect(tab.locator("#answer")).to_have_text("Nothing is drawn yet.")


def test_a_failed_drawing_is_told_as_failed_and_leaves_no_earlier_answer(open_page, expect):
    tab = open_page("/")
    draw(tab, 3)
    expect(tab.locator("#answer")).to_contain_text(" 3, ")
    tab.expected = {500}
    tab.route("**/digits", lambda route: route.fulfill(status=500, json={"detail": "the kernels are wrong"}))
    draw(tab, 1)
    expect(tab.locator("#answer")).to_have_text("Failed: the kernels are wrong")
    expect(tab.locator("tr.best")).to_have_count(0)
    expect(tab.locator("#computed")).to_have_text("")
    tab.unroute("**/digits")
    tab.get_by_role("button", name="Clear").click()
    draw(tab, 1)
    expect(tab.locator("#answer")).to_contain_text(" 1, ")


def test_a_digit_that_is_not_recognised_is_not_told_as_one(open_page, expect):
    tab = open_page("/")
    shares = [0.02] * 10
    shares[3], shares[8] = 0.44, 0.4
    answer = {"digit": 3, "probabilities": shares, "computed": "", "cells": [[0] * 8] * 8}
    tab.route("**/digits", lambda route: route.fulfill(json=answer))
    draw(tab, 3)
    expect(tab.locator("#answer")).to_have_text("Not recognised: 3, 44.0 %, or 8, 40.0 %")


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=EXHAUSTIVE), (NARROW, "dark")])
def test_the_page_is_accessible_and_fits(open_page, scheme, width, expect):
    tab = open_page("/", width=width, color_scheme=scheme)
    draw(tab, 3)
    expect(tab.locator("#answer")).to_contain_text(" 3, ")
    expect(tab.locator("html")).to_have_js_property("scrollWidth", width)
    assert serious(tab) == []

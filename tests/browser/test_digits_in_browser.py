"""The drawing page as a person uses it: strokes of a mouse, a finger, the keys; what it says is what was drawn."""

import re

import pytest
from drawn_digits import STROKES
from drawn_strokes import draw
from test_views import NARROW, serious
from waiting import until

from tilewright.service.operations.fleet.fleet import drain_device

pytestmark = pytest.mark.browser


def test_every_digit_drawn_with_the_mouse_is_recognised(open_tab, expect):
    tab = open_tab("/digits")
    for digit in STROKES:
        draw(tab, digit)
        # Answers come while the drawing grows: what half of it looks like is not what this is about.
        expect(tab.locator("#answer")).to_have_text(re.compile(rf" {digit}, (over 99\.9|[5-9]\d\.\d) %$"))
        expect(tab.locator("tr.best th")).to_have_text([str(digit)])
        assert tab.locator(f"#digit-{digit} meter").evaluate("meter => meter.value") > 0.5
        tab.get_by_role("button", name="Clear").click()
        expect(tab.locator("#answer")).to_have_text("Nothing is drawn yet.")
        expect(tab.locator("tr.best")).to_have_count(0)


def test_a_small_digit_in_a_corner_is_recognised(open_tab, expect):
    tab = open_tab("/digits")
    draw(tab, 5, scale=0.4, shift=(0.25, -0.25))
    expect(tab.locator("#answer")).to_contain_text(" 5, ")


def test_the_answer_changes_while_the_drawing_grows(open_tab, expect):
    tab = open_tab("/digits")
    draw(tab, 1)
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    draw(tab, 6)  # over it
    expect(tab.locator("#answer")).not_to_contain_text(" 1, ")


def test_a_finger_draws_too_and_does_not_scroll_the_page(open_tab, expect):
    tab = open_tab("/digits", width=NARROW, has_touch=True)
    tab.locator("#drawing").scroll_into_view_if_needed()
    box = tab.locator("#drawing").bounding_box()
    session = tab.context.new_cdp_session(tab)
    for kind, y in [("touchStart", 0.15), *(("touchMove", 0.15 + step / 20) for step in range(14)), ("touchEnd", None)]:
        points = [] if y is None else [{"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] * y}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    assert tab.locator("#drawing").bounding_box() == box


def test_the_keyboard_draws_and_says_so(open_tab, expect):
    tab = open_tab("/digits")
    tab.locator("#drawing").focus()
    tab.keyboard.press("Space")
    expect(tab.locator("#pen")).to_have_text("Pen down")
    for _ in range(18):
        tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Space")
    expect(tab.locator("#pen")).to_have_text("Pen up")
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    tab.keyboard.press("ArrowRight")  # with the pen up: nothing is drawn
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    tab.keyboard.press("Delete")
    expect(tab.locator("#pen")).to_have_text("Cleared")
    expect(tab.locator("#answer")).to_have_text("Nothing is drawn yet.")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "clear"


def test_a_server_that_does_not_answer_is_said_and_the_next_stroke_asks_again(open_tab, expect):
    tab = open_tab("/digits")
    tab.expected = {503}
    tab.route("**/v1/digits", lambda route: route.fulfill(status=503, json={"detail": "Later."}))
    draw(tab, 1)
    expect(tab.locator("#answer")).to_have_text("No answer: Later.")
    tab.unroute("**/v1/digits")
    draw(tab, 1)
    expect(tab.locator("#answer")).to_contain_text(" 1, ")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (NARROW, "dark")])
def test_the_page_is_accessible_fits_and_asks_no_other_host(open_tab, address, scheme, width, expect):
    tab = open_tab("/digits", width=width, color_scheme=scheme)
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.reload()
    assert serious(tab) == []
    draw(tab, 3)
    expect(tab.locator("#answer")).to_contain_text(" 3, ")
    expect(tab.locator("html")).to_have_js_property("scrollWidth", width)
    assert serious(tab) == []
    assert asked
    assert all(url.startswith(address) for url in asked)


@pytest.fixture
def working(configured, fleet):
    """A worker of the CPU device, on the application's own database; its device's UUID."""
    fleet.start_worker()
    return fleet.wait_for_device()


def test_a_device_is_chosen_and_answers_while_the_drawing_grows(open_tab, working, expect):
    tab = open_tab("/digits")
    tab.expected = {503, 504}  # while it prepares the network
    place = tab.get_by_label("Computed by")
    expect(place.locator("option")).to_have_count(2)
    place.select_option(working)
    draw(tab, 3)
    expect(tab.locator("#where")).to_contain_text("cpu:")
    expect(tab.locator("#answer")).to_contain_text(" 3, ")
    expect(tab.locator("#layers li")).to_have_count(4)
    expect(tab.locator("#layers")).to_contain_text("linear m=1 n=100 k=784: ")
    asked = []
    tab.on("request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None)
    draw(tab, 6)  # over it, no answer is waited for
    expect(tab.locator("#answer")).not_to_contain_text(" 3, ")
    until(lambda: tab.evaluate("1") and len(asked) > 1)  # requests are told of during calls
    assert {question["on"] for question in asked} == {working}

    expect(tab).to_have_url(re.compile(f"on={working}"))  # the page can be shared, and comes back as it was
    tab.reload()
    expect(place).to_have_value(working)
    draw(tab, 1)
    expect(tab.locator("#where")).to_contain_text("cpu:")
    assert serious(tab) == []
    expect(tab.locator("html")).to_have_js_property("scrollWidth", 1280)
    place.select_option("api")  # asks again by itself
    expect(tab.locator("#where")).to_contain_text("NumPy")
    expect(tab.locator("#layers li")).to_have_count(0)
    expect(tab).not_to_have_url(re.compile("on="))


def test_a_device_that_is_gone_leaves_the_list_and_the_server_answers(open_tab, working, fleet, expect):
    tab = open_tab(f"/digits?on={working}")
    tab.expected = {503, 504}
    place = tab.get_by_label("Computed by")
    expect(place).to_have_value(working)
    with fleet.session() as session:
        drain_device(session, working)
    draw(tab, 1)
    expect(tab.locator("#answer")).to_contain_text("drained")
    expect(place.locator("option")).to_have_count(1)  # it looks every ten seconds
    expect(tab.locator("#answer")).to_contain_text(" 1, ")
    expect(tab.locator("#where")).to_contain_text("NumPy")

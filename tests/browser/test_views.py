"""The views on measurements that were really made: opened, used, and judged by what a person would see."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from accessible import serious

from tilewright.service.dashboard.words import TIMES

pytestmark = pytest.mark.browser

NARROW = 390
SHAPE = "shape=m%3D1024,n%3D1024,k%3D1024"
COMPARED = "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200"


@pytest.fixture
def paths(site):
    return [
        "/?kernel=gemm",
        "/results",
        f"/studies/{site.on_cpu}",
        f"/studies/{site.imported}",
        f"/studies/{site.on_cpu}/trials/0",
        "/device-models/nvidia-h200",
        COMPARED,
        f"/history?kernel=gemm&{SHAPE}",
        f"/ask?kernel=gemm&device_model=nvidia-h200&{SHAPE}",
        "/kernels/gemm",
        "/sign-in",
    ]


def test_every_view_is_accessible_in_both_schemes_and_fits_a_phone(visit, paths, expect):
    """No serious violation of WCAG 2.2 A and AA by axe-core, and no canvas missing."""
    tab = visit("/kernels")
    for path in paths:
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.emulate_media(color_scheme="light")
        tab.goto(path)
        tab.wait_for_load_state("networkidle")
        assert tab.locator("h1").count() == 1, path
        for plot in tab.locator(".plot").all():
            assert plot.locator("canvas").count() >= 1, path
        assert serious(tab) == [], path
        tab.emulate_media(color_scheme="dark")
        assert serious(tab) == [], f"{path}, dark"
        tab.set_viewport_size({"width": NARROW, "height": 900})
        # Charts follow the window a moment later. No waiting inside the page: its policy forbids a script's eval.
        expect(tab.locator("html")).to_have_js_property("scrollWidth", NARROW)
        assert serious(tab) == [], f"{path}, on a phone"


def test_matrix_is_filtered_by_its_form_and_a_cell_leads_to_source_and_flags(visit, expect):
    tab = visit("/?kernel=gemm")
    tab.locator("select[name=family]").select_option("square")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"family=square"))
    expect(tab.locator(".group")).to_have_count(1)
    cell = tab.get_by_role("row", name=re.compile("m=2048")).locator(".cell", has=tab.locator(".figure")).first
    expect(cell).to_contain_text("of the roof")
    expect(cell).to_contain_text(re.compile(rf"[▲▼=] {TIMES}\d"))
    cell.locator(".figure").click()
    tab.wait_for_url(re.compile(r"/studies/\d+$"))
    tab.locator("#trials tbody th a").first.click()
    tab.wait_for_url(re.compile(r"/trials/\d+$"))
    expect(tab.get_by_role("heading", name="Compiler flags")).to_be_visible()
    expect(tab.locator("pre", has_text=re.compile("^-D[A-Z]"))).to_be_visible()
    expect(tab.locator("pre", has_text="tilewright tune gemm")).to_be_visible()
    expect(tab.get_by_role("heading", name="Compiler log")).to_be_visible()
    expect(tab.locator("#source pre")).not_to_be_empty()


def test_colours_of_the_matrix_follow_what_is_chosen_and_the_address_keeps_it(visit, expect):
    tab = visit("/?kernel=gemm&family=square")
    tab.get_by_label("Colour").select_option("roof")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"colour=roof"))
    expect(tab.locator(".legend")).to_contain_text("% of the roof")
    tab.reload()
    expect(tab.get_by_label("Colour")).to_have_value("roof")


def test_brushing_an_axis_selects_trials_and_stands_in_the_address(visit, site, expect):
    tab = visit(f"/studies/{site.on_cpu}")
    before = tab.locator("#trials p").first.inner_text()
    drag_last_axis(tab)
    tab.wait_for_url(re.compile(r"select=time"))
    expect(tab.locator("#trials p").first).not_to_have_text(before)
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    chosen = tab.locator("#trials p").first.inner_text()
    tab.reload()
    expect(tab.locator("#trials p").first).to_have_text(chosen)
    tab.get_by_role("link", name="Clear the selection").click()
    expect(tab.locator("#trials p").first).to_have_text(before)


def drag_last_axis(tab):
    """Drags along the upper half of the axis of times."""
    plot = tab.locator("#parallel .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    x, top, bottom = box["x"] + box["width"] - 128, box["y"] + 40, box["y"] + box["height"] - 28
    tab.mouse.move(x, (top + bottom) / 2)
    tab.mouse.down()
    tab.mouse.move(x, top + 20, steps=5)
    tab.mouse.move(x, top + 4, steps=5)
    tab.mouse.up()


def test_selection_works_without_scripts(visit, site, expect):
    tab = visit(f"/studies/{site.on_cpu}", java_script_enabled=False)
    tab.get_by_label("Only with").fill("TILE_K=16..32")
    tab.get_by_label("Order").select_option("newest")
    tab.locator("form", has=tab.get_by_label("Only with")).get_by_role("button").click()
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    said = tab.locator("#trials tbody code").all_inner_texts()
    assert said
    assert all(re.search(r"TILE_K=(16|32)\b", text) for text in said)


def test_heat_map_and_slice_follow_their_form(visit, site, expect):
    tab = visit(f"/studies/{site.on_cpu}")
    tab.get_by_label("Slice by").select_option("TILE_K")
    tab.get_by_role("button", name="Draw").click()
    tab.wait_for_url(re.compile(r"slice=TILE_K"))
    expect(tab.locator("#slice figcaption")).to_contain_text("Time by TILE_K")


def test_an_imported_study_says_where_it_is_from_and_marks_its_failures(visit, site, expect):
    tab = visit(f"/studies/{site.imported}")
    expect(tab.locator("#summary")).to_contain_text("imported from benchmark_hub")
    expect(tab.locator(".outcomes")).to_contain_text("6 compile failed")
    tab.get_by_label("Order").select_option("newest")
    tab.locator("form", has=tab.get_by_label("Order")).get_by_role("button").click()
    expect(tab.locator("#trials tbody tr")).to_have_count(50)


def test_two_times_are_compared_with_mean_and_counts_and_the_address_says_all(visit, expect):
    tab = visit("/compare")
    expect(tab.get_by_text("Choose a device model for A and for B")).to_be_visible()
    a, b = (tab.get_by_role("group", name=re.compile(f"^{name}")) for name in "AB")
    tab.get_by_label("Kernel").select_option("gemm")
    a.get_by_label("Device model").select_option("nvidia-h200")
    b.get_by_label("Device model").select_option("nvidia-h200")
    a.get_by_label("As of").fill(superseded_until(tab))
    tab.get_by_role("button", name="Compare").click()
    tab.wait_for_url(re.compile(r"a_at="))
    said = parse_qs(urlsplit(tab.url).query)
    assert (said["kernel"], said["a"], said["b"]) == (["gemm"], ["nvidia-h200"], ["nvidia-h200"])
    expect(tab.locator(".figure")).to_have_text(re.compile(rf"{TIMES}\d+\.\d\d"))
    counts = dict(reversed(re.findall(r"(\d+) ([a-z]+.*)", tab.locator(".outcomes").inner_text())[i]) for i in range(5))
    rows = tab.locator("tbody tr")
    for verdict in ("better", "same", "worse", "missing in A"):
        expect(rows.filter(has=tab.locator(".state", has_text=verdict))).to_have_count(int(counts[verdict]))
    shown = tab.locator(".outcomes").inner_text()
    tab.reload()
    expect(tab.locator(".outcomes")).to_have_text(re.compile(re.escape(shown.split("\n")[0].split()[-1])))
    expect(a.get_by_label("As of")).not_to_have_value("")
    rows.first.get_by_role("link").first.click()
    tab.wait_for_url(re.compile(r"/history\?"))


def superseded_until(tab):
    """The minute before the newest of two results of one problem was settled, as the form wants it."""
    history = tab.request.get(f"/v1/kernels/gemm/history?{SHAPE}").json()["items"]
    return max(entry["verified_at"] for entry in history)[:16]


def test_two_environments_are_compared(visit, expect):
    tab = visit("/compare?kernel=gemm")
    a, b = (tab.get_by_role("group", name=re.compile(f"^{name}")) for name in "AB")
    compilers = a.get_by_label("Environment").locator("option")
    by_compiler = {name: compilers.filter(has_text=name).first.get_attribute("value") for name in ("nvrtc", "pycuda")}
    for side, compiler in ((a, "pycuda"), (b, "nvrtc")):
        side.get_by_label("Device model").select_option("nvidia-h200")
        side.get_by_label("Environment").select_option(by_compiler[compiler])
    tab.get_by_role("button", name="Compare").click()
    expect(tab.locator(".facts")).to_contain_text("1 problem that both sides have")
    expect(a.get_by_label("Environment")).to_have_value(by_compiler["pycuda"])


def test_history_shows_every_winner_and_leads_on(visit, expect):
    tab = visit(f"/history?kernel=gemm&{SHAPE}")
    rows = tab.locator("tbody tr")
    assert rows.count() >= 3
    expect(rows.filter(has_text="current").first).to_be_visible()
    expect(rows.last).to_contain_text("first")
    expect(tab.locator("#history canvas")).to_have_count(1)
    rows.first.locator("td.n a").click()
    tab.wait_for_url(re.compile(r"/studies/\d+/trials/\d+"))


def test_an_untuned_shape_is_answered_and_says_so(visit, expect):
    tab = visit("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D1152,n%3D1024,k%3D1024")
    expect(tab.locator(".match")).to_contain_text(re.compile("Predicted|Nearest"))
    expect(tab.locator("pre", has_text="tilewright tune gemm")).to_be_visible()


def test_the_keyboard_alone_leads_from_the_matrix_to_a_trial_and_compares(visit, expect):
    tab = visit("/?kernel=gemm&family=square")
    tab_to(tab, ".cell .figure")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/studies/\d+$"))
    tab_to(tab, "#trials tbody th a")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/trials/\d+$"))
    tab.goto("/compare?kernel=gemm")
    for side in ("a", "b"):
        tab_to(tab, f"select[name={side}]")
        tab.keyboard.type("NVIDIA H")
    tab_to(tab, "main button:not(.copyable button)")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"a=nvidia-h200"))
    expect(tab.locator(".outcomes")).to_contain_text("0 worse")


def tab_to(tab, selector, most=120):
    """Presses Tab until the element has the focus; on the way every focus must be seen."""
    for _ in range(most):
        tab.keyboard.press("Tab")
        width = tab.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 2
        if tab.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")

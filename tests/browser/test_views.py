"""The views on measurements that were really made: opened, used, and judged by what a person would see."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from accessible import serious
from sampling import turn
from waiting import until

from tilewright.service.dashboard.formatting import TIMES

pytestmark = pytest.mark.browser

NARROW = 390
SHAPE = "shape=m%3D1024,n%3D1024,k%3D1024"
COMPARED = "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200"


@pytest.fixture
def paths(site):
    return [
        "/?kernel=gemm",
        "/?kernel=gemm&device_model=nvidia-h200&order=ratio",
        "/attention",
        "/results",
        f"/studies/{site.on_cpu}",
        f"/studies/{site.imported}",
        f"/studies/{site.on_cpu}/trials/0",
        "/device-models/nvidia-h200",
        f"{COMPARED}&a_at=2026-11-22T00:00&show=all",
        "/history",
        "/views?address=/jobs",
        "/access",
        f"/kernels/gemm/problem?{SHAPE}",
        f"/ask?kernel=gemm&device_model=nvidia-h200&{SHAPE}",
        "/kernels/gemm",
        "/sign-in",
    ]


@pytest.mark.parametrize(
    ("on_desktop", "on_phone", "every"),
    [
        ("light", "dark", 4),
        pytest.param("light", "dark", 1, marks=pytest.mark.exhaustive),
        pytest.param("dark", "light", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_every_view_is_accessible_and_fits_a_phone(visit, paths, expect, on_desktop, on_phone, every):
    """No serious violation of WCAG 2.2 A and AA by axe-core, on both or in turn, and no canvas missing.

    A commit opens every second view.
    """
    tab, (first, step) = visit("/kernels"), turn(2 if every > 1 else 1, "views")
    for place, path in enumerate(paths[first::step]):
        tab.set_viewport_size({"width": 1280, "height": 900})
        tab.emulate_media(color_scheme=on_desktop)
        tab.goto(path)
        tab.wait_for_load_state("networkidle")
        assert tab.locator("h1").count() == 1, path
        for plot in tab.locator(".plot").all():
            expect(plot.locator("canvas").first).to_be_attached()  # those out of view are drawn last
        assert place % every or serious(tab) == [], path
        tab.emulate_media(color_scheme=on_phone)
        tab.set_viewport_size({"width": NARROW, "height": 900})
        # Charts follow the window a moment later. No waiting inside the page: its policy forbids a script's eval.
        expect(tab.locator("html")).to_have_js_property("scrollWidth", NARROW)
        assert (place + 1) % every or serious(tab) == [], f"{path}, on a phone"


def test_matrix_is_filtered_by_its_form_and_a_cell_leads_to_source_and_flags(visit, expect):
    tab = visit("/?kernel=gemm")
    tab.get_by_text("More filters").click()
    tab.locator("select[name=family]").select_option("square")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"family=square"))
    expect(tab.locator(".matrix tbody th a:not([title^=square])")).to_have_count(0)
    row = tab.get_by_role("row", name=re.compile(rf"2048 {TIMES} 2048 {TIMES} 2048"))
    cell = row.locator(".cell", has=tab.locator(".figure")).first
    expect(cell.locator("a").first).to_have_attribute("title", re.compile("of the roof"))
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
    tab = visit("/?kernel=gemm&family=square")  # a filter that is set is not folded
    tab.get_by_label("Colour").select_option("roof")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"colour=roof"))
    expect(tab.locator(".legend")).to_contain_text("% of the roof")
    tab.reload()
    expect(tab.get_by_label("Colour")).to_have_value("roof")


def test_header_and_shapes_stay_in_view_while_the_matrix_is_scrolled(visit):
    tab = visit("/?kernel=gemm", width=800)
    tab.evaluate("document.querySelector('.matrix-box').scrollTo(150, 300)")
    until(lambda: tab.evaluate(INSETS) == [1, 1, 1])


INSETS = """() => {
  const place = (selector) => document.querySelectorAll(selector).item(selector.includes("tbody") ? 20 : 0)
    .getBoundingClientRect();
  const [box, corner, shape] = [".matrix-box", ".matrix thead th", ".matrix tbody th"].map(place);
  return [corner.x - box.x, corner.y - box.y, shape.x - box.x];
}"""


def test_the_search_leads_to_the_shape_and_a_wrong_word_says_what_it_takes(visit, expect):
    tab = visit("/?kernel=softmax")
    tab.get_by_label("Search").fill("gemm 1024x1024x1024 h200")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile("shape=1024x1024x1024"))
    expect(tab.locator(".matrix tbody th a").first).to_have_text(f"1024 {TIMES} 1024 {TIMES} 1024")
    tab.expected.add(422)
    tab.get_by_label("Search").fill("gemm-of-nobody")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("was not found. Search for kernels")
    expect(tab.get_by_label("Search")).to_have_value("gemm-of-nobody")


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
    plot.locator("canvas").first.wait_for()
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
    tab.get_by_role("link", name="Trial", exact=True).click()  # newest first
    tab.get_by_label("Only with").fill("TILE_K=16..32")
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


def test_another_order_keeps_the_brush(visit, site, expect):
    tab = visit(f"/studies/{site.on_cpu}")
    drag_last_axis(tab)
    tab.wait_for_url(re.compile(r"select=time"))
    expect(tab.get_by_label("Only with")).to_have_value(re.compile("time="))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    chosen = tab.locator("#trials p").first.inner_text()
    tab.locator("#trials thead").get_by_role("link", name="Registers").click()
    tab.wait_for_url(re.compile(r"sort=registers"))
    expect(tab.locator("#trials p").first).to_have_text(chosen)
    tab.get_by_label("Heat map across").select_option("TILE_N")
    tab.get_by_role("button", name="Draw").click()
    tab.wait_for_url(re.compile(r"across=TILE_N"))
    expect(tab.locator("#trials p").first).to_have_text(chosen)
    assert "sort=registers" in tab.url


def test_any_two_columns_are_drawn_against_each_other_and_the_address_keeps_them(visit, site, expect):
    tab = visit(f"/studies/{site.imported}")
    tab.get_by_label("Horizontal").select_option("compile_ms")
    tab.wait_for_url(re.compile("x=compile_ms"))
    tab.locator("select[name=colour]").select_option("block_size_x")
    tab.wait_for_url(re.compile("colour=block_size_x"))
    tab.get_by_role("group", name="Any two").get_by_role("button", name="Table").click()
    table = tab.get_by_role("region", name="Any two")
    expect(table.locator("thead")).to_contain_text("time to compile, ms")
    measured = tab.request.get(f"/v1/studies/{site.imported}").json()["outcomes"]["measured"]
    expect(table.locator("tbody tr")).to_have_count(min(measured, 200))
    tab.reload()
    expect(tab.get_by_label("Horizontal")).to_have_value("compile_ms")


def test_an_axis_chosen_before_the_drawing_library_came_is_drawn_when_it_has(visit, site, expect):
    tab, held = visit("/"), []
    tab.route(re.compile("/echarts.min.js"), lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    tab.goto(f"/studies/{site.imported}", wait_until="domcontentloaded")
    with tab.expect_response(re.compile("/columns")):
        tab.get_by_label("Horizontal").select_option("compile_ms")
    expect(tab.locator("canvas")).to_have_count(0)
    for route in held:
        route.continue_()
    tab.get_by_role("group", name="Any two").get_by_role("button", name="Table").click()
    expect(tab.get_by_role("region", name="Any two").locator("thead")).to_contain_text("time to compile, ms")


def test_a_chart_is_zoomed_selected_from_read_as_a_table_and_downloaded(visit, site, expect):
    tab = visit(f"/studies/{site.on_cpu}")
    tools = tab.get_by_role("group", name="Best so far, over trials")
    expect(tools).to_be_visible()
    plot = tab.locator("#best-by-trial .plot")
    tools.get_by_role("button", name="Zoom").click()
    drag_across(tab, plot)
    until(lambda: zoomed(tab) == [True, True])
    tools.get_by_role("button", name="Reset").click()
    until(lambda: zoomed(tab) == [False, False])
    tools.get_by_role("button", name="Select").click()
    drag_across(tab, plot)
    tab.wait_for_url(re.compile(r"select=trial.*time"))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    tools.get_by_role("button", name="Table").click()
    rows = tab.get_by_role("region", name="Best so far, over trials").locator("tbody tr")
    expect(rows.first).to_contain_text("trials")
    expect(rows.nth(40)).to_be_attached()
    for kind, starts in (("CSV", b"series,trial"), ("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with tab.expect_download() as saved:
            tools.get_by_role("button", name=kind).click()
        assert saved.value.suggested_filename == f"best-by-trial.{kind.lower()}"
        assert saved.value.path().read_bytes().startswith(starts)


def drag_across(tab, plot):
    """Drags a rectangle over the middle of the plot."""
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.35)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5, steps=5)
    tab.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.8, steps=5)
    tab.mouse.up()


def zoomed(tab):
    """Of x and y: whether only a part is in view."""
    ends = """() => echarts.getInstanceByDom(document.querySelector("#best-by-trial .plot")).getOption().dataZoom
      .filter((zoom) => zoom.type === "inside").map((zoom) => zoom.end - zoom.start < 99)"""
    return tab.evaluate(ends)


def test_an_imported_study_says_where_it_is_from_and_marks_its_failures(visit, site, expect):
    tab = visit(f"/studies/{site.imported}")
    expect(tab.locator("#summary")).to_contain_text("imported from benchmark_hub")
    expect(tab.locator(".outcomes")).to_contain_text("6 compile failed")
    tab.get_by_role("link", name="Trial", exact=True).click()
    expect(tab.get_by_role("columnheader", name="Trial")).to_have_attribute("aria-sort", "descending")
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
    expect(tab.locator("#missing-in-a li")).to_have_count(int(counts["missing in A"]))
    tab.get_by_role("link", name="everything that both have").click()
    expect(a.get_by_label("As of")).not_to_have_value("")
    with tab.expect_download() as saved:
        tab.get_by_role("group", name="Speed of B relative to A").get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    rows = tab.locator("tbody tr")
    for verdict in ("better", "same", "worse"):
        expect(rows.filter(has=tab.locator(".state", has_text=verdict))).to_have_count(int(counts[verdict]))
    shown = tab.locator(".outcomes").inner_text()
    tab.reload()
    expect(tab.locator(".outcomes")).to_have_text(re.compile(re.escape(shown.split("\n")[0].split()[-1])))
    expect(a.get_by_label("As of")).not_to_have_value("")
    rows.first.get_by_role("link").first.click()
    tab.wait_for_url(re.compile(r"/kernels/gemm/problem\?"))


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
    expect(tab.locator("main")).to_contain_text("1 problem that both sides have")
    expect(a.get_by_label("Environment")).to_have_value(by_compiler["pycuda"])


def test_history_shows_every_winner_and_leads_on(visit, expect):
    tab = visit(f"/kernels/gemm/problem?{SHAPE}")
    rows = tab.locator("#published tbody tr")
    assert rows.count() >= 3
    expect(rows.filter(has_text="current").first).to_be_visible()
    expect(rows.last).to_contain_text("first")
    expect(tab.locator("#history canvas")).to_have_count(1)
    rows.first.locator("td.n a").click()
    tab.wait_for_url(re.compile(r"/studies/\d+/trials/\d+"))


@pytest.mark.in_turn(3)
def test_an_untuned_shape_is_answered_and_says_so(visit, expect):
    tab = visit("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D1152,n%3D1024,k%3D1024")
    expect(tab.locator(".match")).to_contain_text(re.compile("Predicted|Nearest"))
    expect(tab.locator("pre", has_text="tilewright tune gemm")).to_be_visible()


@pytest.mark.in_turn(2)
def test_the_keyboard_alone_leads_from_the_matrix_to_a_trial_and_compares(visit, expect):
    tab = visit("/?kernel=gemm&family=square")
    tab_to(tab, ".cell a")
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

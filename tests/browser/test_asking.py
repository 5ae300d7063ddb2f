"""The form that asks, its answers, and what is copied from them."""

import pytest
from factories import H100, TILED_32

pytestmark = pytest.mark.browser


def test_an_answer_says_how_it_was_found_and_its_programs_are_copied(open_tab, commit, expect):
    commit(lambda rows: rows.best(configuration=TILED_32))
    tab = open_tab("/ask", permissions=["clipboard-read", "clipboard-write"])
    tab.get_by_label("Shape").fill("m=256,n=100,k=784")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.locator(".match")).to_contain_text("Exact")
    expect(tab.locator("pre.source")).to_contain_text("#define TILE_WIDTH 32")
    for kind, begins in (("curl", "curl '"), ("client.best", "from tilewright"), ("mem_alloc", "import numpy")):
        box = tab.locator(".copyable", has_text=kind).first
        if kind == "mem_alloc":
            tab.get_by_text("PyCUDA without the launcher").click()
        box.get_by_role("button").click()
        expect(box.get_by_role("button")).to_have_text("Copied")
        copied = tab.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(begins)
        if kind == "curl":
            assert tab.request.get(copied.split("'")[1]).json()["match"] == "exact"
        else:
            compile(copied, kind, "exec")


def test_another_model_gets_what_is_known_of_this_one_and_a_wrong_question_stays(open_tab, commit, expect):
    commit(lambda rows: [rows.best(configuration=TILED_32), rows.device(H100)])
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.get_by_label("Device model").select_option("nvidia-h100")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.locator(".match")).to_contain_text("Transferred")
    tab.expected = {422}
    tab.get_by_label("Shape").fill("m=0,n=1,k=1")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.get_by_role("alert")).to_contain_text("shape.m")
    expect(tab.get_by_label("Shape")).to_have_value("m=0,n=1,k=1")


def test_text_is_selected_where_the_browser_admits_no_copying(open_tab, commit, expect):
    commit(lambda rows: rows.best(configuration=TILED_32))
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    box = tab.locator(".copyable", has_text="curl").first
    box.get_by_role("button").click()
    expect(box.get_by_role("button")).to_have_text("Selected")
    assert tab.evaluate("getSelection().toString()") == box.locator("code").inner_text()

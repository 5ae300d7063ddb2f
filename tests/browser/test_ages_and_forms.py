"""What the browser keeps true on a page that asks for nothing: ages, and forms after Back."""

import pytest

pytestmark = pytest.mark.browser


def test_an_age_grows_on_a_page_that_has_ended(open_tab, commit, expect):
    job_id = commit(lambda rows: rows.job(*rows.study()[1:]).id)
    tab = open_tab("/kernels")
    tab.clock.install()
    tab.goto(f"/jobs/{job_id}")
    age = tab.locator("time[data-age]").first
    expect(age).to_contain_text("s ago")
    tab.clock.fast_forward("05:00")
    expect(age).to_contain_text("5 min ago")


@pytest.mark.parametrize("path", ["/", "/attention", "/results"])
def test_after_back_a_form_shows_the_filter_that_is_in_force(open_tab, commit, expect, path):
    commit(lambda rows: rows.best())
    tab = open_tab(path)
    chosen = tab.locator("form[method=get] select[name=device_model]").first
    chosen.select_option("nvidia-h200")
    if path == "/attention":  # which shows what was chosen at once
        tab.wait_for_url("**device_model=nvidia-h200*")
        tab.go_back()
    else:
        tab.goto("/fleet")
        tab.go_back()
    expect(tab.locator("h1")).to_be_visible()
    expect(chosen).to_have_value("")

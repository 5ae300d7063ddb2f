"""Tables, looking up and refusals as a person with a browser meets them."""

import re

import pytest
from factories import H100, H200, NEW, OLD, SHAPE

from tilewright.service.store.models import Trial, TuningJob

pytestmark = pytest.mark.browser

PHONE = 390


def test_a_heading_sorts_without_a_new_page_and_the_address_follows(open_tab, commit, expect):
    def jobs(rows):
        for m, gain in ((8, 1.5), (16, 4.0)):
            job = rows.session.get_one(TuningJob, rows.best({"m": m, "n": 8, "k": 8}).job_id)
            job.result = {"best": {"time_ms": 1.0}, "gain_over_default": gain}

    commit(jobs)
    tab = open_tab("/jobs")
    first = tab.locator("#jobs tbody tr").first
    for direction, shape in (("descending", "m=16"), ("ascending", "m=8")):
        tab.get_by_role("link", name="Gain").click()
        expect(tab.get_by_role("columnheader", name="Gain")).to_have_attribute("aria-sort", direction)
        expect(first).to_contain_text(shape)
    expect(tab).to_have_url(re.compile("sort=gain"))
    tab.get_by_role("searchbox", name="Search").fill("16x8x8")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    expect(first).to_contain_text("m=16")


def test_times_are_told_in_the_browsers_zone_beside_utc(open_tab, commit, expect):
    job_id = commit(lambda rows: str(rows.best().job_id))
    tab = open_tab(f"/jobs/{job_id}", timezone_id="Asia/Kolkata")  # whose older name Chromium says
    both = tab.locator("time[data-local]").first
    expect(both).to_contain_text(" UTC · ")
    expect(both).to_contain_text("Asia/Calcutta")
    expect(tab.locator("time[title]").first).to_have_attribute("title", re.compile(r"UTC · .* Asia/Calcutta$"))


def test_the_button_of_looking_up_requests_the_job_and_leads_to_it(open_tab, commit, expect):
    commit(lambda rows: [rows.best(), rows.device(H100)])
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h100&shape=m%3D300,n%3D100,k%3D784")
    tab.get_by_label("Trials").fill("7")
    tab.get_by_role("button", name="Tune", exact=True).click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("gemm m=300,n=100,k=784 float32")
    expect(tab.get_by_text("7 trials")).to_be_visible()
    expect(tab.get_by_role("link", name="nvidia-h100")).to_be_visible()


def test_a_refusal_of_the_button_is_said_beside_it(open_tab, commit, expect):
    commit(lambda rows: rows.best())
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.expected.add(422)
    tab.get_by_label("Trials").fill("0")
    tab.get_by_role("button", name="Tune", exact=True).click()
    expect(tab.get_by_label("Trials")).to_have_attribute("aria-invalid", "true")


def test_a_regression_is_red_in_the_table_and_on_its_history(open_tab, commit, expect):
    commit(lambda rows: [rows.best(SHAPE, 1.0, environment=OLD), rows.best(SHAPE, 1.5, environment=NEW)])
    tab = open_tab("/results")
    mark = tab.locator(".regressed")
    assert mark.evaluate("element => getComputedStyle(element).color") == "rgb(165, 32, 27)"
    mark.click()
    expect(tab.get_by_text("Regressed on nvidia-h200:")).to_be_visible()
    tab.locator("#history canvas").wait_for()


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/jobs/3", 422), ("/v1/jobs/3", 422)])
def test_a_browser_is_shown_a_page_where_something_is_wrong(open_tab, path, status):
    tab = open_tab("/jobs")
    tab.expected.add(status)
    answer = tab.goto(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert tab.get_by_role("navigation", name="Pages").is_visible()
    assert tab.get_by_role("heading", level=1).is_visible()


def test_on_a_phone_a_device_is_chosen_and_then_there_is_a_list(open_tab, commit, expect):
    commit(lambda rows: [rows.best(library_ms=2.0, model=model) for model in (H100, H200)])
    tab = open_tab("/?kernel=gemm", width=PHONE)
    expect(tab.locator(".matrix")).to_be_hidden()
    expect(tab.get_by_text("Choose a device model above")).to_be_visible()
    tab.locator(".strip").get_by_role("link", name="NVIDIA H200", exact=True).click()
    tab.wait_for_url(re.compile("device_model=nvidia-h200"))
    expect(tab.locator(".matrix")).to_be_visible()
    first = tab.locator(".matrix tbody tr").first
    shape, cell = first.locator("th").bounding_box(), first.locator("td").bounding_box()
    assert cell["y"] >= shape["y"] + shape["height"]
    assert cell["height"] < 32  # one line
    expect(tab.locator("html")).to_have_js_property("scrollWidth", PHONE)


def test_a_chart_and_the_table_behind_it_show_times_in_the_unit_that_suits_them(open_tab, commit, expect):
    study_id = commit(lambda rows: rows.session.get_one(Trial, rows.best(time_ms=0.05).trial_id).study_id)
    tab = open_tab(f"/studies/{study_id}")
    tab.get_by_role("group", name="Best so far, over trials").get_by_role("button", name="Table").click()
    table = tab.get_by_role("region", name="Best so far, over trials")
    expect(table.locator("thead")).to_contain_text("time, µs, lower is better")
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("50")

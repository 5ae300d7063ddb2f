"""Schedules, jobs, fleet and demand as a person uses them: every change is made by pressing what is shown."""

import re
from pathlib import Path

import pytest
from factories import CPU, H100, SHAPE, TILED_16
from sampling import EXHAUSTIVE
from sqlalchemy import func

from tilewright.service.operations import registry
from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.requests import WebhookRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.webhooks import webhooks
from tilewright.service.store import models

pytestmark = pytest.mark.browser

NARROW = 390
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PROBLEMS = "linear m=256,n=100,k=784 float32 activation=relu\ngemm m=64,n=64,k=64 trans_b=true"


def asked(rows, shape, times=1, device_model="nvidia-h200"):
    options = {option.name: option.default for option in registry.catalogue().get("gemm").options}
    problem = ProblemAnswer(kernel="gemm", shape=shape, dtype="float32", options=options)
    demand.count(rows.session, {RequestedProblem.of(problem, device_model): times})


def running(rows):
    """A job under way on the H200, with the device that runs it."""
    study, problem, device = rows.study(SHAPE | {"m": 7})
    job = rows.job(problem, device, study, models.JobState.RUNNING, 1)
    rows.trial(study, job, TILED_16, 2.0)
    device.worker = job.worker = "host:17:0"
    return job.id, study.id


def failed(rows):
    study, problem, device = rows.study(SHAPE | {"m": 9})
    job = rows.job(problem, device, study, models.JobState.FAILED)
    job.error, job.finished_at = "Its worker died 5 times in a row.", func.now()
    webhooks.create_webhook(rows.session, WebhookRequest(name="ci", url="https://ci.example/hook"))
    webhooks.announce(rows.session, job.id)
    rows.session.query(models.WebhookDelivery).one().error = "It answered with status 503."
    return job.id


def of_everything(rows):
    """Devices in several states, jobs, a webhook that fails, and demand."""
    failed(rows)
    rows.device(H100)
    rows.device(CPU)
    running(rows)
    asked(rows, SHAPE | {"m": 512}, 12)
    asked(rows, SHAPE | {"n": 33}, 3, "nvidia-h100")


def create(tab, name="nightly layer"):
    tab.goto("/schedules")
    tab.get_by_role("link", name="New schedule").click()
    tab.get_by_label("Name").fill(name)
    tab.get_by_label("When").fill("0 */10 * * * *")
    tab.get_by_label("Time zone").fill("Europe/Berlin")
    tab.get_by_label("Problems").fill(PROBLEMS)
    tab.get_by_role("button", name="Create schedule").click()
    tab.wait_for_url(re.compile(r"/schedules#schedule-\d+"))
    return tab.get_by_role("article", name=name)


def test_schedule_is_created_paused_resumed_run_and_deleted(open_tab, commit, expect):
    commit(lambda rows: rows.device())
    tab = open_tab("/schedules")
    tab.once("dialog", lambda dialog: dialog.accept())
    card = create(tab)
    expect(card.locator(".fires li")).to_have_count(5)
    expect(card).to_contain_text("linear m=256,n=100,k=784 float32 activation=relu")
    expect(card).to_contain_text("gemm m=64,n=64,k=64 float32 trans_b=true")
    expect(card).to_contain_text("50 trials")
    card.get_by_role("button", name="Pause").click()
    expect(card.locator("h2")).to_contain_text("paused")
    expect(tab.locator("#action-result")).to_have_text("Paused nightly layer.")
    expect(card.locator(".fires")).to_have_count(0)
    expect(card.get_by_role("button", name="Resume")).to_be_focused()  # the same button as before
    card.get_by_role("button", name="Resume").click()
    expect(card.locator(".fires li")).to_have_count(5)
    card.get_by_role("button", name="Run now").click()
    expect(card.get_by_role("link", name="gemm m=64,n=64,k=64 float32 trans_b=true")).to_be_visible()
    card.get_by_role("button", name="Delete").click()
    expect(card).to_have_count(0)
    expect(tab.get_by_text("No schedules yet")).to_be_visible()
    expect(tab.locator("#action-result")).to_be_focused()


def test_schedule_is_edited_with_its_due_times_shown_before_it_is_stored(open_tab, commit, expect):
    commit(lambda rows: rows.device())
    tab = open_tab("/schedules")
    create(tab).get_by_role("link", name="Edit").click()
    expect(tab.get_by_label("Problems")).to_have_value(
        re.compile("activation=relu\ngemm m=64,n=64,k=64 float32 trans_b")
    )
    due = tab.locator("#due-times")
    tab.get_by_label("When").fill("0 0 12 25 12 *")
    tab.get_by_label("Time zone").fill("UTC")
    expect(due.locator("li")).to_have_count(5)
    expect(due.locator("li").first).to_contain_text("-12-25 12:00:00 UTC")
    tab.get_by_label("When").fill("0 0 12 30 2 *")
    expect(due).to_contain_text("no date ever matches")
    expect(tab.get_by_label("When")).to_be_focused()
    tab.get_by_label("When").fill("30 0 12 * * *")
    expect(due.locator("li").first).to_contain_text("12:00:30 UTC")
    tab.get_by_label("Tune", exact=True).select_option("stale")
    expect(tab.get_by_label("Problems")).to_be_hidden()
    tab.get_by_label("At most, per due time").fill("7")
    tab.get_by_label("Trials per job").fill("9")
    tab.get_by_label("Enabled").uncheck()
    tab.get_by_role("button", name="Save changes").click()
    tab.wait_for_url(re.compile("/schedules#schedule-"))
    card = tab.get_by_role("article", name="nightly layer")
    expect(card).to_contain_text("30 0 12 * * *")
    expect(card).to_contain_text("all stale results at each due time; 7 at most")
    expect(card).to_contain_text("9 trials")
    expect(card.locator("h2")).to_contain_text("paused")


def test_refused_fields_are_marked_and_what_was_typed_stays(open_tab, commit, expect):
    commit(lambda rows: rows.device())
    tab = open_tab("/schedules/new")
    tab.expected = {422}
    tab.get_by_label("Name").fill("bad")
    tab.get_by_label("When").fill("never")
    tab.get_by_label("Problems").fill("gemm m=1,n=1,k=1")
    tab.get_by_role("button", name="Create schedule").click()
    expect(tab.locator("#error-cron")).to_be_visible()
    expect(tab.get_by_label("When")).to_be_focused()
    expect(tab.get_by_label("When")).to_have_value("never")
    tab.get_by_label("When").fill("0 0 3 * * *")
    tab.get_by_label("Problems").fill("gemm m=1,n=1,k=1\ngemm m=0,n=1,k=1")
    tab.get_by_role("button", name="Create schedule").click()
    expect(tab.locator("#error-problems")).to_contain_text("line 2")
    expect(tab.locator("#error-cron")).to_have_count(0)
    tab.get_by_label("Problems").fill("gemm m=1,n=1,k=1")
    tab.get_by_label("Trials per job").fill("")
    tab.get_by_role("button", name="Create schedule").click()
    expect(tab.locator("#error-trials")).to_be_visible()


def test_name_that_is_taken_is_said_in_the_form(open_tab, commit, expect):
    commit(lambda rows: rows.device())
    tab = open_tab("/schedules")
    tab.expected = {409}
    create(tab)
    tab.goto("/schedules/new")
    tab.get_by_label("Name").fill("nightly layer")
    tab.get_by_label("Problems").fill("gemm m=1,n=1,k=1")
    tab.get_by_role("button", name="Create schedule").click()
    expect(tab.get_by_role("alert")).to_contain_text("another schedule named 'nightly layer'")


def test_device_is_drained_and_resumed_and_its_job_moves(open_tab, commit, expect):
    job_id, _ = commit(running)
    tab = open_tab("/fleet")
    row = tab.locator("tr", has_text="GPU-nvidia-h200")
    expect(row).to_contain_text("at work")
    expect(row.get_by_role("link", name="searching")).to_have_attribute("href", f"/jobs/{job_id}")
    row.get_by_role("button", name="Drain").click()
    expect(tab.locator("#action-result")).to_contain_text("is draining: its job runs to the end")
    expect(row.locator(".state")).to_contain_text("draining")
    commit(lambda rows: setattr(rows.session.get_one(models.TuningJob, job_id), "trials_done", 5))
    expect(row.locator("progress")).to_have_attribute("value", "5")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".state")).to_contain_text("at work")


def test_a_row_of_the_jobs_leads_to_its_problem_and_to_its_job(open_tab, commit, expect):
    job_id = commit(failed)
    tab = open_tab("/jobs")
    tab.locator("#jobs tbody th a").click()
    expect(tab.get_by_role("heading", name="Best on each device model")).to_be_visible()
    tab.goto("/jobs")
    tab.locator("#jobs tbody .state").click()
    tab.wait_for_url(f"**/jobs/{job_id}")
    tab.goto("/jobs")
    tab.get_by_role("button", name="Run again").click()
    expect(tab.locator("#action-result")).to_contain_text("Queued gemm")
    expect(tab.locator("#jobs tbody tr")).to_have_count(2)


def test_errors_lead_to_the_job_and_to_the_message_that_is_sent_again(open_tab, commit, expect):
    job_id = commit(failed)
    tab = open_tab("/fleet")
    tab.get_by_role("link", name="ci").click()
    expect(tab.get_by_text("It answered with status 503.")).to_be_visible()
    tab.get_by_role("button", name="Send again").click()
    expect(tab.locator("#action-result")).to_contain_text("sent again")
    tab.go_back()
    tab.get_by_role("region", name="Failed jobs").get_by_role("link", name="its job").click()
    expect(tab).to_have_url(re.compile(f"/jobs/{job_id}"))
    expect(tab.get_by_text("Its worker died 5 times")).to_be_visible()


def test_what_is_asked_for_is_tuned_from_its_row_and_from_the_top(open_tab, commit, expect):
    def make(rows):
        rows.device()
        rows.device(H100)
        asked(rows, SHAPE, 9)
        asked(rows, SHAPE | {"m": 8}, 3)
        asked(rows, SHAPE | {"m": 8}, 4, "nvidia-h100")

    commit(make)
    tab = open_tab("/demand")
    expect(tab.locator("tbody tr")).to_have_count(3)
    tab.get_by_label("Device model").select_option("nvidia-h200")
    expect(tab.locator("tbody tr")).to_have_count(2)
    expect(tab).to_have_url(re.compile("device_model=nvidia-h200"))
    tab.get_by_label("Trials per job").fill("7")
    tab.get_by_role("button", name="Tune this gemm m=256").click()
    expect(tab.locator("#action-result")).to_contain_text("Queued gemm m=256,n=100,k=784")
    expect(tab.get_by_label("Trials per job")).to_have_value("7")  # a refresh keeps what was typed
    row = tab.locator("tbody tr", has_text="m=256")
    expect(row.get_by_role("link", name="its job")).to_be_visible()
    tab.get_by_label("number of problems").fill("50")
    tab.get_by_role("button", name="Tune the most requested").click()
    expect(tab.locator("#action-result")).to_have_text("1 queued, 1 already open.")
    expect(tab.get_by_role("link", name="its job")).to_have_count(2)
    tab.go_back()
    expect(tab.locator("tbody tr")).to_have_count(3)
    expect(tab.get_by_role("link", name="its job")).to_have_count(2)  # the other device model was not asked for
    with transaction() as session:
        jobs = session.query(models.TuningJob).all()
        assert sorted((job.budget_trials, job.priority) for job in jobs) == [(7, 5), (7, 5)]


def test_jobs_are_filtered_without_a_reload_and_the_address_says_so(open_tab, commit, expect):
    commit(of_everything)
    tab = open_tab("/jobs")
    tab.evaluate("document.body.dataset.same = 'page'")
    expect(tab.locator("#jobs tbody tr")).to_have_count(2)
    tab.get_by_role("link", name="failed", exact=True).click()
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    tab.wait_for_url(re.compile(r"/jobs\?state=failed$"))
    assert tab.evaluate("document.body.dataset.same") == "page"
    expect(tab.get_by_role("link", name="failed", exact=True)).to_have_attribute("aria-current", "true")
    tab.go_back()
    expect(tab.locator("#jobs tbody tr")).to_have_count(2)


def test_an_answer_that_comes_after_another_filter_was_chosen_is_dropped(open_tab, commit, expect):
    commit(of_everything)
    tab = open_tab("/jobs")
    held = []

    def hold(route):  # the refresh of the whole list
        held.append(route)

    tab.route(re.compile(r"/jobs$"), hold)
    tab.evaluate(NOTE_END, "/jobs")
    with tab.expect_request(re.compile(r"/jobs$")):
        tab.evaluate("htmx.trigger('#jobs', 'refresh', {}, false)")
    tab.get_by_role("link", name="failed", exact=True).click()
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    held[0].continue_()
    expect(tab.locator("body")).to_have_attribute("data-ended", "/jobs")
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)


def test_a_refusal_to_cancel_is_said_and_stays(open_tab, commit, expect):
    job_id, _ = commit(running)
    tab = open_tab(f"/jobs/{job_id}")
    tab.expected = {409}
    tab.once("dialog", lambda dialog: dialog.accept())
    refusal = {"title": "Conflict", "status": 409, "detail": "The job is done already; there is nothing to cancel."}
    tab.route("**/cancel", lambda route: route.fulfill(status=409, json=refusal))
    tab.evaluate(NOTE_END, f"/jobs/{job_id}")
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("body")).to_have_attribute("data-ended", f"/jobs/{job_id}")
    expect(tab.locator("#action-result")).to_have_text(refusal["detail"])


def test_refused_budget_stays_marked_and_typed_while_demand_is_refreshed(open_tab, commit, expect):
    tab = open_tab("/demand")
    expect(tab.locator("#each")).to_be_hidden()  # nothing to tune
    commit(of_everything)
    refresh(tab, expect, "/demand")
    expect(tab.locator("#each")).to_be_visible()
    tab.expected = {422}
    tab.get_by_label("Trials per job").fill("-3")
    tab.evaluate(NOTE_END, "/demand")
    tab.get_by_role("button", name="Tune this gemm m=256,n=33").click()
    expect(tab.locator("body")).to_have_attribute("data-ended", "/demand")
    for _ in range(2):
        expect(tab.locator("#error-trials")).to_be_visible()
        expect(tab.get_by_label("Trials per job")).to_have_value("-3")
        refresh(tab, expect, "/demand")
    tab.get_by_label("Trials per job").fill("3")
    tab.get_by_role("button", name="Tune this gemm m=256,n=33").click()
    expect(tab.locator("#action-result")).to_contain_text("Queued gemm m=256,n=33")
    expect(tab.locator("#error-trials")).to_have_count(0)


def test_buttons_that_copy_outlive_a_refresh_and_are_not_there_without_scripts(open_tab, expect):
    tab = open_tab("/demand")
    button = tab.locator("#demand").get_by_role("button", name="Copy")
    expect(button).to_have_count(1)
    button.focus()
    refresh(tab, expect, "/demand")
    expect(button).to_be_focused()
    button.click()
    expect(tab.locator("#demand .copyable button")).to_have_text(re.compile("Copied|Selected"))
    without = open_tab("/demand", java_script_enabled=False)
    expect(without.locator("#demand pre")).to_be_visible()
    expect(without.get_by_role("button", name="Copy")).to_have_count(0)


def refresh(tab, expect, path):
    """What a page's own clock does with the section of that address; returns when its answer is in its place."""
    tab.evaluate(NOTE_END, path)
    tab.evaluate("htmx.trigger('[hx-select][id]:not(form)', 'refresh', {}, false)")
    expect(tab.locator("body")).to_have_attribute("data-ended", path)


NOTE_END = """(path) => {
  delete document.body.dataset.ended;
  document.addEventListener("htmx:finally:request", ({ detail }) => {
    if (detail.ctx.request.action === path) document.body.dataset.ended = path;
  });
}"""


def test_pages_say_when_the_server_no_longer_answers_for_them(open_tab, commit, expect):
    commit(of_everything)
    tab = open_tab("/fleet")
    tab.expected = {503}
    tab.route("**/fleet", lambda route: route.fulfill(status=503, body="<h1>Away</h1>", content_type="text/html"))
    expect(tab.locator("#connection")).to_contain_text("may be out of date")
    expect(tab.locator("tr", has_text="GPU-nvidia-h200")).to_be_visible()
    tab.unroute("**/fleet")
    expect(tab.locator("#connection")).to_be_empty()


PATHS = ("/schedules", "/schedules/new", "/schedules/1/edit", "/jobs", "/fleet", "/demand", "/webhooks/ci")


def filled(tab, commit):
    commit(of_everything)
    create(tab)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=EXHAUSTIVE), (NARROW, "dark")])
def test_pages_are_accessible_and_fit(open_tab, commit, width, scheme):
    tab = open_tab("/schedules", width=width, color_scheme=scheme)
    filled(tab, commit)
    for path in PATHS:
        tab.goto(path)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, path
        tab.evaluate(AXE.read_text(encoding="utf-8"))
        found = tab.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})")
        assert [(v["id"], v["nodes"][0]["html"]) for v in found["violations"]] == [], path


def test_pages_are_read_without_scripts_and_hold_everything(open_tab, commit):
    filled(open_tab("/schedules"), commit)
    tab = open_tab("/fleet", java_script_enabled=False)
    assert "at work" in tab.inner_text("main")
    assert "It answered with status 503." in tab.inner_text("main")
    for path, said in {
        "/schedules": "linear m=256",
        "/demand": "default",
        "/jobs?state=failed": "5 times",
        "/schedules/new?cron=0+0+12+25+12+*": "12-25 12:00:00 UTC",
    }.items():
        tab.goto(path)
        assert said in tab.inner_text("main"), path

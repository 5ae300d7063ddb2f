"""The page of keys, signed-in browsers, imports and changes, and who the header says is there."""

from tilewright.service.operations.caller import Scope
from tilewright.service.store import models


def test_keys_imports_and_changes_are_shown_to_an_admin(commit, as_key):
    def make(rows):
        job = rows.job(*rows.study()[1:])
        job.sampler, job.trials_done = "import", 12
        recorded = models.AuditEntry(actor="key ci", action="POST /v1/jobs", changed={"tuning_jobs": 1})
        rows.session.add(recorded)

    commit(make)
    shown = as_key(Scope.ADMIN, "/access").text
    assert "Queued seconds" in shown
    for words in ("k-admin", "✓ in force", "gemm m=256,n=100,k=784 float32", "POST /v1/jobs", "1 in tuning jobs"):
        assert words in shown, words


def test_others_are_told_which_scope_it_takes(as_key):
    shown = as_key(Scope.TUNE, "/access").text
    assert "with a key of the scope admin" in shown
    assert "in force" not in shown


def test_the_header_says_who_is_signed_in_with_which_scope(as_key, page):
    assert "k-read, scope read" in as_key(Scope.READ, "/jobs").text


def test_without_keys_nobody_is_said_to_be_signed_in(page):
    assert "signed-in" not in page("/jobs")


def test_pages_are_linked_in_five_groups(page):
    shown = page("/jobs").split("<nav")[1].split("</nav>")[0]
    assert shown.count('role="group"') == 5

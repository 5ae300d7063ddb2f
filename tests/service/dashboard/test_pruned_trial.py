"""The page of a trial says so where its single times were pruned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest


@pytest.mark.parametrize("pruned", [False, True])
def test_a_trials_page_says_whether_its_single_times_were_pruned(commit, page, pruned):
    def make(rows):
        trial = rows.trial_of(rows.best())
        if pruned:
            trial.samples_pruned_at = datetime.now(UTC) - timedelta(days=2)
        return trial.study_id, trial.number

    study_id, number = commit(make)
    shown = page(f"/studies/{study_id}/trials/{number}")
    assert ("Single times were deleted" in shown) is pruned

"""Trials that count as not made: interrupted by the surroundings, or to be tried again."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_, select

from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome


def is_given_up() -> ColumnElement[bool]:
    """Whether a trial says nothing about its configuration, which is tried again when a search comes to it."""
    noted = select(models.TrialRetry.trial_id).where(models.TrialRetry.trial_id == models.Trial.id)
    return or_(models.Trial.outcome == Outcome.INTERRUPTED, noted.exists())

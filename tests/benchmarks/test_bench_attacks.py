"""make bench-attacks at a real API, in short: a key that schedules all it can, and one that lies."""

import argparse
import os
from http import HTTPStatus

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def attacks(benchmark_module):
    """The benchmark, which binds processes to cores: this one goes on with those that it had."""
    before = os.sched_getaffinity(0)
    yield benchmark_module("attacks")
    os.sched_setaffinity(0, before)


@pytest.fixture
def cores():
    first, *_, last = [*sorted(os.sched_getaffinity(0))] * 2
    return first, last


@pytest.mark.parametrize("is_lifted", [False, True], ids=["quotas", "no quotas"])
def test_a_key_that_schedules_all_it_can_delays_no_other_and_is_stopped(attacks, cores, is_lifted):
    with attacks.host() as at:
        row = attacks.stopped(at, "schedules", 8, cores, is_lifted=is_lifted)
    assert attacks.is_met(row), row
    assert row["attacker"]["201"] > 50, "it was an attack"
    assert row["honest_fires"] >= 5


def test_a_key_that_lies_about_results_changes_no_answer(attacks, cores):
    with attacks.host() as at:
        (row,) = attacks.measure(at, ["lies"], cores, argparse.Namespace(runs=1, seconds=4))
    assert row["answers_changed"] == 0
    said = {HTTPStatus(int(status)) for status in row["attacked"]["attacker"]}
    assert said <= {
        HTTPStatus.ACCEPTED,  # a claim: a worker will look
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }, said

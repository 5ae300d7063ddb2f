from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.schedules.due_times import DueTimes

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(cron: str, zone: str, after: str, count: int) -> list[str]:
    times = DueTimes.of(cron, zone)
    return [f"{t:%m-%d %H:%M:%S}" for t in times.next_times(times.after(at(after)), count)]


def test_six_fields_begin_with_the_second():
    assert due("15 30 2 * * *", "UTC", "2026-11-21 00:00", 2) == ["11-21 02:30:15", "11-22 02:30:15"]
    assert due("* * * * * *", "UTC", "2026-11-21 00:00:58.5", 3) == [
        "11-21 00:00:59",
        "11-21 00:01:00",
        "11-21 00:01:01",
    ]
    assert due("0 0 9 * * mon-fri", "UTC", "2026-11-20 10:00", 1) == ["11-23 09:00:00"]


def test_a_due_time_is_later_than_the_moment_asked_about():
    assert due("0 * * * * *", "UTC", "2026-11-21 00:01:00", 1) == ["11-21 00:02:00"]


def test_fields_are_read_in_the_time_zone():
    assert due("0 0 12 * * *", BERLIN, "2026-11-21 00:00", 1) == ["11-21 11:00:00"]
    assert due("0 0 12 * * *", "Asia/Kathmandu", "2026-11-21 00:00", 1) == ["11-21 06:15:00"]


def test_what_falls_into_the_hour_left_out_in_spring_is_due_once_when_it_is_over():
    # 28 March 2027, 02:00 CET becomes 03:00 CEST, which is 01:00 UTC.
    assert due("0 30 2 * * *", BERLIN, "2027-03-27 12:00", 2) == ["03-28 01:00:00", "03-29 00:30:00"]
    assert due("0 15 2 * * *", NEW_YORK, "2027-03-13 12:00", 2) == ["03-14 07:00:00", "03-15 06:15:00"]


def test_every_twenty_minutes_goes_on_evenly_over_both_changes():
    for start in ("2027-03-27 23:50", "2026-10-24 23:50"):
        times = DueTimes.of("0 */20 * * * *", BERLIN).next_times(at(start) + timedelta(minutes=10), 12)
        assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=20)}


def test_the_hour_that_autumn_repeats_counts_once_for_named_hours():
    # 25 October 2026, 03:00 CEST becomes 02:00 CET: 02:30 is shown at 00:30 UTC and at 01:30 UTC.
    assert due("0 30 2 * * *", BERLIN, "2026-10-24 12:00", 2) == ["10-25 00:30:00", "10-26 01:30:00"]
    assert due("0 30 2 * * *", BERLIN, "2026-10-25 00:30", 1) == ["10-26 01:30:00"]
    assert due("0 30 1 * * *", NEW_YORK, "2026-10-31 12:00", 2) == ["11-01 05:30:00", "11-02 06:30:00"]


def test_the_hour_that_autumn_repeats_counts_twice_for_every_hour():
    expected = ["10-25 00:00:00", "10-25 01:00:00", "10-25 02:00:00"]
    assert due("0 0 * * * *", BERLIN, "2026-10-24 23:00", 3) == expected


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, "Africa/Cairo", "America/Santiago", "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["0 0 0 * * *", "0 30 0-4 * * *", "*/30 59 1,2 * * *", "0 0 */6 * * *"])
@pytest.mark.parametrize("start", ["2026-09-01", "2026-10-20", "2027-03-10", "2027-04-22"])
def test_due_times_only_grow_and_asking_again_continues_the_same_row(zone, cron, start):
    times = DueTimes.of(cron, zone)
    row = times.next_times(times.after(at(start)), 100)
    assert all(before < after for before, after in pairwise(row))
    stepped = [row[0]]
    while len(stepped) < 100:
        stepped.append(times.after(stepped[-1]))
    assert stepped == row


def test_a_leap_day_comes():
    assert DueTimes.of("0 0 0 29 2 *", "UTC").after(at("2026-11-21")) == at("2028-02-29")


def test_five_fields_are_those_of_cron_itself():
    """At the full minute; what is kept has six."""
    times = DueTimes.of("30 2 * * mon", "UTC")
    assert times == DueTimes.of("0 30 2 * * mon", "UTC")
    assert times.cron == "0 30 2 * * mon"


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "five fields"),
        ("* * * *", "five fields (minute hour day month weekday), or six with the second first, not 4"),
        ("0 0 0 1 1 * 2027", "not 7"),
        ("@daily", "five fields"),
        ("60 * * * * *", "60 is not a valid second; seconds go from 0 to 59."),
        ("0 61 * * * *", "61 is not a valid minute; minutes go from 0 to 59."),
        ("0 0 24 * * *", "24 is not a valid hour; hours go from 0 to 23."),
        ("0 0 0 1-32 * *", "32 is not a valid day; days go from 1 to 31."),
        ("0 0 0 * * 8", "8 is not a valid weekday; weekdays go from 0 to 7."),
        ("0 0 0 0 * *", "0 is not a valid day; days go from 1 to 31."),
        ("*/0 * * * * *", "second field '*/0' must step by 1 to 59"),
        ("*/90 * * * * *", "second field '*/90' must step by 1 to 59"),
        ("a * * * * *", "second field 'a'"),
        ("0 R * * * *", "minute field 'R'"),
        ("0 H * * * *", "minute field 'H'"),
        ("0 0 0 * * mo", "weekday field 'mo' cannot be read; it takes *, numbers from 0 to 7 or mon to sun"),
        ("0 5-1-2 * * * *", "minute field '5-1-2' cannot be read; it takes *, numbers from 0 to 59, ranges 1-5"),
        ("0 -5 * * * *", "minute field '-5' cannot be read"),
        ("0 0 0 30 2 *", "no date ever matches"),
        ("0 0 0 31 4,6 *", "no date ever matches"),
        ("\u0663 * * * * *", "second field"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_reason_and_an_example(cron, said):
    with pytest.raises(InvalidRequestError) as refused:
        DueTimes.of(cron, "UTC")
    assert refused.value.field == "cron"
    assert said in refused.value.reason
    assert refused.value.example == "0 30 2 * * *"


@pytest.mark.parametrize(
    "zone", ["Europe/Berlinn", "", "../../etc/passwd", "America", "localtime", "Europe/Berlin\0", "+01"]
)
def test_an_unknown_time_zone_is_refused_with_an_example(zone):
    with pytest.raises(InvalidRequestError) as refused:
        DueTimes.of("* * * * * *", zone)
    assert (refused.value.field, refused.value.example) == ("time_zone", "Europe/Berlin")

"""Due times: six-field cron expressions read in a time zone. Nothing here knows the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from croniter import CroniterBadDateError, CroniterError, croniter

from tilewright.service.errors import InvalidRequestError

CRON_EXAMPLE = "0 30 2 * * *"
ZONE_EXAMPLE = "Europe/Berlin"

_ORDER = "second minute hour day month weekday"
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DAYS = "mon|tue|wed|thu|fri|sat|sun"
# croniter also knows random and hashed fields (r, h): the same expression would mean other times in each process.
_FIELD = re.compile(rf"(?:[0-9*?/,#-]|l(?=[0-7]?$)|{_MONTHS}|{_DAYS})+", re.IGNORECASE)
_STEPS = {"second": 59, "minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 7}
_NO_ZONES = frozenset({"localtime", "Factory", "posixrules"})


@dataclass(frozen=True)
class DueTimes:
    """The due times of a checked expression in a time zone."""

    cron: str
    zone: ZoneInfo

    @classmethod
    def of(cls, cron: str, time_zone: str) -> DueTimes:
        """The checked pair; raises InvalidRequestError naming `cron` or `time_zone`."""
        found = cls(_checked(cron), _zone(time_zone))
        found.after(datetime.now(UTC))
        return found

    @property
    def fixed_hours(self) -> bool:
        """Whether the expression names hours, instead of every one or every n-th."""
        return not self.cron.split()[2].startswith(("*", "?"))

    def after(self, moment: datetime) -> datetime:
        """The first due time later than the moment, UTC; raises InvalidRequestError where there is none.

        Where clocks change: what falls into the hour that spring leaves out is due once, when that hour is over. The
        hour that autumn repeats counts twice for `*` and `*/n` hours; for named hours once, the first time.
        """
        return next(self._later(moment))

    def next_times(self, first: datetime, count: int) -> list[datetime]:
        """`first`, which is a due time, and those that follow it: `count` in all."""
        return [first, *islice(self._later(first), count - 1)]

    def _later(self, moment: datetime) -> Iterator[datetime]:
        last = moment.astimezone(UTC)
        times = croniter(
            self.cron,
            last.astimezone(self.zone),
            ret_type=datetime,
            second_at_beginning=True,
            max_years_between_matches=9,
        )
        while True:
            try:
                local: datetime = times.get_next()
            except CroniterBadDateError:
                reason = f"{self.cron!r} never comes: there is no such day."
                raise InvalidRequestError("cron", reason, CRON_EXAMPLE) from None
            due = local.astimezone(UTC)
            if due > last and not (self.fixed_hours and self._is_repeated(due)):
                last = due
                yield due

    def _is_repeated(self, due: datetime) -> bool:
        """Whether the clock on the wall has shown this time before."""
        return due.astimezone(self.zone).fold == 1


def _checked(cron: str) -> str:
    fields = cron.split()
    names = _ORDER.split()
    if len(fields) != len(names):
        raise InvalidRequestError("cron", f"must have six fields ({_ORDER}), not {len(fields)}.", CRON_EXAMPLE)
    for name, field in zip(names, fields, strict=True):
        steps = [int(step) for step in re.findall(r"/([0-9]+)", field)]
        if not _FIELD.fullmatch(field):
            raise InvalidRequestError("cron", f"the {name} field {field!r} is none.", CRON_EXAMPLE)
        if any(not 0 < step <= _STEPS[name] for step in steps):
            raise InvalidRequestError(
                "cron", f"the {name} field {field!r} must step by 1 to {_STEPS[name]}.", CRON_EXAMPLE
            )
    checked = " ".join(fields)
    try:
        croniter.expand(checked, second_at_beginning=True)
    except CroniterError:
        reason = f"{checked!r} has a value out of range; the fields are {_ORDER}."
        raise InvalidRequestError("cron", reason, CRON_EXAMPLE) from None
    return checked


def _zone(name: str) -> ZoneInfo:
    try:
        if name in zone_names():
            return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        pass  # its file went away since the names were read
    raise InvalidRequestError("time_zone", f"there is no time zone {name!r}; IANA names are known.", ZONE_EXAMPLE)


@cache
def zone_names() -> frozenset[str]:
    """Every time zone that this host knows by an IANA name."""
    return frozenset(available_timezones()) - _NO_ZONES


def whole_second(moment: datetime, ago_s: float = 0) -> datetime:
    """The moment some seconds ago, cut to its second: due times are whole seconds."""
    return (moment - timedelta(seconds=ago_s)).replace(microsecond=0)

"""Due times of cron expressions in a time zone, kept with six fields: the second in front. Needs no database."""

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
_RANGES = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
_NAMES = {"month": " or jan to dec", "weekday": " or mon to sun"}
_NO_ZONES = frozenset({"localtime", "Factory", "posixrules"})


@dataclass(frozen=True)
class DueTimes:
    """The due times of a checked expression in a time zone."""

    cron: str
    zone: ZoneInfo

    @classmethod
    def of(cls, cron: str, time_zone: str) -> DueTimes:
        """The checked pair; raises InvalidRequestError naming `cron` or `time_zone`."""
        times = cls(_checked(cron), _zone(time_zone))
        times.after(datetime.now(UTC))
        return times

    @property
    def fixed_hours(self) -> bool:
        """Whether the expression names hours, rather than every hour or every n-th."""
        return not self.cron.split()[2].startswith(("*", "?"))

    def after(self, moment: datetime) -> datetime:
        """The first due time after the moment, UTC; raises InvalidRequestError if there is never one.

        When clocks change: a time in the hour that spring skips is due once, at the end of that hour. In the hour that
        autumn repeats, `*` and `*/n` hours are due twice, named hours once, the first time.
        """
        return next(self._later(moment))

    def next_times(self, first: datetime, count: int) -> list[datetime]:
        """The due time `first` and those that follow it: `count` in all."""
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
                reason = f"no date ever matches {self.cron!r}; check its day and month."
                raise _refusal(reason) from None
            due = local.astimezone(UTC)
            if due > last and not (self.fixed_hours and self._is_repeated(due)):
                last = due
                yield due

    def _is_repeated(self, due: datetime) -> bool:
        """Whether local clocks show this time for the second time."""
        return due.astimezone(self.zone).fold == 1


def _checked(cron: str) -> str:
    fields, names = cron.split(), _ORDER.split()
    if len(fields) == len(names) - 1:  # as cron itself has it: at the full minute
        fields = ["0", *fields]
    if len(fields) != len(names):
        raise _refusal(
            f"must have five fields (minute hour day month weekday), or six with the second first, not {len(fields)}."
        )
    for place, (name, field) in enumerate(zip(names, fields, strict=True)):
        low, high = _RANGES[name]
        alone = " ".join(["*"] * place + [field] + ["*"] * (len(names) - 1 - place))
        for slash, digits in re.findall(r"(/?)([0-9]+)", field):
            if slash and not 0 < int(digits) <= high:
                raise _refusal(f"the {name} field {field!r} must step by 1 to {high}.")
            if not low <= int(digits) <= high:
                raise _refusal(f"{digits} is not a valid {name}; {name}s go from {low} to {high}.")
        if not _FIELD.fullmatch(field) or not _expands(alone):
            allowed = f"*, numbers from {low} to {high}{_NAMES.get(name, '')}, ranges 1-5, lists 1,3 and steps */2"
            raise _refusal(f"the {name} field {field!r} cannot be read; it takes {allowed}.")
    checked = " ".join(fields)
    if not _expands(checked):
        raise _refusal(f"{checked!r} cannot be read; its fields are {_ORDER}.")
    return checked


def _expands(cron: str) -> bool:
    try:
        croniter.expand(cron, second_at_beginning=True)
    except CroniterError:
        return False
    return True


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError("cron", reason, CRON_EXAMPLE)


def _zone(name: str) -> ZoneInfo:
    try:
        if name in zone_names():
            return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        pass  # its file went away since the names were read
    raise InvalidRequestError("time_zone", f"there is no time zone {name!r}; use an IANA name.", ZONE_EXAMPLE)


@cache
def zone_names() -> frozenset[str]:
    """Every time zone that this host knows by an IANA name."""
    return frozenset(available_timezones()) - _NO_ZONES


def whole_second(moment: datetime, ago_s: float = 0) -> datetime:
    """The moment, `ago_s` earlier, rounded down to a whole second, as due times are."""
    return (moment - timedelta(seconds=ago_s)).replace(microsecond=0)

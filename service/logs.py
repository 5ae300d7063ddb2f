"""Logging to stderr for every program: one line per record, as text or JSON, without secrets."""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TextIO

from tilewright.service.settings import settings

Source = Callable[[], Mapping[str, object]]
"""Returns the facts about the current work; called only when a line is written."""

FACTS = ("request_id", "caller", "job", "study", "worker", "device", "method", "route", "status", "duration_ms")
"""The facts that a line may have besides its message, in order; from `extra`, `speak_of` and `always`."""

QUIET = {"procrastinate": logging.WARNING, "alembic": logging.WARNING, "httpx": logging.WARNING}
"""Libraries that are too chatty at level info: each engine query, each applied revision, each request."""

COMMANDS = "tilewright.service.cli"

_SECRET = re.compile(
    r"(\btw_|\bwhsec_)[\w+/=-]{8,}"  # tokens of keys and sessions, secrets of webhooks
    r"|(\b[Bb]earer\s+)[^\s\"']+"
    r"|(://[^\s:/@]*:)[^\s@/]+(?=@)"  # a password in an address
)
_ENCODE = json.JSONEncoder(default=str, ensure_ascii=False).encode

_process: dict[str, object] = {}
_source: ContextVar[Source | None] = ContextVar("tilewright_spoken_of", default=None)


def configure() -> None:
    """Sends the log to stderr in the format of the settings; may be called again."""
    _take_back()
    root, ours, in_json = logging.getLogger(), _Stderr(), settings().log_format == "json"
    ours.setFormatter(JsonLines() if in_json else Lines())
    root.addHandler(ours)
    root.setLevel(settings().log_level.upper())
    logging.captureWarnings(in_json)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line names them
    for name, level in QUIET.items():
        logging.getLogger(name).setLevel(max(level, root.level))
    sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread


def configure_command() -> None:
    """Sends a command's log to stderr: as records in JSON; as text, stderr is left to its remarks."""
    _take_back()
    if settings().log_format == "json":
        configure()
        logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger().level))
        logging.getLogger(COMMANDS).setLevel(logging.INFO)


def are_json() -> bool:
    """Whether the log is JSON; does not read the settings, which may be the very thing that is wrong."""
    return any(
        isinstance(one, _Stderr) and isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers
    )


def always(**facts: object) -> None:
    """Adds these facts (worker, device) to every later JSON line of this process."""
    _process.update(facts)


def speak_of(source: Source) -> None:
    """Adds the facts of `source` to later lines of this task and of threads that it waits for."""
    _source.set(source)


def pass_on(line: str) -> None:
    """Writes a line from a child process: a JSON record as it is, other text as a record of its own."""
    if are_json() and not line.startswith('{"time"'):
        logging.getLogger("tilewright.child").warning("%s", line)
        return
    sys.stderr.write(without_secrets(line) + "\n")
    sys.stderr.flush()


def plain(line: str) -> str:
    """The readable part of a log line: message and traceback of a JSON record, all of any other text."""
    if not line.startswith('{"time"'):
        return line
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return line
    return "\n".join(str(record[name]) for name in ("message", "exception") if record.get(name))


def without_secrets(text: str) -> str:
    """The text with three stars for everything that looks like a token, a webhook's secret or a password."""
    # As nearly every line; the expression takes as long as all the rest, and a loop over these as long as half of it.
    if not ("tw_" in text or "whsec_" in text or "earer" in text or "://" in text):
        return text
    return _SECRET.sub(lambda found: next(part for part in found.groups() if part) + "***", text)


class Lines(logging.Formatter):
    """Text for people: time, level, logger, message, and facts in brackets; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line that a record becomes."""
        text = record.getMessage()
        if not text.isprintable():  # what a caller sent must neither look like another record nor steer a terminal
            text = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
        facts = " ".join(f"{name}={value}" for name, value in _facts(record, {}).items() if name not in _SAID)
        line = f"{_time(record)} {record.levelname} {record.name}: {text}" + (f" [{facts}]" if facts else "")
        trace = _traceback(self, record)
        return without_secrets(line + (f"\n{trace}" if trace else "")).replace("\n", "\n    ")


_SAID = frozenset({"method", "route", "status", "duration_ms"})
"""Facts that the message of a request's line holds already."""


class JsonLines(logging.Formatter):
    """JSON for machines: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The log record as one line."""
        said: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record, _process),
        }
        trace = _traceback(self, record)
        if trace:
            said["exception"] = trace
        return without_secrets(_ENCODE(said))


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is stderr at the moment of writing."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _take_back() -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Stderr)]:
        root.removeHandler(handler)


@functools.lru_cache(maxsize=4)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))


def _time(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    return "\n".join([*parts, *([record.stack_info] if record.stack_info else [])])


def _facts(record: logging.LogRecord, process: Mapping[str, object]) -> dict[str, object]:
    source, found = _source.get(), {}
    said, own = source() if source else {}, record.__dict__  # looked into by name: putting them together takes longer
    for name in FACTS:
        value = own.get(name)
        if value is None and (value := said.get(name)) is None:
            value = process.get(name)
        if value is not None:
            found[name] = value
    return found


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("tilewright").critical("Unexpected %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        _uncaught(failed.exc_type, failed.exc_value, failed.exc_traceback)

"""Logging to stderr for every program: one line per record, as text or JSON, without secrets."""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

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
    root, in_json = logging.getLogger(), settings().log_format == "json"
    _stderr.setFormatter(JsonLines() if in_json else Lines())
    root.addHandler(_stderr)
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
    return _stderr in logging.root.handlers and isinstance(_stderr.formatter, JsonLines)


def always(**facts: object) -> None:
    """Adds these facts (worker, device) to every later JSON line of this process."""
    _process.update(facts)


def speak_of(source: Source) -> None:
    """Adds the facts of `source` to later lines of this task and of threads that it waits for."""
    _source.set(source)


def say(logger: logging.Logger, level: int, message: str, facts: Mapping[str, object]) -> None:
    """Writes a line without a log record, which takes as long to make as all the rest: each request has a line.

    `facts` are in the order of FACTS. Writes nothing where the log is not configured, or not for that level.
    """
    formatter = _stderr.formatter
    if _stderr not in logging.root.handlers or not logger.isEnabledFor(level) or not isinstance(formatter, _Formatter):
        return
    line = formatter.text(Line(time.time(), logging.getLevelName(level), logger.name, message, facts))
    _stderr.acquire()
    try:
        _write(line)
    except (OSError, ValueError):
        pass  # nobody reads it
    finally:
        _stderr.release()


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


class Line(NamedTuple):
    """What a line of the log says."""

    created_s: float
    level: str
    logger: str
    message: str
    facts: Mapping[str, object]  # in the order of FACTS
    trace: str = ""


class _Formatter(logging.Formatter):
    """A record is written as its line is; `process` has facts that every record's line has besides."""

    process: Mapping[str, object] = {}

    def format(self, record: logging.LogRecord) -> str:
        """The line that a record becomes."""
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        trace = "\n".join([*parts, *([record.stack_info] if record.stack_info else [])])
        facts = _facts(record, self.process)
        return self.text(Line(record.created, record.levelname, record.name, record.getMessage(), facts, trace))

    @abstractmethod
    def text(self, line: Line) -> str:
        """What is written."""


class Lines(_Formatter):
    """Text for people: time, level, logger, message, and facts in brackets; further lines are indented."""

    def text(self, line: Line) -> str:
        """The line as text."""
        message = line.message
        if not message.isprintable():  # what a caller sent must neither look like another record nor steer a terminal
            message = "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in message)
        facts = " ".join([f"{name}={value}" for name, value in line.facts.items() if name not in _SAID])
        said = f"{_time(line.created_s)} {line.level} {line.logger}: {message}" + (f" [{facts}]" if facts else "")
        return without_secrets(said + (f"\n{line.trace}" if line.trace else "")).replace("\n", "\n    ")


_SAID = frozenset({"method", "route", "status", "duration_ms"})
"""Facts that the message of a request's line holds already."""


class JsonLines(_Formatter):
    """JSON for machines: one object per line."""

    process = _process

    def text(self, line: Line) -> str:
        """The line as an object."""
        said: dict[str, object] = {
            "time": _time(line.created_s),
            "level": line.level.lower(),
            "logger": line.logger,
            "message": line.message,
            **line.facts,
        }
        if line.trace:
            said["exception"] = line.trace
        return without_secrets(_ENCODE(said))


class _Stderr(logging.Handler):
    """Writes to what is stderr at the moment of writing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record's line; no work ends because that fails."""
        try:
            _write(self.format(record))
        except Exception:  # noqa: BLE001  as in the library's own handlers
            self.handleError(record)


_stderr = _Stderr()


def _take_back() -> None:
    logging.root.removeHandler(_stderr)


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@functools.lru_cache(maxsize=4)
def _second(created_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))


def _time(created_s: float) -> str:
    whole_s = int(created_s)
    return f"{_second(whole_s)}.{int(1000 * (created_s - whole_s)):03d}Z"


def _facts(record: logging.LogRecord, process: Mapping[str, object]) -> dict[str, object]:
    source = _source.get()
    own = {name: value for name, value in record.__dict__.items() if value is not None}
    known = {**process, **(source() if source else {}), **own}
    return {name: known[name] for name in FACTS if known.get(name) is not None}


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("tilewright").critical("Unexpected %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _uncaught_in_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not issubclass(failed.exc_type, SystemExit):
        _uncaught(failed.exc_type, failed.exc_value, failed.exc_traceback)

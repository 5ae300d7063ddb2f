"""Right requests for every operation of the OpenAPI document, and what is put in the place of each of their fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tilewright.kernels.catalogue import catalogue

LARGE = 2**63 - 1

TEXTS = (
    "",
    "a\x00b",
    "\x1b[2J\u202e",
    "../../etc/passwd",
    "=a,=,:",
    "\u00b2",
    "9" * 400,
    "2147483648",
    "0001-01-01T00:00:00+14:00",
    "x" * 3000,
)
"""For every parameter and text. A digit that is none, a row id too far, a time before the first year."""

VALUES: tuple[Any, ...] = (
    *TEXTS,
    None,
    True,
    -1,
    2**31,
    LARGE,
    1.5,
    1e308,
    [],
    {},
    [None],
    {"": ""},
)
"""For every place of a body."""

SOME_VALUES = VALUES[::6]
TRIED_ELSEWHERE = frozenset({"change_schedule", "edit_schedule", "import_results"})
"""A schedule's body is tried where one is made; tests/service/operations/exchange says more of documents to import."""

RAW = (
    b"{",
    b"null",
    b"[]",
    b'"a"',
    b"\xef\xbb\xbf{}",
    b"\xff{}",
    b'{"a": NaN}',
    b'{"a": 1, "a": 1}',
    b'{"a": "\\ud800"}',
    b'{"a": "\\u0000"}',
    b'{"a": 9223372036854775808}',
    b'{"a": 1e999}',
    b'{"a":' * 40 + b"1" + b"}" * 40,
    b"[" * 100_000,
)
"""Whole bodies that none of our operations takes."""

PROBLEM = {"kernel": "gemm", "shape": {"m": 256, "n": 100, "k": 784}, "dtype": "float32", "options": {"trans_a": False}}
PLACE = {"device_model": "nvidia-h200", "device": None, "compiler": None, "priority": 3}
BUDGET = {"trials": 3, "seconds": 5.0, "target_ms": 0.1}
SCHEDULE = {
    "name": "nightly",
    "cron": "0 30 2 * * *",
    "time_zone": "Europe/Berlin",
    "problems": [PROBLEM],
    "budget": BUDGET,
    "overlap": "skip",
    "enabled": True,
    "target": "problems",
    **PLACE,
}

BODIES: Mapping[str, Any] = {
    "create_job": PROBLEM
    | PLACE
    | {"budget": BUDGET, "seed": 1, "sampler": "random", "variants": ["naive"], "dry_run": True},
    "get_best_of_many": {
        "shapes": [PROBLEM["shape"], {"m": 3, "n": 4, "k": 5}],
        "dtype": "float32",
        "options": {"trans_a": False},
        "device_model": "nvidia-h200",
        "driver": None,
        "toolkit": None,
    },
    "create_key": {
        "name": "other",
        "scope": "read",
        "expires_days": 2,
        "max_trials": 1,
        "max_seconds": 2.5,
        "max_open_jobs": 3,
        "project": "default",
    },
    "create_project": {"name": "other", "max_open_jobs": 3, "max_queued_seconds": 2.5, "max_schedules": 4},
    "change_project": {"max_open_jobs": 3, "max_queued_seconds": 2.5, "max_schedules": None},
    "rotate_key": {"grace_s": 1.5},
    "add_note": {"text": "Clocks were capped.", "acknowledges": False},
    "save_view": {"name": "worst first", "address": "/?kernel=gemm"},
    "retry_trials": {"trial": None},
    "report_claim": PROBLEM
    | {
        "device_model": "nvidia-h200",
        "driver": "580.159",
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": 16},
        "source_hash": catalogue().get("gemm").source_hash("tiled"),
        "seen": "Wrong.",
    },
    "retract_result": {"reason": "Wrong beyond the bound."},
    "store_helion_entry": {"data": '{"config": "{}", "key": {"type": "LooseAutotuneCacheKey", "fields": {}}}'},
    "create_schedule": SCHEDULE | {"name": "weekly"},
    "change_schedule": SCHEDULE,
    "edit_schedule": SCHEDULE,
    "create_webhook": {"name": "other", "url": "https://ci.example/hook", "states": ["done"], "project": None},
    "open_session": {"key": "tw_of_nobody_at_all"},
    "tune_demand": {"budget": BUDGET, "priority": 3},
    "tune_attention": {"budget": BUDGET, "priority": 3},
}
"""By operation; `import_results` has what the server exports."""

FAMILY_SHAPE = "m=1..256,n=100,k=784"
QUERIES = {"shape": "m=256,n=100,k=784", "a": "nvidia-h200", "b": "nvidia-h200"}


@dataclass(frozen=True)
class Operation:
    """One operation of the document, with a right request for it."""

    name: str
    method: str
    template: str
    parameters: tuple[Mapping[str, Any], ...]
    path: Mapping[str, object]
    body: Any = None

    @property
    def query(self) -> dict[str, str]:
        """What must be asked."""
        named = {p["name"]: QUERIES[p["name"]] for p in self.parameters if p["in"] == "query" and p.get("required")}
        return named | ({"shape": FAMILY_SHAPE} if self.name == "get_table" else {})

    def right(self) -> Sent:
        """The request that the others are made of."""
        return Sent(self.method, self.template.format(**self.path), self.query, content=as_json(self.body))

    def wrong(self, *, whole: bool) -> Iterator[Sent]:
        """The right request with one thing in it changed, for each thing and each hostile value.

        Unless it is the `whole` sweep, a parameter or place gets every third value, another third than its neighbours.
        """
        right = self.right()
        for number, parameter in enumerate(self.parameters, len(self.name)):
            for text in TEXTS if whole else TEXTS[number % 3 :: 3]:
                yield self._with(right, parameter, text)
        if self.body is not None:
            for number, path in enumerate(places(self.body)):
                values = SOME_VALUES if self.name in TRIED_ELSEWHERE else VALUES
                for value in values if whole else values[number % 3 :: 3]:
                    yield right.with_content(as_json(put(self.body, path, value)), f"{path} = {value!r}")
                yield right.with_content(as_json(put(self.body, (*path[:-1], "\x1b[2J../x"), 1)), f"{path} renamed")
            for raw in (*RAW, right.content[:-1], right.content + b"}", right.content.decode().encode("utf-16")):
                yield right.with_content(raw, f"body {raw[:30]!r}")

    def _with(self, right: Sent, parameter: Mapping[str, Any], text: str) -> Sent:
        name, said = parameter["name"], f"{parameter['name']} = {text[:40]!r}"
        if parameter["in"] == "path":
            path = {**self.path, name: text}
            quoted = self.template.format(**{part: quote(str(value), safe="") for part, value in path.items()})
            return Sent(right.method, quoted, right.query, right.content, said=said)
        if parameter["in"] == "query":
            return Sent(right.method, right.path, {**right.query, name: text}, right.content, said=said)
        return Sent(right.method, right.path, right.query, right.content, {name: text.encode()}, said)


@dataclass(frozen=True)
class Sent:
    """A request, and in `said` what is wrong with it."""

    method: str
    path: str
    query: Mapping[str, str]
    content: bytes = b""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    said: str = "nothing"

    def with_content(self, content: bytes, said: str) -> Sent:
        return Sent(self.method, self.path, self.query, content, self.headers, said)


def as_json(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a body, of a list the first alone."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


def put(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The body with another value there."""
    changed = copy.deepcopy(body)
    *outer, last = path
    part = changed
    for name in outer:
        part = part[name]
    if isinstance(part, list) and isinstance(last, str):
        part.append(value)
    else:
        part[last] = value
    return changed

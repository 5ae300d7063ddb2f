"""T4 files and Kernel Tuner caches that are broken or meant to harm: as our own documents, refused or skipped."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError
from test_exchange_foreign import CACHE, NAMED, T4_FILE
from test_exchange_hostile import refused

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import KernelError
from tilewright.service.errors import ServiceError
from tilewright.service.operations.exchange import foreign as exchange_foreign
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.exchange.report import Reason

SOURCE = catalogue().get("gemm").source_hash("tiled")

of_each_format = pytest.mark.parametrize(
    "foreign", [pytest.param(CACHE, id="Kernel Tuner"), pytest.param(T4_FILE, id="T4")]
)


def own(**change) -> dict[str, Any]:
    """What our own files say of themselves, with one thing changed."""
    problem = {"kernel": "gemm", "shape": NAMED["shape"], "dtype": "float32", "options": {}}
    return {"problem": problem, "device_model": NAMED["device_model"], "sources": {"tiled": SOURCE}} | change


def body_of(foreign, own_part: dict[str, Any] | None = None) -> bytes:
    changed = copy.deepcopy(foreign)
    if own_part is not None:
        changed.get("metadata", changed)["tilewright"] = own_part
    return json.dumps(changed).encode()


def with_value(foreign, value) -> bytes:
    """The file with another value of the first row's parameter."""
    changed = copy.deepcopy(foreign)
    if foreign is CACHE:
        changed["cache"]["8"]["TILE"] = value
    else:
        changed["results"][0]["configuration"]["TILE_WIDTH"] = value
    return json.dumps(changed).encode()


def test_a_t4_file_that_is_cut_off_anywhere_is_refused(device):
    body = body_of(T4_FILE)
    for end in range(0, len(body), len(body) // 20):
        refused(body[:end])


def test_a_cache_that_is_cut_off_is_refused_or_read_as_far_as_its_last_whole_row(device):
    """The cache of a run that still goes on ends after a row: just such a one is taken."""
    body, taken = body_of(CACHE), set()
    for end in range(len(body) // 2, len(body) - 1):
        try:
            taken.add(import_document(body[:end], ImportOptions(**NAMED), dry_run=True).trials)
        except (ServiceError, KernelError) as error:
            assert str(error).isprintable()  # noqa: PT017 - most ends are refused, some are not
    assert taken == {1, 2, 3}


@of_each_format
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "null"])
def test_a_number_that_json_does_not_have_costs_its_row_only(device, foreign, number):
    body = body_of(foreign)
    before = import_document(body, ImportOptions(**NAMED), dry_run=True).trials
    changed = import_document(body.replace(b"0.25", number.encode()), ImportOptions(**NAMED), dry_run=True)
    assert changed.trials == before - 1
    assert any("time is missing" in str(one) for one in changed.rows)


@of_each_format
def test_what_is_no_json_refuses_the_file(device, foreign):
    """A key that comes twice, too many rows, no end of nesting: each tried on a file that is else right."""
    body = body_of(foreign)
    assert body.count(b"0.25") == 1
    assert "larger than any" in refused(body.replace(b"0.25", b"1e999"))
    for key in (b'"TILE_WIDTH":', b'"results":') if foreign is T4_FILE else (b'"TILE":', b'"cache":'):
        assert "twice" in refused(body.replace(key, key + b" 1, " + key, 1))
    for deep in ("[", '{"a":'):
        assert "nested" in refused(body[:-1] + b', "more": ' + 100_000 * deep.encode())
    for value in (2**70, -(10**400)):
        assert "must lie between" in refused(with_value(foreign, value))


@of_each_format
def test_too_many_rows_are_refused_before_one_is_read(device, foreign, monkeypatch):
    monkeypatch.setattr(exchange_foreign, "MAX_TRIALS", 4)
    assert "at most 4 rows" in refused(body_of(foreign))


@of_each_format
def test_a_value_that_is_none_skips_its_row_alone(device, foreign):
    first = "/cache/8" if foreign is CACHE else "/results/0"
    for value in (2**40, -1, 8.0, True, "8", None, [8], {"a": 8}):
        answer = import_document(with_value(foreign, value), ImportOptions(**NAMED), dry_run=True)
        assert (answer.trials, first in {row.pointer for row in answer.rows}) == (2, True), value


@of_each_format
def test_parameters_that_are_named_like_paths_or_commands_skip_their_rows(device, foreign):
    right = "TILE" if foreign is CACHE else "TILE_WIDTH"
    for name in ("../../etc/passwd", "a\x1b[2Jb", "TILE_WIDTH\n"):
        body = body_of(foreign).replace(json.dumps(right).encode(), json.dumps(name).encode())
        answer = import_document(body, ImportOptions(**NAMED))
        assert answer.trials == 0
        assert {row.reason for row in answer.rows} <= {Reason.NOT_A_CONFIGURATION, Reason.OUTSIDE_THE_SPACE}
        assert all(row.detail.isprintable() and row.pointer.isprintable() for row in answer.rows)


@pytest.mark.parametrize("field", ["kernel", "device_model", "variant", "origin"])
def test_names_that_are_paths_or_commands_are_refused_before_the_file_is_read(field):
    for name in ("../../etc/passwd", "..\\tiled", "/abs", "tiled\x00", "a\nb", "%2e%2e/x", "$(id)"):
        with pytest.raises(ValidationError) as caught:
            ImportOptions(**NAMED | {field: name})
        assert {error["loc"][0] for error in caught.value.errors()} == {field}


WRONG = [
    {"device_model": "../../etc/passwd"},
    {"sources": {"../tiled": SOURCE}},
    {"sources": {"tiled": "short"}},
    {"sources": {f"v{i}": SOURCE for i in range(65)}},
    {"problem": {"kernel": "../gemm", "shape": {"m": 1}, "dtype": "float32", "options": {}}},
    {"problem": {"kernel": "gemm", "shape": {"m": 2**40, "n": 1, "k": 1}, "dtype": "float32", "options": {}}},
    {"samples_pruned": -1},
    {"samples_pruned": "all"},
    {"unknown": 1},
]


@of_each_format
def test_what_a_file_says_of_itself_is_held_to_the_same_rules(device, foreign):
    said = ImportOptions(variant="tiled", rename=NAMED["rename"])
    assert import_document(body_of(foreign, own(samples_pruned=2)), said, dry_run=True).trials == 3
    for change in WRONG:
        assert refused(body_of(foreign, own(**change)), said).isprintable()


@of_each_format
def test_what_the_cases_start_from_is_taken(device, foreign):
    assert import_document(body_of(foreign), ImportOptions(**NAMED), dry_run=True).trials == 3

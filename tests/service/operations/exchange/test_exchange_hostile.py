"""Documents that are broken or meant to harm: refused in one sentence, nothing stored, nothing of the inside told."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from test_exchange_foreign import CACHE, NAMED, T4_FILE
from tuned_results import Results

from tilewright.kernels.errors import KernelError
from tilewright.service.errors import InvalidRequestError, ServiceError
from tilewright.service.operations.exchange.document import Document
from tilewright.service.operations.exchange.import_document import import_document
from tilewright.service.operations.exchange.incoming import ImportOptions
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.models import Base

INSIDE = ("Traceback", "sqlalchemy", "psycopg", "/work", "/root", "site-packages", "SELECT", "INSERT")


def rows() -> dict[str, int]:
    with transaction() as session:
        return {t.name: session.scalar(select(func.count()).select_from(t)) for t in Base.metadata.sorted_tables}


def refused(body: bytes, target: ImportOptions | None = None) -> str:
    before = rows()
    with pytest.raises((ServiceError, KernelError)) as caught:
        import_document(body, target or ImportOptions(**NAMED))
    assert rows() == before
    said = str(caught.value)
    assert len(said) < 1000
    assert not any(word in said for word in INSIDE)
    return said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "document"),
        (b"\x00", "document"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{}", "format"),
        (b'{"format": "tilewright/2"}', "tilewright/2"),
        (b'{"format": "tilewright-bundle/1"}', "tilewright/1"),
        (b'{"format": {"a": 1}}', "format"),
        (b'{"format": "tilewright/1"}', "made_by"),
        (b'{"format": "tilewright/1", "format": "tilewright/1"}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "larger than any number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "between"),
        (b'{"a": "\\u0000"}', "U+0000"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested"),
    ],
)
def test_what_is_no_document_is_refused(database, body, words):
    assert words in refused(body)


HOSTILE: list[tuple[str, Any]] = [
    ("made_by", "x" * 300),
    ("studies", {}),
    ("studies", None),
    ("device_models", "all"),
    ("unknown", 1),
    ("studies.0.unknown", 1),
    ("studies.0.device_model", "../../etc/passwd"),
    ("studies.0.device_model", "NVIDIA H200"),
    ("studies.0.problem.kernel", "../gemm"),
    ("studies.0.problem.kernel", "gemm; DROP TABLE trials"),
    ("studies.0.problem.shape", {"m": 1.5}),
    ("studies.0.problem.shape", {"m": 2**40}),
    ("studies.0.problem.shape", {"../m": 1}),
    ("studies.0.problem.options", {"trans_a": 1}),
    ("studies.0.environment.driver", None),
    ("studies.0.environment.driver", "d" * 10_000),
    ("studies.0.environment.driver", "580\x1b[2J"),
    ("studies.0.space_size", -1),
    ("studies.0.space_size", 2**31),
    ("studies.0.trials", []),
    ("studies.0.trials.0.variant", "..\\tiled"),
    ("studies.0.trials.0.source_hash", "abc"),
    ("studies.0.trials.0.configuration", {"TILE_WIDTH": True}),
    ("studies.0.trials.0.configuration", {"TILE_WIDTH": 2**40}),
    ("studies.0.trials.0.configuration", {f"P{i}": 1 for i in range(65)}),
    ("studies.0.trials.0.outcome", "measured!"),
    ("studies.0.trials.0.outcome", "timed_out"),
    ("studies.0.trials.0.warm_ms", 0),
    ("studies.0.trials.0.warm_ms", -1.0),
    ("studies.0.trials.0.warm_ms", "0.5"),
    ("studies.0.trials.0.warm_ms", None),
    ("studies.0.trials.0.registers", -1),
    ("studies.0.trials.0.occupancy", 1.5),
    ("studies.0.best.trial", 5),
    ("studies.0.best.trial", 3),
    ("studies.0.best.trial", -1),
    ("studies.0.best.ci_ms", [1.0, 2.0]),
    ("studies.0.best.ci_ms", [0.5]),
    ("studies.0.best.verified_at", "yesterday"),
    ("studies.0.best.verified_at", "2026-11-20T12:00:00"),
    ("studies.0.best.library", {"name": "x"}),
    ("device_models.0.slug", "a/b"),
    ("device_models.0.kind", "fpga"),
    ("device_models.0.limits.multiprocessors", 0),
    ("device_models.0.limits.max_grid", [1, 2]),
    ("device_models.0.limits.features", ["a b"]),
    ("device_models.0.datasheet_gflops", {"float32": -1.0}),
]


def put(document: Any, path: str, value: Any) -> None:
    *parts, last = [int(p) if p.isdecimal() else p for p in path.split(".")]
    for part in parts:
        document = document[part]
    document[last] = value


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("path", "value"), HOSTILE, ids=lambda v: str(v)[:40])
def test_a_field_that_is_not_what_it_must_be_refuses_the_whole_document(document, device, path, value):
    assert import_document(json.dumps(document).encode(), ImportOptions(), dry_run=True).best == 2
    put(document, path, value)
    assert path.split(".")[0] in refused(json.dumps(document).encode())


def test_a_document_that_is_cut_off_anywhere_is_refused(document, device):
    body = json.dumps(document, separators=(",", ":")).encode()
    for end in range(0, len(body) - 1, len(body) // 60):
        refused(body[:end])


ESCAPE = "\x1b]0;owned\x07"


@pytest.mark.parametrize("name", [ESCAPE, "x" * 100_000, "a\nerror done"])
def test_names_of_a_document_cannot_reach_the_terminal(document, device, name):
    document["studies"][0]["problem"]["shape"][name] = 1
    body = json.dumps(document).encode()
    for said in (
        refused(body),
        refused(body.replace(b'"m":', json.dumps(name).encode() + b': 1, "m":')),
        refused(json.dumps({"format": name}).encode()),
    ):
        assert said.isprintable()
    answer = import_document(json.dumps(CACHE | {"cache": {name: {"TILE": 3}}}).encode(), ImportOptions(**NAMED))
    assert [len(row.pointer) < 400 and row.pointer.isprintable() for row in answer.rows] == [True]


def test_too_many_studies_are_refused(document, device, monkeypatch):
    document["studies"] = [{}] * 20_001
    assert "studies" in refused(json.dumps(document).encode())


def test_the_smallest_and_largest_sizes_are_no_trouble(document, device):
    """A shape whose enumeration or memory would be huge costs nothing: nothing is enumerated or allocated."""
    document["studies"][0]["problem"]["shape"] = {"m": 2**31 - 1, "n": 2**31 - 1, "k": 2**31 - 1}
    answer = import_document(json.dumps(document).encode(), ImportOptions())
    assert answer.best == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: str = "") -> list[str]:
    """Every place of a document, as a dotted path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [] if not path else [path]
    for name, inner in parts:
        found += places(inner, f"{path}.{name}" if path else str(name))
    return found


FUZZ = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def survives(body: bytes, target: ImportOptions) -> None:
    """Taken as a whole or refused in one sentence; a dry run, so that examples do not meet one another."""
    try:
        answer = import_document(body, target, dry_run=True)
    except (ServiceError, KernelError) as error:
        assert not any(word in str(error) for word in INSIDE)  # noqa: PT017
        return
    assert answer.dry_run
    assert all(row.detail for row in answer.rows)


@FUZZ
@given(data=st.data())
def test_fuzzed_own_documents_are_taken_or_refused(document, device, data):
    changed = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([p for p in places(document) if p.count(".") > 0 or True]))
        try:
            put(changed, path, data.draw(json_values))
        except (TypeError, IndexError, KeyError):
            continue  # an earlier change removed the place
    before = rows()
    survives(json.dumps(changed).encode(), ImportOptions(origin="lab-7"))
    assert rows() == before


@FUZZ
@given(data=st.data(), source=st.sampled_from([CACHE, T4_FILE]))
def test_fuzzed_foreign_documents_are_taken_or_refused(document, device, data, source):
    changed = copy.deepcopy(source)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(source)))
        try:
            put(changed, path, data.draw(json_values))
        except (TypeError, IndexError, KeyError):
            continue
    survives(json.dumps(changed).encode(), ImportOptions(**NAMED))
    survives(json.dumps(changed).encode(), ImportOptions())


@FUZZ
@given(data=st.data())
def test_fuzzed_bytes_are_refused(document, device, data):
    body = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(body), ImportOptions())


def test_the_untouched_documents_are_taken(document, device):
    """What the fuzzing starts from is right: else it would test nothing but refusals."""
    assert Document.model_validate_json(json.dumps(document))
    for body, target in (
        (document, ImportOptions()),
        (CACHE, ImportOptions(**NAMED)),
        (T4_FILE, ImportOptions(**NAMED)),
    ):
        assert import_document(json.dumps(body).encode(), target, dry_run=True).trials >= 3


@pytest.mark.parametrize("origin", ["", "../x", "a b", "-x", "x" * 65, "a/b", "a\nb", "a\x00"])
def test_an_origin_is_a_plain_name(origin):
    with pytest.raises(ValueError, match="origin"):
        ImportOptions(origin=origin)


def test_an_import_of_another_session_is_not_disturbed_by_a_refusal(document, device):
    with pytest.raises(InvalidRequestError):
        import_document(b"{", ImportOptions())
    assert import_document(json.dumps(document).encode(), ImportOptions()).best == 2
    with transaction() as session:
        assert len(Results(session).current()) == 2

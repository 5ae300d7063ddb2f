"""Bodies that are refused: strict JSON, and the words of a wrong field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.service.operations import strict_json
from tilewright.service.operations.validation_words import plain

ATOMS = [
    *(b"0", b"null", b"0.5", b"1e5", b"1e999", b"-1E400", b"1" * 400 + b".0", b"9223372036854775807"),
    *(b"9223372036854775808", b"-9223372036854775808", b'"\\u0000"', b'"\\ud800"', b'"\\ud83d\\ude00"'),
    *(b'"]"', b'"\\"["', b'"\\\\"', b'{"a":1,"a":2}', "\u00e9".encode().join((b'"', b'"'))),
]


def bodies() -> st.SearchStrategy[bytes]:
    names = st.sampled_from([b"a", b"b", b"\\u0000", b"[", b'\\"}'])

    def grown(inner):
        members = st.lists(st.builds(lambda name, value: b'"%b":%b' % (name, value), names, inner), max_size=3)
        nested = st.builds(lambda deep, value: b"[" * deep + value + b"]" * deep, st.integers(20, 40), inner)
        lists = st.lists(inner, max_size=3).map(lambda parts: b"[%b]" % b",".join(parts))
        return lists | members.map(lambda parts: b"{%b}" % b",".join(parts)) | nested

    return st.recursive(st.sampled_from(ATOMS), grown, max_leaves=8)


def refusal(body: bytes) -> str | None:
    try:
        strict_json.check(body)
    except strict_json.RefusedJSONError as error:
        return str(error)
    return None


@given(bodies())
def test_what_is_refused_does_not_depend_on_the_short_way(body):
    said = refusal(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_is_deep", lambda _: True)
        assert refusal(body) == said


@pytest.mark.parametrize(("levels", "is_refused"), [(32, False), (33, True)])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_counted_for_both_kinds_of_brackets(begin, end, levels, is_refused):
    body = begin * levels + b"0" + end * levels
    assert (refusal(body) is not None) is is_refused


class Budget(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trials: int = Field(gt=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trials": 0}, "must be greater than 0"),
        ({"trials": "x"}, "must be a valid integer"),
        ({}, "is missing"),
        ({"trials": 1, "colour": 1}, "is not a known field"),
    ],
)
def test_a_refusal_is_a_predicate_of_the_field(given, said):
    with pytest.raises(ValidationError) as refused:
        Budget.model_validate(given)
    (error,) = refused.value.errors()
    assert plain(error["msg"]) == said

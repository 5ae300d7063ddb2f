from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.parse import format_options, format_shape, parse_options, parse_renames, parse_shape

AXES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


def test_axes_keep_their_order_and_spaces_do_not_matter():
    assert list(parse_shape(" m = 256, n=100 ,k=784").items()) == [("m", 256), ("n", 100), ("k", 784)]


def test_repeated_arguments_are_one_shape():
    assert parse_shape(["m=1,n=2", "k=3"]) == {"m": 1, "n": 2, "k": 3}


def test_sizes_are_left_to_the_kernel_to_judge():
    assert parse_shape("m=0,n=-3") == {"m": 0, "n": -3}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "shape"),
        ("m", "shape"),
        ("m=1,,n=2", "shape"),
        ("=3", "shape"),
        ("m=1;n=2", "shape.m"),
        ("m=", "shape"),
        ("m=1e3", "shape.m"),
        ("m=1.5", "shape.m"),
        ("m=0x10", "shape.m"),
        ("m=٣", "shape.m"),
        ("m=" + "9" * 5000, "shape.m"),
        ("m=1,m=2", "shape.m"),
        ("9m=1", "shape"),
    ],
)
def test_refusal_names_the_field_and_shows_an_example(text, field):
    with pytest.raises(InvalidRequestError) as refused:
        parse_shape(text)
    assert refused.value.field == field
    assert parse_shape(refused.value.example)
    assert len(str(refused.value)) < 200


def test_flags_and_words():
    assert parse_options(["trans_b=true,trans_a=False", "activation=relu"]) == {
        "trans_b": True,
        "trans_a": False,
        "activation": "relu",
    }


@pytest.mark.parametrize("nothing", [None, "", [], [""]])
def test_no_options_are_an_empty_dictionary(nothing):
    assert parse_options(nothing) == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("trans_b", "options"),
        ("trans_b=a b", "options.trans_b"),
        ("a=true,a=true", "options.a"),
        ("a='x'", "options.a"),
    ],
)
def test_a_wrong_option_is_named(text, field):
    with pytest.raises(InvalidRequestError) as refused:
        parse_options(text)
    assert refused.value.field == field


def test_renames_are_names_on_both_sides():
    assert parse_renames(["BM=TILE_M,BN=TILE_N", "s=STAGES"]) == {"BM": "TILE_M", "BN": "TILE_N", "s": "STAGES"}
    for text, field in {"BM": "rename", "BM=true": "rename.BM", "BM=1": "rename.BM", "a=B,a=C": "rename.a"}.items():
        with pytest.raises(InvalidRequestError) as refused:
            parse_renames(text)
        assert refused.value.field == field


@given(st.dictionaries(AXES, st.integers(-(10**17), 10**17), min_size=1, max_size=6))
def test_a_written_shape_reads_back(shape):
    assert parse_shape(format_shape(shape)) == shape


@given(st.dictionaries(AXES, st.booleans() | st.sampled_from(["relu", "fast-2", "3xtf32"]), max_size=6))
def test_written_options_read_back(options):
    assert parse_options(format_options(options)) == options

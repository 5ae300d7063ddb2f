import pickle

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError

GOOD = {"m": 256, "n": 100, "k": 784}


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "field"),
    [
        ({**GOOD, "k": 0}, "float32", {}, "shape.k"),
        ({**GOOD, "m": -3}, "float32", {}, "shape.m"),
        ({**GOOD, "n": 2**31}, "float32", {}, "shape.n"),
        ({**GOOD, "n": True}, "float32", {}, "shape.n"),
        ({"m": 1, "n": 1}, "float32", {}, "shape.k"),
        ({**GOOD, "q": 1}, "float32", {}, "shape.q"),
        (GOOD, "int8", {}, "dtype"),
        (GOOD, "float32", {"trans_c": True}, "options.trans_c"),
        (GOOD, "float32", {"trans_a": "yes"}, "options.trans_a"),
        (GOOD, "float32", {"trans_a": 1}, "options.trans_a"),
        (GOOD, "float32", {"accuracy": "fp16"}, "options.accuracy"),
        (GOOD, "float64", {"accuracy": "tf32"}, "options.accuracy"),
    ],
)
def test_a_refused_problem_names_the_field_and_an_example(shape, dtype, options, field):
    with pytest.raises(InvalidProblemError) as caught:
        catalogue().get("gemm").problem(shape, dtype, options)
    assert caught.value.field == field
    assert caught.value.example
    assert field in str(caught.value)


def test_equal_problems_have_one_hash_however_they_were_asked_for():
    gemm = catalogue().get("gemm")
    spelled = gemm.problem(
        {"k": 784, "m": 256, "n": 100}, "float32", {"beta_zero": True, "trans_b": False, "trans_a": False}
    )
    assert spelled == gemm.problem(GOOD)
    assert spelled.hash == gemm.problem(GOOD).hash
    assert gemm.problem(GOOD, options={"trans_a": True}).hash != spelled.hash


def test_definitions_spell_problem_and_configuration():
    gemm = catalogue().get("gemm")
    problem = gemm.problem(GOOD, "float64", {"trans_b": True})
    definitions = gemm.definitions(problem, gemm.variant("tiled").space().default())
    assert definitions == {
        "REAL": "double",
        "REAL_BYTES": "8",
        "SHAPE_M": "256",
        "SHAPE_N": "100",
        "SHAPE_K": "784",
        "TRANS_A": "0",
        "TRANS_B": "1",
        "BETA_ZERO": "1",
        "ACCURACY_FP32": "1",
        "TILE_WIDTH": "16",
    }


def test_work_counts_are_those_of_the_textbook():
    gemm, gemv = catalogue().get("gemm"), catalogue().get("gemv")
    problem = gemm.problem(GOOD)
    assert gemm.flops(problem) == 2 * 256 * 100 * 784
    assert gemm.bytes_moved(problem) == 4 * (256 * 784 + 784 * 100 + 256 * 100)
    adding = gemm.problem(GOOD, "float64", {"beta_zero": False})
    assert gemm.bytes_moved(adding) == 8 * (256 * 784 + 784 * 100 + 2 * 256 * 100)
    assert gemm.memory_bytes(adding) == 8 * (256 * 784 + 784 * 100 + 256 * 100)
    vector = gemv.problem({"m": 10, "n": 7})
    assert (gemv.flops(vector), gemv.bytes_moved(vector)) == (140, 4 * (70 + 7 + 10))


def test_the_output_counts_as_read_only_where_beta_counts():
    gemm = catalogue().get("gemm")
    assert not gemm.output.is_read(gemm.problem(GOOD))
    assert gemm.output.is_read(gemm.problem(GOOD, options={"beta_zero": False}))


def test_an_option_that_came_later_leaves_the_keys_of_others_as_they_were():
    gemm = catalogue().get("gemm")
    usual = gemm.problem(GOOD)
    assert "packed_b" not in usual.canonical
    assert usual == gemm.problem(GOOD, "float32", {"packed_b": False})
    assert dict(usual.options) == dict(usual.option_items)
    assert usual.options["packed_b"] is False
    assert pickle.loads(pickle.dumps(usual)).options["packed_b"] is False  # noqa: S301 - our own
    packed = gemm.problem(GOOD, "float32", {"packed_b": True})
    assert packed.hash != usual.hash
    assert packed.as_json()["options"]["packed_b"] is True
    with pytest.raises(KeyError):
        usual.options["trans_c"]

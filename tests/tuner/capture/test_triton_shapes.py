"""What follows from captured Triton launches: axes, grids, roles, contents, heuristics."""

import numpy as np
import pytest

from tilewright.kernels.triton import GivenArray, constants_of, next_power_of_2
from tilewright.tuner.capture.triton.contents import contents_of
from tilewright.tuner.capture.triton.heuristics import heuristic_text
from tilewright.tuner.capture.triton.launches import Term, grid_along, grid_by_flags
from tilewright.tuner.capture.triton.roles import roles_of
from tilewright.tuner.capture.triton.sizes import axes_of
from tilewright.tuner.capture.triton.space import restrictions, starts, tuned

M, N = 'p.shape["m"]', 'p.shape["n"]'


def columns(*numbers):
    return [np.array(one) for one in numbers]


def test_sizes_that_vary_are_axes_and_others_follow():
    shapes = {"x": [(8, 4), (100, 60)], "y": [(8, 4), (400, 240)], "w": [(3, 3)]}
    sizes = axes_of({"rows": (8, 4), "stride": (100, 60), "flag": (1, 1)}, shapes, 2)
    assert dict(sizes.axes) == {"rows": (8, 4), "x_1": (100, 60)}
    found = [sizes.expression(one) for one in ((400, 240), (800, 240), (3, 3), (1, 1), (7, 9))]
    assert found == ['4 * p.shape["x_1"]', 'p.shape["x_1"] * p.shape["rows"]', "3", "1", None]


def test_a_number_of_elements_follows_from_the_sides_that_are_given_too():
    shapes = {"x": [(256, 512), (128, 128)]}
    sizes = axes_of({"n_elements": (32768, 65536), "m": (256, 512), "n": (128, 128)}, shapes, 2)
    assert [*sizes.axes] == ["m", "n"]
    assert sizes.expression((32768, 65536)) == 'p.shape["n"] * p.shape["m"]'
    assert next(iter(axes_of({"n_elements": (32768, 65536)}, shapes, 2).axes)) == "n_elements"


def test_a_padded_size_is_a_power_of_two_and_another_the_axis():
    sizes = axes_of({"d": (64, 64)}, {"x": [(9, 7), (64, 64)]}, 2)
    assert sizes.power_expression((64, 64), is_padded=True) == 'next_power_of_2(p.shape["d"])'
    assert sizes.power_expression((64, 64), is_padded=False) == 'p.shape["d"]'


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        (lambda m, n, b, c: -(-m // b) * -(-n // c), f"-(-{M} // c.B) * -(-{N} // c.C)"),
        (lambda m, n, b, c: -(-m // (b * c)) * n, f"{N} * -(-{M} // (c.B * c.C))"),
        (lambda m, n, b, c: min(132, -(-m // b) * n), f"min(132, {N} * -(-{M} // c.B))"),
        (lambda _m, _n, _b, _c: 132, "132"),
        (lambda m, n, b, c: m * m + n * b - c, None),
    ],
)
def test_a_grid_follows_from_samples_of_it(grid, text):
    rows = [(m, n, b, c) for m, n in ((1000, 7), (77, 30), (5, 3)) for b in (16, 32, 128) for c in (8, 64)]
    m, n, b, c = (np.array(one) for one in zip(*rows, strict=True))
    sizes = np.array([grid(*row) for row in rows])
    assert grid_along(sizes, [Term(M, m), Term(N, n)], [Term("c.B", b), Term("c.C", c)]) == text


def test_a_flag_may_choose_between_two_grids():
    rows = [(m, b, flag) for m in (1000, 77) for b in (16, 32) for flag in (0, 1)]
    m, b, flag = (np.array(one) for one in zip(*rows, strict=True))
    sizes = np.where(flag, -(-m // b), 1)
    found = grid_by_flags(sizes, [Term(M, m)], [Term("c.B", b)], [Term("bool(c.SPLIT)", flag)])
    assert found == f"(-(-{M} // c.B) if bool(c.SPLIT) else 1)"


ROLES = """
import triton
import triton.language as tl


@triton.jit
def put(where, value, mask):
    tl.store(where, value, mask=mask)


@triton.jit
def kernel(x, index, total, out, state, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    picked = tl.load(index + places)
    address = x + picked
    for k in range(n):
        value = tl.load(address)
        address += BLOCK
    block = tl.make_block_ptr(base=state, shape=(n,), strides=(1,), offsets=(0,), block_shape=(BLOCK,), order=(0,))
    tl.store(block, tl.load(block) + value)
    tl.atomic_add(total, tl.sum(value))
    put(out + places, value, places < n)
"""


def test_what_a_function_does_with_its_arrays_is_seen_through_addresses_and_calls():
    roles = roles_of(ROLES, "kernel")
    assert {name: roles[name] for name in ("x", "index", "total", "out", "state")} == {
        "x": "input",
        "index": "input",
        "total": "inout",
        "out": "output",
        "state": "inout",
    }


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (np.zeros(500, np.float32), "full"),
        (np.random.default_rng(1).normal(0, 3, 5000).astype(np.float32), "normal"),
        (np.array([0, -np.inf] * 100, np.float32), "choice"),
        (np.random.default_rng(1).integers(0, 5000, 900), "integers"),
        (np.arange(900), "places"),
        (np.random.default_rng(1).permutation(900), "permutation"),
        (np.array([0, 10, 25, 900]), "file"),
        (np.full(40, 3e38, np.float32) * np.random.default_rng(1).normal(size=40), "normal"),
    ],
)
def test_inputs_like_a_sample(sample, kind, tmp_path):
    file = tmp_path / "kept.npy"
    assert contents_of(sample, sample.size, file)["kind"] == kind
    assert file.exists() is (kind == "file")


def test_heuristics_become_expressions_without_triton():
    constants = {"LIMIT": 128}
    found = heuristic_text({"text": "lambda a: triton.cdiv(a['K'], LIMIT) > 1", "constants": constants})
    assert found == "-(-args['K'] // 128) > 1"
    defined = "def rounded(args):\n    '''Up.'''\n    return max(16, triton.next_power_of_2(args['x'].shape[1]))"
    text = heuristic_text({"text": defined, "constants": {}})
    args = {"x": GivenArray((3, 100), (100, 1))}
    assert eval(text, {"next_power_of_2": next_power_of_2}, {"args": args}) == 128  # noqa: S307 - as a declaration does
    assert heuristic_text({"text": "lambda args: torch.cuda.is_available()", "constants": {}}) is None
    assert heuristic_text(None) is None


def test_parameters_keep_near_what_was_seen_and_starts_are_the_programs_own():
    configs = [
        {"values": {"BLOCK": 64, "SPLIT": True, "MODE": "a"}, "num_warps": 4, "num_stages": 3},
        {"values": {"BLOCK": 128, "SPLIT": False, "MODE": "b"}, "num_warps": 8, "num_stages": 2},
    ]
    row = {
        "constexprs": {"BLOCK": 128, "SPLIT": False, "MODE": "b"},
        "launch_options": {"num_warps": 8, "num_stages": 2},
    }
    parameters = tuned({"configs": configs}, row, [], "")
    assert {one.name: (one.values, one.default) for one in parameters} == {
        "BLOCK": ((32, 64, 128, 256), 128),
        "SPLIT": ((False, True), False),
        "MODE": (("a", "b"), "b"),
        "num_warps": ((2, 4, 8, 16), 8),
        "num_stages": ((1, 2, 3, 4), 2),
    }
    assert starts(parameters, configs) == [
        {"BLOCK": 128, "SPLIT": 0, "MODE": 1, "num_warps": 8, "num_stages": 2},
        {"BLOCK": 64, "SPLIT": 1, "MODE": 0, "num_warps": 4, "num_stages": 3},
    ]
    assert [one["expression"] for one in restrictions(parameters, configs)] == [
        "c.BLOCK <= 512",
        "c.BLOCK <= 64 * c.num_warps",
    ]


def test_a_warps_part_of_a_tile_fits_its_registers():
    configs = [{"values": {"M": 128, "N": 256, "K": 32}, "num_warps": 8}, {"values": {"M": 64, "N": 32, "K": 32}}]
    row = {"constexprs": configs[0]["values"], "launch_options": {"num_warps": 8}}
    parameters = tuned({"configs": configs}, row, [], "")
    assert [one["expression"] for one in restrictions(parameters, configs)] == [
        "c.M * c.N * c.K <= 4194304",
        "c.M * c.N <= 4096 * c.num_warps",
        "c.M * c.K <= 2048 * c.num_warps",
        "c.N * c.K <= 4096 * c.num_warps",
    ]


def test_constants_are_written_as_python_has_them():
    assert constants_of({"a": True, "b": "relu", "c": None, "d": 4}) == {
        "a": "True",
        "b": "'relu'",
        "c": "None",
        "d": "4",
    }

import math
from dataclasses import replace

import numpy as np
import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Tensor
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.features import Features, sizes_of
from tilewright.tuner.predict.tiles import Tiles

GEMM = catalogue().get("gemm")


def tile_of(m, n):
    default = GEMM.variant("wpt").space().default()
    return Configuration.of("wpt", {**default.values, "TILE_M": m, "TILE_N": n})


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_features_are_finite_and_alike_for_every_variant(kernel):
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    for limits in (H200, Limits((0, 0), 1, 2**32, features=frozenset())):
        starts = kernel.space(problem, limits).defaults()
        rows = Features(kernel, limits).rows(problem, starts)
        assert np.isfinite(rows).all()
        assert len({tuple(row) for row in rows}) == len(starts)


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_groups_tell_shape_launch_tiles_and_parameters_apart(kernel):
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    features = Features(kernel, H200)
    starts = kernel.space(problem, H200).defaults()
    rows = features.rows(problem, starts)
    shape, launch, tiles, both, parameters, everything = features.groups(problem, starts[0])
    variant = parameters[-len(kernel.variants) :]
    assert everything == list(range(rows.shape[1]))
    assert sorted({*shape, *launch, *tiles, *parameters}) == everything
    assert set(both) == {*launch, *tiles}
    assert all(set(variant) <= set(group) for group in (shape, launch, tiles, both, parameters))
    plain = [column for column in shape if column not in variant]
    assert (rows[:, plain] == rows[0, plain]).all()  # of one problem all rows have the same
    np.testing.assert_array_equal(rows[:, parameters], [features.parameters(start) for start in starts])


@pytest.mark.parametrize("axes", [{"batch": 5}, {"lda": 1000, "ldc": 513}, {"batch": 2, "stride_a": 0}])
def test_batches_and_views_have_the_features_that_a_single_product_has(axes):
    features = Features(GEMM, H200)
    plain, other = (GEMM.problem({"m": 300, "n": 512, "k": 96, **more}) for more in ({}, axes))
    configuration = GEMM.variant("wpt").space().default()
    rows = np.concatenate([features.rows(problem, [configuration]) for problem in (plain, other)])
    assert np.isfinite(rows).all()
    assert (rows[0] != rows[1]).any()


def test_a_batch_is_compared_as_one_product_of_as_many_rows():
    batch = GEMM.problem({"m": 48, "n": 64, "k": 96, "batch": 10})
    assert sizes_of(GEMM, batch) == {"m": 480, "n": 64, "k": 96}
    one = GEMM.problem({"m": 480, "n": 64, "k": 96})
    shapes = [Features(GEMM, H200).shape(problem) for problem in (batch, one)]
    same = [place for place, (ours, theirs) in enumerate(zip(*shapes, strict=True)) if ours == theirs]
    assert same == [0, 1, 2, 4, 5, 6]  # one of 48 rows is as aligned as before, and B ten times as large


def test_a_convolution_is_compared_by_the_product_inside_and_tiled_as_that():
    conv2d = catalogue().get("conv2d")
    layer = {"batch": 4, "height": 45, "width": 31, "channels": 96, "filters": 200, "kernel_h": 3, "kernel_w": 3}
    problem = conv2d.problem(layer | {"stride": 2, "padding": 1})
    pixels = 4 * 23 * 16
    assert [size for size in sizes_of(conv2d, problem).values() if size > 1] == [pixels, 9 * 96, 200]
    variant = conv2d.variant("tensor3xtf32")
    start = Configuration.of(variant.name, variant.space().default().values)
    tile_m, tile_n = (start.values[f"WARPS_{axis}"] * start.values[f"WARP_{axis}"] for axis in "MN")
    tiles = -(-pixels // tile_m) * -(-200 // tile_n)
    assert math.log2(tiles) in Features(conv2d, H200).rows(problem, [start])[0]
    assert conv2d.plain(conv2d.problem(layer, options={"depthwise": True})).shape["height"] == 45


def test_a_tensor_is_needed_by_the_tiles_along_the_axes_that_it_lacks():
    problem = GEMM.problem({"m": 1000, "n": 700, "k": 500})
    sharing = dict(zip([t.name for t in GEMM.tensors], Tiles(GEMM).sharing(problem, tile_of(64, 128)), strict=True))
    assert sharing == {"A": 6, "B": 16, "C": 1}


def test_a_shape_that_is_not_defined_for_small_sizes_shares_nothing():
    def shape(problem):
        return (1 // max(0, problem.shape["m"] - 500),)

    odd = Tensor("A", "input", shape)
    kernel = replace(GEMM, arguments=(odd, *GEMM.arguments[1:]))
    problem = kernel.problem({"m": 1000, "n": 700, "k": 500})
    assert Tiles(kernel).sharing(problem, tile_of(64, 128))[0] == 1


@pytest.mark.parametrize(("n", "vector"), [(376, 4), (374, 2), (375, 1)])
def test_rows_that_begin_at_no_multiple_of_a_vector_take_more_copies(n, vector):
    features, configuration = Features(GEMM, H200), tile_of(64, 128)
    problem = GEMM.problem({"m": 1765, "n": n, "k": 392})
    copies = features._copies(features._facts_of(problem), configuration)
    of_a, of_b = copies[0:3], copies[3:6]
    assert (of_a[0], of_b[0]) == (2.0, math.log2(vector))
    assert of_b[1] - of_b[2] == pytest.approx(math.log2(vector))
    wide, high = (features._copies(features._facts_of(problem), tile_of(*tile))[-2] for tile in ((64, 128), (128, 64)))
    assert (high < wide) == (n % 4 != 0)  # tiles that share B are worth more where its rows are copied in pieces

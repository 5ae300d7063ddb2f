"""What a declaration may not say, of a kernel and of its textures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contracts import textured
from contracts.partial_sums import PARTIAL_SUMS, PROBLEM, with_block
from contracts.textured import TEXTURED

from tilewright.kernels.catalogue import flaws
from tilewright.kernels.kernel import Tensor, Texture, shape_of
from tilewright.kernels.reference import close_to


def test_an_output_sized_by_the_configuration_needs_a_check():
    with pytest.raises(ValueError, match="partial_sums: sums: written is for outputs of a kernel with a check"):
        replace(PARTIAL_SUMS, check=None)


def test_it_is_cut_to_what_a_configuration_writes():
    outputs = {"sums": np.arange(16.0)}
    assert PARTIAL_SUMS.written_by(with_block(256), PROBLEM, outputs)["sums"].tolist() == outputs["sums"][:4].tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"memory": "surface"}, "a texture's memory is one of linear, pitched, array, not 'surface'"),
        ({"filter": "cubic"}, "filter is one of point, linear, not 'cubic'"),
        ({"channels": 3}, "channels is one of 1, 2, 4, not 3"),
        ({"memory": "linear", "filter": "linear"}, "has neither filter nor address mode"),
        ({"address": "wrap"}, "address mode wrap needs normalized=True"),
    ],
)
def test_a_texture_that_cuda_does_not_have_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Texture(**words)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (Tensor("near", "output", shape_of("h"), texture=Texture()), "near is a texture: an input of a CUDA source"),
        (Tensor("t", "input", shape_of("h"), texture=Texture(), dtype="float64"), "dtype is of float32, int8"),
        (
            Tensor("t", "input", shape_of("h"), texture=Texture(filter="linear"), dtype="int32"),
            "filter linear: its dtype is of float32, not int32",
        ),
        (
            Tensor("t", "input", shape_of("h", "w"), texture=Texture("linear")),
            r"1 axes, but its shape is \(28, 36\)",
        ),
        (Tensor("t", "input", shape_of("h", 3), texture=Texture(channels=4)), r"4 channels, .*its shape is \(28, 3\)"),
    ],
)
def test_a_tensor_that_cannot_be_such_a_texture_is_a_flaw(tensor, said):
    kernel = replace(TEXTURED, arguments=(tensor, TEXTURED.arguments[-1]))
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(next(flaws(kernel), "no flaw"))


def test_a_texture_reference_is_a_flaw_that_says_what_to_do(tmp_path):
    source = 'texture<float, cudaTextureType2D> image;\nextern "C" __global__ void textured(float* y) {}'
    (tmp_path / "textured.cu").write_text(source)
    flaw = next(flaws(replace(TEXTURED, folder=tmp_path)))
    assert "textured.cu declares a texture reference, which CUDA 12 removed: take a cudaTextureObject_t" in flaw


def test_texels_are_counted_from_x_and_without_their_channels():
    texels = {tensor.name: tensor.texels(textured.PROBLEM) for tensor in TEXTURED.textures}
    assert texels == {"table": (999,), "image": (36, 28), "colours": (36, 28), "tiled": (36, 28), "volume": (36, 28, 5)}
    assert TEXTURED.filtered_axes(textured.PROBLEM) == 3


def test_right_values_alone_are_held_to_the_weights_of_a_filter():
    values = np.array([-1.0, 3.0, np.nan])
    exact, filtered = (close_to(values, "float32", axes) for axes in (0, 2))
    more = 2 * filtered.unit_roundoff * (filtered.magnitude - exact.magnitude)
    np.testing.assert_allclose(more, [2 * 4 / 256] * 2 + [np.nan])

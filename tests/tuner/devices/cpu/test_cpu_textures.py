"""Textures on the CPU device: reads that do not fit the declaration, and what is not a texture."""

import numpy as np
import pytest
from contracts.textured import PROBLEM, TEXTURED, with_bug

from tilewright.kernels.kernel import Kernel, Launch, Tensor, Texture, Variant, shape_of
from tilewright.kernels.space import Configuration
from tilewright.tuner.cpu import CpuDevice
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime import LaunchError
from tilewright.tuner.runtime.launcher import Launcher


def kernel_of(folder, parameter, texel, **tensor):
    """y[i] = what `texel` says, i the thread."""
    source = f'extern "C" __global__ void f({parameter}, float* y) {{ const int i = threadIdx.x; y[i] = {texel}; }}'
    (folder / "f.cu").write_text(source)
    return Kernel(
        name="f",
        folder=folder,
        arguments=(Tensor("x", "input", shape_of("n"), **tensor), Tensor("y", "output", shape_of("n"))),
        variants=(Variant("plain", "f.cu", lambda _c, p: Launch((1, 1, 1), (p.shape["n"], 1, 1))),),
        reference=lambda _p, arrays, _s: arrays["x"].astype(np.float64),
        example_shape={"n": 32},
    )


def verified(kernel):
    bench = CpuDevice().bench(kernel, kernel.problem({"n": 32}), seed=1)
    try:
        return bench.verify(bench.compile(Configuration.of("plain", {})))
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("texel", "texture", "said"),
    [
        ("tex1D<float>(x, i)", Texture("linear"), "x is declared as a texture for tex1Dfetch, and read by another"),
        ("tex2D<float>(x, i, 0)", Texture(), "x is declared as a texture for tex1D, and read by another function"),
        ("tex1Dfetch<float2>(x, i).x", Texture("linear"), "x is read as texels of another type"),
        ("tex1Dfetch<int>(x, i)", Texture("linear"), "x is read as texels of another type"),
    ],
)
def test_a_read_that_does_not_fit_the_declaration_fails_and_says_why(tmp_path, texel, texture, said):
    with pytest.raises(TrialFailure, match=said) as failed:
        verified(kernel_of(tmp_path, "cudaTextureObject_t x", texel, texture=texture))
    assert failed.value.outcome is Outcome.LAUNCH_FAILED


@pytest.mark.parametrize(
    ("parameter", "texel", "texture"),
    [("const float* x", "x[i]", Texture("linear")), ("cudaTextureObject_t x", "tex1Dfetch<float>(x, i)", None)],
)
def test_a_texture_in_one_place_only_is_refused(tmp_path, parameter, texel, texture):
    with pytest.raises(TunerError, match="a texture of the declaration and a cudaTextureObject_t of the kernel must"):
        verified(kernel_of(tmp_path, parameter, texel, texture=texture))


def test_a_linear_filter_wraps_around_the_ends(tmp_path):
    texture = Texture(filter="linear", address="wrap", normalized=True)
    halfway = kernel_of(tmp_path, "cudaTextureObject_t x", "tex1D<float>(x, (i + 33) / 32.0f)", texture=texture)
    object.__setattr__(
        halfway, "reference", lambda _p, arrays, _s: (arrays["x"] + np.roll(arrays["x"], -1)).astype(np.float64) / 2
    )
    assert verified(halfway).wrong == 0


def test_the_launcher_refuses_a_kernel_with_textures():
    with pytest.raises(LaunchError, match="textured reads table as a texture, and the launcher passes addresses only"):
        Launcher(TEXTURED, PROBLEM, "cpu", lambda *_: with_bug(0))

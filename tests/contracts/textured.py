"""textured: inputs read as textures of every kind of memory, filter and address mode."""

from pathlib import Path

import numpy as np

from tilewright.kernels.fields.arguments import WEIGHT_STEP
from tilewright.kernels.kernel import Kernel, Launch, Reference, Tensor, Texture, Variant, shape_of
from tilewright.kernels.space import Configuration, choice


def outside_is_zero(array, indices):
    """The elements at these indices along the first axis, 0 where there are none."""
    inside = (indices >= 0) & (indices < len(array))
    return array[np.clip(indices, 0, len(array) - 1)] * inside.reshape(-1, *(1,) * (array.ndim - 1))


def interpolated(array, offsets, mode):
    """Each element and its neighbours, weighted for these distances from its middle; NumPy pads by `mode`."""
    value = array.astype(np.float64)
    magnitude = np.abs(value)
    for axis, offset in enumerate(offsets):
        first, weight = int(np.floor(offset)), offset - np.floor(offset)
        width = [(3, 3) if place == axis else (0, 0) for place in range(value.ndim)]
        parts = []
        for part, weights in ((value, (1 - weight, weight)), (magnitude, (1, 1))):
            padded = np.moveaxis(np.pad(part, width, mode=mode), axis, 0)
            starts = (3 + first, 4 + first)
            taken = [padded[start : start + part.shape[axis]] for start in starts]
            parts.append(np.moveaxis(sum(w * t for w, t in zip(weights, taken, strict=True)), 0, axis))
        value, magnitude = parts
    return Reference(value, magnitude, terms=1, unit_roundoff=len(offsets) * WEIGHT_STEP / 2)


def reference(problem, arrays, _scalars):
    h, w = problem.shape["h"], problem.shape["w"]
    picked = outside_is_zero(arrays["table"], np.arange(h * w) - 5).reshape(h, w)
    blue = outside_is_zero(arrays["colours"][:, :, 2].T, np.arange(w) - 3).T
    mirrored = np.concatenate([arrays["tiled"], arrays["tiled"][:, ::-1]], 1)
    mirrored = np.concatenate([mirrored, mirrored[::-1]], 0)
    down, right = np.meshgrid(np.arange(h) + 9 * h // 4, np.arange(w) - 5 * w // 4, indexing="ij")
    return {
        "picked": picked + blue,
        "near": arrays["image"][np.clip(np.arange(h) - 3, 0, h - 1)],
        "turned": mirrored[down % (2 * h), right % (2 * w)],
        "mixed": interpolated(arrays["volume"], (-0.375, -0.125, 0.2), "edge"),
    }


def entries(problem):
    """Fewer than there are threads, so that some read outside."""
    return (problem.shape["h"] * problem.shape["w"] - 9,)


TEXTURED = Kernel(
    name="textured",
    folder=Path(__file__).parents[1] / "tuner" / "mixed_kernels",
    arguments=(
        Tensor("table", "input", entries, dtype="int32", texture=Texture("linear")),
        Tensor("image", "input", shape_of("h", "w"), texture=Texture("pitched")),
        Tensor("colours", "input", shape_of("h", "w", 4), dtype="uint8", texture=Texture(address="border", channels=4)),
        Tensor("tiled", "input", shape_of("h", "w"), texture=Texture(address="mirror", normalized=True)),
        Tensor("volume", "input", shape_of("d", "h", "w"), texture=Texture(filter="linear")),
        Tensor("picked", "output", shape_of("h", "w"), dtype="int32"),
        Tensor("near", "output", shape_of("h", "w")),
        Tensor("turned", "output", shape_of("h", "w")),
        Tensor("mixed", "output", shape_of("d", "h", "w")),
    ),
    variants=(
        Variant(
            "plain",
            "textured.cu",
            lambda _c, p: Launch((-(-p.shape["w"] // 16), -(-p.shape["h"] // 16), 1), (16, 16, 1)),
            (choice("BUG", 0, 1, 2),),
        ),
    ),
    reference=reference,
    example_shape={"h": 28, "w": 36, "d": 5},
)

PROBLEM = TEXTURED.problem(TEXTURED.example_shape)


def with_bug(number):
    return Configuration.of("plain", {"BUG": number})

"""Files for vLLM and SGLang, made of a bundle's results."""

from __future__ import annotations

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, shape_of
from tilewright.kernels.space import powers_of_two
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.exchange.serving import default_row, described, serving_files
from tilewright.service.operations.jobs.starts import starts_in

SIZES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BK", "num_warps")
RENAME = {"BLOCK_SIZE_K": "BK"}
KERNEL = Kernel(
    name="moe",
    axes=("m", "n", "k"),
    dtypes=("bfloat16", "float32"),
    arguments=(Tensor("x", "output", shape_of("m", "n")),),
    variants=(
        Variant(
            name="tiles",
            source="moe.py",
            launch=lambda _c, _p: Launch((1, 1, 1), (32, 1, 1)),
            parameters=tuple(powers_of_two(name, 1, 256, default=16) for name in SIZES),
        ),
    ),
)


def result(m, n, block_m, dtype="bfloat16", **more):
    values = dict(zip(SIZES, (block_m, 64, 32, 4), strict=True))
    problem = {"kernel": "moe", "shape": {"m": m, "n": n, "k": 7168}, "dtype": dtype, "options": {}}
    return {**problem, "variant": "tiles", "configuration": values} | more


BUNDLE = {
    "device_model": {"name": "NVIDIA H200"},
    "results": [
        result(64, 512, 32),
        result(1, 512, 16),
        result(1, 256, 16, "float32"),
        result(1, 512, 128, kernel="gemm"),
        result(1, 512, 128, options={"trans": True}),
    ],
}


def test_a_file_holds_every_m_of_its_shape():
    files = serving_files(BUNDLE, KERNEL, RENAME)
    row = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 4}
    assert files == {
        "N=512,K=7168,device_name=NVIDIA_H200.json": {"1": row, "64": row | {"BLOCK_SIZE_M": 32}},
        "N=256,K=7168,device_name=NVIDIA_H200,dtype=float32.json": {"1": row},
    }
    assert list(files["N=512,K=7168,device_name=NVIDIA_H200.json"]) == ["1", "64"]


@pytest.mark.parametrize(
    ("gain", "interval", "block"),
    [(1.2, [0.9, 1.1], 128), (1.05, [0.9, 1.1], 16), (None, [0.9, 1.1], 16), (1.2, None, 16)],
)
def test_a_row_is_the_default_unless_the_best_is_ahead_beyond_the_interval(gain, interval, block):
    row = result(8, 512, 128, time_ms=1.0, gain_over_default=gain, ci_ms=interval)
    [file] = serving_files(BUNDLE | {"results": [row]}, KERNEL, RENAME).values()
    assert file["8"]["BLOCK_SIZE_M"] == block
    said = "m=8" if block == 128 else "m=8; those of 8 are the default configuration"
    said = f"rows for {said}; any other m takes the nearest row"
    assert described(file, default_row(KERNEL, RENAME)) == f"{said}; without GROUP_SIZE_M, which their kernels take"
    grouped = {m: values | {"GROUP_SIZE_M": 1} for m, values in file.items()}
    assert described(grouped, {}) == "rows for m=8; any other m takes the nearest row"


def test_what_is_written_is_read_again():
    (rows, *_) = serving_files(BUNDLE, KERNEL, RENAME).values()
    found = starts_in(rows, KERNEL, {"m": 50, "n": 512, "k": 7168}, RENAME)
    assert [start.configuration["BLOCK_SIZE_M"] for start in found.starts] == [32, 16]
    assert found.unknown == set()


def test_a_result_from_before_an_option_was_added_has_the_options_default():
    linear = catalogue().get("linear")
    stored = {option.name: option.default for option in linear.options if option.name not in {"packed_b", "output"}}
    row = {"kernel": "linear", "shape": {"m": 8, "n": 32, "k": 16}, "dtype": "float32", "options": stored}
    bundle = BUNDLE | {"results": [row | {"configuration": {"TILE_M": 8, "TILE_N": 32, "TILE_K": 8}}]}
    names = {f"BLOCK_SIZE_{axis}": f"TILE_{axis}" for axis in "MNK"}
    [file] = serving_files(bundle, linear, names).values()
    assert file == {"8": {"BLOCK_SIZE_M": 8, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 8}}


@pytest.mark.parametrize(
    ("kernel", "said"), [("gemm", "no parameter BLOCK_SIZE_M"), ("moe", "no parameter BLOCK_SIZE_K")]
)
def test_a_kernel_without_their_parameters_is_refused(kernel, said):
    with pytest.raises(InvalidRequestError, match=said):
        serving_files(BUNDLE, KERNEL if kernel == "moe" else catalogue().get(kernel), {})

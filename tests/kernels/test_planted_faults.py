"""Faults that were planted in the sources, and that verification on the CPU device has to find."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from faulty_kernels import with_change

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.errors import TrialFailure

FAULTS = json.loads((Path(__file__).parents[1] / "data" / "planted_faults.json").read_text())
SHAPES = {
    "gemv": {"m": 53, "n": 71},
    "linear_gated": {"m": 17, "n": 40, "k": 64},
    "linear_quantized": {"m": 3, "n": 64, "k": 256},
    "conv2d": {
        "batch": 2,
        "height": 7,
        "width": 9,
        "channels": 8,
        "filters": 12,
        "kernel_h": 3,
        "kernel_w": 3,
        "padding": 1,
    },
} | {name: {"m": 37, "n": 41, "k": 67} for name in ("gemm", "linear")}
ROWS = {"m": 19, "n": 203}
IN_EVERY_RUN = {"B clamped above 1e5", "maximum starts at 0", "wrong every 50th launch", "one array", "eps hard-coded"}


def is_found(bench, configuration):
    """Whether a job would refuse the configuration."""
    try:
        return not all(one.is_right for one in bench.verify_each_kind(bench.compile(configuration)))
    except TrialFailure:
        return True


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            marks=[] if fault["what"] in IN_EVERY_RUN else pytest.mark.exhaustive,
            id=f"{fault['kernel']}-{fault['what']}",
        )
        for fault in FAULTS
    ],
)
def test_a_planted_fault_is_found(device, tmp_path, fault):
    file = "../" + fault["file"].removeprefix("include/")
    kernel = with_change(catalogue().get(fault["kernel"]), tmp_path, file, fault["old"], fault["new"], most=1)
    shape = fault.get("shape") or SHAPES.get(kernel.name, ROWS)
    problem = kernel.problem(shape, fault.get("dtype", "float32"), fault.get("options", {}))
    configuration = kernel.space(problem, device.model.limits, only=[fault["variant"]]).defaults()[0]
    with closing(device.bench(kernel, problem, seed=5)) as bench:
        assert is_found(bench, configuration), fault["what"]

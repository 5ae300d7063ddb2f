"""Small things of the tuner: the roofline and the words of errors."""

import sys
from dataclasses import replace

import made_recordings as made
import pytest

from tilewright.tuner.errors import first_error
from tilewright.tuner.pytorch.recording.command import run
from tilewright.tuner.recorded.replay import replay
from tilewright.tuner.roofline import gb_per_s, gflops, percent_of_roof, roof_gflops

DEVICE, KERNEL, PROBLEM = replay(made.valley())
H200 = replace(DEVICE.model, datasheet_gflops={"float32": 66_900.0}, datasheet_gb_per_s=4_800.0)


def product(n):
    return replace(KERNEL, flops=lambda _p: 2 * n**3, bytes_moved=lambda _p: 4 * 3 * n**2)


def test_a_large_product_is_under_the_peak_and_a_row_sum_under_the_memory():
    assert roof_gflops(H200, "float32", 2 * 4096**3, 12 * 4096**2) == 66_900
    assert roof_gflops(H200, "float32", 10**6, 4 * 10**6) == pytest.approx(1_200)


def test_a_measured_copy_does_not_lower_the_roof_because_reading_alone_is_faster():
    assert roof_gflops(replace(H200, measured_gb_per_s=4_000.0), "float32", 10**6, 4 * 10**6) == pytest.approx(1_200)


@pytest.mark.parametrize(
    ("dtype", "accuracy", "peak"),
    [
        ("float32", None, 66_900),
        ("float32", "fp32-fma", 66_900),
        ("float32", "fp32", 329_800),
        ("float32", "tf32", 494_700),
        ("float64", "fp32", 66_000),
        ("float64", None, 33_000),
        ("bfloat16", "fp32", 989_500),
        ("float16", None, 989_500),
        ("float16", "fp32-fma", 989_500),
    ],
)
def test_the_peak_is_that_of_the_arithmetic_that_is_admitted(dtype, accuracy, peak):
    cores, tensor_cores = {"float32": 66_900.0, "float64": 33_000.0}, {"tf32": 494_700.0, "fp64_tensor": 66_000.0}
    tensor_cores["half_tensor"] = 989_500.0
    model = replace(H200, datasheet_gflops=cores | tensor_cores)
    assert roof_gflops(model, dtype, 2 * 16384**3, 12 * 16384**2, accuracy) == peak


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
def test_without_tensor_cores_the_cuda_cores_are_the_peak(accuracy):
    assert roof_gflops(H200, "float32", 2 * 4096**3, 12 * 4096**2, accuracy) == 66_900
    cores = replace(H200, datasheet_gflops={"float64": 33_000.0})
    assert roof_gflops(cores, "float64", 2 * 4096**3, 24 * 4096**2, accuracy) == 33_000


def test_percent_of_roof_of_a_known_time():
    # 51.1 TFLOP/s at 4096 cubed is 2.69 ms
    assert percent_of_roof(product(4096), PROBLEM, H200, 2.6896) == pytest.approx(76.4, abs=0.1)


@pytest.mark.parametrize(
    "model",
    [DEVICE.model, replace(H200, datasheet_gb_per_s=None), replace(H200, datasheet_gflops={"float64": 1.0})],
)
def test_without_peaks_there_is_no_roof(model):
    assert percent_of_roof(product(64), PROBLEM, model, 1.0) is None


def test_a_kernel_without_counted_work_has_no_roof():
    assert percent_of_roof(KERNEL, PROBLEM, H200, 1.0) is None


def test_rates_are_decimal():
    assert gflops(2_000_000, 1.0) == 2.0
    assert gb_per_s(3_000_000_000, 1000.0) == 3.0


def test_a_kernel_that_only_moves_data_is_measured_against_the_memory():
    copy = replace(KERNEL, flops=lambda _p: 0, bytes_moved=lambda _p: 4_800 * 10**6)
    assert percent_of_roof(copy, PROBLEM, H200, 2.0) == pytest.approx(50)
    assert percent_of_roof(copy, PROBLEM, replace(H200, datasheet_gb_per_s=None), 2.0) is None


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "two.cu: In function 'float twice(float)':\ntwo.cu:1:50: error: 'missing' was not declared\n",
            "two.cu:1:50: error: 'missing' was not declared",
        ),
        (
            'kernel.cu(4): error: identifier "x" is undefined\n\n1 error detected',
            'kernel.cu(4): error: identifier "x" is undefined',
        ),
        (
            "In file included from a.h:1:\nb.h:2:10: fatal error: 'c.h' file not found",
            "b.h:2:10: fatal error: 'c.h' file not found",
        ),
        (
            "ptxas info : 3 registers\nptxas fatal   : Unresolved extern function 'f'",
            "ptxas fatal   : Unresolved extern function 'f'",
        ),
        ("note: candidate: int on_error(int)\nkilled after 60 s", "note: candidate: int on_error(int)"),
        ("", ""),
    ],
)
def test_the_first_error_of_a_log_is_quoted(log, line):
    assert first_error(log) == line


def test_a_program_without_pytorch_is_run_and_told_that_nothing_was_recorded(capfd, tmp_path):
    out = tmp_path / "seen.json"
    assert run([sys.executable, "-c", "print('its own')"], out=out) == 0
    said = capfd.readouterr()
    assert said.out == "its own\n"
    assert said.err.startswith("Nothing was recorded: the program did not import PyTorch")
    assert not out.exists()

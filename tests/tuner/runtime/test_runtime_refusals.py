"""What the launcher refuses before anything runs, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_gemm import Elsewhere, K, M, N, operands

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.tuner.runtime import ArgumentError, LaunchError, WrongDeviceError
from tilewright.tuner.runtime.launches import devices
from tilewright.tuner.runtime.launches.devices import resolved

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")


def refused_arguments():
    a, b, c = operands()
    buffer = np.empty(M * K + 4, np.float32)
    shifted = buffer[(1 - buffer.ctypes.data // 4) % 4 :][: M * K].reshape(M, K)
    frozen = c.copy()
    frozen.flags.writeable = False
    return {
        "another dtype": ({"A": a.astype(np.float64)}, "^A: is float64, the problem is float32"),
        "integers": ({"A": a.astype(np.int32)}, "^A: is int32"),
        "foreign byte order": ({"B": b.astype(">f4")}, "^B: is float32 in foreign byte order"),
        "another shape": ({"A": a[:-1]}, r"^A: has the shape \(23, 36\), the problem needs \(24, 36\)"),
        "turned": ({"B": b.T}, r"^B: has the shape \(20, 36\).*trans_b"),
        "flat": ({"A": a.ravel()}, "^A: has the shape"),
        "every other column": ({"A": np.repeat(a, 2, axis=1)[:, ::2]}, r"^A: strides \(72, 2\).*Make it contiguous"),
        "backwards": ({"A": a[::-1]}, "^A: strides"),
        "one row for all": ({"A": np.broadcast_to(a[:1], a.shape)}, "^A: strides"),
        "a transposed output": ({"C": np.asfortranarray(c)}, "^C: strides"),
        "misaligned": ({"A": shifted}, "^A: starts 4 bytes past a multiple of 16"),
        "a read-only output": ({"C": frozen}, "^C: is read-only"),
        "the output is an input": ({"C": a.reshape(-1)[: M * N].reshape(M, N)}, "^C: shares memory with A"),
        "a scalar that is fixed": ({"beta": 0.5}, "^beta: is 0.5, but this problem says that it is 0"),
        "a scalar that is none": ({"alpha": "two"}, "^alpha: 'two' is not a number"),
        "no such argument": ({"D": a}, "^D: gemm has no such argument"),
        "one is missing": ({"B": None}, "^B: is missing"),
    }


@pytest.mark.parametrize("case", list(refused_arguments()))
def test_a_wrong_argument_is_named_and_nothing_runs(launch, case):
    a, b, c = operands()
    change, words = refused_arguments()[case]
    if case == "the output is an input":
        change = {"C": a.reshape(-1)[: M * N].reshape(M, N)}
    given = {"A": a, "B": b, "C": c} | change
    with pytest.raises(ArgumentError, match=words) as refused:
        launch(**given)
    assert refused.value.argument in words
    assert np.isnan(c).all()


def test_too_many_arrays_and_one_given_twice_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match="takes 3 arrays: A, B, C"):
        launch(a, b, c, c)
    with pytest.raises(ArgumentError, match=r"^A: is given twice"):
        launch(a, b, c, A=a)


def test_what_is_no_array_is_refused(launch):
    a, b, c = operands()
    with pytest.raises(LaunchError, match=r"builtins\.list is not an array"):
        launch(a.tolist(), b, c)


def test_arrays_on_two_devices_are_refused(launch):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="A on a GPU, B on the CPU"):
        launch(Elsewhere(a.shape), b, c)


def test_a_launcher_for_a_gpu_takes_no_arrays_of_the_cpu(runtime):
    a, b, c = operands()
    with pytest.raises(WrongDeviceError, match="there is no device 'tpu'"):
        runtime.best("gemm", m=M, n=N, k=K, device="tpu")
    on_cpu = runtime.best("gemm", m=M, n=N, k=K, device="cpu")
    with pytest.raises(WrongDeviceError, match="for cpu, but the arrays are on cuda"):
        on_cpu(*(Elsewhere(x.shape) for x in (a, b, c)))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kernel": "gem"}, UnknownNameError, "no kernel 'gem'"),
        ({"k": None}, InvalidProblemError, "shape.k"),
        ({"k": -1}, InvalidProblemError, "shape.k"),
        ({"dtype": "int8"}, InvalidProblemError, "dtype"),
        ({"trans_c": True}, InvalidProblemError, "options.trans_c"),
        ({"k": 0}, InvalidProblemError, "shape.k: of an empty sum"),
    ],
)
def test_a_problem_that_is_none_is_refused_by_its_field(runtime, arguments, error, words):
    asked = {"kernel": "gemm", "m": M, "n": N, "k": K} | arguments
    with pytest.raises(error, match=words):
        runtime.best(**{name: value for name, value in asked.items() if value is not None})


def test_only_a_dtype_that_there_is_is_proposed(runtime, launch):
    a, b, c = operands()
    with pytest.raises(ArgumentError, match=r'Convert it to float32, or ask best\(…, dtype="float64"\)$'):
        launch(a.astype("f8"), b, c)
    with pytest.raises(ArgumentError, match=r"to float32: gemm computes in float32, float64, bfloat16, float16$"):
        launch(a.astype("i2"), b, c)


@pytest.mark.parametrize("current", [None, 2])
@pytest.mark.parametrize("named", ["cpu", "cuda", "cuda:3", "cuda:", "cuda:x", "cuda:-1", "gpu:1", "cpu:0", "CUDA", ""])
def test_a_device_is_the_cpu_or_a_gpu_by_its_number_or_the_current_one(monkeypatch, named, current):
    monkeypatch.setattr(devices, "current_ordinal", lambda: current)
    if named in {"cpu", "cuda", "cuda:3"}:
        assert resolved(named) == (f"cuda:{current or 0}" if named == "cuda" else named)
        return
    with pytest.raises(WrongDeviceError, match=f"there is no device '{named}'. Name one like cpu, cuda or cuda:0"):
        resolved(named)

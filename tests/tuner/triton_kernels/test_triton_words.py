"""What the CPU device's bench says to Triton's interpreter is what that reads; Triton itself is not needed for it."""

from pathlib import Path

import pytest
from triton_kernels.scaled import CONFIGURATION, PROBLEM, scaled_in

from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.runner import Program
from tilewright.tuner.outcome import Resources
from tilewright.tuner.triton.interpreter import InterpretedProgram, _arguments


@pytest.fixture
def bench(tmp_path):
    device = CpuDevice(cache=tmp_path / "cache")
    bench = device.bench(scaled_in(tmp_path), PROBLEM, 1)
    yield bench
    bench.close()
    device.close()


def test_arrays_numbers_and_constants_arrive_as_they_are_said(bench):
    kernel = bench.kernel
    launches = tuple(one for _, one in kernel.variants[0].launches("", CONFIGURATION.values, PROBLEM))
    program = Program(Path("scaled.triton.json"), CONFIGURATION, launches, Resources(), 0.0)
    words = bench.runner.command(program, "verify 1 255 0", "out", bench._sources, bench._scalars)
    start = words.index("verify") + len(("verify", "1", "255", "0")) + 7 * len(launches)
    rest = iter(words[start:])
    x, y, *numbers = _arguments(rest, InterpretedProgram.of(kernel, PROBLEM, CONFIGURATION).types)
    assert [(one.name, one.size, one.writable) for one in (x, y)] == [("x", 400, False), ("y", 400, True)]
    assert numbers == [100, 1, 2.0]
    assert next(rest, None) is None

"""What each variant is held to: results on the host, and what the compiler makes of the declared resources."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import closing

import pytest

from tilewright.kernels.kernel import Kernel, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, SearchSpace
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.cache import compiled_by
from tilewright.tuner.compile.compilation import Compilation, Compiled, arch_of
from tilewright.tuner.devices.device import Device
from tilewright.tuner.outcome import Verification

H200 = Limits((9, 0), 132, 140 * 2**30, max_shared_bytes=227 * 1024, shared_bytes_per_multiprocessor=228 * 1024)
A100 = Limits((8, 0), 108, 80 * 2**30, max_shared_bytes=163 * 1024, shared_bytes_per_multiprocessor=164 * 1024)

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="needs NVRTC (the wheel nvidia-cuda-nvrtc)")


def drawn(
    variant: Variant, problem: Problem, limits: Limits, seed: object, count: int = 1, **fixed: int
) -> Sequence[Configuration]:
    """Random feasible configurations with these values."""
    feasible = SearchSpace((variant.space(),), problem, limits).feasible
    return random.Random(str(seed)).sample([c for c in feasible if fixed.items() <= c.values.items()], count)


def assert_right(device: Device, kernel: Kernel, problem: Problem, configuration: Configuration) -> None:
    """The configuration computes what the reference does."""
    verification = verified(device, kernel, problem, configuration)
    assert verification.is_right, (configuration, verification.message())


def assert_right_for_each_kind(device: Device, kernel: Kernel, problem: Problem, configuration: Configuration) -> None:
    """The same with every kind of inputs."""
    with closing(device.bench(kernel, problem, seed=1)) as bench:
        for verification in bench.verify_each_kind(bench.compile(configuration)):
            assert verification.is_right, (configuration, verification.message())


def assert_resources_suffice(
    kernel: Kernel,
    problem: Problem,
    configuration: Configuration,
    limits: Limits,
    blocks: int = 1,
    most_spilled: int = 0,
) -> Compiled:
    """So many blocks find their registers, few are spilled, shared memory is as declared, and no product waits."""
    variant = kernel.variant(configuration.variant)
    work = Compilation.of(kernel, problem, configuration, arch_of(limits.compute_capability), "nvrtc")
    compiled = compiled_by(None, work)
    resources, threads = compiled.resources, variant.launch(configuration.values, problem).threads
    assert resources.registers * threads * blocks <= limits.registers_per_multiprocessor, configuration
    assert resources.spill_bytes <= most_spilled, (configuration, resources.spill_bytes)
    assert resources.shared_bytes == variant.static_shared_bytes(configuration.values, problem), configuration
    # ptxas says so where it makes each product wait for the one before it.
    assert "serialized" not in compiled.log, configuration
    return compiled


def verified(device: Device, kernel: Kernel, problem: Problem, configuration: Configuration) -> Verification:
    """What the bench says of it, with the inputs that are timed."""
    with closing(device.bench(kernel, problem, seed=5)) as bench:
        return bench.verify(bench.compile(configuration))


def parameters_of(cubin: bytes) -> list[int]:
    """Bytes of each parameter by the cubin's own table: entries 0x1704 (EIATTR_KPARAM_INFO) of .nv.info."""
    found, place = {}, 0
    while (place := cubin.find(b"\x04\x17\x0c\x00", place)) >= 0:
        ordinal, _offset, flags = struct.unpack_from("<HHI", cubin, place + 8)
        found[ordinal], place = flags >> 18, place + 4
    return [found[ordinal] for ordinal in sorted(found)]

"""The CPU device: CUDA sources, unmodified, run on the host. One thread, timed in its CPU seconds."""

from __future__ import annotations

import os
import platform
import re
import uuid
from functools import cached_property
from pathlib import Path

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.tuner.devices import host_memory
from tilewright.tuner.devices.cpu.bench import CpuBench
from tilewright.tuner.devices.cpu.build import HostBuilder, cpu_information
from tilewright.tuner.devices.cpu.compile import find_compiler, shim_hash
from tilewright.tuner.devices.cpu.scratch import remove_abandoned
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.loop.expected import trusted_configuration

_TRADE_MARKS = re.compile(r"\((?:R|TM|C)\)|\bprocessor\b|\bcpu\b|@.*$", re.IGNORECASE)


CPU_NAME_VARIABLE = "TILEWRIGHT_CPU_NAME"
"""Set by `tilewright worker --name` for the worker and its runners: which of this host's CPU devices they are."""


class CpuDevice:
    """The CPU of this host. Its times are compared with each other only, never with a GPU's.

    `run_timeout_s` is how long one evaluation may take beyond what the problem's size explains; benches take it over
    when they are made. Raises NoCompilerError where there is no C++ compiler.
    """

    def __init__(self, compiler: str | None = None, cache: Path | None = None, run_timeout_s: float = 10.0) -> None:
        self.run_timeout_s = run_timeout_s
        self._builder = HostBuilder(find_compiler(compiler), cache)

    @property
    def uuid(self) -> str:
        """An id that is the same on every start on this host, and differs for each name that a worker was given."""
        name = os.environ.get(CPU_NAME_VARIABLE)
        words = [_machine_id(), cpu_name(), *([name] if name else [])]
        return f"CPU-{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(words))}"

    @cached_property
    def model(self) -> DeviceModel:
        """The CPU by name. One multiprocessor, as one thread runs; memory is what is available now."""
        return DeviceModel(
            slug=f"cpu:{slug_of(cpu_name())}",
            name=cpu_name(),
            kind="cpu",
            limits=Limits(
                compute_capability=(0, 0),
                multiprocessors=1,
                memory_bytes=host_memory.available_bytes(),
                max_shared_bytes=48 * 1024,
                features=frozenset(),
            ),
            l2_bytes=cache_bytes(2) or 1 << 20,
            datasheet_gflops={},
            datasheet_gb_per_s=None,
        )

    @cached_property
    def environment(self) -> Environment:
        """The compiler and the shim: of our parts, times depend on these alone."""
        compiler = self._builder.compiler
        return Environment(
            driver="host",
            toolkit=f"host {platform.machine()}",
            compiler=compiler.name,
            compiler_version=compiler.version,
            runtime=f"host shim {shim_hash()[:12]}",
            clocks="default",
        )

    def bench(self, kernel: Kernel, problem: Problem, seed: int) -> CpuBench:
        """A bench with fresh random inputs."""
        remove_abandoned()  # they take the memory that this one needs
        bench = CpuBench(
            self._builder,
            kernel,
            problem,
            seed,
            memory_bytes=host_memory.available_bytes(),
            cache_bytes=max(cache_bytes(2), cache_bytes(3)) or 1 << 24,
            trusted=trusted_configuration(kernel, problem, self.model.limits),
        )
        bench.runner.run_timeout_s = self.run_timeout_s
        return bench

    def close(self) -> None:
        """Removes programs that could not be cached."""
        self._builder.close()


def cpu_name() -> str:
    """The model's name as the kernel gives it; the architecture where it gives none (aarch64)."""
    return cpu_information().get("model name") or platform.processor() or platform.machine()


def slug_of(name: str) -> str:
    """Lower case words joined by hyphens, without trade marks and clock rates."""
    return re.sub(r"[^a-z0-9]+", "-", _TRADE_MARKS.sub(" ", name).lower()).strip("-")


def cache_bytes(level: int) -> int:
    """The size of the first processor's data cache of that level; 0 where the system does not tell."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            found, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if found == str(level) and kind != "Instruction":
            return int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
    return 0


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text().strip()
        except OSError:
            continue
    return platform.node()

"""A GPU's primary context, by PyCUDA: the only module that imports it. For processes that may own a context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pycuda
import pycuda.compiler
import pycuda.driver as drv

from tilewright.kernels.kernel import Launch
from tilewright.tuner.compile.compilation import (
    Compilation,
    Compiled,
    Compiler,
    arch_of,
    compiler_version,
)
from tilewright.tuner.devices.cuda import model as cuda_model
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.cuda.driver import DriverError
from tilewright.tuner.devices.cuda.graph import LaunchGraph
from tilewright.tuner.devices.device import DeviceModel, Environment
from tilewright.tuner.errors import NoDeviceError, OutOfMemoryError, TrialFailure
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.outcome import Outcome

_COPY_BYTES = 1 << 29
_COPIES = 5


class CudaContext:
    """One GPU and its primary context, which stays current in this thread until `close`."""

    def __init__(self, gpu: nvml.Gpu, compiler: Compiler, compile_: Callable[[Compilation], Compiled]) -> None:
        self.gpu, self.compiler, self.compile = gpu, compiler, compile_
        drv.init()
        try:
            # CUDA shows a process one slice, the one that DeviceSpec made visible; its address is the whole GPU's.
            handle = drv.Device(0) if gpu.parent_uuid else drv.Device(gpu.pci_bus_id)
        except drv.Error as error:
            raise NoDeviceError(f"{gpu.name}: CUDA cannot open it ({error})") from error
        self._context = handle.retain_primary_context()
        self._context.push()
        self.stream = drv.Stream()
        attributes = {name: int(value) for value, name in _attribute_names(handle.get_attributes())}
        self._model = cuda_model.model_of(
            gpu.name if gpu.parent_uuid else handle.name(), attributes, handle.total_memory(), self._copy_gb_per_s()
        )
        version = compiler_version(compiler)
        self._environment = Environment(
            driver=nvml.driver_version(),
            toolkit=".".join(version.split(".")[:2]),
            compiler=compiler,
            compiler_version=version,
            runtime=f"PyCUDA {pycuda.VERSION_TEXT}",
            clocks=nvml.clocks(gpu.uuid),
        )

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self.gpu.uuid

    @property
    def model(self) -> DeviceModel:
        """The GPU's model, with limits and peak rates."""
        return self._model

    @property
    def environment(self) -> Environment:
        """The driver, toolkit and compiler here."""
        return self._environment

    def close(self) -> None:
        """Gives the context back. PyCUDA aborts a process that ends with one still pushed."""
        if self._context is not None:
            self._context.pop()
            self._context.detach()
            self._context = None

    def compilation(self, source: str, definitions: Mapping[str, str], entry: str, suffix: str = "") -> Compilation:
        """A compilation for this GPU by its compiler; `suffix` goes behind the architecture's name."""
        arch = arch_of(self._model.limits.compute_capability) + suffix
        return Compilation(source, tuple(sorted(definitions.items())), arch, entry, self.compiler)

    def allocate(self, size_bytes: int) -> Any:
        """Device memory, freed with the object; int() of it is the address. Raises OutOfMemoryError."""
        try:
            return drv.mem_alloc(max(size_bytes, 1))
        except drv.MemoryError as error:
            free, total = drv.mem_get_info()
            raise OutOfMemoryError(
                f"no room for {size_bytes / 1e9:.2f} GB more: {free / 1e9:.2f} of {total / 1e9:.2f} GB are free"
            ) from error

    def free_bytes(self) -> int:
        """Free device memory in bytes."""
        return int(drv.mem_get_info()[0])

    def upload(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies host memory to the GPU."""
        drv.memcpy_htod(address, data)

    def download(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copies from the address into `data`, after all work that the stream has been given."""
        self.stream.synchronize()
        drv.memcpy_dtoh(data, address)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copies from device to device, on the stream."""
        drv.memcpy_dtod_async(target, source, size_bytes, self.stream)

    def fill(self, address: int, size_bytes: int, byte: int) -> None:
        """Sets every byte, on the stream."""
        drv.memset_d8_async(address, byte, size_bytes, self.stream)

    def load(self, cubin: bytes, entry: str, arguments: str, max_dynamic_shared_bytes: int = 0) -> Function:
        """The function of that name; `arguments` as PyCUDA's format letters (P pointer, f, d, Q)."""
        return _function_of(drv.module_from_buffer(cubin), entry, arguments, max_dynamic_shared_bytes, self.stream)

    def graph(self, enqueue: Callable[[], None], count: int) -> LaunchGraph:
        """`count` launches recorded for replay on this device's stream."""
        return LaunchGraph(self.stream.handle, enqueue, count)

    def times_ms(
        self, step: Callable[[], None], count: int, *, before: Callable[[], None] | None = None
    ) -> list[float]:
        """The GPU's time of each of `count` steps, all enqueued at once; `before` runs ahead of each, untimed."""
        pairs = []
        start = end = None
        for _ in range(count):
            start = end
            if before is not None:
                before()
            if before is not None or start is None:
                start = drv.Event().record(self.stream)
            step()
            end = drv.Event().record(self.stream)
            pairs.append((start, end))
        self.stream.synchronize()
        return [float(end.time_since(start)) for start, end in pairs]

    def synchronize(self) -> None:
        """Waits for the stream."""
        self.stream.synchronize()

    @contextlib.contextmanager
    def launching(self) -> Iterator[None]:
        """Turns errors of the driver or the library into TrialFailure, sticky where the context did not survive."""
        try:
            yield
        except (drv.Error, DriverError, LibraryError) as error:
            text = str(error)
            outcome = Outcome.TIMED_OUT if "launch timed out" in text else Outcome.LAUNCH_FAILED
            raise TrialFailure(outcome, text, sticky=self._is_broken()) from error

    def _is_broken(self) -> bool:
        try:
            self._context.synchronize()
        except drv.Error:
            return True
        return False

    def _copy_gb_per_s(self) -> float | None:
        """GB/s of a device-to-device copy, counting bytes read and written: the best of a few."""
        size = min(_COPY_BYTES, self.free_bytes() // 8)
        if size < 1 << 20:
            return None
        source, target = self.allocate(size), self.allocate(size)
        self.fill(int(source), size, 1)
        times = self.times_ms(lambda: self.copy(int(target), int(source), size), _COPIES)
        return 2 * size / min(times) / 1e6


@dataclass(frozen=True)
class Function:
    """A loaded function; the module lives as long as this does."""

    module: Any
    function: Any
    stream: Any = field(repr=False)

    def enqueue(self, launch: Launch, *arguments: float) -> None:
        """Launches the function on the device's stream."""
        self.function.prepared_async_call(
            launch.grid, launch.block, self.stream, *arguments, shared_size=launch.shared_bytes
        )

    def attribute(self, name: str) -> int:
        """A function attribute by its CUDA name: NUM_REGS, SHARED_SIZE_BYTES (static), LOCAL_SIZE_BYTES."""
        return int(self.function.get_attribute(getattr(drv.function_attribute, name)))


def _function_of(module: Any, entry: str, arguments: str, max_dynamic_shared_bytes: int, stream: Any) -> Function:
    function = module.get_function(entry)
    if max_dynamic_shared_bytes:
        function.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, max_dynamic_shared_bytes)
    function.prepare(arguments)
    return Function(module, function, stream)


def _attribute_names(attributes: Mapping[Any, int]) -> Iterator[tuple[int, str]]:
    for attribute, value in attributes.items():
        yield value, str(attribute).rpartition(".")[2]

"""A network kept ready where a device is, for one batch size: weights there, kernels loaded, on a GPU recorded once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TunerError
from tilewright.tuner.network.launch import ForwardGraph, LaunchedNetwork
from tilewright.tuner.network.network import Matrix, Network
from tilewright.tuner.runtime import Runtime

if TYPE_CHECKING:
    from tilewright.tuner.devices.cuda.device import CudaDevice

TOLERANCE = 1e-4
"""Of a probability against NumPy's: FP32 kernels stay below 2e-6 here; what is above this is no rounding."""


class WrongNetworkError(TunerError):
    """The kernels of these configurations do not compute the network."""


@dataclass(frozen=True)
class ForwardPass:
    """The result of a forward pass: `probabilities` (batch, classes).

    `kernels_us`: between events of the GPU around all its kernels; None elsewhere. `pass_us`: wall time, with inputs
    and outputs brought there and back.
    """

    probabilities: Matrix
    kernels_us: float | None
    pass_us: float


class PlacedNetwork(Protocol):
    """A network of one batch size on one device, used from one thread; an `Extension` of an isolated device."""

    def call(self, x: Matrix) -> ForwardPass:
        """The forward pass of `x` (batch, inputs) float32, row-major, in the host's memory."""

    def close(self) -> None:
        """Frees what the device holds of it."""


def problems(network: Network, batch: int) -> list[Problem]:
    """The problems of its launches: a `linear` for each layer, then `softmax`."""
    launched = cast("list[Any]", LaunchedNetwork(network, batch, choose=Runtime().best).launches)
    return [launcher.problem for launcher in launched]


@dataclass(frozen=True)
class NetworkExtension:
    """A network that an isolated device is to keep ready: `device.call("extend", …)`, then `call_extension` a pass."""

    network: Network
    batch: int
    configurations: Mapping[Problem, Configuration]

    def open(self, device: Device) -> PlacedNetwork:
        """See `place_network`."""
        return place_network(device, self.network, self.batch, self.configurations)


def place_network(
    device: Device, network: Network, batch: int, configurations: Mapping[Problem, Configuration]
) -> PlacedNetwork:
    """The network on the device that this process has open, with these configurations for its `problems`.

    Compiled and compared with NumPy here. Raises WrongNetworkError, LaunchError for a configuration that is not
    admitted or does not compile, TrialFailure where a GPU does not survive it.
    """
    runtime = Runtime(pinned=configurations)
    placed: PlacedNetwork
    if device.model.kind == "cuda":
        placed = _OnCuda(cast("CudaDevice", device), network, batch, runtime)
    else:
        placed = _OnHost(network, batch, runtime)
    x = np.random.default_rng(0).random((batch, network.sizes[0]), np.float32)
    error = float(np.abs(placed.call(x).probabilities - network.forward(x)).max())
    if not error <= TOLERANCE:  # nor NaN
        placed.close()
        raise WrongNetworkError(f"the network's kernels are wrong: a probability is {error:.2g} from NumPy's")
    return placed


class _OnHost:
    """On the CPU device, in this process."""

    def __init__(self, network: Network, batch: int, runtime: Runtime) -> None:
        self._launched = LaunchedNetwork(network, batch, choose=runtime.best)
        self._shape = batch, network.sizes[-1]

    def call(self, x: Matrix) -> ForwardPass:
        began = time.perf_counter()
        probabilities = np.full(self._shape, np.nan, np.float32)
        self._launched(x, probabilities)
        return ForwardPass(probabilities, None, (time.perf_counter() - began) * 1e6)

    def close(self) -> None:
        """Nothing lies elsewhere."""


class _OnCuda:
    """On a GPU: a pass is one copy in, one replay, one copy out."""

    def __init__(self, device: CudaDevice, network: Network, batch: int, runtime: Runtime) -> None:
        self._device, self._shape = device, (batch, network.sizes[-1])
        with device.launching():
            launched = LaunchedNetwork(network, batch, self._placed, runtime.best)
            self._x = self._placed(np.zeros((batch, network.sizes[0]), np.float32))
            self._y = self._placed(np.full(self._shape, np.nan, np.float32))
            self._graph = ForwardGraph(launched, self._x, self._y, device.stream.handle)

    def call(self, x: Matrix) -> ForwardPass:
        began = time.perf_counter()
        probabilities = np.empty(self._shape, np.float32)
        with self._device.launching():
            self._device.upload(self._x.address, x)
            (kernels_ms,) = self._device.times_ms(self._graph.replay, 1)
            self._device.download(self._y.address, probabilities)
        return ForwardPass(probabilities, kernels_ms * 1e3, (time.perf_counter() - began) * 1e6)

    def close(self) -> None:
        self._graph.close()

    def _placed(self, array: np.ndarray[Any, Any]) -> _CudaArray:
        return _CudaArray(self._device, array)


class _CudaArray:
    """A copy of a float32 array on the GPU, freed with this object."""

    def __init__(self, device: CudaDevice, array: np.ndarray[Any, Any]) -> None:
        self._memory = device.allocate(array.nbytes)
        self.address = int(self._memory)
        device.upload(self.address, np.ascontiguousarray(array))
        self._shape, self._typestr = array.shape, array.dtype.str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.address, False)
        return {"version": 3, "shape": self._shape, "typestr": self._typestr, "data": data, "strides": None}

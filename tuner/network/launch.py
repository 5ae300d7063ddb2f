"""A network on tuned kernels: a launch of `linear` for each layer, one of `softmax`; on a GPU also as a CUDA graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.tuner.devices.cuda.graph import LaunchGraph
from tilewright.tuner.network.network import Network
from tilewright.tuner.runtime import best

Place = Callable[[Any], Any]


class LaunchedNetwork:
    """The forward pass of one batch size.

    `place` brings a NumPy array to where the network runs, and keeps its type from then on: `np.ascontiguousarray` for
    the CPU device, `pycuda.gpuarray.to_gpu`, `cupy.asarray`, `lambda a: torch.from_numpy(a).cuda()`. `choose` finds
    the launches; the default is the launcher's `best`. Weights and the layers' outputs are placed here, once.
    `fused`: the last two layers and softmax are one launch, of `classifier`; it takes layers of up to 1,024 inputs.
    """

    def __init__(
        self,
        network: Network,
        batch: int,
        place: Place = np.ascontiguousarray,
        choose: Callable[..., Callable[..., Any]] = best,
        *,
        fused: bool = False,
    ) -> None:
        if fused and len(network.layers) < 2:
            raise ValueError("fused: it joins the last two layers, but this network has only one")
        self.network, self.batch = network, batch
        sizes, alone = network.sizes, len(network.layers) - (2 if fused else 0)
        self.launches = [
            choose("linear", m=batch, n=n, k=k, dtype="float32", activation=layer.activation)
            for layer, (k, n) in zip(network.layers[:alone], itertools.pairwise(sizes), strict=False)
        ]
        if fused:
            last = choose("classifier", m=batch, k=sizes[-3], h=sizes[-2], n=sizes[-1], dtype="float32")
        else:
            last = choose("softmax", m=batch, n=sizes[-1], dtype="float32")
        self.launches.append(last)
        placed = [(place(layer.weights), place(layer.bias)) for layer in network.layers]
        self._weights = [*placed[:alone], tuple(itertools.chain(*placed[alone:]))]
        self._outputs = [place(np.zeros((batch, n), np.float32)) for n in sizes[1 : alone + 1]]

    def __call__(self, x: Any, probabilities: Any, stream: Any = None) -> Any:
        """`probabilities` (batch, classes), written from `x` (batch, inputs); both of the kind that `place` gives.

        On a GPU the work is enqueued on `stream` (the launcher says which kinds) and the call does not wait for it.
        Calls share the layers' outputs: not to be made on two streams, or by two threads, at once.
        """
        for launch, weights, output in zip(self.launches, self._weights, [*self._outputs, probabilities], strict=True):
            launch(x, *weights, output, stream=stream)
            x = output
        return probabilities


class ForwardGraph:
    """A forward pass recorded as a CUDA graph on `stream`: a CUstream as an integer, not the default one.

    It reads `x` and writes `probabilities` wherever it is replayed: put the next batch into the same array. Driver
    functions by ctypes (tuner/devices/cuda/graph.py): PyCUDA 2026.1 has none for graphs.
    """

    def __init__(self, network: LaunchedNetwork, x: Any, probabilities: Any, stream: int) -> None:
        network(x, probabilities, stream=stream)  # loads what a capture may not load
        self._kept = network, x, probabilities  # the graph holds their addresses
        self._graph = LaunchGraph(stream, lambda: network(x, probabilities, stream=stream), 1)

    def replay(self) -> None:
        """Enqueues the pass on the stream that it was recorded on; does not wait."""
        self._graph.replay()

    def close(self) -> None:
        """Frees the graph."""
        self._graph.close()

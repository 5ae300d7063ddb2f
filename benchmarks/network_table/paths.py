"""The ways to run the network that benchmarks/network.py times, each made ready on the same batch of digits."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from network_table.tuning import Step

from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cpu.process import run_limited
from tilewright.tuner.errors import TunerError
from tilewright.tuner.network.launch import ForwardGraph, LaunchedNetwork
from tilewright.tuner.network.network import Matrix, Network
from tilewright.tuner.runtime import Runtime

LOOP_SOURCE = Path(__file__).with_name("loop.cpp")


@dataclass
class HostPath:
    """A way on the CPU: `run` gives the probabilities of the batch."""

    name: str
    label: str
    run: Callable[[], Matrix]
    note: str = ""


@dataclass
class DevicePath:
    """A way on the GPU: `enqueue` reads `x` and writes `probabilities`, both torch tensors, on the current stream."""

    name: str
    label: str
    enqueue: Callable[[], Any]
    x: Any
    probabilities: Callable[[], Any]
    configurations: Mapping[str, Any] = field(default_factory=dict)
    kept: Any = None


@contextmanager
def loop(network: Network, x: Matrix) -> Iterator[HostPath]:
    """One thread, three nested loops, compiled by the CPU device's compiler; raises TunerError with its log."""
    with tempfile.TemporaryDirectory(prefix="tilewright-loop-") as folder:
        compiler, library = find_compiler(), Path(folder) / "loop.so"
        command = [*compiler.command, *compiler.flags("fast"), "-shared", "-fPIC", str(LOOP_SOURCE), "-o", str(library)]
        ended = run_limited(command, 120)
        if ended.code != 0:
            raise TunerError(f"the loop does not compile: {ended.log}")
        functions = ctypes.CDLL(str(library))
        note = f"{compiler.name} {compiler.version}, {' '.join(compiler.flags('fast')[:3])}"
        yield HostPath("cpu_loop", "CPU, one-thread loop", lambda: _by_loop(functions, network, x), note)


def _by_loop(functions: Any, network: Network, x: Matrix) -> Matrix:
    def pointer(array: Matrix) -> Any:
        return array.ctypes.data_as(ctypes.c_void_p)

    batch = len(x)
    for layer, (k, n) in zip(network.layers, itertools.pairwise(network.sizes), strict=True):
        y = np.empty((batch, n), np.float32)
        relu = int(layer.activation == "relu")
        functions.linear_loop(pointer(x), pointer(layer.weights), pointer(layer.bias), pointer(y), batch, n, k, relu)
        x = y
    y = np.empty_like(x)
    functions.softmax_loop(pointer(x), pointer(y), batch, x.shape[1])
    return y


def blas(network: Network, x: Matrix) -> HostPath:
    """NumPy and the BLAS in its wheel, with as many threads as that takes by itself."""
    about = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    limits = (os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    threads = next((limit for limit in limits if limit), len(os.sched_getaffinity(0)))
    note = f"NumPy {np.__version__}, {about['name']} {about['version']}, {threads} threads"
    return HostPath("cpu_blas", "CPU, BLAS", lambda: network.forward(x), note)


def launched_on_cpu(network: Network, x: Matrix, step: Step) -> HostPath:
    """The network by the step's configurations, through the launcher, on the CPU device and NumPy's arrays."""
    ours = LaunchedNetwork(network, len(x), choose=Runtime(pinned=step.pinned).best, fused=step.is_fused)
    probabilities = np.zeros((len(x), network.sizes[-1]), np.float32)
    label = step.label[:1].upper() + step.label[1:]
    return HostPath(step.name, label, lambda: ours(x, probabilities))


def launched(torch: Any, network: Network, x: Any, step: Step) -> DevicePath:
    """The network by the step's configurations, through the launcher, as a CUDA graph on torch's current stream."""
    choose, label = Runtime(pinned=step.pinned).best, step.label[:1].upper() + step.label[1:]
    ours = LaunchedNetwork(network, len(x), lambda a: torch.from_numpy(a).cuda(), choose, fused=step.is_fused)
    probabilities = torch.zeros(len(x), network.sizes[-1], device="cuda")
    graph = ForwardGraph(ours, x, probabilities, torch.cuda.current_stream().cuda_stream)
    used = {f"{launch.problem}": launch.choice(device="cuda:0").configuration.as_json() for launch in ours.launches}
    return DevicePath(step.name, label, graph.replay, x, lambda: probabilities, used, kept=(ours, graph))


def uncaptured(path: DevicePath, label: str) -> DevicePath:
    """The same launches one by one, without the graph."""
    ours, probabilities = path.kept[0], path.probabilities()
    return DevicePath(
        f"{path.name}_launches", label, lambda: ours(path.x, probabilities), path.x, lambda: probabilities
    )


def eager(torch: Any, network: Network, x: Any) -> DevicePath:
    """PyTorch as one writes it: nn.Sequential, float32 products in full precision (its default)."""
    model = torch_model(torch, network)
    kept: dict[str, Any] = {}

    def run() -> None:
        kept["y"] = model(x)

    return DevicePath("torch_eager", "PyTorch, eager", run, x, lambda: kept["y"], kept=model)


def graphed(torch: Any, path: DevicePath) -> DevicePath:
    """The eager model, captured by torch.cuda.graph."""
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        path.kept(path.x)
    with torch.cuda.graph(graph):
        y = path.kept(path.x)
    return DevicePath("torch_graph", "PyTorch, eager in a CUDA graph", graph.replay, path.x, lambda: y, kept=graph)


def compiled(torch: Any, path: DevicePath, mode: str, label: str) -> DevicePath:
    """The eager model through torch.compile in that mode."""
    model = torch.compile(path.kept, mode=mode)
    kept: dict[str, Any] = {}

    def run() -> None:
        kept["y"] = model(path.x)

    return DevicePath(f"torch_compile_{mode}", label, run, path.x, lambda: kept["y"], kept=model)


def torch_model(torch: Any, network: Network) -> Any:
    """The network as torch.nn.Sequential on the GPU, with the same weights."""
    parts: list[Any] = []
    for layer in network.layers:
        n, k = layer.weights.shape
        linear = torch.nn.Linear(k, n)
        linear.weight.data, linear.bias.data = torch.from_numpy(layer.weights), torch.from_numpy(layer.bias)
        parts += [linear, *([torch.nn.ReLU()] if layer.activation == "relu" else [])]
    return torch.nn.Sequential(*parts, torch.nn.Softmax(dim=1)).cuda().eval()

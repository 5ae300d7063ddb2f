"""The ways to run the network that benchmarks/network.py times, each made ready on the same batch of digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from network_table.tuning import Step

from tilewright.tuner.network.launch import ForwardGraph, LaunchedNetwork
from tilewright.tuner.network.network import Network
from tilewright.tuner.runtime import Runtime


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

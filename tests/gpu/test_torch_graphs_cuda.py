"""Models as CUDA graphs: what a graph reads, when it is replayed, and when `accelerate` takes one."""

import pytest
from small_operators import ours

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
def test_a_model_as_a_cuda_graph_follows_its_inputs_and_parameters_and_leaves_other_calls_alone(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.recognition import fusions  # noqa: PLC0415 - they import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 64)).cuda().eval()
    x, other = (torch.randn(32, 64, device="cuda") for _ in range(2))
    with torch.no_grad():
        sites, _ = fusions.search(model, lambda: model(x))
        installed.install(model, [one.stand() for one in sites], with_gradients=False)
        before = vars(model)["forward"]
        forward = graph.GraphForward(model, before)
        forward.capture((x,), {}, 1e-4)
        model.forward, calls = forward, []
        forward._forward = lambda *given: calls.append(1) or before(*given)
        first = model(x)
        kept = first.clone()
        torch.testing.assert_close(model(other), before(other))
        torch.testing.assert_close(first, kept, rtol=0, atol=0)
        model[0].weight.mul_(2)
        torch.testing.assert_close(model(x), before(x))
        assert not calls
        torch.testing.assert_close(model(x[:16]), before(x[:16]))
        model[2].weight.data = model[2].weight.data.clone() * 2
        torch.testing.assert_close(model(x), before(x))
        assert len(calls) == 2
    model(x).sum().backward()
    assert model[0].weight.grad is not None
    installed.uninstall(model)
    assert "forward" not in vars(model)


def test_a_graph_that_computes_something_else_is_not_taken(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - it imports torch

    class Counts(torch.nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    x, model = torch.randn(4, 4, device="cuda"), Counts().eval()
    with torch.no_grad(), pytest.raises(graph.CaptureError, match="computes something else"):
        graph.GraphForward(model).capture((x,), {}, 1e-4)


def test_a_number_that_the_model_puts_on_the_gpu_is_no_obstacle(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - it imports torch

    class Masks(torch.nn.Module):
        def forward(self, x):
            window = torch.tensor(4).to(x.device)  # as the sliding caches of transformers have it
            return torch.where(x > 0, x, torch.tensor(2, device=x.device)) * window + torch.tensor(0.5, device="cuda")

    make, move, x = torch.tensor, torch.Tensor.to, torch.randn(4, 4, device="cuda")
    with torch.no_grad():
        forward = graph.GraphForward(Masks().eval())
        forward.capture((x,), {}, 1e-4)
        torch.testing.assert_close(forward(-x), Masks()(-x))
    assert torch.tensor is make
    assert torch.Tensor.to is move


def test_a_graph_has_the_code_of_eager_mode_in_a_model_that_asks_whether_it_is_captured(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - it imports torch

    class Asks(torch.nn.Module):
        def forward(self, x):
            return x * 2 if torch.cuda.is_current_stream_capturing() else x * 3

    class Waits(torch.nn.Module):
        def forward(self, x):
            is_known = not torch.cuda.is_current_stream_capturing()
            return x * 3 if is_known and float(x.sum()) < 1e30 else x + x + x

    x = torch.randn(4, 4, device="cuda")
    with torch.no_grad():
        for model in (Asks().eval(), Waits().eval()):
            forward = graph.GraphForward(model)
            forward.capture((x,), {}, 1e-4)
            torch.testing.assert_close(forward(x + 1), (x + 1) * 3)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_graph_has_all_memory_that_it_reads_when_others_are_gone_and_scratch_memory_is_cleared(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - it imports torch

    layer = torch.nn.Linear(16384, 64, bias=False).cuda().eval()  # a product that cuBLAS splits
    x = torch.randn(8, 16384, device="cuda")
    with torch.no_grad():
        first, _ = graph.captured(lambda: layer(x))
        forward = graph.GraphForward(layer)
        forward.capture((x,), {}, 1e-4)
        del first
        torch._C._cuda_clearCublasWorkspaces()  # as torch.compile's CUDA graphs do
        torch.cuda.empty_cache()
        taken = [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(8)]
        torch.testing.assert_close(forward(x + 1), layer(x + 1), rtol=1e-3, atol=1e-3)
    assert len(taken) == 8


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_compiled_cuda_graphs_read_joined_and_whole_numbered_weights_where_they_lie(torch, tw):
    from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.recognition import fusions, sites  # noqa: PLC0415 - they import torch

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = (torch.nn.Linear(256, 256, bias=False) for _ in range(3))

        def forward(self, x):
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    model, x = Gated().cuda().bfloat16().eval(), torch.randn(8, 256, device="cuda").bfloat16()
    with torch.no_grad():
        expected = model(x)
        found = fusions.search(model, lambda: model(x))[0]
        gated = [one for one in found if one.fusion.startswith("gated")]
        quantised = sites.quantised_sites(sites.observe(model, lambda: model(x)) + found)
        assert {"", "shared"} == {one.fusion for one in quantised}
        for chosen, name in ((gated, "linear_gated"), (quantised, "linear_quantized")):
            installed.install(model, [one.stand(compiled=True) for one in chosen], with_gradients=False)
            compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
            for _ in range(4):
                torch.testing.assert_close(compiled(x).clone(), expected, rtol=0.05, atol=0.02)
            assert name in ours(tw)
            installed.uninstall(model)


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
def test_graphs_of_whole_numbered_weights_see_a_state_that_is_loaded_and_ours_any_change(torch, tw):
    from tilewright.tuner.pytorch.acceleration.graphs import graph  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.installation import installed  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.judgement import trees  # noqa: PLC0415 - they import torch
    from tilewright.tuner.pytorch.acceleration.recognition import sites  # noqa: PLC0415 - they import torch

    layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(2)]
    model, x = torch.nn.Sequential(*layers).cuda().bfloat16().eval(), torch.randn(8, 256, device="cuda").bfloat16()
    with torch.no_grad():
        quantised = sites.quantised_sites(sites.observe(model, lambda: model(x)))
        installed.install(model, [one.stand(compiled=True) for one in quantised], with_gradients=False)
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            compiled(x)
        forward = graph.GraphForward(model)
        forward.capture((x,), {}, 1e-2)
        model.load_state_dict({name: one.flip(0) for name, one in model.state_dict().items()})
        found, replayed = compiled(x).clone(), forward(x)
        assert forward._is_captured((x,), {}, trees.Parts())
        model[0].weight.mul_(2)
        assert not forward._is_captured((x,), {}, trees.Parts())
        changed = forward(x)
        installed.uninstall(model)
        torch.testing.assert_close(changed, model(x), rtol=0.05, atol=0.02)
        for one in (found, replayed):
            torch.testing.assert_close(one * 2, model(x), rtol=0.05, atol=0.02)


@pytest.fixture
def launch_bound(torch):
    """A model whose kernels are much shorter than their launches."""
    layers = [one for _ in range(8) for one in (torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))]
    return torch.nn.Sequential(*layers).cuda().eval(), torch.randn(32, 64, device="cuda")


def test_a_model_that_waits_for_launches_becomes_a_graph_whatever_is_replaced_in_it(torch, tw, launch_bound):
    from tilewright.tuner.pytorch.acceleration.judgement import trees  # noqa: PLC0415 - it imports torch

    model, x = launch_bound
    with torch.no_grad():
        expected = model(x)
        result = tw.accelerate(model, x, compiles=None)
        assert result.is_graph, str(result)
        assert result.way in {"graph", "ours as a graph"}
        assert result.speedup()[1] > 1
        assert vars(model)["forward"]._is_captured((x,), {}, trees.Parts())
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(model(x[:5]), expected[:5], rtol=1e-3, atol=1e-3)
        result.undo()
        torch.testing.assert_close(model(x), expected)
    assert "forward" not in vars(model)


def test_a_graph_is_taken_where_no_replacement_helps(torch, tw, launch_bound, monkeypatch):
    from tilewright.tuner.pytorch.acceleration.judgement import settling  # noqa: PLC0415 - it imports torch

    def turn_down(candidate, *_):
        candidate.reason = "not today"

    monkeypatch.setattr(settling, "weigh", turn_down)
    model, x = launch_bound
    with torch.no_grad():
        expected = model(x)
        result = tw.accelerate(model, x, compiles=None)
        assert (result.way, result.is_graph, result.is_applied) == ("graph", True, False), str(result)
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x + 1), model[:](x + 1), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler deprecates parts of PyTorch
@pytest.mark.parametrize("way", ["ours in torch.compile as a graph", "torch.compile as a graph"])
def test_what_the_compiler_makes_is_taken_as_a_graph_where_that_wins(torch, tw, launch_bound, monkeypatch, way):
    from tilewright.tuner.pytorch.acceleration.judgement import settling, trees  # noqa: PLC0415 - they import torch

    class Model(torch.nn.Module):  # without a length, unlike what it has
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers(x)

    monkeypatch.setattr(settling, "best_way", lambda times_ms: way if way in times_ms else "eager")
    layers, x = launch_bound
    model = Model(layers).eval()
    with torch.no_grad():
        expected = model(x)
        result = tw.accelerate(model, x, tolerance=1e-4)
        assert (result.way, result.is_graph, result.is_applied) == (way, True, way.startswith("ours")), str(result)
        assert vars(model)["forward"]._is_captured((x,), {}, trees.Parts())
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        other = model(x + 1)
        torch.testing.assert_close(model(x[:5]), expected[:5], rtol=1e-3, atol=1e-3)
        result.undo()
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x + 1), other, rtol=1e-3, atol=1e-3)


def test_a_model_that_cannot_be_captured_is_judged_by_the_hosts_time_and_others_are_captured_after_it(
    torch, tw, launch_bound
):
    class Waits(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            y = self.inner(x)
            return y if float(y.sum()) < 1e30 else -y

    layers, x = launch_bound
    model = Waits(layers).eval()
    with torch.no_grad():
        expected = model(x)
        result = tw.accelerate(model, x, compiles=None)
        [remark] = [one for one in result.remarks if one.startswith("It is not judged as a CUDA graph")]
        assert "test_torch_graphs_cuda.py:" in remark
        assert "(return y if float(y.sum()) < 1e30 else -y) waits for the GPU; keep the number on the GPU" in remark
        assert not result.is_graph
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        result.undo()
        torch.cuda.empty_cache()
        assert tw.accelerate(layers, x, compiles=None).is_graph


@pytest.mark.filterwarnings("ignore:nothing is fused")
@pytest.mark.parametrize("kind", ["none", "grows", "fixed"])
def test_a_model_with_a_cache_is_a_graph_that_changes_the_callers_cache(torch, tw, kind, monkeypatch):
    from model_caches import Decoder, Fixed, Growing, kept  # noqa: PLC0415 - it imports torch

    from tilewright.tuner.pytorch.acceleration.judgement import settling  # noqa: PLC0415 - as above
    from tilewright.tuner.pytorch.acceleration.judgement.trees import Parts, apart, rebuilt  # noqa: PLC0415 - as above

    def again(value):
        parts = Parts()
        return rebuilt(apart(value, parts), [one.clone() for one in parts.tensors])

    monkeypatch.setattr(settling, "best_way", lambda _: "graph")  # the model is too small to gain anything
    made = {"none": lambda: None, "grows": Growing, "fixed": lambda: Fixed(12, "cuda")}[kind]
    model, caches = Decoder().cuda().eval(), [made(), made()]
    x, y = (torch.randn(2, 1, 8, device="cuda") for _ in range(2))
    with torch.no_grad():
        for cache in filter(None, caches):
            model(torch.randn(2, 4, 8, device="cuda"), cache)
        before = [None if one is None else again(one) for one in caches]
        expected = [model(y, None if one is None else again(one)) for one in caches]
        result = tw.accelerate(model, (x, caches[0]), compiles=None)
        assert result.is_graph, str(result)
        assert any("cache that grows" in one for one in result.remarks) is (kind == "grows")
        if kind != "none":
            torch.testing.assert_close(kept(caches[0]), kept(before[0]), rtol=0, atol=0)
        for cache, known in zip(caches, expected, strict=True):
            assert vars(model)["forward"]._is_captured((y, cache), {}, Parts())
            found = model(y, cache)
            torch.testing.assert_close(found.scores, known.scores)
            torch.testing.assert_close(kept(found.cache), kept(known.cache))
            assert cache is None or found.cache is cache
        if kind == "fixed":
            for length in (6, 7, 8):
                model(y, caches[0])
                assert int(caches[0].layers[0].length) == length

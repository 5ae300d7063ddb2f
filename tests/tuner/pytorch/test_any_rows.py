"""Operators and replaced models with inputs of other lengths: nothing is compiled, results are PyTorch's."""

import json

import pytest

torch = pytest.importorskip("torch")

from slowness import slow_down  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.family import Family  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.pytorch import operator_plans, plans  # noqa: E402
from tilewright.tuner.pytorch.acceleration import lock  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entry, opened  # noqa: E402
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange  # noqa: E402
from tilewright.tuner.runtime.any_size.tables import TableFolder, as_table  # noqa: E402
from tilewright.tuner.runtime.choice import Choice  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches.host import host_place  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning"),
    pytest.mark.filterwarnings("ignore::tilewright.tuner.pytorch.plans.FallbackWarning"),
]


class Layer(nn.Module):
    """Three layers of one input, an activation behind another, and a sum that is normed."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.act, self.norm = nn.GELU(), nn.LayerNorm(8)

    def forward(self, x):
        mixed = torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)
        return self.norm(x + self.act(self.out(mixed)))


@pytest.fixture
def any_size(tmp_path, monkeypatch):
    """Operators of any number of rows, and a PyTorch whose modules are slow enough to lose."""
    slow_down(monkeypatch, nn.Linear, nn.LayerNorm, nn.GELU)
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), any_size_operators=True))
    with torch.no_grad():
        yield
    tw.use(None)


def test_keys_of_rows_are_alike_whatever_their_number():
    one, other = torch.randn(2, 3, 8), torch.randn(5, 1, 8)
    assert entry(one) != entry(other)
    assert opened(entry(one)) == opened(entry(other))
    assert opened(("list", entry(one), 3)) == opened(("list", entry(other), 3)) != opened(("list", entry(other), 4))
    for another in (one.double(), torch.randn(2, 8), torch.randn(2, 3, 9), one.transpose(0, 1), one[:, ::2]):
        assert opened(entry(another)) != opened(entry(one))


@pytest.mark.in_turn(2)
def test_a_replaced_model_runs_replaced_at_any_length(any_size, monkeypatch):
    model, x = Layer().eval(), torch.randn(2, 3, 8)
    samples = [x, torch.randn(1, 7, 8), torch.randn(3, 2, 8)]
    plain = {one: model(one) for one in samples}
    result = tw.accelerate(model, samples=samples, rounds=7, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    assert any(one.any_rows for one in result.stands)
    assert not any("TILEWRIGHT_ANY_SIZE" in one for one in result.remarks)
    monkeypatch.setattr(nn.Linear, "forward", lambda *_: pytest.fail("PyTorch's own layer ran"))
    for one in samples * 2:
        torch.testing.assert_close(model(one), plain[one])
    assert model(torch.randn(4, 5, 8)).shape == (4, 5, 8)


def test_a_layer_launches_any_number_of_rows_without_a_decision_for_each(any_size, monkeypatch):
    model = nn.Sequential(nn.Linear(8, 24), nn.Softplus())  # which no kernel has.eval()
    weight, bias = model[0].weight, model[0].bias
    result = tw.accelerate(model, torch.randn(2, 3, 8), rounds=7, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    model(torch.randn(2, 3, 8))
    before = sum(one.calls_ours for one in tw.status())
    with monkeypatch.context() as patched:
        patched.setattr(operator_plans.Plans, "run", lambda *_: pytest.fail("it was decided anew"))
        for shape in ((1, 1, 8), (7, 2, 8), (2, 3, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(model(x), nn.functional.softplus(x @ weight.T + bias))
    assert sum(one.calls_ours for one in tw.status()) == before + 3
    for x in (torch.randn(0, 3, 8), torch.randn(6, 8), torch.randn(3, 2, 8).mT.contiguous().mT, torch.randn(8)):
        torch.testing.assert_close(model(x), nn.functional.softplus(x @ weight.T + bias))
    with pytest.raises(RuntimeError):  # PyTorch's own error
        model(torch.tensor(1.0))


def test_the_other_samples_are_told_that_they_run_as_pytorchs_own(any_size, tmp_path):
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers")))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    result = tw.accelerate(model, torch.randn(6, 8), samples=[torch.randn(3, 8)], rounds=7, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    assert "TILEWRIGHT_ANY_SIZE=1" in str(result)
    assert not any(one.any_rows for one in result.stands)


def test_a_sample_that_comes_out_wrong_leaves_the_model_as_it_was(any_size, monkeypatch):
    plain = operator_plans.Plans.run

    def run(self, x, *rest):
        return plain(self, x, *rest) * (1 if len(x) == 6 or plans.is_off() else 1.1)

    monkeypatch.setattr(operator_plans.Plans, "run", run)
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    with pytest.warns(tw.AccelerationWarning, match="with sample 2 the model's output is off by"):
        result = tw.accelerate(
            model, torch.randn(6, 8), samples=[torch.randn(3, 8)], rounds=7, compiles=None, limit_s=300
        )
    assert not result.is_applied
    assert type(model[0]) is nn.Linear


def test_a_lock_says_which_replacements_take_any_number_of_rows(any_size, tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    result = tw.accelerate(model, torch.randn(6, 8), rounds=7, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    stated = json.loads(result.save(tmp_path / "tilewright.lock").read_text())["replacements"]
    assert all(one["any_rows"] for one in stated)
    assert [lock.stand_from_json(one) for one in stated] == list(result.stands)
    assert not lock.stand_from_json({name: one for name, one in stated[0].items() if name != "any_rows"}).any_rows


@pytest.fixture
def any_size_operators(tmp_path):
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), any_size_operators=True))
    yield
    tw.use(None)


def test_new_lengths_compile_nothing(any_size_operators, monkeypatch):
    w, b = torch.randn(24, 40), torch.randn(24)
    tw.linear(torch.randn(3, 40), w, b)
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for m in (1, 2, 65, 300):
        x = torch.randn(m, 40)
        for _ in range(2):
            torch.testing.assert_close(tw.linear(x, w, b), torch.nn.functional.linear(x, w, b), atol=1e-4, rtol=1e-4)
    ours = [one for one in tw.status() if one.operator == "linear"]
    assert len(ours) >= 5
    assert all(one.is_ours for one in ours)


def test_layouts_that_rows_would_move_have_launchers_of_their_own(any_size_operators):
    a, b = torch.randn(40, 17).T, torch.randn(40, 24)
    torch.testing.assert_close(tw.gemm(a, b), a @ b, atol=1e-4, rtol=1e-4)


def test_a_new_number_of_products_compiles_nothing(any_size_operators, monkeypatch):
    tw.gemm(torch.randn(3, 17, 40), torch.randn(3, 40, 24))
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for count in (3, 1, 65):
        a, b = torch.randn(count, 17, 40), torch.randn(count, 40, 24)
        torch.testing.assert_close(tw.gemm(a, b), a @ b, atol=1e-4, rtol=1e-4)
    assert all(one.is_ours for one in tw.status() if one.operator == "gemm")


def test_unless_it_is_asked_for_a_shape_has_code_of_its_own():
    assert not plans.runtime()._any_size_operators


def test_a_lock_holds_for_all_sizes_in_its_ranges(tmp_path, monkeypatch):
    """Whatever is replaced: that ours wins here is no matter of this test."""
    linear = catalogue().get("linear")
    family = Family.of(linear, {"m": "1..64", "n": 24, "k": 40})
    choices = [Choice(Configuration.of("tiled", {"TILE_WIDTH": width}), "table", "range") for width in (8, 16)]
    table = as_table(linear, family, Ranges([SizeRange(8, choices[0]), SizeRange(64, choices[1])]))
    first = Runtime(answers=AnswerCache(tmp_path / "first"), any_size_operators=True, shipped_records=False)
    first.tables = TableFolder(tmp_path / "tables")
    first.tables.put(family, host_place().slug, table)
    tw.use(first)
    plain, model = torch.nn.Linear.forward, torch.nn.Sequential(torch.nn.Linear(40, 24)).eval()

    def slow(self, x):
        for _ in range(5000):
            x = x + 0
        return plain(self, x)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch.nn.Linear, "forward", slow)
        result = tw.accelerate(model, torch.randn(6, 40), rounds=15, compiles=None, limit_s=300)
    assert result.is_applied, str(result)
    path = result.save(tmp_path / "tilewright.lock")
    (kept,) = json.loads(path.read_text())["tables"]
    assert [(one["high"], one["configuration"]) for one in kept["ranges"]] == [
        (8, {"TILE_WIDTH": 8}),
        (64, {"TILE_WIDTH": 16}),
    ]
    result.undo()
    tw.use(Runtime(answers=AnswerCache(tmp_path / "second"), any_size_operators=True, shipped_records=False))
    assert tw.accelerate(model, lock=path).is_applied
    with torch.no_grad():
        for m in (6, 40, 500):
            x = torch.randn(m, 40)
            expected = torch.nn.functional.linear(x, model[0].weight, model[0].bias)
            ours = model(x) if m == 6 else tw.linear(x, model[0].weight, model[0].bias)
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    said = [one.reason for one in tw.status() if one.operator == "linear"]
    assert sorted(said) == [f"tiled TILE_WIDTH={width} (range, from pinned)" for width in (16, 16, 8)]
    tw.use(None)


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format], ids=["nhwc", "nchw"])
def test_images_and_vectors_of_any_number_are_ours(any_size_operators, memory):
    w, b, x = torch.randn(12, 8, 3, 3).to(memory_format=memory), torch.randn(12), torch.randn(40)
    for count in (1, 3, 20):
        images = torch.randn(count, 8, 9, 7).to(memory_format=memory)
        expected = torch.nn.functional.conv2d(images, w, b, padding=1)
        torch.testing.assert_close(tw.conv2d(images, w, b, padding=1), expected, atol=1e-4, rtol=1e-4)
        a = torch.randn(count, 40)
        torch.testing.assert_close(tw.gemv(a, x), a @ x, atol=1e-4, rtol=1e-4)
    assert all(one.is_ours for one in tw.status()), tw.status()

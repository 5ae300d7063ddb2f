"""Operators with TILEWRIGHT_ANY_SIZE: new lengths compile nothing, and results are PyTorch's."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402 - behind the check that torch is here
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.family import Family  # noqa: E402
from tilewright.kernels.space import Configuration  # noqa: E402
from tilewright.tuner.pytorch import plans  # noqa: E402
from tilewright.tuner.runtime.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange  # noqa: E402
from tilewright.tuner.runtime.any_size.tables import TableFolder, as_table  # noqa: E402
from tilewright.tuner.runtime.choice import Choice  # noqa: E402
from tilewright.tuner.runtime.host import host_place  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning")


@pytest.fixture
def any_size(tmp_path):
    tw.use(Runtime(answers=AnswerCache(tmp_path / "answers"), any_size_operators=True))
    yield
    tw.use(None)


def test_new_lengths_compile_nothing(any_size, monkeypatch):
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


def test_layouts_that_rows_would_move_have_launchers_of_their_own(any_size):
    a, b = torch.randn(40, 17).T, torch.randn(40, 24)
    torch.testing.assert_close(tw.gemm(a, b), a @ b, atol=1e-4, rtol=1e-4)


def test_a_new_number_of_products_compiles_nothing(any_size, monkeypatch):
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
def test_images_and_vectors_of_any_number_are_ours(any_size, memory):
    w, b, x = torch.randn(12, 8, 3, 3).to(memory_format=memory), torch.randn(12), torch.randn(40)
    for count in (1, 3, 20):
        images = torch.randn(count, 8, 9, 7).to(memory_format=memory)
        expected = torch.nn.functional.conv2d(images, w, b, padding=1)
        torch.testing.assert_close(tw.conv2d(images, w, b, padding=1), expected, atol=1e-4, rtol=1e-4)
        a = torch.randn(count, 40)
        torch.testing.assert_close(tw.gemv(a, x), a @ x, atol=1e-4, rtol=1e-4)
    assert all(one.is_ours for one in tw.status()), tw.status()

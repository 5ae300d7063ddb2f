"""`best` without m: one launcher, a few programs, any number of rows."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.shipped import shipped_models
from tilewright.tuner.runtime.any_size.families import Families
from tilewright.tuner.runtime.any_size.geometry import Geometry
from tilewright.tuner.runtime.any_size.launcher import AnySizeLauncher
from tilewright.tuner.runtime.any_size.places import Places
from tilewright.tuner.runtime.any_size.ranges import Beyond, Ranges, SizeRange, guessed_at, is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.errors import ArgumentError, LaunchError, UntunedWarning
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.runtime import Runtime

N, K = 24, 40
pytestmark = pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning")


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(answers=AnswerCache(tmp_path / "answers"))


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)


def launched(launch: Any, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """The largest difference from the product in float64."""
    c = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    assert launch(a, b, c) is c
    return float(np.abs(c - a.astype(np.float64) @ b).max(initial=0))


def test_any_number_of_rows_runs_one_program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, b = runtime.best("gemm", n=N, k=K, device="cpu"), normal(K, N)
    assert isinstance(launch, AnySizeLauncher)
    launch.prepare()
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)  # nothing compiles from here on
    monkeypatch.setattr(launch._source, "ranges", None)  # and nothing is looked up
    for m in (1, 300, 7, 64, 129, 9000):
        assert launched(launch, normal(m, K), b) < 1e-4


@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
@pytest.mark.in_turn(3)
def test_a_range_whose_own_prediction_fails_at_an_end_gets_the_nearest_that_does_not(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, accuracy: str
) -> None:
    """Of TF32 nothing ships: it has those of FP32's that compute it, expected to be slower than the library's TF32."""
    place = TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    runtime, linear = Runtime(answers=AnswerCache(tmp_path / "answers")), catalogue().get("linear")
    family = Family.of(linear, {"m": (1, 8192), "n": 3072, "k": 768}, "float32", {"accuracy": accuracy})
    found = runtime.families.ranges(linear, family, place)
    assert {one.choice.match for one in found.ranges} == {"predicted"}
    assert {found.choice(size).is_behind for size in (64, 700)} == {accuracy == "tf32"}
    assert not recwarn.list
    for low, one in zip((1, *(each.high + 1 for each in found.ranges)), found.ranges, strict=False):
        assert is_sound_within(linear, family, place, one.choice, low, one.high)


@pytest.mark.parametrize(
    ("high", "sizes", "ends"), [(64, [1, 4, 16, 64], [2, 8, 32, 64]), (300, [16, 64, 128, 256], [32, 90, 181, 300])]
)
def test_what_few_rows_take_is_guessed_at_one_row_too(high: int, sizes: list[int], ends: list[int]) -> None:
    family = Family.of(catalogue().get("gemm"), {"m": (1, high), "n": N, "k": K})
    spans = zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True)
    assert guessed_at(family) == dict(zip(sizes, spans, strict=True))


def test_a_range_takes_what_is_right_from_its_one_end_to_the_other() -> None:
    """Tiles of few rows that several blocks share: of 8,192 rows there would be more than counters have room for."""
    gemm, place = catalogue().get("gemm"), TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    family = Family.of(gemm, {"m": (1, 8192), "n": 3072, "k": 4096})
    values = dict(gemm.variant("tensor3xtf32").space().default().values) | {"WARPS_M": 1, "WARPS_N": 1, "SPLIT_K": 4}
    shared = Choice(Configuration.of("tensor3xtf32", values), "shipped", "predicted")
    families = Families(
        lambda _kernel, _problem, _place: shared,
        lambda _kernel, _family, _place: None,
        lambda _kernel, _problem, _place, _choice: None,
        lambda _kernel, _family, _place: None,
        lambda _kernel, _problems, _place: None,
    )
    found = families.ranges(gemm, family, place).ranges
    assert [(one.high, one.choice.match) for one in found] == [(4096, "predicted"), (8192, "default")]


def test_beyond_its_end_a_range_serves_what_it_is_right_for() -> None:
    gemm, place = catalogue().get("gemm"), TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    family, names = Family.of(gemm, {"m": (1, 64), "n": 4096, "k": 4096}), ("tensor3xtf32", "tensor3xfp16_sm90")
    values = dict(gemm.variant(names[0]).space().default().values) | {"SPLIT_K": 8}  # counts in the workspace
    split = Choice(Configuration.of(names[0], values), "table")
    panels = Choice(Configuration.of(names[1], gemm.variant(names[1]).space().default().values), "table")
    alone, both = Ranges([SizeRange(64, split)]), Ranges([SizeRange(64, split), SizeRange(4096, panels)])
    beyond = Beyond(gemm, family, place)
    assert beyond.number(alone, 4096) == 0
    with pytest.raises(LaunchError, match=r"m=100000.*for up to 64, is right there. Ask best\(...\) for m=100000"):
        beyond.number(alone, 100_000)
    assert Beyond(gemm, family, place).number(both, 100_000) == 1


def test_rows_that_a_kernel_does_not_take_are_refused(runtime: Runtime) -> None:
    launch, generator = runtime.best("linear_quantized", n=24, k=128, dtype="float16"), np.random.default_rng(2)
    w, s = generator.integers(-100, 100, (24, 128), np.int8), np.full((24, 1), 2**-7, np.float16)
    for m in (1, 64, 5):
        x, y = generator.standard_normal((m, 128)).astype(np.float16), np.full((m, 24), np.nan, np.float16)
        np.testing.assert_allclose(
            launch(x, w, s, y), x.astype(np.float64) @ (w * s.astype(np.float64)).T, rtol=2e-3, atol=1e-2
        )
    with pytest.raises(LaunchError, match="m=65"):
        launch(np.zeros((65, 128), np.float16), w, s, np.zeros((65, 24), np.float16))


def test_transposed_matrices_of_any_width_run_one_program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, x = runtime.best("gemv", n=40, trans_a=True, device="cpu"), normal(40)
    launch.prepare()
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for m in (33, 1, 500, 33, 9000):
        a, y = normal(40, m), np.full(m, np.nan, np.float32)
        np.testing.assert_allclose(launch(a, x, y), a.T.astype(np.float64) @ x, atol=1e-4)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_images_of_any_number_run_one_program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    sizes = {"height": 9, "width": 7, "channels": 8, "filters": 12, "kernel_h": 3, "kernel_w": 3, "padding": 1}
    launch, w, b = runtime.best("conv2d", **sizes, layout=layout, device="cpu"), normal(12, 3, 3, 8), normal(12)
    given = (lambda one: one) if layout == "nhwc" else (lambda one: np.ascontiguousarray(np.moveaxis(one, 3, 1)))
    launch.prepare()
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for batch in (3, 1, 300, 17):
        x, y = normal(batch, 9, 7, 8), given(np.full((batch, 9, 7, 12), np.nan, np.float32))
        padded, expected = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0))), b.astype(np.float64)
        for i, j in np.ndindex(3, 3):
            expected = expected + padded[:, i : i + 9, j : j + 7] @ w[:, i, j].T
        np.testing.assert_allclose(launch(given(x), given(w), b, y), given(expected), atol=1e-4)


def test_no_rows_are_nothing_to_launch(runtime: Runtime) -> None:
    c = np.empty((0, N), np.float32)
    assert runtime.best("gemm", n=N, k=K)(np.empty((0, K), np.float32), normal(K, N), c) is c


def test_views_and_transposed_operands_have_plans_of_their_own(runtime: Runtime) -> None:
    launch, b = runtime.best("gemm", n=N, k=K), normal(K, N)
    wide = normal(33, 64)[:, :K]
    assert launched(launch, wide, b) < 1e-4
    assert launched(launch, np.asfortranarray(normal(20, K)), b) < 1e-4
    assert launched(launch, normal(31, K), np.asfortranarray(b)) < 1e-4
    assert launched(launch, normal(33, K), b) < 1e-4


def test_any_number_of_products_runs_one_program(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = runtime.best("gemm", m=17, n=N, k=K, batch="1..64", device="cpu")
    launch.prepare()
    shared, generator = normal(K, N), np.random.default_rng(1)
    launch(np.zeros((2, 17, K), np.float32), shared, np.zeros((2, 17, N), np.float32))
    monkeypatch.setattr("tilewright.tuner.devices.cpu.build.HostBuilder.program", None)
    for batch in (1, 70, 2, 1, 33, *generator.integers(1, 200, 5)):
        a, b = normal(batch, 17, K), normal(batch, K, N)
        for right in (b, shared):
            c = np.full((batch, 17, N), np.nan, np.float32)
            np.testing.assert_allclose(launch(a, right, c), a.astype(np.float64) @ right, atol=1e-4)


def test_one_product_of_many_is_no_plan_for_more(runtime: Runtime) -> None:
    launch, far, b = runtime.best("gemm", m=17, n=N, k=K, batch="1..64"), normal(40, 17, K), normal(20, K, N)
    for taken in (far[:2:2], far[::2]):  # matrices lie two apart
        c = np.full((len(taken), 17, N), np.nan, np.float32)
        np.testing.assert_allclose(
            launch(taken, b[: len(taken)], c), taken.astype(np.float64) @ b[: len(taken)], atol=1e-4
        )


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_row_does_not_say_is_no_plan_for_more_rows(runtime: Runtime, *, turned: bool) -> None:
    launch, b = runtime.best("gemm", n=N, k=K), normal(K, N)
    wide = normal(K, 64).T if turned else normal(64, 64)[:, :K]
    for m in (1, 33, 1, 2):
        assert launched(launch, wide[:m], b) < 1e-4


def test_one_row_does_not_admit_gaps_between_more(runtime: Runtime) -> None:
    launch, wide, y = runtime.best("softmax", n=N), normal(64, 64), np.empty((64, N), np.float32)
    launch(wide[:1, :N], y[:1])
    with pytest.raises(ArgumentError, match="neither row-major"):
        launch(wide[:33, :N], y[:33])


def test_numbers_go_with_the_launch(runtime: Runtime) -> None:
    launch, a, b = runtime.best("gemm", n=N, k=K, beta_zero=False), normal(5, K), normal(K, N)
    c = np.ones((5, N), np.float32)
    launch(a, b, c, alpha=2.0, beta=-1.0)
    np.testing.assert_allclose(c, 2.0 * a @ b - 1.0, atol=1e-4)


def test_linear_takes_any_number_of_rows(runtime: Runtime) -> None:
    launch, w, bias = runtime.best("linear", n=N, k=K, activation="relu"), normal(N, K), normal(N)
    for m in (3, 70):
        x, y = normal(m, K), np.empty((m, N), np.float32)
        np.testing.assert_allclose(launch(x, w, bias, y), np.maximum(x @ w.T + bias, 0), atol=1e-4)


@pytest.mark.parametrize(
    ("a", "c", "culprit"), [((3, K + 1), (3, N), "A"), ((3, K), (4, N), "C"), ((3,), (3, N), "A")], ids=str
)
def test_arrays_that_fit_no_size_are_refused(runtime: Runtime, a: Any, c: Any, culprit: str) -> None:
    launch = runtime.best("gemm", n=N, k=K)
    with pytest.raises(ArgumentError, match=f"^{culprit}: "):
        launch(np.zeros(a, np.float32), normal(K, N), np.zeros(c, np.float32))


def test_an_output_that_lies_in_an_input_is_refused(runtime: Runtime) -> None:
    launch, b = runtime.best("gemm", n=K, k=K), normal(K, K)
    launch(normal(4, K), b, np.empty((4, K), np.float32))
    with pytest.raises(ArgumentError, match="shares memory with B"):
        launch(normal(4, K), b, b[:4])


def test_what_nobody_tuned_is_said_once(tmp_path: Path) -> None:
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"))
    launch = runtime.best("gemm", n=N, k=K)
    with pytest.warns(UntunedWarning, match=r"m=1\.\.8192,n=24,k=40"):
        launched(launch, normal(3, K), normal(K, N))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launched(launch, normal(4, K), normal(K, N))


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8, unique=True).map(sorted), st.integers(1, 12_000))
def test_a_size_is_served_by_the_first_range_that_reaches_it(ends: list[int], size: int) -> None:
    gemm = catalogue().get("gemm")
    some = [Choice(gemm.variant(v).space().default(), "table") for v in ("naive", "tiled")]
    ranges = Ranges([SizeRange(end, some[i % 2]) for i, end in enumerate(ends)])
    expected = next((i for i, end in enumerate(ends) if size <= end), len(ends) - 1)
    assert ranges.number(size) == expected


@given(st.integers(1, 100_000))
@settings(max_examples=50)
def test_panels_cover_all_rows_and_are_no_larger_than_the_variant_allows(size: int) -> None:
    gemm = catalogue().get("gemm")
    family = Family.of(gemm, {"m": (1, 8192), "n": 256, "k": 256})
    variant = gemm.variant("tensor3xfp16_sm90")
    panels = Geometry(gemm, family, variant.space().default()).panels(size)
    assert (panels.count - 1) * panels.size + panels.last == size
    assert 0 < panels.last <= panels.size <= variant.most_at_once or panels.count == 1
    assert panels.count <= -(-size // variant.most_at_once) + 1


@given(st.integers(1, 500), st.integers(0, 1 << 16))
@settings(max_examples=50)
def test_arrays_that_meet_are_found_at_every_size(size: int, distance: int) -> None:
    gemm = catalogue().get("gemm")
    places = Places(gemm, Family.of(gemm, {"m": (1, 8192), "n": N, "k": K}))
    a, b, c = 1 << 20, 1 << 30, (1 << 20) + distance
    assert places.meet(size, (a, b, c)) == (distance < 4 * K * size)
    assert places.moved((a, b, c), 3) == (a + 3 * 4 * K, b, c + 3 * 4 * N)


def test_a_family_is_written_as_it_is_read() -> None:
    gemm = catalogue().get("gemm")
    family = Family.of(gemm, {"m": "1..8192", "n": 24, "k": 40})
    assert family.shape_text == "m=1..8192,n=24,k=40"
    assert family.at(7).stated_shape == {"m": 7, "n": 24, "k": 40}
    assert family.exact(7) == gemm.problem({"m": 7, "n": 24, "k": 40})
    assert family.hash == Family.of(gemm, {"m": (5, 9), "n": 24, "k": 40}).hash
    assert family.stated_hash != Family.of(gemm, {"m": (5, 9), "n": 24, "k": 40}).stated_hash


@pytest.mark.parametrize(
    "sizes", [("1..8192", "2..3", 4), ("9..1", 2, 3), (4, "1..2", 3), ("0..3", 2, 3), (1, 2, 3), ("1..", 2, 3)]
)
def test_a_shape_that_is_no_family_is_refused(sizes: tuple[int | str, ...]) -> None:
    with pytest.raises(InvalidProblemError):
        Family.of(catalogue().get("gemm"), dict(zip("mnk", sizes, strict=True)))


def test_a_row_is_the_same_whatever_else_is_computed(runtime: Runtime) -> None:
    launch, b = runtime.best("gemm", n=N, k=K, batch_invariant=True), normal(K, N)
    assert isinstance(launch, AnySizeLauncher)
    row = normal(1, K)
    alone = launch(row, b, np.empty((1, N), np.float32))
    for size, place, others in ((2, 0, 0.0), (2, 1, np.nan), (64, 33, 1e30), (65, 64, np.inf), (8192, 4097, 1.0)):
        a = np.full((size, K), others, np.float32)
        a[place] = row
        with np.errstate(all="ignore"):
            c = launch(a, b, np.empty((size, N), np.float32))
        np.testing.assert_array_equal(c[place], alone[0])
    assert len(launch.ranges()) == 1


def test_rows_that_must_not_depend_on_each_other_are_a_family_of_their_own(runtime: Runtime) -> None:
    gemm = catalogue().get("gemm")
    shape = {"m": "1..8192", "n": 24, "k": 40}
    usual, same = Family.of(gemm, shape), Family.of(gemm, shape, batch_invariant=True)
    assert usual.hash != same.hash
    assert str(same).endswith("batch_invariant")
    packed = gemm.variant("tensor3xfp16_sm90").space().default()
    assert usual.admits(gemm, packed)
    assert not same.admits(gemm, packed)  # one line of wide span makes it pack all lines again


def test_a_layout_that_would_change_the_sums_is_refused_where_they_must_not(runtime: Runtime) -> None:
    launch = runtime.best("gemm", n=N, k=K, batch_invariant=True)
    with pytest.raises(ArgumentError, match="batch_invariant"):
        launch(np.asfortranarray(normal(20, K)), normal(K, N), np.empty((20, N), np.float32))

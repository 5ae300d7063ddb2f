"""Ladders measured for real, on the CPU device and on the host."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.loop.tune import Budget, tune
from tilewright.tuner.report import choices, host_steps
from tilewright.tuner.report.choices import KnownConfiguration, KnownFileError, read_known, step_space
from tilewright.tuner.report.host_steps import HostSteps, WrongHostResultError
from tilewright.tuner.report.ladders import GEMM, LADDERS, Ladder
from tilewright.tuner.report.measuring import LadderRun
from tilewright.tuner.report.pages import files, findings
from tilewright.tuner.report.scales import scale_of

KERNEL = catalogue().get("gemm")
SHAPE = {"m": 24, "n": 16, "k": 20}


@pytest.fixture
def device():
    device = CpuDevice()
    yield device
    device.close()


def ladder(*keys: str) -> Ladder:
    return replace(GEMM, steps=tuple(step for step in GEMM.steps if step.key in keys))


def tiny(of: Ladder, **changes: object):
    changed = {"sizes": (8,), "rectangles": ()} | changes
    return replace(scale_of(of, "cpu", quick=True, shape=SHAPE), **changed)


def test_a_report_has_every_step_measured_or_left_out_for_a_reason(device):
    steps = ladder("cpu_loop", "cpu_blas", "tiled", "register", "library")
    told = []
    report = LadderRun(device, steps, tiny(steps), on_progress=lambda share, what: told.append((share, what))).report()
    by_key = {step.key: step for step in report.steps}
    assert by_key.pop("register").left_out == "needs ptx, which this device has not"
    for step in by_key.values():
        assert step.time.low_ms <= step.time.median_ms <= step.time.high_ms
        assert step.work.flops == 2 * 24 * 16 * 20
    assert all(by_key[key].bound_ratio <= 2 for key in ("cpu_loop", "cpu_blas", "tiled"))
    assert by_key["tiled"].predicted_share == 1 / 16
    assert {(row.size, row.key) for row in report.sweep} == {(8, key) for key in by_key}
    assert all(row.work.flops == 2 * 8**3 for row in report.sweep)
    assert report.kind == "cpu"
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    assert told[-1][0] == 1.0


@pytest.mark.parametrize(
    ("is_searched", "configuration", "chosen"),
    [(True, "tiled TILE_WIDTH=8", "known: a bundle"), (False, "tiled TILE_WIDTH=16", "as declared")],
)
def test_a_known_configuration_is_taken_and_named_where_the_step_is_searched(
    device, is_searched, configuration, chosen
):
    (tiled,) = ladder("tiled").steps
    steps = replace(GEMM, steps=(replace(tiled, is_searched=is_searched),))
    problem = KERNEL.problem(SHAPE)
    other = KERNEL.problem(SHAPE | {"k": 21})
    known = [
        KnownConfiguration(
            "gemm",
            one.stated_shape,
            "float32",
            one.options,
            Configuration.of("tiled", {"TILE_WIDTH": width}),
            "a bundle",
        )
        for one, width in ((other, 4), (problem, 8))
    ]
    (step,) = LadderRun(device, steps, tiny(steps, sizes=()), known).report().steps
    assert (step.configuration, step.chosen) == (configuration, chosen)


def test_a_search_says_how_far_it_went_and_late_sizes_are_named(device):
    steps = ladder("tiled")
    report = LadderRun(device, steps, tiny(steps, search_trials=1, total_s=0.0)).report()
    assert report.steps[0].chosen.startswith("searched too little: 1 of 5 configurations in")
    assert report.steps[0].is_short
    assert "Searched too little to stand for what it can do: tiled (1 of 5" in " ".join(findings(report))
    assert report.sweep == ()
    assert any("Sizes from 8 on were left out" in note for note in report.notes)


def test_a_search_without_time_measures_the_default_and_is_named_as_short(device):
    steps = ladder("tiled")
    (short,) = LadderRun(device, steps, tiny(steps, sizes=(), search_trials=40, search_s=1e-9)).report().steps
    assert short.chosen.startswith("searched too little: 1 of 5 configurations")
    assert (short.is_short, short.name) == (True, "tiled (searched too little)")
    assert short.time is not None


@pytest.mark.in_turn(2)
def test_a_search_whose_time_is_up_early_goes_on_to_the_least_number(device, monkeypatch):
    budgets = []

    def hurried(*arguments, **named):
        bench, kernel, space, budget = arguments
        budgets.append(budget)
        return tune(bench, kernel, space, Budget(trials=1) if len(budgets) == 1 else budget, **named)

    monkeypatch.setattr(choices, "tune", hurried)
    steps = ladder("tiled")
    scale = tiny(steps, sizes=(), search_trials=40, search_s=60.0, total_s=1e6)
    (found,) = LadderRun(device, steps, scale).report().steps
    assert found.chosen.startswith("searched: 5 of 5 configurations")
    assert budgets == [Budget(trials=40, seconds=60.0), Budget(trials=4, seconds=480.0)]

    budgets.clear()  # where half of the report's time is over, the sweep gets the rest
    (short,) = LadderRun(device, steps, replace(scale, total_s=1e-9)).report().steps
    assert (short.is_short, len(budgets)) == (True, 1)


@pytest.mark.in_turn(3)
def test_float64_edges_and_rectangles_are_swept_too(device):
    steps = replace(ladder("tiled", "tiled_checked", "tiled_float64", "cpu_blas", "library"), compared=())
    report = LadderRun(device, steps, tiny(steps, rectangles=({"m": 16, "n": 2, "k": 16},))).report()
    by_key = {step.key: step for step in report.steps}
    assert dict(by_key["tiled_checked"].shape) == {"m": 25, "n": 17, "k": 21}
    swept = {(row.size, row.key): row.work.flops for row in report.sweep}
    at_8 = dict.fromkeys([(8, key) for key in ("tiled", "tiled_float64", "cpu_blas", "library")], 2 * 8**3)
    assert swept == at_8 | {(9, "tiled_checked"): 2 * 9**3}
    shapes = {row.key: tuple(row.shape.values()) for row in report.rectangles}
    plain = (16, 2, 16)
    assert shapes == dict.fromkeys(("tiled", "tiled_float64", "cpu_blas", "library"), plain) | {
        "tiled_checked": (17, 3, 17)
    }
    page = files(report)
    assert len(json.loads(page["gemm.json"])["steps"]) == len(report.steps)
    assert "| 16 x 2 x 16 | tiled | " in page["gemm.md"]


def test_work_per_thread_is_along_one_axis_or_along_both(device):
    problem = KERNEL.problem({"m": 256, "n": 256, "k": 256})
    spaces = {key: step_space(KERNEL, GEMM.step(key), problem, device.model) for key in ("wpt_1d", "wpt_2d")}
    shapes = {key: {(min(c.values.WPT_M, 2), min(c.values.WPT_N, 2)) for c in s.feasible} for key, s in spaces.items()}
    assert shapes == {"wpt_1d": {(1, 2), (2, 1)}, "wpt_2d": {(2, 2)}}


@pytest.mark.parametrize("name", sorted(LADDERS))
def test_steps_belong_to_their_kernel_and_have_a_reason_of_two_sentences(name):
    declared = catalogue().get(name)
    variants = {variant.name for variant in declared.variants}
    ladder = LADDERS[name]
    keys = [step.key for step in ladder.steps]
    assert len(set(keys)) == len(keys)
    assert {key for pair in ladder.compared for key in pair} <= set(keys)
    for step in ladder.steps:
        assert set(step.variants) <= variants
        assert step.reason.count(". ") == 1
        assert step.reason.endswith(".")


@pytest.mark.parametrize("name", sorted(LADDERS))
def test_the_hosts_steps_compute_what_the_reference_says(name):
    declared, ladder = catalogue().get(name), LADDERS[name]
    shape = dict(zip(declared.axes, (45, 33, 70), strict=False))
    host = HostSteps(declared, limit_s=1.0)
    try:
        for place in ("loop", "blas"):
            time, ratio = host.time(place, declared.problem(shape, "float32", ladder.options), seed=1)
            assert 0 < time.low_ms <= time.median_ms <= time.high_ms
            assert 0 < ratio <= 2
    finally:
        host.close()


def test_a_wrong_result_of_the_host_is_found(monkeypatch):
    monkeypatch.setattr(host_steps, "_blas", lambda _problem, _arrays, out: lambda: np.ndarray.fill(out, 1.0))
    host = HostSteps(KERNEL, limit_s=1.0)
    with pytest.raises(WrongHostResultError, match="out of bounds"):
        host.time("blas", KERNEL.problem(SHAPE), seed=1)
    host.close()


def test_a_host_step_that_would_take_too_long_is_left_out():
    host = HostSteps(KERNEL, limit_s=0.001)
    assert host.allows("loop", KERNEL.problem({"m": 8, "n": 8, "k": 8}))
    large = KERNEL.problem({"m": 512, "n": 512, "k": 512})
    assert not host.allows("loop", large)
    assert not host.allows("blas", large)
    host.close()


def test_what_a_short_call_took_says_how_long_the_next_size_takes():
    host = HostSteps(KERNEL, limit_s=0.1)
    larger = KERNEL.problem({"m": 256, "n": 256, "k": 256})
    assert not host.allows("blas", larger)
    time, _ = host.time("blas", KERNEL.problem({"m": 64, "n": 64, "k": 64}), seed=1)
    assert host.allows("blas", larger) == (time.median_ms * 4**3 <= 100)
    host.close()


def test_known_configurations_are_read_from_a_bundle_and_from_results(tmp_path):
    problem = KERNEL.problem(SHAPE).as_json()
    bundle = {"results": [problem | {"variant": "tiled", "configuration": {"TILE_WIDTH": 8}}]}
    rows = {"rows": [problem | {"configuration": {"variant": "tiled", "TILE_WIDTH": 8}}, {"reason": "it failed"}]}
    found = []
    for name, document in (("b.json", bundle), ("k.json", rows)):
        (tmp_path / name).write_text(json.dumps(document))
        found += read_known(tmp_path / name)
    assert [str(one.configuration) for one in found] == ["tiled TILE_WIDTH=8"] * 2
    assert all(one.fits(KERNEL.problem(SHAPE, "float32", {"accuracy": "fp32-fma"})) for one in found)
    assert not any(one.fits(KERNEL.problem(SHAPE, "float32", {"trans_b": True})) for one in found)


@pytest.mark.parametrize(
    "text", ["no JSON", "[]", '{"rows": [{"configuration": 3}]}', '{"results": [{"configuration": {}}]}']
)
def test_a_file_without_configurations_is_refused_by_name(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(KnownFileError, match=r"cannot read configurations from .*bad\.json"):
        read_known(tmp_path / "bad.json")

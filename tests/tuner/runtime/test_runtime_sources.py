"""Where a launcher's configurations come from, in order: pins, bundle, cache, service, default."""

import warnings
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from answering import answer, serving, warned
from made_bundles import GEMM, PLACE, PROBLEM, SHAPE, bundle_file, choose, result
from sampling import shape_or_example
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import (
    BundleWarning,
    LaunchError,
    Runtime,
    UntunedWarning,
    best,
)
from tilewright.tuner.runtime.choice import TargetDevice, default_choice
from tilewright.tuner.runtime.runtime import default_runtime

OWN_KERNEL = Path(__file__).parents[3] / "examples" / "convolution2d"


def test_a_bundle_goes_before_the_cache_and_the_service(tmp_path, answers):
    answers.put(PROBLEM, PLACE, answer(width=32))
    with serving(answer()) as (url, asked):
        runtime = Runtime(bundle=bundle_file(tmp_path / "b", result()), url=url, answers=answers)
        found = choose(runtime)
    assert (found.origin, found.match, found.time_ms, found.library_faster) == ("bundle", "exact", 0.5, True)
    assert found.configuration == Configuration.of("tiled", {"TILE_WIDTH": 8})
    assert asked == []


def test_without_a_bundle_the_cache_answers_and_then_the_service(answers):
    with serving(answer()) as (url, asked):
        runtime = Runtime(url=url, key="secret", answers=answers, service_limit_s=PATIENCE_S)
        assert (choose(runtime).origin, choose(runtime).match) == ("service", "predicted")
        later = choose(Runtime(url=url, answers=answers))
    assert (later.origin, later.match, later.configuration.values.TILE_WIDTH) == ("cache", "predicted", 16)
    ((path, headers),) = asked
    query = parse_qs(urlsplit(path).query)
    assert urlsplit(path).path == "/v1/kernels/gemm/best"
    assert query["shape"] == ["m=64,n=48,k=80"]
    assert (query["device_model"], query["dtype"]) == (["test-gpu"], ["float32"])
    assert query["options"] == ["trans_a=false,trans_b=false,beta_zero=true,accuracy=fp32"]
    assert headers["Authorization"] == "Bearer secret"


def test_a_pin_that_was_never_verified_is_a_first_use_until_it_is_pinned_anew():
    runtime, tiled = Runtime(), Configuration.of("tiled", {"TILE_WIDTH": 8})
    runtime.pin({PROBLEM: tiled}, {PROBLEM: "predicted"})
    found = choose(runtime)
    assert (found.origin, found.match, found.configuration) == ("pinned", "predicted", tiled)
    assert runtime.first_use(GEMM, PROBLEM, PLACE, found) is not None
    runtime.pin({PROBLEM: tiled})
    assert choose(runtime).match == "exact"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "0" * 64}, "a source that this version does not have"),
        ({"configuration": {"TILE_WIDTH": 7}}, "space"),
    ],
)
def test_a_result_that_this_version_cannot_use_is_left_aside_with_one_warning(tmp_path, answers, changes, words):
    runtime = Runtime(bundle=bundle_file(tmp_path / "b", result(**changes)), answers=answers)
    with warned() as said:
        assert choose(runtime).origin == "default"
        choose(runtime)
    (told,) = [text for category, text in said if category is BundleWarning]
    assert words in told


def test_what_is_pinned_goes_first_and_must_be_in_the_space(tmp_path):
    bundle = bundle_file(tmp_path / "b", result())
    pinned = Configuration.of("tiled", {"TILE_WIDTH": 32})
    assert choose(Runtime(bundle=bundle, pinned={PROBLEM: pinned})).configuration == pinned
    with pytest.raises(LaunchError, match="not in the search space"):
        choose(Runtime(pinned={PROBLEM: Configuration.of("tiled", {"TILE_WIDTH": 7})}))


def test_what_is_pinned_or_learnt_later_counts_for_launchers_asked_for_later(answers):
    runtime = Runtime(only_tuned=True, answers=answers)
    before = runtime.best("gemm", **SHAPE)
    runtime.learn(PROBLEM, PLACE, answer(width=32))
    assert (choose(runtime).origin, choose(runtime).configuration.values.TILE_WIDTH) == ("cache", 32)
    runtime.pin({PROBLEM: Configuration.of("tiled", {"TILE_WIDTH": 8})})
    assert (choose(runtime).origin, choose(runtime).configuration.values.TILE_WIDTH) == ("pinned", 8)
    assert runtime.best("gemm", **SHAPE) is not before


def test_a_view_that_was_never_tuned_gets_what_is_known_of_dense_matrices_and_says_so(tmp_path, recwarn):
    runtime = Runtime(bundle=bundle_file(tmp_path / "b", result(), result(problem=GEMM.problem({**SHAPE, "batch": 4}))))
    for axes in ({"lda": 100}, {"batch": 4, "stride_b": 0}):
        found = choose(runtime, GEMM.problem({**SHAPE, **axes}))
        assert (found.origin, found.match, found.library_faster) == ("bundle", "nearest", None)
        assert found.configuration == Configuration.of("tiled", {"TILE_WIDTH": 8})
    assert not recwarn.list
    with pytest.warns(UntunedWarning, match="--shape m=64,n=48,k=80,batch=5 "):
        assert choose(runtime, GEMM.problem({**SHAPE, "batch": 5})).match == "default"


def test_a_problem_is_looked_up_and_warned_of_once(answers):
    runtime = Runtime(answers=answers)
    with pytest.warns(UntunedWarning, match="tilewright tune"):
        first = choose(runtime)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(runtime) is first


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0), (12, 0)])
def test_every_problem_has_a_safe_configuration_on_every_device(kernel, capability):
    place = TargetDevice("a-gpu", Limits(compute_capability=capability, multiprocessors=40, memory_bytes=1 << 33))
    for shape in (dict.fromkeys(kernel.axes, 1), dict.fromkeys(kernel.axes, 37), kernel.example_shape):
        for dtype in kernel.dtypes:
            problem = kernel.problem(shape_or_example(kernel, shape), dtype)
            found = default_choice(kernel, problem, place)
            assert found.configuration in kernel.space(problem, place.limits, [found.configuration.variant])


def test_the_environment_describes_the_runtime_of_best(tmp_path, monkeypatch):
    for name in ("TILEWRIGHT_URL", "TILEWRIGHT_KEY", "TILEWRIGHT_BUNDLE_KEY", "TILEWRIGHT_REPORT_MISSES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", str(bundle_file(tmp_path / "b", result())))
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", str(OWN_KERNEL))
    default_runtime.cache_clear()
    try:
        assert default_runtime().choose(GEMM, PROBLEM, PLACE).origin == "bundle"
        assert best("convolution2d", h=8, w=8, r=3, s=3).kernel.folder == OWN_KERNEL
        monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", '["/a/folder"')
        default_runtime.cache_clear()
        with pytest.raises(LaunchError, match="TILEWRIGHT_KERNEL_FOLDERS: this is not a JSON list"):
            best("gemm", **SHAPE)
    finally:
        default_runtime.cache_clear()


def test_the_same_question_gives_the_same_launcher():
    runtime = Runtime()
    assert runtime.best("gemm", **SHAPE) is runtime.best("gemm", **SHAPE)
    assert runtime.best("gemm", **SHAPE) is not runtime.best("gemm", **SHAPE, trans_b=True)


def test_the_warning_names_the_options_and_the_whole_command(answers):
    problem = GEMM.problem(SHAPE, "float64", {"trans_b": True})
    with pytest.warns(UntunedWarning) as said:
        Runtime(answers=answers).choose(GEMM, problem, PLACE)
    shape = ",".join(f"{axis}={size}" for axis, size in problem.axes)
    (told,) = said
    assert str(told.message) == (
        f"no result for gemm {shape} float64 trans_b=true on {PLACE.slug}: the kernel's default configuration is used. "
        f"Tune it: tilewright tune gemm --shape {shape} --dtype float64 --option trans_b=true "
        f"--device-model {PLACE.slug}"
    )


def test_no_default_is_promised_where_none_exists(answers):
    tiny = replace(PLACE, limits=replace(PLACE.limits, max_threads_per_block=1, max_grid=(1, 1, 1)))
    with warned() as said, pytest.raises(LaunchError, match="has no configuration"):
        Runtime(answers=answers).choose(GEMM, PROBLEM, tiny)
    assert said == []

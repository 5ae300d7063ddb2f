"""Where the launcher's configurations come from: bundle, cache, service, default; and what is wrong with them."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from faulty_kernels import FAULTY, say_that_tiled_was_faulty
from made_bundles import GEMM, OTHER, PLACE, PROBLEM, SHAPE, bundle_file, choose, result
from sampling import shape_or_example
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import (
    BundleWarning,
    LaunchError,
    Runtime,
    ServiceAddressError,
    ServiceWarning,
    UntunedWarning,
    best,
)
from tilewright.tuner.runtime.choice import TargetDevice, default_choice
from tilewright.tuner.runtime.known.answers import FRESH_S, AnswerCache
from tilewright.tuner.runtime.known.service import MAX_REPORTS
from tilewright.tuner.runtime.runtime import default_runtime

OWN_KERNEL = Path(__file__).parents[3] / "examples" / "convolution2d"


@pytest.fixture
def answers(tmp_path):
    return AnswerCache(tmp_path / "answers")


def answer(width=16, match="predicted", **changes):
    """What the service says, as far as it is read."""
    found = {
        "variant": "tiled",
        "configuration": {"TILE_WIDTH": width},
        "match": match,
        "time_ms": 0.25,
        "library": None,
        "source_hash": GEMM.source_hash("tiled"),
    }
    return found | changes


@contextmanager
def serving(reply, status=200):
    """A server on loopback that sends the same reply to every question; yields its address and what it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, dict(self.headers)))
            body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def warned():
    """The categories and texts of what is warned of meanwhile."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [(w.category, str(w.message)) for w in caught]


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


def test_with_a_bundle_nobody_waits_for_the_service_but_a_miss_is_reported(tmp_path, answers):
    listener = socket.create_server(("127.0.0.1", 0))  # accepts, and never says a word
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    bundle = bundle_file(tmp_path / "b", result())
    with listener:
        for reports in (False, True):
            runtime = Runtime(
                bundle=bundle, url=url, report_misses=reports, answers=answers, service_limit_s=PATIENCE_S
            )
            started = time.monotonic()
            with pytest.warns(UntunedWarning, match="gemm m=32,n=32,k=32 float32 on test-gpu"):
                assert choose(runtime, OTHER).origin == "default"
            assert time.monotonic() - started < PATIENCE_S / 2
        listener.settimeout(PATIENCE_S)
        connection, _ = listener.accept()  # only the second asked, in the background
        connection.settimeout(PATIENCE_S)
        assert b"shape=m%3D32%2Cn%3D32%2Ck%3D32" in connection.recv(4096)
        connection.close()


def test_what_was_reported_is_answered_from_the_cache_next_time(tmp_path, answers):
    with serving(answer()) as (url, _):
        bundle = bundle_file(tmp_path / "b", result(problem=OTHER))
        runtime = Runtime(bundle=bundle, url=url, report_misses=True, answers=answers, service_limit_s=PATIENCE_S)
        with pytest.warns(UntunedWarning):
            assert choose(runtime).origin == "default"
        runtime._service._reports.join()
    assert choose(Runtime(bundle=bundle, answers=answers)).origin == "cache"


def test_reports_are_dropped_rather_than_waited_for(answers):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        runtime = Runtime(
            url=f"http://127.0.0.1:{silent.getsockname()[1]}", answers=answers, service_limit_s=PATIENCE_S
        )
        started = time.monotonic()
        for size in range(1, MAX_REPORTS + 50):
            runtime._service.report(GEMM.problem({"m": size, "n": 1, "k": 1}), PLACE)
        assert time.monotonic() - started < PATIENCE_S / 2
        assert 0 < runtime._service._reports.qsize() <= MAX_REPORTS


def test_a_service_that_is_silent_costs_the_limit_once_and_one_warning(answers):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runtime = Runtime(url=f"http://127.0.0.1:{listener.getsockname()[1]}", answers=answers, service_limit_s=0.3)
        started = time.monotonic()
        with warned() as said:
            assert choose(runtime).origin == "default"
            assert choose(runtime, OTHER).origin == "default"
        assert time.monotonic() - started < PATIENCE_S
    categories = [category for category, _ in said]
    assert (categories.count(ServiceWarning), categories.count(UntunedWarning)) == (1, 2)


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (b"<html>", 200, "Expecting value"),
        (b"[1]", 200, "the answer is not a JSON object"),
        (b"{" + b" " * (1 << 20) + b"}", 200, "the answer is not a JSON object"),
        ({"title": "down"}, 503, "503"),
        ({}, 302, "302"),
        (answer(configuration=7), 200, "the service's answer cannot be used"),
        (answer(configuration={"TILE_WIDTH": "8"}), 200, "the service's answer cannot be used"),
    ],
)
def test_a_service_that_makes_no_sense_is_one_warning_and_leads_the_key_nowhere_else(answers, reply, status, words):
    with serving(reply, status) as (url, asked), warned() as said:
        assert choose(Runtime(url=url, key="secret", answers=answers, service_limit_s=PATIENCE_S)).origin == "default"
    assert words in next(text for category, text in said if category is ServiceWarning)
    assert [path.partition("?")[0] for path, _ in asked] == ["/v1/kernels/gemm/best"]


def test_a_service_that_knows_nothing_is_no_fault(answers):
    with serving({"title": "not found"}, 404) as (url, _), warned() as said:
        assert choose(Runtime(url=url, answers=answers, service_limit_s=PATIENCE_S)).origin == "default"
    assert {category for category, _ in said} == {UntunedWarning}


def test_a_configuration_outside_the_space_is_never_taken(answers):
    for wrong in ({"TILE_WIDTH": 7}, {"TILE_WIDTH": 8, "MORE": 1}, {}, {"TILE_WIDTH": True}):
        with serving(answer(configuration=wrong)) as (url, _), warned():
            assert choose(Runtime(url=url, answers=answers, service_limit_s=PATIENCE_S)).origin == "default"


def test_the_services_default_is_warned_of_and_not_kept(answers):
    with serving(answer(match="default")) as (url, _), pytest.warns(UntunedWarning):
        assert choose(Runtime(url=url, answers=answers, service_limit_s=PATIENCE_S)).origin == "service"
    assert answers.get(GEMM, PROBLEM, PLACE) is None


def test_an_old_answer_serves_where_nobody_gives_a_new_one(tmp_path):
    now = [1000.0]
    answers = AnswerCache(tmp_path, clock=lambda: now[0])
    answers.put(PROBLEM, PLACE, answer())
    now[0] += FRESH_S
    assert answers.get(GEMM, PROBLEM, PLACE) is None
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    with pytest.warns(ServiceWarning, match="not of help"):
        assert choose(Runtime(url=url, answers=answers)).origin == "cache"


DAMAGED = [
    *(b"", b"{", b"[]", b'{"format": 1}', b'{"answered_at": "x"}', b"\xff", b"[" * 100_000),
    b'{"answered_at": ' + b"9" * 400 + b"}",
    b'{"answered_at": 1, "format": "", "problem": "", "answer": null}',
]


@pytest.mark.parametrize("damage", DAMAGED, ids=lambda damage: damage[:16])
def test_a_damaged_answer_is_no_answer(answers, damage):
    answers.put(PROBLEM, PLACE, answer())
    (path,) = answers.folder.glob("*/*.json")
    path.write_bytes(damage)
    assert answers.get(GEMM, PROBLEM, PLACE) is None
    answers.put(PROBLEM, PLACE, answer())
    assert answers.get(GEMM, PROBLEM, PLACE) is not None


def test_an_answer_of_a_source_that_was_faulty_is_a_prediction(answers, tmp_path, monkeypatch):
    say_that_tiled_was_faulty(tmp_path, monkeypatch)
    answers.put(PROBLEM, PLACE, answer(match="exact", source_hash=FAULTY))
    assert answers.get(GEMM, PROBLEM, PLACE).match == "predicted"


def test_a_pin_that_was_never_verified_is_a_first_use_until_it_is_pinned_anew():
    runtime, tiled = Runtime(), Configuration.of("tiled", {"TILE_WIDTH": 8})
    runtime.pin({PROBLEM: tiled}, {PROBLEM: "predicted"})
    found = choose(runtime)
    assert (found.origin, found.match, found.configuration) == ("pinned", "predicted", tiled)
    assert runtime.first_use(GEMM, PROBLEM, PLACE, found) is not None
    runtime.pin({PROBLEM: tiled})
    assert choose(runtime).match == "exact"


def test_an_answer_for_another_source_or_device_is_none(answers):
    answers.put(PROBLEM, PLACE, answer(source_hash="0" * 64))
    assert answers.get(GEMM, PROBLEM, PLACE) is None
    answers.put(PROBLEM, PLACE, answer())
    assert answers.get(GEMM, PROBLEM, TargetDevice("another-gpu", PLACE.limits)) is None
    assert answers.get(GEMM, OTHER, PLACE) is None


def test_a_disk_that_cannot_be_written_costs_only_the_cache(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    answers = AnswerCache(tmp_path / "file" / "answers")
    answers.put(PROBLEM, PLACE, answer())
    assert answers.get(GEMM, PROBLEM, PLACE) is None
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize(
    ("url", "key", "named"),
    [(url, None, "TILEWRIGHT_URL") for url in ("ftp://host", "host:8000", "http://", "file:///etc/passwd")]
    + [("http://127.0.0.1:1", "a\nb", "TILEWRIGHT_KEY")],
)
def test_an_address_that_is_none_and_a_key_of_two_lines_are_refused(answers, url, key, named):
    with pytest.raises(ServiceAddressError, match=named):
        Runtime(url=url, key=key, answers=answers)


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


def test_an_answer_carries_the_time_of_the_library(answers):
    facts = answer() | {"library": {"name": "cuBLAS", "time_ms": 0.25, "faster": False}}
    answers.put(PROBLEM, PLACE, facts)
    found = choose(Runtime(answers=answers))
    assert (found.library_ms, found.library_faster) == (0.25, False)


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


@pytest.mark.parametrize("match", ["exact", "predicted"])
def test_what_is_known_in_fp32_serves_tf32_where_nothing_is_known_of_it(answers, match):
    """The library's TF32 is expected to be faster than that; turns may say otherwise."""
    of_fp32, of_tf32 = (GEMM.problem(PROBLEM.shape, options={"accuracy": one}) for one in ("fp32", "tf32"))
    library = {"faster": False, "time_ms": 0.5}
    answers.put(of_fp32, PLACE, answer(match=match, library=library))
    runtime = Runtime(answers=answers, only_tuned=True)
    found = runtime.choose(GEMM, of_tf32, PLACE)
    assert (found.configuration, found.match) == (
        Configuration.of("tiled", {"TILE_WIDTH": 16}),
        "nearest" if match == "exact" else "predicted",
    )
    assert found.is_behind
    assert not runtime.choose(GEMM, of_fp32, PLACE).is_behind
    answers.put(of_tf32, PLACE, answer(width=32, match="exact", library=library))
    known = Runtime(answers=answers, only_tuned=True).choose(GEMM, of_tf32, PLACE)
    assert (known.configuration.values["TILE_WIDTH"], known.is_behind) == (32, False)

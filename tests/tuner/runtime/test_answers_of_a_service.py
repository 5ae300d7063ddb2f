"""Answers of a service: asked for, kept on disk, refused where they make no sense."""

import socket
import time

import pytest
from answering import answer, serving, warned
from faulty_kernels import FAULTY, say_that_tiled_was_faulty
from made_bundles import GEMM, OTHER, PLACE, PROBLEM, bundle_file, choose, result
from waiting import PATIENCE_S

from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import (
    Runtime,
    ServiceAddressError,
    ServiceWarning,
    UntunedWarning,
)
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.known.answers import FRESH_S, AnswerCache
from tilewright.tuner.runtime.known.local_service import NotedAddress, local_address
from tilewright.tuner.runtime.known.service import MAX_REPORTS


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


def test_an_answer_carries_the_time_of_the_library(answers):
    facts = answer() | {"library": {"name": "cuBLAS", "time_ms": 0.25, "faster": False}}
    answers.put(PROBLEM, PLACE, facts)
    found = choose(Runtime(answers=answers))
    assert (found.library_ms, found.library_faster) == (0.25, False)


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


def test_an_api_of_this_machine_is_found_by_its_data_folder_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    assert local_address() is None
    processes = [
        NotedAddress(tmp_path, "0.0.0.0", 4321)  # noqa: S104 - compared only
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    assert local_address() == "http://127.0.0.1:4321"
    processes[0].stop()
    assert local_address() == "http://127.0.0.1:4321"
    processes[1].stop()
    assert local_address() is None  # the file is there, and nobody behind it
    assert NotedAddress(tmp_path, "::", 1).address == "http://[::1]:1"


def test_a_data_folder_that_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    NotedAddress(tmp_path / "file" / "data", "127.0.0.1", 1).start()
    assert "do not find this API" in caplog.text

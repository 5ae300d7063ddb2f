"""make bench-service: what its load counts, and that its synthetic rows are legal ones."""

import argparse
import asyncio
import json
import os
from http import HTTPStatus
from pathlib import Path

import pytest
from found import find_best


@pytest.fixture
def load(benchmark_module):
    return benchmark_module("installation.load")


def measured(load, job, first_takes_s=0.0):
    """What the generator measures on a server that answers one at a time and takes its time over the first."""

    async def serve_and_load():
        turn, waits, callers = asyncio.Lock(), iter([first_takes_s]), []

        async def answer(reader, writer):
            callers.append(asyncio.current_task())
            try:
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    async with turn:
                        await asyncio.sleep(next(waits, 0))
                        body = b'{"match":"nearest","rest":1}'
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            except asyncio.IncompleteReadError:
                writer.close()
                await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            found = await load.run(job | {"port": server.sockets[0].getsockname()[1]})
            await asyncio.gather(*callers)
            return found

    return asyncio.run(serve_and_load())


def test_in_an_open_loop_latency_counts_from_when_a_question_was_due(load):
    found = measured(load, {"path": "/", "per_second": 200, "seconds": 0.5}, first_takes_s=0.3)
    assert found["statuses"] == {"200": found["answers"]}
    assert found["answers"] == pytest.approx(100, rel=0.5)
    assert found["p50_ms"] > 20  # most came while the first was still being answered, and waited for it
    assert found["worst_ms"] >= 290


def test_in_a_closed_loop_each_caller_waits_for_its_answer(load):
    found = measured(load, {"path": "/", "connections": 3, "seconds": 1.0})
    assert found["matches"] == {"nearest": found["answers"]}
    assert 0 < found["per_second"] <= 1.01 * found["answers"]  # in a second, or more where others had the machine


def test_questions_are_of_all_rows_and_a_part_of_unknown_shapes(load):
    shapes = [{"m": 9000 + place, "n": 1, "k": 2} for place in range(5)]
    job = {"port": 1, "kernel": "gemm", "models": ["a", "b"], "shapes": shapes, "unknown_share": 0.2}
    asked = load.questions(job)
    lines = [next(asked).split(b"\r\n")[0].decode() for _ in range(500)]
    known = [line for line in lines if "m%3D900" in line and "%2Cn%3D1%2Ck%3D2" in line]
    assert 350 < len(known) < 450
    assert len(set(known)) == 10


@pytest.mark.in_turn(2)
def test_synthetic_rows_are_legal_and_named_as_such(session, benchmark_module):
    filled = benchmark_module("installation.fill").fill(session, 100)
    assert (len(filled), len(filled.shapes)) == (100, 2)
    for shape in filled.shapes:
        found = find_best(session, "gemm", "synthetic-07", shape)
        assert found.match == "exact"
        assert found.environment.driver.endswith("(synthetic)")
        assert found.ci_ms[0] < found.time_ms < found.ci_ms[1]


def test_a_part_measured_again_replaces_its_rows_only(benchmark_module, tmp_path):
    service = benchmark_module("service")
    path = tmp_path / "service.json"
    service.write(path, service.with_parts({"rows": []}, {"batch": [{"part": "batch", "value": 1}]}))
    again = service.with_parts(service.read(path), {"rate": [{"part": "rate", "value": 2}]})
    again = service.with_parts(again, {"batch": [{"part": "batch", "value": 3}]})
    service.write(path, again)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["part"], row["value"]) for row in rows] == [("rate", 2), ("batch", 3)]
    assert all("load_average" in row for row in rows)


def series(seconds, mb_of):
    """Memory every second, which goes up and down by a MiB beside what `mb_of` says."""
    return [(float(second), mb_of(second) + second % 2) for second in range(seconds)]


def test_warming_up_is_told_from_growth(benchmark_module):
    soak = benchmark_module("installation.soak")
    warmed = soak.growth_row("warmed", series(3600, lambda second: 100 + min(second, 1200) / 60))
    assert (warmed["met"], warmed["first_half_mib"]) == (True, pytest.approx(20, abs=1))
    low, high = warmed["interval"]
    assert low <= 0 <= high
    growing = soak.growth_row("growing", series(3600, lambda second: 100 + second / 60))
    assert (growing["met"], growing["value"]) == (False, pytest.approx(60, rel=0.05))
    assert growing["second_half_mib"] == pytest.approx(30, abs=1)
    assert len(growing["series_mib"]) == soak.SERIES


def test_a_short_or_a_noisy_run_is_judged_neither_flat_nor_growing(benchmark_module):
    soak = benchmark_module("installation.soak")
    assert soak.growth_row("short", series(600, lambda second: 100 + second / 60))["met"] is None
    noisy = series(1800, lambda second: 100 + 20 * ((second // 60 * 7919) % 13))
    assert soak.growth_row("noisy", noisy)["met"] is None


def test_questions_that_are_not_answered_are_counted_and_end_nothing(load):
    async def refuse_and_load():
        callers = []

        async def hang_up(_reader, writer):
            callers.append(asyncio.current_task())
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server:
            tally = load.Tally()
            job = {"path": "/", "per_second": 200, "seconds": 0.2, "port": server.sockets[0].getsockname()[1]}
            await load.open_loop(job, tally)
            await asyncio.gather(*callers)
            return tally

    tally = asyncio.run(refuse_and_load())
    assert set(tally.statuses) == {load.NO_ANSWER}
    assert tally.latencies_ms == []


@pytest.mark.in_turn(3)
@pytest.mark.timeout(300)
def test_two_checkouts_are_served_from_their_own_folders_and_compared(benchmark_module, monkeypatch, tmp_path):
    ours, other = Path(__file__).parents[2], tmp_path / "other"
    other.mkdir()
    for part in ("benchmarks", "tilewright", "kernels", "tuner", "service", "migrations"):
        (other / part).symlink_to(ours / part)
    out = tmp_path / "versions.json"
    arguments = [str(ours), str(other), "--rounds", "2", "--seconds", "0.2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["versions.py", *arguments])
    versions = benchmark_module("versions")
    versions.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["version"] for row in rows] == [ours.name, "other"]
    assert all(rate > 0 for row in rows for rate in row["per_second"] + row["cpu_us"])
    assert rows[0]["ratio"] == rows[0]["cpu_ratio"] == 1


def test_a_version_that_takes_twice_the_cpu_time_has_half_of_the_requests(benchmark_module, tmp_path):
    row = benchmark_module("versions").row(tmp_path, [(50.0, 200.0), (60.0, 180.0)], [(100.0, 100.0), (120.0, 90.0)])
    assert (row["ratio"], row["cpu_ratio"]) == (2.0, 2.0)


@pytest.fixture
def attacks(benchmark_module):
    """The benchmark, which binds processes to cores: this one goes on with those that it had."""
    before = os.sched_getaffinity(0)
    yield benchmark_module("attacks")
    os.sched_setaffinity(0, before)


@pytest.fixture
def cores():
    first, *_, last = [*sorted(os.sched_getaffinity(0))] * 2
    return first, last


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_lifted", [False, True], ids=["quotas", "no quotas"])
def test_a_key_that_schedules_all_it_can_delays_no_other_and_is_stopped(attacks, cores, is_lifted):
    with attacks.host() as at:
        row = attacks.stopped(at, "schedules", 8, cores, is_lifted=is_lifted)
    assert attacks.is_met(row), row
    assert row["attacker"]["201"] > 50, "it was an attack"
    assert row["honest_fires"] >= 5


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_key_that_lies_about_results_changes_no_answer(attacks, cores):
    with attacks.host() as at:
        (row,) = attacks.measure(at, ["lies"], cores, argparse.Namespace(runs=1, seconds=4))
    assert row["answers_changed"] == 0
    said = {HTTPStatus(int(status)) for status in row["attacked"]["attacker"]}
    assert said <= {
        HTTPStatus.ACCEPTED,  # a claim: a worker will look
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }, said

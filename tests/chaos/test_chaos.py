"""What watches over a chaos run can find what it looks for."""

from __future__ import annotations

import subprocess
import uuid
from collections import Counter

import pytest

from chaos.invariants import Memory, of_requests, of_results
from chaos.load import Told
from chaos.plan import KINDS, plan
from chaos.run import chaos
from chaos.witness import Witness
from tilewright.service.store import models
from tilewright.service.store.models import JobState


@pytest.mark.timeout(60)
def test_a_seed_decides_the_faults_and_all_kinds_come_alike():
    cycles = plan(7, 200)
    assert cycles == plan(7, 200) != plan(8, 200)
    counts = Counter(blow.kind for blows in cycles for blow in blows)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.timeout(60)
def test_the_witness_sees_two_runners_on_one_device_and_nothing_wrong_in_one(tmp_path, monkeypatch):
    witness = Witness.at(tmp_path / "witness")
    (tmp_path / "kernel.cpp").write_text("#include <stdio.h>\nint main() { putchar(10); fflush(stdout); getchar(); }")
    program = tmp_path / "program"
    subprocess.run([witness.environment["CXX"], tmp_path / "kernel.cpp", "-o", program], check=True)
    monkeypatch.setenv("CHAOS_WITNESS", witness.environment["CHAOS_WITNESS"])

    def evaluation(*parent: str) -> subprocess.Popen[bytes]:
        command = [*parent, str(program)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()  # it has looked around
        return process

    for process in (evaluation(), evaluation()):  # two warm programs of one runner
        process.communicate(b"\n")
    assert witness.violations() == []
    first, second = evaluation(), evaluation("sh", "-c", '"$0"; :')  # the shell is another parent
    (seen,) = witness.violations()
    assert f".{first.pid}" in seen
    for process in (first, second):
        process.communicate(b"\n")
    witness.sweep()
    evaluation().communicate(b"\n")
    assert len(witness.violations()) == 1  # those that ended are no company
    assert len(witness.begun()) == 5


@pytest.mark.timeout(60)
def test_what_vanished_or_never_came_is_named(session):
    memory = Memory()
    memory.trials[4, 0] = ("digest", 1)
    assert memory.breaches(session) == ["trial (4, 0) was there and is None"]
    told = Told(jobs={("key-1", "once"): uuid.uuid4()})
    assert "is not there" in of_requests(session, told)[0]


@pytest.mark.timeout(60)
def test_a_job_without_an_end_and_a_done_one_without_a_result_are_named(session):
    kernel = models.Kernel(name="k", declaration={})
    session.add(kernel)
    session.flush()
    problem = models.Problem(hash="h", kernel_id=kernel.id, shape={}, dtype="float32", options={})
    session.add(problem)
    session.flush()
    for state in (JobState.QUEUED, JobState.DONE):
        session.add(models.TuningJob(problem_id=problem.id, queue="q", seed=0, budget_trials=1, state=state))
    session.flush()
    said = of_results(session)
    assert any("never ended" in sentence for sentence in said)
    assert any("done without a result" in sentence for sentence in said)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_some_random_cycles_lose_double_and_forget_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    report = chaos(tmp_path, seed=3, cycles=8)
    assert report.violations == []
    assert report.numbers["evaluations_witnessed"] > 0
    assert report.numbers["due_times"] > 0

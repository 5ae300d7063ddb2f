import gc
import itertools
import os
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest
from misbehaving_device import Absent, Opener, make_kernel
from sampling import EXHAUSTIVE
from waiting import PATIENCE_S, is_running, until

from tilewright.kernels.space import Configuration
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.isolated.device import ChildFailedError, Deadlines, IsolatedDevice, PrecompilingBench
from tilewright.tuner.errors import DeviceLostError, NoDeviceError, OutOfMemoryError, TrialFailure, TunerError
from tilewright.tuner.loop.finals import finals
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.outcome import Outcome, Verification

KERNEL = make_kernel()
PROBLEM = KERNEL.problem({"n": 8})
PATIENT = Deadlines(verify=PATIENCE_S)
HURRIED = Deadlines(verify=1.0)  # for what hangs, and for nothing else


def configuration(behaviour):
    return Configuration.of(behaviour, {})


@pytest.fixture
def device(tmp_path):
    device = IsolatedDevice(Opener(tmp_path), finder=make_kernel, deadlines=PATIENT)
    yield device
    device.close()


@pytest.fixture
def bench(device):
    return device.bench(KERNEL, PROBLEM, seed=7)


def is_there(pid):
    """Whether it runs, or waits to be collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_from_another_process(device, bench):
    executable = bench.compile(configuration("well"))
    assert device.uuid == "FAKE-1"
    assert device.model.slug == "fake"
    assert executable.resources.registers == 32
    assert bench.verify(executable) == Verification(0.0, 0)
    assert bench.sample(executable, "warm", 3) == [7.5, 7.5, 7.5]
    assert bench.library() is None
    assert bench.state().clock_mhz == device.child_pid != os.getpid()


def test_a_bench_of_a_process_that_is_gone_can_be_closed(device, bench):
    bench.verify(bench.compile(configuration("well")))
    os.kill(device.child_pid, signal.SIGKILL)
    bench.close()
    again = device.bench(KERNEL, PROBLEM, seed=7)
    assert again.verify(again.compile(configuration("well"))).wrong == 0


def test_a_failure_that_breaks_nothing_keeps_the_child(device, bench):
    before = device.child_pid
    with pytest.raises(TrialFailure, match="line 1: error") as failure:
        bench.compile(configuration("uncompilable"))
    assert failure.value.outcome is Outcome.COMPILE_FAILED
    assert bench.verify(bench.compile(configuration("wrong"))).first_wrong == (1,)
    assert device.child_pid == before


@pytest.mark.parametrize(
    ("behaviour", "outcome", "log"),
    [
        pytest.param("hang", Outcome.TIMED_OUT, "verify took longer than 1 s", marks=EXHAUSTIVE),
        ("crash", Outcome.LAUNCH_FAILED, "died in verify (SIGSEGV)"),
        pytest.param("sticky", Outcome.LAUNCH_FAILED, "illegal address", marks=EXHAUSTIVE),
    ],
)
def test_a_lost_child_is_the_trials_outcome_and_the_next_call_finds_a_new_one(device, bench, behaviour, outcome, log):
    well, bad = bench.compile(configuration("well")), bench.compile(configuration(behaviour))
    before = device.child_pid
    if behaviour == "hang":
        device._deadlines = HURRIED
    with pytest.raises(TrialFailure) as failure:
        bench.verify(bad)
    assert failure.value.outcome is outcome
    assert log in failure.value.log
    assert not failure.value.sticky
    assert not is_there(before)
    # An executable from before the loss goes on working, on a bench with the same seed.
    assert bench.sample(well, "warm", 1) == [7.5]
    assert device.child_pid != before


def test_the_log_says_that_a_hanging_child_was_killed_and_in_which_call(device, bench, caplog):
    device._deadlines = HURRIED
    with pytest.raises(TrialFailure):
        bench.verify(bench.compile(configuration("hang")))
    [said] = [
        record.getMessage() for record in caplog.records if record.name == "tilewright.tuner.devices.isolated.process"
    ]
    assert said == "verify took longer than 1 s: the device's process is killed."


def test_a_crash_outside_a_launch_is_a_lost_device(bench):
    with pytest.raises(TrialFailure) as failure:
        bench.compile(configuration("crash_in_compile"))
    assert failure.value.outcome is Outcome.DEVICE_LOST


def test_a_child_killed_while_idle_is_noticed_and_replaced(device, bench):
    os.kill(device.child_pid, signal.SIGKILL)
    with pytest.raises(TrialFailure) as failure:
        bench.state()
    assert failure.value.outcome is Outcome.DEVICE_LOST
    assert bench.state().clock_mhz == device.child_pid


def kill_idle(device):
    os.kill(device.child_pid, signal.SIGKILL)
    os.waitid(os.P_PID, device.child_pid, os.WEXITED | os.WNOWAIT)  # a call that comes while it dies would be blamed


def test_a_child_killed_while_idle_is_not_held_against_what_would_have_run_next(device, bench):
    executable = bench.compile(configuration("well"))
    kill_idle(device)
    with pytest.raises(TrialFailure, match=r"died in sample \(SIGKILL\)") as failure:
        bench.sample(executable, "warm", 1)
    assert failure.value.outcome is Outcome.DEVICE_LOST
    assert bench.sample(executable, "warm", 1) == [7.5]


@pytest.mark.parametrize("place", [1, MeasurementPlan().final_rounds])  # before a sample, before the verification
def test_a_child_killed_while_idle_costs_no_finalist_its_place(device, bench, monkeypatch, place):
    state, asked = bench.state, itertools.count(1)

    def state_and_death():
        found = state()
        if next(asked) == place:
            kill_idle(device)
        return found

    monkeypatch.setattr(bench, "state", state_and_death)
    standing = finals(bench, [configuration("well")], "warm")
    assert standing.dropped == ()
    assert [finalist.configuration for finalist in standing.finalists] == [configuration("well")]


def test_a_library_that_hangs_costs_no_finalist_its_place(tmp_path):
    opener = Opener(tmp_path, library_hangs=True)
    with closing(IsolatedDevice(opener, finder=make_kernel, deadlines=Deadlines(library=1.0))) as device:
        standing = finals(device.bench(KERNEL, PROBLEM, seed=7), [configuration("well")], "warm")
    assert standing.dropped == ()
    assert [finalist.configuration for finalist in standing.finalists] == [configuration("well")]
    assert standing.library_failure == "timed_out: library took longer than 1 s and was killed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_whole_group_leave_the_child_to_its_parent(device, bench, number):
    before = device.child_pid
    os.kill(before, number)
    assert bench.state().clock_mhz == before == device.child_pid


def test_many_bad_configurations_in_a_row_do_not_lose_the_device(bench):
    bad = bench.compile(configuration("crash"))
    for _ in range(3):
        with pytest.raises(TrialFailure):
            bench.verify(bad)
    assert bench.verify(bench.compile(configuration("well"))).wrong == 0


def test_a_device_that_does_not_come_back_is_lost(tmp_path):
    device = IsolatedDevice(Opener(tmp_path, refuses_after=1), finder=make_kernel, deadlines=PATIENT)
    bench = device.bench(KERNEL, PROBLEM, seed=7)
    with pytest.raises(TrialFailure):
        bench.verify(bench.compile(configuration("crash")))
    with pytest.raises(DeviceLostError):
        bench.compile(configuration("well"))
    device.close()


def test_a_problem_that_always_kills_the_child_is_a_lost_device(device):
    with pytest.raises(DeviceLostError):
        device.bench(KERNEL, KERNEL.problem({"n": 666}), seed=1)


def test_an_unexpected_exception_brings_its_traceback_and_ends_the_child(device, bench, capfd):
    before = device.child_pid
    with pytest.raises(ChildFailedError, match="ZeroDivisionError: nobody thought of this"):
        bench.verify(bench.compile(configuration("unexpected")))
    assert not is_there(before)


def test_errors_of_the_device_arrive_as_they_are(device):
    with pytest.raises(OutOfMemoryError, match="n is too large"):
        device.bench(KERNEL, KERNEL.problem({"n": 2_000_000}), seed=1)
    with pytest.raises(NoDeviceError, match="there is none"):
        IsolatedDevice(Absent(), finder=make_kernel)


def test_dropped_executables_are_forgotten_in_the_child(bench, tmp_path):
    executable = bench.compile(configuration("well"))
    bench.state()
    assert not (tmp_path / "forgotten").exists()
    del executable
    gc.collect()
    bench.state()
    assert (tmp_path / "forgotten").exists()


def test_close_ends_the_child_in_order(tmp_path):
    device = IsolatedDevice(Opener(tmp_path), finder=make_kernel)
    device.bench(KERNEL, PROBLEM, seed=1)
    pid = device.child_pid
    device.close()
    assert not is_there(pid)
    assert (tmp_path / "bench-closed").exists()
    assert (tmp_path / f"closed-{pid}").exists()


def test_the_child_dies_with_its_parent_even_in_a_hung_call(tmp_path):
    script = """
import sys; sys.path[:] = {path!r}
from pathlib import Path
from misbehaving_device import Opener, make_kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.isolated.device import IsolatedDevice
device = IsolatedDevice(Opener(Path({marks!r})), finder=make_kernel)
kernel = make_kernel()
bench = device.bench(kernel, kernel.problem({{"n": 8}}), 1)
executable = bench.compile(Configuration.of("hang", {{}}))
print(device.child_pid, flush=True)
bench.verify(executable)
"""
    text = script.format(path=sys.path, marks=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    child_pid = int(parent.stdout.readline())
    assert is_there(child_pid)
    parent.kill()
    parent.communicate()
    until(lambda: not is_running(child_pid))


@pytest.fixture
def copy_source(tmp_path):
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "copy.cu").write_text(
        'extern "C" __global__ void copy(const REAL* x, REAL* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    )
    return folder


def test_with_a_pool_the_parent_compiles_and_a_lost_child_costs_no_compiling(tmp_path, copy_source):
    kernel = make_kernel(folder=copy_source)
    device = IsolatedDevice(Opener(tmp_path, kind="cuda"), finder=make_kernel, deadlines=PATIENT, pool=CompilePool(1))
    bench = device.bench(kernel, PROBLEM, seed=1)
    assert isinstance(bench, PrecompilingBench)
    assert bench.compiles_ahead
    bench.compile_ahead([configuration("well"), configuration("crash")])
    well, bad = bench.compile(configuration("well")), bench.compile(configuration("crash"))
    assert well.compiled.cubin.startswith(b"\x7fELF")
    assert well.resources.registers == len(well.compiled.cubin)  # what `load` of the child made of it
    with pytest.raises(TrialFailure):
        bench.verify(bad)
    device.pool.close()  # from here on nothing can be compiled any more
    assert bench.verify(well).wrong == 0
    device.close()


def test_without_a_pool_nothing_is_compiled_ahead(bench):
    assert not bench.compiles_ahead


def test_a_whole_trial_is_one_call_and_leaves_nothing_behind(tmp_path, device, bench):
    evaluation = bench.evaluate(configuration("well"), "warm")
    assert evaluation.outcome is Outcome.MEASURED
    assert evaluation.time_ms == 7.5
    assert (evaluation.resources.registers, evaluation.compile_ms) == (32, 1.0)
    assert evaluation.clock_mhz == device.child_pid
    assert (tmp_path / "forgotten").exists()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("behaviour", "outcome", "log"),
    [
        ("hang", Outcome.TIMED_OUT, "verify took longer than 1 s"),
        ("crash", Outcome.LAUNCH_FAILED, "died in verify (SIGSEGV)"),
        ("sticky", Outcome.LAUNCH_FAILED, "illegal address"),
        ("crash_in_compile", Outcome.DEVICE_LOST, "died in compile"),
        ("uncompilable", Outcome.COMPILE_FAILED, "line 1: error"),
        ("wrong", Outcome.WRONG_RESULT, "3 components"),
    ],
)
def test_a_failed_trial_is_a_value_and_the_next_one_is_measured(device, bench, behaviour, outcome, log):
    if behaviour == "hang":
        device._deadlines = HURRIED
    # As often as it likes: every new child that takes the bench shows that the device is there.
    for _ in range(3 if behaviour == "crash_in_compile" else 1):
        evaluation = bench.evaluate(configuration(behaviour), "warm")
        assert evaluation.outcome is outcome
        assert log in evaluation.log
    device._deadlines = PATIENT
    assert bench.evaluate(configuration("well"), "warm").time_ms == 7.5


def test_a_trial_of_nobodys_making_brings_its_traceback(bench, capfd):
    with pytest.raises(ChildFailedError, match="ZeroDivisionError: nobody thought of this"):
        bench.evaluate(configuration("unexpected"), "warm")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        ("well", Outcome.MEASURED),
        ("wrong", Outcome.WRONG_RESULT),
        ("hang", Outcome.TIMED_OUT),
        ("crash", Outcome.LAUNCH_FAILED),
        pytest.param("sticky", Outcome.LAUNCH_FAILED, marks=EXHAUSTIVE),
        ("crash_in_compile", Outcome.DEVICE_LOST),
    ],
)
def test_a_trial_sent_ahead_does_not_suffer_from_the_one_before(device, bench, behaviour, outcome):
    device._deadlines = HURRIED if behaviour == "hang" else PATIENT
    waits = [bench.begin(configuration(each), "warm", MeasurementPlan(), None) for each in (behaviour, "well", "wrong")]
    evaluations = [wait() for wait in waits]
    assert [each.outcome for each in evaluations] == [outcome, Outcome.MEASURED, Outcome.WRONG_RESULT]


def test_other_calls_wait_for_a_trial_that_was_sent_ahead(device, bench):
    wait = bench.begin(configuration("well"), "warm", MeasurementPlan(), None)
    assert bench.state().clock_mhz == device.child_pid
    assert wait().time_ms == 7.5
    os.kill(device.child_pid, signal.SIGSTOP)
    waits = [bench.begin(configuration("well"), "warm", MeasurementPlan(), None) for _ in range(2)]
    os.kill(device.child_pid, signal.SIGKILL)
    assert waits[0]().outcome is Outcome.DEVICE_LOST  # it had begun, for all that is known
    assert waits[1]().time_ms == 7.5


def test_compiled_configurations_are_told_from_those_under_way(tmp_path, copy_source):
    kernel = make_kernel(folder=copy_source)
    device = IsolatedDevice(Opener(tmp_path, kind="cuda"), finder=make_kernel, deadlines=PATIENT, pool=CompilePool(1))
    bench = device.bench(kernel, PROBLEM, seed=1)
    assert (bench.compilers, bench.compilations) == (1, 1)
    asked = [configuration("well"), configuration("wrong")]
    bench.compile_ahead(asked)
    assert bench.ready(asked, wait=True)[0] in asked
    assert bench.evaluate(asked[0], "warm").outcome is Outcome.MEASURED
    assert bench.evaluate(asked[1], "warm").outcome is Outcome.WRONG_RESULT
    bench.compile_ahead([configuration("sticky")])
    bench.drop([configuration("sticky"), configuration("hang")])
    assert bench.evaluate(configuration("sticky"), "warm").outcome is Outcome.LAUNCH_FAILED  # asked for all the same
    device.close()


def test_a_call_without_a_deadline_of_its_own_has_that_of_its_like():
    deadlines = Deadlines(compile=1.0, library=2.0, other=3.0)
    calls = ("compile", "load", "library", "library_name", "close_bench")
    assert [deadlines.of(call) for call in calls] == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_a_child_that_reads_other_sources_than_its_parent_measures_nothing(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "copy.cu").write_text(f"int in_{folder};")
    device = IsolatedDevice(Opener(tmp_path), finder=partial(_found_in, tmp_path / "b"))
    kernel = make_kernel(folder=tmp_path / "a")
    try:
        with pytest.raises(TunerError, match="sources of copy were edited"):
            device.bench(kernel, kernel.problem({"n": 8}), seed=1)
    finally:
        device.close()


def _found_in(folder, name, _folder):
    return make_kernel(name, folder)

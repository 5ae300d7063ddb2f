"""What every device must do. Subclass DeviceContract in a test module and give it a `device` fixture."""

import math
import re
from contextlib import suppress
from pathlib import Path

import pytest
from contracts import partial_sums, tally, textured
from contracts.row_sum import PROBLEM, ROW_SUM, configuration

from tilewright.tuner.errors import OutOfMemoryError, TrialFailure
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.outcome import Outcome


def children():
    """Process ids of this process's children."""
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            found |= {int(pid) for pid in task.read_text().split()}
    return found


def outcome_of(bench, wanted):
    """How a trial of this configuration ends, and what its log says."""
    try:
        executable = bench.compile(wanted)
        verification = bench.verify(executable)
        if verification.wrong:
            return Outcome.WRONG_RESULT, verification.message()
        samples = bench.sample(executable, "warm", 2)
    except TrialFailure as failure:
        return failure.outcome, failure.log
    assert all(sample > 0 for sample in samples)
    return Outcome.MEASURED, ""


class DeviceContract:
    """It survives every failure of a configuration."""

    too_large = ROW_SUM.problem({"m": 2_000_000, "n": 2_000_000})

    @pytest.fixture
    def device(self):
        raise NotImplementedError

    def hurry(self, bench):
        """Lets the bench give a hung kernel up soon; nothing where `device` does so anyway."""

    @pytest.fixture
    def bench(self, device):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        yield bench
        bench.close()

    def test_a_correct_kernel_is_compiled_verified_and_timed_cold_and_warm(self, bench):
        executable = bench.compile(configuration("good"))
        assert executable.compile_ms >= 0
        verification = bench.verify(executable)
        assert verification.wrong == 0
        assert 0 <= verification.bound_ratio < 2
        for l2 in ("warm", "cold"):
            samples = bench.sample(executable, l2, 4)
            assert len(samples) == 4
            assert all(math.isfinite(sample) and 0 < sample < 1e3 for sample in samples)

    @pytest.mark.parametrize("threads", [64, 1024])
    def test_shuffles_and_dynamic_shared_memory_work(self, bench, threads):
        assert outcome_of(bench, configuration("shuffled", threads)) == (Outcome.MEASURED, "")

    def test_double_precision_is_held_to_its_own_bound(self, device):
        bench = device.bench(ROW_SUM, ROW_SUM.problem({"m": 5, "n": 1000}, "float64"), seed=1)
        try:
            assert outcome_of(bench, configuration("good"))[0] is Outcome.MEASURED
        finally:
            bench.close()

    @pytest.mark.parametrize(
        ("variant", "outcomes"),
        [
            ("broken", {Outcome.COMPILE_FAILED}),
            ("wrong", {Outcome.WRONG_RESULT}),
            ("unwritten", {Outcome.WRONG_RESULT}),
            ("past_end", {Outcome.LAUNCH_FAILED, Outcome.WRONG_RESULT}),
            ("far_out", {Outcome.LAUNCH_FAILED}),
            ("no_barrier", {Outcome.WRONG_RESULT}),
            ("endless", {Outcome.TIMED_OUT}),
        ],
    )
    def test_a_failing_configuration_gets_its_outcome_and_the_next_one_is_measured(self, device, variant, outcomes):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        if Outcome.TIMED_OUT in outcomes:
            self.hurry(bench)
        try:
            outcome, log = outcome_of(bench, configuration(variant))
            assert outcome in outcomes, log
            assert log
        finally:
            bench.close()
        again = device.bench(ROW_SUM, PROBLEM, seed=7)
        try:
            assert outcome_of(again, configuration("good"))[0] is Outcome.MEASURED
        finally:
            again.close()

    def test_whole_trials_fail_as_values_and_leave_the_bench_working(self, device):
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        expected = {
            "broken": {Outcome.COMPILE_FAILED},
            "wrong": {Outcome.WRONG_RESULT},
            "far_out": {Outcome.LAUNCH_FAILED},
            "good": {Outcome.MEASURED},
        }
        try:
            for variant, outcomes in expected.items():
                evaluation = bench.evaluate(configuration(variant), "warm")
                assert evaluation.outcome in outcomes, evaluation.log
        finally:
            bench.close()
        assert len(evaluation.warm.samples_ms) >= MeasurementPlan().least_samples
        assert evaluation.cold.time_ms > 0

    def test_every_output_of_every_dtype_is_verified_and_a_wrong_one_is_named(self, device):
        bench = device.bench(tally.TALLY, tally.PROBLEM, seed=7)
        try:
            assert outcome_of(bench, tally.with_bug(0)) == (Outcome.MEASURED, "")
            for bug, said in {
                1: r"is_large: 1 components are wrong.*first at \(1000,\): got ([01]), expected ([01])",
                2: r"is_large: 1 components are wrong",
                3: r"scaled: 1 components are out of bounds",
                4: r"keys (is an input and was written|was changed)",
            }.items():
                outcome, log = outcome_of(bench, tally.with_bug(bug))
                assert outcome is not Outcome.MEASURED
                assert re.search(said, log), log
        finally:
            bench.close()

    def test_textures_of_every_kind_are_read_as_declared(self, device):
        bench = device.bench(textured.TEXTURED, textured.PROBLEM, seed=7)
        try:
            assert outcome_of(bench, textured.with_bug(0)) == (Outcome.MEASURED, "")
            outcome, log = outcome_of(bench, textured.with_bug(1))  # its neighbour's texel
            assert outcome is Outcome.WRONG_RESULT
            assert "mixed" in log
        finally:
            bench.close()

    def test_an_output_sized_by_the_configuration_is_checked_as_far_as_it_is_written(self, device):
        bench = device.bench(partial_sums.PARTIAL_SUMS, partial_sums.PROBLEM, seed=7)
        try:
            for block_size in (64, 256):
                assert outcome_of(bench, partial_sums.with_block(block_size)) == (Outcome.MEASURED, "")
            outcome, log = outcome_of(bench, partial_sums.with_block(256, bug=1))
            assert outcome is Outcome.WRONG_RESULT
            assert "add up to" in log
        finally:
            bench.close()

    def test_without_a_reference_the_default_configuration_is_one_and_trials_say_so(self, device):
        bench = device.bench(tally.UNTOLD, tally.UNTOLD.problem({"n": 1001}), seed=7)
        try:
            said = "against the configuration plain BUG=0 block_size=64, not a reference"
            evaluation = bench.evaluate(tally.with_bug(0), "warm")
            assert (evaluation.outcome, evaluation.log) == (Outcome.MEASURED, f"Verified {said}.")
            wrong = bench.evaluate(tally.with_bug(1), "warm")
            assert wrong.outcome is Outcome.WRONG_RESULT
            assert wrong.log.endswith(f"(verified {said})")
        finally:
            bench.close()

    def test_the_compiler_s_log_names_the_line(self, bench):
        with pytest.raises(TrialFailure) as caught:
            bench.compile(configuration("broken"))
        assert caught.value.outcome is Outcome.COMPILE_FAILED
        assert "error" in caught.value.log

    def test_other_seeds_give_other_inputs(self, device):
        ratios = set()
        for seed in range(3):
            bench = device.bench(ROW_SUM, PROBLEM, seed)
            ratios.add(bench.verify(bench.compile(configuration("good"))).bound_ratio)
            bench.close()
        assert len(ratios) == 3

    def test_a_problem_larger_than_memory_is_refused_at_once(self, device):
        with pytest.raises(OutOfMemoryError):
            device.bench(ROW_SUM, self.too_large, seed=0)

    def test_a_closed_bench_leaves_no_process(self, device):
        before = children()
        bench = device.bench(ROW_SUM, PROBLEM, seed=7)
        executable = bench.compile(configuration("good"))
        bench.sample(executable, "warm", 1)
        bench.close()
        assert children() <= before

    def test_it_says_what_it_is(self, device):
        model, environment = device.model, device.environment
        assert model.slug
        assert model.name
        assert model.limits.memory_bytes > 0
        assert model.l2_bytes > 0
        assert device.uuid == device.uuid != ""
        assert len(environment.hash) == 64
        assert environment.compiler_version

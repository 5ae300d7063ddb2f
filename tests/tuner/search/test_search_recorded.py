import made_recordings as made
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.outcome import Evaluation, Outcome
from tilewright.tuner.recorded.recordings import read_recording
from tilewright.tuner.recorded.replay import replay
from tilewright.tuner.recorded.t4 import write_t4
from tilewright.tuner.tune import Budget, Hooks, tune


@pytest.mark.parametrize("name", ["study_T4.json", "study_T4.json.gz"])
@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_a_search_is_written_as_t4_and_searched_again(tmp_path, name, sampler):
    device, kernel, problem = replay(made.valley())
    space = kernel.space(problem, device.model.limits)
    trials = []
    first = tune(
        device.bench(kernel, problem, 0),
        kernel,
        space,
        Budget(trials=30),
        seed=1,
        sampler=sampler,
        hooks=Hooks(lambda progress: trials.append(progress.trial)),
    )
    failed = Configuration.of("fine", {"TILE": 3, "UNROLL": 1})
    write_t4(
        tmp_path / name,
        problem,
        "Made Device",
        [*((t.configuration, t.evaluation) for t in trials), (failed, Evaluation(Outcome.TIMED_OUT))],
    )

    recording = read_recording(tmp_path / name)
    assert set(recording.entries) == {*(t.configuration for t in trials), failed}
    assert recording.entries[failed].outcome is Outcome.TIMED_OUT
    for trial in trials:
        assert recording.entries[trial.configuration].samples_ms["warm"] == trial.evaluation.ranking.samples_ms
    again, same_kernel, same_problem = replay(recording)
    assert (same_problem, again.model.slug) == (problem, device.model.slug)
    result = tune(
        again.bench(same_kernel, same_problem, 0),
        same_kernel,
        same_kernel.space(same_problem, again.model.limits),
        Budget(trials=50),
        seed=2,
        sampler=sampler,
    )
    assert result.stopped_by == "exhausted"
    assert result.best.time_ms == pytest.approx(first.best.time_ms, rel=0.02)

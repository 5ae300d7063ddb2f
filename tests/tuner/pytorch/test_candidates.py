"""Candidates for a model's operators: what is known of their problems before any is compared."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.predict.shipped import shipped_models  # noqa: E402
from tilewright.tuner.pytorch.acceleration.judgement import candidates  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.sites import observe  # noqa: E402
from tilewright.tuner.runtime.choice import TargetDevice  # noqa: E402
from tilewright.tuner.runtime.known import prediction_process  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.runtime import Runtime  # noqa: E402


@pytest.fixture
def on_h200(tmp_path, monkeypatch):
    """A runtime that knows nothing, on a machine of seven cores, and a GPU in place of the CPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(7))
    place = TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    monkeypatch.setattr(candidates, "place_of", lambda _device: place)
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"))
    tw.use(runtime)
    yield runtime, place
    tw.use(None)
    prediction_process.close()


@pytest.mark.in_turn(2)
def test_several_unknown_problems_are_predicted_before_they_are_looked_up(on_h200):
    runtime, place = on_h200
    widths = (64, 96, 128, 192, 256)
    layers = torch.nn.Sequential(*(torch.nn.Linear(k, n) for k, n in pairwise(widths)))
    with torch.no_grad():
        found = [candidates.pose(site) for site in observe(layers, lambda: layers(torch.randn(48, widths[0])))]
    problems = [one.problem for one in found if one.problem and one.problem.kernel == "linear"]
    assert len(problems) == 4
    assert max(found, key=candidates.cost).problem.shape == {"m": 48, "n": 256, "k": 192}
    linear = runtime.kernels.get("linear")
    assert not any(runtime.is_known(linear, one, place) for one in problems)
    candidates.predict_ahead(found)
    assert all(runtime.is_known(linear, one, place) for one in problems)

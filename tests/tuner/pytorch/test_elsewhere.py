"""A model that was accelerated somewhere: its lock in every rank, and a device that the service never saw."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tests.tuner.pytorch.locked_rank import lock_for, model_on  # noqa: E402
from tests.tuner.pytorch.ranks import two_ranks  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.tuner.pytorch.acceleration import lock  # noqa: E402
from tilewright.tuner.runtime import Runtime, host  # noqa: E402
from tilewright.tuner.runtime.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.choice import TargetDevice  # noqa: E402


@pytest.mark.exhaustive  # two processes with PyTorch, for seconds
def test_two_ranks_have_the_same_choices_by_one_lock(tmp_path):
    first, second = two_ranks(lock_for("cpu", tmp_path / "tilewright.lock"), "cpu")
    assert first == second
    assert (first["applied"], first["said"]) == (True, [])
    linear = "AcceleratedLinear"
    assert first["classes"] == [linear, "GELU", "AcceleratedLayerNorm", linear, "AcceleratedSoftmax"]
    assert [one.partition(" ")[0] for one in first["chosen"]] == ["layer_norm", "linear", "linear", "softmax"]
    assert all(one.endswith("from pinned)") for one in first["chosen"])


@pytest.mark.exhaustive  # two processes with PyTorch, for seconds
def test_a_rank_in_another_environment_refuses_the_lock_and_computes_as_before(tmp_path):
    document = json.loads(lock_for("cpu", tmp_path / "lock.0").read_text())
    elsewhere = document["environment"] | {"driver": "another", "device_model": "cpu:another"}
    body = {name: value for name, value in document.items() if name not in {"sha256", "format"}}
    lock.write(tmp_path / "lock.1", body | {"environment": elsewhere})
    first, second = two_ranks(tmp_path / "lock.{rank}", "cpu")
    assert (first["applied"], second["applied"]) == (True, False)
    assert (first["said"], second["chosen"]) == ([], [])
    [said] = second["said"]
    assert "device_model is" in said
    assert "driver is host here and another there" in said
    assert second["classes"] == ["Linear", "GELU", "LayerNorm", "Linear", "Softmax"]


@pytest.fixture
def service():
    """A service that knows other device models, and keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_device_that_nobody_tuned_for_runs_the_model_as_it_was(service, tmp_path, monkeypatch):
    answers, kernel = AnswerCache(tmp_path), catalogue().get("softmax")
    values = {"BLOCK": 32, "UNROLL": 1, "VECTOR_WIDTH": 1}
    facts = {"variant": "online", "configuration": values, "source_hash": kernel.source_hash("online")}
    answers.put(kernel.problem({"m": 32, "n": 64}), host.host_place(), facts | {"match": "exact", "time_ms": 1.0})
    unknown = TargetDevice("cpu:never-seen", host.host_place().limits)
    monkeypatch.setattr(host, "host_place", lambda: unknown)
    tw.use(Runtime(only_tuned=True, answers=answers, url=f"http://127.0.0.1:{service.server_port}"))
    model, x = model_on("cpu")
    with torch.no_grad():
        expected = model(x)
        with pytest.warns(tw.AccelerationWarning, match="none of its 5 .* on cpu:never-seen. Tune it:") as told:
            assert not tw.accelerate(model, x, compiles=None).is_applied
        torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert len(told) == 1
    assert len(service.asked) == 5
    assert all("device_model=cpu%3Anever-seen" in one for one in service.asked)

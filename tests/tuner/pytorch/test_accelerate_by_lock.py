"""A lock makes the same choices elsewhere, in every rank, and is refused where it does not fit."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

torch = pytest.importorskip("torch")

from faulty_kernels import FAULTY, say_that_tiled_was_faulty  # noqa: E402
from small_network import Net, X, unchanged, winning  # noqa: E402

import tilewright.torch as tw  # noqa: E402
from tests.tuner.pytorch.locked_rank import lock_for, model_on  # noqa: E402
from tests.tuner.pytorch.ranks import two_ranks  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.kernels.sources.identity import text_hash  # noqa: E402
from tilewright.tuner.pytorch import plans  # noqa: E402
from tilewright.tuner.pytorch.acceleration import lock  # noqa: E402
from tilewright.tuner.runtime import Runtime  # noqa: E402
from tilewright.tuner.runtime.choice import TargetDevice  # noqa: E402
from tilewright.tuner.runtime.first_use import first_use  # noqa: E402
from tilewright.tuner.runtime.known.answers import AnswerCache  # noqa: E402
from tilewright.tuner.runtime.launches import host  # noqa: E402
from tilewright.tuner.runtime.launches.host import host_place  # noqa: E402

pytestmark = pytest.mark.usefixtures("without_gradients")

nn = torch.nn


@pytest.mark.in_turn(3)
def test_a_lock_makes_the_same_choices_in_another_process(slow_linear, net, untuned, tmp_path):
    tw.use(None)
    tw.use(runtime_of(tmp_path, net))
    expected = net.eval()(X)
    path = winning(net).save(tmp_path / "tilewright.lock")
    torch.save(net.state_dict(), tmp_path / "weights")
    program = f"""
import torch, tilewright.torch as tw
from small_network import Net, X
net = Net().eval()
net.load_state_dict(torch.load({str(tmp_path / "weights")!r}))
result = tw.accelerate(net, lock={str(path)!r})
with torch.no_grad():
    print(type(net.one).__name__, float(net(X)["y"].sum()), [(one.is_ours, one.reason[-12:]) for one in tw.status()])
"""
    environment = {"TILEWRIGHT_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    name, total, status = done.stdout.split(maxsplit=2)
    assert (name, status.strip()) == ("AcceleratedLinear", "[(True, 'from pinned)')]"), done.stderr
    assert float(total) == pytest.approx(float(expected["y"].sum()), abs=1e-5)


def runtime_of(tmp_path, net, match="exact"):
    """A runtime that knows the layers alone."""
    answers, kernel = AnswerCache(tmp_path / "answers"), catalogue().get("linear")
    answer = {"variant": "tiled", "configuration": {"TILE_WIDTH": 8}, "match": match, "time_ms": 1.0}
    problem = kernel.problem({"m": len(X), "n": 8, "k": 8})
    answers.put(problem, host_place(), answer | {"library": None, "source_hash": kernel.source_hash("tiled")})
    return Runtime(only_tuned=True, answers=answers)


@pytest.fixture
def locked(slow_linear, net, tmp_path):
    """A lock, and the model that it is for, as it was."""
    tw.use(runtime_of(tmp_path, net))
    result = winning(net)
    path = result.save(tmp_path / "tilewright.lock")
    result.undo()
    return path


def changed(path, **members):
    """The lock with other members and a right hash."""
    from tilewright.tuner.pytorch.acceleration import lock  # noqa: PLC0415

    document = json.loads(path.read_text())
    lock.write(path, {name: value for name, value in (document | members).items() if name not in {"sha256", "format"}})


@pytest.mark.in_turn(2)
def test_a_lock_of_another_environment_is_refused_unless_told_otherwise(locked, net):
    environment = json.loads(locked.read_text())["environment"]
    changed(locked, environment=environment | {"torch": "1.0"})
    unchanged(net, "torch is .* here and 1.0 there.*other_environment=True", lock=locked)
    assert tw.accelerate(net, lock=locked, other_environment=True).is_applied


def test_a_lock_that_is_damaged_or_of_another_model_is_refused(locked, net, tmp_path):
    unchanged(net, "No such file or directory", lock=tmp_path / "none")
    other = Net()
    other.one = nn.Linear(8, 8, bias=False)
    unchanged(other, "a model of other modules or shapes", lock=locked)
    locked.write_text(locked.read_text().replace('"TILE_WIDTH": 8', '"TILE_WIDTH": 16'))
    unchanged(net, "was changed after it was written", lock=locked)
    locked.write_text("{")
    unchanged(net, "cannot be read", lock=locked)


def test_a_lock_of_another_source_is_refused(locked, net):
    [kernel] = json.loads(locked.read_text())["kernels"]
    changed(locked, kernels=[kernel | {"source_hash": "0" * 64}])
    unchanged(net, "linear's source has changed", lock=locked)


def test_a_lock_of_a_source_that_was_faulty_has_predictions_and_says_so(locked, net, tmp_path, monkeypatch):
    say_that_tiled_was_faulty(tmp_path, monkeypatch, catalogue().get("linear"))
    [kernel] = json.loads(locked.read_text())["kernels"]
    changed(locked, kernels=[kernel | {"source_hash": FAULTY}])
    expected = net.eval()(X)
    said = r"made with a faulty source of linear's tiled.*predictions, which are checked at their first use"
    with pytest.warns(tw.AccelerationWarning, match=said):
        result = tw.accelerate(net, lock=locked)
    assert "faulty source" in str(result)
    with torch.no_grad():
        torch.testing.assert_close(net(X), expected)
    (use,) = plans.runtime().first_uses()
    assert (use.state, use.choice.match, use.choice.origin) == ("right", "predicted", "pinned")
    (decision,) = tw.status()
    assert decision.check.startswith("checked: tiled TILE_WIDTH=8 (predicted, from pinned)")


def test_a_lock_says_what_was_never_verified(net, slow_linear, tmp_path):
    runtime = runtime_of(tmp_path, net, match="nearest")
    tw.use(runtime)
    path = winning(net).save(tmp_path / "tilewright.lock")
    [kernel] = json.loads(path.read_text())["kernels"]
    assert kernel["match"] == "nearest"
    tw.use(Runtime(only_tuned=True, answers=AnswerCache(tmp_path / "nothing")))
    first_use.forget()
    with torch.no_grad():
        assert tw.accelerate(net, lock=path).is_applied
        net(X)
    (use,) = plans.runtime().first_uses()
    assert (use.state, use.choice.match) == ("right", "nearest")


def test_a_lock_of_the_version_before_states_the_text_of_the_source(locked, net):
    [kernel] = json.loads(locked.read_text())["kernels"]
    then = text_hash(catalogue().get("linear").source(kernel["variant"]))
    changed(locked, kernels=[kernel | {"source_hash": then}])
    assert tw.accelerate(net, lock=locked).is_applied


@pytest.mark.exhaustive  # two processes with PyTorch, for seconds
def test_two_ranks_have_the_same_choices_by_one_lock(tmp_path):
    first, second = two_ranks("locked_rank", lock_for("cpu", tmp_path / "tilewright.lock"), "cpu")
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
    first, second = two_ranks("locked_rank", tmp_path / "lock.{rank}", "cpu")
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

"""Recordings: which calls are seen, as which problems, and what the service is asked and told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.kernels.catalogue import catalogue  # noqa: E402
from tilewright.tuner.predict.shipped import shipped_models  # noqa: E402
from tilewright.tuner.pytorch.acceleration.installation.installed import Replacement, install, uninstall  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import entries  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import call_of  # noqa: E402
from tilewright.tuner.pytorch.recording import report as record_report  # noqa: E402
from tilewright.tuner.pytorch.recording.command import RecordError, main, run  # noqa: E402
from tilewright.tuner.runtime.choice import TargetDevice  # noqa: E402
from tilewright.tuner.runtime.runtime import default_runtime  # noqa: E402

F = torch.nn.functional
A, B, LAST = torch.randn(7, 6), torch.randn(6, 5), torch.channels_last
IMAGES, FILTERS = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
BATCH, W = torch.randn(2, 7, 6), torch.randn(6)


@pytest.mark.parametrize(
    ("call", "kernel", "shape", "options"),
    [
        (lambda: A @ B, "gemm", {"m": 7, "n": 5, "k": 6}, {}),
        (lambda: B.mT @ A.mT, "gemm", {"m": 5, "n": 7, "k": 6}, {"trans_a": True, "trans_b": True}),
        (lambda: torch.bmm(BATCH, BATCH.mT), "gemm", {"m": 7, "n": 7, "k": 6, "batch": 2}, {"trans_b": True}),
        (lambda: F.linear(A, B.mT.contiguous(), torch.ones(5)), "linear", {"m": 7, "n": 5, "k": 6}, {}),
        (lambda: torch.addmm(torch.ones(7, 5), A, B), "gemm", {"m": 7, "n": 5, "k": 6}, {"beta_zero": False}),
        (lambda: torch.mv(A, B[:, 0].contiguous()), "gemv", {"m": 7, "n": 6}, {}),
        (lambda: A.softmax(-1), "softmax", {"m": 7, "n": 6}, {}),
        (lambda: F.layer_norm(A, (6,), W, W), "layer_norm", {"m": 7, "n": 6}, {}),
        (lambda: tw.rms_norm(A, W), "rms_norm", {"m": 7, "n": 6}, {}),
        (lambda: tw.add_layer_norm(A, A.clone(), W, W), "add_layer_norm", {"m": 7, "n": 6}, {}),
        (lambda: tw.linear(A, B.mT.contiguous()), "linear", {"m": 7, "n": 5, "k": 6}, {}),
        (
            lambda: F.conv2d(IMAGES.to(memory_format=LAST), FILTERS, None, 2, 1),
            "conv2d",
            {"batch": 2, "height": 8, "width": 8, "channels": 3, "filters": 4, "kernel_h": 3, "kernel_w": 3}
            | {"stride": 2, "padding": 1},
            {"layout": "nhwc"},
        ),
    ],
)
def test_a_call_is_recorded_as_the_problem_that_it_poses(call, kernel, shape, options):
    with tw.record() as seen:
        call()
    [entry] = [one for one in seen if one.problem]
    assert entry.problem == catalogue().get(kernel).problem(shape, "float32", options)
    assert (entry.calls, entry.device) == (1, "cpu")
    assert 0 < entry.time_ms <= seen.total_ms


def test_calls_alike_are_counted_together_and_backward_passes_are_seen():
    layer = torch.nn.Linear(6, 5)
    with tw.record() as seen:
        for _ in range(3):
            layer(A).sum().backward()
    assert [(one.operator, one.calls) for one in seen if one.problem and one.problem.kernel == "linear"] == [
        ("aten::addmm", 3)
    ]
    assert [one.calls for one in seen if one.operator == "aten::mm"] == [3]


def test_what_no_kernel_computes_is_recorded_with_the_reason():
    with tw.record() as seen:
        F.log_softmax(A, -1)
        torch.ones(4, 4, dtype=torch.int64) @ torch.ones(4, 4, dtype=torch.int64)
        torch.bmm(*[torch.ones(2, 3, 3, device="meta")] * 2)
        A + 1
    assert {one.operator: one.problem for one in seen} == dict.fromkeys(("aten::_log_softmax", "aten::mm", "aten::bmm"))
    assert all(one.reason for one in seen)


@pytest.fixture
def api(monkeypatch):
    """An API that knows every problem, and keeps what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.server.asked.append((self.path, body))
            self.send_response(200)
            self.end_headers()
            items = [{"match": "predicted", "time_ms": 1e-9}] * len(body["shapes"])
            self.wfile.write(json.dumps({"items": items}).encode())

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TILEWRIGHT_URL", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


def recorded():
    with tw.record() as seen:
        for _ in range(3):
            A @ B
        A.softmax(-1)
    return seen


def test_a_report_says_what_tuning_could_gain(api):
    lines = recorded().report().splitlines()
    assert lines[0].split()[:3] == ["operator", "tensors", "calls"]
    [product] = [line for line in lines if line.startswith("aten::mm")]
    assert "7x6, 6x5 float32" in product
    assert product.split("  ")[-1].strip() == "predicted"
    assert lines[-1].startswith("In all ")
    assert len(api.asked) == 2


def test_demand_is_asked_for_as_often_as_it_was_called(api):
    assert recorded().demand() == 2
    asked = {path: body["shapes"] for path, body in api.asked}
    assert asked["/v1/kernels/gemm/best:batch"] == [{"m": 7, "n": 5, "k": 6}] * 3
    assert asked["/v1/kernels/softmax/best:batch"] == [{"m": 7, "n": 6}]
    assert api.asked[0][1]["device_model"].startswith("cpu:")


def test_without_a_service_the_report_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_URL", raising=False)
    assert recorded().report().endswith("There is no service: set TILEWRIGHT_URL to the address of one.")
    for unusable in ("http://127.0.0.1:9", "no address"):
        monkeypatch.setenv("TILEWRIGHT_URL", unusable)
        default_runtime.cache_clear()
        assert "Predicted times are missing: " in recorded().report()
    default_runtime.cache_clear()


def test_without_a_service_shipped_records_predict_what_tuning_could_gain(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_SHIPPED_RECORDS", "true")
    monkeypatch.delenv("TILEWRIGHT_URL", raising=False)
    default_runtime.cache_clear()
    place = TargetDevice("nvidia-h200", shipped_models()["nvidia-h200"][1])
    monkeypatch.setattr(record_report, "place_of", lambda _: place)
    try:
        lines = recorded().report().splitlines()
    finally:
        default_runtime.cache_clear()
    [product] = [line for line in lines if line.startswith("aten::mm")]
    assert product.split("  ")[-1].strip() == "predicted"
    assert lines[-1].startswith("Predicted times are those of the measurements that come with Tilewright: There is no")


@pytest.mark.in_turn(2)
def test_a_program_is_recorded_without_a_change_to_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("print('its own start')")
    program = "import sys, torch; torch.ones(3, 4) @ torch.ones(4, 2); print(sys.argv); sys.exit(7)"
    out = tmp_path / "seen.json"
    assert run([sys.executable, "-c", program, "--flag"], out=out) == 7
    said = capfd.readouterr()
    assert said.out.splitlines() == ["its own start", "['-c', '--flag']"]
    assert "aten::mm" in said.err
    assert "Nothing was recorded" not in said.err
    document = json.loads(out.read_text())
    assert [one["problem"]["shape"] for one in document["operators"]] == [{"m": 3, "n": 2, "k": 4}]
    with pytest.raises(RecordError, match="is there already"):
        run([sys.executable, "-c", program], out=out)


def test_a_program_that_is_not_there_is_one_line(capsys):
    assert main(["--", "no-such-program"]) == 1
    assert capsys.readouterr().err == "error no-such-program: No such file or directory\n"


def test_the_start_does_nothing_in_a_program_that_is_not_recorded():
    program = "import sys; import tilewright.tuner.start.sitecustomize; print(len(sys.meta_path))"
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.meta_path))"], capture_output=True, text=True, check=True
    )
    ours = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ours.stdout == plain.stdout


nn, functional = torch.nn, torch.nn.functional
ATTENTION = by_an_own_name = functional.scaled_dot_product_attention


class Attending(nn.Module):
    """Says how many modes each call was under."""

    def __init__(self, *, by_name: bool, fails: bool = False) -> None:
        super().__init__()
        self.by_name, self.fails, self.modes = by_name, fails, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append(torch._C._len_torch_function_stack())
        attend = functional.scaled_dot_product_attention if self.by_name else by_an_own_name
        result = attend(x, x, x)
        if self.fails:
            raise ValueError("after attention")
        return result


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(1, 2, 5, 16)


def replaced(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """The model, its attention replaced for such an input."""
    call = call_of(ATTENTION, (x, x, x), {})
    assert call is not None
    stand = Replacement(entries(call), function="scaled_dot_product_attention")
    install(model.eval(), [stand], with_gradients=False)
    return model


def calls_ours() -> int:
    return sum(one.calls_ours for one in tw.status() if one.operator == "scaled_dot_product_attention")


@torch.no_grad()
def test_attention_by_its_name_is_replaced_without_a_mode_from_the_second_call_on(x) -> None:
    model = replaced(Attending(by_name=True), x)
    torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    before = calls_ours()
    for _ in range(2):
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    assert model.modes == [1, 0, 0]
    assert calls_ours() == before + 2
    assert functional.scaled_dot_product_attention is ATTENTION


@torch.no_grad()
def test_our_operator_calls_pytorchs_attention_itself_where_that_runs(x) -> None:
    model = replaced(Attending(by_name=True), x)
    model(x)
    before = calls_ours()
    tw.off()
    try:
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    finally:
        tw.on()
    assert calls_ours() == before


@torch.no_grad()
def test_attention_by_a_name_of_the_programs_own_keeps_the_mode(x) -> None:
    model = replaced(Attending(by_name=False), x)
    torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    before = calls_ours()
    for _ in range(2):
        torch.testing.assert_close(model(x), ATTENTION(x, x, x))
    assert model.modes == [1, 1, 1]
    assert calls_ours() == before + 2


@torch.no_grad()
def test_other_threads_and_failures_find_pytorchs_own(x) -> None:
    model, other = replaced(Attending(by_name=True), x), Attending(by_name=True)
    model(x)
    inside, goes_on, seen = threading.Event(), threading.Event(), list[int]()

    def elsewhere() -> None:
        inside.wait()
        before = calls_ours()
        other(x)
        seen.append(calls_ours() - before)
        goes_on.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    forward = model.forward._forward

    def waiting(*given: torch.Tensor) -> torch.Tensor:
        inside.set()
        goes_on.wait()
        return forward(*given)

    model.forward._forward = waiting
    model(x)
    thread.join()
    assert seen == [0]
    model.fails = True
    with pytest.raises(ValueError, match="after attention"):
        model(x)
    assert functional.scaled_dot_product_attention is ATTENTION
    uninstall(model)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_sum_with_a_product_has_autocasts_dtype(name, grad) -> None:
    function, batch = getattr(torch, name), () if name == "addmm" else (2,)
    c, a, b = (torch.randn(*batch, *shape) for shape in ((3, 5), (3, 4), (4, 5)))
    call = call_of(function, (c, a, b), {"beta": 0.5})
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
        result, expected = call.run(), function(c, a, b, beta=0.5)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.03, atol=0.03)

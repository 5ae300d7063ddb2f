"""The launcher asks the real service, in the words that the API takes."""

from __future__ import annotations

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.tuner.runtime import Runtime, UntunedWarning
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

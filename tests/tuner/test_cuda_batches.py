"""How many launches make a sample, as the CUDA bench finds out; the device is made, its times are told."""

from types import SimpleNamespace

import pytest

from tilewright.tuner.cuda_bench import CudaBench


def chosen(verifying_ms, *times_ms, count=3):
    """What became of an executable with these launches: its samples, its batch, and how many launches were timed."""
    told, timed = iter(times_ms), []

    def take(_enqueue, launches):
        timed.append(launches)
        return [next(told) for _ in range(launches)]

    bench = CudaBench.__new__(CudaBench)
    bench.device = SimpleNamespace(times_ms=take, graph=lambda _enqueue, batch: f"{batch} launches")
    executable = SimpleNamespace(enqueue=None, is_loaded=True, launch_ms=verifying_ms, batch=0, graph=None)
    return bench._choose_batch(executable, count), executable.batch, timed, executable.graph


def test_a_launch_that_took_long_to_verify_has_none_to_spare():
    assert chosen(9.0, 8.0, 8.1, 8.2) == ([8.0, 8.1, 8.2], 1, [3], None)


def test_the_first_of_the_others_is_no_sample():
    assert chosen(0.5, 0.9, 0.4, 0.5, 0.6) == ([0.4, 0.5, 0.6], 1, [4], None)


@pytest.mark.parametrize("times_ms", [(0.01, 0.01, 0.01), (7.0, 0.01, 0.02)])
def test_a_short_launch_is_batched_although_verifying_it_was_held_up(times_ms):
    assert chosen(9.0, *times_ms) == ([], 20, [3], "20 launches")

"""How many launches make a sample, as the CUDA bench finds out; the GPU is made, with a host that is slow at times."""

import math

import pytest

from tilewright.tuner.devices.cuda.executable import CudaExecutable
from tilewright.tuner.devices.cuda.sampling import SAMPLE_MS, Sampler
from tilewright.tuner.outcome import Resources

PYTHON_MS = 0.02  # between two calls that enqueue something


class MadeGpu:
    """A device with one kernel that takes `launch_ms`; the host stands still in calls of `times_ms` as told."""

    def __init__(self, launch_ms, stalls=()):
        self.launch_ms, self.stalls = launch_ms, dict(stalls)
        self.launches, self.calls, self.graphs = 0, 0, []

    def allocate(self, size):
        return size

    def fill(self, address, size, value):
        pass

    def enqueue(self):
        self.launches += 1
        return self.launch_ms

    def graph(self, enqueue, count):
        made = MadeGraph(self, count)
        self.graphs.append(made)
        return made

    def times_ms(self, step, count, *, before=None):
        """As the events would tell: what Python takes shows where the GPU has nothing to do."""
        stall, self.calls = self.stalls.get(self.calls, 0.0), self.calls + 1
        gap = 0.0 if before is not None else PYTHON_MS
        return [max(step(), gap) + (stall if place == 0 else 0.0) for place in range(count)]


class MadeGraph:
    def __init__(self, gpu, count):
        self.gpu, self.count, self.is_closed = gpu, count, False

    def replay(self):
        assert not self.is_closed
        return sum(self.gpu.enqueue() for _ in range(self.count))

    def close(self):
        self.is_closed = True


def sampled(launch_ms, count=3, *, verifying_ms=None, stalls=()):
    """The samples, the executable and the device."""
    gpu = MadeGpu(launch_ms, stalls)
    executable = CudaExecutable(gpu.enqueue, Resources(), 0.0)
    executable.is_loaded, executable.launch_ms = True, launch_ms if verifying_ms is None else verifying_ms
    return Sampler(gpu, None, 32).warm_ms(executable, count), executable, gpu


@pytest.mark.parametrize("launch_ms", [0.0023, 0.0059, 0.05, 0.19])
def test_samples_of_a_short_kernel_last_long_enough_and_have_nothing_of_pythons(launch_ms):
    samples, executable, _ = sampled(launch_ms)
    assert samples == pytest.approx([launch_ms] * 3)
    assert executable.batch == math.ceil(SAMPLE_MS / launch_ms)


def test_no_more_launches_than_there_may_be_make_a_sample():
    samples, executable, gpu = sampled(0.0005)
    assert samples == pytest.approx([0.0005] * 3)
    assert executable.batch == 256
    assert len(gpu.graphs) == 1


@pytest.mark.parametrize("stall_ms", [0.05, 0.18, 0.5, 30.0])
def test_a_batch_that_a_stall_made_too_small_is_chosen_again(stall_ms):
    samples, executable, gpu = sampled(0.004, stalls={0: stall_ms})
    assert samples == pytest.approx([0.004] * 3)
    assert executable.batch * 0.004 >= 0.75 * SAMPLE_MS
    assert [graph.is_closed for graph in gpu.graphs] == [True] * (len(gpu.graphs) - 1) + [False]


def test_a_launch_that_took_long_to_verify_has_none_to_spare():
    samples, executable, gpu = sampled(8.0)
    assert samples == [8.0] * 3
    assert (executable.batch, gpu.launches) == (1, 3)


def test_a_short_launch_is_batched_although_verifying_it_was_held_up():
    samples, executable, _ = sampled(0.01, verifying_ms=9.0)
    assert samples == pytest.approx([0.01] * 3)
    assert executable.batch in {20, 21}  # of 10.0 us, as far as floats go


def test_what_is_longer_than_a_sample_is_launched_by_itself():
    samples, executable, gpu = sampled(0.4)
    assert samples == [0.4] * 3
    assert (executable.batch, executable.graph, gpu.launches) == (1, None, 4)  # one keeps the GPU busy


def test_an_executable_that_is_closed_frees_its_graph():
    _, executable, gpu = sampled(0.01)
    assert isinstance(executable, CudaExecutable)
    executable.close()
    assert [graph.is_closed for graph in gpu.graphs] == [True]

"""The bookkeeping of the check on a stream: who checks, in whose memory, and what a failure leaves.

Without a GPU: the driver's calls are written down instead, and the verdict is written by the test.
"""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cuda.driver import DriverError
from tilewright.tuner.runtime import WrongResultWarning
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.first_use import on_stream
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse
from tilewright.tuner.runtime.first_use.product import CHECKED_AT_LAUNCH

GEMM = catalogue().get("gemm")
PLACE = TargetDevice(
    "nvidia-h200",
    Limits(
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=140 << 30,
        max_shared_bytes=227 << 10,
        shared_bytes_per_multiprocessor=228 << 10,
    ),
)
ADDRESSES, SCALARS = [256, 512, 1024], [1.0, 0.5]


class Driver:
    """Calls by name; `fails`: the name of one that does not work."""

    def __init__(self, monkeypatch):
        self.launched, self.fails, self._kept, self._next = 0, False, [], 1 << 20
        monkeypatch.setattr(on_stream, "call", self.call)
        monkeypatch.setattr(on_stream, "zeroed", self.zeroed)
        monkeypatch.setattr(on_stream, "capture_id", lambda _stream: 0)
        monkeypatch.setattr(on_stream, "allowed_while_capturing", nullcontext)
        monkeypatch.setattr(on_stream, "_functions", lambda *_: tuple(ctypes.c_void_p(8 * i) for i in (1, 2)))
        monkeypatch.setattr("tilewright.tuner.devices.cuda.driver._error_name", lambda status: f"error {status}")
        on_stream._reserve.cache_clear()

    def zeroed(self, size_bytes):
        self._next += size_bytes
        return SimpleNamespace(address=self._next)

    def call(self, name, *arguments):
        if name == "cuMemHostAlloc":
            self._kept.append(ctypes.create_string_buffer(arguments[1].value))
            arguments[0]._obj.value = ctypes.addressof(self._kept[-1])
        elif name == "cuLaunchKernelEx":
            if self.fails:
                raise DriverError(name, 1)
            self.launched += 1


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


def use_of(problem):
    return FirstUse(GEMM, problem, PLACE, Choice(Configuration.of("tiled", {"TILE_WIDTH": 8}), "cache", "predicted"))


def check_of(use, context_id=1):
    return on_stream.rows_check(GEMM, use.problem, use, context_id)


@pytest.mark.parametrize("reads_c", [False, True])
def test_a_launch_that_fails_leaves_the_check_to_the_next_one(driver, reads_c):
    use = use_of(GEMM.problem({"m": 40, "n": 24, "k": 8}, options={"beta_zero": not reads_c}))
    check = check_of(use)
    launch = check.taken(0)
    assert check.taken(0) is None  # nobody else checks meanwhile
    launch.before(ADDRESSES, SCALARS)
    launch.abandon()
    assert (use.state, use.reason) == ("waiting", "the launch that was to be checked failed")
    again = check.taken(7)
    assert (again._memory is launch._memory) == (not reads_c)  # rows may still be copied to the first one's
    again.before(ADDRESSES, SCALARS)
    again.after()
    assert driver.launched == 1 + 2 * reads_c
    again._memory.verdict.state = 1
    assert check.is_over
    assert check.settle()
    assert use.state == "right"


def test_rows_that_could_not_be_kept_are_not_judged(driver):
    use = use_of(GEMM.problem({"m": 40, "n": 24, "k": 8}, options={"beta_zero": False}))
    launch = check_of(use).taken(0)
    driver.fails = True
    launch.before(ADDRESSES, SCALARS)
    driver.fails = False
    launch.after()
    assert driver.launched == 0
    assert (use.state, use.reason) == ("unchecked", "its check could not be launched: cuLaunchKernelEx: error 1")


def test_memory_is_used_again_in_its_own_context_only(driver):
    problem = GEMM.problem({"m": 40, "n": 24, "k": 8})

    def memory_of_a_check(context_id):
        check = check_of(use_of(problem), context_id)
        launch = check.taken(0)
        launch._memory.verdict.state = 1
        check.settle()
        return launch._memory

    first = memory_of_a_check(1)
    assert memory_of_a_check(2) is not first  # a handle may be that of a context which is gone; its number is not
    assert memory_of_a_check(1) is first
    assert first.verdict.state == 0


def test_memory_whose_counters_are_elsewhere_is_not_used_again(driver):
    """Sums of the one would lie where the other one's counters must be zero."""

    def memory_of_a_check(columns):
        check = check_of(use_of(GEMM.problem({"m": 40, "n": columns, "k": 8})))
        launch = check.taken(0)
        launch._memory.verdict.state = 1
        check.settle()
        return launch._memory

    large = memory_of_a_check(24 * 64)
    assert memory_of_a_check(24) is not large
    assert memory_of_a_check(24 * 64) is large


def test_a_verdict_on_the_callers_numbers_counts_beside_one_on_random_numbers(driver):
    use = use_of(GEMM.problem({"m": 40, "n": 24, "k": 8}))
    check = check_of(use)
    launch = check.taken(0)
    launch.before(ADDRESSES, SCALARS)
    launch.after()
    use.settle(Finding())  # by `prepare`, meanwhile
    assert not check.is_over
    launch._memory.verdict.state, launch._memory.verdict.wrong = 1, 3
    assert check.is_over
    with pytest.warns(WrongResultWarning, match="3 components"):
        assert not check.settle()
    assert use.state == "wrong"


def test_a_check_that_is_not_the_one_under_way_ends_with_it(driver):
    use = use_of(GEMM.problem({"m": 40, "n": 24, "k": 8}))
    first, second = check_of(use, 1), check_of(use, 2)
    first.taken(0)
    assert second.taken(0) is None
    assert not second.is_over
    use.settle(Finding())
    assert second.is_over
    assert second.settle()


def test_of_sizes_at_launch_only_rows_are_checked_by_calls():
    """A task has the launch's rows; a batch's last matrix and the columns of gemv's task lie where the problem says."""
    rows = {("gemm", "m"), ("linear", "m")}
    assert rows == CHECKED_AT_LAUNCH
    for name, axis in rows:
        kernel = catalogue().get(name)
        assert axis in kernel.launch_axes
        assert axis == kernel.row_axis

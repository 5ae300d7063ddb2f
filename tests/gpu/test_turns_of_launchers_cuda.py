"""On a GPU: a launcher's configuration that was not measured here takes turns with the call of the array's library."""

import pytest
from turns_on_gpu import NAIVE, facts, settled, square

from tilewright.kernels.catalogue import catalogue

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_turns():
    """Calls take turns here."""


def is_decided(first):
    """Whether the first calls have ended: ours alone runs then, or the library's."""
    return first is None or first._runs[-1] == first._library


@pytest.mark.parametrize("size", [1024, 2048])
def test_a_launcher_takes_turns_with_pytorchs_call(torch, device, runtime_of, size):
    """The slow configuration gives way at 1024; the fast one stays at 2048."""
    kernel = catalogue().get("gemm")
    is_fast = size == 2048
    if is_fast and device.model.limits.compute_capability < (9, 0):
        pytest.skip("tensor3xfp16_sm90 needs compute capability 9.0")
    configuration = kernel.variant("tensor3xfp16_sm90").space().default() if is_fast else NAIVE
    answers = {square(size): facts(square(size), configuration)}
    launch = runtime_of(answers, only_tuned=False).best("gemm", m=size, n=size, k=size)
    a, b, c = (torch.randn(size, size, device="cuda") for _ in range(3))
    expected, first = a.double() @ b.double(), []

    def call():
        launch(a, b, c.fill_(float("nan")))
        first.append(launch._last.first)

    def check():
        torch.testing.assert_close(c.double(), expected, rtol=1e-3, atol=1e-2)

    settled(torch, call, lambda: is_decided(first[-1]), check)
    assert (first[-1] is None) is is_fast
    if not is_fast:
        assert torch.equal(launch(a, b, c), torch.mm(a, b))
        c.fill_(float("nan"))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiled:
            launch(a, b, c, stream=torch.cuda.current_stream())  # ours
            torch.cuda.synchronize()
        torch.testing.assert_close(c.double(), expected, rtol=1e-3, atol=1e-2)
        assert kernel.entry in {one.name for one in profiled.events()}


def test_a_launcher_takes_turns_with_cupys_call(torch, runtime_of):
    cupy = pytest.importorskip("cupy")
    answers = {square(1024): facts(square(1024), NAIVE)}
    launch = runtime_of(answers, only_tuned=False).best("gemm", m=1024, n=1024, k=1024)
    a, b, c = (cupy.random.standard_normal((1024, 1024), dtype=cupy.float32) for _ in range(3))
    expected, first = a.astype(cupy.float64) @ b.astype(cupy.float64), []

    def call():
        launch(a, b, c)
        first.append(launch._last.first)

    def check():
        assert abs(c - expected).max() < 1e-2

    settled(torch, call, lambda: is_decided(first[-1]), check)
    assert first[-1] is not None  # the naive kernel is the slower one

"""gemm's views and batches on a GPU: compared on the device, nothing written between rows, the library beside them."""

import itertools
import random

import numpy as np
import pytest
from faulty_kernels import with_change

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.library import cudnn
from tilewright.tuner.loop import verify
from tilewright.tuner.loop.verify import compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


SHAPE = {"m": 133, "n": 56, "k": 68}
VIEWS = {
    "slices": {"lda": 200, "ldb": 71, "ldc": 57},
    "batch": {"batch": 5},
    "gaps": {"batch": 3, "lda": 136, "stride_a": 30000, "ldc": 60, "stride_c": 8001},
    "shared": {"batch": 4, "stride_a": 0},
    "turns": {"batch": 3, "ldc": 180, "stride_c": 60},
}


@pytest.fixture
def bench_of(device):
    benches = []

    def made(view, dtype="float32", kernel=GEMM, **options):
        benches.append(device.bench(kernel, kernel.problem({**SHAPE, **VIEWS[view]}, dtype, options), 3))
        return benches[-1]

    yield made
    for bench in benches:
        bench.close()


def default_of(bench, variant="naive"):
    space = bench.kernel.space(bench.problem, bench.device.model.limits, [variant])
    return bench.compile(space.defaults()[0])


@pytest.mark.parametrize(("view", "dtype"), list(itertools.product(VIEWS, ["float32", "float64"])))
def test_the_device_compares_views_as_the_host_does(bench_of, view, dtype):
    bench = bench_of(view, dtype, beta_zero=False, trans_a=True)
    found = bench.verify(default_of(bench))
    reference = bench.kernel.reference(bench.problem, bench.arrays.host, bench.scalars)
    expected = verify.compare(bench.output(), reference, dtype)
    assert found.bound_ratio == pytest.approx(expected.bound_ratio, rel=1e-12)
    assert (found.wrong, found.first_wrong) == (expected.wrong, expected.first_wrong) == (0, None)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("variant", ["tiled", "wpt", "register"])
def test_every_variant_of_cuda_cores_is_right_on_every_kind_of_inputs(bench_of, variant, view):
    bench = bench_of(view, trans_b=True)
    verifications = bench.verify_each_kind(default_of(bench, variant))
    assert [v.wrong for v in verifications] == [0] * len(bench.arrays.kinds)


@pytest.mark.parametrize("view", ["slices", "gaps", "turns"])
def test_what_is_written_between_rows_fails_the_trial(bench_of, tmp_path, view):
    write = "write_c(C + matrix * STRIDE_C, row, column, alpha, sum, beta);"
    between = "if (matrix == 0 && column == 0 && row == 1) C[LDC + N] = sum;"
    if view == "turns":  # what follows a row is a gap of 4, then the next matrix
        assert VIEWS[view]["stride_c"] > SHAPE["n"]
    bench = bench_of(view, kernel=with_change(GEMM, tmp_path, "naive.cu", write, f"{write}\n{between}"))
    with pytest.raises(TrialFailure, match="1 elements between the rows of C were written"):
        bench.verify(default_of(bench))


def test_the_first_wrong_component_of_a_batch_is_named_by_matrix_row_and_column(bench_of, tmp_path):
    kernel = with_change(GEMM, tmp_path, "naive.cu", "Sum sum = 0;", "Sum sum = matrix == 2 && row == 7 ? 1e6 : 0;")
    found = (bench := bench_of("gaps", kernel=kernel)).verify(default_of(bench))
    assert (found.wrong, found.first_wrong) == (SHAPE["n"], (2, 7, 0))
    assert found.got == pytest.approx(2e6, rel=1e-3)
    assert abs(found.expected) < 1e4


@pytest.mark.parametrize("view", VIEWS)
def test_every_call_of_the_library_computes_the_view(bench_of, view):
    from tilewright.tuner.library.choice import CudaLibrary  # noqa: PLC0415 - CUDA only

    bench = bench_of(view, trans_a=True, beta_zero=False)
    library = CudaLibrary(bench)
    candidates = library.candidates()
    verifications = [bench.verify(candidate.executable) for candidate in candidates]
    batched = bench.problem.shape["batch"] > 1
    assert ("cublasGemmStridedBatchedEx" in candidates[0].call.name) == batched
    assert any("cuBLASLt" in candidate.call.name for candidate in candidates)
    assert all(verification.is_right for verification in verifications)
    library.close()


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("package", ["torch", "cupy"])
def test_the_launcher_takes_views_of_other_packages_as_they_are(runtime, request, package):
    xp = request.getfixturevalue(package)
    on = {"device": "cuda"} if package == "torch" else {}
    broadcast = xp.broadcast_to

    def drawn(*shape):
        return xp.randn(*shape, **on) if package == "torch" else xp.random.standard_normal(shape).astype(xp.float32)

    launch = runtime.best("gemm", m=64, n=48, k=40)
    a, b, heads, weights = drawn(64, 60), drawn(48, 40), drawn(64, 3, 40), drawn(40, 48)
    cases = [
        (a[:, :40], b.T),
        (a[:, 20:], weights),
        (broadcast(a[None, :, :40], (3, 64, 40)), broadcast(weights, (3, 40, 48))),
        (heads.swapaxes(0, 1), weights),
        (heads.swapaxes(0, 1), drawn(3, 48, 40).swapaxes(1, 2)),
    ]
    for first, second in cases:
        wide = drawn(*first.shape[:-1], 52)
        before, c = wide[..., 48:] + 0, wide[..., :48]
        assert launch(first, second, c) is c
        assert float(abs(c - xp.matmul(first, second)).max()) < 1e-3
        assert bool((wide[..., 48:] == before).all())


CONV2D = catalogue().get("conv2d")
SQUARE = {
    "batch": 3,
    "height": 15,
    "width": 13,
    "channels": 64,
    "filters": 72,
    "kernel_h": 3,
    "kernel_w": 3,
    "padding": 1,
}
SHAPES = [
    SQUARE,
    SQUARE | {"stride": 2, "dilation_w": 2, "padding_w": 3},
    SQUARE | {"channels": 128, "kernel_h": 1, "kernel_w": 1, "padding": 0},
    SQUARE | {"channels": 7, "filters": 5, "kernel_w": 4},
]


def in_words(shape):
    """The sizes."""
    return ",".join(map(str, shape.values()))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("shape", SHAPES, ids=in_words)
def test_every_variant_is_right_with_every_kind_of_inputs(device, shape, layout):
    problem = CONV2D.problem(shape, "float32", {"layout": layout, "activation": "relu"})
    bench = device.bench(CONV2D, problem, 1)
    for variant in CONV2D.usable_variants(problem, device.model.limits):
        feasible = CONV2D.space(problem, device.model.limits, only=[variant.name]).feasible
        for configuration in random.Random(1).sample(feasible, min(3, len(feasible))):
            for verification in bench.verify_each_kind(bench.compile(configuration)):
                assert verification.is_right, (configuration, verification)
    bench.close()


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("variant", ["implicit_gemm", "tensor3xtf32", "tensor3xfp16_sm90"])
def test_infinities_and_nan_come_out_as_in_fp32_and_leave_nothing_behind(device, variant, layout):
    problem = CONV2D.problem(SQUARE, "float32", {"layout": layout})
    if variant not in {v.name for v in CONV2D.usable_variants(problem, device.model.limits)}:
        pytest.skip("the variant is for another compute capability")
    bench = device.bench(CONV2D, problem, 1)
    configuration = CONV2D.space(problem, device.model.limits, only=[variant]).feasible[0]
    executable, arrays = bench.compile(configuration), random_arrays(CONV2D, problem, 5)
    finite = arrays["X"].copy()
    arrays["X"].reshape(-1)[[70, 4000, 9001]] = np.inf, -np.inf, np.nan
    for images in (arrays["X"], finite):
        case = arrays | {"X": images}
        for name, array in case.items():
            bench.device.upload(bench.arrays.addresses[name], np.ascontiguousarray(array))
        executable.enqueue()
        bench.device.synchronize()
        with np.errstate(invalid="ignore"):
            reference = CONV2D.reference(problem, case, {})
            out, expected = bench.output(), reference.value
        odd = ~np.isfinite(expected)
        assert odd.any() == (images is not finite)
        np.testing.assert_array_equal(out[odd], expected[odd])
        expected[odd] = out[odd] = reference.magnitude[odd] = 1
        assert compare(out, reference, "float32").wrong == 0
    bench.close()


@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"activation": "gelu", "layout": "nchw"}], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, SQUARE | {"filters": 2}], ids=in_words)
def test_cudnn_is_right_and_says_what_it_is(device, shape, options):
    if not cudnn.is_available():
        pytest.skip("cuDNN is not installed")
    depthwise = shape["filters"] == 2
    bench = device.bench(CONV2D, CONV2D.problem(shape, "float32", options | {"depthwise": depthwise}), 1)
    library = bench.library()
    assert library is not None
    assert str(bench.library_name()).startswith("cuDNN ")
    assert bench.verify_timed(library).is_right
    bench.close()

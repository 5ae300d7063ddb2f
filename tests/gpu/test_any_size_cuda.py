"""Code that gets a size with the launch, on a GPU: every such variant at several sizes, and launchers of families."""

import random

import gpu_check
import pytest
from test_every_kernel import served, some_problems

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.tuner.devices.cuda import driver
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.runtime import quantise
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.known.answers import AnswerCache
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.runtime import Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.errors.UntunedWarning"),
]

SIZES, SMALL = (1, 127, 300), (1, 5, 33)
"""The least, an odd one that is larger than most tiles, and one of several tiles; of batches and of few rows less."""

WITH_AXES = [kernel for kernel in catalogue().kernels() if kernel.launch_axes]


@pytest.fixture(scope="module")
def nvrtc_device(gpu):
    device = open_device("cuda:0", "nvrtc")
    yield device
    device.close()


def twins(kernel, problems):
    """The problems whose axis may come with the launch, as such."""
    for problem in problems:
        for axis in kernel.launch_axes:
            try:
                yield kernel.with_size_at_launch(problem, axis)
            except InvalidProblemError:
                continue


def soundly_at(kernel, configuration, problem, limits):
    """The sizes of the axis at which the configuration may be launched."""
    variant = kernel.variant(configuration.variant)
    sizes = SMALL if problem.at_launch in kernel.largest_at_launch else SIZES
    for size in sorted({problem.shape[problem.at_launch], *sizes}):
        one = problem.with_size(problem.at_launch, size)
        if variant.admits(one, limits) and variant.is_sound(configuration.values, one, limits):
            yield one


@pytest.mark.parametrize("kernel", WITH_AXES, ids=lambda kernel: kernel.name)
def test_every_variant_is_right_at_sizes_that_come_with_the_launch(nvrtc_device, kernel):
    device, limits, generator = nvrtc_device, nvrtc_device.model.limits, random.Random(4)
    everything = list(twins(kernel, gpu_check.problems(kernel)))
    wanted, met, failures = served(kernel, everything, limits), set(), []
    for problem in some_problems(kernel, everything, limits, 0):
        chosen = [
            c
            for v in kernel.usable_variants(problem, limits)
            for c in gpu_check.draw(v.space(), problem, limits, 1, generator)
        ]
        served_at = {c: set(soundly_at(kernel, c, problem, limits)) for c in chosen}
        for one in sorted(set().union(*served_at.values()), key=str):
            bench = device.bench(kernel, one, generator.randrange(2**31))
            for configuration in chosen:
                if one in served_at[configuration]:
                    met.add(f"{configuration.variant} {problem.dtype}")
                    message = gpu_check.verdict(bench, configuration)
                    failures += [f"{one} {dict(one.options)} | {configuration} | {message}"] if message else []
            bench.close()
    assert failures == []
    assert met == wanted


GATED = "linear_gated"
N, K, HIGH = 384, 512, 4096


def operands(torch, kernel, size, dtype):
    """Arrays in the declared order, and the result in float64."""
    kind = getattr(torch, dtype)

    def normal(*shape):
        return torch.randn(*shape, device="cuda").to(kind)

    y = torch.full((size, N), torch.nan, device="cuda", dtype=kind)
    if kernel == "softmax":
        x = normal(size, N)
        return [x, y], x.double().softmax(-1)
    x = normal(size, K)
    if kernel == "gemm":
        b = normal(K, N)
        return [x, b, y], x.double() @ b.double()
    if kernel == "linear":
        w, bias = normal(N, K), normal(N)
        return [x, w, bias, y], x.double() @ w.double().T + bias.double()
    w = normal(2 * N, K)
    gate, up = (x.double() @ w.double().T).chunk(2, -1)
    return [x, w, y], torch.nn.functional.silu(gate) * up


def pinned(tmp_path, kernel, configuration, shape, high, **stated):
    """The launcher of a family whose only range has that configuration."""
    runtime, declared = Runtime(answers=AnswerCache(tmp_path / "answers")), catalogue().get(kernel)
    dtype, options = stated.pop("dtype"), stated
    family = Family.of(declared, {"m": (1, high), **shape}, dtype, options)
    ranges = Ranges([SizeRange(high, Choice(configuration, "table", "range"))])
    runtime.families.pin({family: ranges}, gpu_place(0).slug)
    return runtime.any_size(kernel, {**shape, **options}, dtype=dtype, largest=high)


@pytest.mark.parametrize(
    ("variant", "weights"), [("streamed_sm90", "int8"), ("streamed_sm90", "int4"), ("held", "int4")]
)
def test_few_rows_beside_quantised_weights_run_the_code_that_is_there(torch, tmp_path, variant, weights):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("for Hopper")
    kernel, shape = catalogue().get("linear_quantized"), {"n": 1024, "k": 2048}
    smallest = Family.of(kernel, {"m": (1, 16), **shape}, "bfloat16", {"weights": weights}).at(1)
    (start,) = kernel.space(smallest, gpu_place(0).limits, only=[variant]).defaults()
    q = quantise(torch.randn(1024, 2048, device="cuda").bfloat16(), weights, group=128)
    launch = pinned(tmp_path, "linear_quantized", start, shape, 64, dtype=q.dtype, **q.options)
    exact = Runtime(answers=AnswerCache(tmp_path / "answers"))
    for m in (1, 64, 9, 16, 17, 33):
        x = torch.randn(m, 2048, device="cuda").bfloat16()
        y, expected = (torch.full((m, 1024), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        exact.best("linear_quantized", m=m, **shape, dtype=q.dtype, **q.options)(x, q.W, q.S, expected)
        torch.testing.assert_close(launch(x, q.W, q.S, y), expected, rtol=1e-2, atol=0.5)


def test_transposed_matrices_of_any_width_run_the_code_that_is_there(torch, tmp_path, monkeypatch):
    launch = Runtime(answers=AnswerCache(tmp_path / "answers")).best("gemv", n=384, trans_a=True)
    launch.prepare("cuda:0")
    monkeypatch.setattr("tilewright.tuner.runtime.launches.loaded_kernel.compiled_by", None)  # nothing compiles now
    x = torch.randn(384, device="cuda")
    for m in (1, 33, 128, 4099, 8192, 20000):
        a, y = torch.randn(384, m, device="cuda"), torch.full((m,), torch.nan, device="cuda")
        torch.testing.assert_close(launch(a, x, y).double(), a.double().T @ x.double(), rtol=1e-4, atol=1e-3)


FAMILIES = [
    ("gemm", "float32"),
    ("gemm", "bfloat16"),
    ("linear", "float32"),
    ("linear", "float16"),
    (GATED, "bfloat16"),
    ("softmax", "float32"),
]


def test_any_number_of_products_and_of_images_runs_the_code_that_is_there(torch, tmp_path, monkeypatch):
    first_use.forget()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    runtime = Runtime(answers=AnswerCache(tmp_path / "answers"))
    products = {
        dtype: runtime.best("gemm", m=96, n=80, k=128, batch="1..64", dtype=dtype) for dtype in ("float32", "bfloat16")
    }
    image = {"height": 28, "width": 28, "channels": 32, "filters": 48, "kernel_h": 3, "kernel_w": 3, "padding": 1}
    layouts = {layout: runtime.best("conv2d", layout=layout, **image) for layout in ("nhwc", "nchw")}
    for launch in (*products.values(), *layouts.values()):
        launch.prepare("cuda:0")
    monkeypatch.setattr("tilewright.tuner.runtime.launches.loaded_kernel.compiled_by", None)  # nothing compiles now
    weights, bias = torch.randn(48, 32, 3, 3, device="cuda"), torch.randn(48, device="cuda")
    for size in (1, 2, 17, 64, 100):
        for dtype, launch in products.items():
            a, b = (
                torch.randn(size, *of_one, device="cuda").to(getattr(torch, dtype)) for of_one in ((96, 128), (128, 80))
            )
            c = torch.full((size, 96, 80), torch.nan, device="cuda", dtype=a.dtype)
            bound = {"float32": 2e-4, "bfloat16": 0.3}[dtype]
            torch.testing.assert_close(launch(a, b, c).double(), a.double() @ b.double(), rtol=1e-2, atol=bound)
        x = torch.randn(size, 32, 28, 28, device="cuda")
        of_pytorch = torch.nn.functional.conv2d(x.double(), weights.double(), bias.double(), padding=1)
        for layout, launch in layouts.items():
            order = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
            image_x, image_w = (one.permute(order).contiguous() for one in (x, weights))
            expected = of_pytorch.permute(order)
            y = torch.full(expected.shape, torch.nan, device="cuda")
            found = launch(image_x, image_w, bias, y).double()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("kernel", "dtype"), FAMILIES, ids=lambda one: one)
def test_no_size_compiles_or_takes_memory_once_a_family_is_prepared(torch, tmp_path, monkeypatch, kernel, dtype):
    first_use.forget()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    shape = {"n": N} if kernel == "softmax" else {"n": N, "k": K}
    launch = Runtime(answers=AnswerCache(tmp_path / "answers")).best(kernel, dtype=dtype, **shape)
    launch.prepare()
    made = {size: operands(torch, kernel, size, dtype) for size in (1, 33, 129, 700, 2049, HIGH)}
    monkeypatch.setattr("tilewright.tuner.runtime.launches.loaded_kernel.compiled_by", None)  # nothing compiles now
    monkeypatch.setattr("tilewright.tuner.runtime.first_use.on_stream.compiled_by", None)
    called, function = set(), driver.function
    monkeypatch.setattr(driver, "function", lambda name: called.add(name) or function(name))
    reserved_bytes = torch.cuda.memory_reserved()  # the device's free memory is that of other processes too
    for arrays, _ in made.values():
        launch(*arrays)
        launch(*arrays)  # reads the verdict on the first, where one is awaited
    assert not [name for name in called if "Alloc" in name or "Module" in name]
    assert torch.cuda.memory_reserved() == reserved_bytes
    for size, (arrays, expected) in made.items():
        off = ((arrays[-1].double() - expected).abs().max() / expected.abs().max()).item()
        assert off <= {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}[dtype], size

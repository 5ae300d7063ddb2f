"""Launches as a capture holds them become kernels: what is proposed, how the grid follows, what computes right."""

import numpy as np
import pytest

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.own import own_kernel
from tilewright.tuner.capture.adopt import adopt_launch
from tilewright.tuner.capture.capture import Capture, CaptureError
from tilewright.tuner.capture.program.memory import as_bytes, seen
from tilewright.tuner.devices.cpu.device import CpuDevice

BLUR = """
#ifndef WIDTH
#define WIDTH 64
#endif
__constant__ float weights[3];
__global__ void blur(float *out, const float *in, int n) {
  __shared__ float tile[WIDTH + 2];
  int i = blockIdx.x * WIDTH + threadIdx.x;
  for (int k = threadIdx.x; k < WIDTH + 2; k += WIDTH) {
    int from = blockIdx.x * WIDTH + k - 1;
    tile[k] = from >= 0 && from < n ? in[from] : 0;
  }
  __syncthreads();
  if (i < n) out[i] = weights[0] * tile[threadIdx.x] + weights[1] * tile[threadIdx.x + 1]
                    + weights[2] * tile[threadIdx.x + 2];
}
"""
SCALE = """
template <typename T, int TILE>
__global__ void scale(T *y, const T *x, T a, int n) {
  for (int t = 0; t < TILE; ++t) {
    int i = (blockIdx.x * TILE + t) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
  }
}
"""
GENERATOR = np.random.default_rng(1)


def scalar(value, dtype="int32"):
    return {"kind": "scalar", "dtype": dtype, "value": value}


@pytest.fixture
def adopted(tmp_path):
    """The kernel that a launch becomes, and the notes on it."""

    def adopt(source, entry, grid, block, arguments, *, constants=None, **facts):
        folder, described = tmp_path / "seen", []
        folder.mkdir()
        for place, one in enumerate(arguments):
            if isinstance(one, dict):
                described.append(one)
                continue
            before, after = one
            row = {"kind": "tensor", "dtype": before.dtype.name, "shape": list(before.shape), "bytes": before.nbytes}
            for name, array in (("before", before), ("after", after)):
                if array is not None:
                    row[name] = f"{name}{place}.npy"
                    np.save(folder / row[name], np.frombuffer(array.tobytes(), np.uint8))
            described.append(row)
        for name, array in (constants or {}).items():
            np.save(folder / f"{name}.npy", np.frombuffer(array.tobytes(), np.uint8))
        launch = {
            "name": "it",
            "entry": entry,
            "library": "CuPy",
            "source": source,
            "options": [],
            "folders": [],
            "grid": grid,
            "block": block,
            "shared_bytes": 0,
            "arguments": described,
            "constants": {name: f"{name}.npy" for name in constants or {}},
        } | facts
        made = adopt_launch(Capture(folder, ["python"], [launch]), "it", target=tmp_path / "made")
        return own_kernel(made.folder), made.notes

    return adopt


def default_of(kernel):
    return dict(kernel.variants[0].space().default().items)


def launch_of(kernel, **values):
    configuration = kernel.variants[0].space().default().values
    problem = kernel.problem(kernel.example_shape)
    chosen = type(configuration)({**default_of(kernel), **values}) if values else configuration
    return kernel.variants[0].launch(chosen, problem)


def are_right(kernel):
    device, problem = CpuDevice(), kernel.problem(kernel.example_shape)
    bench = device.bench(kernel, problem, seed=1)
    try:
        feasible = kernel.space(problem, device.model.limits).feasible
        return [bench.verify(bench.compile(one)).is_right for one in (feasible[0], feasible[-1])]
    finally:
        bench.close()
        device.close()


def test_options_and_constant_memory_are_taken_over(adopted):
    x = GENERATOR.standard_normal(1000).astype(np.float32)
    weights = np.array([0.25, 0.5, 0.25], np.float32)
    arguments = [(np.zeros_like(x), np.convolve(x, weights, "same")), (x, None), scalar(1000, "int64")]
    facts = {"constants": {"weights": weights}, "options": ["-DWIDTH=128", "-lineinfo"]}
    kernel, notes = adopted(BLUR, "blur", [8, 1], [128, 1, 1], arguments, **facts)
    assert default_of(kernel) == {"WIDTH": 128}
    assert kernel.flags == ()
    assert (launch_of(kernel).grid, launch_of(kernel).block) == ((8, 1, 1), (128, 1, 1))
    assert [one.dtype for one in kernel.arguments] == [None, None, "int32"]
    assert are_right(kernel) == [True, True]
    assert notes[0] == "proposed, and not known to be free: WIDTH: 32, 64, 128, 256, 512"


def test_an_integer_template_argument_is_a_parameter(adopted):
    x = GENERATOR.standard_normal(1000)
    arguments = [(np.zeros_like(x), 3 * x), (x, None), scalar(3.0, "float64"), scalar(1000)]
    kernel, _ = adopted(SCALE, "scale<double, 2>", [8, 1], [64, 1, 1], arguments)
    assert (kernel.entry, kernel.dtypes) == ("scale<double, GIVEN_TILE>", ("float64",))
    assert default_of(kernel) == {"GIVEN_TILE": 2, "block_size_x": 64}
    assert are_right(kernel) == [True, True]


def test_a_grid_that_does_not_follow_stays_and_its_block_too(adopted):
    source = "__global__ void f(float *y, int n) { y[blockIdx.x * blockDim.x + threadIdx.x] = n; }"
    kernel, notes = adopted(source, "f", [7, 3], [64, 1, 1], [(np.zeros(1344, np.float32), None), scalar(5)])
    assert (launch_of(kernel).grid, launch_of(kernel).block) == ((7, 3, 1), (64, 1, 1))
    assert default_of(kernel) == {}
    assert "block_size_x is not proposed: nothing says how 7 blocks along x follow from it" in notes


def test_a_block_may_vary_under_a_grid_that_strides(adopted):
    source = """__global__ void f(float *y, int n) {
      extern __shared__ float tile[];
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = i;
    }"""
    y = np.zeros(5000, np.float32)
    arguments = [(y, np.arange(5000, dtype=np.float32)), scalar(5000)]
    kernel, _ = adopted(source, "f", [7], [64], arguments, shared_bytes=512)
    launch = kernel.variants[0].launch(kernel.variants[0].space().default().values, kernel.problem({"n": 5000}))
    assert (launch.grid, launch.shared_bytes) == ((7, 1, 1), 512)
    assert are_right(kernel) == [True, True]


def test_a_block_of_two_axes_and_a_size_that_is_no_parameter(adopted):
    source = """
#define COLUMNS 96
#define TILE_X 32
#define TILE_Y 8
__global__ void f(float *y, const float *x, int rows) {
  int column = blockIdx.x * TILE_X + threadIdx.x, row = blockIdx.y * TILE_Y + threadIdx.y;
  if (row < rows && column < COLUMNS) y[row * COLUMNS + column] = x[row * COLUMNS + column] + 1;
}
"""
    x = GENERATOR.standard_normal((50, 96)).astype(np.float32)
    kernel, notes = adopted(source, "f", [3, 7], [32, 8, 1], [(0 * x, x + 1), (x, None), scalar(50)])
    assert default_of(kernel) == {"TILE_X": 32, "TILE_Y": 8}
    assert launch_of(kernel).grid == (3, 7, 1)
    assert "COLUMNS is not proposed: arrays have that size" in notes
    assert are_right(kernel) == [True, True]


def test_a_null_pointer_is_refused(adopted):
    with pytest.raises(CaptureError, match="argument 1 is the address 0, where no array is"):
        adopted("__global__ void f(float *y) { }", "f", [1], [64], [scalar(0, "uint64")])


def test_a_texture_is_refused_and_not_taken_for_a_number(adopted):
    source = "__global__ void f(cudaTextureObject_t t, float *y) { *y = tex1Dfetch<float>(t, threadIdx.x); }"
    with pytest.raises(CaptureError, match="argument 1 is a texture; declare the kernel by hand"):
        adopted(source, "f", [1], [64], [scalar(7, "uint64"), scalar(0, "uint64")])


def test_an_address_is_what_the_source_says_it_points_to(adopted):
    source = "__global__ void f(float4 *y, const int *x) { y[threadIdx.x].x = x[threadIdx.x]; }"
    pointers = [{"kind": "pointer", "shape": [size], "bytes": size} for size in (1024, 256)]
    kernel, _ = adopted(source, "f", [1], [64], pointers)
    problem = kernel.problem(kernel.example_shape)
    assert [(one.shape(problem), one.dtype_for(problem)) for one in kernel.tensors] == [
        ((64, 4), "float32"),
        ((64,), "int32"),
    ]


def tensor(count, **more):
    return {"kind": "tensor", "dtype": "float32", "shape": [count], "bytes": 4 * count, **more}


PLAIN = [tensor(4096), tensor(4096), scalar(4096)]
COPY = """
__global__ void copied(float *y, const float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int t = 0; t < TILE; ++t) if (i * TILE + t < n) y[i * TILE + t] = 3 * x[i * TILE + t];
}
"""


def right_at(kernel, shape):
    problem = kernel.problem(shape)
    bench = CpuDevice().bench(kernel, problem, 1)
    try:
        space = kernel.space(problem, CpuDevice().model.limits)
        return all(bench.verify(bench.compile(one)).is_right for one in space.defaults())
    finally:
        bench.close()


@pytest.mark.parametrize(
    "options", [["-D", "TILE=4"], ["-DTILE=4"], ["-D TILE=4"], ["--define-macro=TILE=4"], ["--define-macro", "TILE=4"]]
)
def test_a_macro_of_the_options_is_a_parameter_however_it_is_written(adopted, options):
    kernel, _ = adopted(COPY, "copied", (8, 1, 1), (128, 1, 1), PLAIN, options=[*options, "-I", "/nowhere"])
    assert kernel.variants[0].space().default().values["TILE"] == 4
    assert kernel.flags == ("-I/nowhere",)


@pytest.mark.parametrize(("options", "default"), [(["-DFAST"], 4), ([], 1), (["-DFAST", "-UFAST"], 1)])
def test_a_macro_has_the_value_of_the_branch_that_was_compiled(adopted, options, default):
    source = f"#ifdef FAST\n#define TILE 4\n#else\n#define TILE 1\n#endif\n{COPY}"
    kernel, _ = adopted(source, "copied", (32 // default, 1, 1), (128, 1, 1), PLAIN, options=options)
    assert kernel.variants[0].space().default().values["TILE"] == default
    assert kernel.source("adopted").count("#ifndef TILE") == 2


def test_a_grid_that_is_the_same_for_every_size_is_for_the_captured_size_only(adopted):
    source = """
    __global__ void turned(float *y, const float *x, int n) {
      __shared__ float s[256];
      int at = threadIdx.y * blockDim.x + threadIdx.x;
      s[at] = at < n ? x[at] : 0;
      __syncthreads();
      if (at < n) y[at] = s[at];
    }"""
    arguments = [tensor(256), tensor(256), scalar(256)]
    kernel, notes = adopted(source, "turned", (1, 1, 1), (16, 16, 1), arguments)
    assert "for this size only" in notes
    assert right_at(kernel, {"n": 256})
    with pytest.raises(InvalidProblemError):
        kernel.problem({"n": 5000})


@pytest.mark.parametrize(
    ("entry", "source"),
    [("_Z6copiedPfPKfi", COPY), ("_ZN4mine6copiedEPfPKfi", f"namespace mine {{{COPY}}}"), ("_ZL6copiedPfPKfi", COPY)],
)
def test_a_mangled_name_is_the_function_that_it_names(adopted, entry, source):
    kernel, _ = adopted(f"#define TILE 4\n{source}", entry, (8, 1, 1), (128, 1, 1), PLAIN)
    assert kernel.entry == ("mine::copied" if "mine" in source else "copied")
    assert right_at(kernel, {"n": 1000})


def test_a_mangled_instance_of_a_template_is_refused_with_the_way_out(adopted):
    with pytest.raises(CaptureError, match=r"template's instance; give the function .* by extern"):
        adopted(SCALE, "_Z5scaleIfLi4EEvPT_PKS0_S0_i", (8, 1, 1), (128, 1, 1), PLAIN)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_a_dense_array_is_in_the_order_of_memory_whatever_its_axes(axes):
    dense = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    view = dense.transpose(axes)
    assert seen(view.dtype, view.shape, view.strides)["shape"] == (2, 3, 4)
    assert np.array_equal(as_bytes(view.copy(), view.strides).view(np.float32), np.arange(24))
    assert "strided" not in seen(view.dtype, view.shape, view.strides)
    gaps = dense[:, :, ::2]
    assert seen(gaps.dtype, gaps.shape, gaps.strides)["strided"]

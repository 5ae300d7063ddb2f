"""Textures and tensor maps as the driver takes them."""

import ctypes
import math
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import TensorMap
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cuda import texture
from tilewright.tuner.devices.cuda.executable import CudaExecutable
from tilewright.tuner.devices.cuda.sampling import SAMPLE_MS, Sampler
from tilewright.tuner.devices.cuda.tensor_map import MapCells, MapFields
from tilewright.tuner.errors import TunerError
from tilewright.tuner.outcome import Resources

LAYOUTS = {
    "CUDA_ARRAY3D_DESCRIPTOR": (texture.ArrayDescription, "Width Height Depth Format NumChannels Flags"),
    "CUDA_RESOURCE_DESC": (
        texture.ResourceDescription,
        "resType {0}.devPtr {0}.format {0}.numChannels {0}.width {0}.height {0}.pitchInBytes - flags".format(
            "res.pitch2D"
        ),
    ),
    "CUDA_TEXTURE_DESC": (
        texture.TextureDescription,
        "addressMode filterMode flags maxAnisotropy mipmapFilterMode mipmapLevelBias borderColor reserved",
    ),
    "CUDA_MEMCPY3D": (texture.CopyDescription, "srcXInBytes dstXInBytes WidthInBytes Height Depth"),
}
ENDS = "{0}XInBytes {0}MemoryType {0}Host {0}Device {0}Array {1} {0}Pitch {0}Height"
RECORDED = {
    "CUDA_ARRAY3D_DESCRIPTOR": [40, 0, 8, 16, 24, 28, 32],
    "CUDA_RESOURCE_DESC": [144, 0, 8, 16, 20, 24, 32, 40, 136],
    "CUDA_TEXTURE_DESC": [104, 0, 12, 16, 20, 24, 28, 40, 56],
    "CUDA_MEMCPY3D": [200, 0, 88, 176, 184, 192],
}
"""Of cuda.h 13: the size, then the offset of each field."""


def include_folder():
    spec = find_spec("nvidia")
    folders = [Path(place) / "cu13" / "include" for place in (spec.submodule_search_locations if spec else ())]
    return next((folder for folder in folders if (folder / "cuda.h").is_file()), None)


def ours(structure, names):
    fields = [field for field, name in zip(structure._fields_, names.split(), strict=True) if name != "-"]
    return [ctypes.sizeof(structure), *(getattr(structure, name).offset for name, _ in fields)]


@pytest.mark.parametrize("name", LAYOUTS)
def test_structures_lie_as_the_driver_reads_them(name):
    assert ours(*LAYOUTS[name]) == RECORDED[name]


def test_both_ends_of_a_copy_lie_alike():
    assert ours(texture.CopyEnd, ENDS.format("src", "reserved0")) == [88, 0, 32, 40, 48, 56, 64, 72, 80]


@pytest.mark.skipif(include_folder() is None, reason="needs cuda.h (the wheel nvidia-cuda-runtime)")
def test_the_recorded_layouts_are_those_of_cuda_h(tmp_path):
    asked = {
        name: [f"sizeof({name})", *(f"offsetof({name}, {field})" for field in fields.split() if field != "-")]
        for name, (_, fields) in LAYOUTS.items()
    }
    ends = [f"offsetof(CUDA_MEMCPY3D, {field})" for field in ENDS.format("src", "reserved0").split()]
    ends += [f"offsetof(CUDA_MEMCPY3D, {field}) - 88" for field in ENDS.format("dst", "reserved1").split()]
    numbers = [number for each in asked.values() for number in each] + ends
    values = [value for each in RECORDED.values() for value in each] + [0, 32, 40, 48, 56, 64, 72, 80] * 2
    checks = "".join(f'static_assert({n} == {v}, "{n}");\n' for n, v in zip(numbers, values, strict=True))
    source = tmp_path / "layout.cpp"
    source.write_text("#include <cuda.h>\n#include <stddef.h>\n" + checks)
    command = [*find_compiler().command, "-fsyntax-only", "-std=c++17", f"-I{include_folder()}", str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


GEMM = catalogue().get("gemm")
TENSORS = {tensor.name: tensor for tensor in GEMM.tensors}


def fields(name, box, dtype="bfloat16", options=None, **shape):
    """What the driver is told of gemm's argument."""
    return MapFields.of(TensorMap(name, box), TENSORS[name], GEMM.problem(shape, dtype, options or {}))


def test_axes_go_from_the_innermost_and_strides_are_in_bytes():
    told = fields("A", (1, 128, 64), m=300, n=64, k=200)
    assert told.sizes == (200, 300, 1)
    assert told.strides_bytes == (400, 300 * 400)
    assert told.box == (64, 128, 1)
    assert (told.data_type, told.swizzle) == (9, 3)  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, _SWIZZLE_128B


def test_a_transposed_operand_is_named_as_it_is_stored():
    assert fields("A", (1, 64, 64), options={"trans_a": True}, m=304, n=64, k=200).sizes == (304, 200, 1)


def test_views_and_batches_keep_their_strides():
    told = fields("C", (1, 16, 64), m=30, n=40, k=64, batch=5, ldc=48, stride_c=2000)
    assert (told.sizes, told.strides_bytes) == ((40, 30, 5), (96, 4000))
    taking_turns = fields("C", (1, 16, 64), m=30, n=40, k=64, batch=5, ldc=400, stride_c=48)
    assert taking_turns.strides_bytes == (800, 96)


def test_a_matrix_that_all_products_share_is_one():
    told = fields("B", (1, 64, 64), m=64, n=72, k=64, batch=9, stride_b=0)
    assert told.sizes == (72, 64, 1)


def test_a_single_row_needs_no_stride_of_its_own():
    assert fields("A", (1, 64, 64), m=1, n=64, k=104).strides_bytes == (208, 208)


def test_each_tensor_has_its_own_type():
    told = fields("C", (1, 16, 32), dtype="float16", options={"output": "float32"}, m=64, n=36, k=64)
    assert (told.data_type, told.strides_bytes[0]) == (7, 144)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT32


def test_rows_that_begin_between_16_bytes_are_refused():
    with pytest.raises(TunerError, match=r"^A of gemm .*: 100 bytes from a row to the next suit no tensor map"):
        fields("A", (1, 64, 64), m=64, n=64, k=50)


def test_parameters_are_aligned_as_the_driver_asks():
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64}, "float16")
    cells = MapCells(GEMM, problem, [TensorMap(name, (1, 64, 64)) for name in "ABC"])
    assert [place % 64 for place in cells.places] == [0, 0, 0]


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

"""Programs that launch an answer with the launcher for applications, one for each framework that makes arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernels.dtypes import HALF, is_integer, sum_dtype
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.service.dashboard import formatting
from tilewright.service.operations.catalog import options_that_differ


@dataclass(frozen=True)
class Framework:
    """How a framework makes arrays; `{shape}` and `{dtype}` are filled in.

    Where it draws no half types, `values` says where they are rounded from float32: `{rounded}`.
    """

    name: str
    imports: str
    values: str
    zeros: str
    is_on_gpu: bool = True


FRAMEWORKS = (
    Framework(
        "PyTorch",
        "import torch",
        'torch.randn({shape}, device="cuda", dtype=torch.{dtype})',
        'torch.zeros({shape}, device="cuda", dtype=torch.{dtype})',
    ),
    Framework(
        "CuPy",
        "import cupy",
        "cupy.random.standard_normal({shape}, dtype=cupy.{dtype}){rounded}",
        "cupy.zeros({shape}, dtype={type})",
    ),
    Framework(
        "PyCUDA",
        "import numpy\nimport pycuda.autoinit  # makes a context\nfrom pycuda import gpuarray",
        "gpuarray.to_gpu(numpy.random.default_rng(0).standard_normal({shape}, dtype=numpy.{dtype}){rounded})",
        "gpuarray.zeros({shape}, {type})",
    ),
    Framework(
        "NumPy",
        "import numpy",
        "numpy.random.default_rng(0).standard_normal({shape}, dtype=numpy.{dtype}){rounded}",
        "numpy.zeros({shape}, dtype={type})",
        is_on_gpu=False,
    ),
)


def launches(kernel: Kernel, problem: Problem, base_url: str) -> Mapping[str, str]:
    """A program for each framework, by what its heading says."""
    return {
        framework.name if framework.is_on_gpu else f"{framework.name}, on the CPU": _launch(
            framework, kernel, problem, base_url
        )
        for framework in FRAMEWORKS
        if framework.is_on_gpu or not kernel.is_triton  # which are launched on GPUs only
    }


def _launch(framework: Framework, kernel: Kernel, problem: Problem, base_url: str) -> str:
    arrays = []
    for tensor in kernel.tensors:
        dtype = tensor.dtype_for(problem)  # nobody draws integers: most are indices or counts
        make = framework.zeros if tensor.role != "input" or is_integer(dtype) else framework.values
        arrays.append(f"{tensor.name} = {_made(framework, make, tensor.shape(problem), dtype)}")
    imports = [framework.imports]
    imports += ["import ml_dtypes"] if any("ml_dtypes." in array for array in arrays) else []
    options = options_that_differ(problem)
    named = {
        **formatting.ordered_shape(problem),
        **({"dtype": problem.dtype} if problem.dtype != "float32" else {}),
        **options,
    }
    arguments = ", ".join([repr(kernel.name), *(f"{name}={value!r}" for name, value in named.items())])
    calls = ", ".join(tensor.name for tensor in kernel.tensors)
    return "\n".join(
        [
            f"# On another machine than the service's: TILEWRIGHT_URL={base_url}",
            *imports,
            "from tilewright.tuner.runtime import best",
            "",
            *arrays,
            f"launch = best({arguments})",
            f"launch({calls})",
            "",
        ]
    )


def _made(framework: Framework, make: str, shape: tuple[int, ...], dtype: str) -> str:
    """The code that makes an array; only PyTorch and ml_dtypes have a bfloat16."""
    name = "ml_dtypes.bfloat16" if dtype == "bfloat16" else f"{framework.imports.split()[1]}.{dtype}"
    if "{rounded}" not in make:
        return make.format(shape=shape, dtype=dtype, type=name)
    rounded = f".astype({name})" if dtype in HALF else ""
    return make.format(shape=shape, dtype=sum_dtype(dtype), rounded=rounded)

"""An answer as complete commands and programs to copy: curl, the Python client, a PyCUDA launch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent

from tilewright.kernels.dtypes import HALF, is_integer, sum_dtype
from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.sources.source import defined_by
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import OPTIONS, function_of
from tilewright.service.dashboard import formatting
from tilewright.service.operations.answers import BestAnswer, TunedFor
from tilewright.service.operations.catalog import options_that_differ
from tilewright.service.operations.registry import catalogue


def curl(base_url: str, path: str) -> str:
    """The request as a curl command."""
    return f"curl {shlex.quote(base_url + path)}"


def python_client(base_url: str, answer: BestAnswer, device_model: str) -> str:
    """The request as a program that uses the Python client."""
    problem = answer.problem
    return dedent(
        f"""\
        from tilewright.service.client import Client

        with Client({base_url!r}) as client:
            best = client.best(
                kernel={problem.kernel!r},
                device_model={device_model!r},
                shape={formatting.ordered_shape(problem)!r},
                dtype={problem.dtype!r},
                options={dict(problem.options)!r},
            )
        print(best.match, best.variant, best.configuration, best.launch, best.flags)
        """
    )


def filled_source(source: str, answer: BestAnswer) -> str:
    """The source with the macros of problem and configuration defined at the top; of a Triton source in a comment."""
    line = "# {} = {}\n" if catalogue().get(answer.problem.kernel).is_triton else "#define {} {}\n"
    return "".join(line.format(name, value) for name, value in defined_by(answer.flags).items()) + "\n" + source


def pycuda_launch(kernel: Kernel, answer: BestAnswer, compute_capability: str) -> str:
    """A program that compiles the filled source, allocates every argument and launches once."""
    if "<" in kernel.entry:
        return f"# PyCUDA finds no instance of a template by name: launch {kernel.entry} by tilewright.tuner.runtime\n"
    if kernel.textures:
        names = ", ".join(tensor.name for tensor in kernel.textures)
        return f"# PyCUDA makes no texture objects: make those of {names} by CUDA itself, and pass them as np.uint64\n"
    problem = kernel.problem(answer.problem.shape, answer.problem.dtype, answer.problem.options)
    variant = kernel.variant(answer.variant)
    configuration = Configuration.of(answer.variant, answer.configuration)
    if variant.tensor_maps(configuration.values, problem):
        return f"# PyCUDA passes no tensor maps: launch {kernel.entry} by tilewright.tuner.runtime\n"
    allocations, arguments, constants = [], [], ""
    for argument in kernel.arguments:
        if isinstance(argument, Scalar):
            arguments.append(f"np.{argument.dtype_for(problem)}({argument.number(problem)!r})")
            continue
        layout = argument.layout(problem)
        lies = "row-major" if layout.is_dense else f"strides {layout.strides} in elements"
        size = argument.size_bytes(problem)
        allocations.append(f"{argument.name} = driver.mem_alloc({size})  # {argument.role}, {layout.shape}, {lies}")
        if argument.symbol:
            constants += f"driver.memcpy_dtod(module.get_global({argument.symbol!r})[0], {argument.name}, {size})\n"
        else:
            arguments.append(argument.name)
    workspace_bytes = variant.workspace_bytes(configuration.values, problem)
    if workspace_bytes:
        allocations.append(f"workspace = driver.mem_alloc({workspace_bytes})")
        allocations.append(f"driver.memset_d8(workspace, 0, {workspace_bytes})  # zero before the first launch")
        arguments.append("workspace")
    arch = f"sm_{compute_capability.replace('.', '')}{variant.architecture_suffix}"
    own = [flag for flag in kernel.flags if not flag.startswith("-D")]  # those are in the source
    attribute = "driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES"
    lines = f"""\
import numpy as np
import pycuda.autoinit  # makes a context
from pycuda import driver
from pycuda.compiler import SourceModule

source = open("{kernel.name}.cu", encoding="utf-8").read()  # the source of this page
module = SourceModule(source, options={json.dumps(["-std=c++17", *own])}, no_extern_c=True, arch={arch!r})
"""
    calls = ""
    for entry, each in variant.launches(kernel.entry, configuration.values, problem):
        lines += f"{entry} = module.get_function({entry!r})\n"
        if each.shared_bytes:
            lines += f"{entry}.set_attribute({attribute}, {each.shared_bytes})\n"
        calls += f"{entry}({', '.join(arguments)}, block={each.block}, grid={each.grid}, shared={each.shared_bytes})\n"
    calls += "pycuda.autoinit.context.synchronize()\n"
    return lines + "\n" + "\n".join(allocations) + "\n\n" + constants + calls


def triton_launch(kernel: Kernel, answer: BestAnswer) -> str:
    """A program that launches the function of the source once, by Triton itself."""
    problem = kernel.problem(answer.problem.shape, answer.problem.dtype, answer.problem.options)
    variant, values = kernel.variant(answer.variant), Configuration.of(answer.variant, answer.configuration)
    module = variant.source.removesuffix(".py")
    function = function_of(kernel.source(variant.name), kernel.entry)
    definitions = kernel.definitions(problem, values)
    names = [*(function.constexprs if function else ()), *(name for name in OPTIONS if name in answer.configuration)]
    given = [f"{name}={definitions[name]}" for name in names if name in definitions and name != "REAL"]
    if function and "REAL" in function.constexprs:
        given.append(f"REAL=tl.{problem.dtype}")
    arguments = [a.name if isinstance(a, Tensor) else repr(a.number(problem)) for a in kernel.arguments]
    arrays = (
        f'{t.name} = torch.zeros({tuple(t.shape(problem))}, device="cuda", dtype=torch.{t.dtype_for(problem)})'
        for t in kernel.tensors
    )
    return "\n".join(
        [
            "import torch",
            *(["import triton.language as tl"] if function and "REAL" in function.constexprs else []),
            f"from {module} import {kernel.entry}  # the source of this page, as {variant.source}",
            "",
            *arrays,
            f"{kernel.entry}[{answer.launch.grid}]({', '.join([*arguments, *given])})",
            "",
        ]
    )


def tune_command(problem: TunedFor | Problem, device_model: str | None, variant: str | None = None) -> str:
    """The command that tunes exactly this problem or family, perhaps on one device model or with one variant."""
    command = ["tilewright", "tune", problem.kernel, "--shape", formatting.shape_text(problem)]
    if problem.dtype != "float32":
        command += ["--dtype", problem.dtype]
    for option in filter(None, formatting.unusual_options(problem).split(",")):
        command += ["--option", option]
    command += ["--device-model", device_model] if device_model else []
    return shlex.join([*command, "--variant", variant] if variant else command)


def tune_example(kernel: str, device_model: str | None = None) -> str | None:
    """The command that tunes the kernel's example; None if this server does not have the kernel."""
    declared = catalogue().by_name.get(kernel)
    return tune_command(declared.problem(declared.example_shape), device_model) if declared else None


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

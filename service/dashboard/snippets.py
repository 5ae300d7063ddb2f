"""An answer as complete commands and programs to copy: curl, the Python client, a PyCUDA launch."""

from __future__ import annotations

import json
import shlex
from textwrap import dedent

from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.source import defined_by
from tilewright.kernels.space import Configuration
from tilewright.kernels.triton import OPTIONS, function_of
from tilewright.service.dashboard import formatting
from tilewright.service.operations.answers import BestAnswer, TunedFor
from tilewright.service.operations.registry import catalogue


def curl(base_url: str, path: str) -> str:
    """The request as a curl command."""
    return f"curl {shlex.quote(base_url + path)}"


def python_client(base_url: str, answer: BestAnswer, device_model: str) -> str:
    """The same request as a program with the Python client."""
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

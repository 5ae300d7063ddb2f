"""An answer as complete commands and programs to copy: curl, the Python client, a PyCUDA launch."""

from __future__ import annotations

import math
import shlex
from textwrap import dedent, indent

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.dashboard import words
from tilewright.service.operations.answers import BestAnswer, ProblemAnswer
from tilewright.service.operations.parse import format_shape
from tilewright.service.operations.registry import catalogue

ELEMENT_BYTES = {"float32": 4, "float64": 8}


def curl(base_url: str, path: str) -> str:
    """The request as a curl command."""
    return f"curl {shlex.quote(base_url + path)}"


def python_client(base_url: str, answer: BestAnswer) -> str:
    """The same request as a program with the Python client."""
    problem = answer.problem
    return dedent(
        f"""\
        from tilewright.service.client import Client

        with Client({base_url!r}) as client:
            best = client.best(
                kernel={problem.kernel!r},
                device_model={answer.device_model!r},
                shape={dict(problem.shape)!r},
                dtype={problem.dtype!r},
                options={dict(problem.options)!r},
            )
        print(best.match, best.variant, best.configuration, best.launch, best.flags)
        """
    )


def filled_source(source: str, answer: BestAnswer) -> str:
    """The source with all macros of the problem and configuration defined at the top."""
    pairs = (flag.removeprefix("-D").partition("=") for flag in answer.flags)
    return "".join(f"#define {name} {value}\n" for name, _, value in pairs) + "\n" + source


def pycuda_launch(kernel: Kernel, answer: BestAnswer, compute_capability: str) -> str:
    """A program that compiles the filled source, allocates every argument and launches once."""
    problem = kernel.problem(answer.problem.shape, answer.problem.dtype, answer.problem.options)
    variant = kernel.variant(answer.variant)
    configuration = Configuration.of(answer.variant, answer.configuration)
    real = {"float32": "np.float32", "float64": "np.float64"}[problem.dtype]
    allocations, arguments = [], []
    for argument in kernel.arguments:
        if isinstance(argument, Scalar):
            arguments.append(f"{real}({float(argument.value(problem))!r})")
            continue
        shape = argument.shape(problem)
        size = math.prod(shape) * ELEMENT_BYTES[problem.dtype]
        allocations.append(f"{argument.name} = driver.mem_alloc({size})  # {argument.role}, {shape}, row-major")
        arguments.append(argument.name)
    workspace_bytes = variant.workspace_bytes(configuration.values, problem)
    if workspace_bytes:
        allocations.append(f"workspace = driver.mem_alloc({workspace_bytes})")
        allocations.append(f"driver.memset_d8(workspace, 0, {workspace_bytes})  # zero before the first launch")
        arguments.append("workspace")
    arch = f"sm_{compute_capability.replace('.', '')}{variant.architecture_suffix}"
    attribute = "driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES"
    lines = f"""\
import numpy as np
import pycuda.autoinit  # makes a context
from pycuda import driver
from pycuda.compiler import SourceModule

source = open("{kernel.name}.cu", encoding="utf-8").read()  # the source of this page
module = SourceModule(source, options=["-std=c++17"], no_extern_c=True, arch={arch!r})
"""
    calls = ""
    for entry, each in variant.launches(kernel.entry, configuration.values, problem):
        lines += f"{entry} = module.get_function({entry!r})\n"
        if each.shared_bytes:
            lines += f"{entry}.set_attribute({attribute}, {each.shared_bytes})\n"
        calls += f"{entry}({', '.join(arguments)}, block={each.block}, grid={each.grid}, shared={each.shared_bytes})\n"
    call = calls + "pycuda.autoinit.context.synchronize()\n"
    return lines.rstrip() + "\n\n" + indent("\n".join(allocations), "") + "\n\n" + call


def tune_command(problem: ProblemAnswer | Problem, device_model: str | None, variant: str | None = None) -> str:
    """The command that tunes exactly this problem, perhaps on one device model or with one variant."""
    command = ["tilewright", "tune", problem.kernel, "--shape", format_shape(words.ordered_shape(problem))]
    if problem.dtype != "float32":
        command += ["--dtype", problem.dtype]
    for option in filter(None, words.unusual_options(problem).split(",")):
        command += ["--option", option]
    command += ["--device-model", device_model] if device_model else []
    return shlex.join([*command, "--variant", variant] if variant else command)


def tune_example(kernel: str, device_model: str | None = None) -> str | None:
    """The command that tunes the kernel's example; None if this server does not have the kernel."""
    declared = catalogue().by_name.get(kernel)
    return tune_command(declared.problem(declared.example_shape), device_model) if declared else None

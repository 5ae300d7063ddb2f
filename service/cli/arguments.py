"""Arguments that several commands take, and the request for a job made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.parse import OPTIONS_EXAMPLE, SHAPE_EXAMPLE, format_options, format_shape

if TYPE_CHECKING:
    from tilewright.service.operations.answers import TunedFor
    from tilewright.service.operations.requests import JobRequest, StartRequest

DEFAULT_TRIALS = 100


class CompilerName(StrEnum):
    """The compilers of CUDA devices."""

    NVRTC = "nvrtc"
    PYCUDA = "pycuda"


KernelArgument = Annotated[
    str, typer.Argument(metavar="KERNEL", help="The kernel's name; list them: tilewright kernels")
]
ShapeOption = Annotated[str, typer.Option("--shape", metavar="M=…,N=…", help=f"Axis sizes, like {SHAPE_EXAMPLE}.")]
DtypeOption = Annotated[
    str,
    typer.Option("--dtype", help="Element type, such as float32 or bfloat16."),
]
KernelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="NAME=VALUE", help=f"An option of the kernel, like {OPTIONS_EXAMPLE}; repeatable."
    ),
]
TrialsOption = Annotated[int | None, typer.Option("--trials", help="Trials of each job.")]
SecondsOption = Annotated[float | None, typer.Option("--seconds", help="Seconds of search of each job.")]
PriorityOption = Annotated[int, typer.Option("--priority", min=0, max=9, help="Higher goes first.")]


@dataclass(frozen=True)
class JobLimits:
    """The budget, variants, compiler and priority of a job, as typed."""

    trials: int | None = None
    seconds: float | None = None
    target_ms: float | None = None
    variants: Sequence[str] = ()
    compiler: CompilerName | None = None
    priority: int = DEFAULT_PRIORITY
    starts: Sequence[StartRequest] = ()

    def budget(self) -> dict[str, float | None]:
        """The budget; 100 trials if none was given."""
        nothing = self.trials is None and self.seconds is None and self.target_ms is None
        trials = DEFAULT_TRIALS if nothing else self.trials
        return {"trials": trials, "seconds": self.seconds, "target_ms": self.target_ms}

    def as_json(self) -> dict[str, Any]:
        """The fields of a request for a job or a schedule."""
        return {
            "budget": self.budget(),
            "variants": list(self.variants) or None,
            "compiler": self.compiler.value if self.compiler else None,
            "priority": self.priority,
        }


def job_request(
    problem: TunedFor, limits: JobLimits, *, device: str | None = None, device_model: str | None = None
) -> JobRequest:
    """The checked request; raises pydantic.ValidationError naming the field."""
    from tilewright.service.operations.requests import JobRequest

    return JobRequest.model_validate(
        {
            **problem.model_dump(),
            **limits.as_json(),
            "device": device,
            "device_model": device_model,
            "starts": list(limits.starts) or None,
        }
    )


def describe(problem: TunedFor) -> str:
    """One line: `gemm m=256,n=100,k=784 float32`, with the options that are given."""
    from tilewright.service.operations.catalog import options_that_differ

    options = format_options(options_that_differ(problem))
    return " ".join(part for part in (problem.kernel, format_shape(problem.shape), problem.dtype, options) if part)

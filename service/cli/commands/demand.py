"""`demand` and `attention`: what is asked for and not tuned, where tuning is worthwhile, and its tuning."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.service.cli.arguments import JobLimits, PriorityOption, SecondsOption, TrialsOption, describe
from tilewright.service.cli.commands.results import KernelOption, LimitOption, ModelOption
from tilewright.service.cli.connection import connect
from tilewright.service.cli.output import JsonFlag, lists_by_default, print_json, print_table
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.views.attention_kind import AttentionKind

demand_app = typer.Typer(help="Demand: requested problems that are not tuned yet.")

ALL_TUNED = "Every requested problem has been tuned. (The API counts requests; commands are not counted.)"


@demand_app.command("list")
def list_demand(
    *, kernel: KernelOption = None, device_model: ModelOption = None, limit: LimitOption = 50, as_json: JsonFlag = False
) -> None:
    """List requested problems that are not tuned yet, the most requested first."""
    with connect() as connection:
        problems = connection.demand(kernel=kernel, device_model=device_model, limit=limit).items
    if as_json:
        print_json(problems)
        return
    print_table(
        ("requests", "problem", "device", "last"),
        [
            (one.count, describe(one.problem), one.device_model, f"{one.last_asked_at:%Y-%m-%d %H:%M}")
            for one in problems
        ],
        nothing=ALL_TUNED,
    )


lists_by_default(demand_app, list_demand)


@demand_app.command("tune")
def tune_demand(
    *,
    top: Annotated[
        int, typer.Option("--top", min=1, max=100, help="How many problems, the most requested first.")
    ] = 10,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    priority: PriorityOption = DEFAULT_PRIORITY,
    as_json: JsonFlag = False,
) -> None:
    """Queue a job for each of the most requested problems. The default budget is 100 trials each."""
    from tilewright.service.operations.requests import DemandJobs

    request = DemandJobs.model_validate({"budget": JobLimits(trials, seconds).budget(), "priority": priority})
    with connect() as connection:
        tuned = connection.tune_demand(request, top=top, kernel=kernel, device_model=device_model)
    if as_json:
        print_json(tuned)
        return
    print_table(
        ("requests", "problem", "device", "job"),
        [(one.count, describe(one.problem), one.device_model, one.job_id or one.refused) for one in tuned],
        nothing=ALL_TUNED,
    )


attention_app = typer.Typer(help="Attention: where tuning is worthwhile, with the reasons.")

KindOption = Annotated[AttentionKind | None, typer.Option("--kind", help="Only items with this reason.")]
NOTHING_TO_DO = "Nothing needs attention."


@attention_app.command("list")
def list_attention(
    *,
    kind: KindOption = None,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    limit: LimitOption = 50,
    as_json: JsonFlag = False,
) -> None:
    """List what needs attention with its reasons, the most worthwhile first."""
    from tilewright.service.operations.views.attention import AttentionFilter

    with connect() as connection:
        items = connection.attention(AttentionFilter(kind, kernel, device_model), limit=limit).items
    if as_json:
        print_json(items)
        return
    print_table(
        ("problem", "device", "requests", "may save", "why"),
        [
            (
                describe(one.problem),
                one.device_model,
                one.requests or "",
                "" if one.expected_gain is None else f"{one.expected_gain:.0%}",
                "; ".join(f"{reason.kind}: {reason.text}" for reason in one.reasons),
            )
            for one in items
        ],
        nothing=NOTHING_TO_DO,
    )


lists_by_default(attention_app, list_attention)


@attention_app.command("tune")
def tune_attention(
    *,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="How many, the most worthwhile first.")] = 10,
    kind: KindOption = None,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    priority: PriorityOption = DEFAULT_PRIORITY,
    as_json: JsonFlag = False,
) -> None:
    """Queue a job for each of the most worthwhile that a running worker serves. The default budget is 100 trials."""
    from tilewright.service.operations.requests import DemandJobs
    from tilewright.service.operations.views.attention import AttentionFilter

    request = DemandJobs.model_validate({"budget": JobLimits(trials, seconds).budget(), "priority": priority})
    with connect() as connection:
        tuned = connection.tune_attention(request, AttentionFilter(kind, kernel, device_model), top=top)
    if as_json:
        print_json(tuned)
        return
    print_table(
        ("problem", "device", "job"),
        [(describe(one.problem), one.device_model, one.job_id or one.refused) for one in tuned],
        nothing=NOTHING_TO_DO,
    )

"""The page to look up a configuration: a form, and the answer with everything needed to use it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.service.dashboard import formatting, snippets, views
from tilewright.service.dashboard.rendering import PageRoute, may, own_url, page
from tilewright.service.dashboard.snippets import launches
from tilewright.service.errors import CallerLeftError, InvalidRequestError, NoConfigurationError, NotFoundError
from tilewright.service.operations import DEFAULT_PRIORITY, catalog, registry
from tilewright.service.operations.answers import BestAnswer, DeviceModelAnswer, Match
from tilewright.service.operations.best.find import Asked
from tilewright.service.operations.best.results import settled
from tilewright.service.operations.best.tables import find_table
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.parse import format_shape, parse_open_shape, parse_options
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.shape_filter import shape_of
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]

TRIALS = 100
"""Trials of a job that the button requests, unless another number is written there; a request without a budget gets as
many."""

CALLER_LEFT = 499
"""Counted for a page whose visitor has closed the connection."""

HOW = {
    Match.EXACT: "Exact: this problem was tuned on this device model.",
    Match.RANGE: "Range: the table of this problem's family has this configuration here. The time is interpolated.",
    Match.PREDICTED: "Predicted from the trials of near shapes. This shape was never tuned; the time is an estimate.",
    Match.NEAREST: "Nearest: the configuration of the nearest tuned shape. The time is that shape's.",
    Match.TRANSFERRED: "Transferred: the configuration of the nearest shape tuned on a similar device model.",
    Match.ESTIMATED: "Estimated: no tuned shape is near. Of the known configurations this one should be fastest here.",
    Match.DEFAULT: "Default: no related result is known. The kernel's default configuration, not measured here.",
}


@router.get("/ask")
async def ask(
    request: Request,
    kernel: Text = None,
    device_model: Text = None,
    shape: Text = None,
    dtype: Text = None,
    options: Text = None,
) -> Response:
    """The form; with a shape, the answer below it; with a range of sizes the page of its table."""
    names = sorted(catalogue().by_name)
    chosen = catalogue().by_name.get(kernel or ("gemm" if "gemm" in names else names[0]))
    models = await run_in_threadpool(_models)
    slug = device_model or (models[0].slug if models else None)
    answer, refusal = None, None
    if shape and slug:
        try:
            query = (kernel or "gemm", slug, shape, dtype or "float32", options)
            if ".." in shape:
                return RedirectResponse(f"/tables/{await run_in_threadpool(_table_of, query)}", status_code=303)
            best = await _best(request, query)
            answer = await run_in_threadpool(_answer, request, best, slug, models)
        except CallerLeftError:
            return HTMLResponse(status_code=CALLER_LEFT)
        except (InvalidProblemError, InvalidRequestError, NoConfigurationError, NotFoundError) as error:
            refusal = str(error)
    return await run_in_threadpool(
        page,
        "ask.html",
        status=422 if refusal else 200,
        kernels=names,
        declared=chosen,
        example=format_shape(dict(chosen.example_shape)) if chosen else "",
        models=models,
        chosen={"kernel": kernel or (chosen.name if chosen else ""), "device_model": slug, "shape": shape}
        | {"dtype": dtype or "float32", "options": options},
        answer=answer,
        refusal=refusal,
        can_tune=may(request, Scope.TUNE),
        trials=TRIALS,
        priority=DEFAULT_PRIORITY,
    )


def _models() -> list[DeviceModelAnswer]:
    with transaction() as session:
        return sorted(registry.device_models(session), key=lambda model: (model.kind == "cpu", model.slug))


def _table_of(query: tuple[str, str, str, str, str | None]) -> int | None:
    """The id of the family's table; raises like `find_table`."""
    name, slug, shape, dtype, options = query
    declared = catalog.kernel_named(name)
    family = Family.of(declared, parse_open_shape(shape), dtype, parse_options(options))
    with transaction() as session:
        return find_table(session, declared, family, slug).id


async def _best(request: Request, query: tuple[str, str, str, str, str | None]) -> BestAnswer:
    """The answer; raises like `find_best`."""
    name, slug, shape, dtype, options = query
    sizes = shape_of(shape, catalog.kernel_named(name).axes)
    asked = await run_in_threadpool(Asked.of, name, slug, [sizes], dtype, parse_options(options))
    answers = await request.app.state.answered(request, asked)
    return BestAnswer.model_validate_json(answers[0].as_json)


def _answer(request: Request, best: BestAnswer, slug: str, models: list[DeviceModelAnswer]) -> dict[str, Any]:
    """The answer as the page shows it, with its source and its snippets."""
    name = best.problem.kernel
    declared = catalog.kernel_named(name)
    is_exact = best.match is Match.EXACT and best.study_id is not None
    with transaction() as session:
        source = catalog.source(
            session,
            name,
            best.variant,
            best.problem.shape,
            best.problem.dtype,
            best.problem.options,
            values=best.configuration,
            source_hash=best.source_hash,
        )
        found = settled(session, best.study_id) if is_exact and best.study_id is not None else None
        devices = registry.devices(session)
    base_url = own_url(request)
    path = views.best_path(best.problem, slug)
    model = next((model for model in models if model.slug == slug), None)
    return {
        "best": best,
        "device_model": slug,
        "how": _how(best),
        "whose": _whose(best, slug),
        "slowdown": found.slowdown if found else None,
        "configuration": formatting.configuration(name, best.variant, best.configuration),
        "path": path,
        "source": snippets.filled_source(source.source, best),
        "curl": snippets.curl(base_url, path),
        "client": snippets.python_client(base_url, best, slug),
        "launches": launches(
            declared, declared.problem(best.problem.shape, best.problem.dtype, best.problem.options), base_url
        ),
        "own_program": _own_program(declared, best, model),
        "command": snippets.tune_command(best.problem, slug),
        "job": best.problem.model_dump(mode="json") | {"device_model": slug},
        "is_served": any(device.alive for device in devices if device.model == slug),
        "study_path": f"/studies/{best.study_id}" if best.study_id is not None else None,
    }


def _how(best: BestAnswer) -> str:
    """A sentence on how the answer was found."""
    how = HOW[best.match] if best.shipped is None else _from_shipped(best)
    return f"{how} A prediction is being computed: look it up again in some seconds." if best.pending else how


def _from_shipped(best: BestAnswer) -> str:
    """A sentence on how an answer from shipped records was found."""
    if best.match is Match.TRANSFERRED:
        return f"Transferred from {best.shipped}, for want of any of this device model. Nothing was measured here."
    return f"Predicted from {best.shipped}. This shape was never tuned here; the time is an estimate."


def _own_program(kernel: Kernel, best: BestAnswer, model: DeviceModelAnswer | None) -> tuple[str, str] | None:
    """The title and the text of a program that launches the source without the launcher; None for a CPU device."""
    if model is None or model.kind == "cpu":
        return None
    if kernel.is_triton:
        return "Triton", snippets.triton_launch(kernel, best)
    return "PyCUDA", snippets.pycuda_launch(kernel, best, model.compute_capability)


def _whose(best: BestAnswer, slug: str) -> str | None:
    """The other problem and device model whose measured figures are shown; None for the answer's own."""
    if best.tuned_problem is None or best.match is Match.PREDICTED or best.shipped is not None:
        return None
    there = formatting.problem_text(best.tuned_problem)
    return there if best.device_model == slug else f"{there} on {best.device_model}"

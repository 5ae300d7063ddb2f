"""The page to look up a configuration: a form, and the answer with everything needed to use it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.service.dashboard import snippets, views, words
from tilewright.service.dashboard.rendering import PageRoute, own_url, page
from tilewright.service.errors import InvalidRequestError, NoConfigurationError, NotFoundError
from tilewright.service.operations import catalog, registry
from tilewright.service.operations.answers import BestAnswer, DeviceModelAnswer, Match
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.parse import format_shape, parse_options, parse_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]

HOW = {
    Match.EXACT: "Exact: this problem was tuned on this device model.",
    Match.PREDICTED: "Predicted from the trials of near shapes. This shape was never tuned; the time is an estimate.",
    Match.NEAREST: "Nearest: the configuration of the nearest tuned shape. The time is that shape's.",
    Match.TRANSFERRED: "Transferred: the configuration of the nearest shape tuned on a similar device model.",
    Match.ESTIMATED: "Estimated: no tuned shape is near. Of the known configurations this one should be fastest here.",
    Match.DEFAULT: "Default: no related result is known. The kernel's default configuration, not measured here.",
}


@router.get("/ask")
def ask(
    request: Request,
    kernel: Text = None,
    device_model: Text = None,
    shape: Text = None,
    dtype: Text = None,
    options: Text = None,
) -> HTMLResponse:
    """The form; with a shape, the answer below it."""
    names = sorted(catalogue().by_name)
    chosen = catalogue().by_name.get(kernel or ("gemm" if "gemm" in names else names[0]))
    with transaction() as session:
        models = sorted(registry.device_models(session), key=lambda model: (model.kind == "cpu", model.slug))
        slug = device_model or (models[0].slug if models else None)
        answer, refusal = None, None
        if shape and slug:
            try:
                answer = _answer(session, request, (kernel or "gemm", slug, shape, dtype or "float32", options), models)
            except (InvalidProblemError, InvalidRequestError, NoConfigurationError, NotFoundError) as error:
                refusal = str(error)
    return page(
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
    )


def _answer(
    session: Session,
    request: Request,
    query: tuple[str, str, str, str, str | None],
    models: list[DeviceModelAnswer],
) -> dict[str, Any]:
    """The answer, its source and its snippets; raises like `find_best`."""
    name, slug, shape, dtype, options = query
    best = find_best(session, name, slug, parse_shape(shape), dtype, parse_options(options))
    declared = catalog.kernel_named(name)
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
    base_url = own_url(request)
    path = _path(best)
    model = next((model for model in models if model.slug == slug), None)
    return {
        "best": best,
        "how": HOW[best.match],
        "configuration": words.configuration(name, best.variant, best.configuration),
        "path": path,
        "source": snippets.filled_source(source.source, best),
        "curl": snippets.curl(base_url, path),
        "client": snippets.python_client(base_url, best),
        "pycuda": _pycuda(declared, best, model),
        "command": snippets.tune_command(best.problem, best.device_model),
        "study_path": f"/studies/{best.study_id}" if best.study_id is not None else None,
    }


def _pycuda(kernel: Kernel, best: BestAnswer, model: DeviceModelAnswer | None) -> str | None:
    """The PyCUDA program for a GPU; None for a CPU device, which runs no CUDA."""
    if model is None or model.kind == "cpu":
        return None
    return snippets.pycuda_launch(kernel, best, model.compute_capability)


def _path(best: BestAnswer) -> str:
    query = {
        "device_model": best.device_model,
        "shape": format_shape(words.ordered_shape(best.problem)),
        "dtype": best.problem.dtype,
        "options": words.unusual_options(best.problem),
    }
    return views.plain_address(f"/v1/kernels/{best.problem.kernel}/best", query)

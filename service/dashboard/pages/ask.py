"""Ask for a configuration as an application would: a form, and the answer with everything that one needs to use it."""

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
    Match.EXACT: "Exact: this very problem was tuned on this device model.",
    Match.PREDICTED: "Predicted from the trials of near shapes; this one was never tuned; its time is expected.",
    Match.NEAREST: "Nearest: the configuration of the nearest tuned shape; its time is of that shape.",
    Match.TRANSFERRED: "Transferred: the configuration of the nearest shape tuned on a similar device model.",
    Match.ESTIMATED: "Estimated: every tuned shape is far; of their configurations this one should be fastest here.",
    Match.DEFAULT: "Default: nothing near is known. The kernel's own default configuration, never measured for this.",
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
    asked: tuple[str, str, str, str, str | None],
    models: list[DeviceModelAnswer],
) -> dict[str, Any]:
    """The answer, its source and its snippets; raises like `find_best`."""
    name, slug, shape, dtype, options = asked
    found = find_best(session, name, slug, parse_shape(shape), dtype, parse_options(options))
    declared = catalog.kernel_named(name)
    source = catalog.source(
        session,
        name,
        found.variant,
        found.problem.shape,
        found.problem.dtype,
        found.problem.options,
        values=found.configuration,
        source_hash=found.source_hash,
    )
    base_url = own_url(request)
    path = _path(found)
    model = next((model for model in models if model.slug == slug), None)
    return {
        "best": found,
        "how": HOW[found.match],
        "configuration": words.configuration(name, found.variant, found.configuration),
        "path": path,
        "source": snippets.filled_source(source.source, found),
        "curl": snippets.curl(base_url, path),
        "client": snippets.python_client(base_url, found),
        "pycuda": _pycuda(declared, found, model),
        "command": snippets.tune_command(found.problem, found.device_model),
        "study_path": f"/studies/{found.study_id}" if found.study_id is not None else None,
    }


def _pycuda(kernel: Kernel, found: BestAnswer, model: DeviceModelAnswer | None) -> str | None:
    """The launch for a GPU; a CPU device runs no CUDA."""
    if model is None or model.kind == "cpu":
        return None
    return snippets.pycuda_launch(kernel, found, model.compute_capability)


def _path(found: BestAnswer) -> str:
    query = {
        "device_model": found.device_model,
        "shape": format_shape(words.ordered_shape(found.problem)),
        "dtype": found.problem.dtype,
        "options": words.unusual_options(found.problem),
    }
    return views.plain_address(f"/v1/kernels/{found.problem.kernel}/best", query)

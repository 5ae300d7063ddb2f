"""The page of attention: what is stale, regressed, improvable, behind, failing or requested, and its tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.pages.demand import TOP, TRIALS
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.dashboard.tables import Sort, TableOrder
from tilewright.service.operations import DEFAULT_PRIORITY, registry
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.attention import AttentionFilter, AttentionItem, attention, weight
from tilewright.service.operations.views.attention_kind import AttentionKind
from tilewright.service.operations.views.attention_rows import STAND_IN, Pair

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN = 50

KINDS = {
    AttentionKind.FAILING: ("\N{BALLOT X}", "whose last job failed"),
    AttentionKind.REGRESSED: ("\N{SOUTH EAST ARROW}", "slower than the best before them, beyond the noise"),
    AttentionKind.BEHIND: ("\N{BLACK DOWN-POINTING TRIANGLE}", "slower than the library, beyond the noise"),
    AttentionKind.REQUESTED: ("?", "requested and not tuned"),
    AttentionKind.STALE: ("\N{CLOCKWISE OPEN CIRCLE ARROW}", "whose source, driver or compiler changed since"),
    AttentionKind.IMPROVABLE: ("+", "with variants that were not tried"),
}
"""A mark and a meaning of each, the most urgent first."""

COLUMNS = {
    "worth": True,
    "problem": False,
    "model": False,
    "why": False,
    "requests": True,
    "gain": True,
}
VALUES: Mapping[str, Callable[[Pair], Any]] = {
    "worth": weight,
    "problem": lambda pair: formatting.sort_key(pair.problem),
    "model": lambda pair: pair.device_model,
    "why": lambda pair: min(list(KINDS).index(reason.kind) for reason in pair.reasons),
    "requests": lambda pair: pair.requests or None,
    "gain": lambda pair: pair.gain,
}
"""The sortable columns of the table; the most worthwhile row comes first."""

LEAST = ("0.02", "0.05", "0.1", "0.2")
"""The regressions that can be hidden: those by less than this share."""

Name = Annotated[str | None, Query(max_length=128)]


@router.get("/attention")
def attention_list(
    request: Request,
    *,
    kind: AttentionKind | Annotated[str, Query(max_length=0)] | None = None,
    kernel: Name = None,
    device_model: Name = None,
    least_slowdown: Annotated[str | None, Query(max_length=8)] = None,
    sort: Sort = None,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """The page of problems that need attention, the most worthwhile first, each with its reasons and a button to tune
    it.
    """
    chosen = kind if isinstance(kind, AttentionKind) else None
    least = least_slowdown if least_slowdown in LEAST else None
    filters = {"kind": chosen, "kernel": kernel or None, "device_model": device_model or None, "least_slowdown": least}
    order = TableOrder.of(sort, COLUMNS, lambda text: address("/attention", filters | {"sort": text}))
    sorted_by = {"sort": order.text if sort else None}
    with transaction() as session:
        models = registry.device_models(session)
        found = attention(
            session,
            AttentionFilter(chosen, kernel or None, device_model or None, float(least) if least else None),
            limit=SHOWN,
            cursor=cursor or None,
            known=request.app.state.best,
            ordered=(lambda pairs: order.sorted(pairs, VALUES[order.column])) if sort else None,
        )
    others = {name: value for name, value in filters.items() if name != "kind"} | sorted_by
    return page(
        "attention.html",
        chosen=filters,
        order=order,
        sort=sorted_by["sort"],
        is_filtered=any(filters.values()),
        kernels=sorted(catalogue().by_name),
        models=models,
        kinds=KINDS,
        least=LEAST,
        counts=[(one, found.counts[one], address("/attention", others | {"kind": one.value})) for one in KINDS],
        rows=[_line(item) for item in found.items],
        total=found.total,
        has_stand_in=any(model.kind == STAND_IN for model in models),
        can_tune=may(request, Scope.TUNE),
        top=TOP,
        trials=TRIALS,
        priority=DEFAULT_PRIORITY,
        source=address("/attention", filters | sorted_by | {"cursor": cursor}),
        data=address("/v1/attention", filters),
        first=address("/attention", filters | sorted_by) if cursor else None,
        next=address("/attention", filters | sorted_by | {"cursor": found.next_cursor}) if found.next_cursor else None,
    )


def _line(item: AttentionItem) -> dict[str, Any]:
    """One row of the table."""
    problem = item.problem
    return {
        "problem": problem,
        "device_model": item.device_model,
        "reasons": [(KINDS[reason.kind][0], reason.kind.value, reason.text) for reason in item.reasons],
        "requests": item.requests,
        "expected_gain": item.expected_gain,
        "job_path": f"/jobs/{item.job_id}" if item.job_id else None,
        "is_served": item.is_served,
        "body": problem.model_dump(mode="json") | {"device_model": item.device_model},
    }

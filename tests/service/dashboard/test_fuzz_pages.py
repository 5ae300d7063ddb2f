"""Every page with addresses that are meant to harm: shown or refused, never failed, and nothing of the inside told."""

from __future__ import annotations

import importlib
import pkgutil
from urllib.parse import quote

import pytest
from hostile import QUERIES, TEXTS

from tilewright.service.dashboard import pages
from tilewright.service.dashboard.rendering import PageRoute

INSIDE = ("Traceback", "sqlalchemy", "psycopg", "site-packages", "tilewright/service")
RIGHT = QUERIES | {"kernel": "gemm", "device_model": "nvidia-h200", "slug": "nvidia-h200", "schedule_id": "1"}


def page_routes() -> list[PageRoute]:
    modules = [importlib.import_module(f"{pages.__name__}.{m.name}") for m in pkgutil.iter_modules(pages.__path__)]
    routers = [module.router for module in modules if hasattr(module, "router")]
    found = {route.path: route for router in routers for route in router.routes if isinstance(route, PageRoute)}
    return list(found.values())


@pytest.mark.parametrize("texts_of", ["third", pytest.param("all", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("route", page_routes(), ids=lambda route: route.path)
def test_no_address_fails_a_page_or_tells_of_the_inside(client, commit, route, texts_of):
    """A parameter gets every third text, its neighbours the others; nightly each gets all."""

    def texts(place):
        return TEXTS if texts_of == "all" else TEXTS[place % 3 :: 3]

    best = commit(lambda rows: rows.trial_of(rows.best(library_ms=2.0)))
    right = RIGHT | {
        "name": "gemm",
        "job_id": str(best.job_id),
        "study_id": str(best.study_id),
        "number": "0",
        "table_id": "1",
        "variant": "naive",
    }
    named = [field.name for field in route.dependant.path_params]
    asked = {field.alias: right[field.alias] for field in route.dependant.query_params if field.alias in right}
    tried = [({}, {})]
    tried += [({name: text}, {}) for place, name in enumerate(named) for text in texts(place)]
    fields = route.dependant.query_params
    tried += [({}, {field.alias: text}) for place, field in enumerate(fields) for text in texts(place)]
    for parts, query in tried:
        path = route.path.format(**{name: quote(parts.get(name, right[name]), safe="") for name in named})
        answer = client.get(path, params=asked | query, headers={"Accept": "text/html"})
        assert answer.status_code < 500, (parts, query, answer.text)
        assert not any(word in answer.text for word in INSIDE), (parts, query)

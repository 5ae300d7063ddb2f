"""How long the first page's cells take: ten device models and two hundred shapes on an idle machine of two cores."""

import re
import time
from dataclasses import replace

import pytest
from factories import H200, SHAPE, Rows
from tuned_shapes import tune_four

from tilewright.service.api.missing_answers import MissingAnswers
from tilewright.service.app import create_app
from tilewright.service.operations.best_cache.watch import BestWatch
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.predict.predictor import Predictor

pytestmark = pytest.mark.exhaustive

MODELS, SHAPES, WITHIN_S, COLD_S, WARM_S = 10, 200, 30.0, 1.0, 0.3


@pytest.fixture
def many(client):
    """Two hundred shapes on the first model, a third of them on each of the others, which predict the rest."""
    own = [replace(H200, slug=f"nvidia-m{i}", name=f"NVIDIA Model {i}") for i in range(MODELS)]
    with transaction() as session:
        rows = Rows(session)
        for place, model in enumerate(own):
            tune_four(rows, model=model)
            for m in range(4, SHAPES) if place == 0 else range(4 + place % 3, SHAPES, 3):
                rows.best(SHAPE | {"m": 3 + 7 * m}, time_ms=m / 50, model=model, library_ms=m / 60)


def filled(client, page) -> tuple[float, float]:
    """Seconds until no cell is being computed, from the start of the parts of a server; and of the first page."""
    state = client.app.state
    parts = BestWatch(state.best), MissingAnswers(state.best, state.pool)
    began = time.monotonic()
    for part in parts:
        part.start()
    try:
        shown, first_s = page("/"), time.monotonic() - began
        while (left := re.search(r"([\d,]+) cells? being computed", shown)) or parts[1].under_way:
            assert time.monotonic() - began < WITHIN_S, left and left[0]
            time.sleep(0.5)
            shown = page("/")
        assert shown.count('<td class="cell') == MODELS * SHAPES
        return time.monotonic() - began, first_s
    finally:
        for part in parts:
            part.stop()


def test_all_cells_are_filled_within_half_a_minute_and_a_restart_fits_nothing(client, page, many, monkeypatch):
    filled(client, page)
    with transaction() as session:
        Rows(session).best(SHAPE | {"m": 5000}, time_ms=9.0)
    filled(client, page)
    monkeypatch.setattr(Predictor, "_fitted", None)
    routes, client.app = client.app.router, create_app()
    client.app.router = routes
    _, first_s = filled(client, page)
    began = time.monotonic()
    page("/")
    assert first_s < COLD_S
    assert time.monotonic() - began < WARM_S

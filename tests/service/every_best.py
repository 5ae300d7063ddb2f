"""Results of every kind that answers differ by."""

from factories import CPU, H100, NEW, OLD, SHAPE, TILED_32, Rows

from tilewright.kernels.space import Configuration
from tilewright.service.store.session import session_scope

WIDE = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 16, "WPT_M": 4, "WPT_N": 4, "VECTOR_WIDTH": 4, "MIN_BLOCKS": 1}


def commit_every_best():
    """Writes them."""
    with session_scope() as session:
        rows = Rows(session)
        rows.trial_of(rows.best(library_ms=3.0)).pack_ms = 0.012
        rows.best(SHAPE | {"m": 512}, environment=OLD, time_ms=1 / 3)
        rows.best(SHAPE | {"m": 512}, environment=NEW, time_ms=0.7)
        rows.best(SHAPE | {"m": 300}, source="an older source")
        rows.best({"m": 1024, "n": 1024, "k": 1024}, configuration=Configuration.of("wpt", WIDE))
        rows.best({"m": 2048, "n": 2048, "k": 2048}, configuration=TILED_32)
        rows.best(options={"accuracy": "fp32-fma", "trans_b": True})
        rows.best(SHAPE | {"n": 7}, dtype="float64")
        rows.best(SHAPE, model=H100, time_ms=1e-7)
        rows.best(SHAPE | {"m": 9}, model=CPU)

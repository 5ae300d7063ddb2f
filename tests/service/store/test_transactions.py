"""Nothing that takes long is done inside a transaction."""

import pytest
from factories import SHAPE

from tilewright.service.dashboard.rendering import page
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best_pool.pool import BestPool
from tilewright.service.operations.best_pool.process import Slice
from tilewright.service.store.session import InTransactionError, refuse_in_transaction, session_scope

ASKED = Slice("gemm", "nvidia-h200", "float32", (), None, None, (SHAPE,), 1.0)


def test_a_page_is_not_rendered_and_the_pool_not_waited_for_in_a_transaction(configured):
    with session_scope():
        with pytest.raises(InTransactionError, match="rendering"):
            page("sign_in.html")
        with pytest.raises(InTransactionError, match="wait for predictions"):
            BestPool(1).ask(ASKED, "somebody", lambda _: None)
    refuse_in_transaction("anything")


@pytest.mark.usefixtures("shipped_records")
def test_a_prediction_is_not_made_in_a_transaction(configured):
    with session_scope(), pytest.raises(InTransactionError, match="prediction"):
        find_best("gemm", "nvidia-h200", SHAPE)
    assert find_best("gemm", "nvidia-h200", SHAPE).match == "predicted"

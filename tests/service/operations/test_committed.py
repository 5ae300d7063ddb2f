"""An operation that is called without a session has committed when it returns, and left nothing where it failed."""

import pytest
from sqlalchemy import func, select

from tilewright.service.operations.transaction import committed, refuse_in_transaction, transaction
from tilewright.service.store import models


def add_kernel(session, name):
    """The number of kernels with this one; raises ValueError for a name that is taken."""
    if session.scalar(select(models.Kernel.id).where(models.Kernel.name == name)):
        raise ValueError(name)
    session.add(models.Kernel(name=name, declaration={}))
    session.flush()
    return session.scalar(select(func.count()).select_from(models.Kernel))


def count():
    with transaction() as session:
        return session.scalar(select(func.count()).select_from(models.Kernel))


def test_it_has_committed_when_it_returns(configured):
    add, before = committed(add_kernel), count()
    assert add("one") == count() == before + 1
    refuse_in_transaction("a prediction")  # none is open any more


def test_it_leaves_nothing_where_it_fails(configured):
    def adds_and_fails(session):
        add_kernel(session, "one")
        add_kernel(session, "one")

    before = count()
    with pytest.raises(ValueError, match="one"):
        committed(adds_and_fails)()
    assert count() == before

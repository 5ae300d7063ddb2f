"""Keys, requests with them, and what there is to ask about."""

from factories import SHAPE, Rows

from tilewright.service.operations.access import keys
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.session import session_scope

JOB = {"kernel": "gemm", "shape": SHAPE, "budget": {"trials": 10}}


def key(name: str = "ci", **of) -> str:
    with transaction() as session:
        return keys.create_key(session, KeyRequest(name=name, **of)).token


def bearer(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


def device() -> None:
    with session_scope() as session:
        Rows(session).device()

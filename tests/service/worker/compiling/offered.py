"""A small kernel, offered to compile workers as a job does."""

from __future__ import annotations

from tilewright.service.operations.compiling import offers
from tilewright.service.operations.compiling.offers import OfferState
from tilewright.service.store.session import session_scope
from tilewright.tuner.compile.compilation import Compilation, compiler_version


def offer(work: Compilation, version: str | None = None, key: str | None = None) -> str:
    """Offers it; the key of its cubin."""
    key = key or work.key()
    with session_scope() as session:
        offers.offer(session, {key: work}, version or compiler_version("nvrtc"))
    return key


def states(*keys: str) -> list[OfferState]:
    """The states of offers that are all there."""
    with session_scope() as session:
        found = offers.look(session, keys)
    return [found[key] for key in keys]

"""A small kernel, offered to compile workers as a job does."""

from __future__ import annotations

from tilewright.service.operations.compiling import offers
from tilewright.service.operations.compiling.offers import OfferState
from tilewright.service.store.session import session_scope
from tilewright.tuner.compile.compilation import Compilation, compiler_version

SOURCE = """
extern "C" __global__ void scale(REAL* x) {
  __shared__ REAL tile[TILE];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = FACTOR * tile[TILE - 1 - threadIdx.x];
}
"""


def work(tile: int) -> Compilation:
    """The compilation of one configuration."""
    return Compilation(SOURCE, (("FACTOR", "3"), ("REAL", "float"), ("TILE", str(tile))), "sm_90", "scale")


WORK = work(256)


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

"""Triton sources compiled in a process of their own, for callers that have no pool.

Such a source is Python and runs where it is compiled: never in an application's process, in a server's, or in the one
that has the GPU.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from tilewright.tuner.child import Child
from tilewright.tuner.compile.compilation import Compilation, Compiled
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome

TIMEOUT_S = 120.0
"""As the pool's: Triton takes a second to load and 0.2 to 10 s to compile."""


def compiled_apart(work: Compilation, timeout_s: float = TIMEOUT_S) -> Compiled:
    """The cubin, by a process that is started for it; raises TrialFailure as the pool does."""
    child = Child(_serve, (work,), dies_with_parent=True, is_confined=True)
    try:
        if not child.connection.poll(timeout_s):
            child.kill()
            raise TrialFailure(Outcome.TIMED_OUT, f"the compiler was stopped after {timeout_s:.0f} s")
        answer: Compiled | TrialFailure = child.connection.recv()
    except (EOFError, OSError):
        raise TrialFailure(Outcome.COMPILE_FAILED, "the compiler's process died on this source") from None
    finally:
        child.close()
    if isinstance(answer, TrialFailure):
        raise answer
    return answer


def _serve(connection: Connection, work: Compilation) -> None:
    from tilewright.tuner.compile.triton import compile_triton  # noqa: PLC0415 - in the child only

    try:
        connection.send(compile_triton(work))
    except TrialFailure as failure:
        connection.send(failure)

"""Questions to the memory of bests and to the database."""

from contextlib import contextmanager

from factories import SHAPE, Rows
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.find import find_best
from tilewright.service.store.session import session_scope

GEMM = catalogue().get("gemm")


def find(memory, shape=SHAPE, model="nvidia-h200", dtype="float32", **options):
    return memory.find("gemm", model, shape, dtype, options)


def answer(memory, *asked, **more):
    found = find(memory, *asked, **more)
    return None if found is None else BestAnswer.model_validate_json(found.as_json)


def told(memory, *asked, **more):
    """The answer, after a wait: a machine with other things to do may let what is kept grow old for a moment."""
    return until(lambda: answer(memory, *asked, **more))


@contextmanager
def committed():
    with session_scope() as session:
        yield Rows(session)


def from_database(shape=SHAPE, model="nvidia-h200", dtype="float32", **options):
    return find_best("gemm", model, shape, dtype, options)


def ask(client, shape=SHAPE, model="nvidia-h200", dtype="float32", **options):
    """The response to the question over HTTP."""
    given = {"shape": ",".join(f"{axis}={size}" for axis, size in shape.items()), "dtype": dtype}
    given |= {"options": ",".join(f"{k}={str(v).lower()}" for k, v in options.items())} if options else {}
    return client.get("/v1/kernels/gemm/best", params=given | {"device_model": model})

"""Questions of a test that sees rows which its session has not committed."""

from contextlib import nullcontext

from tilewright.service.operations.best import find


def find_best(session, *asked, **more):
    return find.find_best(*asked, **more, reading=lambda: nullcontext(session))


def find_best_batch(session, *asked, **more):
    return find.find_best_batch(*asked, **more, reading=lambda: nullcontext(session))

"""Exit codes: a refusal over HTTP gives the same as the error gives when the operation is called here."""

import httpx
import pytest

from tilewright.kernels.errors import UnknownNameError
from tilewright.service.api.problems import response_to
from tilewright.service.cli.explain import explain
from tilewright.service.cli.output import data, fail, warn
from tilewright.service.client import ApiProblemError
from tilewright.service.errors import NotFoundError


def over_http(error, **document):
    """The client's error after the API refused with `error`; members of the document can be put in or taken out."""
    answer = response_to(error, "query")
    sent = {**httpx.Response(404, content=answer.body).json(), **document}
    return ApiProblemError.of(httpx.Response(404, json={name: value for name, value in sent.items() if value}))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("kernel", "gem", ["gemm"]), 2),
        (UnknownNameError("variant", "fast", ["naive"]), 2),
        (NotFoundError("device model", "nvidia-h200"), 2),
        (NotFoundError("job", "7"), 3),
        (NotFoundError("key in force", "ci"), 3),
    ],
)
def test_what_is_missing_gives_the_same_exit_code_here_and_over_http(error, code):
    assert explain(error).code == code
    assert explain(over_http(error)).code == code
    assert explain(over_http(error, detail="In other words.")).code == code


@pytest.mark.parametrize("missing", [None, ["kernel"]])
def test_an_api_that_does_not_say_what_is_missing_means_nothing_found(missing):
    problem = over_http(NotFoundError("kernel", "gem"), missing=missing)
    assert problem.missing is None
    assert explain(problem).code == 3


def test_a_line_number_between_colons_is_no_emoji(capsys):
    warn("a.cu:100: error: missing")
    fail("a.cu:100: error: missing")
    data.print("a.cu:100: error: missing")
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("a.cu:100: error: missing") == 3

"""The line of a compiler's log that says what is wrong."""

import pytest

from tilewright.tuner.errors import first_error


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "two.cu: In function 'float twice(float)':\ntwo.cu:1:50: error: 'missing' was not declared\n",
            "two.cu:1:50: error: 'missing' was not declared",
        ),
        (
            'kernel.cu(4): error: identifier "x" is undefined\n\n1 error detected',
            'kernel.cu(4): error: identifier "x" is undefined',
        ),
        (
            "In file included from a.h:1:\nb.h:2:10: fatal error: 'c.h' file not found",
            "b.h:2:10: fatal error: 'c.h' file not found",
        ),
        (
            "ptxas info : 3 registers\nptxas fatal   : Unresolved extern function 'f'",
            "ptxas fatal   : Unresolved extern function 'f'",
        ),
        ("note: candidate: int on_error(int)\nkilled after 60 s", "note: candidate: int on_error(int)"),
        ("", ""),
    ],
)
def test_the_first_error_of_a_log_is_quoted(log, line):
    assert first_error(log) == line

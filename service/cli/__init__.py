"""The command line: data on stdout, the rest on stderr, one line for an error, exit codes that scripts can use."""

from tilewright.service.cli.application import main

__all__ = ["main"]

"""The command line: data on stdout, everything else on stderr, one line per error, exit codes for scripts."""

from tilewright.service.cli.application import main

__all__ = ["main"]

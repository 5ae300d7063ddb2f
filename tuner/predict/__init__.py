"""Predicted configurations for problems that were never tuned."""

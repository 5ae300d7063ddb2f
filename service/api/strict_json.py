"""JSON as the API takes it: the rules are those of every document that comes from outside."""

from __future__ import annotations

from tilewright.service.operations.strict_json import MalformedJSONError, RefusedJSONError, check, escape

__all__ = ["MalformedJSONError", "RefusedJSONError", "check", "escape"]

"""Strict JSON for request bodies, with the rules for every document that comes from outside."""

from __future__ import annotations

from tilewright.service.operations.strict_json import MalformedJSONError, RefusedJSONError, check, escape

__all__ = ["MalformedJSONError", "RefusedJSONError", "check", "escape"]

"""Makes three of four valid requests of a sequence name what there is: gemm, the seeded device, the examples.

Sequences would else end at their first step: a random word is hardly ever a kernel.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import schemathesis
from schemathesis import GenerationMode
from schemathesis.generation.meta import TestPhase

KNOWN = {
    "kernel": "gemm",
    "device_model": "nvidia-h200",
    "uuid": "GPU-nvidia-h200",
    "shape": "m=256,n=100,k=784",
    "dtype": "float32",
    "options": None,
    "driver": None,
    "toolkit": None,
    "cursor": None,
}
"""Parameters by name; None: left out."""

NAMED = frozenset({"/v1/keys", "/v1/webhooks", "/v1/schedules"})
"""Whose bodies' names are to differ, or a second one is refused."""

EXPORT = "TILEWRIGHT_TEST_EXPORT"
"""A file with a document to import."""


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or case.meta.phase.name is not TestPhase.STATEFUL:
        return
    if case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    chosen = int(hashlib.sha256(repr((case.path, case.query, case.body)).encode()).hexdigest(), 16)
    if chosen % 4 == 0:
        return
    for values in (case.path_parameters, case.query):
        for name in KNOWN.keys() & (values or {}).keys():
            if KNOWN[name] is None:
                del values[name]
            else:
                values[name] = KNOWN[name]
    if isinstance(case.body, dict):
        case.body = valid_body(case, chosen // 4)


def valid_body(case, chosen: int):
    """The example of the document, with a name of its own where names must differ; else the body as it is."""
    path = case.operation.path
    if path == "/v1/import":
        return json.loads(Path(os.environ[EXPORT]).read_text(encoding="utf-8"))
    if path == "/v1/kernels/{kernel}/best:batch":
        return {"shapes": [{"m": 256, "n": 100, "k": 784}, {"m": 64, "n": 64, "k": 64}]}
    if path == "/v1/keys":
        return case.body | {"name": f"key-{chosen % 1000}", "scope": "read"}
    schema = case.operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    components = case.operation.schema.raw_schema["components"]["schemas"]
    examples = components.get(schema.get("$ref", "").rpartition("/")[2], {}).get("examples")
    if not examples:
        return case.body
    body = dict(examples[0])
    return body | {"name": f"of-{chosen % 1000}"} if path in NAMED else body

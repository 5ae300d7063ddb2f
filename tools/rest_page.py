"""The page docs/rest.md from the OpenAPI document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")
HEAD = """# REST reference

Made from the code by `make references`; a running server gives the same as JSON at `/openapi.json`. Parts of the path
in braces are names and ids as the lists have them; other parameters stand in the query unless marked as headers.
Bodies and answers are `application/json` where no other type is named; their fields are always there unless marked
optional. `?` behind a type: or null. `time` is a string by RFC 3339, `uuid` one by RFC 9562. A page has `items`, and
`next_cursor` where more follow.

A refusal is a problem document ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) as `application/problem+json`:
[ProblemDocument](#problemdocument), with its type's page at `/problems/{name}`. Any request can meet 401, 403, 421 and
429, 422 where a parameter or a field is wrong, and 503 while the database is away; most with braces in their path 404;
one with a body 400, 413 and 415. Operations name the other refusals. Who may call what is in
[operating](operating.md#access-keys).
"""
PAGE = "Page_"
"""What the names of schemas begin with that are pages of another one."""

EVERYWHERE = frozenset({"422", "503"})
IN_A_PATH = frozenset({"404"})
WITH_BODY = frozenset({"400", "413", "415"})
FORMATS = {"date-time": "time", "uuid": "uuid"}
COMMON = 3
"""A parameter of so many operations, or an option of so many commands, is told once."""


def rest(document: Mapping[str, Any]) -> str:
    """Every operation by its tag, then every schema."""
    by_tag: dict[str, list[str]] = {}
    usual, common = _usual_refusals(document), _common_parameters(document)
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation, usual, common))
    parts = [HEAD, "| refusal | reason, where an operation names no other |", "|---|---|"]
    parts += [f"| {status} | {cell(reason)} |" for status, reason in sorted(usual.items())]
    parts += ["", "## Common parameters\n", *common, ""]
    for tag, found in by_tag.items():
        parts += [f"## {tag.capitalize()}\n", *found]
    schemas = document["components"]["schemas"]
    told: dict[str, tuple[str, str]] = {}
    names = sorted((name for name in schemas if PAGE not in name), key=lambda name: name.endswith("Changes"))
    made = {name: _schema(name, schemas[name], told) for name in names}  # changes of a thing behind the thing
    return "\n".join([*parts, "## Schemas\n", *(made[name] for name in sorted(made))])


def _usual_refusals(document: Mapping[str, Any]) -> dict[str, str]:
    """The most frequent description of each status that refuses."""
    counts: dict[str, Counter[str]] = {}
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status.isdigit() and int(status) >= HTTPStatus.BAD_REQUEST:
                    counts.setdefault(status, Counter())[response["description"]] += 1
    return {status: found.most_common(1)[0][0] for status, found in counts.items()}


def _common_parameters(document: Mapping[str, Any]) -> list[str]:
    """The lines of parameters that several operations take."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    counts = Counter(line for operation in operations for line in _parameters(operation).values())
    return sorted(line for line, count in counts.items() if count >= COMMON)


def _operation(
    method: str, path: str, operation: Mapping[str, Any], usual: Mapping[str, str], common: Sequence[str]
) -> str:
    lines = [f"### {method.upper()} {path}\n", sentence(operation["description"]), ""]
    told = _parameters(operation)
    own = [line for line in told.values() if line not in common]
    if own:
        lines += [*own, ""]
    if len(own) < len(told):
        shared = ", ".join(f"`{name}`" for name, line in told.items() if line in common)
        lines += [f"{'Also' if own else 'Takes'} [common](#common-parameters) {shared}.", ""]
    if "requestBody" in operation:
        kinds = [_body(kind, each) for kind, each in operation["requestBody"]["content"].items()]
        lines += [f"Body: {' or '.join(kinds)}.", ""]
    answers, refusals = [], []
    for status, response in sorted(operation["responses"].items()):
        if status.isdigit() and int(status) < HTTPStatus.BAD_REQUEST:
            answers.append(f"{status} {_answer(response)}".rstrip())
        elif status.isdigit():
            reason = response["description"].replace(usual[status], "").strip()
            if reason or status not in unsaid(path, operation):
                refusals.append(f"{status} ({reason})" if reason else status)
    lines += [f"Answer: {'; '.join(answers)}.", ""]
    return "\n".join([*lines, f"Refused: {cell(', '.join(refusals))}.", ""] if refusals else lines)


def unsaid(path: str, operation: Mapping[str, Any]) -> frozenset[str]:
    """Refusals that the page's head tells of all such operations."""
    some = [IN_A_PATH] if "{" in path else []
    return EVERYWHERE.union(*some, *([WITH_BODY] if "requestBody" in operation else []))


def _body(kind: str, content: Mapping[str, Any]) -> str:
    """The schema, and the media type where that is not JSON."""
    return type_of(content.get("schema", {})) + ("" if kind == "application/json" else f" as `{kind}`")


def _answer(response: Mapping[str, Any]) -> str:
    """The response: schema and media type, or its description where there is no body."""
    bodies = [_body(kind, each) for kind, each in response.get("content", {}).items()]
    description = response["description"].rstrip(".")
    return ", or ".join(bodies) if bodies else "" if description == "Successful Response" else description


def _parameters(operation: Mapping[str, Any]) -> dict[str, str]:
    """A line of each parameter by its name; those of the path stand in the heading."""
    return {one["name"]: _parameter(one) for one in operation.get("parameters", []) if one["in"] != "path"}


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    sentences = [parameter.get("description", "")]
    sentences += [f"Default: `{_word(schema['default'])}`."] if schema.get("default") is not None else []
    examples = [one for one in schema.get("examples", [])[:1] if one != schema.get("default")]
    sentences += [f"Example: `{_word(example)}`." for example in examples]
    kind = type_of(schema).removesuffix("?")  # a parameter that is left out
    place = ["header"] if parameter["in"] == "header" else []
    marks = [kind, *place, *(["required"] if parameter["required"] else [])]
    return line(f"`{parameter['name']}` ({', '.join(marks)})", " ".join(part for part in sentences if part))


def line(what: str, text: str) -> str:
    """One item of a list."""
    return f"- {what}: {cell(text)}" if text else f"- {what}"


def _schema(name: str, schema: Mapping[str, Any], told: dict[str, tuple[str, str]]) -> str:
    """One schema; fields that an earlier one has in the same words are named alone.

    `told`: by field, type and description, the schema that has them and the default there.
    """
    lines = [f"### {name}\n"]
    if schema.get("description"):
        lines += [sentence(schema["description"]), ""]
    if "enum" in schema:
        return "\n".join([*lines, f"One of {', '.join(f'`{word}`' for word in schema['enum'])}.", ""])
    required = set(schema.get("required", []))
    rows, others, same = dict[str, str](), dict[str, list[str]](), dict[str, list[tuple[str, str]]]()
    for field, inner in schema.get("properties", {}).items():
        is_optional = field not in required
        what, shown = inner.get("description", ""), f"`{field}`{' (optional)' if is_optional else ''}"
        default = f"Default: `{_word(inner['default'])}`." if is_optional and inner.get("default") is not None else ""
        if not what and not default:
            others.setdefault(type_of(inner), []).append(shown)
            continue
        key = line(f"`{field}` ({type_of(inner)})", what)
        rows[key] = line(f"`{field}` ({type_of(inner)}{', optional' * is_optional})", f"{what} {default}".strip())
        other, default_there = told.setdefault(key, (name, default))
        if other != name and default in {"", default_there}:
            same.setdefault(other, []).append((key, shown))
    also = [f"{', '.join(names)}: {kind}" for kind, names in others.items()]
    for other, fields in same.items():
        if len(fields) > 1:
            also.append(f"as in {type_of({'$ref': other})}: {', '.join(shown for _, shown in fields)}")
            rows = {key: row for key, row in rows.items() if key not in dict(fields)}
    lines += [*rows.values(), *([""] if rows and also else [])]
    if also:
        lines.append(f"{'Also ' if rows else ''}{'; '.join(also)}.")
    for example in schema.get("examples", [])[:1]:
        body = ",\n".join(f'  "{field}": {_json(value)}' for field, value in example.items())
        lines += ["", "```json", f"{{\n{body}\n}}", "```"]
    return "\n".join([*lines, ""])


def type_of(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to those that have a section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        shown = name.removeprefix(PAGE).removesuffix("_") if name.startswith(PAGE) else name
        return f"{'' if shown == name else 'page of '}[{shown}](#{shown.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            kinds = list(dict.fromkeys(type_of(one) for one in schema[union]))
            return f"{kinds[0]}?" if kinds[1:] == ["null"] else " or ".join(kinds)
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        inner = [*schema.get("prefixItems", []), *([schema["items"]] if "items" in schema else [])]
        return f"list of {' and '.join(dict.fromkeys(type_of(one) for one in inner)) or 'any'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(schema['additionalProperties'])}"
    return FORMATS[schema["format"]] if "format" in schema else str(kind)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def cell(text: str) -> str:
    """One line that no table breaks at."""
    return " ".join(text.split()).replace("|", "\\|")


def sentence(text: str) -> str:
    """The text with a line a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))

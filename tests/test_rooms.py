"""The structure that docs/architecture.md describes: a complete map, small folders, no circles."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "tuner", "service", "migrations")


def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            words = ("tilewright", *path.relative_to(ROOT).with_suffix("").parts)
            found[".".join(words).removesuffix(".__init__")] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the product that this one imports, inside functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (parts & known.keys()) or ({node.module} & known.keys())
    return found - {name}


def test_no_modules_import_each_other():
    known = modules()
    left = {name: imports(name, path, known) for name, path in known.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"these modules form circles, or stand on one: {sorted(left)}"


def test_the_map_names_every_folder_with_modules_and_no_other():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [table] = re.findall(r"<!-- map:.*?-->\n(.*?)<!-- /map -->", text, re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`([a-z0-9_/]+/)`", row.split("|")[1])}
    folders = {module.parent for module in modules().values()} | {ROOT / "kernels" / "include"}
    there = {f"{path.relative_to(ROOT)}/" for path in folders}
    assert named == there


def test_every_file_that_architecture_names_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:kernels|tuner|service|migrations|tests)/[a-z_0-9/]+\.(?:py|md))`", text))
    assert len(named) > 20
    assert not {name for name in named if not (ROOT / name).exists()}

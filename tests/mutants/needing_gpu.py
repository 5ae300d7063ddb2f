"""The modules that only run with a GPU's packages, where no test can judge a change on a machine without one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

PACKAGES = {"cupy", "helion", "pycuda", "pynvml", "torch", "triton"}
LIBRARY = "libcu"
"""How the driver, cuBLAS and cuDNN are named where a module opens them."""


def needing_gpu(texts: Mapping[str, str]) -> set[str]:
    """The paths of modules that import a package or open a library of CUDA, and of what only such modules import.

    `texts` are modules and tests by path. Folders and modules named `pytorch` or `cuda` need a GPU as a whole.
    """
    imported = {path: set(_imports(path, text)) for path, text in texts.items()}
    needing = {path for path in texts if {"cuda", "pytorch"} & set(path.removesuffix(".py").split("/"))}
    needing |= {path for path in texts if PACKAGES & {name.partition(".")[0] for name in imported[path]}}
    users: dict[str, set[str]] = {}
    for path, names in imported.items():
        for name in names:
            users.setdefault(name, set()).add(path)
    while True:
        followers = {path for path in texts if users.get(_name(path)) and users[_name(path)] - {path} <= needing}
        if followers <= needing:
            return needing
        needing |= followers


def _name(path: str) -> str:
    return "tilewright." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(path: str, text: str) -> Iterator[str]:
    """The full names of what a module imports, by a statement or a made name, and of what a test asks for."""
    package = "tilewright." + path.rpartition("/")[0].replace("/", ".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'{__package__}."):
            yield ast.unparse(node)[2:-1].replace("{__package__}", package)
        elif isinstance(node, ast.Constant) and str(node.value).startswith(LIBRARY) and "tests/" not in path:
            yield "pycuda"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            yield ast.literal_eval(node.args[0])

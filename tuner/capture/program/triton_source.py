"""The source of a Triton function with all that it calls, as one file that needs nothing but Triton."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import sysconfig
import textwrap
from types import FunctionType, LambdaType, ModuleType
from typing import Any

HEAD = ["import triton", "import triton.language as tl"]
PLAIN = (bool, int, float, str, type(None))
_FUNCTIONS = {"JITFunction": "triton.jit", "InterpretedFunction": "triton.jit", "ConstexprFunction": "triton.constexpr_function"}  # fmt: skip  # noqa: E501
"""Triton's objects around a function, by the decorator that makes them."""


class UnclearSourceError(Exception):
    """The source cannot be made one file; the message says what is in the way."""


def whole_source(function: Any) -> str:
    """The file's text: imports, constants, the functions that are called, the function; raises UnclearSourceError."""
    gathered = _Gathered()
    gathered.add_function(function)
    lines = [*HEAD, *(one for one in gathered.imports if one not in HEAD)]
    constants = ["", *gathered.constants] if gathered.constants else []
    return "\n".join([*lines, *constants, *("\n\n" + text for text in gathered.functions)]) + "\n"


class _Gathered:
    """Parts of the file, each name once."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []
        self._known: dict[str, Any] = {}

    def add_function(self, function: Any) -> None:
        """The definition, behind all that it uses."""
        plain = function.fn
        name = plain.__name__
        if not self._is_new(name, function):
            return
        node, text = _definition(plain)
        for used in _free_names(node):
            found, value = _value_of(plain, used)
            if found and used != name:
                self._add(used, value, _attributes(node, used))
        keyword = "noinline=True" if getattr(function, "noinline", False) else ""
        decorator = _FUNCTIONS[type(function).__name__]
        self.functions.append(f"@{decorator}{f'({keyword})' if keyword else ''}\n{text}")

    def _is_new(self, name: str, value: Any) -> bool:
        if name in self._known:
            if self._known[name] is value or _is_equal(self._known[name], value):
                return False
            raise UnclearSourceError(f"two things that it uses are called {name}")
        self._known[name] = value
        return True

    def _add(self, name: str, value: Any, attributes: set[str]) -> None:
        if isinstance(value, ModuleType):
            self._add_module(name, value, attributes)
        elif type(value).__name__ in _FUNCTIONS and not _is_tritons(getattr(value, "fn", None)):
            self.add_function(value)
            own = value.fn.__name__
            if own != name and self._is_new(name, value):
                self.functions.append(f"{name} = {own}")
        elif self._is_new(name, value):
            self._add_value(name, value)

    def _add_value(self, name: str, value: Any) -> None:
        kind = type(value).__name__
        text = literal(value)
        if kind == "constexpr":
            self.constants.append(f"{name} = tl.constexpr({literal(value.value)})")
        elif kind == "dtype" and text is not None:
            self.constants.append(f"{name} = {text}")
        elif text is not None:
            self.constants.append(f"{name} = tl.constexpr({text})")
        elif _is_tritons(getattr(value, "fn", value)):
            real = getattr(value, "fn", value)
            self.imports.append(f"from {real.__module__} import {real.__name__} as {name}")
        else:
            raise UnclearSourceError(f"it uses {name}, a {kind}, which no file can have")

    def _add_module(self, name: str, module: ModuleType, attributes: set[str]) -> None:
        if _is_installed(module):
            line = f"import {module.__name__} as {name}"
            if self._is_new(name, module):
                self.imports.append("import triton" if line == "import triton as triton" else line)
            return
        if not self._is_new(name, module):
            raise UnclearSourceError(f"several functions use parts of the module {module.__name__}")
        for attribute in sorted(attributes):
            self._add(attribute, getattr(module, attribute), set())
        parts = "".join(f"\n{name}.{attribute} = {attribute}" for attribute in sorted(attributes))
        self.imports.append("import types")
        self.functions.append(f'{name} = types.ModuleType("{name}"){parts}')


def literal(value: Any) -> str | None:
    """The value as Python writes it; Triton's types by their names; None where there is no such text."""
    kind = type(value).__name__
    if kind == "constexpr":
        return literal(value.value)
    if kind == "dtype" and type(value).__module__.startswith("triton"):
        return f'tl.str_to_ty("{value}", None)'
    if isinstance(value, PLAIN):
        return repr(value) if value == value and value not in (float("inf"), -float("inf")) else f'float("{value}")'  # noqa: PLR0124
    if isinstance(value, tuple):
        parts = [literal(one) for one in value]
        return None if None in parts else f"({', '.join([*map(str, parts), ''])})".replace(", )", ",)")
    return None


def _definition(plain: Any) -> tuple[ast.FunctionDef, str]:
    """The function without decorators, as a tree and as its text."""
    try:
        text = textwrap.dedent(inspect.getsource(plain))
    except (OSError, TypeError) as error:
        raise UnclearSourceError(f"the source of {plain.__name__} cannot be read") from error
    node = ast.parse(text).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise UnclearSourceError(f"{plain.__name__} is no function that a file can have")
    return node, "\n".join(text.splitlines()[node.lineno - 1 :]).rstrip()


def _free_names(node: ast.FunctionDef) -> list[str]:
    """Names that the function uses without defining them, in their order; decorators do not count."""
    arguments = node.args
    parts = [*node.body, arguments, *([node.returns] if node.returns else [])]
    names = [one for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)]
    own = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)}
    own |= {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    return list(dict.fromkeys(one.id for one in names if one.id not in own))


def _attributes(node: ast.AST, name: str) -> set[str]:
    """The attributes that are read of that name: `helper` for `module.helper`."""
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == name
    }


def _value_of(plain: Any, name: str) -> tuple[bool, Any]:
    """Whether the function's surroundings define the name, and its value; UnclearSourceError if nothing does."""
    cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or ()))  # noqa: B905 - Python 3.9 has no strict
    if name in cells:
        return True, cells[name].cell_contents
    if name in plain.__globals__:
        return True, plain.__globals__[name]
    if not hasattr(builtins, name):
        raise UnclearSourceError(f"{plain.__name__} uses {name}, which is not defined")
    return False, None


def _is_equal(first: Any, second: Any) -> bool:
    """Whether two constants are the same."""
    return literal(first) is not None and literal(first) == literal(second)


def _is_tritons(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "triton"


def _is_installed(module: ModuleType) -> bool:
    """Whether a Python with Triton has the module; of PyTorch a function may use a number, as of `torch.finfo`."""
    top = module.__name__.partition(".")[0]
    if top in {"triton", "torch", "numpy"}:
        return True
    names = getattr(sys, "stdlib_module_names", None)  # from Python 3.10
    place = str(getattr(module, "__file__", None) or sysconfig.get_path("stdlib"))
    return top in names if names is not None else place.startswith(sysconfig.get_path("stdlib"))


def function_text(function: Any) -> dict[str, Any] | None:
    """A heuristic as the text of its lambda or definition, with the constants that it uses; None where it has more."""
    if not isinstance(function, (FunctionType, LambdaType)):
        return None
    node = _lambda(function) if function.__name__ == "<lambda>" else _plain_definition(function)
    if node is None:
        return None
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    constants: dict[str, Any] = {}
    own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    own |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    for name in sorted(used - own):
        try:
            found, value = _value_of(function, name)
        except UnclearSourceError:
            return None
        if not found or isinstance(value, ModuleType):
            continue
        if not isinstance(getattr(value, "value", value), PLAIN):
            return None
        constants[name] = getattr(value, "value", value)
    return {"text": ast.unparse(node), "constants": constants}


def _plain_definition(function: Any) -> ast.AST | None:
    try:
        return _definition(function)[0]
    except UnclearSourceError:
        return None


def _lambda(function: Any) -> ast.Lambda | None:
    """The only lambda of its line with this code."""
    code = function.__code__
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, function.__globals__)))
    except SyntaxError:
        return None
    near = [one for one in ast.walk(tree) if isinstance(one, ast.Lambda) and one.lineno == code.co_firstlineno]
    same = [one for one in near if len(near) == 1 or _code_of(one) == (code.co_code, code.co_consts, code.co_names)]
    return same[0] if same else None


def _code_of(node: ast.Lambda) -> tuple[Any, ...]:
    inner = compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval").co_consts[0]
    return inner.co_code, inner.co_consts, inner.co_names

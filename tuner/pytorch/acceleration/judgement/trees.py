"""Arguments and outputs as trees: their tensors, and a form from which they are built again with other tensors.

A tree is made of tensors, constants, tuples, lists, dictionaries, dataclasses and objects with attributes, such as the
caches of keys and values in transformers. An object that occurs twice, or is an argument and in the output, is one.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.acceleration.recognition.call import entry

_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, range, enum.Enum, type, nn.Module),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
"""Types whose values are the same in every call, or make it another kind of call."""


class UnknownPartError(TunerError):
    """A part of a tree cannot be copied."""


class Parts:
    """Tensors and changeable objects of trees that were taken apart, each once, in the order of visits.

    `before`: the parts of another tree, which keep their places.
    """

    def __init__(self, before: Parts | None = None) -> None:
        self.tensors: list[Tensor] = [] if before is None else list(before.tensors)
        self.objects: list[Any] = [] if before is None else list(before.objects)
        self._places = {id(one): at for at, one in enumerate(self.tensors)}
        self._object_places = {id(one): at for at, one in enumerate(self.objects)}
        self._visited: set[int] = set()

    def tensor(self, one: Tensor) -> Hashable:
        """The form of a tensor."""
        at = self._places.get(id(one))
        if at is not None:
            return "again", at
        self._places[id(one)] = len(self.tensors)
        self.tensors.append(one)
        return "tensor", len(self.tensors) - 1, entry(one)

    def place(self, one: Any) -> tuple[int, bool]:
        """The place of an object, and whether it was there already."""
        at = self._object_places.setdefault(id(one), len(self.objects))
        if at == len(self.objects):
            self.objects.append(one)
        if at in self._visited:
            return at, True
        self._visited.add(at)
        return at, False


def apart(value: Any, parts: Parts, *, strict: bool = True) -> Hashable:
    """The value's form, with its tensors and objects in `parts`.

    A part that cannot be copied raises UnknownPartError if strict, and is a constant otherwise.
    """
    if isinstance(value, Tensor):
        return parts.tensor(value)
    kind = type(value)
    if issubclass(kind, _CONSTANTS):
        return "constant", kind, value
    if issubclass(kind, tuple):
        return "tuple", kind, tuple([_child(f"[{at}]", one, parts, strict) for at, one in enumerate(value)])
    attributes = _attributes(value)
    if attributes is None and kind not in {list, dict, OrderedDict}:
        if strict:
            raise UnknownPartError(f" is a {kind.__module__}.{kind.__qualname__}, which cannot be copied")
        return "constant", kind, value
    at, is_known = parts.place(value)
    if is_known:
        return "same", at
    items: Any = ()
    if issubclass(kind, list):
        items = tuple([_child(f"[{number}]", one, parts, strict) for number, one in enumerate(value)])
    elif issubclass(kind, dict):
        items = tuple([(key, _child(f"[{key!r}]", one, parts, strict)) for key, one in value.items()])
    own = tuple([(name, _child(f".{name}", one, parts, strict)) for name, one in (attributes or {}).items()])
    return "object", kind, at, items, own


def _child(name: str, value: Any, parts: Parts, strict: bool) -> Hashable:
    try:
        return apart(value, parts, strict=strict)
    except UnknownPartError as error:
        raise UnknownPartError(f"{name}{error}") from None


def _attributes(value: Any) -> dict[str, Any] | None:
    """The value's attributes; None where there is more to it than these and the items of a list or a dictionary."""
    names, own = _slots(type(value)), getattr(value, "__dict__", None)  # type: ignore[arg-type]
    if names is None or not (names or own is not None):
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)} | (own or {})


@cache
def _slots(kind: type[Any]) -> tuple[str, ...] | None:
    """The names of its slots; None for a class whose objects have more than Python sees."""
    in_python = [one for one in kind.__mro__ if one not in {object, list, dict, OrderedDict}]
    is_open = all(one.__flags__ & _IN_PYTHON for one in in_python) and bool(in_python)
    copies_itself = any(name in vars(one) for one in in_python for name in ("__reduce__", "__reduce_ex__"))
    has_own_copy = copies_itself and not issubclass(kind, dict | list)
    if not is_open or (has_own_copy and not dataclasses.is_dataclass(kind)):
        return None
    given = [getattr(one, "__slots__", ()) for one in in_python]
    names = [name for one in given for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in names if name not in {"__dict__", "__weakref__"})


_IN_PYTHON = 1 << 9
"""The flag of classes that the program has defined (Py_TPFLAGS_HEAPTYPE)."""


def rebuilt(form: Any, tensors: Sequence[Tensor], objects: list[Any] | None = None) -> Any:
    """The value with these tensors in the place of its own.

    `objects`: those that become the value's own, by their places, whatever they hold; the others are new.
    """
    kind = form[0]
    if kind in {"tensor", "again"}:
        return tensors[form[1]]
    if kind == "constant":
        return form[2]
    given = [] if objects is None else objects
    if kind == "same":
        return given[form[1]]
    if kind == "tuple":
        children = [rebuilt(one, tensors, given) for one in form[2]]
        return form[1](*children) if hasattr(form[1], "_fields") else form[1](children)
    return _object(form, tensors, given)


def _object(form: Any, tensors: Sequence[Tensor], objects: list[Any]) -> Any:
    _, kind, at, items, attributes = form
    while len(objects) <= at:
        objects.append(None)
    made = objects[at] = kind.__new__(kind) if objects[at] is None else objects[at]
    if issubclass(kind, list):
        list.__setitem__(made, slice(None), [rebuilt(one, tensors, objects) for one in items])
    elif issubclass(kind, dict):
        of = OrderedDict if issubclass(kind, OrderedDict) else dict
        of.clear(made)
        for key, one in items:
            of.__setitem__(made, key, rebuilt(one, tensors, objects))
    if attributes or hasattr(made, "__dict__"):
        values = {name: rebuilt(one, tensors, objects) for name, one in attributes}
        for name in _slots(kind) or ():
            if name in values:
                object.__setattr__(made, name, values.pop(name))
        if hasattr(made, "__dict__"):
            vars(made).clear()
            vars(made).update(values)
    return made


def has_state(parts: Parts) -> bool:
    """Whether there is an object among them that is neither a list nor a dictionary."""
    return any(type(one) not in {list, dict, OrderedDict} for one in parts.objects)


def called(
    code: Callable[..., Any], positional: tuple[Any, ...], named: dict[str, Any], convert: Callable[[Tensor], Tensor]
) -> Any:
    """The code's result for the arguments with converted tensors; what it does to these is done to the originals."""
    before, own = Parts(), Parts()
    form = apart((positional, named), before, strict=False)
    given = rebuilt(form, [convert(one) for one in before.tensors])
    apart(given, own, strict=False)
    versions = [version_of(one) for one in own.tensors]
    after = Parts(own)
    form = apart((code(*given[0], **given[1]), given), after, strict=False)
    for one, new, version in zip(before.tensors, own.tensors, versions, strict=True):
        if new is not one and (new.is_inference() or version_of(new) != version):
            one.copy_(new)
    return rebuilt(form, after.tensors, list(before.objects))[0]


def version_of(tensor: Tensor) -> int:
    """How often the tensor was changed in place; 0 for an inference tensor, whose changes nobody counts."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - no public name says it


def leaves(values: Iterable[Any]) -> list[Tensor]:
    """The tensors of the values, each once."""
    parts = Parts()
    for one in values:
        apart(one, parts, strict=False)
    return parts.tensors

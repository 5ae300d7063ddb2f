"""The parameters of a captured Triton function: values that were seen, and wider ones proposed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.kernels.triton import OPTIONS, WARPS

STAGES = 3
"""Triton's own `num_stages` where a launch gives none."""

SMALLEST_TILE = 16
"""Along an axis of a product on tensor cores; blocks of at least so many stay at that."""

MOST_WARPS = 32
GROWTH = 4
"""Tiles are proposed up to so many times the largest that was seen, of all and of a warp."""

WARP_ELEMENTS = 4096
"""Of a warp's part up to so many, unless more were seen: 128 registers of each thread, which has 255. Tiles that spill
are slow, and their compilation takes minutes."""

TAKEN = {"get", "items", "keys", "values", "variant"}
"""Names that a configuration is read by."""


@dataclass(frozen=True)
class Tuned:
    """A constexpr or an option of the compiler; `name` in the declaration, where its values are whole numbers."""

    triton_name: str
    name: str
    seen: tuple[Any, ...]
    values: tuple[Any, ...]
    default: Any

    @property
    def is_plain(self) -> bool:
        """Whether each value is a whole number; other values are stood for by their places."""
        return all(type(one) is int for one in self.values)

    @property
    def is_flag(self) -> bool:
        """Whether the constexpr is a flag: true or false."""
        return all(type(one) is bool for one in self.values)

    def number(self, value: Any) -> int:
        """The value in a configuration."""
        return int(value) if self.is_plain or self.is_flag else self.values.index(value)

    @property
    def expression(self) -> str:
        """The value of a configuration `c`."""
        if self.is_plain:
            return f"c.{self.name}"
        if self.is_flag:
            return f"bool(c.{self.name})"
        return f"({', '.join(map(_text, self.values))},)[c.{self.name}]"


def _text(value: Any) -> str:
    """The value of a constexpr as a declaration writes it."""
    if isinstance(value, Mapping):
        (word,) = value.values()
        return f'Named("{word}")'
    return repr(value)


def constant_text(value: Any) -> str:
    """The value of a constexpr that is never tuned, as a declaration writes it."""
    return _text(value)


def tuned(facts: Mapping[str, Any], row: Mapping[str, Any], derived: Sequence[str], source: str) -> list[Tuned]:
    """The parameters. `derived`: constexprs that follow from sizes; `row` is the launch whose values are the default.

    Under `triton.autotune` those of its configurations; else constexprs whose names say that they are blocks.
    """
    configs = facts.get("configs")
    if configs:
        names = list(dict.fromkeys(name for one in configs for name in one["values"]))
        seen = {name: [one["values"][name] for one in configs if name in one["values"]] for name in names}
    else:
        seen = {
            name: [value]
            for name, value in row["constexprs"].items()
            if type(value) is int and value > 1 and name not in derived and is_block(name)
        }
    found = [_tuned(name, [*values, row["constexprs"][name]]) for name, values in seen.items()]
    for option, usual in (("num_warps", WARPS), ("num_stages", STAGES)):
        values = [one[option] for one in configs or () if option in one]
        own = row["launch_options"].get(option, usual)
        if option == "num_warps" or configs or "for " in source or "while " in source:
            found.append(_option(option, [*values, own], own, is_alone=not configs))
    return found


def is_block(name: str) -> bool:
    """Whether a constexpr's name says that it is a tile's size, or how tiles are grouped."""
    return any(part in name.upper() for part in ("BLOCK", "TILE", "GROUP_SIZE", "CHUNK", "SPLIT_K", "UNROLL"))


def _tuned(name: str, values: Sequence[Any]) -> Tuned:
    seen = tuple(_unique(values))
    default = values[-1]
    proposed: Sequence[Any] = seen
    if all(type(one) is bool for one in seen):
        proposed = (False, True)
    elif all(type(one) is int and one > 0 and one & (one - 1) == 0 for one in seen):
        low, high = min(seen), max(seen)
        least = max(low // 2, min(low, SMALLEST_TILE), 1)
        proposed = tuple(1 << e for e in range(least.bit_length() - 1, (2 * high).bit_length()))
    own = f"{name}_value" if name in TAKEN else name
    return Tuned(name, own, seen, tuple(sorted(proposed) if _is_numbers(proposed) else proposed), default)


def _option(name: str, values: Sequence[int], default: int, *, is_alone: bool) -> Tuned:
    low, high = min(values), max(values)
    if name == "num_warps":
        least, most = max(1, low // (4 if is_alone else 2)), min(MOST_WARPS, high * (4 if is_alone else 2))
        proposed = tuple(1 << e for e in range(least.bit_length() - 1, most.bit_length()))
        proposed = tuple(sorted({*proposed, *values}))
    else:
        proposed = tuple(range(max(1, low - 1 - is_alone), max(high, 1) + 2))
        proposed = tuple(sorted({*proposed, *values}))
    return Tuned(name, name, tuple(_unique(values)), proposed, default)


def _unique(values: Sequence[Any]) -> list[Any]:
    """Each value once; true is not 1."""
    found: list[Any] = []
    for value in values:
        if not any(value == one and type(value) is type(one) for one in found):
            found.append(value)
    return found


def _is_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(one, int) for one in values)


def restrictions(parameters: Sequence[Tuned], configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names and expressions of constraints that keep proposals near to what was seen."""
    sides = [one for one in parameters if one.is_plain and one.triton_name not in OPTIONS and min(one.seen) >= SMALLEST_TILE]  # fmt: skip  # noqa: E501
    if not sides:
        return []
    names = [one.triton_name for one in sides]
    seen = [{one.triton_name: one.default for one in parameters}]
    seen += [{**seen[0], **one["values"], **{o: one[o] for o in OPTIONS if o in one}} for one in configs]
    most = GROWTH * max(math.prod(one[name] for name in names) for one in seen)
    product = " * ".join(one.expression for one in sides)
    found = [{"name": f"a tile at most {GROWTH} times the largest seen", "expression": f"{product} <= {most}"}]
    for part in itertools.combinations(sides, min(2, len(sides))):
        of_warp = max(math.prod(row[one.triton_name] for one in part) // row.get("num_warps", WARPS) for row in seen)
        most = max(of_warp, min(GROWTH * of_warp, WARP_ELEMENTS))
        product = " * ".join(one.expression for one in part)
        name = f"a warp's part of {' by '.join(one.name for one in part)} that fits its registers"
        found.append({"name": name, "expression": f"{product} <= {most} * c.num_warps"})
    return found


def starts(parameters: Sequence[Tuned], configs: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """The program's own configurations as the kernel's, the default first."""
    rows = [{one.name: one.number(one.default) for one in parameters}]
    for config in configs:
        given = {**config["values"], **{option: config[option] for option in OPTIONS if option in config}}
        row = {one.name: one.number(given.get(one.triton_name, one.default)) for one in parameters}
        if row not in rows:
            rows.append(row)
    return rows

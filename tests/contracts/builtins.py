"""Built-in functions of CUDA by name, with their types and what they must return, on exact numbers of Python."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np

TYPES = {
    "f": ("float", np.float32),
    "d": ("double", np.float64),
    "i": ("int", np.int32),
    "u": ("unsigned", np.uint32),
    "l": ("long long", np.int64),
    "U": ("unsigned long long", np.uint64),
    "z": ("size_t", np.uint64),
    "F": ("float", np.float32),  # between 0 and 1
    "D": ("double", np.float64),
}
INPUTS = 20
_NEAR = 2.0**-20


@dataclass(frozen=True)
class Builtin:
    """A call of `name`; `types` has the result's letter first. Results may be off by `ulps` of the result's type."""

    name: str
    types: str
    right: Callable[..., Any]
    ulps: int = 0
    is_atomic: bool = False  # the first operand is the cell, which is the result


def operands(letter: str, place: int) -> np.ndarray:
    """Twenty values of that type, edges among them, in another order at each place."""
    if letter in "FD":
        values = [
            0,
            1,
            0.5,
            0.25,
            0.75,
            1e-3,
            1e-30,
            1 - _NEAR,
            0.1,
            0.2,
            0.3,
            0.4,
            0.45,
            0.55,
            0.6,
            0.7,
            0.8,
            0.9,
            0.99,
        ]
        values += [0.999]
    elif letter in "fd":
        values = [
            0.0,
            -0.0,
            1,
            -1,
            0.5,
            -0.5,
            2.5,
            3.5,
            -2.5,
            1 / 3,
            1e-30,
            16777217,
            1.1e9,
            -3e9,
            5e9,
            1e19,
            -1e19,
            0.7,
        ]
        values += [math.inf, math.nan]
    else:
        low, high = np.iinfo(TYPES[letter][1]).min, np.iinfo(TYPES[letter][1]).max
        values = [low, high, low + 1, high - 1, high // 2 + 1, high // 3, 0, 1, 2, 3, 31, 32, 33, 100, 255, 128, 0x7F80]
        values += [0x12345678, 0x01F0E0D1 * 31 & 0x7FFFFFFF, 0xFFFFFF]
    array = np.array(values, TYPES[letter][1])
    return np.roll(array, 7 * place) if letter not in "fdFD" else np.roll(array, 3 * place)


def rounded(value: Fraction, letter: str, mode: str) -> float:
    """The number of that type beside `value`: nearest even, towards zero, down or up."""
    bits, lowest, largest = (24, -149, np.finfo(np.float32).max) if letter == "f" else (53, -1074, np.finfo(float).max)
    if value == 0:
        return 0.0
    size = abs(value)
    power = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
    power += (size >= Fraction(2) ** (power + 1)) - (size < Fraction(2) ** power)
    unit = Fraction(2) ** max(power - bits + 1, lowest)
    steps = {"n": round, "z": math.trunc, "d": math.floor, "u": math.ceil}[mode](value / unit) * unit
    if abs(steps) > Fraction(float(largest)):
        stays = mode in ("z", "d" if value > 0 else "u")
        return math.copysign(float(largest) if stays else math.inf, value)
    return float(steps)


def _arithmetic(letter: str, mode: str, exact: Callable[..., Fraction], fallback: Callable[..., float]) -> Any:
    def right(*values: Any) -> Any:
        if not all(map(math.isfinite, values)):
            with np.errstate(all="ignore"):
                return fallback(*map(np.float64, values))
        try:
            result = exact(*(Fraction(float(value)) for value in values))
        except (ZeroDivisionError, ValueError):
            with np.errstate(all="ignore"):
                return fallback(*map(np.float64, values))
        return rounded(result, letter, mode)

    return right


def _root(letter: str, mode: str) -> Any:
    def right(x: Any) -> Any:
        if not x > 0 or math.isinf(x):
            return math.nan if not x >= 0 else x
        exact = Fraction(float(x))
        scale = 4**1200  # the root to 1200 bits behind the point, and whether it is more than that
        root = math.isqrt(exact.numerator * exact.denominator * scale)
        is_exact = root * root == exact.numerator * exact.denominator * scale
        return rounded(Fraction(2 * root + (not is_exact), 2 * exact.denominator * 2**1200), letter, mode)

    return right


def _whole(source: str, target: str, mode: str) -> Any:
    information = np.iinfo(TYPES[target][1])

    def right(x: Any) -> int:
        if math.isnan(x):
            return 0 if source == "f" and target in "iu" else 1 << (information.bits - 1)
        if math.isinf(x):
            return information.max if x > 0 else information.min
        exact = Fraction(float(x))
        result = {"n": round, "z": math.trunc, "d": math.floor, "u": math.ceil}[mode](exact)
        return min(max(result, information.min), information.max)

    return right


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _lanes(width: int, kind: str, function: Callable[..., int]) -> Any:
    def lane(word: int, i: int) -> int:
        value = word >> i * width & ((1 << width) - 1)
        return _signed(value, width) if kind == "s" else value

    def right(*words: int) -> int:
        return sum(
            (function(*(lane(w, i) for w in words)) & ((1 << width) - 1)) << i * width for i in range(32 // width)
        )

    return right


def _lane_sum(width: int, kind: str) -> Any:
    each = _lanes(width, kind, lambda x, y: abs(x - y))
    return lambda a, b: sum(each(a, b) >> i * width & ((1 << width) - 1) for i in range(32 // width))


def _words() -> list[Builtin]:
    found = []
    for n, width in ((2, 16), (4, 8)):
        top, most = (1 << (width - 1)) - 1, (1 << width) - 1
        clip = {
            "s": lambda x, top=top: min(max(x, -top - 1), top),
            "u": lambda x, most=most: min(max(x, 0), most),
        }
        table = [
            ("add", "u", lambda x, y: x + y),
            ("sub", "u", lambda x, y: x - y),
            ("haddu", "u", lambda x, y: (x + y) >> 1),
        ]
        table += [("avgu", "u", lambda x, y: (x + y + 1) >> 1)]
        table += [("avgs", "s", lambda x, y: (x + y + (x + y >= 0)) >> 1)]
        for kind in "su":
            table += [
                (f"add{kind}s", kind, lambda x, y, c=clip[kind]: c(x + y)),
                (f"sub{kind}s", kind, lambda x, y, c=clip[kind]: c(x - y)),
                (f"absdiff{kind}", kind, lambda x, y: abs(x - y)),
                (f"max{kind}", kind, max),
                (f"min{kind}", kind, min),
            ]
            found.append(Builtin(f"__vsad{kind}{n}", "uuu", _lane_sum(width, kind)))
        orders = {"ge": int.__ge__, "gt": int.__gt__, "le": int.__le__, "lt": int.__lt__}
        compared = [("eq", "u", int.__eq__), ("ne", "u", int.__ne__)]
        compared += [(name + kind, kind, test) for name, test in orders.items() for kind in "su"]
        for name, kind, test in compared:
            table.append((f"cmp{name}", kind, lambda x, y, t=test: -int(t(x, y))))
            table.append((f"set{name}", kind, lambda x, y, t=test: int(t(x, y))))
        found += [Builtin(f"__v{name}{n}", "uuu", _lanes(width, kind, function)) for name, kind, function in table]
        of_one = [("abs", abs), ("neg", lambda x: -x), ("absss", lambda x, c=clip["s"]: c(abs(x)))]
        of_one += [("negss", lambda x, c=clip["s"]: c(-x))]
        found += [Builtin(f"__v{name}{n}", "uu", _lanes(width, "s", function)) for name, function in of_one]
    return found


def _integers() -> list[Builtin]:  # noqa: C901 - a table
    def reversed_bits(x: int, bits: int) -> int:
        return int(f"{x:0{bits}b}"[::-1], 2)

    def count_leading(x: int, bits: int) -> int:
        return bits - (x & ((1 << bits) - 1)).bit_length()

    def find_first(x: int) -> int:
        return (x & -x).bit_length()

    def pair(low: int, high: int) -> int:
        return high << 32 | low

    def dot4(a: int, b: int, c: int) -> int:
        return c + sum(_signed(a >> 8 * i, 8) * _signed(b >> 8 * i, 8) for i in range(4))

    def dot4u(a: int, b: int, c: int) -> int:
        return c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4))

    def dot2(a: int, b: int, c: int, first: int) -> int:
        return c + sum(_signed(a >> 16 * i, 16) * _signed(b >> 8 * (i + first), 8) for i in range(2))

    one = [("__popc", "iu", int.bit_count), ("__popcll", "iU", int.bit_count)]
    one += [("__clz", "ii", lambda x: count_leading(x, 32)), ("__clzll", "il", lambda x: count_leading(x, 64))]
    one += [("__ffs", "ii", find_first), ("__ffsll", "il", find_first)]
    one += [("__brev", "uu", lambda x: reversed_bits(x, 32)), ("__brevll", "UU", lambda x: reversed_bits(x, 64))]
    more = [
        ("__funnelshift_l", "uuuu", lambda a, b, s: pair(a, b) << (s & 31) >> 32),
        ("__funnelshift_r", "uuuu", lambda a, b, s: pair(a, b) >> (s & 31)),
        ("__funnelshift_lc", "uuuu", lambda a, b, s: pair(a, b) << min(s, 32) >> 32),
        ("__funnelshift_rc", "uuuu", lambda a, b, s: pair(a, b) >> min(s, 32)),
        ("__mul24", "iii", lambda x, y: _signed(x, 24) * _signed(y, 24)),
        ("__umul24", "uuu", lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
        ("__mulhi", "iii", lambda x, y: x * y >> 32),
        ("__umulhi", "uuu", lambda x, y: x * y >> 32),
        ("__mul64hi", "lll", lambda x, y: x * y >> 64),
        ("__umul64hi", "UUU", lambda x, y: x * y >> 64),
        ("__sad", "uiiu", lambda x, y, z: abs(x - y) + z),
        ("__usad", "uuuu", lambda x, y, z: abs(x - y) + z),
        ("__hadd", "iii", lambda x, y: (x + y) >> 1),
        ("__rhadd", "iii", lambda x, y: (x + y + 1) >> 1),
        ("__uhadd", "uuu", lambda x, y: (x + y) >> 1),
        ("__urhadd", "uuu", lambda x, y: (x + y + 1) >> 1),
        ("__dp4a", "iiii", dot4),
        ("__dp4a", "uuuu", dot4u),
        ("__dp2a_lo", "iiii", lambda a, b, c: dot2(a, b, c, 0)),
        ("__dp2a_hi", "iiii", lambda a, b, c: dot2(a, b, c, 2)),
        ("umin", "uuu", min),
        ("umax", "uuu", max),
        ("__double2hiint", "id", lambda x: np.float64(x).view(np.int64).item() >> 32),
        ("__double2loint", "id", lambda x: np.float64(x).view(np.int64).item()),
        ("__double_as_longlong", "ld", lambda x: np.float64(x).view(np.int64).item()),
        ("__longlong_as_double", "dl", lambda x: np.int64(x).view(np.float64)),
        ("__hiloint2double", "dii", lambda a, b: np.uint64((a & 0xFFFFFFFF) << 32 | b & 0xFFFFFFFF).view(np.float64)),
        ("__float_as_uint", "uf", lambda x: np.float32(x).view(np.uint32).item()),
        ("__uint_as_float", "fu", lambda x: np.uint32(x).view(np.float32)),
    ]
    for name, better in (("max", max), ("min", min)):
        for mixed in ("uiu", "uui", "UUl", "UlU", "zzz", "iii", "uuu", "lll", "UUU"):
            bits = 32 if mixed[0] in "iu" else 64
            fold = (lambda x: x) if mixed[0] in "il" else (lambda x, b=bits: x & ((1 << b) - 1))
            more.append((name, mixed, lambda x, y, f=fold, t=better: t(f(x), f(y))))
        for letter, kind in (("s", "i"), ("u", "u")):
            wrapped = (lambda x: _signed(x, 32)) if kind == "i" else (lambda x: x & 0xFFFFFFFF)
            more.append(
                (f"__viadd{name}_{letter}32", kind * 4, lambda a, b, c, t=better, w=wrapped: t(w(a + b), c)),
            )
            more.append((f"__vi{name}3_{letter}32", kind * 4, lambda a, b, c, t=better: t(a, b, c)))
        more.append((f"__viadd{name}_s32_relu", "iiii", lambda a, b, c, t=better: max(0, t(_signed(a + b, 32), c))))
    return [Builtin(*probe) for probe in one + more]


def _atomics() -> list[Builtin]:
    found = []
    operations = {"And": int.__and__, "Or": int.__or__, "Xor": int.__xor__, "Add": int.__add__, "Exch": lambda _, y: y}
    operations |= {"Min": min, "Max": max}
    for scope in ("", "_block", "_system"):
        for name, right in operations.items():
            found += [Builtin(f"atomic{name}{scope}", t * 3, right, is_atomic=True) for t in "iuU"]
        found += [Builtin(f"atomic{n}{scope}", "lll", operations[n], is_atomic=True) for n in ("Min", "Max")]
        found += [Builtin(f"atomicSub{scope}", t * 3, int.__sub__, is_atomic=True) for t in "iu"]
        found.append(Builtin(f"atomicExch{scope}", "fff", lambda _, y: y, is_atomic=True))
        found.append(Builtin(f"atomicInc{scope}", "uuu", lambda x, y: 0 if x >= y else x + 1, is_atomic=True))
        found.append(Builtin(f"atomicDec{scope}", "uuu", lambda x, y: y if x == 0 or x > y else x - 1, is_atomic=True))
        found += [
            Builtin(f"atomicCAS{scope}", t * 4, lambda x, y, z: z if x == y else x, is_atomic=True) for t in "iuU"
        ]
    return found


def _roundings() -> list[Builtin]:
    found = []
    for mode in "nzdu":
        for letter, prefix in (("f", "f"), ("d", "d")):
            for name, exact, limit in (
                ("add", lambda x, y: x + y, np.add),
                ("sub", lambda x, y: x - y, np.subtract),
                ("mul", lambda x, y: x * y, np.multiply),
                ("div", lambda x, y: x / y, np.divide),
            ):
                found.append(Builtin(f"__{prefix}{name}_r{mode}", letter * 3, _arithmetic(letter, mode, exact, limit)))
            fma = _arithmetic(letter, mode, lambda x, y, z: x * y + z, lambda x, y, z: x * y + z)
            found.append(Builtin(f"__fma{'f' if letter == 'f' else ''}_r{mode}", letter * 4, fma))
            found.append(Builtin(f"__{prefix}sqrt_r{mode}", letter * 2, _root(letter, mode)))
            recip = _arithmetic(letter, mode, lambda x: 1 / x, lambda x: 1 / x)
            found.append(Builtin(f"__{prefix}rcp_r{mode}", letter * 2, recip))
        for source, target, name in (
            ("i", "f", "int2float"), ("u", "f", "uint2float"), ("l", "f", "ll2float"), ("U", "f", "ull2float"),
            ("l", "d", "ll2double"), ("U", "d", "ull2double"), ("d", "f", "double2float"),
        ):  # fmt: skip
            right = _arithmetic(target, mode, lambda x: x, lambda x: x)
            if source != "d":
                right = lambda x, t=target, m=mode: rounded(Fraction(x), t, m)  # noqa: E731
            found.append(Builtin(f"__{name}_r{mode}", target + source, right))
        for source, word in (("f", "float"), ("d", "double")):
            for target, kind in (("i", "int"), ("u", "uint"), ("l", "ll"), ("U", "ull")):
                found.append(Builtin(f"__{word}2{kind}_r{mode}", target + source, _whole(source, target, mode)))
    found.append(Builtin("__int2double_rn", "di", float))
    found.append(Builtin("__uint2double_rn", "du", float))
    return found


def _special() -> list[Builtin]:
    def quantile(p: float) -> float:
        return NormalDist().inv_cdf(p) if 0 < p < 1 else -math.inf if p == 0 else math.inf

    def inverse(x: float) -> float:
        if x > 0.01:
            return quantile((x + 1) / 2) / math.sqrt(2)
        return x * math.sqrt(math.pi) / 2 * (1 + math.pi / 12 * x**2 + 7 * math.pi**2 / 480 * x**4)

    def sinpi(x: float) -> float:
        rest = math.remainder(x, 2)
        rest = math.copysign(1, rest) - rest if abs(rest) > 0.5 else rest
        return math.sin(math.pi * rest)

    def cospi(x: float) -> float:
        rest = abs(math.remainder(x, 2))
        return math.cos(math.pi * rest) if rest <= 0.25 else math.sin(math.pi * (0.5 - rest))

    found = []
    for letter, end, ulps in (("F", "f", 2), ("D", "", 64)):
        table = [
            ("rcbrt", lambda x: 1 / math.cbrt(x) if x else math.inf),
            ("erfinv", inverse),
            ("erfcinv", lambda x: -quantile(x / 2) / math.sqrt(2) if x < 0.99 else inverse(1 - x)),
            ("normcdf", lambda x: math.erfc(-x / math.sqrt(2)) / 2),
            ("normcdfinv", quantile),
            ("cyl_bessel_i0", lambda x: float(np.i0(x))),
            ("sinpi", sinpi),
            ("cospi", cospi),
            ("erfcx", lambda x: math.exp(x * x) * math.erfc(x)),
        ]
        found += [Builtin(name + end, letter * 2, right, ulps) for name, right in table]
        for name, count in (("hypot", 2), ("norm3d", 3), ("norm4d", 4)):
            types = letter * (count + 1)
            found.append(Builtin(f"r{name}{end}", types, lambda *x: 1 / math.hypot(*x), ulps))
            if name != "hypot":
                found.append(Builtin(name + end, types, math.hypot, ulps))
    found.append(Builtin("__frsqrt_rn", "FF", lambda x: 1 / math.sqrt(x) if x else math.inf))
    return found


BUILTINS = tuple(_integers() + _words() + _atomics() + _roundings() + _special())

"""One call of `tune_kernel` or `run_kernel` as plain data, with its arrays as files: all that a declaration needs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from .contents import ContentsTooLargeError, described
from .functions import Functions, UnclearError, plain
from .generator import sources
from .restrictions import admits, restrictions_of
from .stand_ins import Anything, Tunable, TunablePrecision

_SOURCE = ("kernel_name", "kernel_source", "problem_size", "arguments")
_GRID = ("grid_div_x", "grid_div_y", "grid_div_z")
_DEVICE = ("lang", "device", "platform", "smem_args", "cmem_args", "texmem_args", "compiler", "compiler_options")
POSITIONAL = {
    "tune_kernel": (
        *(*_SOURCE, "tune_params", *_GRID, "restrictions", "answer", "atol", "verify", "verbose", *_DEVICE),
        *("defines", "log", "iterations", "block_size_names"),
    ),
    "run_kernel": (*_SOURCE, "params", *_GRID, *_DEVICE, "defines", "block_size_names"),
}
"""The parameters of Kernel Tuner 1.5's functions, in order."""

LANGUAGES = {"", "CUDA", "CUPY", "NVCUDA"}
BLOCK = ("block_size_x", "block_size_y", "block_size_z")
PRECISIONS = {"float": "float32", "double": "float64", "half": "float16"}
MOST_CONSTANT_BYTES, FLOAT_BYTES = 1 << 16, 4
IGNORED = {
    "metrics": "metrics are not taken over",
    "observers": "observers are not taken over: what is minimised is the time",
    "objective": "another objective than the time is not taken over",
}


class Call:
    """A call with its options; `record` is handed on. `is_run`: nothing is tuned, the kernel is only run."""

    def __init__(self, function: str, options: dict[str, Any], limit_bytes: int) -> None:
        self.options, self._limit_bytes = options, limit_bytes
        self.is_run = function == "run_kernel"
        tuned = options.get("params" if self.is_run else "tune_params") or {}
        values = {str(name): _values(one) if not self.is_run else [plain(one)] for name, one in tuned.items()}
        self.parameters = {name: one for name, one in values.items() if not name.startswith("nvml_")}
        self.precision = self._precision()
        precisions = self.parameters.pop(self.precision) if self.precision else ()
        self.dtypes = [PRECISIONS[one] for one in precisions]
        self.functions = Functions(self.parameters)
        self.notes = [text for name, text in IGNORED.items() if options.get(name)]
        if self.precision:
            self.notes.append(f"{self.precision} is the dtype of the problem now")
            if options.get("answer") is not None or options.get("verify") is not None:
                self.notes.append("the answer is for one precision of several: it is not taken over")
            self.options = {**options, "answer": None, "verify": None}
        if any(name.startswith("nvml_") for name in values):
            self.notes.append("clocks and power limits (nvml_…) are not tuned")

    def record(self, folder: Path, number: int | str) -> dict[str, Any]:
        """Plain data; files go into the folder. Raises UnclearError where no declaration can say it."""
        self._refuse()
        record = {
            "kernel_name": self._kernel_name,
            "precision": self.precision,
            "dtypes": self.dtypes,
            "is_run": self.is_run,
            "parameters": self.parameters,
            "block": self._block(),
            "block_names": self._block_names,
            **self._source(),
            "grid": self._grid(),
            "shared": self._shared(),
            "restrictions": restrictions_of(self.options.get("restrictions"), self.functions),
            "arguments": [self._argument(place, one, folder, number) for place, one in enumerate(self._arguments)],
            "textures": self._textures(folder, number),
            "initialisers": self._initialisers() if self._is_of_host else None,
            **self._answer(folder, number),
            "flags": [str(flag) for flag in self.options.get("compiler_options") or ()],
            "defines": self._defines(),
            "constants": {str(name): initialiser(name, one) for name, one in self._constants.items()},
            "default": self._default(),
        }
        return record | {
            "imports": list(self.functions.imports.values()),
            "definitions": list(self.functions.definitions.values()),
            "view": self.functions.view,
            "notes": self.notes + self.functions.notes,
        }

    def _precision(self) -> str:
        """The parameter that names the precision of arrays; "" where there is none."""
        tunable = [one for one in self._arguments if isinstance(one, TunablePrecision) and one.is_plain]
        names = {one.parameter for one in tunable if set(self.parameters.get(one.parameter, "?")) <= set(PRECISIONS)}
        return names.pop() if len(names) == 1 else ""

    @property
    def _kernel_name(self) -> str:
        name = str(self.options["kernel_name"])
        return re.sub(rf"\b{self.precision}\b", "REAL", name) if self.precision else name

    @property
    def _arguments(self) -> list[Any]:
        return list(self.options.get("arguments") or ())

    @property
    def _constants(self) -> dict[str, Any]:
        return dict(self.options.get("cmem_args") or {})

    def _refuse(self) -> None:
        language = str(self.options.get("lang") or "").upper()
        if language not in LANGUAGES and not self._is_of_host:
            raise UnclearError(f"it is in {self.options['lang']}; kernels in CUDA are taken over")
        for place, argument in enumerate(self._arguments):
            if isinstance(argument, Tunable) and getattr(argument, "parameter", None) != self.precision:
                raise UnclearError(f"argument {place + 1} is another one for each configuration")

    @property
    def _is_of_host(self) -> bool:
        """Whether the call is of a host function that launches kernels."""
        return str(self.options.get("lang")).upper() == "C" and "<<<" in str(self._source()["sources"])

    @property
    def _block_names(self) -> list[str]:
        names = [str(name) for name in self.options.get("block_size_names") or ()]
        return [*names, *BLOCK[len(names) :]]

    def _block(self) -> list[int | str]:
        """Threads along x, y and z: the value where it is no parameter, else an expression."""
        return [
            self.functions.expression(name, "block size") if name in self.parameters else default
            for name, default in zip(self._block_names, (256, 1, 1), strict=True)
        ]

    def _source(self) -> dict[str, Any]:
        given = self.options["kernel_source"]
        first = given[0] if isinstance(given, list) else given
        folder = Path.cwd()
        name = "kernel.cu"
        if callable(first):
            texts = sources(first, self.parameters)
        else:
            if isinstance(first, Path) or _is_file_name(first):
                path = Path(first)
                folder, name, text = path.parent, path.name, path.read_text(encoding="utf-8")
                if str(self.options.get("lang")).upper() == "C":
                    text = _with_sources(text, folder)
            else:
                text = str(first)
            texts = [{"when": {}, "text": text}]
        if not any("__global__" in one["text"] for one in texts):
            language = "OpenCL" if "__kernel" in texts[0]["text"] else "another language"
            raise UnclearError(f"its source is in {language}; kernels in CUDA are taken over")
        return {
            "sources": texts,
            "file": name,
            "folders": [str(folder.resolve()), str(Path.cwd())],
        }

    def _grid(self) -> list[dict[str, Any]]:
        """The grid along each axis: its `size`, a number or an expression, and its `divisors`, expressions."""
        sizes = self.options["problem_size"]
        if callable(sizes):
            called = self.functions.called(sizes, "problem_size", "problem_size")
            of_one = sizes({name: values[0] for name, values in self.parameters.items()})
            is_number = isinstance(of_one, int | np.integer)
            parts: list[Any] = [called if is_number else f"{called}[{axis}]" for axis in range(_length(of_one))]
        else:
            parts = [sizes] if isinstance(sizes, str | int | np.integer) else list(sizes)
            parts = [f"int({self.functions.expression(p, 'problem_size')})" if isinstance(p, str) else int(p)
                     for p in parts]  # fmt: skip
        divisors = [self.options.get(f"grid_div_{axis}") for axis in "xyz"]
        return [
            {"size": size, "divisors": self._divisors(given, axis)}
            for axis, size, given in zip("xyz", [*parts, 1, 1], divisors, strict=False)
        ]

    def _divisors(self, given: Any, axis: str) -> list[str]:
        if given is None:
            name = self._block_names["xyz".index(axis)]
            return [self.functions.expression(name, "divisor")] if name in self.parameters else []
        if callable(given):
            return [self.functions.called(given, f"grid_div_{axis}", f"grid_div_{axis}")]
        if isinstance(given, str):
            text = self.functions.expression(given, f"grid_div_{axis}")
            return [text if given.strip() in self.parameters else f"int({text})"]
        if isinstance(given, int):
            return [str(given)]
        return [factor for one in given for factor in self._divisors(one, axis)]

    def _shared(self) -> str | None:
        size = (self.options.get("smem_args") or {}).get("size")
        if size is None:
            return None
        if callable(size):
            return self.functions.called(size, "shared_bytes", "smem_args")
        return f"int({self.functions.expression(size, 'smem_args')})" if isinstance(size, str) else str(int(size))

    def _argument(self, place: int, argument: Any, folder: Path, number: int | str) -> dict[str, Any]:
        if isinstance(argument, TunablePrecision):
            return self._argument(place, argument.array, folder, number) | {"has_own_dtype": False}
        array = _as_numpy(argument)
        if isinstance(array, np.generic):
            return {"kind": "scalar", "dtype": array.dtype.name, "value": array.item()}
        if not isinstance(array, np.ndarray):
            kind = type(argument).__name__
            raise UnclearError(f"argument {place + 1} is of {kind}; arrays and scalars of NumPy are taken over")
        if not array.size:
            raise UnclearError(f"argument {place + 1} has no elements")
        if array.dtype.kind == "c":  # real and imaginary parts, as the kernel sees them
            array = np.ascontiguousarray(array).view(array.real.dtype).reshape(*array.shape, 2)
        if array.dtype.kind == "b":
            array = array.view(np.uint8)
        file = folder / f"call{number}_argument{place}.npy"
        has_answer = self.options.get("answer") is not None or self.options.get("verify") is not None
        try:
            contents = described(array, as_they_are=has_answer, file=file, limit_bytes=self._limit_bytes)
        except ContentsTooLargeError as large:
            reason = f"argument {place + 1} must be kept as it is and has {large}"
            raise UnclearError(f"{reason}: allow as many by --contents-limit") from large
        return {"kind": "tensor", "dtype": array.dtype.name, "shape": list(array.shape), "contents": contents}

    def _textures(self, folder: Path, number: int | str) -> dict[str, Any]:
        """The array and modes of each texture reference, PyCUDA's where the script sets none; raises UnclearError."""
        found = {}
        for place, (name, given) in enumerate((self.options.get("texmem_args") or {}).items(), len(self._arguments)):
            how = given if isinstance(given, dict) else {"array": given}
            modes = how.get("address_mode") or "clamp"
            address = {*modes} if isinstance(modes, list) else {modes}
            if len(address) != 1:
                raise UnclearError(f"the texture {name} has another address mode along each axis")
            texture = {
                "filter": how.get("filter_mode") or "point",
                "address": address.pop() or "clamp",
                "normalized": bool(how.get("normalized_coordinates")),
            }
            found[str(name)] = {**self._argument(place, how["array"], folder, number), "texture": texture}
        return found

    def _initialisers(self) -> dict[int, str]:
        """Each argument that can fill constant memory, with its contents as C initialisers."""
        found = {}
        for place, one in enumerate(self._arguments):
            with contextlib.suppress(UnclearError):
                found[place] = initialiser(str(place), one)
        return found

    def _answer(self, folder: Path, number: int | str) -> dict[str, Any]:
        answer, verify = self.options.get("answer"), self.options.get("verify")
        atol = self.options.get("atol", 1e-6)
        run = None
        if answer is not None and any(isinstance(one, FromKernel | Anything) for one in answer):
            run = self._run_of(answer, folder, number)
        if run is None and answer is not None and any(isinstance(one, FromKernel | Anything) for one in answer):
            self.notes.append("the answer is what another kernel computes, which was not run: it is not taken over")
            answer = None
            if verify is not None:
                return {"answer": None, "verify": None, "atol": atol}
        if answer is None and verify is None:
            return {"answer": None, "verify": None, "atol": atol}
        files: list[str | None] = []
        for place, expected in enumerate(answer or [None] * len(self._arguments)):
            files.append(None if expected is None else f"call{number}_answer{place}.npy")
            if expected is not None and not isinstance(expected, FromKernel):
                array = np.asarray(_as_numpy(expected))
                np.save(folder / str(files[-1]), array)
        name = None
        if verify is not None:
            try:
                name = self.functions.carried(verify, "verify")
            except UnclearError as unreadable:
                self.notes.append(f"verify is not taken over ({unreadable}), nor the answer")
                files = []
        takes_atol = verify is not None and "atol" in inspect.signature(verify).parameters
        return {
            "answer": files or None,
            "verify": name,
            "atol": float(atol),
            "verify_takes_atol": takes_atol,
            "answer_run": run,
        }

    def _run_of(self, answer: Any, folder: Path, number: int | str) -> dict[str, Any] | None:
        """The call of `run_kernel` on the very arrays that are the answer; `places`: which argument is which."""
        origins = {place: one.origin for place, one in enumerate(answer) if isinstance(one, FromKernel)}
        known = [one for one in origins.values() if one is not None]
        if len(known) < len(origins) or len({id(options) for options, _ in known}) != 1:
            return None
        options = known[0][0]
        try:
            record = Call("run_kernel", {**options, "answer": ()}, self._limit_bytes).record(folder, f"{number}run")
        except UnclearError:
            return None
        return {**record, "answer": None, "places": {place: one[1] for place, one in origins.items() if one}}

    def _defines(self) -> dict[str, str] | None:
        """The macros beside those of the parameters, as text of C; None where the script says nothing of them."""
        given = self.options.get("defines")
        if given is None:
            return None
        for name, text in given.items():
            if callable(text):
                raise UnclearError(f"the macro {name} of `defines` is computed by a function; write its value")
        return {str(name): str(text) for name, text in given.items() if str(name) != str(text)}

    def _default(self) -> dict[str, Any]:
        """A configuration that the restrictions admit, of about 256 threads; the first where none is found."""
        names = [name for name in self._block_names if name in self.parameters]
        first = {name: values[0] for name, values in self.parameters.items()}
        blocks = [dict(zip(names, combination, strict=True)) for combination in
                  itertools.product(*(self.parameters[name] for name in names))]  # fmt: skip
        rest = [name for name in self.parameters if name not in names]
        admitted = admits(self.options.get("restrictions"))
        others = itertools.product(*(self.parameters[name] for name in rest))
        blocks.sort(key=lambda block: abs(math.log2(max(1, math.prod(block.values())) / 256)))
        for other in itertools.islice(others, 2000):
            for block in blocks[:64]:
                configuration = first | dict(zip(rest, other, strict=True)) | block
                if math.prod(block.values()) <= 1024 and admitted(configuration):
                    return configuration
        return first


def _with_sources(text: str, folder: Path) -> str:
    """The text with the script's other sources in place of their includes."""

    def included(found: re.Match[str]) -> str:
        path = folder / found[1]
        return path.read_text(encoding="utf-8") if path.is_file() else found[0]

    return re.sub(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+\.cuh?)"[^\n]*', included, text, flags=re.MULTILINE)


class FromKernel(np.ndarray[Any, Any]):
    """An array that `run_kernel` would have computed; `origin`: its options and the argument's place, of no view."""

    origin: tuple[dict[str, Any], int] | None = None

    @classmethod
    def of(cls, array: Any, options: dict[str, Any], place: int) -> FromKernel:
        """The array that `run_kernel` would have computed, at this place of the call with these options."""
        made = np.array(array).view(cls)
        made.origin = options, place
        return made


def initialiser(name: str, given: Any) -> str:
    """The contents of constant memory as C has them."""
    array = np.ravel(_as_numpy(given))
    if array.nbytes > MOST_CONSTANT_BYTES or array.dtype.kind not in "iufb" or not np.isfinite(array).all():
        raise UnclearError(f"the constant memory {name} is not at most 64 KiB of finite numbers")
    if array.dtype.kind != "f":
        return ", ".join(str(int(one)) for one in array)
    suffix = "f" if array.dtype.itemsize == FLOAT_BYTES else ""
    return ", ".join(f"{np.format_float_scientific(one)}{suffix}" for one in array)


def _values(values: Any) -> list[Any]:
    listed = [plain(one) for one in values]
    whole = [int(one) if _is_whole(one) else one for one in listed]
    return list({(type(one), one): one for one in whole}.values())  # True is not 1, nor is 1.0


def _is_whole(value: Any) -> bool:
    """Whether it is the text of a whole number, as "40" is; 2.0 and True keep their own text in the source."""
    return isinstance(value, str) and value.isdecimal()


def _length(sizes: Any) -> int:
    return 1 if isinstance(sizes, int | np.integer) else len(sizes)


def _as_numpy(argument: Any) -> Any:
    for method in ("detach", "cpu", "get", "numpy"):  # of PyTorch's tensors and of CuPy's arrays
        if not isinstance(argument, np.ndarray | np.generic | Anything) and hasattr(argument, method):
            argument = getattr(argument, method)()
    return argument


def _is_file_name(text: Any) -> bool:
    return isinstance(text, str) and len(text) < 250 and not re.search(r"[(){};\n]", text) and ".c" in text

"""Every kernel by name: those of this package, and those of folders that the user names."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from tilewright.kernels.dtypes import C_TYPES, REAL
from tilewright.kernels.enumeration.configuration import Values
from tilewright.kernels.errors import BrokenDeclarationError, InvalidProblemError, UnknownNameError
from tilewright.kernels.fields.arguments import DTYPES, MEMORIES, TEXTURE_REFERENCE
from tilewright.kernels.kernel import Kernel, TensorMap, Variant, unqualified
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.sources.source import IncludeError
from tilewright.kernels.space import Parameter, SearchSpace
from tilewright.kernels.triton import flaws as flaws_of_triton
from tilewright.kernels.triton import is_triton

_HERE = Path(__file__).parent
_KERNEL_NAME = re.compile(r"[a-z][a-z0-9_]*")
_MACRO_NAME = re.compile(r"[A-Za-z_]\w+")  # at least two characters: macros U, W and R break CUDA's own headers
_PYTHON_NAME = re.compile(r"[A-Za-z_]\w*")
_TAKEN_NAMES = {"get", "items", "keys", "values", "variant"}  # of what a configuration is read by
_SOURCE_NAME = re.compile(r"\w[\w.+-]*\.(?:cu|py)", re.ASCII)

MAX_CONSTANT_BYTES = 64 * 1024
"""Constant memory of every GPU (CUDA C++ Programming Guide, "Compute Capabilities")."""

# What a declaration is tried on: a device of the smallest capability that a variant is compiled for.
_TRIAL_LIMITS = Limits(compute_capability=(7, 5), multiprocessors=40, memory_bytes=16 * 2**30)
_TRIAL_LIMITS_HOPPER = Limits(
    compute_capability=(9, 0),
    multiprocessors=132,
    memory_bytes=80 * 2**30,
    max_shared_bytes=227 * 1024,
    shared_bytes_per_multiprocessor=228 * 1024,
)


@dataclass(frozen=True)
class Catalogue:
    """Kernels by name; those of folders are checked when they are loaded."""

    by_name: dict[str, Kernel]

    @classmethod
    def load(cls, extra_folders: Sequence[Path] = ()) -> Catalogue:
        """The kernels of this package and of the folders, each with a `declaration.py` that defines `KERNEL`.

        Raises BrokenDeclarationError for the first that does not, or that takes a name a second time.
        A declaration is Python code and runs here: name only folders that you trust.
        """
        by_name: dict[str, Kernel] = {}
        for folder, module in _modules(extra_folders):
            kernel = _kernel_of(folder, module)
            if kernel.name in by_name:
                raise BrokenDeclarationError(folder, f"another kernel is called {kernel.name!r}")
            by_name[kernel.name] = kernel
        return cls(by_name)

    def kernels(self) -> list[Kernel]:
        """All kernels, in the order of their names."""
        return [self.by_name[name] for name in sorted(self.by_name)]

    def get(self, name: str) -> Kernel:
        """The kernel of that name; raises UnknownNameError."""
        if name not in self.by_name:
            raise UnknownNameError("kernel", name, self.by_name)
        return self.by_name[name]


@cache
def catalogue() -> Catalogue:
    """The kernels of this package, loaded once."""
    return Catalogue.load()


def _modules(extra_folders: Iterable[Path]) -> Iterable[tuple[Path, ModuleType]]:
    for path in sorted(_HERE.glob("*/declaration.py")):
        yield path.parent, importlib.import_module(f"{__package__}.{path.parent.name}.declaration")
    for folder in extra_folders:
        yield folder, _import_from(folder.resolve())


class _FreshLoader(SourceFileLoader):
    """Reads the file itself: cached bytecode is compared by second and size, which an edit may leave alike."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_from(folder: Path) -> ModuleType:
    path = folder / "declaration.py"
    if not path.is_file():
        raise BrokenDeclarationError(folder, "there is no such file")
    name = f"tilewright_declaration_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise BrokenDeclarationError(folder, "Python cannot import it")
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise BrokenDeclarationError(folder, f"importing it raised {type(error).__name__}: {error}") from error
    return module


def _kernel_of(folder: Path, module: ModuleType) -> Kernel:
    kernel = getattr(module, "KERNEL", None)
    if not isinstance(kernel, Kernel):
        raise BrokenDeclarationError(folder, "it must define KERNEL, a tilewright.kernels.kernel.Kernel")
    if kernel.folder == Path():
        kernel = replace(kernel, folder=folder.resolve())
    # The tests check the kernels of this package: every process that starts loads them, and a check takes 0.8 s.
    flaw = None if folder.parent == _HERE else next(flaws(kernel), None)
    if flaw is not None:
        raise BrokenDeclarationError(folder, flaw)
    return kernel


def flaws(kernel: Kernel) -> Iterator[str]:
    """The flaws of a declaration. Each check relies on those before it, so use the first only."""
    if not _KERNEL_NAME.fullmatch(kernel.name):
        yield f"the kernel's name {kernel.name!r} must match {_KERNEL_NAME.pattern}"
    names = [variant.name for variant in kernel.variants]
    if not names or len(set(names)) != len(names):
        yield f"variants need names of their own; there are {names}"
    if len({is_triton(variant.source) for variant in kernel.variants}) > 1:
        yield "some sources are CUDA's and some are Triton's: declare a kernel for each language"
    if kernel.default_variant not in {"", *names}:
        yield f"default_variant {kernel.default_variant!r} is not one of the variants {names}"
    if kernel.ranking_l2 not in {"cold", "warm"}:
        yield f"ranking_l2 must be 'cold' or 'warm', not {kernel.ranking_l2!r}"
    yield from _flaws_of_arguments(kernel)
    if not kernel.dtypes or not set(kernel.dtypes) <= set(REAL):
        yield f"dtypes must be of {', '.join(REAL)}; they are {kernel.dtypes}"
    try:
        # The kernel's first dtype need not be the default of `problem`.
        example = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    except InvalidProblemError as error:
        yield f"example_shape is no problem of this kernel: {error}"
        return
    yield from _flaws_of_textures(kernel, example)
    for variant in kernel.variants:
        for flaw in _flaws_of_variant(kernel, variant, example):
            yield f"variant {variant.name!r}: {flaw}"


def _flaws_of_arguments(kernel: Kernel) -> Iterator[str]:
    roles = {tensor.role for tensor in kernel.tensors}
    if roles - {"input", "output", "inout"} or not roles & {"output", "inout"}:
        yield f"a tensor is input, output or inout, and one must be written; the roles are {sorted(roles)}"
    for argument in kernel.arguments:
        if not callable(argument.dtype) and argument.dtype not in {None, *C_TYPES}:
            yield f"the dtype of {argument.name} must be of {', '.join(C_TYPES)}, not {argument.dtype!r}"
    for tensor in kernel.constants:
        if tensor.role != "input" or tensor.strides is not None:
            yield f"{tensor.name} is in constant memory: its role must be input, and it has no strides"


def _flaws_of_textures(kernel: Kernel, example: Problem) -> Iterator[str]:
    for tensor, texture in ((tensor, tensor.texture) for tensor in kernel.tensors):
        if texture is None:
            continue
        shape, dtype = tuple(tensor.shape(example)), tensor.dtype_for(example)
        if tensor.role != "input" or tensor.symbol or tensor.strides is not None or kernel.is_triton:
            yield f"{tensor.name} is a texture: an input of a CUDA source, without strides and not in constant memory"
        if dtype not in DTYPES or (texture.filter == "linear" and dtype != "float32"):
            wanted = "float32" if texture.filter == "linear" else ", ".join(DTYPES)
            yield f"{tensor.name} is a texture with the filter {texture.filter}: its dtype is of {wanted}, not {dtype}"
        if len(tensor.texels(example)) not in MEMORIES[texture.memory]:
            counts = " or ".join(map(str, MEMORIES[texture.memory]))
            yield f"{tensor.name} is a texture in {texture.memory} memory, of {counts} axes, but its shape is {shape}"
        if texture.channels > 1 and shape[-1] != texture.channels:
            yield f"{tensor.name} is a texture of {texture.channels} channels, its last axis, but its shape is {shape}"


def _flaws_of_variant(kernel: Kernel, variant: Variant, example: Problem) -> Iterator[str]:
    if not _SOURCE_NAME.fullmatch(variant.source) or not (kernel.folder / variant.source).is_file():
        yield f"there is no source {variant.source!r} in {kernel.folder}"
    try:
        source = kernel.source(variant.name)
    except (OSError, UnicodeDecodeError, IncludeError) as error:
        yield f"its source cannot be read: {error}"
        return
    yield from _flaws_of_constants(kernel, variant, example, source)
    for parameter in variant.parameters:
        pattern = _PYTHON_NAME if kernel.is_triton else _MACRO_NAME
        if not pattern.fullmatch(parameter.name) or parameter.name in _TAKEN_NAMES:
            others = ", ".join(sorted(_TAKEN_NAMES))
            yield f"the parameter {parameter.name!r} must match {pattern.pattern}, and be none of {others}"
    if kernel.is_triton:
        defined = kernel.definitions(example, variant.space().default())
        yield from flaws_of_triton(kernel.entry, variant, source, kernel.arguments, defined)
    else:
        yield from _flaws_of_launches(kernel, variant, source)
        yield from _flaws_of_macros(kernel, variant, example, source)
    space = variant.space()
    try:
        newest = variant.min_compute_capability >= _TRIAL_LIMITS_HOPPER.compute_capability
        limits = _TRIAL_LIMITS_HOPPER if newest else _TRIAL_LIMITS
        broken = space.violated(space.default().values, example, limits)
        maps = variant.tensor_maps(space.default().values, example)
    except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
        yield f"its default on example_shape raises {type(error).__name__}: {error}"
        return
    yield from _flaws_of_maps(kernel, variant, maps, source)
    takes = any(variant.takes_size(replace(example, at_launch=axis)) for axis in kernel.launch_axes)
    if takes and not re.search(r"^(?!\s*#\s*define).*\bSIZE_PARAMETER\b", source, re.MULTILINE):
        yield f"{variant.source} has no SIZE_PARAMETER behind its arguments, and takes a size from the launch"
    # A default for large problems need not be of use for the example, but it fits the device and something near it is.
    is_of_use = broken in {c.name for c in variant.constraints} and SearchSpace((space,), example, limits).defaults()
    if broken is not None and not is_of_use:
        yield f"its default on example_shape breaks the constraint {broken!r}"


def _flaws_of_maps(kernel: Kernel, variant: Variant, maps: Sequence[TensorMap], source: str) -> Iterator[str]:
    unknown = {one.tensor for one in maps} - {tensor.name for tensor in kernel.tensors}
    if unknown:
        yield f"its tensor maps are of {', '.join(sorted(unknown))}, which is no tensor of the kernel"
    taken = len(re.findall(r"__grid_constant__\s+TensorMap\s+\w", source))
    if taken != len(maps):
        yield f"{variant.source} has {taken} parameters `const __grid_constant__ TensorMap` for {len(maps)} tensor maps"


def _flaws_of_macros(kernel: Kernel, variant: Variant, example: Problem, source: str) -> Iterator[str]:
    for parameter in variant.parameters:
        # One value: what tells variants of one source apart, of which only one can be the source's own.
        stated = parameter.default if len(parameter.values) > 1 else r"\S+"
        if not re.search(rf"^\s*#\s*define\s+{parameter.name}\s+{stated}(?!\w)", source, re.MULTILINE):
            if re.search(rf"^\s*#\s*define\s+{parameter.name}\b", source, re.MULTILINE):
                yield f"{variant.source} must define the default {parameter.name} {parameter.default}"
            elif not re.search(rf"\b{parameter.name}\b", source + kernel.entry) and not _moves_launch(
                variant, parameter, example
            ):
                yield f"neither {variant.source} nor the launch uses the parameter {parameter.name}"


def _moves_launch(variant: Variant, parameter: Parameter, example: Problem) -> bool:
    """Whether grid, block or shared memory follow the parameter: a source may read its block size from blockDim."""
    default = variant.space().default().values
    launches = set()
    for value in parameter.values:
        with contextlib.suppress(ArithmeticError, LookupError, AttributeError, TypeError, ValueError):
            launches.add(variant.launch(Values({**default, parameter.name: value}), example))
    return len(launches) > 1


def _flaws_of_launches(kernel: Kernel, variant: Variant, source: str) -> Iterator[str]:
    if TEXTURE_REFERENCE.search(source):
        fix = "take a cudaTextureObject_t parameter, and declare its tensor with texture=Texture(…)"
        yield f"{variant.source} declares a texture reference, which CUDA 12 removed: {fix}"
    for entry in (kernel.entry, *(ahead.function(kernel.entry) for ahead in variant.before)):
        if not re.search(rf"\b{re.escape(unqualified(entry))}\s*\(", source):
            yield f"{variant.source} does not define {entry}"


def _flaws_of_constants(kernel: Kernel, variant: Variant, example: Problem, source: str) -> Iterator[str]:
    for tensor in kernel.constants:
        if not re.search(rf"\b__constant__\b[^;{{}}()]*\b{re.escape(tensor.symbol)}\s*[\[;]", source):
            yield f"{variant.source} does not declare `__constant__ … {tensor.symbol}[…]`, which {tensor.name} fills"
    size_bytes = sum(tensor.size_bytes(example) for tensor in kernel.constants)
    if size_bytes > MAX_CONSTANT_BYTES:
        yield f"its constants take {size_bytes} bytes for example_shape; a GPU has {MAX_CONSTANT_BYTES}"

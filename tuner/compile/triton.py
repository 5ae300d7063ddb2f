"""A Triton function to a cubin, ahead of time and without a GPU. Runs the source: see `triton_process.py`."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from typing import Any

from tilewright.tuner.compile.compilation import Compilation, Compiled, CompiledLaunch, read_resources
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.triton.module import compiler_options, constexprs, loaded, words_of

_LOG_CHARACTERS = 16_000
_WARP = 32


def compile_triton(work: Compilation) -> Compiled:
    """The cubin, in this process; raises TrialFailure(COMPILE_FAILED) with what Triton says, and the line."""
    start = time.perf_counter()
    printed = io.StringIO()
    # Triton keeps what it compiles in the user's home; ours is kept by content already, so its copy goes at once.
    with tempfile.TemporaryDirectory(prefix="tilewright-triton-") as folder, contextlib.redirect_stdout(printed):
        try:
            kernel = _compiled(work, folder)
        except Exception as error:  # somebody's code, and a compiler's whose exceptions have no common root
            log = f"{printed.getvalue()}\n{words_of(error, work.file_name)}".strip()
            raise TrialFailure(Outcome.COMPILE_FAILED, log[-_LOG_CHARACTERS:]) from error
    metadata = kernel.metadata
    grid_bytes = int(metadata.global_scratch_size) * int(metadata.num_ctas)
    launch = CompiledLaunch(metadata.name, _WARP * int(metadata.num_warps), int(metadata.shared), grid_bytes)
    if int(metadata.num_ctas) != 1 or int(metadata.profile_scratch_size):
        raise TrialFailure(Outcome.COMPILE_FAILED, "clusters of programs and instrumented kernels are not launched")
    log = printed.getvalue().strip()
    resources = read_resources(log, metadata.name)
    return Compiled(kernel.asm["cubin"], resources, log[:_LOG_CHARACTERS], (time.perf_counter() - start) * 1e3, launch)


def _compiled(work: Compilation, folder: str) -> Any:
    import triton  # noqa: PLC0415 - takes a second, and the extra `triton`
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415

    module = loaded(work.source, work.file_name)
    function = getattr(module, work.entry)
    while not isinstance(function, triton.runtime.JITFunction):  # under autotune or heuristics
        function = function.fn
    definitions = dict(work.definitions)
    values = {p.name: p.default for p in function.params if p.is_constexpr and p.has_default}
    values |= constexprs([p.name for p in function.params], definitions, module)
    types = iter(work.signature)
    signature, attributes = {}, {}
    for place, parameter in enumerate(function.params):
        if parameter.is_constexpr or parameter.name in definitions:
            signature[parameter.name] = "constexpr"
            continue
        kind, _, divisor = next(types).partition(":")
        signature[parameter.name] = "constexpr" if kind == "1" else kind
        if kind == "1":
            values[parameter.name] = 1
        if divisor:
            attributes[(place,)] = [["tt.divisibility", int(divisor)]]
    source = triton.compiler.ASTSource(function, signature, values, attributes)
    target = GPUTarget("cuda", int(work.arch.removeprefix("sm_").rstrip("a")), _WARP)
    with triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir = folder
        triton.knobs.nvidia.dump_ptxas_log = True
        # Products are fused into sums as CUDA's own compilers do; Triton 3.9 warns where nobody says which.
        options = compiler_options(definitions) | {"enable_fp_fusion": True}
        return triton.compile(source, target=target, options=options)

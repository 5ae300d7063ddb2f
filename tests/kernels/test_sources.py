"""Sources of kernels: what is compiled, what constants it gets, and the hash that identifies it."""

import re
import shutil
from dataclasses import replace

import pytest
from contracts.variant import needs_nvrtc
from faulty_kernels import FAULTY, say_that_tiled_was_faulty

from tilewright.kernels.catalogue import Catalogue, catalogue
from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.sources import identity
from tilewright.kernels.sources.identity import code_hash, text_hash
from tilewright.kernels.sources.source import INCLUDE, IncludeError, resolved
from tilewright.tuner.compile import nvrtc
from tilewright.tuner.compile.compilation import OPTIONS

VARIANTS = [(kernel.name, variant.name) for kernel in catalogue().kernels() for variant in kernel.variants]

HEADERS = [*INCLUDE.rglob("*.cuh"), *INCLUDE.parent.glob("*/*.cuh")]
SOURCES = list(INCLUDE.parent.glob("*/*.cu"))


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_no_pragma_names_a_macro_because_nvcc_does_not_expand_it(kernel, variant):
    source = catalogue().get(kernel).source(variant)
    named = set(re.findall(r"#pragma unroll +([A-Za-z_]\w*)", source))
    assert not named & set(re.findall(r"#define +(\w+)", source))


@pytest.mark.parametrize(("kernel", "variant"), VARIANTS)
def test_a_source_opens_with_a_comment_that_says_what_it_computes(kernel, variant):
    assert re.match(r"// \S", catalogue().get(kernel).source(variant))


def test_the_hash_covers_headers_that_headers_include(tmp_path):
    folder = shutil.copytree(GEMM.folder, tmp_path / "gemm", ignore=shutil.ignore_patterns("__pycache__"))
    changed = INCLUDE / "ptx" / "mma_sync.cuh"
    (tmp_path / "ptx").mkdir()
    (tmp_path / "ptx" / "mma_sync.cuh").write_text(changed.read_text() + "static_assert(true);\n")
    before, after = GEMM.source_hashes, replace(GEMM, folder=folder).source_hashes
    changed_variants = {name for name in before if before[name] != after[name]}
    assert changed_variants == {"tensor3xtf32", "tensor3xtf32_sliced", "tensor1xtf32"}


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: str(path.relative_to(INCLUDE.parent)))
def test_every_header_opens_with_what_it_is_for_and_comes_once(path):
    text = path.read_text()
    assert re.match(r"// \S", text)
    assert re.search(r"^#pragma once$", text, re.MULTILINE)


@pytest.mark.parametrize("path", [*HEADERS, *SOURCES], ids=lambda path: str(path.relative_to(INCLUDE.parent)))
def test_includes_are_sorted_but_for_what_must_be_first_and_none_is_the_compilers(path):
    blocks = re.findall(r"(?:^#include .*\n)+", path.read_text(), re.MULTILINE)
    for block in blocks:
        names = re.findall(r'#include "(.+)"', block)
        assert len(names) == block.count("\n")
        assert names == sorted(names)


@needs_nvrtc
@pytest.mark.parametrize("call", ["min(a, 127)", "max(a, 127)", "gcd(12u, a)", "ceil_div(a, 8u)", "min(127u, wide)"])
def test_signed_and_wide_arguments_are_refused_by_what_takes_unsigned_ones(call):
    """A negative exponent, converted in silence, made whole lines NaN."""
    header = (INCLUDE / "common" / "integers.cuh").read_text()
    frame = 'extern "C" __global__ void f(int a, unsigned b, unsigned long long wide, unsigned* y) {{ *y = tw::{}; }}'
    nvrtc.compile_cubin(header + frame.format("min(b, 127u) + tw::ceil_div(b, 8u)"), OPTIONS)
    with pytest.raises(nvrtc.NvrtcError, match="take unsigned numbers of 32 bits"):
        nvrtc.compile_cubin(header + frame.format(call), OPTIONS)


def write(folder, **texts):
    """Files of those texts, `a_cuh` being a.cuh; `source.cu` is what is compiled."""
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder / "source.cu"


def test_headers_are_followed_to_the_end_and_come_once(tmp_path):
    source = write(
        tmp_path,
        source_cu='// y = x\n#include "a.cuh"\n#include "b.cuh"  // again\nint source;\n',
        a_cuh='#pragma once\n#include "b.cuh"\nint a;\n',
        b_cuh='// deep\n#pragma once\n#include "a.cuh"\nint b;\n',
    )
    assert resolved(source) == "// y = x\n// deep\nint b;\n\nint a;\n\nint source;\n"


def test_a_header_without_pragma_once_comes_each_time_because_compilers_do_so(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n#include "a.cuh"\n', a_cuh="COUNT\n")
    assert resolved(source) == "COUNT\n\nCOUNT\n"


def test_headers_are_looked_for_beside_the_includer_in_folders_then_in_tilewrights(tmp_path):
    kernel, beside = tmp_path / "kernel", tmp_path / "common"
    kernel.mkdir(), beside.mkdir()
    source = write(kernel, source_cu='#include "common/a.cuh"\n#include "common/real.cuh"\n')
    write(beside, a_cuh='#include "b.cuh"\n', b_cuh="beside\n")
    text = resolved(source, (tmp_path,))
    assert text.startswith("beside\n")
    assert "#define REAL float" in text
    write(beside, real_cuh="hides Tilewright's\n")
    assert resolved(kernel / ".." / "kernel" / "source.cu", (tmp_path,)).endswith("hides Tilewright's\n")


def test_what_only_the_compiler_has_is_left_to_it(tmp_path):
    text = '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n'
    assert resolved(write(tmp_path, source_cu=text)) == text


def test_a_missing_header_is_named_with_the_places_where_it_was_looked_for(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n', a_cuh='#include "missing.cuh"\n')
    with pytest.raises(IncludeError, match=r'a\.cuh includes "missing\.cuh", which is in none of'):
        resolved(source)


def test_headers_that_include_each_other_for_ever_are_refused(tmp_path):
    source = write(tmp_path, source_cu='#include "a.cuh"\n', a_cuh='#include "b.cuh"\n', b_cuh='#include "a.cuh"\n')
    with pytest.raises(IncludeError, match=r"a\.cuh includes itself"):
        resolved(source)


def test_a_header_that_is_there_only_under_a_condition_is_not_taken_for_there(tmp_path):
    text = '#ifdef WIDE\n#include "a.cuh"\n#endif\n#include "a.cuh"\n'
    source = write(tmp_path, source_cu=text, a_cuh="#pragma once\nint a;\n")
    with pytest.raises(IncludeError, match="only inside an #if"):
        resolved(source)


def test_a_declaration_whose_header_is_missing_is_refused_with_the_headers_name(tmp_path):
    folder = shutil.copytree(GEMM.folder, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / "declaration.py").read_text().replace('name="gemm"', 'name="own"')
    (folder / "declaration.py").write_text(text)
    (folder / "problem.cuh").unlink()
    with pytest.raises(BrokenDeclarationError, match=r'includes "problem\.cuh", which is in none of'):
        Catalogue.load([folder])


CUDA = 'extern "C" __global__ void f(float* a) {\n    a[0] = 1.0f - a[1]; // doubles\n}\n'
TRITON = (
    "import triton\n\n\n@triton.jit\ndef f(a_ptr, N: tl.constexpr):\n"
    "    if N:\n        x = f'{N!r} # {N}'\n    return x\n"
)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda kernel: kernel.name)
def test_a_reworded_comment_and_other_white_space_leave_every_kernel_as_it_is(kernel, tmp_path):
    """What stores, locks and bundles compare is the hash, so nothing of them is stale."""
    for name in ("include", kernel.folder.name):
        shutil.copytree(kernel.folder.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*tmp_path.rglob("*.cu"), *tmp_path.rglob("*.cuh")]:
        text = re.sub(r"(?m)//.*(?<!\\)$", "// Other words:\tof a stranger.", path.read_text())
        path.write_text(text.replace("\n    ", "\n\t\t") + "\n\n/* The end,\n   at last. */\n")
    include = (tmp_path / "include",)
    changed = replace(kernel, folder=tmp_path / kernel.folder.name, include_folders=include)
    assert changed.source(kernel.variants[0].name) != kernel.source(kernel.variants[0].name)
    assert changed.source_hashes == kernel.source_hashes


@pytest.mark.parametrize(
    ("same", "as_this"),
    [
        (CUDA.replace("// doubles", "/* a\n\n b */"), CUDA),
        (CUDA.replace("\n", "\r\n"), CUDA),
        (CUDA.replace("1.0f - a[1]", "1.0f-a[ 1 ]"), CUDA),
        (CUDA.replace("    a[0]", "    a\\\n[0]"), CUDA),
        ("#define F(x) (x + \\\n    1)\nint a;", "  #  define F(x) (x + 1) // one\nint\na;"),
        ("int a; // goes on \\\nint b;", "int a;"),
    ],
)
def test_cuda_sources_of_the_same_tokens_are_the_same(same, as_this):
    assert code_hash(same) == code_hash(as_this)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CUDA, CUDA.replace("1.0f", "1.f")),
        ("a - -b", "a -- b"),
        ("int ab;", "int a b;"),
        ("#define A B\nC", "#define A B C\n"),
        ("#define F(x) x", "#define F (x) x"),
        ("#if A\n#else\n#endif", "#if A #else #endif"),
        ('asm("add  x;");', 'asm("add x;");'),
        ('asm("// a");', 'asm("// b");'),
        ("char c = ' ';", "char c = '  ';"),
        ('auto s = R"x(a\n  b)x";', 'auto s = R"x(a\nb)x";'),
        ('auto s = R"(a // b)";', 'auto s = R"(a // c)";'),
        ("int a = 1'000; int b = '/*'; int c = 2; /* '*/", "int a = 1'000; int b = '/*'; int c = 3; /* '*/"),
    ],
)
def test_cuda_sources_of_other_tokens_are_others(one, other):
    assert code_hash(one) != code_hash(other)


def test_flags_count():
    assert code_hash(CUDA, ["-DA=1"]) != code_hash(CUDA, ["-DA=2"])
    assert replace(GEMM, flags=("-DA=1",)).source_hash("naive") != GEMM.source_hash("naive")


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (lambda s: s.replace("    if N", "    # A reason.\n\n    if  N").replace("return x", "return x  # done"), True),
        (lambda s: s.replace("(a_ptr, N", "(\n    a_ptr,\n    N"), True),
        (lambda s: s.replace("    ", "  "), True),
        (lambda s: s.replace("    return", "        return"), False),
        (lambda s: s.replace(" # {N}", " # {M}"), False),
        (lambda s: s.replace("{N!r}", "{ N!r}"), False),
        (lambda s: s + "f(", False),
    ],
)
def test_a_triton_source_is_its_tokens_and_blocks(change, is_same):
    both = [code_hash(text, is_triton=True) for text in (TRITON, change(TRITON))]
    assert (both[0] == both[1]) is is_same


def test_a_triton_sources_hash_is_the_same_with_every_python():
    """Python 3.11 has an f-string in one token, 3.12 in several."""
    pieces = ["x", "=", "f'{N!r} # {N}'", "NEWLINE", "DEDENT"]
    tokens = list(identity._python_tokens(TRITON))
    at = tokens.index("f'{N!r} # {N}'") - 2
    assert tokens[at : at + 5] == pieces


def test_sources_of_the_version_before_keep_their_identity():
    """Every row is of a source that is there still; a text whose hash is stated counts as that source's."""
    rows = identity._former_sources()
    today = {digest for kernel in catalogue().kernels() for digest in kernel.source_hashes.values()}
    assert len(rows) > 50
    assert {row.now for row in rows.values()} <= today
    (then,) = [prefix for prefix, row in rows.items() if row.now == GEMM.source_hash("naive")]
    assert GEMM.has_source("naive", then + "0" * 48)
    assert not GEMM.has_source("tiled", then + "0" * 48)
    assert not GEMM.has_source("naive", "0" * 64)


def test_the_text_of_a_users_kernel_as_the_version_before_hashed_it_counts(tmp_path):
    (tmp_path / "naive.cu").write_text(CUDA)
    own = replace(GEMM, folder=tmp_path, variants=(replace(GEMM.variant("naive"), source="naive.cu"),))
    assert own.has_source("naive", text_hash(CUDA))
    assert own.current_hash("naive", text_hash(CUDA)) == own.source_hash("naive") == code_hash(CUDA)
    assert not own.has_source("naive", text_hash(CUDA + " "))


def test_a_faulty_source_is_another_and_known_as_such(tmp_path, monkeypatch):
    say_that_tiled_was_faulty(tmp_path, monkeypatch)
    assert not GEMM.has_source("tiled", FAULTY)
    assert GEMM.current_hash("tiled", FAULTY) == FAULTY
    assert GEMM.was_corrected("tiled", FAULTY)
    assert not GEMM.was_corrected("tiled", GEMM.source_hash("tiled"))
    assert not GEMM.was_corrected("naive", FAULTY)

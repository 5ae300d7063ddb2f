"""A source is known by its code: comments and white space change nothing, everything else does."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from faulty_kernels import FAULTY, say_that_tiled_was_faulty

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.sources import identity
from tilewright.kernels.sources.identity import code_hash, text_hash

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

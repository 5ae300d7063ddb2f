"""A table that says of a made-up hash: this source of `tiled` was faulty and has been corrected."""

from tilewright.kernels import identity
from tilewright.kernels.gemm.declaration import KERNEL as GEMM

FAULTY = "f" * 64


def say_that_tiled_was_faulty(folder, monkeypatch, kernel=GEMM):
    """The table, in place of the package's, until the test ends."""
    path = folder / "former.txt"
    path.write_text(f"# A table.\ncorrected {FAULTY[: identity.PREFIX]} {kernel.source_hash('tiled')}\n")
    rows = identity._read_former(path)
    monkeypatch.setattr(identity, "_former_sources", lambda: rows)

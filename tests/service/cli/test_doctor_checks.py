"""What each check of `doctor` finds, and that a remedy stands wherever something is wrong."""

import socket
import sys
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace

import pytest

from tilewright.service.cli.local import checks
from tilewright.service.cli.local.checks import Check, State
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.settings import settings
from tilewright.tuner.errors import NoCompilerError

HERE = sys.version_info[:2]
OLDER, NEWER = (HERE[0], HERE[1] - 1), (HERE[0], HERE[1] + 1)


@pytest.mark.parametrize(
    ("supported", "state"),
    [
        ((HERE, HERE), State.OK),
        ((OLDER, NEWER), State.OK),
        ((NEWER, NEWER), State.BROKEN),
        ((OLDER, OLDER), State.BROKEN),
    ],
)
def test_python_is_one_of_the_supported_versions(monkeypatch, supported, state):
    monkeypatch.setattr(checks, "SUPPORTED", supported)
    found = checks.python()
    assert (found.state, found.remedy is None) == (state, state is State.OK)


@pytest.mark.parametrize(
    ("check", "otherwise"), [(checks.data_folder, State.BROKEN), (checks.cache_folder, State.ABSENT)]
)
@pytest.mark.parametrize("free_bytes", [None, checks.MIN_FREE_BYTES - 1, checks.MIN_FREE_BYTES])
def test_folders_can_be_written_and_have_a_gigabyte(monkeypatch, tmp_path, check, otherwise, free_bytes):
    folder = tmp_path / "made" / "cubins"
    if free_bytes is None:
        (tmp_path / "made").write_text("a file")
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(folder))
    settings.cache_clear()
    monkeypatch.setattr(checks.cache, "default_folder", lambda: folder / "kernels")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_bytes))
    found = check()
    settings.cache_clear()
    is_right = free_bytes == checks.MIN_FREE_BYTES
    assert (found.state, found.remedy is None) == (State.OK if is_right else otherwise, is_right)
    assert found.found == f"{folder}, 1.1 GB free" or not is_right


@pytest.mark.parametrize(("gpus", "pycuda", "nvrtc", "nvcc", "compiler"), [*product((False, True), repeat=5)])
def test_a_device_can_measure_where_it_has_all_it_needs(gpus, pycuda, nvrtc, nvcc, compiler):
    there = {"GPUs": gpus, "PyCUDA": pycuda, "NVRTC": nvrtc, "nvcc": nvcc, "C++ compiler": compiler}
    found = checks.device(
        {n: Check(name=n, state=State.OK if has else State.ABSENT, found="", remedy=n) for n, has in there.items()}
    )
    if gpus and pycuda and (nvrtc or nvcc):
        assert found.found == "the GPUs"
    else:
        needs = " and ".join(name for name in ("PyCUDA", "NVRTC") if not there[name])
        reason = f" (the GPUs need {needs})" if gpus else ""
        assert found.found == f"{'the CPU' if compiler else 'none'}{reason}"
    assert found.state is (State.BROKEN if found.found.startswith("none") else State.OK)
    lacking = "PyCUDA" if gpus else "C++ compiler"
    assert found.remedy == (lacking if found.state is State.BROKEN else None)


@pytest.mark.parametrize(
    ("driver", "hidden", "has_remedy"), [(None, True, False), ("580", False, False), ("580", True, True)]
)
def test_gpus_that_a_variable_hides_are_told(monkeypatch, driver, hidden, has_remedy):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(checks.nvml, "gpus", list)
    monkeypatch.setattr(checks.nvml, "driver_version", lambda: driver)
    found = checks.gpus()
    assert (found.state, found.found, found.remedy is not None) == (State.ABSENT, "none", has_remedy)
    named = checks.driver()
    assert (named.state, named.remedy is None) == ((State.OK, True) if driver else (State.ABSENT, False))
    monkeypatch.setattr(
        checks.nvml, "gpus", lambda: [SimpleNamespace(ordinal=1, name="NVIDIA H200", memory_bytes=150_754_820_096)]
    )
    assert (checks.gpus().state, checks.gpus().found) == (State.OK, "cuda:1 NVIDIA H200, 151 GB")


@pytest.mark.parametrize(
    ("check", "of", "name", "answer"),
    [
        (checks.nvrtc_compiler, checks.nvrtc, "version", "13.0"),
        (checks.nvcc_compiler, checks.compilation, "compiler_version", "13.0"),
        (
            checks.host_compiler,
            checks.cpu_compile,
            "find_compiler",
            SimpleNamespace(name="g++", version="12", command=["g++"]),
        ),
    ],
)
def test_a_compiler_that_is_not_here_is_absent(monkeypatch, check, of, name, answer):
    monkeypatch.setattr(of, name, lambda *_: answer)
    assert (check().state, check().remedy) == (State.OK, None)

    def missing(*_):
        raise NoCompilerError("install one")

    monkeypatch.setattr(of, name, missing)
    assert (check().state, check().remedy[-11:]) == (State.ABSENT, "install one")


@pytest.mark.parametrize("is_embedded", [False, True])
@pytest.mark.parametrize(("fails", "at_head"), [(True, True), (False, True), (False, False)])
def test_a_database_answers_and_has_todays_tables(monkeypatch, is_embedded, fails, at_head):
    server = SimpleNamespace(home="/here", running=lambda: True) if is_embedded else None
    monkeypatch.setattr(checks, "embedded_server", lambda: server)

    def answering():
        if fails:
            raise DatabaseUnavailableError("no\n  answer")
        return nullcontext()

    monkeypatch.setattr(checks, "database_url", answering)
    monkeypatch.setattr(checks.schema, "at_head", lambda: at_head)
    found = checks.database()
    assert (found.state, found.remedy is None) == ((State.BROKEN, False) if fails else (State.OK, True))
    kind = "embedded, in /here: " if is_embedded else "the one at TILEWRIGHT_DATABASE_URL: "
    assert found.found.startswith(kind)
    assert ("run tilewright db upgrade" in found.found) is not at_head
    if fails:
        assert "answer" in found.found
        assert "\n" not in found.found
        assert ("TILEWRIGHT_DATABASE_URL" in found.remedy) is not is_embedded


def test_a_port_is_free_or_taken_by_somebody_else(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("TILEWRIGHT_PORT", str(taken.getsockname()[1]))
        settings.cache_clear()
        monkeypatch.setattr(checks.Client, "is_ready", lambda _: False)
        found = checks.port()
        assert (found.state, found.remedy is None) == (State.BROKEN, False)
        monkeypatch.setattr(checks.Client, "is_ready", lambda _: True)
        assert "already serves there" in checks.port().found
    assert checks.port().found.endswith("is free")
    settings.cache_clear()

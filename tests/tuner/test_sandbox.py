"""What kernels and compilers may take and see."""

import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from tilewright.kernels.sources.source import IncludeError, resolved
from tilewright.tuner import sandbox
from tilewright.tuner.devices.cpu.process import Allowance, run_limited

MIB = 1 << 20
IN_SANDBOX = pytest.mark.skipif(sandbox.missing() is not None, reason=f"no sandbox: {sandbox.missing()}")


def ran(script, **allowed):
    """A program of Python under that allowance."""
    return run_limited([sys.executable, "-c", script], PATIENCE_S, None, Allowance(**allowed))


def test_more_memory_than_allowed_is_refused():
    script = "x = bytearray({} << 20); print('has it')"
    assert ran(script.format(64), memory_bytes=512 * MIB).output == "has it\n"
    ended = ran(script.format(1024), memory_bytes=512 * MIB)
    assert (ended.output, "MemoryError" in ended.errors) == ("", True)
    assert ended.interruption is None  # the program's own doing


def test_a_file_larger_than_allowed_ends_the_program(tmp_path):
    script = f"open({str(tmp_path / 'large')!r}, 'wb').write(bytes(8 << 20))"
    assert ran(script, file_bytes=16 * MIB, writes=(tmp_path,)).code == 0
    assert ran(script, file_bytes=MIB, writes=(tmp_path,)).code != 0
    assert (tmp_path / "large").stat().st_size <= MIB


def test_nothing_of_the_workers_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_KEY", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    ended = ran("import os; print(dict(os.environ))")
    assert ended.code == 0
    assert "secret" not in ended.output
    assert "PATH" in ended.output


@IN_SANDBOX
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print(open('/etc/passwd').read())", "FileNotFoundError"),
        ("open('/usr/written', 'w')", "Read-only file system"),
        ("import socket; socket.create_connection(('127.0.0.1', 22), 5)", "refused"),
        ("import socket; socket.create_connection(('8.8.8.8', 53), 5)", "unreachable"),
    ],
)
def test_in_the_sandbox_there_is_nothing_of_this_machine(script, said):
    assert said in ran(script).errors


@IN_SANDBOX
def test_in_the_sandbox_no_other_process_is_seen():
    script = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    assert int(ran(script).output) <= 3


@IN_SANDBOX
def test_a_signal_that_ended_a_program_in_the_sandbox_is_told():
    ended = ran("import os; os.kill(os.getpid(), 11)")
    assert ended.code == -11


@pytest.mark.parametrize("text", ['#include "/etc/passwd"', "#include </etc/passwd>", '  # include_next "/etc/hosts"'])
def test_a_file_of_the_machine_is_not_included_into_a_source(tmp_path, text):
    source = tmp_path / "kernel.cu"
    source.write_text(f"{text}\n")
    with pytest.raises(IncludeError, match="by its whole path"):
        resolved(source)


def test_nor_by_a_way_up_or_by_a_link(tmp_path):
    source, up = tmp_path / "kernel.cu", "../" * (len(tmp_path.resolve().parts) - 1)
    source.write_text(f'#include "{up}etc/passwd"\n')
    with pytest.raises(IncludeError, match="no header"):
        resolved(source)
    (tmp_path / "link.cuh").symlink_to("/etc/passwd")
    source.write_text('#include "link.cuh"\n')
    with pytest.raises(IncludeError, match="no header"):
        resolved(source)
    (tmp_path / "shared.cuh").write_text("int shared;\n")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "kernel.cu").write_text('#include "../shared.cuh"\n')
    assert "int shared;" in resolved(tmp_path / "kernels" / "kernel.cu")


def test_what_is_off_is_said(monkeypatch):
    monkeypatch.setenv(sandbox.VARIABLE, "off")
    assert sandbox.missing() == "TILEWRIGHT_SANDBOX is off"
    assert sandbox.confined(["true"], reads=[Path("/etc")]) == ["true"]

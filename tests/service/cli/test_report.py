"""Results as text, and `report`: a real one on the CPU device, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from tilewright.kernels.space import Configuration
from tilewright.service.cli.local import ladder
from tilewright.service.cli.report import print_best
from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.service.operations.answers import BestAnswer, LaunchAnswer, LibraryAnswer, Match, ProblemAnswer
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.local import find_device
from tilewright.tuner.report.tables import number

LIBRARY = LibraryAnswer(name="cuBLAS", time_ms=2.0, faster=False, speedup=2.0, bound_ratio=0.5)


def answer(dtype="float32", **more):
    options = {"accuracy": "fp32"} if dtype == "float32" else {}
    return BestAnswer(
        match="exact",
        problem=ProblemAnswer(kernel="gemm", shape={"m": 1, "n": 2, "k": 3}, dtype=dtype, options=options),
        tuned_problem=None,
        device_model="test",
        variant="naive",
        configuration={},
        launch=LaunchAnswer(grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=0),
        flags=[],
        expected_loss=0,
        environment=None,
        verified_at=None,
        source_hash="",
        **{"library": None, "time_ms": 1.0} | more,
    )


@pytest.mark.parametrize(
    ("best", "line"),
    [
        (
            answer(accuracy="fp32", bound_ratio=0.25, library=LIBRARY),
            "fp32, off by 12% of the allowed error, the library by 25%",
        ),
        (answer(accuracy="tf32", bound_ratio=0.25), "tf32, off by 12% of the allowed error"),
        (answer(accuracy="tf32"), "tf32"),
        (answer("float64", bound_ratio=0.25), "float64, off by 12% of the allowed error"),
    ],
)
def test_accuracy_and_errors_have_a_line(capsys, best, line):
    print_best(best)
    shown = [text.split(maxsplit=1)[1] for text in capsys.readouterr().out.splitlines() if text.startswith("accuracy")]
    assert shown == [line]


@pytest.mark.parametrize(("kernel", "operand"), [("gemm", "B"), ("linear", "W"), ("of_somebody_else", "an input")])
def test_the_time_of_a_pack_is_said_beside_the_time_that_leaves_it_out(capsys, kernel, operand):
    packed = answer(time_ms=0.031, pack_ms=0.012)
    print_best(packed.model_copy(update={"problem": packed.problem.model_copy(update={"kernel": kernel})}))
    assert f"0.031 ms, and 0.012 ms once to pack {operand}\n" in capsys.readouterr().out


def test_what_rests_on_shipped_records_says_so_and_which_to_use(capsys):
    library = LibraryAnswer(name="cuBLAS 13.1", time_ms=0.5, faster=True, speedup=0.5, expected=True)
    more = {"match": Match.PREDICTED, "shipped": "shipped records of an NVIDIA H200 (…)", "library": library}
    print_best(answer().model_copy(update=more))
    shown = " ".join(capsys.readouterr().out.split())
    assert "predicted from shipped records of an NVIDIA H200 (…)" in shown
    assert "cuBLAS 13.1: 0.5 ms expected, not timed; use the library here: it may well be faster (0.50)" in shown
    print_best(answer().model_copy(update={"library": library.model_copy(update={"launched": True})}))
    assert "not timed; launchers make this call: it may well" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("launched", "advice"), [(True, "launchers make this call"), (False, "use the library here")])
def test_a_call_of_the_library_that_launchers_make_is_named_as_the_answer(capsys, launched, advice):
    name = "cuBLASLt 13.1.2 (algorithm 66, tile 20, FP32)"
    library = LibraryAnswer(name=name, time_ms=0.5, faster=True, speedup=0.8, launched=launched)
    print_best(answer().model_copy(update={"library": library}))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{name}: 0.5 ms; {advice}: it is 1.25 times as fast as this kernel" in shown


def test_what_comes_from_a_table_names_the_sizes_that_it_serves(capsys):
    more = {"match": Match.RANGE, "sizes": "m=65..1024", "expected_loss": 0.05}
    print_best(answer().model_copy(update=more))
    assert "range match, for m=65..1024, expected 5 % above the best possible time" in capsys.readouterr().out


SHAPE = "m=24,n=16,k=20"


@pytest.mark.exhaustive  # 24 s: the users' kernel below goes the same way
def test_a_report_on_the_cpu_device_uses_what_the_database_knows(local, run, tmp_path, monkeypatch):
    from factories import Rows  # noqa: PLC0415 - the API's tests have it beside them

    with transaction() as session:
        known = Configuration.of("tiled", {"TILE_WIDTH": 8})
        device = CpuDevice()
        Rows(session).best({"m": 24, "n": 16, "k": 20}, configuration=known, model=device.model)
        device.close()
    out = tmp_path / "out"
    ran = run("report", "gemm", "--device", "cpu", "--quick", "--shape", SHAPE, "--out", str(out), "--json")
    assert ran.status == 0, ran.err
    names = {"gemm.md", "gemm.json"}
    assert {path.name for path in out.iterdir()} == {Path(name).name for name in ran.json["files"]} == names
    steps = {row["title"]: row for row in ran.json["report"]["steps"]}
    timed = {name for name, row in steps.items() if row["time"]}
    assert {"CPU, one-thread loop", "CPU, BLAS", "naive", "tiled", "tiled, float64", "library"} <= timed
    assert steps["tiled"]["configuration"] == "tiled TILE_WIDTH=8"
    assert steps["tiled"]["chosen"] == "known: the database"
    assert steps["naive"]["chosen"] == "as declared"
    assert steps["tensor cores"]["left_out"].startswith("needs ptx")
    page = (out / "gemm.md").read_text()
    assert all(f"| {number(row['time']['median_ms'])} |" in page for row in steps.values() if row["time"])
    assert "CPU device" in page
    assert json.loads((out / "gemm.json").read_text()) == ran.json["report"]
    assert "100% writing" in ran.err


@pytest.mark.in_turn(2)
def test_a_kernel_of_the_users_own_has_a_report_of_its_variants(tmp_path):
    environment = os.environ | {"TILEWRIGHT_DATA_DIR": str(tmp_path / "data")}
    environment["TILEWRIGHT_KERNEL_FOLDERS"] = str(Path(__file__).parents[3] / "examples" / "transpose")
    words = ["transpose", "--device", "cpu", "--quick", "--shape", "m=40,n=24", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "tilewright.service.cli", "report", *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    steps = json.loads((tmp_path / "out" / "transpose.json").read_text())["steps"]
    assert [row["title"] for row in steps] == ["default configuration", "tiled", "direct", "library"]
    assert [bool(row["time"]) for row in steps] == [True, True, True, False]
    assert {row["work"]["flops"] for row in steps} == {0}  # it computes nothing, and is rated by its bytes
    page = (tmp_path / "out" / "transpose.md").read_text()
    assert re.search(r"At 40 x 24 the fastest step is (default configuration|tiled|direct): .* ms, .* GB/s\.", page)
    assert re.search("as (fast|long) as default configuration", page)  # also where they differ by no more than noise


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("nosuch",), (2, "There is no kernel 'nosuch'. Known: add_layer_norm, ")),
        (("gemm", "--shape", "m=3"), (2, "the axis n is missing")),
        (("gemv", "--shape", "m=3;n=4"), (2, "shape.m: '3;n=4' is not a whole number")),
        (("gemm", "--device", "cuda:77"), (4, "There is no device 'cuda:77'. Devices here: ")),
        (("gemm", "--known", "absent.json"), (1, "cannot read configurations from absent.json")),
        (("gemm", "--seconds", "0"), (2, "--seconds")),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(unreachable, run, tmp_path, monkeypatch, words, refused):
    monkeypatch.chdir(tmp_path)
    ran = run("report", *words)
    assert (ran.status, ran.out) == (refused[0], "")
    assert refused[1] in ran.err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    out = tmp_path / "out"
    environment = os.environ | {"TILEWRIGHT_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-m", "tilewright.service.cli", "report", "gemv", "--quick", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as reporting:
        assert "naive: a configuration" in reporting.stderr.readline()
        reporting.send_signal(signal.SIGINT)
        reporting.stderr.read()
        assert reporting.wait(PATIENCE_S) == 130
    assert not out.exists()


def test_a_report_waits_for_a_device_that_another_program_has_for_a_moment(monkeypatch):
    entry, said, held = find_device("cpu"), [], ExitStack()
    held.enter_context(host_lock(entry.physical_uuid, "measuring"))

    def note(text):
        said.append(text)
        held.close()

    monkeypatch.setattr(ladder, "note", note)
    taken = host_lock(entry.physical_uuid, "measuring", wait_s=0)
    with ladder.alone_on(entry), pytest.raises(DeviceBusyError), taken:
        pass
    assert said == ["cpu is in use; waiting up to 30 s for it"]
    with host_lock(entry.physical_uuid, "measuring", wait_s=0):
        pass


def test_a_report_gives_a_device_up_that_stays_taken(run, monkeypatch):
    monkeypatch.setattr(ladder, "WAIT_S", 0.2)
    with host_lock(find_device("cpu").physical_uuid, "measuring"):
        ran = run("report", "gemm", "--device", "cpu", "--quick", "--shape", SHAPE)
    assert ran.status == 1
    assert "waiting up to 0.2 s for it" in ran.err
    assert "holds the device" in ran.err

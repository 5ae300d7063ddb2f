"""Folders of kernels that are edited while a process runs."""

import logging
import os

import pytest
from test_catalogue import DECLARATION, SOURCE, make_folder

from tilewright.kernels.errors import BrokenDeclarationError
from tilewright.kernels.sources.watched import LOOK_EVERY_S, WatchedCatalogue


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def later(watched, clock):
    clock.now_s += LOOK_EVERY_S
    return watched.now()


def test_an_edited_source_and_an_edited_declaration_are_read_again(tmp_path, clock):
    folder = make_folder(tmp_path / "twice")
    watched = WatchedCatalogue([folder], clock)
    first = watched.now()
    before = first.get("twice").source_hash("plain")
    (folder / "plain.cu").write_text(SOURCE + "static_assert(true);\n")
    assert watched.now() is first  # no look yet
    assert later(watched, clock).get("twice").source_hash("plain") != before
    assert first.get("twice").source_hash("plain") == before
    make_folder(folder, size=2000)  # as long as before, in the same second
    assert later(watched, clock).get("twice").example_shape == {"n": 2000}
    assert watched.now().get("gemm") is first.get("gemm")


def test_what_was_not_edited_is_not_read_again(tmp_path, clock):
    watched = WatchedCatalogue([make_folder(tmp_path / "twice")], clock)
    assert later(watched, clock) is later(watched, clock)


def test_a_header_beside_the_folder_and_a_replaced_folder_count(tmp_path, clock):
    header = tmp_path / "shared.cuh"
    header.write_text("using First = int;\n")
    folder = make_folder(tmp_path / "twice", source='#include "shared.cuh"\n' + SOURCE)
    watched = WatchedCatalogue([folder], clock)
    before = watched.now().get("twice").source_hash("plain")
    header.write_text("using Other = int;\n")
    edited = later(watched, clock).get("twice").source_hash("plain")
    assert edited != before
    new = make_folder(tmp_path / "new")
    folder.rename(tmp_path / "old")
    new.rename(folder)
    assert later(watched, clock).get("twice").source("plain") == SOURCE


def test_a_copy_that_keeps_size_and_time_counts(tmp_path, clock):
    folder = make_folder(tmp_path / "twice", source=SOURCE + "// 1")
    watched = WatchedCatalogue([folder], clock)
    source = folder / "plain.cu"
    then = source.stat()
    source.write_text(SOURCE + "// 2")
    os.utime(source, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert later(watched, clock).get("twice").source("plain").endswith("// 2")


def test_a_folder_that_is_broken_for_a_while_changes_nothing_and_is_told_once(tmp_path, clock, caplog):
    folder = make_folder(tmp_path / "twice")
    watched = WatchedCatalogue([folder], clock)
    first = watched.now()
    (folder / "plain.cu").write_text("half of it")
    with caplog.at_level(logging.WARNING):
        assert later(watched, clock) is first
        assert later(watched, clock) is first
    (told,) = caplog.messages
    assert "plain.cu" in told
    assert "the previous ones stay in use" in told
    (folder / "plain.cu").unlink()
    assert later(watched, clock) is first
    (folder / "plain.cu").write_text(SOURCE)
    assert later(watched, clock) is not first


def test_a_folder_that_is_broken_at_first_is_refused(tmp_path, clock):
    with pytest.raises(BrokenDeclarationError):
        WatchedCatalogue([tmp_path], clock)


def test_no_bytecode_is_written_into_the_folder(tmp_path, clock):
    folder = make_folder(tmp_path / "twice")
    WatchedCatalogue([folder], clock)
    assert sorted(path.name for path in folder.iterdir()) == ["declaration.py", "plain.cu"]


def test_a_header_in_an_include_folder_counts(tmp_path, clock):
    header = tmp_path / "elsewhere" / "shared.cuh"
    header.parent.mkdir()
    header.write_text("using First = int;\n")
    folder = make_folder(
        tmp_path / "twice",
        source='#include "shared.cuh"\n' + SOURCE,
        declaration=DECLARATION.replace(
            "flops=", "include_folders=(Path(__file__).parents[1] / 'elsewhere',), flops="
        ).replace("import numpy", "from pathlib import Path\nimport numpy"),
    )
    watched = WatchedCatalogue([folder], clock)
    before = later(watched, clock).get("twice").source_hash("plain")
    assert later(watched, clock) is later(watched, clock)
    header.write_text("using Other = int;\n")
    assert later(watched, clock).get("twice").source_hash("plain") != before

"""What others wrote is here as they published it, with its licence."""

import hashlib
import json
from pathlib import Path

import pytest

from tilewright.service.dashboard import STATIC

FOLDERS = [STATIC / "vendor", Path(__file__).parents[2] / "browser" / "vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_vendored_file_is_the_published_one(folder):
    listed = {entry["file"]: entry for package in read(folder) for entry in package["files"]}
    present = {file.name for file in folder.iterdir()} - {"VENDORED.json"}
    assert present == set(listed)
    for name, entry in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_vendored_package_has_version_and_licence(folder):
    for package in read(folder):
        assert package["version"]
        assert any("LICENSE" in entry["source"] for entry in package["files"]), package["package"]


def read(folder):
    return json.loads((folder / "VENDORED.json").read_text(encoding="utf-8"))

"""Folders of kernels, as the setting names them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from tilewright.kernels.folders import folders_of
from tilewright.service.settings_model import Settings


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("", []),
        ("/foo", ["/foo"]),
        ("/foo:/with space/bar", ["/foo", "/with space/bar"]),
        ("relative:", ["relative"]),
        ('["/foo", "/b:r"]', ["/foo", "/b:r"]),
        ("[]", []),
    ],
)
def test_folders_are_a_path_several_paths_or_json(text, folders, monkeypatch):
    assert folders_of(text) == [Path(folder) for folder in folders]
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", text)
    assert Settings().kernel_folders == folders_of(text)


@pytest.mark.parametrize("text", ['["/foo"', "[1]"])
def test_what_is_no_list_is_refused_with_an_example(text, monkeypatch):
    with pytest.raises(ValueError, match="/srv/kernels/axpy"):
        folders_of(text)
    monkeypatch.setenv("TILEWRIGHT_KERNEL_FOLDERS", text)
    with pytest.raises(ValidationError, match="/srv/kernels/axpy"):
        Settings()

"""An API of this machine, found by its data folder."""

from tilewright.tuner.runtime.known.local_service import NotedAddress, local_address


def test_an_api_of_this_machine_is_found_by_its_data_folder_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path))
    assert local_address() is None
    processes = [
        NotedAddress(tmp_path, "0.0.0.0", 4321)  # noqa: S104 - compared only
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    assert local_address() == "http://127.0.0.1:4321"
    processes[0].stop()
    assert local_address() == "http://127.0.0.1:4321"
    processes[1].stop()
    assert local_address() is None  # the file is there, and nobody behind it
    assert NotedAddress(tmp_path, "::", 1).address == "http://[::1]:1"


def test_a_data_folder_that_cannot_be_written_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    NotedAddress(tmp_path / "file" / "data", "127.0.0.1", 1).start()
    assert "do not find this API" in caplog.text

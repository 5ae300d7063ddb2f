"""`tables`: a family tuned on the CPU device, shown again, and what is refused."""

import pytest

SHAPE = "m=1..24,n=16,k=20"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def test_a_family_is_tuned_kept_and_shown(local, run):
    tuned = run(
        *("tables", "tune", "gemm", "--shape", SHAPE, "--device", "cpu", "--sizes", "2", "--trials", "2", "--json")
    )
    assert tuned.status == 0, tuned.err
    assert tuned.json["ranges"][0]["low"] == 1
    assert tuned.json["ranges"][-1]["high"] == 24
    model = tuned.json["device_model"]
    shown = run("tables", "show", "gemm", "--shape", SHAPE, "--device-model", model, "--json")
    assert shown.json == tuned.json
    text = run("tables", "show", "gemm", "--shape", SHAPE, "--device-model", model)
    assert "loss over the best" in text.out


def test_what_was_not_tuned_is_said_with_the_remedy(local, run):
    shown = run("tables", "show", "gemm", "--shape", "m=1..9,n=3,k=4", "--device-model", "nvidia-h200")
    assert shown.status == 3
    assert "tilewright tables tune gemm --shape m=1..9,n=3,k=4" in shown.err


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("m=1..9,n=1..3,k=4", "one axis must be a range"),
        ("m=9..1,n=3,k=4", "empty"),
        ("m=1..,n=3,k=4", "LOW..HIGH"),
        ("m=1..9,m=3,k=4", "twice"),
    ],
)
def test_a_shape_that_is_no_family_is_refused(local, run, shape, says):
    refused = run("tables", "tune", "gemm", "--shape", shape, "--device", "cpu")
    assert refused.status == 2
    assert says in refused.err

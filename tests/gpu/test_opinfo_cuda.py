"""Every sample of PyTorch's own test suite through our operators and accelerated modules, on CUDA tensors."""

import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]


def test_no_sample_of_pytorchs_own_suite_differs_and_kernels_of_ours_compute_most(torch, operators_cache, monkeypatch):
    pytest.importorskip("expecttest", reason="PyTorch's own test code imports it")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(operators_cache))
    import opinfo  # noqa: PLC0415 - it takes seconds

    found = [one for entry in opinfo.ENTRIES for one in opinfo.outcomes(entry, "cuda")]
    sys.stdout.write(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n{opinfo.table(found)}\n")
    assert [one for one in found if one.verdict == "failed"] == []
    assert opinfo.share_of_ours(found) >= opinfo.LEAST_OURS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_autocast_has_the_rule_of_pytorchs_own_operators(torch, tw, dtype):
    F, wide = torch.nn.functional, torch.bfloat16
    x, w, m = (torch.randn(one, dtype=getattr(torch, dtype), device="cuda") for one in [(64, 64), (64,), (64, 64)])
    with torch.autocast("cuda", wide):
        for found, expected in [
            (tw.gemm(x, m), x @ m),
            (tw.gemv(x, w), torch.mv(x, w)),
            (tw.linear(x, m, w), F.linear(x, m, w)),
            (tw.gemm_(x.clone(), x, m), x.clone().addmm_(x, m, beta=0)),
            (tw.softmax(x), x.softmax(-1)),
            (tw.rms_norm(x, w), F.rms_norm(x, (64,), w)),
            (tw.layer_norm(x, w, w), F.layer_norm(x, (64,), w, w)),
            (tw.add_rms_norm(x, m, w), (F.rms_norm(x + m, (64,), w), x + m)),
            (tw.add_layer_norm(x, m, w, w), (F.layer_norm(x + m, (64,), w, w), x + m)),
        ]:
            torch.testing.assert_close(found, expected, rtol=0.03, atol=0.2)

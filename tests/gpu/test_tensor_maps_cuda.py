"""Products on Hopper by tensor maps, or in half types packed: layouts, types, views and splits; maps that move."""

import random
from dataclasses import replace

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.runtime import Runtime
from tilewright.tuner.runtime.launches.gpu import gpu_place

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NAME, PACKED, TURNED = "tensor_half_sm90", "tensor_half_packed_sm90", "tensor_half_turned_sm90"
CASES = [
    *(
        ("gemm", (520, 776, 328), "bfloat16", {"trans_a": a, "trans_b": b})
        for a in (False, True)
        for b in (False, True)
    ),
    ("gemm", (2056, 3000, 72), "float16", {"beta_zero": False}),
    ("gemm", (136, 2048, 4104), "bfloat16", {"trans_b": True, "output": "float32"}),
    ("gemm", (1, 512, 1024), "float16", {"trans_b": True}),
    ("gemm", (64, 512, 4096), "bfloat16", {}),
    ("gemm", {"m": 130, "n": 264, "k": 200, "batch": 3, "lda": 208, "ldb": 272, "ldc": 280}, "bfloat16", {}),
    ("gemm", {"m": 192, "n": 128, "k": 64, "batch": 5, "stride_b": 0}, "float16", {"beta_zero": False}),
    (
        "gemm",
        {"m": 64, "n": 72, "k": 136, "batch": 4, "ldc": 4 * 72, "stride_c": 72},
        "bfloat16",
        {"output": "float32"},
    ),
    ("linear", (300, 776, 328), "bfloat16", {"activation": "gelu"}),
    ("linear", (1000, 520, 1032), "float16", {"activation": "relu"}),
    ("linear", (704, 704, 136), "bfloat16", {"activation": "relu"}),  # eleven tiles of 64, of which clusters take two
    ("linear_gated", (2056, 3000, 72), "float16", {}),  # tiles of every size, the last with rows of U in G's place
    ("linear_gated", (520, 1544, 328), "bfloat16", {"activation": "gelu"}),
    ("linear_gated", (65, 24, 264), "bfloat16", {"activation": "relu"}),
]
TURNED_CASES = [
    ("linear_gated", (100, 776, 2056), "bfloat16", {}),
    ("linear_gated", (189, 1032, 520), "float16", {"activation": "gelu"}),
    # tiles of any multiple of 8 rows
    ("gemm", (39, 776, 3592), "bfloat16", {"trans_b": True}),
    ("gemm", (189, 712, 3584), "float16", {"trans_b": True, "beta_zero": False}),
    ("gemm", (647, 1288, 1032), "bfloat16", {"trans_b": True}),
    ("linear", (43, 776, 1000), "bfloat16", {"activation": "gelu"}),
    ("linear", (1150, 1032, 264), "float16", {"activation": "relu", "output": "float32"}),
    ("linear", (178, 4096, 4096), "bfloat16", {"activation": "relu"}),  # tiles shared by the workspace too
]
ODD_CASES = [
    *(
        ("gemm", (523, 777, 331), "bfloat16", {"trans_a": a, "trans_b": b, "beta_zero": a != b})
        for a in (False, True)
        for b in (False, True)
    ),
    ("gemm", (2057, 3001, 73), "float16", {"beta_zero": False}),
    ("gemm", (137, 2049, 777), "bfloat16", {"trans_b": True, "output": "float32"}),
    ("gemm", (1, 513, 1023), "float16", {"trans_b": True}),
    ("gemm", (33, 77, 8191), "bfloat16", {"beta_zero": False}),
    ("gemm", (65, 64, 127), "bfloat16", {}),
    ("gemm", (7, 1, 9), "float16", {}),
    ("gemm", (320, 673, 320), "float16", {"trans_a": True, "beta_zero": False}),  # five tiles of 64, clusters take two
    ("gemm", {"m": 131, "n": 265, "k": 201, "batch": 3, "lda": 207, "ldb": 271, "ldc": 283}, "bfloat16", {}),
    ("gemm", {"m": 130, "n": 262, "k": 202, "batch": 3, "lda": 208, "ldb": 280, "ldc": 280}, "float16", {}),
    ("gemm", {"m": 193, "n": 129, "k": 65, "batch": 5, "stride_b": 0}, "float16", {"beta_zero": False}),
    (
        "gemm",
        {"m": 65, "n": 71, "k": 137, "batch": 4, "ldc": 4 * 71, "stride_c": 71},
        "bfloat16",
        {"output": "float32"},
    ),
    ("linear", (301, 777, 333), "bfloat16", {"activation": "gelu"}),
    ("linear", (1001, 523, 1031), "float16", {"activation": "relu"}),
]
TF32 = {"accuracy": "tf32"}
MULTICAST = [
    ("gemm", (512, 1024, 512), "float32", TF32),
    ("gemm", (1000, 700, 100), "float32", TF32 | {"beta_zero": False}),  # the second of two blocks may be outside
    ("gemm", (300, 1283, 516), "float32", TF32),  # rows of B begin anywhere
    ("gemm", (521, 333, 132), "float32", TF32 | {"trans_a": True, "trans_b": True}),
    ("gemm", {"m": 520, "n": 1030, "k": 132, "batch": 3}, "float32", TF32 | {"trans_b": True}),
    ("gemm", {"m": 130, "n": 264, "k": 200, "batch": 3, "lda": 208, "stride_a": 0}, "float32", TF32),
]
STREAMED = [
    ("gemm", (1, 4096, 4096), "bfloat16", {"trans_b": True}),
    ("gemm", (8, 1000, 1000), "float16", {"trans_b": True, "beta_zero": False}),
    ("gemm", (16, 264, 2056), "bfloat16", {}),
    ("gemm", (33, 65, 72), "bfloat16", {"trans_b": True, "output": "float32"}),
    ("gemm", (64, 777, 264), "float16", {"trans_b": True, "output": "float32", "beta_zero": False}),
    ("gemm", {"m": 13, "n": 130, "k": 520, "batch": 3, "lda": 528, "ldb": 136, "ldc": 131}, "bfloat16", {}),
    (
        "gemm",
        {"m": 50, "n": 72, "k": 392, "batch": 4, "stride_b": 0, "ldc": 4 * 72, "stride_c": 72},
        "float16",
        {"trans_b": True},
    ),
    ("linear", (5, 1001, 4096), "bfloat16", {"activation": "gelu"}),
    # What the tensor core cuts off sums stays within float32's bound up to some 300 terms; a trial with more is wrong.
    ("linear", (64, 520, 264), "float16", {"activation": "relu", "output": "float32"}),
    ("linear_gated", (1, 1000, 2048), "bfloat16", {}),
    ("linear_gated", (17, 77, 520), "float16", {"activation": "gelu"}),
    ("linear_gated", (64, 640, 1024), "bfloat16", {"activation": "relu"}),
]


@pytest.fixture(scope="module")
def device(device):
    if device.model.limits.compute_capability != (9, 0):
        pytest.skip("the variant is for compute capability 9.0")
    return device


@pytest.mark.parametrize(
    ("variant", "name", "sizes", "dtype", "options"),
    [
        *((NAME, *case) for case in CASES),
        *((TURNED, *case) for case in CASES if case[0] != "linear_gated" or case[1][1] > 32),
        *((TURNED, *case) for case in TURNED_CASES),
        *((PACKED, *case) for case in ODD_CASES),
        *(("tensor1xtf32_multicast_sm90", *case) for case in MULTICAST),
        *(("streamed_half_sm90", *case) for case in STREAMED),
        *(("streamed_half", *case) for case in STREAMED if case[0] != "gemm" or "trans_b" in case[3]),
    ],
    ids=str,
)
def test_products_are_right_with_every_kind_of_inputs(device, variant, name, sizes, dtype, options):
    declared = catalogue().get(name)
    kernel = replace(declared, variants=(declared.variant(variant),), default_variant=variant)
    shape = sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True))
    problem = kernel.problem(shape, dtype, options)
    feasible = kernel.space(problem, device.model.limits).feasible
    bench = device.bench(kernel, problem, 1)
    generator = random.Random(str(sizes))
    chosen = generator.sample(feasible, min(4, len(feasible)))
    for parameter in ("SPLIT_K", "SPLIT_FAR", "CLUSTER_M", "CLUSTER_N", "MULTIPLIERS", "RESIDENT"):
        chosen += [c for c in feasible if c.values.get(parameter, 1) > 1][-1:]
    for configuration in chosen:
        for verification in bench.verify_each_kind(bench.compile(configuration)):
            assert verification.wrong == 0, (configuration, verification.message())
    bench.close()


def test_the_launcher_follows_its_arrays(drv, torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    kernel = catalogue().get("gemm")
    shape = {"m": 264, "n": 520, "k": 328}
    problem = kernel.problem(shape, "bfloat16")
    limits = gpu_place(0).limits
    if limits.compute_capability != (9, 0):
        pytest.skip("the variant is for compute capability 9.0")
    configuration = kernel.space(problem, limits, [NAME]).feasible[0]
    launch = Runtime(pinned={problem: configuration}).best("gemm", **shape, dtype="bfloat16")
    for _ in range(3):
        a, b = (torch.randn(s, device="cuda").bfloat16() for s in ((264, 328), (328, 520)))
        c = torch.empty(264, 520, device="cuda", dtype=torch.bfloat16)
        launch(a, b, c)
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-2, atol=1e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(a, b, c)
    launch(torch.randn_like(a), b, torch.empty_like(c))  # elsewhere in between
    a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-2, atol=1e-2)

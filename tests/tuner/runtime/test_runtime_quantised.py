import numpy as np
import pytest

from tilewright.kernels.linear_quantized.reference import dequantised
from tilewright.tuner.runtime import ArgumentError, best, quantise


@pytest.mark.filterwarnings("ignore::tilewright.tuner.runtime.UntunedWarning")
@pytest.mark.parametrize("weights", ["int8", "int4_zeros"])
def test_a_layer_of_quantised_weights_is_computed(weights):
    generator = np.random.default_rng(5)
    x, w = generator.normal(size=(2, 256)).astype("float16"), generator.normal(size=(8, 256)).astype("float16")
    q = quantise(w, weights)
    launch = best("linear_quantized", m=2, n=8, k=256, dtype=q.dtype, device="cpu", **q.options)
    y = launch(x, q.W, q.S, np.empty((2, 8), "float16")).astype(float)
    stands_for = dequantised(launch.problem, {"W": q.W, "S": q.S})
    assert np.allclose(y, x.astype(float) @ stands_for.T, rtol=2e-3, atol=2e-2)
    step = {"int8": 0.06, "int4_zeros": 0.6}[weights]  # of weights within 4: their error adds over k as random numbers
    assert np.abs(y - x.astype(float) @ w.astype(float).T).max() < 16 * step


def test_a_torch_tensor_gives_torch_tensors():
    torch = pytest.importorskip("torch")
    w = torch.randn(4, 128, dtype=torch.bfloat16)
    q = quantise(w, "int4")
    assert (q.W.dtype, q.S.dtype, q.dtype) == (torch.uint8, torch.bfloat16, "bfloat16")
    assert np.array_equal(quantise(w.float().numpy(), "int4").W, q.W.numpy())


@pytest.mark.parametrize(
    ("given", "options", "argument"),
    [
        (np.ones((2, 100)), {}, "W"),
        (np.ones(128), {}, "W"),
        ([[1.0]], {}, "W"),
        (np.ones((2, 128)), {"weights": "int3"}, "weights"),
        (np.ones((2, 128)), {"group": 64}, "group"),
        (np.ones((2, 128)), {"dtype": "float32"}, "dtype"),
    ],
)
def test_what_cannot_be_quantised_names_the_argument(given, options, argument):
    with pytest.raises(ArgumentError) as raised:
        quantise(given, **options)
    assert raised.value.argument == argument

"""The attention operator: PyTorch's results and gradients in every form of its arguments, and where PyTorch's runs."""

import math
import warnings

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tw  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.call import Call, entries  # noqa: E402
from tilewright.tuner.pytorch.acceleration.recognition.calls import FUNCTIONS  # noqa: E402
from tilewright.tuner.pytorch.operators import attention  # noqa: E402
from tilewright.tuner.pytorch.operators.attention import ATTENTION  # noqa: E402

F = torch.nn.functional
OURS = "scaled_dot_product_attention"


def heads(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def is_ours():
    """Whether the last call launched our kernel."""
    return tw.status()[-1].operator == OURS and tw.status()[-1].is_ours


def separated(q, k, v):
    """A model's views: heads are columns of one product."""
    together = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
    return [x.unflatten(-1, q.shape[1::2]).transpose(1, 2) for x in together.chunk(3, -1)]


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "added": {"attn_mask": torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(1))},
    "padding": {"attn_mask": torch.tensor([[True] * 9, [True] * 5 + [False] * 4])[:, None, None, :]},
    "of queries": {"attn_mask": torch.ones(7, 9).tril(2).log()},
}


@pytest.mark.parametrize("name", MASKS)
def test_a_result_and_its_gradients_are_those_of_pytorch(name):
    q, k, v = (heads(2, 3, rows, 16, grad=True) for rows in (7, 9, 9))
    result, expected = (one(q, k, v, **MASKS[name]) for one in (tw.scaled_dot_product_attention, getattr(F, OURS)))
    assert is_ours()
    torch.testing.assert_close(result, expected)
    along = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(result, (q, k, v), along), torch.autograd.grad(expected, (q, k, v), along)
    )


def test_views_of_one_product_are_read_as_they_are():
    q, k, v = separated(*(heads(2, 3, 7, 16) for _ in range(3)))
    result = tw.scaled_dot_product_attention(q, k, v)
    assert is_ours()
    torch.testing.assert_close(result, F.scaled_dot_product_attention(q, k, v))
    assert result.transpose(1, 2).is_contiguous()  # so that a model joins its heads without a copy


def test_heads_that_share_keys_are_right():
    q, k, v = heads(2, 6, 7, 16), heads(2, 2, 9, 16), heads(2, 2, 9, 16)
    result = tw.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert is_ours()
    torch.testing.assert_close(result, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_a_row_whose_every_key_is_masked_is_as_pytorch_has_it():
    q, k, v = (heads(1, 2, 5, 16) for _ in range(3))
    mask = torch.zeros(5, 5)
    mask[2] = -math.inf
    result = tw.scaled_dot_product_attention(q, k, v, mask)
    assert is_ours()
    torch.testing.assert_close(result, F.scaled_dot_product_attention(q, k, v, mask))
    assert not result[:, :, 2].any()


@pytest.mark.parametrize(
    ("shapes", "dtype", "named"),
    [
        ([(2, 3, 7, 16)] * 3, torch.bfloat16, {}),
        ([(2, 3, 7, 10)] * 3, torch.float32, {}),  # 10 is no multiple of 8
        ([(3, 7, 16)] * 3, torch.float32, {}),
        ([(2, 3, 7, 16), (2, 3, 7, 16), (2, 3, 7, 24)], torch.float32, {}),
    ],
)
def test_what_no_kernel_computes_is_pytorchs(shapes, dtype, named):
    given = [heads(*shape, dtype=dtype) for shape in shapes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tw.FallbackWarning)
        result = tw.scaled_dot_product_attention(*given, **named)
    assert not is_ours()
    torch.testing.assert_close(result, F.scaled_dot_product_attention(*given, **named))


def test_dropout_is_pytorchs():
    q, k, v = (heads(1, 2, 5, 16) for _ in range(3))
    before = len(tw.status())
    tw.scaled_dot_product_attention(q, k, v, None, 0.5)
    assert len(tw.status()) == before
    assert FUNCTIONS[F.scaled_dot_product_attention](q, k, v, None, 0.5) is None


def test_gradients_have_gradients():
    given = tuple(heads(1, 1, 3, 16, dtype=torch.float64, grad=True) for _ in range(3))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(tw.scaled_dot_product_attention, given)


def test_pytorchs_own_call_is_recorded_as_the_problem_that_it_poses():
    q, k, v = (heads(2, 3, 7, 16) for _ in range(3))
    with tw.record() as seen:
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
    [problem] = [one.problem for one in seen if one.problem]
    assert (problem.kernel, problem.options["mask"]) == ("attention", "causal")
    sizes = {"batch": 2, "heads": 3, "queries": 7, "keys": 7, "depth": 16}
    assert sizes.items() <= problem.shape.items()


def test_views_of_joined_layers_are_one_call_with_what_was_judged():
    apart = [torch.randn(2, 8, 64).view(2, 8, 2, 32).transpose(1, 2) for _ in range(3)]
    joined = [one.view(2, 8, 2, 32).transpose(1, 2) for one in torch.randn(2, 8, 192).chunk(3, -1)]
    turned = [one.mT for one in apart]
    keys = [
        entries(Call(ATTENTION, (*those, None, False, None, False)))
        for those in (apart, joined, apart[:2] + turned[:1])
    ]
    assert apart[0].stride() != joined[0].stride()
    assert keys[0] == keys[1] != keys[2]


def test_a_mask_whose_rows_have_gaps_is_copied_once_for_what_heads_and_batch_share():
    # T5's position bias: (queries, keys, heads), turned and shared by the batch
    bias = torch.randn(5, 7, 3).permute(2, 0, 1)[None].expand(2, 3, 5, 7)
    added = attention._added(torch.zeros(2, 3, 5, 8), bias, (2, 3, 5, 7))
    assert torch.equal(added, bias)
    assert added.stride() == (0, 35, 7, 1)

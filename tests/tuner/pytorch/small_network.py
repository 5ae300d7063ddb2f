"""A small network and what tests of `accelerate` ask of it."""

import pytest
import torch
from torch import nn

import tilewright.torch as tw

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
QUICK = {"rounds": 15, "compiles": None, "limit_s": 300}  # cold and under load: kernels are compiled first


class Net(nn.Module):
    """Two layers that are alike, a norm, a product and a softmax; what the layers do to the result can be seen."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5)

    def forward(self, x):
        y = self.two(self.drop(self.one(x)))
        return {"scores": torch.softmax(y @ self.norm(x).mT, -1), "y": y}


def winning(net, **named):
    result = tw.accelerate(net, X, **(QUICK | named))
    assert result.is_applied, str(result)
    return result


def unchanged(net, match, *given, **named):
    """One warning with the reason, and the model as it was."""
    with pytest.warns(tw.AccelerationWarning, match=match) as told:
        result = tw.accelerate(net, *given, **(QUICK | named))
    assert [one.category for one in told] == [tw.AccelerationWarning]
    assert told[0].filename == __file__
    assert not result.is_applied
    assert type(net.one) is nn.Linear
    assert result.reason in str(told[0].message)
    assert result.reason in str(result)
    return result

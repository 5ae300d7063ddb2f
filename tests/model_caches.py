"""A small decoder with caches as libraries of models have them: one that grows, and one that is written in place."""

import enum
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name


class Kind(enum.Enum):
    """A constant of a cache."""

    ONE = 1


class Named(OrderedDict):
    """A dictionary whose items are attributes, as libraries of models return it."""

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Layer:
    def __init__(self):
        self.keys = None
        self.length = 0
        self.device, self.kind = torch.device("cpu"), Kind.ONE


class Growing:
    """A cache whose tensors become longer."""

    def __init__(self):
        self.layers = [Layer()]

    def update(self, x):
        [layer] = self.layers
        layer.keys = x if layer.keys is None else torch.cat([layer.keys, x], -2)
        layer.length += x.shape[-2]
        return layer.keys


class Fixed(Growing):
    """A cache that is written in place."""

    def __init__(self, size, device="cpu"):
        super().__init__()
        self.layers[0].keys = torch.zeros(2, size, 8, device=device)
        self.layers[0].length = torch.tensor(0, device=device)

    def update(self, x):
        [layer] = self.layers
        layer.keys.index_copy_(1, layer.length + torch.arange(x.shape[-2], device=x.device), x)
        layer.length.add_(x.shape[-2])
        return layer.keys


class Decoder(nn.Module):
    """Attends to what a cache has, and returns the cache."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, cache=None):
        cache = Growing() if cache is None else cache
        keys = cache.update(self.layer(x))
        return Named(scores=self.head(F.softmax(x @ keys.mT, -1) @ keys), cache=cache)


def kept(cache):
    """What the cache holds."""
    return [torch.as_tensor(one) for one in (cache.layers[0].keys, cache.layers[0].length)]

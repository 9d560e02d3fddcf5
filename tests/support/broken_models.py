"""User models that each fail one check, or pass it with a note."""

import torch
from torch import nn


class Body(nn.Module):
    """Flatten, one linear layer, ReLU."""

    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), 12)

    def forward(self, x):
        return self.layer(x.flatten(1)).relu()


def _with(body, classes, head=None):
    net = nn.Module()
    net.body, net.head = body, head or nn.Linear(12, classes)
    return net


def sound(shape, classes):
    """Nothing is broken here."""
    return _with(Body(shape), classes)


def wrong_head(shape, classes):
    """The head is for wider features."""
    return _with(Body(shape), classes, nn.Linear(20, classes))


def in_place(shape, classes):
    """Rows are changed in place."""

    class Scaled(Body):
        def forward(self, x):
            return super().forward(x.mul_(0.5))

    return _with(Scaled(shape), classes)


def remembers(shape, classes):
    """Calls counted in the module."""

    class Remembering(Body):
        calls = 0

        def forward(self, x):
            self.calls += self.training
            return super().forward(x) * (1 + 0.1 * self.calls * self.training)

    return _with(Remembering(shape), classes)


def unregistered(shape, classes):
    """A random projection that is no buffer."""

    class Projected(Body):
        def __init__(self, shape):
            super().__init__(shape)
            self.projection = torch.randn(12, 12)

        def forward(self, x):
            return super().forward(x) @ self.projection.to(x.dtype)

    return _with(Projected(shape), classes)


def single_precision(shape, classes):
    """A constant without the type of what it meets."""

    class Masked(Body):
        def forward(self, x):
            return super().forward(x) @ torch.eye(12)

    return _with(Masked(shape), classes)


def infinite_gradient(shape, classes):
    """The root of 0 has no gradient."""

    class Rooted(Body):
        def forward(self, x):
            z = super().forward(x)
            return z + (z - z).abs().sqrt()

    return _with(Rooted(shape), classes)


def spoiled_gradient(shape, classes):
    """What the gradient of the root needs is written over."""

    class Spoiled(Body):
        def forward(self, x):
            root = (super().forward(x).square() + 1).sqrt()
            return root.add_(1) if self.training else root + 1

    return _with(Spoiled(shape), classes)


def branches(shape, classes):
    """vmap cannot run it, the loop can."""

    class Branching(Body):
        def forward(self, x):
            z = super().forward(x)
            return z if z.sum().item() > -1e9 else -z

    return _with(Branching(shape), classes)


def normed(shape, classes):
    """BatchNorm."""
    return _with(nn.Sequential(Body(shape), nn.BatchNorm1d(12)), classes)

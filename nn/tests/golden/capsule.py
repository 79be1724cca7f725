"""Capsules, against the formulas of Sabour, Frosst and Hinton (2017)."""

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, activation


def squash(s):
    n = s.norm(dim=-1, keepdim=True)
    return n**2 / (1 + n**2) * (s / n)


class Routed(nn.Module):
    """Dynamic routing of predictions in the layout [batch, input capsule, output capsule, dimension]."""

    def __init__(self, weight, bias, equation, iterations, detach, flat):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(weight))
        if bias:
            self.bias = nn.Parameter(torch.empty(bias))
        self.equation, self.iterations, self.detach, self.flat = equation, iterations, detach, flat

    def forward(self, u):
        predicted = torch.einsum(self.equation, u, self.weight)
        logits = predicted.new_zeros(predicted.shape[:3])
        for k in range(self.iterations):
            coupling = torch.softmax(logits, dim=2)
            if self.detach:
                coupling = coupling.detach()
            s = (coupling[..., None] * predicted).sum(dim=1)
            v = squash(s + self.bias if hasattr(self, "bias") else s)
            if k + 1 < self.iterations:
                logits = logits + (predicted * v[:, None]).sum(-1)
        return v.flatten(1) if self.flat else v


def draw(name, p, g):
    """Weights that give capsules of medium length, so that routing matters."""
    if name == "weight":
        return 0.6 * torch.randn(p.shape, generator=g, dtype=torch.float64)


def capsule():
    s = Suite("capsule")
    routed(s)
    digits(s)
    primary(s)
    reconstruction(s)
    return s


def routed(s):
    def case(label, sizes, batch=2, **config):
        i, d, j, o = sizes
        oracle = Routed(
            (i, d, j, o),
            (j, o) if config.get("bias", True) else None,
            "bid,idjo->bijo",
            config.get("routing_iterations", 3),
            config.get("detach_routing", False),
            False,
        )
        keys = {"in_capsules": i, "in_dim": d, "num_capsules": j, "capsule_dim": o, **config}
        s.case("capsule", label, keys, oracle, {"u": (batch, i, d)}, draw=draw)

    case("three_iterations", (5, 4, 3, 2))
    case("one_iteration", (4, 3, 2, 5), routing_iterations=1)
    case("five_iterations_no_bias", (6, 2, 4, 3), routing_iterations=5, bias=False)
    case("detached", (5, 3, 3, 4), detach_routing=True)
    case("one_sample", (3, 2, 5, 2), batch=1, routing_iterations=2)


def digits(s):
    def case(label, sizes, batch=2, **config):
        i, d, j, o = sizes
        oracle = Routed(
            (i, j, d, o),
            None,
            "bid,ijdo->bijo",
            config.get("routing_iterations", 3),
            config.get("detach_routing", False),
            config.get("flatten", False),
        )
        keys = {"in_capsules": i, "in_dim": d, "num_classes": j, "out_dim": o, **config}
        s.case("digit_capsule", label, keys, oracle, {"u": (batch, i, d)}, draw=draw)

    case("three_iterations", (5, 4, 3, 2))
    case("one_iteration", (4, 3, 2, 5), routing_iterations=1)
    case("detached_four_iterations", (6, 2, 4, 3), routing_iterations=4, detach_routing=True)
    case("flat", (5, 3, 3, 4), flatten=True)
    case("one_sample", (3, 2, 5, 2), batch=1, routing_iterations=2)


class Primary(nn.Module):
    def __init__(self, channels, p, d, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, p * d, kernel, stride)
        self.sizes = (p, d)

    def forward(self, x):
        y = self.conv(x)
        y = y.unflatten(-3, self.sizes)
        return squash(torch.movedim(y, (-2, -1), (-4, -3)))


def primary(s):
    def case(label, p, d, x, kernel_size=9, stride=2):
        keys = {"in_channels": x[-3], "capsule_channels": p, "capsule_dim": d}
        if kernel_size != 9:
            keys["kernel_size"] = kernel_size
        if stride != 2:
            keys["stride"] = stride
        s.case("primary_capsule", label, keys, Primary(x[-3], p, d, kernel_size, stride), {"x": x})

    case("nine_by_nine", 2, 3, (2, 1, 11, 12))
    case("small_kernel", 3, 2, (2, 2, 6, 7), kernel_size=3)
    case("stride_one", 2, 4, (1, 3, 5, 4), kernel_size=[2, 3], stride=1)
    case("unequal_strides", 1, 5, (2, 2, 7, 6), kernel_size=3, stride=[1, 3])
    case("unbatched", 2, 2, (2, 5, 5), kernel_size=3)


class Decoder(nn.Sequential):
    def __init__(self, inputs, hidden1, hidden2, outputs, hidden_activation="relu", output_activation="sigmoid"):
        h, o = activation(hidden_activation), activation(output_activation)
        layers = (nn.Linear(inputs, hidden1), nn.Linear(hidden1, hidden2), nn.Linear(hidden2, outputs))
        super().__init__(layers[0], Act(h), layers[1], Act(h), layers[2], Act(o))
        self.inputs = inputs

    def forward(self, x):
        return super().forward(x.reshape(-1, self.inputs))


class Act(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def reconstruction(s):
    def case(label, sizes, x, **config):
        i, h1, h2, o = sizes
        keys = {"in_features": i, "hidden1": h1, "hidden2": h2, "out_features": o, **config}
        s.case("reconstruction", label, keys, Decoder(*sizes, **config), {"x": x})

    case("rows", (6, 5, 7, 4), (3, 6))
    case("capsules", (6, 4, 5, 3), (3, 2, 3))
    case("image", (8, 5, 4, 9), (2, 2, 2, 2), hidden_activation="tanh")
    case("linear_output", (4, 6, 5, 2), (5, 4), output_activation="identity")
    case("silu_tanh", (4, 3, 6, 5), (1, 2, 2), hidden_activation="silu", output_activation="tanh")

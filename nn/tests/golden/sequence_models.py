"""Conditional random fields (against pytorch-crf), memories, spiking neurons (against snnTorch) and reservoirs."""

import math

import snntorch
import torch
import torch.nn.functional as F
from snntorch import surrogate
from torch import nn
from torchcrf import CRF

from case import Suite, activation


def sequence_models():
    s = Suite("sequence-models")
    field(s)
    memory_read(s)
    memory_write(s)
    spiking(s)
    reservoir(s)
    return s


class Likelihood(CRF):
    """The loss of a conditional random field."""

    def __init__(self, tags, act, reduction):
        super().__init__(tags, batch_first=True)
        self.act, self.reduction = activation(act), reduction

    def forward(self, emissions, tags, valid=None):
        if emissions.dim() == 2:
            emissions, tags = emissions[None], tags[None]
        valid = None if valid is None else valid.bool()
        return -super().forward(self.act(emissions), tags, mask=valid, reduction=self.reduction)


def field(s):
    def case(label, shape, tags, config, lengths=None):
        act, reduction = config.get("emission_activation", "identity"), config.get("reduction", "mean")
        oracle = Likelihood(tags, act, reduction)

        def path(g):
            return torch.randint(tags, shape, generator=g)

        inputs = {"emissions": (*shape, tags), "tags": path}
        if lengths:
            inputs["valid"] = torch.arange(shape[-1])[None] < torch.tensor(lengths)[:, None]
        s.case("conditional_random_field", label, {"num_tags": tags, **config}, oracle, inputs)

    case("mean", (3, 5), 4, {})
    case("sum_masked", (3, 5), 3, {"reduction": "sum"}, lengths=[5, 1, 3])
    case("activated", (2, 4), 5, {"emission_activation": "tanh"}, lengths=[4, 2])
    case("unbatched", (6,), 3, {})
    names = ["O", "B-x", "I-x"]
    case("named", (4, 2), 3, {"constraints": {"scheme": "bio", "labels": names}, "reduction": "sum"})


class MemoryRead(nn.Module):
    def __init__(self, inputs, width, outputs, scale=None, act="identity"):
        super().__init__()
        self.query = nn.Linear(inputs, width, bias=False)
        self.value = nn.Linear(width, outputs, bias=False)
        self.output = nn.Linear(outputs, outputs)
        self.scale, self.act = scale, activation(act)

    def forward(self, x, memory):
        memory = memory if memory.dim() == 3 else memory.expand(len(x), *memory.shape)
        q = self.query(x)[:, None]
        read = F.scaled_dot_product_attention(q, memory, memory, scale=self.scale)[:, 0]
        scale = self.query.out_features**-0.5 if self.scale is None else self.scale
        attention = torch.softmax(scale * (q * memory).sum(-1), -1)
        return self.act(F.linear(F.linear(read, self.value.weight), self.output.weight, self.output.bias)), attention


def memory_read(s):
    def case(label, sizes, memory, rows, **config):
        oracle = MemoryRead(*sizes, scale=config.get("scale"), act=config.get("activation", "identity"))
        keys = dict(zip(("in_features", "memory_dim", "out_features"), sizes))
        inputs = {"x": (rows, sizes[0]), "memory": memory}
        s.case("memory_read", label, {**keys, **config}, oracle, inputs)

    case("shared", (4, 3, 2), (5, 3), 3)
    case("own", (4, 3, 2), (3, 5, 3), 3)
    case("scale_tanh", (3, 4, 5), (2, 6, 4), 2, scale=1.0, activation="tanh")
    case("one_slot_relu", (2, 4, 3), (4, 2, 4), 4, activation="relu", scale=0.7)


class MemoryWrite(nn.Module):
    def __init__(self, inputs, width, addressing="dot", erase=True, act="identity"):
        super().__init__()
        self.key = nn.Linear(inputs, width, bias=False)
        self.content = nn.Linear(inputs, width, bias=False)
        if erase:
            self.erase = nn.Linear(inputs, width)
        if addressing == "cosine":
            self.beta = nn.Linear(inputs, 1, bias=False)
        self.output, self.act = nn.Linear(width, width), activation(act)

    def forward(self, x, memory):
        k, v = self.key(x), self.content(x)
        rows = []
        for b in range(len(x)):
            if hasattr(self, "beta"):
                cosine = memory[b] @ k[b] / (memory[b].norm(dim=-1) * k[b].norm() + 1e-8)
                w = torch.softmax(F.softplus(self.beta(x[b])) * cosine, 0)
            else:
                w = torch.softmax(memory[b] @ k[b] / len(k[b]) ** 0.5, 0)
            e = torch.sigmoid(self.erase(x[b])) if hasattr(self, "erase") else torch.zeros_like(v[b])
            rows.append(memory[b] * (1 - torch.outer(w, e)) + torch.outer(w, v[b]))
        return self.act(self.output(v)), torch.stack(rows)


def memory_write(s):
    def case(label, sizes, slots, rows, **config):
        act = config.get("activation", "identity")
        oracle = MemoryWrite(*sizes, config.get("addressing", "dot"), config.get("erase", True), act)
        keys = {"in_features": sizes[0], "memory_dim": sizes[1], **config}
        inputs = {"x": (rows, sizes[0]), "memory": (rows, slots, sizes[1])}
        s.case("memory_write", label, keys, oracle, inputs)

    case("dot", (4, 3), 5, 3)
    case("cosine", (4, 3), 5, 3, addressing="cosine")
    case("no_erase_tanh", (3, 4), 4, 2, erase=False, activation="tanh")
    case("cosine_no_erase", (2, 5), 3, 4, addressing="cosine", erase=False, activation="silu")


class Leaky(nn.Module):
    """snnTorch's neurons behind a linear layer."""

    def __init__(self, inputs, outputs, beta, threshold, reset, gradient):
        super().__init__()
        self.weight, self.bias = nn.Linear(inputs, outputs).parameters()
        self.hidden = [snntorch.Leaky(beta, threshold, gradient, reset_mechanism=reset).double()]

    def forward(self, x):
        steps = F.linear(x if x.dim() == 3 else x[None], self.weight, self.bias)
        mem, spikes, potentials = torch.zeros_like(steps[0]), [], []
        for current in steps:
            spike, mem = self.hidden[0](current, mem)
            spikes.append(spike)
            potentials.append(mem)
        spikes, potentials = torch.stack(spikes), torch.stack(potentials)
        return (spikes, potentials) if x.dim() == 3 else (spikes[0], potentials[0])


class Spike(torch.autograd.Function):
    """A step whose gradient is that of an arctangent."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z > 0).double()

    @staticmethod
    def backward(ctx, dy):
        (z,) = ctx.saved_tensors
        return dy / (1 + (math.pi * z) ** 2)


class Neurons(nn.Module):
    """Other neurons behind a linear layer: a step function of current and state, to spike, potential and state."""

    def __init__(self, inputs, outputs, step, start):
        super().__init__()
        self.weight, self.bias = nn.Linear(inputs, outputs).parameters()
        self.step, self.start = step, start

    def forward(self, x):
        steps = F.linear(x, self.weight, self.bias)
        state = [torch.full_like(steps[0], v) for v in self.start]
        spikes, potentials = [], []
        for current in steps:
            spike, v, state = self.step(current, *state)
            spikes.append(spike)
            potentials.append(v)
        return torch.stack(spikes), torch.stack(potentials)


def refractory(wait, threshold):
    def step(current, u, spiked, left):
        current = torch.where(left > 0, 0.0, current)
        u = 0.9 * u + current - threshold * spiked.detach()
        spike = torch.where(left > 0, 0.0, Spike.apply(u - threshold))
        left = torch.where(spike > 0, float(wait), torch.clamp(left - 1, min=0))
        return spike, u, [u, spike, left]

    return step, (0.0, 0.0, 0.0)


def izhikevich(dt):
    def step(current, v, u):
        for _ in range(2):
            v = v + dt / 2 * (0.04 * v**2 + 5 * v + 140 - u + current)
        u = u + dt * 0.02 * (0.2 * v - u)
        spike = Spike.apply(v - 30)
        fired = v > 30
        return spike, v, [torch.where(fired, -65.0, v), torch.where(fired, u + 8, u)]

    return step, (-65.0, -13.0)


def adex(dt):
    def step(current, v, w):
        e = torch.exp(torch.clamp((v + 50.4) / 2, max=20))
        new = v + dt / 281 * (-30 * (v + 70.6) + 30 * 2 * e - w + current)
        w = w + dt / 144 * (4 * (v + 70.6) - w)
        fired = new > 0
        return Spike.apply(new), new, [torch.where(fired, -70.6, new), torch.where(fired, w + 80.5, w)]

    return step, (-70.6, 0.0)


def hodgkin_huxley(dt):
    def rates(v):
        a = 0.1 * (v + 40) / (1 - torch.exp(-(v + 40) / 10)), 4 * torch.exp(-(v + 65) / 18)
        b = 0.07 * torch.exp(-(v + 65) / 20), 1 / (1 + torch.exp(-(v + 35) / 10))
        c = 0.01 * (v + 55) / (1 - torch.exp(-(v + 55) / 10)), 0.125 * torch.exp(-(v + 65) / 80)
        return a, b, c

    def step(current, v, m, h, n):
        out = 120 * m**3 * h * (v - 50) + 36 * n**4 * (v + 77) + 0.3 * (v + 54.387)
        new = v + dt * (current - out)
        gates = [g + dt * (a * (1 - g) - b * g) for g, (a, b) in zip((m, h, n), rates(v))]
        spike = Spike.apply(new) * (v <= 0)
        return spike, new, [new, *gates]

    rest = torch.tensor(-65.0)
    return step, (-65.0, *((a / (a + b)).item() for a, b in rates(rest)))


def spiking(s):
    def case(label, oracle, config, shape, outputs, size=None, call=None):
        # Neurons with units get positive currents of a size that makes them spike.
        def currents(g):
            x = torch.randn(shape, generator=g)
            return x if size is None else size * (0.5 + 0.5 * x.abs())

        def positive(name, p, g):
            return None if size is None else 0.2 + torch.rand(p.shape, generator=g)

        keys = {"in_features": shape[-1], "out_features": outputs, **config}
        s.case("spiking", label, keys, oracle, {"x": currents}, draw=positive, call=call)

    def leaky(label, config, shape=(6, 2, 3), outputs=4, beta=0.9, gradient=None, call=None):
        threshold, reset = config.get("threshold", 1.0), config.get("reset", "subtract")
        gradient = gradient or surrogate.atan(alpha=2.0)
        case(label, Leaky(shape[-1], outputs, beta, threshold, reset, gradient), config, shape, outputs, call=call)

    def transposed(module, x):
        return [y.transpose(0, 1) for y in module(x.transpose(0, 1))]

    # The first axis is time, which has at least one step.
    leaky("lif_unbatched", {"threshold": 0.5})
    leaky("batch_first", {"threshold": 0.5, "batch_first": True}, shape=(2, 6, 3), call=transposed)
    leaky("one_step", {"threshold": 0.2, "tau": 5}, shape=(5, 3), beta=0.8)
    leaky("zero_unbatched", {"threshold": 0.5, "reset": "zero", "beta": 0.7}, beta=0.7)
    fast = {"kind": "fast_sigmoid", "slope": 5}
    config = {"threshold": 0.6, "surrogate": fast}
    leaky("fast_sigmoid_unbatched", config, gradient=surrogate.fast_sigmoid(slope=5))
    config = {"neuron": "if", "threshold": 0.6, "reset": "none", "surrogate": {"kind": "sigmoid", "slope": 4}}
    leaky("if_sigmoid_unbatched", config, beta=1.0, gradient=surrogate.sigmoid(slope=4))

    def other(label, config, dynamics, shape=(6, 2, 3), outputs=4, size=None):
        case(label, Neurons(shape[-1], outputs, *dynamics), config, shape, outputs, size)

    config = {"threshold": 0.4, "refractory_steps": 2}
    other("refractory_unbatched", config, refractory(2, 0.4), shape=(8, 2, 3))
    other("izhikevich_unbatched", {"neuron": "izhikevich"}, izhikevich(1.0), shape=(4, 2, 3), size=15.0)
    # The exponential of a neuron that is about to spike has no digits left in f32: one case below that, one beyond it.
    other("adex_unbatched", {"neuron": "adex", "dt": 0.5}, adex(0.5), size=1200.0)
    other("adex_spikes_unbatched", {"neuron": "adex", "dt": 9}, adex(9.0), shape=(3, 2, 3), size=1e4)
    other("hodgkin_huxley_unbatched", {"neuron": "hodgkin_huxley"}, hodgkin_huxley(0.01), shape=(10, 2, 3), size=500.0)


class Reservoir(nn.Module):
    def __init__(self, inputs, size, leak):
        super().__init__()
        self.register_buffer("w_in", torch.randn(size, inputs))
        self.register_buffer("w_res", torch.randn(size, size) / size**0.5)
        self.leak = leak

    def forward(self, x):
        batch = x.reshape(-1, *x.shape[-2:]) if x.dim() > 1 else x[None, None]
        h, states = torch.zeros(len(batch), len(self.w_res)), []
        for t in range(batch.shape[1]):
            h = (1 - self.leak) * h + self.leak * torch.tanh(batch[:, t] @ self.w_in.T + h @ self.w_res.T)
            states.append(h)
        return torch.stack(states, 1).reshape(*x.shape[:-1], -1)


def reservoir(s):
    def case(label, shape, size, **config):
        keys = {"input_size": shape[-1], "reservoir_size": size, "connection_probability": 0.5, **config}
        oracle = Reservoir(shape[-1], size, config.get("leaking_rate", 1.0))
        s.case("reservoir", label, keys, oracle, {"x": shape})

    case("plain", (2, 5, 3), 6)
    case("leaking", (2, 5, 3), 6, leaking_rate=0.3)
    case("sequence_unbatched", (4, 2), 5, leaking_rate=0.8, spectral_radius=1.1)
    case("step_unbatched", (3,), 7, input_scaling=0.5)

"""Layers of one purpose: diffusion times, samples of autoencoders, warped images, radial basis functions, qubits, gated
networks. The oracles are the formulas of the papers, and PyTorch's sampling."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, activation, draw_parameter


def specialized():
    s = Suite("specialized")
    time_embedding(s)
    rep_parameterization(s)
    spatial_transformer(s)
    spynet(s)
    rbf(s)
    measurement(s)
    quantum(s)
    gated(s)
    return s


class Timestep(nn.Module):
    """Sinusoids of the time, then two linear layers; the names are those of Diffusers."""

    def __init__(self, d, o, max_period=1e4, flip_sin_to_cos=False, downscale_freq_shift=0, act="silu"):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(d, o), nn.Linear(o, o)
        self.d, self.flip, self.act = d, flip_sin_to_cos, activation(act)
        half = d // 2
        self.rates = [max_period ** (-i / (half - downscale_freq_shift)) for i in range(half)]

    def forward(self, t):
        angles = t.reshape(-1, 1) * torch.tensor(self.rates, dtype=torch.float64)
        halves = (angles.cos(), angles.sin()) if self.flip else (angles.sin(), angles.cos())
        columns = torch.zeros(len(angles), self.d, dtype=torch.float64)
        columns[:, : 2 * len(self.rates)] = torch.cat(halves, dim=1)
        return self.linear_2(self.act(self.linear_1(columns)))


def time_embedding(s):
    def case(label, d, o, t, **config):
        oracle = {k: v for k, v in config.items() if k != "activation"}
        module = Timestep(d, o, act=config.get("activation", "silu"), **oracle)
        s.case("time_embedding", label, {"embedding_dim": d, "output_dim": o, **config}, module, {"t": t})

    case("plain", 6, 4, (5,))
    case("column_odd", 7, 3, (4, 1))
    case("cosines_first", 4, 5, (6,), flip_sin_to_cos=True)
    case("shift_of_ddpm", 8, 3, (3, 1), downscale_freq_shift=1, activation="relu")
    case("short_periods", 4, 3, (5,), max_period=10, activation="gelu")
    case("whole_numbers", 6, 3, torch.tensor([0, 1, 7, 3]))


def rep_parameterization(s):
    # Only the mean is the same in every implementation: what is drawn in training is tested elsewhere.
    for rank in range(1, 5):
        shape = (3, 2, 4)[: rank - 1] + (6,)
        s.case(
            "rep_parameterization",
            f"rank{rank}_eval" if rank > 1 else "unbatched_eval",
            {},
            lambda x: x[..., :3],
            {"x": shape},
            training=False,
        )


class Transformer(nn.Module):
    """A localization network, and PyTorch's sampling by its maps."""

    def __init__(self, net, size, align_corners=False, padding="zeros"):
        super().__init__()
        self.localization = net
        self.size, self.align, self.padding = size, align_corners, padding

    def forward(self, x):
        theta = self.localization(x).reshape(-1, 2, 3)
        grid = F.affine_grid(theta, [*x.shape[:2], *self.size], align_corners=self.align)
        return F.grid_sample(x, grid, "bilinear", self.padding, self.align)


class Means(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Tanh(nn.Linear):
    def forward(self, x):
        return torch.tanh(super().forward(x))


def near_identity(name, p, g):
    """Maps that keep most of an image in view."""
    if name.endswith("3.bias") or name.endswith("1.bias"):
        moved = torch.randn(6, generator=g, dtype=torch.float64)
        return torch.tensor([1.0, 0, 0, 0, 1, 0]) + 0.15 * moved
    if name.endswith("3.weight") or name.endswith("1.weight"):
        return 0.1 * torch.randn(p.shape, generator=g, dtype=torch.float64) / p.shape[1] ** 0.5


def spatial_transformer(s):
    def case(label, x, size, hidden=32, net=None, **config):
        c, h, w = x[1:]
        module = nn.Sequential(Means(), nn.Flatten(), Tanh(h * w, hidden), nn.Linear(hidden, 6))
        if net:
            module = nn.Sequential(nn.Flatten(), nn.Linear(c * h * w, 6))
            layers = [{"type": "flatten"}, {"type": "dense", "in_features": c * h * w, "out_features": 6}]
            config["localization"] = {"type": "sequential", "layers": layers}
        elif hidden != 32:
            config["hidden"] = hidden
        keys = {"out_height": size[0], "out_width": size[1], "in_channels": c, "in_height": h, "in_width": w}
        sampling = {k: v for k, v in config.items() if k in ("align_corners", "padding")}
        oracle = Transformer(module, size, **sampling)
        s.case("spatial_transformer", label, {**keys, **config}, oracle, {"x": x}, draw=near_identity)

    case("same_size", (2, 2, 4, 5), (4, 5), hidden=6)
    case("aligned", (2, 1, 5, 4), (3, 6), hidden=5, align_corners=True)
    case("border", (2, 3, 4, 4), (5, 3), hidden=4, padding="border")
    case("reflection_aligned", (1, 2, 5, 5), (4, 4), hidden=4, padding="reflection", align_corners=True)
    case("default_hidden", (1, 1, 3, 3), (3, 3))
    case("own_network", (2, 2, 3, 4), (4, 4), net=True)


class Level(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.basic_module = nn.Sequential(nn.Conv2d(channels, 2, 7, padding=3))

    def forward(self, x):
        return self.basic_module(x)


class Flow(nn.Module):
    """Coarse-to-fine flow as BasicSR's SpyNet has it, with one convolution in each level."""

    def __init__(self, channels, levels, normalize):
        super().__init__()
        self.basic_module = nn.ModuleList(Level(2 * channels + 2) for _ in range(levels))
        if normalize:
            self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
            self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def prepare(self, x, size):
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        return (x - self.mean) / self.std if hasattr(self, "mean") else x

    @staticmethod
    def warp(x, flow):
        h, w = x.shape[2:]
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        across = 2 * (columns + flow[:, 0]) / max(w - 1, 1) - 1
        down = 2 * (rows + flow[:, 1]) / max(h - 1, 1) - 1
        grid = torch.stack((across, down), dim=-1)
        return F.grid_sample(x, grid, "bilinear", "border", align_corners=True)

    def forward(self, reference, support=None):
        if support is None:
            reference, support = reference.chunk(2, dim=1)
        h, w = reference.shape[2:]
        unit = 2 ** (len(self.basic_module) - 1)
        size = [math.ceil(h / unit) * unit, math.ceil(w / unit) * unit]
        pairs = [[self.prepare(x, size) for x in (reference, support)]]
        while len(pairs) < len(self.basic_module):
            pairs.insert(0, [F.avg_pool2d(x, 2) for x in pairs[0]])
        flow = None
        for level, (a, b) in zip(self.basic_module, pairs):
            if flow is None:
                up = a.new_zeros(len(a), 2, *a.shape[2:])
            else:
                up = 2 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True)
            flow = up + level(torch.cat((a, self.warp(b, up), up), dim=1))
        flow = F.interpolate(flow, (h, w), mode="bilinear", align_corners=False)
        return flow * torch.tensor([w / size[1], h / size[0]]).reshape(2, 1, 1)


def spynet(s):
    def small(name, p, g):
        """Levels that move a frame by less than a pixel, so that 16 bits find the same cells."""
        return 0.2 * draw_parameter(name, p, g)

    def case(label, channels, levels, size, batch=1, two=False, normalize=False):
        config = {"num_levels": levels, "in_channels": channels, "mode": "single_conv"}
        if normalize:
            config["normalize_imagenet"] = True
        if two:
            inputs = {n: (batch, channels, *size) for n in ("reference", "support")}
        else:
            inputs = {"x": (batch, 2 * channels, *size)}
        s.case("spynet", label, config, Flow(channels, levels, normalize), inputs, draw=small)

    case("one_level", 2, 1, (5, 6), batch=2)
    case("two_levels", 1, 2, (6, 8), batch=2)
    case("three_levels_odd_sizes", 1, 3, (7, 9))
    case("two_frames", 1, 2, (5, 4), two=True)
    case("imagenet", 3, 1, (4, 5), normalize=True)


class Gaussians(nn.Module):
    def __init__(self, d, j, floor):
        super().__init__()
        self.centers, self.widths = nn.Parameter(torch.empty(j, d)), nn.Parameter(torch.empty(j))
        self.floor = floor

    def forward(self, x):
        width = self.widths.abs().clamp(min=self.floor)
        distance = torch.cdist(x.reshape(-1, x.shape[-1]), self.centers, compute_mode="donot_use_mm_for_euclid_dist")
        return torch.exp(-((distance / width) ** 2) / 2).reshape(*x.shape[:-1], -1)


def rbf(s):
    def widths(name, p, g):
        if name == "widths":
            signs = torch.tensor([1.0, -1.0]).repeat(len(p))[: len(p)]
            return signs * (0.7 + torch.rand(p.shape, generator=g, dtype=torch.float64))

    def case(label, d, j, x, **config):
        keys = {"in_features": d, "out_features": j, **config}
        s.case("rbf", label, keys, Gaussians(d, j, config.get("width_floor", 1e-6)), {"x": x}, draw=widths)

    case("matrix", 3, 4, (5, 3))
    case("vector", 2, 3, (2,))
    case("rank3_wide", 4, 2, (2, 3, 4), width_init=2.5)
    # Some of the widths lie below the floor.
    case("floor", 3, 5, (4, 3), width_floor=1.1)


def measurement(s):
    def born(axis, x, im=None):
        weight = x**2 if im is None else x**2 + im**2
        weight = weight.sum(-1) if axis else weight
        return weight / weight.sum(-1, keepdim=True)

    def case(label, size, inputs, **config):
        oracle = functools.partial(born, config.get("complex", False))
        s.case("measurement", label, {"size": size, **config}, oracle, inputs)

    case("real", 4, {"x": (3, 4)})
    case("vector", 5, {"x": (5,)})
    case("two_parts", 3, {"re": (2, 4, 3), "im": (2, 4, 3)})
    case("complex_axis", 3, {"x": (4, 3, 2)}, complex=True)
    case("complex_state", 2, {"x": (2, 2)}, complex=True)


class Rotations(nn.Module):
    """Products of whole matrices; bit 0 of an amplitude's index is that of qubit 0."""

    def __init__(self, n, layers, ring, expval):
        super().__init__()
        self.theta = nn.Parameter(torch.empty(layers, n))
        self.n, self.ring, self.expval = n, ring, expval

    @staticmethod
    def rx(theta):
        c, s = torch.cos(theta / 2) + 0j, torch.sin(theta / 2) + 0j
        return torch.stack((torch.stack((c, -1j * s)), torch.stack((-1j * s, c))))

    def controlled_not(self, control, target):
        index = torch.arange(2**self.n)
        return torch.where((index >> control) % 2 == 1, index ^ (1 << target), index)

    def forward(self, x):
        size = 2**self.n
        psi = F.pad(x / x.norm(dim=-1, keepdim=True), (0, size - x.shape[-1])) + 0j
        for angles in self.theta:
            gates = [self.rx(a) for a in angles]
            psi = psi @ functools.reduce(torch.kron, reversed(gates)).T
            for q in range(self.n if self.ring and self.n > 1 else 0):
                psi = psi[..., self.controlled_not(q, (q + 1) % self.n)]
        probs = psi.real**2 + psi.imag**2
        if not self.expval:
            return probs
        bits = (torch.arange(size)[:, None] >> torch.arange(self.n)) % 2
        return probs @ (1.0 - 2.0 * bits)


def quantum(s):
    def case(label, n, x, num_layers=1, entangle="none", measure="probs"):
        config = {"num_qubits": n, "num_layers": num_layers, "entangle": entangle, "measure": measure}
        oracle = Rotations(n, num_layers, entangle == "ring", measure == "expval_z")
        s.case("quantum", label, config, oracle, {"x": x})

    case("one_qubit", 1, (3, 2))
    case("three_qubits_padded", 3, (4, 5))
    case("ring", 3, (2, 8), num_layers=3, entangle="ring")
    case("ring_of_two", 2, (3, 3), num_layers=2, entangle="ring")
    case("expectations", 3, (2, 2, 7), num_layers=2, entangle="ring", measure="expval_z")
    case("vector", 4, (16,), num_layers=2, measure="expval_z")


class Glu(nn.Module):
    def __init__(self, act, d, f, out, bias):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, f, bias), nn.Linear(d, f, bias)
        if out:
            self.down_proj = nn.Linear(f, out, bias)
        self.act = activation(act)

    def forward(self, x):
        y = self.act(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(y) if hasattr(self, "down_proj") else y


def gated(s):
    def cases(entry, act):
        def case(label, d, f, x, **config):
            out = None if config.get("down_proj") is False else config.get("out_features", d)
            lazy = config.pop("lazy", False)
            keys = {"d_ff": f, **({} if lazy else {"d_model": d}), **config}
            s.case(entry, label, keys, Glu(act, d, f, out, config.get("bias", False)), {"x": x}, lazy=lazy)

        case("matrix", 4, 5, (3, 4))
        case("bias_other_width", 3, 4, (2, 3, 3), bias=True, out_features=5)
        case("no_down_bias", 4, 3, (5, 4), bias=True, down_proj=False)
        case("vector_lazy", 3, 6, (3,), lazy=True)

    cases("swiglu", "silu")
    cases("geglu", "gelu")
    cases("reglu", "relu")
    cases("bilinear_glu", "identity")

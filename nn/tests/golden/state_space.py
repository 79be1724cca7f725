"""Blocks of state-space models, step by step from their papers."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, activation


def state_space():
    s = Suite("state-space")
    mamba(s)
    gated_delta_net(s)
    gated_linear_attention(s)
    rglru(s)
    recurrent_block(s)
    return s


def short_conv(channels, kernel, bias):
    return nn.Conv1d(channels, channels, kernel, groups=channels, padding=kernel - 1, bias=bias)


def convolved(conv, x):
    return F.silu(conv(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)


class Mamba(nn.Module):
    """Gu and Dao (2023): h = exp(dt A) h + dt B x, y = C h + D x, times SiLU of the gate."""

    def __init__(self, width, states=16, kernel=4, expand=2, rank=None):
        super().__init__()
        self.rank, self.states, inner = rank or math.ceil(width / 16), states, expand * width
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = short_conv(inner, kernel, True)
        self.x_proj = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x, z = self.in_proj(x).chunk(2, -1)
        x = convolved(self.conv1d, x)
        dt, b, c = self.x_proj(x).split([self.rank, self.states, self.states], -1)
        dt, a = F.softplus(self.dt_proj(dt)), -torch.exp(self.A_log)
        h, y = torch.zeros(x.shape[0], *a.shape), []
        for t in range(x.shape[1]):
            step = dt[:, t, :, None]
            h = torch.exp(step * a) * h + step * x[:, t, :, None] * b[:, t, None]
            y.append((h * c[:, t, None]).sum(-1) + self.D * x[:, t])
        return self.out_proj(torch.stack(y, 1) * F.silu(z))


class GatedDeltaNet(nn.Module):
    """Yang, Kautz and Hatamizadeh (2025): S = a S (I - b k k^T) + b v k^T, o = S q."""

    def __init__(self, width, heads, head, values=None, kernel=4):
        super().__init__()
        values = values or 2 * head
        self.heads, self.head, self.values = heads, head, values

        def linear(n, inputs=width):
            return nn.Linear(inputs, n, bias=False)

        self.q_proj, self.k_proj, self.v_proj = linear(heads * head), linear(heads * head), linear(heads * values)
        self.a_proj, self.b_proj = linear(heads), linear(heads)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads))
        self.q_conv1d = short_conv(heads * head, kernel, False)
        self.k_conv1d = short_conv(heads * head, kernel, False)
        self.v_conv1d = short_conv(heads * values, kernel, False)
        self.g_proj, self.o_norm = linear(heads * values), nn.RMSNorm(values, eps=1e-5)
        self.o_proj = linear(width, heads * values)

    def forward(self, x):
        def projected(proj, conv):
            return convolved(conv, proj(x)).unflatten(-1, (self.heads, -1))

        q = F.normalize(projected(self.q_proj, self.q_conv1d), dim=-1, eps=1e-6) / self.head**0.5
        k = F.normalize(projected(self.k_proj, self.k_conv1d), dim=-1, eps=1e-6)
        v, share = projected(self.v_proj, self.v_conv1d), self.b_proj(x).sigmoid()
        decay = torch.exp(-torch.exp(self.A_log) * F.softplus(self.a_proj(x) + self.dt_bias))
        s, o = torch.zeros(x.shape[0], self.heads, self.values, self.head), []
        for t in range(x.shape[1]):
            kt, a, b = k[:, t], decay[:, t, :, None, None], share[:, t, :, None]
            old = torch.einsum("bhvk,bhk->bhv", a * s, kt)
            s = a * s + torch.einsum("bhv,bhk->bhvk", b * (v[:, t] - old), kt)
            o.append(torch.einsum("bhvk,bhk->bhv", s, q[:, t]))
        o = self.o_norm(torch.stack(o, 1)).flatten(-2)
        return self.o_proj(o * F.silu(self.g_proj(x)))


class GatedLinearAttention(nn.Module):
    """Yang et al. (2023): S = S diag(g) + v k^T, o = S q; a gate g for each column of a key."""

    def __init__(self, width, heads=4, kv_heads=None, expand=(0.5, 1.0), rank=16, normalizer=16.0, **options):
        super().__init__()
        self.heads, self.groups, self.normalizer = heads, heads // (kv_heads or heads), normalizer
        self.clamp_min, kernel = options.get("clamp_min"), options.get("kernel")
        keys, values = (int(width * factor) for factor in expand)
        keys_of, values_of = keys // self.groups, values // self.groups

        def linear(n, inputs=width):
            return nn.Linear(inputs, n, bias=False)

        self.q_proj, self.k_proj, self.v_proj = linear(keys), linear(keys_of), linear(values_of)
        self.g_proj = linear(values) if options.get("gate", True) else None
        self.convolved = kernel is not None
        if self.convolved:
            self.q_conv1d = short_conv(keys, kernel, False)
            self.k_conv1d = short_conv(keys_of, kernel, False)
            self.v_conv1d = short_conv(values_of, kernel, False)
        self.gk_proj = nn.Sequential(linear(rank), nn.Linear(rank, keys_of))
        self.o_proj = linear(width, values)
        norm = nn.RMSNorm(values // heads, eps=1e-5)
        self.norm = [norm]
        self.add_module("g_norm_swish_gate" if self.g_proj else "g_norm", norm)

    def of_heads(self, x, groups):
        """Keys and values of a group serve its heads of queries."""
        return x.unflatten(-1, (self.heads // groups, -1)).repeat_interleave(groups, 2)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convolved:
            q, k, v = convolved(self.q_conv1d, q), convolved(self.k_conv1d, k), convolved(self.v_conv1d, v)
        gate = F.logsigmoid(self.gk_proj(x)) / self.normalizer
        if self.clamp_min is not None:
            gate = gate.clamp(min=self.clamp_min)
        q, k = self.of_heads(q, 1), self.of_heads(k, self.groups)
        v, gate = self.of_heads(v, self.groups), self.of_heads(gate, self.groups).exp()
        s, o = torch.zeros(x.shape[0], self.heads, v.shape[-1], k.shape[-1]), []
        for t in range(x.shape[1]):
            s = s * gate[:, t, :, None] + v[:, t, :, :, None] * k[:, t, :, None]
            o.append((s * q[:, t, :, None]).sum(-1) / q.shape[-1] ** 0.5)
        o = self.norm[0](torch.stack(o, 1)).flatten(-2)
        return self.o_proj(o * F.silu(self.g_proj(x)) if self.g_proj else o)


class Rglru(nn.Module):
    """De et al. (2024): h = a h + sqrt(1 - a^2) i x, a = exp(-8 softplus(L) r); the gates r and i by blocks."""

    def __init__(self, width, blocks, first_as_is=False):
        super().__init__()
        self.first_as_is, size = first_as_is, width // blocks
        self.recurrent_param = nn.Parameter(torch.zeros(width))
        for gate in ("input_gate", "recurrent_gate"):
            self.register_parameter(f"{gate}_weight", nn.Parameter(torch.zeros(blocks, size, size)))
            self.register_parameter(f"{gate}_bias", nn.Parameter(torch.zeros(blocks, size)))

    def gate(self, x, name):
        weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
        y = F.linear(x, torch.block_diag(*weight).T, bias.flatten())
        return y.sigmoid()

    def forward(self, x):
        a = torch.exp(-8 * F.softplus(self.recurrent_param) * self.gate(x, "recurrent_gate"))
        share, i = (1 - a**2).sqrt(), self.gate(x, "input_gate")
        h, y = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            new = i[:, t] * x[:, t]
            h = a[:, t] * h + (new if t == 0 and self.first_as_is else share[:, t] * new)
            y.append(h)
        return torch.stack(y, 1)


class RecurrentBlock(nn.Module):
    """De et al. (2024): GELU of one branch times the convolution and the recurrence of another one."""

    def __init__(self, width, blocks, inner=None, kernel=4, act="gelu_tanh", first_as_is=False):
        super().__init__()
        inner = inner or width
        self.linear_y, self.linear_x = nn.Linear(width, inner), nn.Linear(width, inner)
        self.linear_out = nn.Linear(inner, width)
        self.conv_1d, self.rg_lru = short_conv(inner, kernel, True), Rglru(inner, blocks, first_as_is)
        self.act = activation(act)

    def forward(self, x):
        h = self.conv_1d(self.linear_x(x).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.linear_out(self.rg_lru(h) * self.act(self.linear_y(x)))


def mamba(s):
    s.case("mamba", "default", {"d_model": 4}, Mamba(4), {"x": (2, 5, 4)})
    config = {"d_model": 3, "d_state": 5, "d_conv": 2, "expand": 3, "dt_rank": 2}
    s.case("mamba", "sizes", config, Mamba(3, 5, 2, 3, 2), {"x": (1, 7, 3)})
    s.case("mamba", "two_tokens", {"d_model": 2, "d_state": 3}, Mamba(2, 3), {"x": (4, 2, 2)})
    s.case("mamba", "narrow", {"d_model": 5, "expand": 1, "d_conv": 1}, Mamba(5, 16, 1, 1), {"x": (2, 3, 5)})


def gated_delta_net(s):
    config = {"d_model": 6, "num_heads": 2, "head_dim": 3}
    s.case("gated_delta_net", "default", config, GatedDeltaNet(6, 2, 3), {"x": (2, 5, 6)})
    config = {"d_model": 4, "num_heads": 1, "head_dim": 5, "head_v_dim": 3, "conv_size": 2}
    s.case("gated_delta_net", "sizes", config, GatedDeltaNet(4, 1, 5, 3, 2), {"x": (3, 6, 4)})
    config = {"d_model": 3, "num_heads": 3, "head_dim": 2}
    s.case("gated_delta_net", "two_tokens", config, GatedDeltaNet(3, 3, 2), {"x": (4, 2, 3)})
    config = {"d_model": 5, "num_heads": 2, "head_dim": 4, "head_v_dim": 4, "conv_size": 1}
    s.case("gated_delta_net", "no_conv", config, GatedDeltaNet(5, 2, 4, 4, 1), {"x": (1, 8, 5)})


def gated_linear_attention(s):
    config = {"d_model": 16}
    s.case("gated_linear_attention", "default", config, GatedLinearAttention(16), {"x": (2, 5, 16)})
    config = {"d_model": 6, "num_heads": 2, "expand_k": 1.0, "expand_v": 2.0, "gate_low_rank_dim": 3}
    config |= {"gate_logit_normalizer": 2.0}
    oracle = GatedLinearAttention(6, 2, expand=(1.0, 2.0), rank=3, normalizer=2.0)
    s.case("gated_linear_attention", "sizes", config, oracle, {"x": (3, 7, 6)})
    config = {"d_model": 8, "num_heads": 4, "num_kv_heads": 2, "expand_k": 1.0, "gate_low_rank_dim": 2}
    config |= {"use_short_conv": True, "conv_size": 3}
    oracle = GatedLinearAttention(8, 4, 2, (1.0, 1.0), 2, kernel=3)
    s.case("gated_linear_attention", "groups_and_convolution", config, oracle, {"x": (2, 6, 8)})
    config = {"d_model": 4, "num_heads": 1, "gate_low_rank_dim": 2, "gate_logit_normalizer": 1.0}
    config |= {"clamp_min": -0.7, "use_output_gate": False}
    oracle = GatedLinearAttention(4, 1, rank=2, normalizer=1.0, clamp_min=-0.7, gate=False)
    s.case("gated_linear_attention", "clamped_without_gate", config, oracle, {"x": (1, 9, 4)})
    config = {"d_model": 4, "num_heads": 2, "expand_k": 1.0, "gate_low_rank_dim": 1}
    oracle = GatedLinearAttention(4, 2, expand=(1.0, 1.0), rank=1)
    s.case("gated_linear_attention", "two_tokens", config, oracle, {"x": (4, 2, 4)})


def slow(name, p, g):
    """Decays of which several tokens see something."""
    return torch.randn(p.shape, generator=g) - 3 if name.endswith("recurrent_param") else None


def rglru(s):
    s.case("rglru", "one_block", {"lru_width": 4, "num_heads": 1}, Rglru(4, 1), {"x": (2, 5, 4)}, draw=slow)
    s.case("rglru", "blocks", {"lru_width": 6, "num_heads": 3}, Rglru(6, 3), {"x": (3, 7, 6)}, draw=slow)
    config = {"lru_width": 4, "num_heads": 2, "first_as_is": True}
    s.case("rglru", "first_as_is", config, Rglru(4, 2, True), {"x": (2, 6, 4)}, draw=slow)
    s.case("rglru", "channels", {"lru_width": 3, "num_heads": 3}, Rglru(3, 3), {"x": (1, 9, 3)}, draw=slow)


def recurrent_block(s):
    config = {"d_model": 6, "num_heads": 2}
    s.case("recurrent_block", "default", config, RecurrentBlock(6, 2), {"x": (2, 5, 6)}, draw=slow)
    config = {"d_model": 3, "num_heads": 2, "lru_width": 8, "conv1d_width": 2, "activation": "gelu"}
    s.case("recurrent_block", "sizes", config, RecurrentBlock(3, 2, 8, 2, "gelu"), {"x": (3, 7, 3)}, draw=slow)
    config = {"d_model": 4, "num_heads": 4, "first_as_is": True}
    s.case("recurrent_block", "first_as_is", config, RecurrentBlock(4, 4, first_as_is=True), {"x": (2, 6, 4)}, draw=slow)
    config = {"d_model": 5, "num_heads": 1, "lru_width": 2, "conv1d_width": 1}
    s.case("recurrent_block", "two_tokens", config, RecurrentBlock(5, 1, 2, 1), {"x": (4, 2, 5)}, draw=slow)

"""Blocks of state-space models, step by step from their papers."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite


def state_space():
    s = Suite("state-space")
    mamba(s)
    gated_delta_net(s)
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

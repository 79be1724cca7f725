"""Layers of graphs whose updates are networks of their own: message passing, transformers."""

import itertools

import torch
from torch import nn
from torch_geometric.utils import scatter

from case import Suite, activation
from graph import EDGES, NODES, case, positive


def graph_attention():
    s = Suite("graph-attention")
    message_passing(s)
    graph_transformer(s)
    return s


class MessagePassing(nn.Module):
    """Messages in their form of concatenated ends."""

    def __init__(self, f, o, message_features=None, edge_dim=0, aggr="sum"):
        super().__init__()
        m = message_features or o
        self.aggr, self.edge_dim = aggr, edge_dim
        self.message = nn.Sequential(nn.Linear(2 * f + edge_dim, m), nn.ReLU(), nn.Linear(m, m))
        self.gru = nn.GRUCell(m, o)
        self.lin = nn.Linear(f, o, bias=False) if f != o else nn.Identity()

    def forward(self, x, edge_index, *more):
        attr, weight = (more[:1], more[1:]) if self.edge_dim else ((), more)
        src, dst = edge_index
        ends = [x[..., src, :], x[..., dst, :]]
        m = self.message(torch.cat(ends + [a.expand(*x.shape[:-2], *a.shape) for a in attr], -1))
        for w in weight:
            m = m * w[:, None]
        m = scatter(m, dst, dim=-2, dim_size=x.shape[-2], reduce=self.aggr)
        h = self.lin(x)
        return self.gru(m.flatten(0, -2), h.flatten(0, -2)).reshape(h.shape)


def message_passing(s):
    def run(label, sizes, config, lead=(), weight=False):
        keys = {k: v for k, v in config.items() if k != "activation"}
        more = {}
        if "edge_dim" in config:
            more["edge_attr"] = (EDGES.shape[1], config["edge_dim"])
        if weight:
            more["edge_weight"] = positive
        case(s, "message_passing", label, config, MessagePassing(*sizes, **keys), sizes, lead, more)

    run("plain", (4, 4), {})
    run("wider_relu", (3, 5), {"message_features": 6, "activation": "relu"})
    run("edge_features_mean", (3, 3), {"edge_dim": 2, "aggr": "mean"})
    run("weighted_max", (4, 2), {"aggr": "max"}, weight=True)
    run("edge_features_and_weights", (2, 3), {"edge_dim": 3}, weight=True)
    run("batched", (3, 2), {"edge_dim": 2}, lead=(3,), weight=True)


def edge_counts():
    """How often a node (row) attends to another: once for each edge, and once to itself."""
    counts = torch.zeros(NODES, NODES, dtype=torch.float64)
    for j, i in EDGES.T.tolist():
        counts[i, j] += 1
    return counts.fill_diagonal_(1)


def path_lengths(most):
    """Hops from column to row by Floyd and Warshall: at most `most`, `most + 1` where there is no path."""
    d = torch.full((NODES, NODES), torch.inf, dtype=torch.float64)
    d[EDGES[1], EDGES[0]] = 1
    d.fill_diagonal_(0)
    for k, i, j in itertools.product(range(NODES), repeat=3):
        d[i, j] = min(d[i, j], d[i, k] + d[k, j])
    return torch.where(d.isinf(), most + 1, d.clamp(max=most)).long()


class Encoder(nn.TransformerEncoderLayer):
    """PyTorch's block. What it adds to the scores makes an edge that repeats count twice."""

    def __init__(self, width, heads, ffn, bias=True):
        super().__init__(width, heads, ffn, 0.0, "gelu", batch_first=True, bias=bias)

    def forward(self, x, edge_index):
        mask = edge_counts().log()
        return super().forward(x, src_mask=mask) if x.dim() == 3 else super().forward(x[None], src_mask=mask)[0]


class Attention(nn.Module):
    def __init__(self, f, o, heads, dim, bias, attend, most):
        super().__init__()
        self.heads, self.most = heads, most
        self.in_proj_weight = nn.Parameter(torch.empty(3 * heads * dim, f))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * heads * dim)) if bias else None
        self.out_proj = nn.Linear(heads * dim, o, bias)
        self.distance_bias = nn.Parameter(torch.empty(most + 2, heads)) if most is not None else None
        self.counts = edge_counts() if attend == "edges" else torch.ones(NODES, NODES, dtype=torch.float64)

    def forward(self, x):
        q, k, v = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        q, k, v = split(q), split(k), split(v)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.most is not None:
            scores = scores + self.distance_bias[path_lengths(self.most)].permute(2, 0, 1)
        e = self.counts * (scores - scores.amax(-1, keepdim=True).detach()).exp()
        a = e / e.sum(-1, keepdim=True)
        return self.out_proj((a @ v).transpose(-2, -3).flatten(-2))


class Block(nn.Module):
    """The block with widths that differ and a bias by distance, without dropout."""

    def __init__(self, f, o, c):
        super().__init__()
        heads, bias, self.ffn_act = c["heads"], c.get("bias", True), activation(c.get("ffn_activation", "gelu"))
        dim, most = c.get("head_dim", o // heads), c.get("max_distance")
        self.self_attn = Attention(f, o, heads, dim, bias, c.get("attend", "edges"), most)
        self.res = nn.Linear(f, o, bias=False) if f != o else nn.Identity()
        hidden = c.get("ffn_hidden", 4 * o)
        self.linear1, self.linear2 = nn.Linear(o, hidden, bias), nn.Linear(hidden, o, bias)
        norm = lambda: nn.LayerNorm(o, bias=bias) if c.get("norm", "layer") == "layer" else nn.Identity()
        self.norm1, self.norm2 = norm(), norm()

    def forward(self, x, edge_index):
        h = self.norm1(self.res(x) + self.self_attn(x))
        return self.norm2(h + self.linear2(self.ffn_act(self.linear1(h))))


def graph_transformer(s):
    def run(label, sizes, config, module=None, lead=(), **options):
        config = {"dropout": 0.0, **config}
        module = module or Block(*sizes, config)
        case(s, "graph_transformer", label, config, module, sizes, lead, **options)

    run("pytorch", (4, 4), {"heads": 2}, Encoder(4, 2, 16))
    small = {"heads": 1, "ffn_hidden": 6, "bias": False, "activation": "relu"}
    run("pytorch_no_bias", (4, 4), small, Encoder(4, 1, 6, False))
    run("wider", (3, 4), {"heads": 2, "ffn_hidden": 5, "ffn_activation": "silu"})
    run("all", (4, 4), {"heads": 2, "attend": "all", "ffn_hidden": 5, "norm": "none"})
    run("distances", (3, 4), {"heads": 2, "head_dim": 3, "attend": "all", "max_distance": 2, "ffn_hidden": 5})
    near = {"heads": 1, "max_distance": 1, "ffn_hidden": 4, "dropout": 0.5}
    run("distances_of_edges_eval", (4, 3), near, training=False)
    far = {"heads": 2, "max_distance": 3, "attend": "all", "ffn_hidden": 4}
    run("batched", (4, 4), far, lead=(3,))

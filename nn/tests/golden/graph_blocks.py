"""Layers of graphs whose updates are networks of their own: message passing, transformers, diffusion; sparse linear layers."""

import itertools

import scipy.linalg
import torch
from torch import nn
from torch_geometric.utils import scatter

from case import Suite, activation
from graph import EDGES, NODES, case, positive


def graph_attention():
    s = Suite("graph-attention")
    message_passing(s)
    graph_transformer(s)
    heat(s)
    random_walk(s)
    sparse_linear(s)
    return s


class MessagePassing(nn.Module):
    """Messages in their form of concatenated ends."""

    def __init__(self, f, o, message_features=None, edge_features=0, aggregator="sum"):
        super().__init__()
        m = message_features or o
        self.aggregator, self.edge_features = aggregator, edge_features
        self.message = nn.Sequential(nn.Linear(2 * f + edge_features, m), nn.ReLU(), nn.Linear(m, m))
        self.gru = nn.GRUCell(m, o)
        self.lin = nn.Linear(f, o, bias=False) if f != o else nn.Identity()

    def forward(self, x, edge_index, *more):
        attr, weight = (more[:1], more[1:]) if self.edge_features else ((), more)
        src, dst = edge_index
        ends = [x[..., src, :], x[..., dst, :]]
        m = self.message(torch.cat(ends + [a.expand(*x.shape[:-2], *a.shape) for a in attr], -1))
        for w in weight:
            m = m * w[:, None]
        m = scatter(m, dst, dim=-2, dim_size=x.shape[-2], reduce=self.aggregator)
        h = self.lin(x)
        return self.gru(m.flatten(0, -2), h.flatten(0, -2)).reshape(h.shape)


def message_passing(s):
    def run(label, sizes, config, lead=(), weight=False):
        keys = {k: v for k, v in config.items() if k != "activation"}
        more = {}
        if "edge_features" in config:
            more["edge_attr"] = (EDGES.shape[1], config["edge_features"])
        if weight:
            more["edge_weight"] = positive
        case(s, "message_passing", label, config, MessagePassing(*sizes, **keys), sizes, lead, more)

    run("plain", (4, 4), {})
    run("wider_relu", (3, 5), {"message_features": 6, "activation": "relu"})
    run("edge_features_mean", (3, 3), {"edge_features": 2, "aggregator": "mean"})
    run("weighted_max", (4, 2), {"aggregator": "max"}, weight=True)
    run("edge_features_and_weights", (2, 3), {"edge_features": 3}, weight=True)
    run("batched", (3, 2), {"edge_features": 2}, lead=(3,), weight=True)


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

    run("pytorch", (6, 6), {"heads": 2}, Encoder(6, 2, 24))
    small = {"heads": 1, "ffn_hidden": 6, "bias": False, "activation": "relu"}
    run("pytorch_no_bias", (4, 4), small, Encoder(4, 1, 6, False))
    run("wider", (3, 6), {"heads": 2, "ffn_hidden": 5, "ffn_activation": "silu"})
    run("all", (4, 4), {"heads": 2, "attend": "all", "ffn_hidden": 5, "norm": "none"})
    run("distances", (3, 4), {"heads": 2, "head_dim": 3, "attend": "all", "max_distance": 2, "ffn_hidden": 5})
    near = {"heads": 1, "max_distance": 1, "ffn_hidden": 4, "dropout": 0.5}
    run("distances_of_edges_eval", (4, 3), near, training=False)
    far = {"heads": 2, "max_distance": 3, "attend": "all", "ffn_hidden": 4}
    run("batched", (4, 4), far, lead=(3,))


# Six vertices of an octahedron: each is beside all others but one.
VERTICES = 6


def surface():
    """Masses and Laplacian of a surface."""
    g = torch.Generator().manual_seed(7)
    w = torch.rand(VERTICES, VERTICES, generator=g, dtype=torch.float64) + 0.2
    w = w + w.T
    for i in range(VERTICES):
        w[i, i] = w[i, (i + 3) % 6] = 0
    return torch.rand(VERTICES, generator=g, dtype=torch.float64) + 0.5, torch.diag(w.sum(1)) - w


class Heat(nn.Module):
    """Diffusion by the formula; `flow` lets the heat of one channel flow for one time."""

    def __init__(self, c, o, config, flow):
        super().__init__()
        scales = config.get("num_time_scales", 4)
        self.times = nn.Parameter(torch.empty(scales, c) if config.get("per_channel_time") else torch.empty(scales))
        self.weight = nn.Parameter(torch.empty(o, scales * c))
        self.bias = nn.Parameter(torch.empty(o)) if config.get("bias", True) else None
        self.flow, self.least, self.act = flow, config.get("min_time", 1e-8), activation(config.get("activation", "relu"))

    def forward(self, x, *of):
        if self.training:
            self.times.data.clamp_(min=self.least)
        t = self.times if self.times.dim() == 2 else self.times[:, None].expand(-1, x.shape[-1])
        # The surface takes part, with a gradient of 0.
        rest, of = sum(0 * v.sum() for v in of), [v.detach() for v in of]
        parts = [self.flow(x[..., c], t[s, c], *of) for s, c in itertools.product(*map(range, t.shape))]
        return self.act(nn.functional.linear(torch.stack(parts, -1), self.weight, self.bias)) + rest


def spectral(x, t, mass, values, vectors):
    return ((x * mass) @ vectors * torch.exp(-values * t)) @ vectors.T


def implicit(x, t, mass, laplacian):
    return torch.linalg.solve(torch.diag(mass) + t * laplacian, (x * mass)[..., None])[..., 0]


def heat(s):
    mass, laplacian = surface()
    values, vectors = (torch.tensor(v) for v in scipy.linalg.eigh(laplacian.numpy(), torch.diag(mass).numpy()))
    values = values.clamp(min=0)
    drawn = lambda p, g: torch.rand(p.shape, generator=g, dtype=torch.float64) + 0.05

    def run(label, sizes, config, lead=(), times=drawn, **more):
        c, o = sizes
        by_vectors = config.get("method", "spectral") == "spectral"
        keys = {"kind": "heat", "in_channels": c, "out_channels": o, **config}
        x = {"x": (*lead, VERTICES, c)}
        if by_vectors:
            config.setdefault("num_eigenvectors", VERTICES)
            keys["num_eigenvectors"] = config["num_eigenvectors"]
            of = {"mass": mass, "eigenvalues": values, "eigenvectors": vectors}
            k = config["num_eigenvectors"]
            flow = lambda x, t, m, l, v: spectral(x, t, m, l[:k], v[:, :k])
        else:
            of, flow = {"mass": mass, "laplacian": laplacian}, implicit
        draw = lambda n, p, g: times(p, g) if n == "times" else None
        s.case("diffusion_conv", label, keys, Heat(c, o, config, flow), {**x, **of}, silent=tuple(of), draw=draw, **more)

    below = lambda p, g: torch.tensor([-0.5, 0.4], dtype=torch.float64)
    run("spectral", (2, 3), {})
    run("spectral_of_channels", (3, 2), {"num_time_scales": 2, "per_channel_time": True, "activation": "identity"}, lead=(2,))
    run("spectral_few", (2, 2), {"num_eigenvectors": 3, "num_time_scales": 1, "bias": False, "activation": "tanh"})
    run("spectral_raised_times", (2, 3), {"num_time_scales": 2, "min_time": 0.0625, "activation": "silu"}, times=below)
    run("spectral_eval", (2, 3), {"num_time_scales": 3}, training=False)
    run("implicit", (2, 3), {"method": "implicit", "activation": "identity"})
    run("implicit_of_channels", (3, 2), {"method": "implicit", "num_time_scales": 2, "per_channel_time": True, "bias": False})
    run("implicit_batched", (2, 2), {"method": "implicit", "num_time_scales": 2, "activation": "elu"}, lead=(3,))


class RandomWalk(nn.Module):
    """Diffusion by powers of dense matrices of probabilities."""

    def __init__(self, c, o, config):
        super().__init__()
        self.steps, self.both = config.get("max_diffusion_step", 2), config.get("bidirectional", True)
        self.chebyshev = config.get("recurrence") == "chebyshev"
        columns = (1 + (2 if self.both else 1) * self.steps) * c
        self.lin = nn.Linear(columns, o, config.get("bias", True))
        self.act = activation(config.get("activation", "identity"))

    def forward(self, x, edge_index, weight=None):
        weight = torch.ones(edge_index.shape[1]) if weight is None else weight
        a = torch.zeros(NODES, NODES).index_put(tuple(edge_index), weight, accumulate=True)
        terms = [x]
        for a in [a, a.T] if self.both else [a]:
            degree = a.sum(1, keepdim=True)
            p = torch.where(degree > 0, a / degree.clamp(min=1e-30), 0)
            chain = [x]
            for k in range(1, self.steps + 1):
                step = p.T @ chain[-1]
                chain.append(2 * step - chain[-2] if self.chebyshev and k > 1 else step)
            terms += chain[1:]
        return self.act(self.lin(torch.cat(terms, -1)))


def random_walk(s):
    def run(label, sizes, config, lead=(), weighted=False):
        c, o = sizes
        keys = {"kind": "random_walk", "in_channels": c, "out_channels": o, **config}
        inputs = {"x": (*lead, NODES, c), "edge_index": EDGES, **({"edge_weight": positive} if weighted else {})}
        s.case("diffusion_conv", label, keys, RandomWalk(c, o, config), inputs)

    run("walk", (3, 4), {})
    run("walk_weighted_relu", (2, 3), {"activation": "relu", "max_diffusion_step": 3}, weighted=True)
    run("walk_one_way", (4, 2), {"bidirectional": False, "bias": False}, weighted=True)
    run("walk_chebyshev", (2, 3), {"recurrence": "chebyshev", "max_diffusion_step": 3}, lead=(2,))


class Sparse(nn.Module):
    """The dense product with the weights in their places."""

    def __init__(self, f, o, config):
        super().__init__()
        count = max(1, int(round(f * o * (1 - config.get("sparsity", 0.9)), 6)))
        at = torch.randperm(f * o, generator=torch.Generator().manual_seed(3), device="cpu")[:count]
        self.values = nn.Parameter(torch.empty(count))
        self.register_buffer("indices", torch.stack([at // f, at % f]))
        self.bias = nn.Parameter(torch.empty(o)) if config.get("bias", True) else None
        self.shape, self.act = (o, f), activation(config.get("activation", "relu"))

    def forward(self, x):
        w = torch.zeros(self.shape).index_put(tuple(self.indices), self.values)
        return self.act(nn.functional.linear(x, w, self.bias))


def sparse_linear(s):
    def run(label, sizes, shape, config):
        f, o = sizes
        keys = {"in_features": f, "out_features": o, **config}
        s.case("sparse_linear", label, keys, Sparse(f, o, config), {"x": (*shape, f)})

    run("matrix", (10, 8), (4,), {})
    run("half_identity", (5, 4), (2, 3), {"sparsity": 0.5, "activation": "identity"})
    run("vector_no_bias", (6, 5), (), {"sparsity": 0.25, "bias": False, "activation": "tanh"})
    run("whole", (3, 4), (5,), {"sparsity": 0.0, "activation": "gelu"})
    run("one_weight", (3, 2), (4,), {"sparsity": 0.99, "activation": "silu", "seed": 7})

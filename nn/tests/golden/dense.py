"""Core layers and those that resemble a dense layer."""

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, Then, activation


def core():
    s = Suite("core")
    dense(s)
    convolutional(s)
    batch_normalization(s)
    layer_normalization(s)
    embedding(s)
    return s


def dense(s):
    def linear(i, o, bias=True, act="identity"):
        return Then(nn.Linear(i, o, bias), act)

    s.case("dense", "matrix", {"in_features": 3, "out_features": 4}, linear(3, 4), {"x": (5, 3)})
    s.case(
        "dense",
        "vector_no_bias",
        {"in_features": 3, "out_features": 2, "bias": False},
        linear(3, 2, False),
        {"x": (3,)},
    )
    s.case(
        "dense",
        "lazy_relu",
        {"out_features": 5, "activation": "relu"},
        linear(3, 5, act="relu"),
        {"x": (4, 3)},
        lazy=True,
    )
    s.case(
        "dense",
        "rank4_gelu",
        {"in_features": 5, "out_features": 3, "activation": "gelu"},
        linear(5, 3, act="gelu"),
        {"x": (2, 1, 3, 5)},
    )
    s.case(
        "dense",
        "no_bias_tanh_eval",
        {"in_features": 7, "out_features": 6, "bias": False, "activation": "tanh"},
        linear(7, 6, False, "tanh"),
        {"x": (2, 3, 7)},
        training=False,
    )
    s.case(
        "dense",
        "sigmoid_one_output",
        {"in_features": 33, "out_features": 1, "activation": "sigmoid"},
        linear(33, 1, act="sigmoid"),
        {"x": (9, 33)},
    )

    s.case(
        "dense",
        "many",
        {"in_features": 65, "out_features": 33, "activation": "gelu"},
        linear(65, 33, act="gelu"),
        {"x": (70, 65)},
    )

    s.case("fully_connected", "matrix", {"in_features": 4, "out_features": 3}, linear(4, 3), {"x": (6, 4)})
    s.case("fully_connected", "vector", {"in_features": 4, "out_features": 3}, linear(4, 3), {"x": (4,)})
    s.case(
        "fully_connected",
        "no_bias_relu",
        {"in_features": 5, "out_features": 2, "bias": False, "activation": "relu"},
        linear(5, 2, False, "relu"),
        {"x": (7, 5)},
    )
    s.case(
        "fully_connected",
        "lazy_silu_eval",
        {"out_features": 4, "activation": "silu"},
        linear(9, 4, act="silu"),
        {"x": (1, 9)},
        training=False,
        lazy=True,
    )


def convolutional(s):
    def case(label, config, x, act="identity", **more):
        keys = {k: v for k, v in config.items() if k != "activation"}
        keys["in_channels"] = x[-3]
        s.case(
            "convolutional",
            label,
            config,
            Then(nn.Conv2d(**keys), config.get("activation", "identity")),
            {"x": x},
            lazy="in_channels" not in config,
            **more
        )

    case("plain", {"in_channels": 2, "out_channels": 3, "kernel_size": 3}, (2, 2, 5, 6))
    case(
        "many_channels",
        {"in_channels": 17, "out_channels": 19, "kernel_size": 3, "padding": 1, "activation": "relu"},
        (2, 17, 9, 7),
    )
    case(
        "stride_padding",
        {"in_channels": 2, "out_channels": 3, "kernel_size": [3, 2], "stride": [2, 3], "padding": [1, 1]},
        (2, 2, 7, 8),
    )
    case("unbatched_lazy", {"out_channels": 2, "kernel_size": 2, "bias": False}, (3, 4, 5))
    case(
        "groups_dilation",
        {
            "in_channels": 4,
            "out_channels": 6,
            "kernel_size": 3,
            "dilation": [2, 1],
            "groups": 2,
            "padding": 2,
            "activation": "relu",
        },
        (2, 4, 6, 5),
    )
    case(
        "depthwise",
        {"in_channels": 3, "out_channels": 6, "kernel_size": 3, "groups": 3, "padding": "same"},
        (1, 3, 5, 5),
    )
    case(
        "same_even_kernel",
        {"in_channels": 2, "out_channels": 2, "kernel_size": [4, 2], "padding": "same"},
        (1, 2, 6, 5),
    )
    case(
        "one_by_one_eval",
        {"in_channels": 5, "out_channels": 4, "kernel_size": 1, "activation": "gelu"},
        (2, 5, 3, 4),
        training=False,
    )
    case(
        "valid",
        {"in_channels": 1, "out_channels": 2, "kernel_size": [1, 3], "padding": "valid", "stride": 2},
        (3, 1, 4, 7),
    )
    case(
        "reflect",
        {
            "in_channels": 2,
            "out_channels": 3,
            "kernel_size": 3,
            "padding": [2, 1],
            "padding_mode": "reflect",
            "stride": 2,
        },
        (2, 2, 5, 4),
    )
    case(
        "replicate",
        {
            "in_channels": 2,
            "out_channels": 2,
            "kernel_size": 3,
            "padding": 2,
            "padding_mode": "replicate",
            "dilation": 2,
        },
        (1, 2, 4, 5),
    )
    case(
        "circular_same",
        {
            "in_channels": 2,
            "out_channels": 2,
            "kernel_size": [3, 5],
            "padding": "same",
            "padding_mode": "circular",
            "bias": False,
            "activation": "tanh",
        },
        (2, 2, 4, 6),
    )


def batch_normalization(s):
    def case(label, shape, training=True, **options):
        rank = len(shape)
        kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
        s.case(
            "batch_normalization",
            label,
            {"num_features": shape[1], **options},
            kind(shape[1], **options),
            {"x": lambda g: 2 * torch.randn(shape, generator=g).double() + 0.7},
            training=training,
        )

    case("rank2", (6, 3))
    case("rank3_momentum", (3, 4, 5), momentum=0.3)
    case("rank4", (2, 3, 4, 3))
    case("rank4_many", (3, 2, 21, 19))
    case("rank5_eps", (2, 2, 3, 2, 2), eps=1e-3)
    case("cumulative", (4, 3, 2), momentum=None)
    case("not_affine", (5, 2, 3), affine=False)
    case("eval", (2, 3, 2, 4), training=False)
    case("eval_of_one", (1, 3), training=False, affine=False)
    case("untracked", (5, 4), track_running_stats=False)
    case("untracked_eval", (3, 2, 4), training=False, track_running_stats=False)


def layer_normalization(s):
    def case(label, normalized, shape, training=True, **options):
        s.case(
            "layer_normalization",
            label,
            {"normalized_shape": normalized, **options},
            nn.LayerNorm(normalized, **options),
            {"x": shape},
            training=training,
        )

    case("last", 5, (2, 3, 5))
    case("two_axes", [3, 4], (2, 3, 4))
    case("whole", [2, 3], (2, 3))
    case("not_affine", 6, (4, 6), elementwise_affine=False)
    case("no_bias", 7, (3, 7), bias=False)
    case("eps_eval", 40, (2, 2, 40), training=False, eps=0.1)
    case("long", 301, (3, 301))


class ScaledEmbedding(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * self.embedding_dim**0.5


def embedding(s):
    def case(label, ids, training=True, kind=nn.Embedding, **options):
        v, d = 6, 4
        own = options.pop("scale_by_sqrt_dim", False)
        config = {"num_embeddings": v, "embedding_dim": d, **options, **({"scale_by_sqrt_dim": True} if own else {})}
        s.case("embedding", label, config, kind(v, d, **options), {"ids": torch.as_tensor(ids)}, training=training)

    case("repeated", [[1, 5, 1], [0, 1, 5]])
    case("int32", torch.tensor([3, 3, 0], dtype=torch.int32))
    case("scalar", 4)
    case("trailing_one", [[2], [2], [0]], training=False)
    case("padding", [[0, 2, 2, 4]], padding_idx=2)
    case("scaled_by_frequency", [[0, 3, 3], [3, 5, 0]], scale_grad_by_freq=True)
    case("bounded_rows", [[0, 3], [2, 0]], max_norm=1.0)
    case("bounded_rows_of_degree", [4, 1, 4], max_norm=0.8, norm_type=1.0)
    case("padding_from_end_scaled", [[5, 0], [2, 5]], padding_idx=-1, scale_by_sqrt_dim=True, kind=ScaledEmbedding)


def octonion_product(a, b):
    """The product of octonions on the last axis, by doubling: (p, q)(r, s) = (p r - s* q, s p + q r*)."""
    if a.shape[-1] == 1:
        return a * b
    h = a.shape[-1] // 2
    (p, q), (r, t) = a.split(h, -1), b.split(h, -1)
    return torch.cat(
        [
            octonion_product(p, r) - octonion_product(conjugate(t), q),
            octonion_product(t, p) + octonion_product(q, conjugate(r)),
        ],
        -1,
    )


def conjugate(a):
    return torch.cat([a[..., :1], -a[..., 1:]], -1)


class OctonionLinear(nn.Module):
    """y_o = b_o + sum over i of w_oi x_i."""

    def __init__(self, i, o, bias=True, act="identity"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(o, i, 8))
        self.register_parameter("bias", nn.Parameter(torch.empty(o, 8)) if bias else None)
        self.act = activation(act)

    def forward(self, x):
        x = x.unflatten(-1, (1, -1, 8))
        y = octonion_product(
            self.weight.expand(*x.shape[:-3], *self.weight.shape), x.expand(*x.shape[:-3], *self.weight.shape)
        )
        y = y.sum(-2)
        return self.act((y if self.bias is None else y + self.bias).flatten(-2))


def check_octonions():
    """|a b| = |a| |b|, e1 e2 = e3, e1 e4 = e5, e1 e6 = -e7."""
    a, b = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.allclose(octonion_product(a, b).norm(dim=-1), a.norm(dim=-1) * b.norm(dim=-1))
    e = torch.eye(8, dtype=torch.float64)
    for x, y, z in ((1, 2, e[3]), (1, 4, e[5]), (2, 4, e[6]), (3, 4, e[7]), (1, 6, -e[7])):
        assert torch.equal(octonion_product(e[x], e[y]), z)


class HyperbolicLinear(nn.Module):
    """Linear layer of the Poincare ball of curvature -c, by exponential and logarithm at the origin."""

    DELTA = 4e-3

    def __init__(self, i, o, c=1.0, bias=True, hyperbolic_input=True, nonlin=None, output="ball"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(o, i))
        self.register_parameter("bias", nn.Parameter(torch.empty(o)) if bias else None)
        self.c, self.hyperbolic_input, self.output = c, hyperbolic_input, output
        self.nonlin = activation(nonlin) if nonlin else None

    def radial(self, f, limit, v):
        """f(r) / r times v with r = sqrt(c) |v|; `limit` is its value for small r."""
        u = self.c * (v * v).sum(-1, keepdim=True)
        small = u < 1e-8
        r = torch.where(small, torch.ones_like(u), u).sqrt()
        return torch.where(small, 1 + limit * u, f(r) / r) * v

    def exp0(self, v):
        return self.radial(torch.tanh, -1 / 3, v)

    def log0(self, y):
        return self.radial(torch.atanh, 1 / 3, y)

    def proj(self, y):
        bound = (1 - self.DELTA) / self.c**0.5
        n = y.norm(dim=-1, keepdim=True)
        return torch.where(n > bound, y / n.clamp_min(1e-30) * bound, y)

    def add(self, x, y):
        c = self.c
        dot = lambda a, b: (a * b).sum(-1, keepdim=True)
        top = (1 + 2 * c * dot(x, y) + c * dot(y, y)) * x + (1 - c * dot(x, x)) * y
        return top / (1 + 2 * c * dot(x, y) + c * c * dot(x, x) * dot(y, y)).clamp_min(1e-15)

    def forward(self, x):
        x = self.proj(x if self.hyperbolic_input else self.exp0(x))
        h = self.proj(self.exp0(F.linear(self.log0(x), self.weight)))
        if self.bias is not None:
            h = self.proj(self.add(h, self.proj(self.exp0(self.bias))))
        if self.nonlin:
            h = self.exp0(self.nonlin(self.log0(h)))
        return self.log0(h) if self.output == "tangent" else h


def check_hyperbolic():
    """The formulas above are those of geoopt's Poincare ball, Moebius multiplication and addition."""
    import geoopt

    g = torch.Generator().manual_seed(3)
    for c in (1.0, 0.5, 2.0):
        layer = HyperbolicLinear(4, 3, c=c).double()
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
        ball = geoopt.PoincareBall(c=c)
        x = ball.expmap0(0.2 * torch.randn(5, 4, generator=g, dtype=torch.float64))
        y = ball.mobius_add(ball.mobius_matvec(layer.weight, x), ball.expmap0(layer.bias))
        torch.testing.assert_close(layer(x), y, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(layer.log0(y), ball.logmap0(y), rtol=1e-9, atol=1e-12)


class Glu(nn.Module):
    """Rows of the value first, then those of the gate."""

    def __init__(self, i, o, bias=True, gate="sigmoid"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * o, i))
        self.register_parameter("bias", nn.Parameter(torch.empty(2 * o)) if bias else None)
        self.gate = gate

    def forward(self, x):
        z = F.linear(x, self.weight, self.bias)
        if self.gate == "sigmoid":
            return F.glu(z, -1)
        value, gate = z.chunk(2, -1)
        return value * activation(self.gate)(gate)


def dense_like():
    s = Suite("dense-like")
    check_octonions()

    def octonion(label, i, o, x, training=True, **options):
        config = {"in_features": i, "out_features": o, **options}
        act = options.pop("activation", "identity")
        s.case(
            "octonion_linear",
            label,
            config,
            OctonionLinear(i, o, act=act, **options),
            {"x": x},
            training=training,
            draw=lambda n, p, g: torch.randn(p.shape, generator=g).double() / (8 * i) ** 0.5,
        )

    octonion("one", 1, 1, (3, 8))
    octonion("several", 2, 3, (4, 16))
    octonion("vector_no_bias", 2, 1, (16,), bias=False)
    octonion("rank3_tanh_eval", 1, 2, (2, 3, 8), activation="tanh", training=False)

    def hyperbolic(label, i, o, x, training=True, scale=0.3, **options):
        draw = lambda g: scale * torch.randn(x, generator=g).double()
        s.case(
            "hyperbolic_linear",
            label,
            {"in_features": i, "out_features": o, **options},
            HyperbolicLinear(i, o, **options),
            {"x": draw},
            training=training,
        )

    check_hyperbolic()
    hyperbolic("ball", 3, 4, (5, 3))
    hyperbolic("curvature_no_bias", 4, 2, (2, 3, 4), c=0.5, bias=False)
    hyperbolic("tangent_in_and_out", 3, 3, (4, 3), hyperbolic_input=False, output="tangent", c=2.0)
    hyperbolic("nonlin_vector", 5, 3, (5,), nonlin="relu")
    hyperbolic("outside_of_the_ball_eval", 3, 2, (6, 3), scale=1.2, training=False)
    s.case(
        "hyperbolic_linear",
        "origin",
        {"in_features": 2, "out_features": 3},
        HyperbolicLinear(2, 3),
        {"x": torch.tensor([[0.0, 0.0], [1e-6, -2e-6], [0.2, 0.1]])},
    )

    def glu(label, i, o, x, gate="sigmoid", training=True, lazy=False, **options):
        config = {"out_features": o, **options}
        if not lazy:
            config["in_features"] = i
        if gate != "sigmoid":
            config["gate_activation"] = gate
        s.case(
            "gated_linear_unit",
            label,
            config,
            Glu(i, o, gate=gate, **options),
            {"x": x},
            training=training,
            lazy=lazy,
        )

    glu("sigmoid", 3, 4, (5, 3))
    glu("silu_no_bias", 4, 3, (2, 3, 4), "silu", bias=False)
    glu("gelu_lazy", 5, 2, (3, 5), "gelu", lazy=True)
    glu("relu_eval", 3, 5, (4, 3), "relu", training=False)
    glu("identity_vector", 6, 2, (6,), "identity")
    return s

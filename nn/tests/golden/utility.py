"""Layers without weights, mostly: activations, merges, shapes, noise, statistics."""

import torch
import torch.nn.functional as F
from torch import nn

from case import Suite, activation as elementwise

# Outliers, both sides of every kink, and the kinks themselves.
KINKS = torch.tensor(
    [[-25.0, -6.5, -3.0, -1.0, -0.5, -0.1], [0.0, 0.2, 0.9, 1.0, 2.5, 3.0], [5.5, 6.0, 6.5, 21.0, -2.0, 4.0]]
)


def sparsemax(x, dim=-1):
    """The Euclidean projection onto the simplex."""
    z, _ = x.sort(dim, descending=True)
    k = torch.arange(1, x.shape[dim] + 1, dtype=x.dtype).view(
        [-1 if i == dim % x.dim() else 1 for i in range(x.dim())]
    )
    support = (1 + k * z > z.cumsum(dim)).sum(dim, keepdim=True)
    tau = (z.cumsum(dim).gather(dim, support - 1) - 1) / support
    return (x - tau).clamp_min(0)


def squash(x, dim=-1):
    u = (x * x).sum(dim, keepdim=True)
    zero = u == 0
    n = torch.where(zero, torch.ones_like(u), u).sqrt()
    return torch.where(zero, torch.zeros_like(x), x * n / (1 + u))


def activation(s):
    def case(label, kind, f, x, training=True, silent=(), **constants):
        s.case("activation", label, {"kind": kind, **constants}, f, {"x": x}, training=training, silent=silent)

    plain = {
        "identity": lambda x: x,
        "relu": F.relu,
        "relu6": F.relu6,
        "selu": F.selu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "log_sigmoid": F.logsigmoid,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "swish": F.silu,
        "mish": F.mish,
        "softsign": F.softsign,
        "hard_sigmoid": F.hardsigmoid,
        "hard_swish": F.hardswish,
        "hardtanh": F.hardtanh,
        "leaky_relu": F.leaky_relu,
        "elu": F.elu,
        "celu": F.celu,
        "softplus": F.softplus,
    }
    for kind, f in plain.items():
        case(kind, kind, f, KINKS)
    case("leaky_relu_slope", "leaky_relu", lambda x: F.leaky_relu(x, 0.2), KINKS, negative_slope=0.2)
    case("elu_alpha", "elu", lambda x: F.elu(x, 1.5), KINKS, alpha=1.5)
    case("celu_alpha", "celu", lambda x: F.celu(x, 0.5), KINKS, alpha=0.5)
    case("softplus_beta", "softplus", lambda x: F.softplus(x, 2.0, 5.0), KINKS, beta=2.0, threshold=5.0)
    case(
        "hardtanh_bounds_eval",
        "hardtanh",
        lambda x: F.hardtanh(x, -2.0, 0.5),
        KINKS,
        min_val=-2.0,
        max_val=0.5,
        training=False,
    )
    case("swish_beta", "swish", lambda x: x * torch.sigmoid(1.7 * x), KINKS, beta=1.7)
    formulas = {
        "lisht": lambda x: x * torch.tanh(x),
        "isru": lambda x: x / (1 + x * x).sqrt(),
        "bent_identity": lambda x: ((x * x + 1).sqrt() - 1) / 2 + x,
        "gaussian": lambda x: torch.exp(-x * x),
        "sqrbf": lambda x: torch.exp(-x * x),
        "scaled_tanh": lambda x: torch.tanh(x / 2),
        "thresholded_relu": lambda x: x * (x > 1),
    }
    for kind, f in formulas.items():
        case(kind, kind, f, KINKS)
    case("isru_alpha", "isru", lambda x: x / (1 + 0.3 * x * x).sqrt(), KINKS, alpha=0.3)
    case("sqrbf_beta", "sqrbf", lambda x: torch.exp(-0.2 * x * x), KINKS, beta=0.2)
    case("scaled_tanh_beta", "scaled_tanh", lambda x: torch.tanh(0.3 * x), KINKS, beta=0.6)
    case("thresholded_relu_theta", "thresholded_relu", lambda x: x * (x > 0.25), KINKS, theta=0.25)
    case("sign", "sign", torch.sign, KINKS, silent=("x",))
    for kind, f in {
        "softmax": F.softmax,
        "log_softmax": F.log_softmax,
        "softmin": F.softmin,
        "sparsemax": sparsemax,
        "squash": squash,
    }.items():
        case(kind, kind, lambda x, f=f: f(x, dim=-1), (3, 5))
        case(f"{kind}_dim", kind, lambda x, f=f: f(x, dim=1), (2, 4, 3), dim=1)
        case(f"{kind}_long", kind, lambda x, f=f: f(x, dim=-1), (2, 301))
    case("squash_zero_row", "squash", squash, torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]]))
    s.case("activation", "prelu", {"kind": "prelu"}, nn.PReLU(), {"x": (2, 3, 4)})
    s.case("activation", "prelu_channels", {"kind": "prelu", "num_parameters": 3}, nn.PReLU(3), {"x": (2, 3, 4)})


def merge(s):
    three = {"a": (2, 3), "b": (2, 3), "c": (2, 3)}
    for entry, f in (("add", lambda *x: sum(x)), ("multiply", lambda *x: torch.stack(x).prod(0))):
        s.case(entry, "two", {}, f, {"a": (2, 3, 4), "b": (2, 3, 4)})
        s.case(entry, "three_relu", {"activation": "relu"}, lambda *x, f=f: F.relu(f(*x)), three)
        s.case(entry, "four_scalars_eval", {}, f, {n: () for n in "abcd"}, training=False)
        s.case(entry, "two_tanh", {"activation": "tanh"}, lambda *x, f=f: torch.tanh(f(*x)), {"a": (5,), "b": (5,)})
    zeros = torch.tensor([[0.0, 2.0, -1.0, 0.0]])
    s.case("multiply", "zeros", {}, lambda a, b, c: a * b * c, {"a": zeros, "b": (1, 4), "c": zeros.flip(1)})

    def cat(label, shapes, training=True, dim=1, **options):
        act = elementwise(options.get("activation", "identity"))
        config = {**({} if dim == 1 else {"dim": dim}), **options}
        s.case(
            "concatenate",
            label,
            config,
            lambda *x: act(torch.cat(x, dim)),
            {f"x{i}": x for i, x in enumerate(shapes)},
            training=training,
        )

    cat("channels", [(2, 1, 3), (2, 2, 3)])
    cat("three_last_relu", [(2, 3), (2, 1), (2, 4)], dim=-1, activation="relu")
    cat("batch", [(1, 4), (3, 4)], dim=0)
    cat("one_eval", [(2, 3)], training=False)
    cat("inner", [(2, 2, 3, 2), (2, 2, 1, 2), (2, 2, 2, 2)], dim=2)


def shape(s):
    def flat(pairs):
        """PyTorch lists the last axis first."""
        return [n for pair in reversed(pairs) for n in pair]

    def crop(label, pairs, x, training=True):
        s.case(
            "cropping",
            label,
            {"cropping": pairs},
            lambda t: F.pad(t, [-n for n in flat(pairs)]),
            {"x": x},
            training=training,
        )

    crop("sequence", [[1, 2]], (2, 3, 6))
    crop("image", [[0, 1], [2, 1]], (2, 2, 4, 5))
    crop("volume", [[1, 0], [0, 0], [1, 1]], (1, 2, 3, 2, 4))
    crop("nothing_eval", [[0, 0]], (2, 3), training=False)

    def pad(label, pairs, x, training=True, **options):
        mode, value = options.get("mode", "constant"), options.get("value", 0.0)
        more = {"value": value} if mode == "constant" else {}
        s.case(
            "padding",
            label,
            {"padding": pairs, **options},
            lambda t: F.pad(t, flat(pairs), mode, **more),
            {"x": x},
            training=training,
        )

    pad("zeros", [[1, 2]], (2, 3))
    pad("constant", [[0, 1], [2, 0]], (2, 2, 3, 2), value=-1.5)
    pad("reflect", [[1, 2], [2, 1]], (1, 2, 3, 4), mode="reflect")
    pad("replicate", [[3, 0], [0, 4]], (2, 1, 2, 3), mode="replicate")
    pad("circular", [[2, 3]], (2, 2, 3), mode="circular")
    pad("circular_image_eval", [[1, 0], [2, 2]], (1, 1, 2, 3), mode="circular", training=False)
    pad("replicate_volume", [[1, 0], [0, 1], [1, 1]], (1, 1, 2, 2, 2), mode="replicate")

    def flatten(label, x, training=True, **options):
        s.case(
            "flatten",
            label,
            options,
            lambda t: torch.flatten(t, options.get("start_dim", 1), options.get("end_dim", -1)),
            {"x": x},
            training=training,
        )

    flatten("default", (2, 3, 4))
    flatten("middle", (2, 3, 2, 2), start_dim=1, end_dim=2)
    flatten("all", (2, 3, 2), start_dim=0)
    flatten("from_end_eval", (2, 3, 2, 2), start_dim=-2, training=False)

    def reshape(label, target, x, training=True):
        s.case(
            "reshape",
            label,
            {"target_shape": target},
            lambda t: t.reshape(t.shape[0], *target),
            {"x": x},
            training=training,
        )

    reshape("fixed", [3, 4], (2, 12))
    reshape("free", [2, -1], (3, 4, 3))
    reshape("flat", [-1], (2, 3, 2))
    reshape("more_axes_eval", [1, 3, 1, 2], (2, 6), training=False)

    for label, target, x in (
        ("vector", [3], (2, 3)),
        ("free", [-1, 4], (2, 5, 4)),
        ("image", [1, 2, 3], (1, 1, 2, 3)),
        ("all_free", [-1, -1], (2, 2, 3)),
    ):
        s.case("input", label, {"shape": target}, lambda t: t.clone(), {"x": x}, training=label != "image")


def random(s):
    """Where nothing is random: evaluation, and rates that leave no choice."""
    s.case("dropout", "nothing", {"p": 0.0}, lambda x: x.clone(), {"x": (2, 5)})
    s.case("dropout", "everything", {"p": 1.0}, lambda x: x * 0, {"x": (3, 4)}, silent=("x",))
    s.case("dropout", "default_eval", {}, lambda x: x.clone(), {"x": (2, 3, 2)}, training=False)
    s.case("dropout", "rate_eval", {"p": 0.9}, lambda x: x.clone(), {"x": (4,)}, training=False)

    s.case("gaussian_noise", "default_eval", {}, lambda x: x.clone(), {"x": (2, 3)}, training=False)
    s.case(
        "gaussian_noise", "mean_eval", {"stddev": 2.0, "mean": 3.0}, lambda x: x.clone(), {"x": (4,)}, training=False
    )
    s.case("gaussian_noise", "no_deviation", {"stddev": 0.0}, lambda x: x.clone(), {"x": (2, 3, 2)})
    s.case("gaussian_noise", "only_mean", {"stddev": 0.0, "mean": -0.5}, lambda x: x - 0.5, {"x": (3, 2)})


def sequence(s):
    def masked(x, v=0.0):
        keep = (x != v).flatten(2).any(-1)
        return [x * keep.view(*keep.shape, *[1] * (x.dim() - 2)), keep]

    def steps(shape, value, rows):
        def draw(g):
            x = torch.randn(shape, generator=g).double()
            for b, t in rows:
                x[b, t] = value
            x[0, 0, 0] = value
            return x

        return draw

    def mask(label, shape, rows, value=None, training=True):
        v = 0.0 if value is None else value
        s.case(
            "masking",
            label,
            {} if value is None else {"mask_value": value},
            lambda x: masked(x, v),
            {"x": steps(shape, v, rows)},
            training=training,
        )

    mask("zeros", (2, 4, 3), [(0, 2), (1, 0), (1, 3)])
    mask("value", (2, 3, 2), [(0, 1)], value=-1.0)
    mask("rank4", (2, 3, 2, 2), [(1, 1)], value=0.5)
    mask("nothing_masked_eval", (1, 3, 2), [], training=False)

    last = lambda x, lengths=None: (
        x[torch.arange(x.shape[0]), lengths - 1] if lengths is not None else x.select(-2 if x.dim() == 2 else 1, -1)
    )
    s.case("sequence_last", "batch", {}, last, {"x": (2, 4, 3)})
    s.case("sequence_last", "unbatched", {}, last, {"x": (3, 2)})
    s.case("sequence_last", "lengths", {}, last, {"x": (3, 4, 2), "lengths": torch.tensor([4, 1, 2])})
    s.case(
        "sequence_last",
        "rank4_lengths_eval",
        {},
        last,
        {"x": (2, 3, 2, 2), "lengths": torch.tensor([1, 3])},
        training=False,
    )

    def split(label, x, stacked=False, training=True, **config):
        dim = config.get("dim", -1)

        def parts(t):
            if stacked:
                return t.reshape(*t.shape[:-1], config["num_splits"], -1)
            sizes = config.get("sizes") or [t.shape[dim] // config["num_splits"]] * config["num_splits"]
            return [p.clone() for p in torch.split(t, sizes, dim)]

        s.case(
            "split", label, config, parts, {"x": x}, training=training, args={"stacked": True} if stacked else None
        )

    split("equal", (2, 6), num_splits=3)
    split("sizes", (2, 5, 3), sizes=[1, 3, 1], dim=1)
    split("stacked", (3, 2, 8), num_splits=2, stacked=True)
    split("batch_eval", (4, 3), num_splits=2, dim=0, training=False)

    class TimeDistributed(nn.Module):
        def __init__(self, inner, act="identity"):
            super().__init__()
            self.inner, self.act = inner, elementwise(act)

        def forward(self, x):
            y = self.inner(x.flatten(0, 1))
            return self.act(y.unflatten(0, x.shape[:2]))

    def distributed(label, inner, module, x, training=True, **options):
        s.case(
            "time_distributed",
            label,
            {"inner": inner, **options},
            TimeDistributed(module, options.get("activation", "identity")),
            {"x": x},
            training=training,
        )

    distributed("dense", {"type": "dense", "in_features": 3, "out_features": 2}, nn.Linear(3, 2), (2, 4, 3))
    distributed(
        "convolution_relu",
        {"type": "convolutional", "in_channels": 1, "out_channels": 2, "kernel_size": 2},
        nn.Conv2d(1, 2, 2),
        (2, 3, 1, 3, 3),
        activation="relu",
    )
    distributed("batch_norm", {"type": "batch_normalization", "num_features": 3}, nn.BatchNorm1d(3), (2, 3, 3))
    distributed(
        "batch_norm_eval",
        {"type": "batch_normalization", "num_features": 2},
        nn.BatchNorm1d(2),
        (2, 3, 2),
        training=False,
    )

    class Last(nn.GRU):
        def forward(self, x):
            return super().forward(x)[1][-1]

    distributed(
        "recurrent",
        {"type": "gru", "input_size": 2, "hidden_size": 3, "return_sequences": False},
        Last(2, 3, batch_first=True),
        (2, 2, 3, 2),
    )


def statistics(s):
    def case(entry, label, f, x, training=True, **config):
        s.case(
            entry,
            label,
            config,
            lambda t: f(t, config["dim"], config.get("keepdim", False)),
            {"x": x},
            training=training,
        )

    mean = lambda t, dim, keep: t.mean(dim, keep)
    case("mean", "last", mean, (3, 4), dim=-1)
    case("mean", "axes_kept", mean, (2, 3, 4), dim=[0, 2], keepdim=True)
    case("mean", "all", mean, (2, 3), dim=[0, 1])
    case("mean", "images_eval", mean, (2, 2, 3, 5), dim=[-1, -2], training=False)

    def log_variance(eps=1e-8):
        return lambda t, dim, keep: torch.log(t.var(dim, unbiased=False, keepdim=keep) + eps)

    case("log_variance", "last", log_variance(), (3, 5), dim=-1)
    case("log_variance", "axes_kept", log_variance(), (2, 3, 4), dim=[0, 2], keepdim=True)
    case("log_variance", "all_eps", log_variance(0.1), (2, 4), dim=[0, 1], eps=0.1)
    far = lambda g: 100 + torch.randn(2, 7, generator=g).double()
    case("log_variance", "far_from_zero_eval", log_variance(), far, dim=1, training=False)


def utility():
    s = Suite("utility")
    activation(s)
    merge(s)
    shape(s)
    random(s)
    sequence(s)
    statistics(s)
    return s

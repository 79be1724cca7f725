"""Layers of images: convolutions, pooling, normalization of channels, upsampling."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from case import Suite, Then, activation


def pooling():
    s = Suite("pooling")

    def average(label, x, training=True, **config):
        s.case("average_pooling", label, config, nn.AvgPool2d(**config), {"x": x}, training=training)

    average("plain", (2, 2, 4, 6), kernel_size=2)
    average("overlapping", (1, 2, 5, 6), kernel_size=[3, 2], stride=[2, 1], padding=[1, 0])
    average("ceil_behind_the_padding", (1, 2, 2, 3), kernel_size=3, stride=2, ceil_mode=True)
    average("ceil", (2, 1, 5, 4), kernel_size=3, stride=2, padding=1, ceil_mode=True)
    average(
        "without_padding", (1, 2, 4, 4), kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False
    )
    average("divisor_unbatched", (3, 5, 5), kernel_size=2, stride=3, divisor_override=3)
    average("global_eval", (1, 1, 3, 4), kernel_size=[3, 4], training=False)

    def maximum(entry, kind, label, x, training=True, ties=False, **config):
        equal = lambda g: torch.randint(0, 3, x, generator=g).double()
        s.case(entry, label, config, kind(**config), {"x": equal if ties else x}, training=training)

    two = ("max_pooling", nn.MaxPool2d)
    maximum(*two, "plain", (2, 2, 4, 6), kernel_size=2)
    maximum(*two, "indices", (1, 2, 5, 6), kernel_size=[3, 2], stride=[2, 1], padding=[1, 0], return_indices=True)
    maximum(*two, "ceil_behind_the_padding", (1, 2, 2, 3), kernel_size=3, stride=2, ceil_mode=True)
    maximum(*two, "ceil_dilation", (2, 1, 7, 6), kernel_size=2, stride=3, padding=1, dilation=2, ceil_mode=True)
    maximum(*two, "ties", (2, 2, 5, 5), kernel_size=3, stride=1, ties=True, return_indices=True)
    maximum(*two, "unbatched_eval", (2, 4, 5), kernel_size=[1, 3], training=False)

    three = ("max_pool3d", nn.MaxPool3d)
    maximum(*three, "plain", (1, 2, 4, 2, 4), kernel_size=2)
    maximum(
        *three,
        "indices",
        (1, 1, 4, 5, 3),
        kernel_size=[2, 3, 1],
        stride=[1, 2, 2],
        padding=[1, 1, 0],
        return_indices=True
    )
    maximum(*three, "ceil_dilation", (1, 2, 5, 6, 5), kernel_size=2, stride=2, dilation=[1, 2, 1], ceil_mode=True)
    maximum(*three, "ties_unbatched_eval", (2, 3, 4, 3), kernel_size=2, stride=1, ties=True, training=False)

    def globally(label, x, mode, act="identity", keepdim=True, ties=False, training=True):
        f = {
            "avg": [F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d],
            "max": [F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d],
        }[mode][len(x) - 3]
        config = {"mode": mode}
        if act != "identity":
            config["activation"] = act
        if not keepdim:
            config["keepdim"] = False
        oracle = lambda x: activation(act)(f(x, 1) if keepdim else f(x, 1).flatten(1))
        equal = lambda g: torch.randint(0, 2, x, generator=g).double() + 0.5
        s.case("global_pooling", label, config, oracle, {"x": equal if ties else x}, training=training)

    globally("avg_image", (2, 3, 4, 5), "avg")
    globally("max_image", (2, 3, 4, 5), "max")
    globally("avg_sequence_tanh", (2, 3, 7), "avg", act="tanh", keepdim=False)
    globally("max_volume_ties", (2, 2, 2, 3, 2), "max", ties=True, keepdim=False, training=False)
    globally("max_sequence_sigmoid", (1, 4, 5), "max", act="sigmoid")

    def adaptive(label, x, training=True, **config):
        size = config.get("output_size", 1)
        s.case("adaptive_average_pooling", label, config, nn.AdaptiveAvgPool2d(size), {"x": x}, training=training)

    adaptive("default", (2, 3, 4, 5))
    adaptive("overlapping", (1, 2, 7, 5), output_size=[3, 2])
    adaptive("more_cells_than_input", (1, 2, 2, 3), output_size=[5, 4])
    adaptive("kept_axis_unbatched_eval", (2, 6, 3), output_size=[4, None], training=False)
    return s


def normalization():
    s = Suite("normalization")

    def instance(label, x, training=True, **options):
        kind = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][len(x) - 3]
        s.case(
            "instance_normalization",
            label,
            {"num_features": x[1], **options},
            kind(x[1], **options),
            {"x": x},
            training=training,
        )

    instance("sequence", (2, 3, 5))
    instance("image_affine", (2, 3, 4, 3), affine=True)
    instance("volume_eps_eval", (1, 2, 2, 3, 2), eps=1e-2, training=False)
    instance("tracked", (3, 2, 4), affine=True, track_running_stats=True, momentum=0.4)
    instance("tracked_without_momentum", (3, 2, 4), track_running_stats=True, momentum=None)
    instance("tracked_eval", (2, 3, 2, 3), track_running_stats=True, training=False)
    instance("tracked_affine_eval", (2, 2, 5), affine=True, track_running_stats=True, training=False)

    def group(label, groups, x, training=True, **options):
        s.case(
            "group_normalization",
            label,
            {"num_groups": groups, "num_channels": x[1], **options},
            nn.GroupNorm(groups, x[1], **options),
            {"x": x},
            training=training,
        )

    group("image", 2, (2, 4, 3, 3))
    group("one_group", 1, (2, 3, 5))
    group("many", 2, (2, 6, 11, 13))
    group("group_per_channel_not_affine", 3, (2, 3, 4), affine=False)
    group("rank2", 2, (3, 6))
    group("volume_eps_eval", 2, (1, 4, 2, 2, 3), eps=1e-2, training=False)

    spectral(s)

    def rms(label, normalized, x, training=True, **options):
        # PyTorch takes the machine epsilon of the input by default, which is that of float64 here.
        eps = options.get("eps", 1e-6)
        oracle = nn.RMSNorm(
            normalized,
            eps=1.1920928955078125e-07 if eps is None else eps,
            elementwise_affine=options.get("elementwise_affine", True),
        )
        s.case("rms_norm", label, {"normalized_shape": normalized, **options}, oracle, {"x": x}, training=training)

    rms("last", 5, (2, 3, 5))
    rms("long", 301, (3, 301))
    rms("two_axes", [2, 4], (3, 2, 4))
    rms("not_affine", 6, (4, 6), elementwise_affine=False)
    rms("eps_eval", 33, (2, 33), eps=0.1, training=False)
    s.case(
        "rms_norm",
        "machine_eps",
        {"normalized_shape": 4, "eps": None},
        nn.RMSNorm(4, eps=1.1920928955078125e-07),
        {"x": lambda g: 1e-3 * torch.randn(3, 4, generator=g).double()},
    )
    return s


def spectral(s):
    """PyTorch's names: `parametrizations.weight.original` is the raw weight, `parametrizations.weight.0._u` and `_v` are
    the vectors."""

    def case(label, inner, config, x, training=True, n=1, **options):
        oracle = spectral_norm(inner, n_power_iterations=n, **options)

        def draw(name, t, g):
            if name.endswith(("_u", "_v")):
                return F.normalize(torch.randn(t.shape, generator=g).double(), dim=0)
            return None

        config = {"inner": config, **({"n_power_iterations": n} if n != 1 else {}), **options}
        s.case("spectral_normalization", label, config, oracle, {"x": x}, training=training, draw=draw)

    case("dense", nn.Linear(4, 3), {"type": "dense", "in_features": 4, "out_features": 3}, (5, 4))
    case(
        "conv_two_iterations",
        nn.Conv2d(2, 3, 3, padding=1),
        {"type": "convolutional", "in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1},
        (1, 2, 4, 4),
        n=2,
    )
    case(
        "deconv_dim",
        nn.ConvTranspose2d(3, 2, 2, stride=2),
        {"type": "deconvolutional", "in_channels": 3, "out_channels": 2, "kernel_size": 2, "stride": 2},
        (1, 3, 2, 3),
        dim=1,
    )
    case(
        "dense_no_bias_eval",
        nn.Linear(3, 5, bias=False),
        {"type": "dense", "in_features": 3, "out_features": 5, "bias": False},
        (2, 3),
        training=False,
    )
    case("eps", nn.Linear(2, 6), {"type": "dense", "in_features": 2, "out_features": 6}, (3, 2), n=3, eps=1e-2)
    case("vector", nn.LayerNorm(6), {"type": "layer_normalization", "normalized_shape": 6}, (3, 6))


def bilinear(x, rows, cols):
    """Values of `[B, C, H, W]` at positions `[B, ..]`; cells outside of the image are 0."""
    b, c, h, w = x.shape
    y0, x0 = rows.floor(), cols.floor()
    total = 0
    for dy in (0, 1):
        for dx in (0, 1):
            r, q = y0 + dy, x0 + dx
            weight = (1 - (rows - r).abs()) * (1 - (cols - q).abs())
            inside = (r >= 0) & (r < h) & (q >= 0) & (q < w)
            at = (r.clamp(0, h - 1) * w + q.clamp(0, w - 1)).long()
            cells = x.flatten(2).gather(2, at.flatten(1)[:, None].expand(b, c, -1)).unflatten(2, at.shape[1:])
            total = total + cells * (weight * inside)[:, None]
    return total


def deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask):
    """torchvision.ops.deform_conv2d by its definition; compared with it where torchvision is installed."""
    b, c, _, _ = x.shape
    o, per_group, kh, kw = weight.shape
    taps, (ho, wo) = kh * kw, offset.shape[2:]
    dg, groups = offset.shape[1] // (2 * taps), c // per_group
    shift = offset.unflatten(1, (dg, taps, 2))
    factor = torch.ones(b, dg, taps, ho, wo, dtype=x.dtype) if mask is None else mask.unflatten(1, (dg, taps))
    u, v = torch.arange(taps) // kw, torch.arange(taps) % kw
    base_r = (torch.arange(ho) * stride[0] - padding[0])[None, :, None] + (u * dilation[0])[:, None, None]
    base_c = (torch.arange(wo) * stride[1] - padding[1])[None, None, :] + (v * dilation[1])[:, None, None]
    cols = []
    for q, part in enumerate(x.chunk(dg, 1)):
        cols.append(bilinear(part, base_r + shift[:, q, :, 0], base_c + shift[:, q, :, 1]) * factor[:, q][:, None])
    cols = torch.cat(cols, 1).unflatten(1, (groups, per_group))
    y = torch.einsum("bgcthw,goct->bgohw", cols, weight.reshape(groups, o // groups, per_group, taps)).flatten(1, 2)
    return y if bias is None else y + bias[:, None, None]


def check_deform_conv2d():
    try:
        from torchvision.ops import deform_conv2d as theirs
    except ImportError:
        return
    d = {"dtype": torch.float64}
    args = [
        torch.randn(2, 4, 5, 6, **d),
        2 * torch.randn(2, 36, 3, 3, **d),
        torch.randn(6, 2, 3, 3, **d),
        torch.randn(6, **d),
    ]
    mask = torch.rand(2, 18, 3, 3, **d)
    how = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    assert torch.allclose(deform_conv2d(*args, **how, mask=mask), theirs(*args, **how, mask=mask))
    assert torch.allclose(deform_conv2d(*args, **how, mask=None), theirs(*args, **how))
    print("deform_conv2d agrees with torchvision")


class Deformable(nn.Module):
    def __init__(
        self,
        c,
        o,
        kernel_size=3,
        stride=1,
        padding=1,
        dilation=1,
        groups=1,
        deform_groups=1,
        modulation=True,
        bias=True,
    ):
        super().__init__()
        pair = lambda v: tuple(v) if isinstance(v, list) else (v, v)
        k = pair(kernel_size)
        self.how = (pair(stride), pair(padding), pair(dilation))
        taps = deform_groups * k[0] * k[1]
        self.weight = nn.Parameter(torch.empty(o, c // groups, *k))
        self.register_parameter("bias", nn.Parameter(torch.empty(o)) if bias else None)
        self.offset_conv = nn.Conv2d(c, 2 * taps, k, *self.how)
        self.mask_conv = nn.Conv2d(c, taps, k, *self.how) if modulation else None

    def forward(self, x):
        single = x.dim() == 3
        x = x[None] if single else x
        mask = None if self.mask_conv is None else torch.sigmoid(self.mask_conv(x))
        y = deform_conv2d(x, self.offset_conv(x), self.weight, self.bias, *self.how, mask)
        return y[0] if single else y


class Separable(nn.Module):
    def __init__(
        self,
        c,
        o,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        depth_multiplier=1,
        bias=True,
        mid_activation="identity",
        activation_="identity",
    ):
        super().__init__()
        self.depthwise = nn.Conv2d(
            c, c * depth_multiplier, kernel_size, stride, padding, dilation, groups=c, bias=False
        )
        self.pointwise = nn.Conv2d(c * depth_multiplier, o, 1, bias=bias)
        self.mid, self.act = activation(mid_activation), activation(activation_)

    def forward(self, x):
        return self.act(self.pointwise(self.mid(self.depthwise(x))))


class LocallyConnected(nn.Module):
    def __init__(self, x, o, kernel_size, stride=1, bias=True, act="identity"):
        super().__init__()
        pair = lambda v: tuple(v) if isinstance(v, list) else (v, v)
        self.k, self.s, self.o = pair(kernel_size), pair(stride), o
        self.size = [(n - k) // t + 1 for n, k, t in zip(x[-2:], self.k, self.s)]
        self.weight = nn.Parameter(torch.empty(*self.size, o, x[-3], *self.k))
        self.register_parameter("bias", nn.Parameter(torch.empty(o, *self.size)) if bias else None)
        self.act = activation(act)

    def forward(self, x):
        single = x.dim() == 3
        cols = F.unfold(x[None] if single else x, self.k, stride=self.s)
        y = torch.einsum("bkl,lok->bol", cols, self.weight.flatten(0, 1).flatten(2)).unflatten(2, self.size)
        y = self.act(y if self.bias is None else y + self.bias)
        return y[0] if single else y


def split_activation(options):
    act = options.get("activation", "identity")
    return {k: v for k, v in options.items() if k != "activation"}, act


def convolutional():
    s = Suite("convolutional")
    check_deform_conv2d()

    def plain(entry, kind, label, x, channels, training=True, lazy=False, **options):
        own, act = split_activation(options)
        axes = 3 if entry == "conv3d" else 2
        config = {**options, **({} if lazy else {"in_channels": channels})}
        s.case(
            entry, label, config, Then(kind(in_channels=channels, **own), act), {"x": x}, training=training, lazy=lazy
        )

    three = ("conv3d", nn.Conv3d)
    plain(*three, "plain", (2, 2, 3, 4, 3), 2, out_channels=3, kernel_size=2)
    plain(
        *three,
        "stride_padding",
        (1, 2, 4, 5, 5),
        2,
        out_channels=2,
        kernel_size=[1, 3, 2],
        stride=[1, 2, 2],
        padding=[0, 1, 1],
        activation="relu"
    )
    plain(
        *three,
        "groups_dilation_no_bias",
        (1, 4, 3, 3, 5),
        4,
        out_channels=4,
        kernel_size=2,
        dilation=[1, 1, 2],
        groups=2,
        padding=1,
        bias=False
    )
    plain(*three, "same_unbatched_lazy", (1, 3, 4, 3), 1, lazy=True, out_channels=2, kernel_size=3, padding="same")
    plain(
        *three,
        "replicate_eval",
        (1, 1, 3, 3, 3),
        1,
        out_channels=2,
        kernel_size=3,
        padding=1,
        padding_mode="replicate",
        training=False
    )
    plain(*three, "circular", (1, 1, 3, 4, 2), 1, out_channels=2, kernel_size=2, padding=1, padding_mode="circular")

    up = ("deconvolutional", nn.ConvTranspose2d)
    plain(*up, "plain", (2, 2, 3, 4), 2, out_channels=3, kernel_size=3)
    plain(*up, "many_channels", (1, 17, 4, 3), 17, out_channels=9, kernel_size=3, stride=2, padding=1)
    plain(
        *up,
        "stride_output_padding",
        (2, 3, 3, 2),
        3,
        out_channels=2,
        kernel_size=[3, 4],
        stride=[2, 3],
        padding=[1, 2],
        output_padding=[1, 2]
    )
    plain(
        *up,
        "groups_dilation",
        (1, 4, 3, 3),
        4,
        out_channels=6,
        kernel_size=2,
        dilation=2,
        groups=2,
        activation="relu"
    )
    plain(*up, "unbatched_no_bias_lazy", (2, 3, 3), 2, lazy=True, out_channels=2, kernel_size=2, stride=2, bias=False)
    plain(
        *up, "one_by_one_tanh_eval", (1, 3, 2, 2), 3, out_channels=2, kernel_size=1, activation="tanh", training=False
    )

    holes = ("dilated_convolutional", nn.Conv2d)
    plain(*holes, "two", (2, 2, 6, 7), 2, out_channels=3, kernel_size=3, dilation=2)
    plain(
        *holes,
        "same_pair_relu",
        (1, 3, 6, 5),
        3,
        out_channels=2,
        kernel_size=3,
        dilation=[3, 2],
        padding="same",
        activation="relu"
    )
    plain(
        *holes,
        "stride_groups_no_bias",
        (1, 4, 8, 8),
        4,
        out_channels=4,
        kernel_size=2,
        dilation=3,
        stride=2,
        padding=2,
        groups=4,
        bias=False
    )
    plain(
        *holes,
        "one_unbatched_lazy_eval",
        (2, 4, 4),
        2,
        lazy=True,
        out_channels=2,
        kernel_size=2,
        dilation=1,
        training=False
    )
    plain(
        *holes,
        "reflect",
        (1, 2, 5, 5),
        2,
        out_channels=2,
        kernel_size=3,
        dilation=2,
        padding=2,
        padding_mode="reflect"
    )

    def deformable(label, x, o, training=True, lazy=False, **options):
        config = {"out_channels": o, **options, **({} if lazy else {"in_channels": x[-3]})}

        # Small offsets keep every position away from whole numbers, where the gradient jumps.
        def draw(name, p, g):
            if name == "offset_conv.bias":
                return 0.35 + 0.1 * torch.rand(p.shape, generator=g).double()
            if name == "offset_conv.weight":
                return 0.02 * torch.randn(p.shape, generator=g).double()
            return None

        s.case(
            "deformable_convolutional",
            label,
            config,
            Deformable(x[-3], o, **options),
            {"x": x},
            training=training,
            lazy=lazy,
            draw=draw,
        )

    deformable("plain", (1, 2, 4, 5), 3)
    deformable("not_modulated_no_bias", (2, 2, 4, 4), 2, kernel_size=2, padding=0, modulation=False, bias=False)
    deformable("groups", (1, 4, 4, 3), 2, groups=2, deform_groups=2, kernel_size=[1, 3], padding=[0, 1])
    deformable("stride_dilation_eval", (1, 2, 6, 5), 2, stride=2, dilation=[2, 1], padding=[2, 1], training=False)
    deformable("unbatched_lazy", (2, 3, 4), 2, kernel_size=2, lazy=True)

    def separable(entry, label, x, o, training=True, lazy=False, **options):
        own, act = split_activation(options)
        config = {"out_channels": o, **options, **({} if lazy else {"in_channels": x[-3]})}
        s.case(
            entry, label, config, Separable(x[-3], o, **own, activation_=act), {"x": x}, training=training, lazy=lazy
        )

    for entry in ("depthwise_separable_convolutional", "separable_convolutional"):
        separable(entry, "plain", (2, 3, 4, 5), 2, kernel_size=3)
        separable(
            entry,
            "multiplier_no_bias",
            (1, 2, 5, 5),
            3,
            kernel_size=[2, 3],
            depth_multiplier=2,
            bias=False,
            padding=1,
        )
        separable(
            entry,
            "stride_dilation_relu",
            (1, 3, 6, 6),
            4,
            kernel_size=2,
            stride=2,
            dilation=2,
            padding=1,
            activation="relu",
        )
        separable(entry, "unbatched_lazy_eval", (2, 4, 4), 3, lazy=True, kernel_size=3, padding=1, training=False)
    separable(
        "depthwise_separable_convolutional",
        "mid_activation",
        (2, 2, 4, 4),
        3,
        kernel_size=3,
        mid_activation="relu",
        activation="tanh",
    )

    def local(label, x, o, training=True, **options):
        own, act = split_activation(options)
        s.case(
            "locally_connected",
            label,
            {"in_channels": x[-3], "out_channels": o, **options},
            LocallyConnected(x, o, act=act, **own),
            {"x": x},
            training=training,
            lazy=True,
        )

    local("plain", (2, 2, 4, 4), 2, kernel_size=2)
    local("stride_pair", (3, 1, 5, 6), 2, kernel_size=[3, 2], stride=[1, 2], activation="relu")
    local("no_bias_eval", (1, 2, 3, 3), 3, kernel_size=2, bias=False, training=False)
    local("unbatched_whole", (2, 3, 4), 2, kernel_size=[3, 4])
    return s


def upsampling():
    s = Suite("upsampling")

    def upsample(entry, label, x, training=True, **config):
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
        oracle = lambda x: F.interpolate(x[None], **options)[0] if unbatched else F.interpolate(x, **options)
        unbatched = len(x) == (4 if entry == "upsample3d" else 3)
        s.case(entry, label, config, oracle, {"x": x}, training=training)

    upsample("upsample3d", "nearest", (1, 2, 2, 3, 2), scale_factor=2)
    upsample("upsample3d", "trilinear_triple", (1, 1, 2, 3, 2), scale_factor=[2, 1, 3], mode="trilinear")
    upsample("upsample3d", "align_corners", (1, 2, 3, 2, 2), scale_factor=2, mode="trilinear", align_corners=True)
    upsample("upsample3d", "size_unbatched_eval", (1, 2, 3, 3), size=[3, 5, 2], mode="trilinear", training=False)
    upsample("upsample3d", "nearest_size", (1, 1, 4, 3, 2), size=[3, 5, 2])

    upsample("upsampling", "nearest", (2, 2, 3, 4), scale_factor=3)
    upsample("upsampling", "bilinear_pair", (1, 2, 3, 4), scale_factor=[2, 3], mode="bilinear")
    upsample("upsampling", "align_corners", (1, 2, 3, 4), scale_factor=2, mode="bilinear", align_corners=True)
    upsample("upsampling", "fraction", (1, 1, 4, 5), scale_factor=1.6, mode="bilinear")
    upsample("upsampling", "nearest_fraction", (1, 1, 5, 4), scale_factor=1.7)
    upsample("upsampling", "nearest_fraction_that_keeps", (1, 2, 4, 3), scale_factor=[1.2, 1.1])
    upsample("upsampling", "nearest_fraction_that_doubles", (1, 2, 3, 2), scale_factor=[1.1, 2.4])
    upsample("upsampling", "fraction_that_keeps", (1, 1, 4, 3), scale_factor=[1.2, 1.5], mode="bilinear")
    upsample("upsampling", "size_unbatched_eval", (2, 4, 3), size=[7, 2], mode="bilinear", training=False)
    upsample("upsampling", "nearest_smaller", (1, 2, 6, 5), size=[4, 3])

    def subpixel(label, x, o, r, k, training=True, lazy=False, **options):
        own, act = split_activation(options)
        own.pop("icnr_init", None)
        config = {
            "out_channels": o,
            "upscale_factor": r,
            "kernel_size": k,
            **options,
            **({} if lazy else {"in_channels": x[-3]}),
        }

        class Subpixel(nn.Conv2d):
            def forward(self, x):
                return activation(act)(F.pixel_shuffle(super().forward(x), r))

        s.case(
            "subpixel_convolutional",
            label,
            config,
            Subpixel(x[-3], o * r * r, k, padding=k // 2, **own),
            {"x": x},
            training=training,
            lazy=lazy,
        )

    subpixel("plain", (2, 2, 3, 4), 1, 2, 3)
    subpixel("three_no_bias", (1, 3, 2, 3), 2, 3, 1, bias=False)
    subpixel("lazy_relu_icnr", (1, 2, 3, 3), 2, 2, 3, lazy=True, activation="relu", icnr_init=True)
    subpixel("unbatched_eval", (2, 3, 2), 1, 2, 3, training=False)
    subpixel("factor_one", (1, 2, 4, 4), 3, 1, 3, activation="tanh")

    def shuffle(label, x, r, training=True):
        s.case("pixel_shuffle", label, {"upscale_factor": r}, nn.PixelShuffle(r), {"x": x}, training=training)

    shuffle("two", (2, 8, 2, 3), 2)
    shuffle("three_unbatched", (9, 2, 1), 3)
    shuffle("leading_axes", (2, 1, 4, 3, 2), 2)
    shuffle("one_eval", (1, 3, 2, 2), 1, training=False)
    return s

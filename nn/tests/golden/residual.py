"""Blocks around skip connections: torchvision's, and those of super-resolution after their papers."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torchvision.models.densenet import _DenseBlock, _DenseLayer, _Transition
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1
from torchvision.ops import SqueezeExcitation

from case import Suite, activation


def residual():
    s = Suite("residual")
    containers(s)
    highway(s)
    densenet(s)
    resnet(s)
    squeeze(s)
    inverted(s)
    pooling(s)
    super_resolution(s)
    discriminator(s)
    return s


def unbatched(m, x):
    """A module of batches on one image."""
    return m(x[None])[0]


def case(s, entry, label, config, oracle, x, **options):
    if "unbatched" in label:
        options["call"] = unbatched
    s.case(entry, label, config, oracle, {"x": x}, **options)


class Residual(nn.Module):
    def __init__(self, layers, shortcut=(), act="identity"):
        super().__init__()
        for i, layer in enumerate(layers):
            self.add_module(str(i), layer)
        self.body, self.act = [nn.Sequential(*layers)] if layers else [], activation(act)
        if shortcut:
            self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        y = self.shortcut(x) if hasattr(self, "shortcut") else x
        return self.act(y + self.body[0](x) if self.body else y)


def containers(s):
    dense = lambda i, o: {"type": "dense", "in_features": i, "out_features": o}
    conv = {"type": "convolutional", "in_channels": 2, "out_channels": 2, "kernel_size": 3, "padding": 1}
    config = {"layers": [dense(4, 3), {"type": "activation", "kind": "tanh"}, dense(3, 4)]}
    s.case("residual", "bottleneck", config, Residual([nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)]), {"x": (3, 4)})
    oracle = Residual([nn.Conv2d(2, 2, 3, padding=1)], act="relu")
    s.case("residual", "conv_relu", {"layers": [conv], "activation": "relu"}, oracle, {"x": (2, 2, 3, 4)})
    config = {"layers": [dense(3, 5)], "shortcut": [dense(3, 5)], "activation": "gelu"}
    oracle = Residual([nn.Linear(3, 5)], [nn.Linear(3, 5)], "gelu")
    s.case("residual", "shortcut_eval", config, oracle, {"x": (2, 3, 3)}, training=False)
    s.case("residual", "empty", {"layers": [], "activation": "tanh"}, Residual([], act="tanh"), {"x": (2, 3)})


class Highway(nn.Module):
    def __init__(self, dim, transform_activation="tanh", gate_activation="sigmoid"):
        super().__init__()
        self.transform, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.f, self.g = activation(transform_activation), activation(gate_activation)

    def forward(self, x):
        h, t = self.f(self.transform(x)), self.g(self.gate(x))
        return t * h + (1 - t) * x


def highway(s):
    def run(label, x, training=True, extra=None, **config):
        s.case(
            "highway",
            label,
            {"dim": x[-1], **config, **(extra or {})},
            Highway(x[-1], **config),
            {"x": x},
            training=training,
        )

    run("plain", (3, 4))
    run("relu", (2, 3, 5), transform_activation="relu", extra={"gate_bias_init": -2.5})
    run("gelu_tanh_gate_eval", (4, 3), False, transform_activation="gelu", gate_activation="tanh")
    run("vector_unbatched", (6,), extra={"aux_weight": 0.01})


def densenet(s):
    def layer(label, x, c, k, training=True, **config):
        oracle = _DenseLayer(c, k, config.get("bn_size", 4), config.get("drop_rate", 0.0))
        config = {"in_channels": c, "growth_rate": k, **config}
        case(s, "dense_block_layer", label, config, oracle, x, training=training)

    layer("plain", (2, 3, 3, 4), 3, 2)
    layer("narrow_eval", (2, 2, 3, 3), 2, 3, False, bn_size=1)
    layer("dropout_eval", (1, 3, 2, 4), 3, 1, False, drop_rate=0.5)
    layer("unbatched", (2, 4, 3), 2, 2, bn_size=2)

    def block(label, x, n, c, k, training=True, **config):
        oracle = _DenseBlock(n, c, config.get("bn_size", 4), k, config.get("drop_rate", 0.0))
        config = {"num_layers": n, "in_channels": c, "growth_rate": k, **config}
        case(s, "dense_block", label, config, oracle, x, training=training)

    block("two", (2, 2, 3, 3), 2, 2, 1)
    block("three_eval", (2, 1, 3, 2), 3, 1, 2, False, bn_size=1)
    block("dropout_eval", (1, 2, 3, 3), 1, 2, 2, False, drop_rate=0.2, bn_size=2)
    block("unbatched", (2, 3, 4), 2, 2, 1, bn_size=2)

    def transition(label, x, c, training=True, **config):
        oracle = _Transition(c, int(c * config.get("compression", 0.5)))
        case(s, "transition", label, {"in_channels": c, **config}, oracle, x, training=training)

    transition("half", (2, 4, 4, 6), 4)
    transition("odd_third", (2, 5, 5, 3), 5, compression=0.3)
    transition("all_channels_eval", (1, 3, 3, 4), 3, False, compression=1)
    transition("unbatched", (3, 4, 4), 3)


def downsampled(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


def resnet(s):
    def basic(label, x, o, stride=1, training=True, **config):
        c = x[-3]
        oracle = BasicBlock(c, o, stride, downsampled(c, o, stride))
        config = {"in_channels": c, "out_channels": o, "stride": stride, **config}
        case(s, "basic_block", label, config, oracle, x, training=training)

    basic("identity", (2, 2, 3, 3), 2)
    basic("stride", (2, 2, 5, 4), 2, 2)
    basic("wider_eval", (1, 2, 3, 3), 3, 1, False, zero_init_residual=True)
    basic("unbatched", (2, 4, 5), 3, 2)

    def bottleneck(label, x, base, stride=1, training=True, **config):
        c = x[-3]
        groups, width = config.get("groups", 1), config.get("base_width", 64)
        oracle = Bottleneck(c, base, stride, downsampled(c, 4 * base, stride), groups, width)
        config = {"in_channels": c, "base_channels": base, "stride": stride, **config}
        case(s, "bottleneck_block", label, config, oracle, x, training=training)

    bottleneck("identity", (2, 4, 3, 3), 1)
    bottleneck("stride_groups", (2, 2, 5, 4), 1, 2, groups=2, base_width=128)
    bottleneck("half_width_eval", (1, 3, 3, 3), 2, 1, False, base_width=32, zero_init_residual=True)
    bottleneck("unbatched", (3, 4, 5), 1, 2)


class SqueezedVectors(SqueezeExcitation):
    """The means of vectors are the vectors."""

    def forward(self, x):
        return super().forward(x[:, :, None, None])[:, :, 0, 0]


class SqueezedLast(SqueezeExcitation):
    def forward(self, x):
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def squeeze(s):
    def run(label, kind, squeezed, x, config, training=True):
        acts = {"relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}
        act, gate = acts[config.get("activation", "relu")], acts[config.get("gate", "sigmoid")]
        c = config["channels"]
        s.case("squeeze_and_excitation", label, config, kind(c, squeezed, act, gate), {"x": x}, training=training)

    run("one_squeezed", SqueezeExcitation, 1, (2, 3, 2, 3), {"channels": 3, "aux_weight": 0.1})
    run("squeeze_tanh", SqueezeExcitation, 3, (2, 4, 2, 2), {"channels": 4, "squeeze": 3, "gate": "tanh"})
    run("vectors", SqueezedVectors, 2, (3, 5), {"channels": 5, "reduction": 2, "activation": "gelu"})
    run("last_eval", SqueezedLast, 2, (2, 2, 3, 4), {"channels": 4, "reduction": 2, "layout": "nhwc"}, False)


def inverted(s):
    def run(label, x, o, stride=1, ratio=6, training=True, **config):
        oracle = InvertedResidual(x[-3], o, stride, ratio)
        if config.get("use_se"):
            *before, project, norm = oracle.conv
            hidden = before[-1][0].out_channels
            excite = SqueezeExcitation(hidden, max(1, hidden // config.get("se_ratio", 4)))
            oracle.conv = nn.Sequential(*before, excite, project, norm)
        if config.get("activation") == "silu":
            for part in oracle.conv:
                if isinstance(part, nn.Sequential):
                    part[2] = nn.SiLU()
        config = {"in_channels": x[-3], "out_channels": o, "stride": stride, "expand_ratio": ratio, **config}
        case(s, "inverted_residual_block", label, config, oracle, x, training=training)

    run("residual", (2, 2, 3, 3), 2, ratio=2)
    run("stride", (2, 2, 5, 4), 2, 2, 3)
    run("not_expanded_eval", (1, 3, 3, 2), 3, ratio=1, training=False)
    run("excited_silu_unbatched", (2, 4, 4), 2, 2, 2, use_se=True, se_ratio=2, activation="silu")


def pooling(s):
    def run(label, f, x, training=True, **config):
        size, stride = config["pool_size"], config.get("stride", config["pool_size"])
        s.case("pooling", label, config, lambda x: f(x, size, stride), {"x": x}, training=training)

    run("max", F.max_pool2d, (2, 2, 5, 6), pool_size=2, stride=2)
    run("max_overlapping", F.max_pool2d, (1, 2, 5, 4), pool_size=[3, 2], stride=[2, 1], mode="max")
    run("average", F.avg_pool2d, (2, 2, 4, 5), pool_size=2, mode="average")
    run("average_unbatched_eval", F.avg_pool2d, (2, 5, 5), False, pool_size=3, stride=[1, 2], mode="average")


def leaky(x, slope=0.2):
    return F.leaky_relu(x, slope)


class DenseResidual(nn.Module):
    """x + scale * (dense block of five convolutions)(x), ESRGAN, figure 4."""

    def __init__(self, features, growth, scale=0.2, slope=0.2):
        super().__init__()
        self.scale, self.slope = scale, slope
        for i in range(5):
            outputs = growth if i < 4 else features
            self.add_module(f"conv{i + 1}", nn.Conv2d(features + i * growth, outputs, 3, padding=1))

    def forward(self, x):
        known = [x]
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            known.append(leaky(conv(torch.cat(known, 1)), self.slope))
        return x + self.scale * self.conv5(torch.cat(known, 1))


class DenseResiduals(nn.Module):
    """Three of them with a residual around, the basic block of ESRGAN."""

    def __init__(self, features, growth, scale=0.2):
        super().__init__()
        self.scale = scale
        self.rdb1, self.rdb2, self.rdb3 = (DenseResidual(features, growth, scale) for _ in range(3))

    def forward(self, x):
        return x + self.scale * self.rdb3(self.rdb2(self.rdb1(x)))


class Generator(nn.Module):
    """The generator of ESRGAN, with the names of BasicSR's."""

    def __init__(self, inputs, outputs, features, growth, blocks, scale, residual_scale=0.2, shuffled=False):
        super().__init__()
        same = lambda i, o: nn.Conv2d(i, o, 3, padding=1)
        self.shuffled, self.doublings = shuffled, {2: 1, 4: 2, 8: 3}[scale]
        self.conv_first = same(inputs, features)
        self.body = nn.Sequential(*(DenseResiduals(features, growth, residual_scale) for _ in range(blocks)))
        self.conv_body = same(features, features)
        for i in range(self.doublings):
            self.add_module(f"conv_up{i + 1}", same(features, features * (4 if shuffled else 1)))
        self.conv_hr = same(features, features)
        self.conv_last = same(features, outputs)

    def forward(self, x):
        first = self.conv_first(x)
        y = first + self.conv_body(self.body(first))
        for i in range(self.doublings):
            conv = getattr(self, f"conv_up{i + 1}")
            wide = F.pixel_shuffle(conv(y), 2) if self.shuffled else conv(F.interpolate(y, scale_factor=2))
            y = leaky(wide)
        return self.conv_last(leaky(self.conv_hr(y)))


def super_resolution(s):
    def dense(label, x, growth, training=True, **config):
        oracle = DenseResidual(x[-3], growth, config.get("residual_scale", 0.2), config.get("negative_slope", 0.2))
        config = {"num_feat": x[-3], "num_grow_ch": growth, **config}
        case(s, "residual_dense_block", label, config, oracle, x, training=training)

    dense("plain", (2, 2, 3, 3), 1)
    dense("whole_residual", (1, 2, 3, 4), 2, residual_scale=1, negative_slope=0.01)
    dense("eval", (1, 1, 3, 3), 2, False, residual_scale=0.5)
    dense("unbatched", (2, 4, 2), 1, negative_slope=0)

    def rrdb(label, x, growth, training=True, **config):
        oracle = DenseResiduals(x[-3], growth, config.get("residual_scale", 0.2))
        config = {"num_feat": x[-3], "num_grow_ch": growth, **config}
        case(s, "rrdb", label, config, oracle, x, training=training)

    rrdb("plain", (2, 2, 3, 3), 1)
    rrdb("scaled", (1, 1, 3, 2), 1, residual_scale=0.7)
    rrdb("eval", (1, 1, 3, 3), 1, False)
    rrdb("unbatched", (1, 2, 4), 1, residual_scale=1)

    def generator(label, x, outputs, features, blocks, training=True, **config):
        shuffled = config.get("upsampler") == "pixel_shuffle"
        scale, residual_scale = config.get("scale", 4), config.get("residual_scale", 0.2)
        oracle = Generator(x[-3], outputs, features, 1, blocks, scale, residual_scale, shuffled)
        config = {
            "in_channels": x[-3],
            "out_channels": outputs,
            "num_feat": features,
            "num_grow_ch": 1,
            "num_block": blocks,
            **config,
        }
        case(s, "rrdbnet_generator", label, config, oracle, x, training=training)

    generator("four", (1, 2, 2, 3), 1, 2, 1)
    generator("two_shuffled", (2, 1, 2, 2), 2, 1, 1, scale=2, upsampler="pixel_shuffle", checkpoint=True)
    generator("eight_eval", (1, 1, 1, 2), 1, 1, 1, False, scale=8, residual_scale=0.5)
    generator("four_shuffled_unbatched", (1, 2, 2), 1, 1, 1, scale=4, upsampler="pixel_shuffle")


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)

    def forward(self, x):
        return leaky(self.conv2(leaky(self.conv1(x))))


class Up(nn.Module):
    def __init__(self, inputs, skip, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs + skip, outputs, 3, 1, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)

    def forward(self, x, skip):
        return leaky(self.conv2(leaky(self.conv1(torch.cat([F.interpolate(x, scale_factor=2), skip], 1)))))


class UNet(nn.Module):
    def __init__(self, inputs, features, n):
        super().__init__()
        width = [min(2**i, 8) * features for i in range(n + 1)]
        self.conv_first = nn.Conv2d(inputs, features, 3, 1, 1)
        self.down = nn.ModuleList(Down(width[i], width[i + 1]) for i in range(n))
        # What the block that reads level i gives, and what it gets.
        outputs = [features] + width[: n - 1]
        below = outputs[1:] + [width[n]]
        self.up = nn.ModuleList(Up(below[i], width[i], outputs[i]) for i in range(n))
        self.conv_last = nn.Conv2d(features, 1, 3, 1, 1)

    def forward(self, x):
        levels = [leaky(self.conv_first(x))]
        for down in self.down:
            levels.append(down(levels[-1]))
        y = levels.pop()
        for up in reversed(self.up):
            y = up(y, levels.pop())
        return self.conv_last(y)


class SpectralUNet(nn.Module):
    """The discriminator of Real-ESRGAN (Wang et al., 2021, figure 6), with the names of BasicSR's."""

    def __init__(self, inputs, features):
        super().__init__()
        widths = [w * features for w in (1, 2, 4, 8, 4, 2, 1, 1, 1)]
        self.conv0 = nn.Conv2d(inputs, features, 3, 1, 1)
        for i, (a, b) in enumerate(zip(widths, widths[1:])):
            size, stride = (4, 2) if i < 3 else (3, 1)
            self.add_module(f"conv{i + 1}", spectral_norm(nn.Conv2d(a, b, size, stride, 1, bias=False)))
        self.conv9 = nn.Conv2d(features, 1, 3, 1, 1)

    def forward(self, x):
        run = lambda i, x: leaky(getattr(self, f"conv{i}")(x))
        x0 = run(0, x)
        x1 = run(1, x0)
        x2 = run(2, x1)
        y = run(3, x2)
        for i, skip in ((4, x2), (5, x1), (6, x0)):
            y = skip + run(i, F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False))
        return self.conv9(run(8, run(7, y)))


def discriminator(s):
    def run(label, x, features, blocks=None, training=True):
        if blocks is None:
            config, oracle = {"mode": "realesrgan"}, SpectralUNet(x[-3], features)
        else:
            config, oracle = {"num_blocks": blocks}, UNet(x[-3], features, blocks)

        def draw(name, t, g):
            if not name.endswith(("_u", "_v")):
                return None
            if training:
                return F.normalize(torch.randn(t.shape, generator=g).double(), dim=0)
            # Evaluation divides by u @ weight @ v as they are. These belong to the weights, so that outputs are of unit
            # size, and one more step of the power iteration would change them.
            weight = oracle.get_submodule(name.rsplit(".", 2)[0]).original.flatten(1)
            u = F.normalize(weight.sum(1), dim=0)
            return u if name.endswith("_u") else F.normalize(weight.T @ u, dim=0)

        config = {"in_channels": x[-3], "num_feat": features, **config}
        case(s, "unet_discriminator", label, config, oracle, x, training=training, draw=draw)

    run("two_levels", (2, 2, 4, 8), 1, 2)
    run("one_level_unbatched_eval", (1, 2, 4), 2, 1, False)
    run("spectral", (2, 2, 8, 8), 1)
    run("spectral_eval", (1, 1, 8, 16), 1, training=False)

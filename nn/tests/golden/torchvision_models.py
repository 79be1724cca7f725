"""Writes `models-torchvision.json`, what torchvision's models and a U-Net (unet.py) compute and what their states are:
`python torchvision_models.py`.

Weights are no part of the file. Both sides draw them from one generator of pseudorandom numbers, entry by entry in the order of the names,
so that outputs, and of each gradient and each new running statistic the norm and the product with noise, tell whether the models are the
same. `modules` lists the modules of the full sizes that have a state.
"""

import json
import pathlib

import torch
from torch import nn
from torchvision.models import MobileNetV2, densenet121, mobilenet_v2, resnet18, resnet34, resnet50
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from unet import UNet

MASK = (1 << 64) - 1


def noise(seed, n):
    """xorshift64 in [-1, 1)."""
    s = (seed * 0x9E3779B97F4A7C15 & MASK) | 1
    values = []
    for _ in range(n):
        s ^= s << 13 & MASK
        s ^= s >> 7
        s ^= s << 17 & MASK
        values.append((s >> 11) / (1 << 52) - 1)
    return torch.tensor(values, dtype=torch.float64)


def value(name, t, seed):
    """What an entry of the state holds."""
    if name.endswith("num_batches_tracked"):
        return torch.tensor(3)
    v = noise(seed, t.numel()).reshape(t.shape)
    if t.dim() > 1:
        return v * (3 / t[0].numel()) ** 0.5
    return {"running_var": 1 + 0.5 * v, "weight": 1 + 0.25 * v}.get(name.rsplit(".", 1)[1], 0.25 * v)


def rounded(t):
    return [float(f"{v:.10g}") for v in t.flatten().tolist()]


def digest(t, seed):
    return rounded(torch.stack([t.norm(), (t.flatten() * noise(seed, t.numel())).sum()]))


class SmallResNet(ResNet):
    """torchvision's forward pass and stages, with another width and other images."""

    def __init__(self, block, layers, width, channels, small_images):
        nn.Module.__init__(self)
        self._norm_layer, self.inplanes, self.dilation, self.groups, self.base_width = nn.BatchNorm2d, width, 1, 1, 64
        size, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        for i, n in enumerate(layers):
            self.add_module(f"layer{i + 1}", self._make_layer(block, width << i, n, 1 if i == 0 else 2))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear((width << 3) * block.expansion, 3)


def small_densenet():
    model = DenseNet(4, (2, 1, 2, 1), 8, num_classes=3)
    model.features.conv0 = nn.Conv2d(1, 8, 3, 1, 1, bias=False)
    model.features.pool0 = nn.Identity()
    return model


def small_mobilenet():
    model = MobileNetV2(3, width_mult=0.25, dropout=0.0)
    model.features[0][0] = nn.Conv2d(2, 8, 3, 1, 1, bias=False)
    return model


# With the shapes of their inputs.
SMALL = {
    "resnet_basic": (lambda: SmallResNet(BasicBlock, (1, 2, 1, 1), 4, 3, False), (2, 3, 33, 32)),
    "resnet_bottleneck_small_images": (lambda: SmallResNet(Bottleneck, (1, 1, 1, 2), 4, 1, True), (2, 1, 16, 9)),
    "mobilenet_v2_quarter": (lambda: MobileNetV2(3, width_mult=0.25, dropout=0.0), (2, 3, 64, 33)),
    "mobilenet_v2_small_images": (small_mobilenet, (2, 2, 32, 24)),
    "densenet": (lambda: DenseNet(4, (1, 2, 1, 2), 8, num_classes=3), (2, 3, 64, 72)),
    "densenet_small_images": (small_densenet, (2, 1, 16, 17)),
    "unet": (lambda: UNet(3, 3, 2), (2, 3, 27, 33)),
    "unet_bilinear": (lambda: UNet(1, 3, 2, bilinear=True), (2, 1, 18, 23)),
}
FULL = (resnet18, resnet34, resnet50, mobilenet_v2, densenet121)


def run(make, shape):
    model = make().double()
    state = {n: value(n, t, i + 1) for i, (n, t) in enumerate(sorted(model.state_dict().items()))}
    model.load_state_dict(state)
    x = noise(1000, torch.Size(shape).numel()).reshape(shape).requires_grad_()
    model.eval()
    case = {"shape": shape, "eval": rounded(model(x))}
    model.train()
    y = model(x)
    case["train"] = rounded(y)
    (y.flatten() * noise(1001, y.numel())).sum().backward()
    case["gradients"] = {"x": digest(x.grad, 1002)}
    for i, (n, p) in enumerate(sorted(model.named_parameters())):
        case["gradients"][n] = digest(p.grad, 2000 + i)
    case["statistics"] = {
        n: digest(t, 3000) for n, t in sorted(model.state_dict().items()) if n.endswith(("mean", "var"))
    }
    return case


def modules(model):
    kinds = {nn.Conv2d: "conv", nn.BatchNorm2d: "norm", nn.Linear: "linear"}
    return [f"{n} {kinds[type(m)]} {list(m.weight.shape)}" for n, m in model.named_modules() if type(m) in kinds]


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases = ",\n".join(f'"{name}": {json.dumps(run(*small))}' for name, small in SMALL.items())
    lists = ",\n".join(f'"{f.__name__}": {json.dumps(modules(f()), indent=0)}' for f in FULL)
    text = f'{{"small": {{\n{cases}\n}},\n"modules": {{\n{lists}\n}}}}\n'
    (pathlib.Path(__file__).parent / "models-torchvision.json").write_text(text)

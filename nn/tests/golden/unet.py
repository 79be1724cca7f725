"""U-Net (Ronneberger et al., 2015) with padding and batch normalization, under the names of milesial's Pytorch-UNet."""

import torch
import torch.nn.functional as F
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        layers = []
        for i, o in ((inputs, hidden), (hidden, outputs)):
            layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(inputs, outputs, outputs))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, inputs, outputs, bilinear):
        super().__init__()
        half = inputs // 2
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        else:
            self.up = nn.ConvTranspose2d(inputs, half, 2, 2)
        self.conv = DoubleConv(inputs, half if bilinear else outputs, outputs)

    def forward(self, x, skip):
        x = self.up(x)
        rows, columns = (skip.shape[i] - x.shape[i] for i in (2, 3))
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], 1))


class Out(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, inputs, classes, width=64, bilinear=False):
        super().__init__()
        w, part = width, 2 if bilinear else 1
        self.inc = DoubleConv(inputs, w, w)
        self.down1, self.down2, self.down3 = Down(w, 2 * w), Down(2 * w, 4 * w), Down(4 * w, 8 * w)
        self.down4 = Down(8 * w, 16 * w // part)
        self.up1, self.up2 = Up(16 * w, 8 * w // part, bilinear), Up(8 * w, 4 * w // part, bilinear)
        self.up3, self.up4 = Up(4 * w, 2 * w // part, bilinear), Up(2 * w, w, bilinear)
        self.outc = Out(w, classes)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        y = self.up1(self.down4(x4), x4)
        return self.outc(self.up4(self.up3(self.up2(y, x3), x2), x1))

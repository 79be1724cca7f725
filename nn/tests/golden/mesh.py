"""Layers of meshes, from their formulas: convolution over edges (Hanocka et al., 2019) and along spirals (Gong et al., 2019)."""

import torch
from torch import nn

from case import Suite, activation

# A tent of four triangles without a floor (eight edges, four of them at the border), and an octahedron.
TENT = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 1)]
OCTAHEDRON = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 1), (5, 2, 1), (5, 3, 2), (5, 4, 3), (5, 1, 4)]


def edges_of(faces):
    """The vertices of each edge [E, 2] and its neighbours [E, 4]: edges are numbered as they appear, -1 is none."""
    ends, faces_of = [], []
    for f in faces:
        numbers = []
        for k in range(3):
            pair = sorted((f[k], f[(k + 1) % 3]))
            if pair not in ends:
                ends.append(pair)
                faces_of.append([])
            numbers.append(ends.index(pair))
        for k in range(3):
            faces_of[numbers[k]] += [numbers[(k + 1) % 3], numbers[(k + 2) % 3]]
    gemm = [n + [-1] * (4 - len(n)) for n in faces_of]
    return torch.tensor(ends), torch.tensor(gemm)


def at(x, index):
    """The rows of x [.., N, C] under an index, zeros under -1."""
    return torch.cat([x, torch.zeros_like(x[..., :1, :])], -2)[..., index, :]


class Convolution(nn.Module):
    def __init__(self, columns, outputs, config, blocks):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, columns))
        self.bias = nn.Parameter(torch.empty(outputs)) if config.get("bias", True) else None
        self.blocks, self.act = blocks, activation(config.get("activation", "relu"))

    def forward(self, x, neighbors):
        f = torch.cat(self.blocks(x, neighbors), -1)
        return self.act(nn.functional.linear(f, self.weight, self.bias))


def mesh():
    s = Suite("mesh")
    spiral_conv(s)
    mesh_edge_conv(s)
    return s


def spiral_conv(s):
    # Spirals of different lengths of a mesh with 6 vertices.
    all_spirals = torch.tensor(
        [[0, 1, 2, 3, 4], [1, 0, 4, 5, 2], [2, 0, 1, 5, 3], [3, 2, 0, 4, -1], [4, 0, 3, -1, -1], [5, 1, 5, 2, -1]]
    )

    def run(label, sizes, length, config, lead=()):
        c, o = sizes
        blocks = lambda x, index: [at(x, index[:, k]) for k in range(length)]
        keys = {"in_channels": c, "out_channels": o, "spiral_length": length, **config}
        inputs = {"x": (*lead, 6, c), "indices": all_spirals[:, :length].contiguous()}
        s.case("spiral_conv", label, keys, Convolution(length * c, o, config, blocks), inputs)

    run("plain", (3, 4), 3, {})
    run("padded", (2, 3), 5, {"activation": "identity"})
    run("no_bias_elu", (4, 2), 4, {"bias": False, "activation": "elu"})
    run("one_vertex", (3, 3), 1, {"activation": "tanh"})
    run("batched", (2, 4), 4, {"activation": "gelu"}, lead=(3,))


def symmetric(x, gemm):
    a, b, c, d = (at(x, gemm[:, k]) for k in range(4))
    return [x, a + c, b + d, (a - c).abs(), (b - d).abs()]


def in_order(x, gemm):
    return [x] + [at(x, gemm[:, k]) for k in range(4)]


def per_sample(blocks):
    return lambda x, gemm: [torch.stack(b) for b in zip(*(blocks(*one) for one in zip(x, gemm)))]


def mesh_edge_conv(s):
    tent, octahedron = edges_of(TENT)[1], edges_of(OCTAHEDRON)[1]

    def run(label, sizes, gemm, config, lead=()):
        c, o = sizes
        blocks = symmetric if config.get("symmetric", True) else in_order
        blocks = per_sample(blocks) if gemm.dim() == 3 else blocks
        keys = {"in_channels": c, "out_channels": o, **config}
        inputs = {"x": (*lead, gemm.shape[-2], c), "gemm": gemm}
        s.case("mesh_edge_conv", label, keys, Convolution(5 * c, o, config, blocks), inputs)

    turned = edges_of([f[1:] + f[:1] for f in OCTAHEDRON[::-1]])[1]
    run("border", (3, 4), tent, {})
    run("closed", (2, 3), octahedron, {"activation": "identity"})
    run("no_bias_tanh", (2, 2), tent, {"bias": False, "activation": "tanh"})
    run("in_order", (3, 2), tent, {"symmetric": False, "activation": "silu"})
    run("one_mesh_of_all", (2, 3), tent, {"activation": "gelu"}, lead=(3,))
    run("a_mesh_each", (2, 3), torch.stack([octahedron, turned]), {"activation": "elu"}, lead=(2,))

"""Layers of meshes, from their formulas: convolution over edges and pooling of them (Hanocka et al., 2019), convolution along spirals (Gong
et al., 2019)."""

import heapq

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
    mesh_pool(s)
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


class Collapsing:
    """A mesh whose edges collapse, with the masks, sides and lists of edges at vertices that MeshCNN keeps."""

    def __init__(self, ends, gemm, target):
        self.ends, self.gemm, self.target = ends.tolist(), gemm.tolist(), target
        self.count = len(self.gemm)
        self.alive = [True] * self.count
        self.groups = [{e} for e in range(self.count)]
        self.sides = [[self.gemm[n].index(e) if n >= 0 else -1 for n in row] for e, row in enumerate(self.gemm)]
        self.at_vertex = {}
        for e, pair in enumerate(self.ends):
            for v in pair:
                self.at_vertex.setdefault(v, []).append(e)
        self.triplets = 0

    def run(self, norms):
        queue = [(n, e) for e, n in enumerate(norms)]
        heapq.heapify(queue)
        while self.count > self.target:
            _, e = heapq.heappop(queue)
            if self.alive[e]:
                self.try_edge(e)

    def redirect(self, a, place_a, b, place_b):
        self.gemm[a][place_a], self.gemm[b][place_b] = b, a
        self.sides[a][place_a], self.sides[b][place_b] = place_b, place_a

    def face(self, e, side):
        """The two other edges of a triangle, their places there, and where their other triangles begin."""
        keys = self.gemm[e][side : side + 2]
        places = self.sides[e][side : side + 2]
        return keys, places, [(p - p % 2 + 2) % 4 for p in places]

    def has_border(self, e):
        return any(n == -1 or -1 in self.gemm[n] for n in self.gemm[e])

    def remove_triplets(self, e, side):
        if self.count <= self.target:
            return False
        while True:
            (a, b), _, (far_a, far_b) = self.face(e, side)
            outer_a, outer_b = self.gemm[a][far_a : far_a + 2], self.gemm[b][far_b : far_b + 2]
            common = [n for n in outer_a if n in outer_b]
            if not common:
                return True
            middle = common[0]
            i, k = 1 - outer_a.index(middle), 1 - outer_b.index(middle)
            new_a, new_b = outer_a[i], outer_b[k]
            side_a, side_b = self.sides[a][far_a + i], self.sides[b][far_b + k]
            partner = lambda p: p + 1 - 2 * (p % 2)
            self.redirect(e, side, new_a, side_a)
            self.redirect(e, side + 1, new_b, side_b)
            self.redirect(new_a, partner(side_a), new_b, partner(side_b))
            self.groups[e] |= self.groups[a] | self.groups[b]
            self.groups[new_a] |= self.groups[a] | self.groups[middle]
            self.groups[new_b] |= self.groups[b] | self.groups[middle]
            for gone in (a, b, middle):
                self.alive[gone] = False
            self.count -= 3
            self.triplets += 1
            if self.count <= self.target or self.has_border(e):
                return False

    def one_ring_is_valid(self, e):
        around = [{v for n in self.at_vertex[end] for v in self.ends[n]} for end in self.ends[e]]
        return len((around[0] & around[1]) - set(self.ends[e])) == 2

    def pool_side(self, e, side):
        (a, b), (place_a, _), (_, far_b) = self.face(e, side)
        for i in range(2):
            self.redirect(a, place_a - place_a % 2 + i, self.gemm[b][far_b + i], self.sides[b][far_b + i])
        self.groups[a] |= self.groups[b] | self.groups[e]
        self.drop(b)

    def drop(self, e):
        for v in self.ends[e]:
            self.at_vertex[v].remove(e)
        self.alive[e] = False
        self.count -= 1

    def try_edge(self, e):
        if self.has_border(e) or not (self.remove_triplets(e, 0) and self.remove_triplets(e, 2)):
            return
        if not self.one_ring_is_valid(e):
            return
        self.pool_side(e, 0)
        self.pool_side(e, 2)
        first, second = self.ends[e]
        self.drop(e)
        self.at_vertex[first] += self.at_vertex[second]
        self.ends = [[first if v == second else v for v in pair] for pair in self.ends]


def collapse(target):
    def run(x, gemm, edges):
        m = Collapsing(edges, gemm, target)
        m.run(x.detach().square().sum(1).tolist())
        kept = [e for e, alive in enumerate(m.alive) if alive]
        means = torch.zeros(len(kept), len(x), dtype=x.dtype)
        for row, e in enumerate(kept):
            means[row, list(m.groups[e])] = 1 / len(m.groups[e])
        number = {e: i for i, e in enumerate(kept)}
        run.triplets = m.triplets
        renamed = [[number.get(n, -1) for n in m.gemm[e]] for e in kept]
        return means @ x, torch.tensor(renamed), torch.tensor([m.ends[e] for e in kept])

    return run


def collapse_each(target):
    """Pools every sample, and fills up with zeros and -1."""

    def run(*inputs):
        pooled = [collapse(target)(*one) for one in zip(*inputs)]
        fill = lambda t, v: nn.functional.pad(t, (0, 0, 0, target - len(t)), value=v)
        return tuple(torch.stack([fill(t, v) for t in ts]) for ts, v in zip(zip(*pooled), (0, -1, -1)))

    return run


class TopK(nn.Module):
    def __init__(self, channels, target):
        super().__init__()
        self.weight, self.target = nn.Parameter(torch.empty(channels)), target

    def forward(self, x, gemm, *edges):
        score = x @ self.weight / self.weight.norm()
        kept = score.topk(min(self.target, len(x))).indices.sort().values
        numbers = torch.full((len(x) + 1,), -1).index_put((kept,), torch.arange(len(kept)))
        return (x[kept] * score[kept, None].tanh(), numbers[gemm[kept]], *(e[kept] for e in edges))


def icosahedron():
    """Twenty triangles: a cap of five, a belt of ten and a cap of five."""
    up, low = lambda i: 1 + i % 5, lambda i: 6 + i % 5
    caps = [f for i in range(5) for f in ((0, up(i), up(i + 1)), (11, low(i + 1), low(i)))]
    return caps + [f for i in range(5) for f in ((up(i), low(i), up(i + 1)), (low(i), low(i + 1), up(i + 1)))]


def grid(n):
    """A square of n x n vertices with a border."""
    at = lambda i, j: i * n + j
    cells = [(i, j) for i in range(n - 1) for j in range(n - 1)]
    lower = [(at(i, j), at(i + 1, j), at(i, j + 1)) for i, j in cells]
    return lower + [(at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)) for i, j in cells]


def mesh_pool(s):
    def run(label, faces, target, channels, config, oracle, with_edges=True):
        ends, gemm = edges_of(faces)
        inputs = {"x": (len(gemm), channels), "gemm": gemm, **({"edges": ends} if with_edges else {})}
        s.case("mesh_pool", label, {"target_edges": target, **config}, oracle, inputs)

    many = collapse(9)
    run("icosahedron", icosahedron(), 21, 2, {}, collapse(21))
    run("down_to_few", icosahedron(), 9, 2, {"mode": "collapse"}, many)
    assert many.triplets > 0, "no vertex of three edges is removed"
    run("grid", grid(5), 45, 1, {}, collapse(45))
    run("all_stay", OCTAHEDRON, 12, 3, {}, collapse(12))
    other = edges_of([f[1:] + f[:1] for f in icosahedron()[::-1]])
    both = [torch.stack(t) for t in zip(edges_of(icosahedron()), other)]
    inputs = {"x": (2, 30, 2), "gemm": both[1], "edges": both[0]}
    s.case("mesh_pool", "batched", {"target_edges": 16}, collapse_each(16), inputs)
    run("topk", OCTAHEDRON, 5, 3, {"mode": "topk", "in_channels": 3}, TopK(3, 5))
    run("topk_without_edges", TENT, 6, 2, {"mode": "topk", "in_channels": 2}, TopK(2, 6), with_edges=False)

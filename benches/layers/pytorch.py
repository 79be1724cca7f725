"""Times the layers of cases.json in PyTorch (eager) as `trefoil bench` does, and prints both with their ratio.

Usage: python pytorch.py [--trefoil RESULTS] [--only TEXT], RESULTS being what `trefoil bench benches/layers/cases.json --json RESULTS` wrote.

The layers are those of PyTorch Geometric, or the formulas that the golden suites are made of. A ratio is PyTorch's time divided by trefoil's; the
backward time is that of both passes less the forward one's. Needs a CUDA device.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch_geometric.nn import DirGNNConv, GATConv, GCNConv, GINConv, NNConv, PNAConv, RGCNConv, SAGEConv

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../nn/tests/golden"))
from capsule import Primary, Routed  # noqa: E402
from dense import HyperbolicLinear, OctonionLinear  # noqa: E402
from graph_blocks import MessagePassing, Sparse  # noqa: E402
from residual import DenseResidual, Highway  # noqa: E402
from specialized import Gaussians, Glu  # noqa: E402

torch.set_default_device("cuda")
# Strict f32, as trefoil computes unless a layer asks for TF32.
torch.backends.cudnn.allow_tf32 = False


class Experts(nn.Module):
    """Two-layer experts, each on the tokens that chose it among their best two."""

    def __init__(self, width, hidden, count, k):
        super().__init__()
        self.router, self.k = nn.Linear(width, count, bias=False), k
        self.experts = nn.ModuleList(feed_forward(width, hidden) for _ in range(count))

    def forward(self, x):
        best, chosen = self.router(x).topk(self.k, -1)
        gates, y = best.softmax(-1), torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, rank = (chosen == e).nonzero(as_tuple=True)
            y = y.index_add(0, token, gates[token, rank, None] * expert(x[token]))
        return y


def feed_forward(width, hidden):
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def perceptron(width):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def relational(width, types):
    conv = RGCNConv(width, width, types, aggr="mean")
    return lambda x, edges, _, edge_type: conv(x, edges, edge_type), conv


LAYERS = {
    "graph_convolutional": lambda: GCNConv(128, 128, cached=True),
    "graph_attention": lambda: GATConv(128, 16, heads=8),
    "graph_sage": lambda: SAGEConv(128, 128),
    "graph_sage_max": lambda: SAGEConv(128, 128, aggr="max"),
    "graph_isomorphism": lambda: GINConv(perceptron(128), train_eps=True),
    "directional_graph": lambda: DirGNNConv(SAGEConv(128, 128)),
    "message_passing": lambda: MessagePassing(128, 128),
    "principal_neighbourhood": lambda: PNAConv(
        32, 32, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"], deg=histogram()
    ),
    "edge_conditional": lambda: NNConv(16, 16, nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 256)), aggr="mean"),
    "heterogeneous_graph": lambda: relational(128, 3),
    "mixture_of_experts": lambda: Experts(1024, 4096, 8, 2),
    "dense_of_equal_work": lambda: feed_forward(1024, 4096),
    "swiglu": lambda: Glu("silu", 1024, 4096, 1024, False),
    "highway": lambda: Highway(1024),
    "rbf": lambda: Gaussians(256, 256, 1e-6),
    "hyperbolic_linear": lambda: HyperbolicLinear(128, 128),
    "octonion_linear": lambda: OctonionLinear(32, 32),
    "digit_capsule": lambda: Routed((1152, 10, 8, 16), None, "bid,ijdo->bijo", 3, False, False),
    "primary_capsule": lambda: Primary(256, 32, 8, 9, 2),
    "residual_dense_block": lambda: DenseResidual(64, 32),
    "sparse_linear": lambda: Sparse(1024, 1024, {}),
}


def histogram():
    counts = torch.zeros(64, dtype=torch.long)
    counts[14] = 1
    return counts


def random_edges(nodes, edges):
    """The edges of `trefoil bench`: sources at random, destinations more often small."""
    g = torch.Generator("cuda").manual_seed(1)
    unit = torch.rand(2, edges, generator=g, dtype=torch.float64)
    return (torch.stack([unit[0], unit[1] ** 2]) * nodes).long().clamp(max=nodes - 1)


def tensor(of, dtype):
    if "nodes" in of:
        return random_edges(of["nodes"], of["edges"])
    if "below" in of:
        return torch.randint(of["below"], of["shape"])
    return torch.randn(of["shape"], dtype=dtype).requires_grad_()


def median_us(run, budget=0.25):
    for _ in range(4):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    count = max(5, min(200, int(budget / (time.perf_counter() - start))))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for before, after in events:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3


def times(case):
    made = LAYERS[case["id"]]()
    call, module = made if isinstance(made, tuple) else (made, made)
    dtype = torch.bfloat16 if case.get("dtype") == "bf16" else torch.float32
    module.to("cuda", dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(0, 0.05)
    inputs = [tensor(i, dtype) for i in case["inputs"]]
    leaves = [t for t in [*module.parameters(), *inputs] if t.requires_grad]
    grad = torch.randn_like(call(*inputs))
    fwd = median_us(lambda: call(*inputs))
    both = median_us(lambda: torch.autograd.grad(call(*inputs), leaves, grad, allow_unused=True))
    return fwd, both - fwd


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--trefoil", type=pathlib.Path)
    a.add_argument("--only", default="")
    a = a.parse_args()
    ours = json.loads(a.trefoil.read_text()) if a.trefoil else {}
    for case in json.loads((HERE / "cases.json").read_text()):
        if a.only not in case["id"]:
            continue
        row = ours.get(case["id"], {})
        cells = [case["id"]]
        for us, key in zip(times(case), ("fwd_us", "bwd_us")):
            mine = row.get(key)
            cells += [f"{mine:,.1f}" if mine else "-", f"{us:,.1f}", f"{us / mine:.2f}" if mine else "-"]
        print("| " + " | ".join([*cells, str(row.get("launches", "-"))]) + " |", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

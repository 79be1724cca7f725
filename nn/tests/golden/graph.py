"""Layers of graphs, against PyTorch Geometric."""

import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from case import Suite, activation

# Seven nodes: a repeated edge, self-loops, and node 6, into which no edge goes.
EDGES = torch.tensor([[0, 1, 2, 0, 3, 3, 5, 1, 1, 4, 6, 2], [1, 0, 1, 2, 2, 3, 0, 5, 5, 4, 4, 3]])
NODES = 7


class Activated(nn.Module):
    """A module with parts followed by an activation; parameters and buffers keep their names."""

    def __init__(self, module, act):
        super().__init__()
        for n, p in module.named_parameters(recurse=False):
            self.register_parameter(n, p)
        for n, b in module.named_buffers(recurse=False):
            self.register_buffer(n, b)
        for n, child in module.named_children():
            if not n.endswith("aggr_module"):
                self.add_module(n, child)
        self.hidden, self.act = [module], activation(act)

    def forward(self, *inputs):
        return self.act(self.hidden[0](*inputs))

    def train(self, mode=True):
        self.hidden[0].train(mode)
        return super().train(mode)


def positive(g):
    return torch.rand(EDGES.shape[1], generator=g, dtype=torch.float64) + 0.5


def graph():
    s = Suite("graph")
    convolutional(s)
    attention(s)
    sage(s)
    isomorphism(s)
    return s


def case(s, entry, label, config, module, sizes, lead=(), more=None, **options):
    f, o = sizes
    act = config.get("activation", "identity")
    inputs = {"x": (*lead, NODES, f), "edge_index": EDGES, **(more or {})}
    keys = {"in_features": f, "out_features": o, **config}
    s.case(entry, label, keys, Activated(module, act), inputs, **options)


def convolutional(s):
    def gcn(label, sizes, config, lead=(), more=None):
        keys = {k: v for k, v in config.items() if k != "activation"}
        case(s, "graph_convolutional", label, config, GCNConv(*sizes, **keys), sizes, lead, more)

    weight = {"edge_weight": positive}
    gcn("narrow", (4, 3), {})
    gcn("wide_relu", (3, 5), {"activation": "relu"})
    gcn("weighted", (4, 4), {"activation": "tanh"}, more=weight)
    # Without weights, PyTorch Geometric lets the self-loops of `improved` weigh 1.
    gcn("weighted_improved_no_bias", (3, 2), {"improved": True, "bias": False}, more=weight)
    gcn("batched", (3, 4), {}, lead=(3,))
    gcn("no_self_loops", (4, 2), {"add_self_loops": False}, more=weight)
    gcn("raw", (2, 3), {"normalize": False}, more=weight)


def attention(s):
    def gat(label, sizes, config, **options):
        keys = {k: v for k, v in config.items() if k != "activation"}
        case(s, "graph_attention", label, config, GATConv(*sizes, **keys), sizes, **options)

    gat("one_head", (4, 3), {})
    gat("heads", (4, 3), {"heads": 2, "activation": "elu"})
    gat("mean_of_heads", (3, 4), {"heads": 3, "concat": False, "bias": False})
    gat("residual", (3, 2), {"heads": 2, "residual": True, "negative_slope": 0.1})
    gat("residual_of_mean", (3, 2), {"heads": 2, "concat": False, "residual": True})
    gat("no_self_loops_eval", (4, 3), {"heads": 3, "add_self_loops": False, "dropout": 0.5}, training=False)


def sage(s):
    def run(label, sizes, config, lead=()):
        keys = {k: v for k, v in config.items() if k not in ("activation", "aggregator")}
        module = SAGEConv(*sizes, aggr=config.get("aggregator", "mean"), **keys)
        case(s, "graph_sage", label, config, module, sizes, lead)

    run("mean", (4, 3), {})
    run("max_project", (3, 4), {"aggregator": "max", "project": True})
    run("sum_normalize", (4, 2), {"aggregator": "sum", "normalize": True})
    run("no_root_relu", (3, 5), {"root_weight": False, "activation": "relu"})
    run("no_bias", (3, 3), {"bias": False, "aggregator": "sum", "activation": "gelu"})
    run("batched", (4, 3), {"normalize": True}, lead=(3,))


def isomorphism(s):
    def gin(label, sizes, config, lead=(), **options):
        f, o = sizes
        h = config.get("mlp_hidden", o)
        norm = [nn.BatchNorm1d(h)] if config.get("batch_norm") else []
        mlp = nn.Sequential(nn.Linear(f, h), *norm, nn.ReLU(), nn.Linear(h, o))
        module = GINConv(mlp, eps=config.get("epsilon", 0), train_eps=config.get("learn_epsilon", True))
        case(s, "graph_isomorphism", label, config, module, sizes, lead, **options)

    gin("plain", (4, 3), {})
    gin("hidden_relu", (3, 2), {"mlp_hidden": 6, "activation": "relu"})
    gin("fixed_epsilon", (3, 4), {"epsilon": 0.5, "learn_epsilon": False})
    gin("batch_norm_eval", (3, 4), {"batch_norm": True, "mlp_hidden": 5}, training=False)
    gin("samples", (4, 3), {"epsilon": 0.25}, lead=(3,))

"""Readout, directed edges, edges with features and types, several aggregations, against PyTorch Geometric."""

import torch
from torch import nn
from torch_geometric.nn import (
    DirGNNConv,
    HeteroConv,
    NNConv,
    PNAConv,
    RGCNConv,
    SAGEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import AttentionalAggregation

from case import Suite, activation
from graph import EDGES, NODES, Activated, case

# The graph of each node, in no order; graph 2 has none.
BATCH = torch.tensor([1, 0, 3, 1, 1, 0, 3])
GRAPHS = 4
# In-degrees of some training data: 3 nodes without edges, 4 with one, and so on.
HISTOGRAM = [3, 4, 5, 2]
NODE_TYPES = torch.tensor([0, 1, 0, 1, 1, 0, 1])
# Types of edges by the types of their ends, over two types of nodes; the last relation has no edge.
RELATIONS = [["a", "to", "b"], ["b", "to", "a"], ["a", "like", "a"], ["b", "like", "b"], ["b", "hate", "b"]]
EDGE_TYPES = torch.tensor([0, 1, 0, 2, 1, 3, 2, 1, 1, 3, 3, 0])


def graph_aggregation():
    s = Suite("graph-aggregation")
    readout(s)
    directional(s)
    edge_conditional(s)
    principal(s)
    heterogeneous(s)
    return s


class Readout(nn.Module):
    def __init__(self, f, o, mode, act, bias=True):
        super().__init__()
        self.lin, self.mode, self.act = nn.Linear(f, o, bias=bias), mode, activation(act)
        if mode == "attention":
            self.gate_nn = nn.Linear(f, 1)
            self.hidden = [AttentionalAggregation(self.gate_nn)]

    def forward(self, x, batch=None):
        pools = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}
        if self.mode == "attention":
            x = self.hidden[0](x, batch, dim_size=GRAPHS)
        elif self.mode in pools:
            x = pools[self.mode](x, batch, size=GRAPHS)
        return self.act(self.lin(x))


class PerSample(nn.Module):
    """A module of one graph for each sample of a batch."""

    def __init__(self, module):
        super().__init__()
        for n, p in module.named_parameters(recurse=False):
            self.register_parameter(n, p)
        for n, child in module.named_children():
            self.add_module(n, child)
        self.hidden = [module]

    def forward(self, x, *rest):
        return torch.stack([self.hidden[0](sample, *rest) for sample in x])


def readout(s):
    def run(label, sizes, mode, lead=(), **config):
        module = Readout(*sizes, mode, config.get("activation", "identity"), config.get("bias", True))
        keys = {"in_features": sizes[0], "out_features": sizes[1], "mode": mode, **config}
        inputs = {"x": (*lead, NODES, sizes[0])}
        if mode != "none":
            keys["num_graphs"], inputs["batch"] = GRAPHS, BATCH
        module = PerSample(module) if lead and mode != "none" else module
        # The softmax does not see what is added to all scores.
        silent = ("gate_nn.bias",) if mode == "attention" else ()
        s.case("readout", label, keys, module, inputs, silent=silent)

    run("nodes", (4, 3), "none")
    run("nodes_batched_relu", (3, 5), "none", lead=(2,), activation="relu", bias=False)
    run("sum", (4, 2), "sum")
    run("mean_tanh", (3, 4), "mean", activation="tanh")
    run("max_no_bias", (4, 3), "max", bias=False)
    run("attention", (4, 3), "attention", activation="gelu")
    run("mean_batched", (3, 2), "mean", lead=(3,))
    run("attention_batched", (3, 2), "attention", lead=(3,))


class Directed(nn.Module):
    """Both directions side by side under a linear layer, from the definition."""

    def __init__(self, f, o, aggregator, root, gating):
        super().__init__()
        parts = 3 if root else 2
        self.conv_in, self.conv_out = (without_root(SAGEConv(f, o, aggr=aggregator)) for _ in range(2))
        if root:
            self.lin = nn.Linear(f, o)
        if gating:
            self.gate = nn.Linear(parts * o, parts)
        self.combine = nn.Linear(parts * o, o)

    def forward(self, x, edge_index):
        parts = [self.conv_in(x, edge_index), self.conv_out(x, edge_index.flip(0))]
        if hasattr(self, "lin"):
            parts.append(self.lin(x))
        if hasattr(self, "gate"):
            scale = torch.sigmoid(self.gate(torch.cat(parts, -1)))
            parts = [p * scale[..., k : k + 1] for k, p in enumerate(parts)]
        return self.combine(torch.cat(parts, -1))


def without_root(sage):
    sage.root_weight = False
    if hasattr(sage, "lin_r"):
        del sage.lin_r
    return sage


def directional(s):
    def run(label, sizes, lead=(), **config):
        aggregator, root = config.get("aggregator", "mean"), config.get("root_weight", True)
        if config.get("mode") == "concat":
            module = Directed(*sizes, aggregator, root, config.get("gating", False))
        else:
            conv = SAGEConv(*sizes, aggr=aggregator)
            module = DirGNNConv(conv, alpha=config.get("alpha", 0.5), root_weight=root)
            module.conv_in, module.conv_out = without_root(module.conv_in), without_root(module.conv_out)
        case(s, "directional_graph", label, config, module, sizes, lead)

    run("mean", (4, 3))
    run("sum_alpha_relu", (3, 4), alpha=0.2, aggregator="sum", activation="relu")
    run("max_no_root", (4, 3), aggregator="max", root_weight=False, alpha=0.75)
    run("concat", (3, 4), mode="concat", activation="tanh")
    run("concat_gated", (4, 3), mode="concat", gating=True, aggregator="sum")
    run("concat_gated_no_root", (3, 2), mode="concat", gating=True, root_weight=False)
    run("batched", (4, 3), lead=(3,), alpha=0.3)
    run("batched_gated", (3, 2), lead=(2,), mode="concat", gating=True)


def edge_conditional(s):
    def run(label, sizes, edge, lead=(), **config):
        f, o = sizes
        h = config.get("edge_hidden", 64)
        module = NNConv(
            f,
            o,
            nn.Sequential(nn.Linear(edge, h), nn.ReLU(), nn.Linear(h, f * o)),
            aggr=config.get("aggregator", "mean"),
            root_weight=config.get("root_weight", True),
            bias=config.get("bias", True),
        )
        config = {"edge_features": edge, **config}
        module = PerSample(module) if lead else module
        more = {"edge_attr": (EDGES.shape[1], edge)}
        case(s, "edge_conditional_convolutional", label, config, module, sizes, lead, more)

    run("default_hidden", (2, 3), 2)
    run("narrow_sum", (4, 2), 3, edge_hidden=5, aggregator="sum", activation="relu")
    run("wide", (2, 4), 3, edge_hidden=6, activation="tanh")
    run("no_root_no_bias", (3, 3), 1, edge_hidden=2, root_weight=False, bias=False)
    run("wide_batched", (2, 3), 2, lead=(3,), edge_hidden=4)
    run("narrow_batched", (3, 2), 2, lead=(2,), edge_hidden=4, aggregator="sum")


def principal(s):
    def run(label, sizes, lead=(), **config):
        edge = config.get("edge_features")
        module = PNAConv(
            *sizes,
            config.get("aggregators", ["mean", "min", "max", "std"]),
            config.get("scalers", ["identity", "amplification", "attenuation"]),
            deg=torch.tensor(HISTOGRAM),
            edge_dim=edge,
            pre_layers=config.get("pre_layers", 1),
            post_layers=config.get("post_layers", 1),
        )
        del module.aggr_module.avg_deg_lin, module.aggr_module.avg_deg_log
        logs = torch.log(torch.arange(len(HISTOGRAM)) + 1.0)
        module.aggr_module.avg_deg_log = (logs * torch.tensor(HISTOGRAM)).sum() / sum(HISTOGRAM)
        module.aggr_module.avg_deg_lin = None
        if lead:
            module = PerSample(module)
            del module.aggr_module
        more = {"edge_attr": (EDGES.shape[1], edge)} if edge else None
        config = {"deg_histogram": HISTOGRAM, **config}
        case(s, "principal_neighbourhood_aggregation", label, config, module, sizes, lead, more)

    run("default", (3, 4))
    run("edge_attr", (2, 3), edge_features=3, activation="tanh")
    run("layers", (3, 2), pre_layers=2, post_layers=3, aggregators=["max", "mean"], scalers=["attenuation"])
    run("sum_amplified", (4, 3), aggregators=["sum", "std"], scalers=["amplification", "identity"])
    run("edges_batched", (2, 3), lead=(3,), edge_features=2, aggregators=["min", "std"])


class Relational(nn.Module):
    """RGCNConv (one type of nodes) or HeteroConv, and a linear map of each type of nodes, by this library's names."""

    def __init__(self, f, o, types, relations, num_bases, aggregator, root, bias, act):
        super().__init__()
        self.types, self.relations, self.aggregator, self.act = types, relations, aggregator, activation(act)
        self.sizes = f, o, num_bases
        if num_bases:
            self.weight = nn.Parameter(torch.empty(num_bases, f, o))
            self.comp = nn.Parameter(torch.empty(len(relations), num_bases))
        else:
            convs = {tuple(r): without_root(SAGEConv((f, f), o, aggr=aggregator, bias=False)) for r in relations}
            self.convs = HeteroConv(convs, aggr="sum").convs
        if root:
            self.lins = nn.ModuleDict({t: nn.Linear(f, o, bias=False) for t in types})
        if bias:
            self.bias = nn.Parameter(torch.empty(len(types), o))

    def forward(self, x, edge_index, node_type, edge_type):
        own = self.lins if hasattr(self, "lins") else None
        if len(self.types) == 1:
            y = self.one_type(x, edge_index, edge_type)
        else:
            y = self.by_type(x, edge_index, node_type, edge_type)
        if own is not None:
            every = torch.stack([own[t](x) for t in self.types])
            y = y + every[node_type, torch.arange(NODES)]
        if hasattr(self, "bias"):
            y = y + self.bias[node_type]
        return self.act(y)

    def one_type(self, x, edge_index, edge_type):
        f, o, bases = self.sizes
        conv = RGCNConv(f, o, len(self.relations), num_bases=bases, aggr=self.aggregator, root_weight=False, bias=False)
        if bases:
            weights = {"weight": self.weight, "comp": self.comp}
        else:
            weights = {"weight": torch.stack([c.lin_l.weight.t() for c in self.convs.values()])}
        return torch.func.functional_call(conv.double(), weights, (x, edge_index, edge_type))

    def by_type(self, x, edge_index, node_type, edge_type):
        """HeteroConv on features by type, with nodes numbered within their types."""
        ids = {t: (node_type == k).nonzero().flatten() for k, t in enumerate(self.types)}
        local = torch.zeros(NODES, dtype=torch.long)
        for nodes in ids.values():
            local[nodes] = torch.arange(len(nodes))
        edges = {tuple(r): local[edge_index[:, edge_type == k]] for k, r in enumerate(self.relations)}
        f, o, bases = self.sizes
        convs = {tuple(r): without_root(SAGEConv((f, f), o, aggr=self.aggregator, bias=False)) for r in self.relations}
        hetero = HeteroConv(convs, aggr="sum").double()
        if bases:
            mixed = torch.einsum("rb,bfo->rof", self.comp, self.weight)
            weights = {f"convs.<{'___'.join(r)}>.lin_l.weight": w for r, w in zip(self.relations, mixed)}
        else:
            weights = {f"convs.{n}": p for n, p in self.convs.named_parameters()}
        by_type = {t: x[nodes] for t, nodes in ids.items()}
        out = torch.func.functional_call(hetero, weights, (by_type, edges))
        y = x.new_zeros(NODES, o)
        for t, nodes in ids.items():
            y = y.index_copy(0, nodes, out[t])
        return y


def heterogeneous(s):
    def run(label, sizes, types, relations, edge_type, lead=(), silent=(), **config):
        module = Relational(
            *sizes,
            types,
            relations,
            config.get("num_bases"),
            config.get("aggregator", "mean"),
            config.get("root_weight", True),
            config.get("bias", True),
            config.get("activation", "identity"),
        )
        keys = {"node_types": types, "edge_types": relations, **config}
        nodes = NODE_TYPES if len(types) > 1 else torch.zeros(NODES, dtype=torch.long)
        inputs = {"x": (*lead, NODES, sizes[0]), "edge_index": EDGES, "node_type": nodes, "edge_type": edge_type}
        keys = {"in_features": sizes[0], "out_features": sizes[1], **keys}
        module = PerSample(module) if lead else module
        s.case("heterogeneous_graph", label, keys, module, inputs, silent=silent)

    one = [["n", "r", "n"], ["n", "s", "n"], ["n", "t", "n"]]
    of_one = torch.arange(EDGES.shape[1]) % 3
    unused = ["convs.<b___hate___b>.lin_l.weight"]
    run("one_type", (4, 3), ["n"], one, of_one, activation="relu")
    run("one_type_bases_sum", (3, 4), ["n"], one, of_one, num_bases=2, aggregator="sum")
    two = (["a", "b"], RELATIONS, EDGE_TYPES)
    run("types", (4, 3), *two, silent=unused)
    run("types_max_no_root", (3, 2), *two, silent=unused, aggregator="max", root_weight=False)
    run("types_bases", (3, 3), *two, num_bases=2, bias=False, activation="tanh")
    run("types_batched", (3, 2), *two, lead=(2,), silent=unused)

"""Mixtures of experts, against a loop over tokens."""

import math

import torch
from torch import nn

from case import Suite, activation


class Mlp(nn.Module):
    """Equal experts of one or two linear layers, with the parameters of all of them in one tensor each."""

    def __init__(self, experts, inputs, hidden, outputs, act, bias):
        super().__init__()
        self.act = activation(act)
        first = outputs if hidden is None else hidden
        self.w1 = nn.Parameter(torch.empty(experts, first, inputs))
        self.b1 = nn.Parameter(torch.empty(experts, first)) if bias else None
        if hidden is not None:
            self.w2 = nn.Parameter(torch.empty(experts, outputs, hidden))
            self.b2 = nn.Parameter(torch.empty(experts, outputs)) if bias else None

    def expert(self, e, x):
        h = self.act(self.w1[e] @ x + (0 if self.b1 is None else self.b1[e]))
        if not hasattr(self, "w2"):
            return h
        return self.w2[e] @ h + (0 if self.b2 is None else self.b2[e])


class Mixture(nn.Module):
    """Each token to its best experts, one after the other; an expert that is full takes no more."""

    def __init__(self, inputs, experts, of, router=None, k=0, capacity=None, act="identity"):
        super().__init__()
        self.count, self.k, self.capacity, self.act = of, k or of, capacity, activation(act)
        self.router = router or nn.Linear(inputs, of, bias=False)
        if isinstance(experts, Mlp):
            for n, p in experts.named_parameters():
                self.register_parameter(n, p)
            self.hidden = [experts]
        else:
            self.experts = nn.ModuleList(experts)

    def expert(self, e, x):
        if hasattr(self, "experts"):
            return self.experts[e](x)
        return self.hidden[0].expert(e, x)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        limit = math.inf
        if self.capacity is not None:
            limit = math.ceil(self.capacity * len(tokens) * self.k / self.count)
        taken, rows = [0] * self.count, []
        for t in tokens:
            scores = self.router(t)
            best = sorted(range(self.count), key=lambda e: (-scores[e].item(), e))[: self.k]
            gates = torch.softmax(torch.stack([scores[e] for e in best]), 0)
            row = 0
            for e, gate in zip(best, gates):
                y = self.expert(e, t)
                row = row + gate * y * (1.0 if taken[e] < limit else 0.0)
                taken[e] += 1
            rows.append(row)
        return self.act(torch.stack(rows).reshape(*x.shape[:-1], -1))


def experts():
    s = Suite("experts")
    expert(s)
    mixture(s)
    return s


def dense(i, o, **more):
    return {"type": "dense", "in_features": i, "out_features": o, **more}


class Chain(nn.Sequential):
    """Layers and an activation, under the names of the layers."""

    def __init__(self, *layers, act="identity"):
        super().__init__(*layers)
        self.act = activation(act)

    def forward(self, x):
        return self.act(super().forward(x))


def expert(s):
    relu = {"type": "activation", "kind": "relu"}
    norm = {"type": "layer_normalization", "normalized_shape": 5}
    s.case("expert", "one", {"layers": [dense(4, 3)]}, Chain(nn.Linear(4, 3)), {"x": (5, 4)})
    two = Chain(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    s.case("expert", "two", {"layers": [dense(4, 5), relu, dense(5, 3)]}, two, {"x": (5, 4)})
    config = {"layers": [dense(4, 5), norm], "activation": "tanh"}
    s.case("expert", "normalized", config, Chain(nn.Linear(4, 5), nn.LayerNorm(5), act="tanh"), {"x": (2, 3, 4)})
    config = {"layers": [dense(3, 3, bias=False)], "activation": "gelu"}
    s.case("expert", "activated", config, Chain(nn.Linear(3, 3, bias=False), act="gelu"), {"x": (3, 3)})


def mixture(s):
    def grouped(label, inputs, count, hidden, outputs, config, shape, bias=True, act=None):
        act = act or ("relu" if hidden is not None else "identity")
        mlp = {"num_experts": count, "hidden_features": hidden, "out_features": outputs}
        mlp.update({"activation": act, "bias": bias})
        keys = {"in_features": inputs, "experts": mlp, **config}
        oracle = Mixture(
            inputs,
            Mlp(count, inputs, hidden, outputs, act, bias),
            count,
            k=config.get("top_k", 0),
            capacity=config.get("capacity_factor"),
            act=config.get("activation", "identity"),
        )
        # The weight of a single choice is 1.
        silent = ("router.weight",) if config.get("top_k") == 1 else ()
        s.case("mixture_of_experts", label, keys, oracle, {"x": shape}, draw=draw, silent=silent)

    def listed(label, configs, modules, config, shape, router=None):
        keys = {"in_features": shape[-1], "experts": configs, **config}
        oracle = Mixture(
            shape[-1], modules, len(modules), router, config.get("top_k", 0), config.get("capacity_factor")
        )
        s.case("mixture_of_experts", label, keys, oracle, {"x": shape})

    def draw(name, p, g):
        return torch.randn(p.shape, generator=g, dtype=torch.float64) / p.shape[-1] ** 0.5

    grouped("all", 4, 3, 5, 2, {}, (5, 4))
    grouped("best_two", 4, 4, 6, 3, {"top_k": 2}, (2, 4, 4), act="gelu")
    grouped("switch", 3, 3, 4, 3, {"top_k": 1, "activation": "tanh"}, (7, 3), act="tanh")
    grouped("linear", 4, 3, None, 3, {"top_k": 2}, (6, 4))
    grouped("no_bias", 3, 3, 4, 2, {"top_k": 2}, (5, 3), bias=False)
    grouped("unbatched_capacity", 4, 3, 4, 3, {"top_k": 2, "capacity_factor": 0.75}, (6, 4))
    dense_two = [dense(4, 3), {"type": "expert", "layers": [dense(4, 5, activation="relu"), dense(5, 3)]}]

    class Named(nn.Sequential):
        """The parameters of a linear layer and its activation, under the name of the linear layer."""

        def __init__(self):
            super().__init__(nn.Linear(4, 5), nn.Linear(5, 3))

        def forward(self, x):
            return self[1](torch.relu(self[0](x)))

    three = [*dense_two, dense(4, 3, bias=False)]
    modules = [nn.Linear(4, 3), Named(), nn.Linear(4, 3, bias=False)]
    listed("layers", three, modules, {}, (5, 4))
    modules = [nn.Linear(4, 3), Named(), nn.Linear(4, 3, bias=False)]
    router = {"router": dense(4, 3)}
    listed("layers_best_two", three, modules, {"top_k": 2, **router}, (2, 3, 4), nn.Linear(4, 3))
    modules = [nn.Linear(4, 3), Named(), nn.Linear(4, 3, bias=False)]
    listed("unbatched_layers_capacity", three, modules, {"top_k": 2, "capacity_factor": 0.75}, (6, 4))

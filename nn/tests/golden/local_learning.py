"""Layers that learn by rules of their own, against the rules as their papers and NuPIC state them, in plain loops.

A rule that samples is checked where it has no choice: at weights so large that every probability is 0 or 1 to the last
bit, and where as many synapses are wanted as there are candidates.
"""

import torch
from torch import nn
from torch.nn import functional as F

from case import Suite, activation, f32


def local_learning():
    s = Suite("local-learning")
    rbm(s)
    synaptic_plasticity(s)
    spatial_pooler(s)
    anomaly_detector(s)
    continuum_memory_system(s)
    temporal_memory(s)
    return s


def bits(*shape, share=0.5):
    return lambda g: (torch.rand(shape, generator=g, dtype=torch.float64) < share).double()


def uniform(*shape):
    return lambda g: torch.rand(shape, generator=g, dtype=torch.float64)


def without_gradient(y, x):
    return y + 0 * x.sum()


class Rule(nn.Module):
    """A layer of buffers that keeps the last input for its rule."""

    def buffers_of(self, **buffers):
        for name, t in buffers.items():
            self.register_buffer(name, t)

    def keep(self, x):
        if self.training:
            self.seen = x.detach()


# Restricted Boltzmann machines


class Rbm(Rule):
    def __init__(self, v, h, k=1, chains=0, lr=0.01, trainable=False):
        super().__init__()
        self.k, self.lr = k, lr
        zeros = torch.zeros
        if trainable:
            self.weight, self.hidden_bias = nn.Parameter(zeros(h, v)), nn.Parameter(zeros(h))
        else:
            self.buffers_of(weight=zeros(h, v), hidden_bias=zeros(h))
        self.buffers_of(visible_bias=zeros(v))
        if chains:
            self.buffers_of(chains=zeros(chains, v))

    def forward(self, v):
        self.keep(v)
        return torch.sigmoid(v @ self.weight.T + self.hidden_bias)

    def free_energy(self, v, w, b, c):
        return -(v @ b) - F.softplus(v @ w.T + c).sum(-1)

    @staticmethod
    def certain(p):
        assert ((p < 1e-9) | (p > 1 - 1e-9)).all(), "a probability that leaves a choice"
        return p.round()

    def learn(self):
        data = self.seen.reshape(-1, self.weight.shape[1])
        hidden = lambda v: torch.sigmoid(v @ self.weight.T + self.hidden_bias)
        start = self.chains if hasattr(self, "chains") else data
        # From real data the first sample need not be certain: the rule's own start is then binary.
        h = self.certain(hidden(start))
        for _ in range(self.k):
            v = self.certain(torch.sigmoid(h @ self.weight + self.visible_bias))
            h = self.certain(hidden(v))
        if hasattr(self, "chains"):
            self.chains.copy_(v)
        # The update is the gradient of the difference of free energies.
        params = [p.clone().requires_grad_() for p in (self.weight, self.visible_bias, self.hidden_bias)]
        gap = self.free_energy(data, *params).mean() - self.free_energy(v, *params).mean()
        for p, g in zip((self.weight, self.visible_bias, self.hidden_bias), torch.autograd.grad(gap, params)):
            p.data.sub_(self.lr * g)


def large(name, p, g):
    """Values at which units are certainly on or off, whatever binary units they see: odd multiples of 50."""
    if name == "chains":
        return (torch.rand(p.shape, generator=g, dtype=torch.float64) < 0.5).double()
    n = torch.randint(-2, 3, p.shape, generator=g).double() * 100
    return n if name == "weight" else n + 50


def moderate(name, p, g):
    return 0.5 * torch.randn(p.shape, generator=g, dtype=torch.float64)


def rbm(s):
    def run(label, v, h, shape, config, draw, values=uniform, **options):
        keys = {"k": config.get("k", 1), "chains": config.get("persistent_chains", 0)}
        module = Rbm(v, h, lr=config.get("learning_rate", 0.01), trainable=config.get("trainable", False), **keys)
        config = {"visible": v, "hidden": h, **config}
        silent = ("x",) if draw is large else ()
        s.case("rbm", label, config, module, {"x": values(*shape)}, draw=draw, silent=silent, **options)

    run("probabilities", 5, 3, (4, 5), {}, moderate)
    run("sequence_eval", 4, 6, (2, 3, 4), {}, moderate, training=False)
    run("fine_tuned", 5, 4, (6, 5), {"trainable": True}, moderate)
    run("one_step", 6, 4, (5, 6), {"learning_rate": 0.1}, large, bits, learn=3)
    run("three_steps_unbatched", 4, 5, (4,), {"k": 3}, large, bits, learn=2)
    run("persistent", 5, 4, (6, 5), {"k": 2, "persistent_chains": 3, "learning_rate": 0.5}, large, bits, learn=3)


# Spike-timing-dependent plasticity


class Plasticity(Rule):
    def __init__(self, n_pre, n_post, o):
        super().__init__()
        self.o = o
        self.buffers_of(weight=torch.zeros(n_pre, n_post), pre_trace=torch.zeros(n_pre), post_trace=torch.zeros(n_post))

    def forward(self, x):
        self.keep(x)
        return x * 1 if self.o.get("mode") == "identity" else x @ self.weight

    def learn(self):
        o = self.o.get
        plus, minus, pull = o("ltp_rate", 0.005), o("ltd_rate", 0.0025), o("homeostasis_rate", 1e-4)
        target, lo, hi, mu = o("w_target", 0.5), o("w_min", 0.0), o("w_max", 1.0), o("mu", 1.0)
        x = self.seen if self.seen.dim() == 2 else self.seen[None]
        current = x @ self.weight
        assert (current - o("spike_threshold", 0.5)).abs().min() > 1e-4
        post = (current > o("spike_threshold", 0.5)).double()
        self.pre_trace *= o("trace_decay", 0.95)
        self.post_trace *= o("trace_decay", 0.95)
        change = torch.zeros_like(self.weight)
        for b in range(len(x)):
            for i in range(self.weight.shape[0]):
                for j in range(self.weight.shape[1]):
                    if o("recurrent") and i == j:
                        continue
                    w = self.weight[i, j]
                    up = plus * self.pre_trace[i] * post[b, j] * (hi - w) ** mu
                    down = minus * x[b, i] * self.post_trace[j] * (w - lo) ** mu
                    change[i, j] += (up - down - pull * (w - target)) / len(x)
        self.weight.copy_((self.weight + o("learning_rate", 1.0) * change).clamp(lo, hi))
        for trace, spikes in ((self.pre_trace, x), (self.post_trace, post)):
            old = trace.clone()
            trace.zero_()
            for row in spikes:
                joined = torch.where(row > 0, torch.ones_like(old), old) if o("pairing") == "nearest" else old + row
                trace += joined / len(x)


def synaptic_plasticity(s):
    def run(label, n, shape, config, **options):
        n_pre, n_post = n

        def draw(name, b, g):
            lo, hi = config.get("w_min", 0.0), config.get("w_max", 1.0)
            u = torch.rand(b.shape, generator=g, dtype=torch.float64)
            return lo + (hi - lo) * u if name == "weight" else 2 * u

        keys = {"n_pre": n_pre, **({"n_post": n_post} if n_post != n_pre else {}), **config}
        module = Plasticity(n_pre, n_post, config)
        s.case("synaptic_plasticity", label, keys, module, {"x": bits(*shape)}, draw=draw, **options)

    run("soft_bounds", (5, 4), (5, 5), {"learning_rate": 2.0}, learn=3)
    run("hard_bounds", (4, 6), (3, 4), {"mu": 0.0, "ltp_rate": 0.3, "ltd_rate": 0.2, "w_max": 0.8}, learn=4)
    run("recurrent_unbatched", (5, 5), (5,), {"recurrent": True, "trace_decay": 0.5, "homeostasis_rate": 0.05}, learn=3)
    run("nearest", (6, 3), (4, 6), {"pairing": "nearest", "mu": 0.5, "w_min": -0.5, "w_target": 0.1}, learn=3)
    run("identity", (4, 3), (2, 4), {"mode": "identity", "spike_threshold": 0.7}, learn=2)
    run("eval", (4, 3), (3, 4), {}, training=False)


# Spatial pooling


class Pooler(Rule):
    """The steps of NuPIC's SpatialPooler with global inhibition."""

    def __init__(self, inputs, columns, o):
        super().__init__()
        self.o = o
        zeros = torch.zeros
        self.buffers_of(
            potential=zeros(columns, inputs, dtype=torch.uint8),
            permanence=zeros(columns, inputs),
            boost=torch.ones(columns),
            active_duty_cycle=zeros(columns),
            overlap_duty_cycle=zeros(columns),
            min_overlap_duty_cycle=zeros(columns),
            iteration=zeros((), dtype=torch.int64),
        )

    def get(self, key, default):
        return self.o.get(key, default)

    def density(self):
        return self.get("local_area_density", 0.02)

    def connected(self):
        return self.get("syn_perm_connected", 0.1)

    def columns(self, x, boosted):
        """Overlaps and winners of one input."""
        overlaps = ((self.permanence >= self.connected()).double() * x).sum(1)
        scores = overlaps * self.boost if boosted else overlaps
        n = len(scores)
        # Larger scores first, and of equal ones the later.
        order = sorted(range(n), key=lambda c: (scores[c].item(), c), reverse=True)
        kept = [c for c in order[: int(self.density() * n)] if scores[c] >= self.get("stimulus_threshold", 0)]
        active = torch.zeros(n)
        active[kept] = 1
        return overlaps, active

    def forward(self, x):
        self.keep(x)
        rows = x.detach().reshape(-1, x.shape[-1])
        y = torch.stack([self.columns(row, self.training)[1] for row in rows]).reshape(*x.shape[:-1], -1)
        if not self.get("straight_through", False):
            return without_gradient(y, x)
        surrogate = x @ (self.permanence >= self.connected()).double().T * y
        return y + surrogate - surrogate.detach()

    def trim(self, c):
        p = self.permanence[c]
        p[p < self.get("syn_perm_active_inc", 0.05) / 2] = 0
        p.clamp_(0, 1)

    def learn(self):
        for x in self.seen.reshape(-1, self.seen.shape[-1]):
            self.adapt(x)

    def adapt(self, x):
        overlaps, active = self.columns(x, True)
        inc, dec = self.get("syn_perm_active_inc", 0.05), self.get("syn_perm_inactive_dec", 0.008)
        least, step = self.get("stimulus_threshold", 0), self.connected() / 10
        pools = self.potential.bool()
        for c in active.nonzero().flatten().tolist():
            p = self.permanence[c]
            p += torch.where(pools[c], torch.where(x > 0, inc, -dec), 0.0)
            p.clamp_(0, 1)
            while (p >= self.connected()).sum() < least:
                p[pools[c]] += step
            self.trim(c)
        self.iteration += 1
        period = min(self.get("duty_cycle_period", 1000), self.iteration.item())
        for duty, now in ((self.overlap_duty_cycle, (overlaps > 0).double()), (self.active_duty_cycle, active)):
            duty.copy_((duty * (period - 1) + now) / period)
        gap = self.overlap_duty_cycle - self.min_overlap_duty_cycle
        assert (gap.abs() > 1e-5).all() or not self.min_overlap_duty_cycle.any()
        for c in (gap < 0).nonzero().flatten().tolist():
            self.permanence[c][pools[c]] += step
            self.trim(c)
        self.boost.copy_(torch.exp(self.get("boost_strength", 0.0) * (self.density() - self.active_duty_cycle)))
        if self.iteration % self.get("update_period", 50) == 0:
            most = self.overlap_duty_cycle.max()
            self.min_overlap_duty_cycle.fill_(self.get("min_pct_overlap_duty_cycle", 0.001) * most)


def spatial_pooler(s):
    def run(label, inputs, columns, shape, config, share=0.5, **options):
        config = {"local_area_density": 0.25, **config}
        connected = config.get("syn_perm_connected", 0.1)
        module = Pooler(inputs, columns, config)

        def draw(name, b, g):
            u = torch.rand(b.shape, generator=g, dtype=torch.float64)
            if name == "potential":
                return (u < 0.7).to(torch.uint8)
            if name == "permanence":
                # Far enough from the threshold that rounding does not matter.
                p = (u < 0.5) * connected * 0.9 + u * 0.99 * connected
                return p * module.potential
            return {"boost": 0.5 + u, "iteration": torch.tensor(7)}.get(name, 0.1 + 0.5 * u)

        keys = {"input_size": inputs, "column_count": columns, **config}
        silent = () if config.get("straight_through") else ("x",)
        values = {"x": bits(*shape, share=share)}
        s.case("spatial_pooler", label, keys, module, values, draw=draw, silent=silent, **options)

    run("plain", 9, 8, (4, 9), {}, learn=3)
    run("boosted", 10, 12, (3, 10), {"boost_strength": 2.0, "duty_cycle_period": 5}, learn=4)
    # A tenth of the threshold is exact in binary, so that a raise from 0 ends at the threshold in every precision.
    raised = {"stimulus_threshold": 3, "syn_perm_connected": 0.625, "syn_perm_inactive_dec": 0.1}
    run("raised_unbatched", 12, 8, (12,), raised, learn=5)
    weak = {"min_pct_overlap_duty_cycle": 0.83, "update_period": 2, "duty_cycle_period": 6}
    run("weak_columns", 8, 10, (3, 8), weak, share=0.25, learn=4)
    run("straight_through", 7, 8, (3, 7), {"straight_through": True, "syn_perm_connected": 0.3}, learn=2)
    run("eval", 9, 8, (5, 9), {"boost_strength": 3.0}, training=False)


# Anomaly scores


class Anomaly(Rule):
    def __init__(self, o):
        super().__init__()
        self.o = o
        capacity = o.get("history_capacity", 100)
        self.buffers_of(
            smoothed=torch.zeros(()), history=torch.zeros(capacity), count=torch.zeros((), dtype=torch.int64)
        )

    def forward(self, x):
        n, scores = x.shape[-1] // 2, []
        for row in x.detach().reshape(-1, 2 * n).tolist():
            active = {i for i in range(n) if row[i] == 1}
            predicted = {i for i in range(n) if row[n + i] == 1}
            wrong, of = active - predicted, active
            if self.o.get("score") == "jaccard":
                wrong, of = active ^ predicted, active | predicted
            scores.append(len(wrong) / len(of) if of else 0.0)
        score = sum(scores) / len(scores)
        f = self.o.get("smoothing_factor", 0.1)
        self.smoothed.copy_(f * score + (1 - f) * self.smoothed)
        self.history[self.count % len(self.history)] = score
        self.count += 1
        return without_gradient(torch.tensor([score]), x)

    def learn(self):
        pass


def anomaly_detector(s):
    def run(label, size, shape, config, share=0.5, **options):
        keys = {"input_size": size, "anomaly_threshold": 0.5, **config}
        values = {"x": bits(*shape, share=share)}

        def draw(name, b, g):
            # The count of a series that has begun.
            return torch.tensor(6) if name == "count" else torch.rand(b.shape, generator=g, dtype=torch.float64)

        label += "_unbatched"
        s.case("anomaly_detector", label, keys, Anomaly(config), values, draw=draw, silent=("x",), **options)

    run("raw", 12, (4, 12), {"history_capacity": 5}, learn=4)
    run("jaccard", 10, (3, 10), {"score": "jaccard", "history_capacity": 8}, learn=3)
    run("one_row", 8, (8,), {"smoothing_factor": 0.5, "history_capacity": 3}, learn=3)
    run("seldom", 8, (2, 3, 8), {"history_capacity": 4}, share=0.15, learn=2)
    run("eval", 14, (5, 14), {"score": "jaccard", "smoothing_factor": 1.0}, training=False)


# The continuum memory system


class Continuum(nn.Module):
    def __init__(self, sizes, chunks, rates, act):
        super().__init__()
        self.chunks, self.rates, self.act, self.levels = chunks, rates, act, nn.ModuleList()
        for inputs, outputs in zip(sizes, sizes[1:]):
            level = nn.Module()
            for name, t in (("weight", torch.zeros(outputs, inputs)), ("bias", torch.zeros(outputs))):
                level.register_buffer(name, t)
                level.register_buffer(f"{name}_grad", torch.zeros_like(t))
            level.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.levels.append(level)

    def forward(self, x):
        self.leaves = []
        for level in self.levels:
            leaves = [level.weight.clone().requires_grad_(), level.bias.clone().requires_grad_()]
            self.leaves.append(leaves)
            x = self.act(x @ leaves[0].T + leaves[1])
        return x

    def learn(self):
        for level, leaves, chunk, rate in zip(self.levels, self.leaves, self.chunks, self.rates):
            level.weight_grad += leaves[0].grad
            level.bias_grad += leaves[1].grad
            level.count += 1
            if level.count == chunk:
                level.weight -= rate * level.weight_grad
                level.bias -= rate * level.bias_grad
                for t in (level.weight_grad, level.bias_grad, level.count):
                    t.zero_()

    def __deepcopy__(self, memo):
        # Leaves of a graph cannot be copied.
        new = Continuum.__new__(Continuum)
        nn.Module.__init__(new)
        new.chunks, new.rates, new.act = self.chunks, self.rates, self.act
        import copy

        new.levels = copy.deepcopy(self.levels, memo)
        return new


def continuum_memory_system(s):
    def run(label, f, h, shape, config, **options):
        n = config.get("num_levels", 3)
        chunks = config.get("chunk_sizes") or [10**i for i in range(n)]
        rates = config.get("level_lr") or [10.0 ** (-2 - i) for i in range(n)]
        module = Continuum([f] + [h] * n, chunks, rates, activation(config.get("activation", "relu")))

        def draw(name, b, g):
            if name.endswith("count"):
                return b
            noise = torch.randn(b.shape, generator=g, dtype=torch.float64)
            return noise / b.shape[-1] ** 0.5 if b.dim() == 2 else 0.5 + 0.3 * noise

        keys = {"in_features": f, "hidden_dim": h, **config}
        s.case("continuum_memory_system", label, keys, module, {"x": shape}, draw=draw, **options)

    run("defaults", 4, 5, (3, 4), {"activation": "tanh"}, learn=12)
    run("descent", 3, 4, (2, 3, 3), {"num_levels": 2, "chunk_sizes": [1, 1], "level_lr": [0.05, 0.1]}, learn=3)
    clocks = {"num_levels": 4, "chunk_sizes": [1, 2, 3, 5], "level_lr": [0.02, 0.02, 0.02, 0.02], "activation": "gelu"}
    run("clocks", 4, 3, (5, 4), clocks, learn=5)
    run("one_level_unbatched", 5, 3, (5,), {"num_levels": 1, "activation": "silu", "level_lr": [0.3]}, learn=2)
    run("eval", 4, 4, (3, 4), {"activation": "sigmoid"}, training=False)


# Temporal memory


class Segment:
    def __init__(self, cell, slot, used, synapses):
        self.cell, self.slot, self.used, self.synapses = cell, slot, used, synapses

    def has(self, cell):
        return any(c == cell for c, _ in self.synapses)


class Memory(Rule):
    """The steps of NuPIC's TemporalMemory, with segments as objects."""

    def __init__(self, columns, o):
        super().__init__()
        self.columns_, self.o, self.m = columns, o, o["cells_per_column"]
        capacity, width = o["capacity"], o["max_synapses_per_segment"]
        cells = columns * self.m
        self.buffers_of(
            active_cells=torch.zeros(cells, dtype=torch.uint8),
            winner_cells=torch.zeros(cells, dtype=torch.uint8),
            segment_cell=torch.full((capacity,), -1),
            last_used=torch.zeros(capacity, dtype=torch.int64),
            presynaptic=torch.full((capacity, width), -1, dtype=torch.int32),
            permanence=torch.zeros(capacity, width),
            iteration=torch.zeros((), dtype=torch.int64),
        )

    def forward(self, x):
        self.keep(x)
        self.before = (self.active_cells.clone(), self.winner_cells.clone())
        return without_gradient(self.advance(x.detach(), False), x)

    def learn(self):
        for t, old in zip((self.active_cells, self.winner_cells), self.before):
            t.copy_(old)
        self.advance(self.seen, True)

    def advance(self, x, learn):
        self.load()
        cells = []
        for row in x.reshape(-1, self.columns_).tolist():
            self.step([c for c, v in enumerate(row) if v == 1], learn)
            cells.append([float(i in self.active) for i in range(self.columns_ * self.m)])
        self.store()
        return torch.tensor(cells).reshape(*x.shape[:-1], -1)

    def load(self):
        self.active = set(self.active_cells.nonzero().flatten().tolist())
        self.winners = set(self.winner_cells.nonzero().flatten().tolist())
        self.segments = []
        for slot, cell in enumerate(self.segment_cell.tolist()):
            if cell >= 0:
                pairs = zip(self.presynaptic[slot].tolist(), self.permanence[slot].tolist())
                synapses = [[c, p] for c, p in pairs if c >= 0]
                self.segments.append(Segment(cell, slot, self.last_used[slot].item(), synapses))

    def store(self):
        for t, cells in ((self.active_cells, self.active), (self.winner_cells, self.winners)):
            t.zero_()
            t[sorted(cells)] = 1
        self.segment_cell.fill_(-1)
        self.last_used.zero_()
        self.presynaptic.fill_(-1)
        self.permanence.zero_()
        for s in self.segments:
            self.segment_cell[s.slot], self.last_used[s.slot] = s.cell, s.used
            for i, (cell, permanence) in enumerate(s.synapses):
                self.presynaptic[s.slot, i], self.permanence[s.slot, i] = cell, permanence

    def step(self, columns, learn):
        o, before, winners = self.o, self.active, self.winners
        self.before_winners = winners
        potential = {s.slot: sum(c in before for c, _ in s.synapses) for s in self.segments}
        strong = lambda s: sum(c in before and p >= o["connected_permanence"] - 1e-5 for c, p in s.synapses)
        active = [s for s in self.segments if strong(s) >= o["activation_threshold"]]
        matching = [s for s in self.segments if potential[s.slot] >= o["min_threshold"]]
        if learn:
            for s in active:
                s.used = self.iteration.item()
            self.iteration += 1
        self.active, self.winners = set(), set()
        inc, dec, new = o["permanence_increment"], o["permanence_decrement"], o["max_new_synapse_count"]
        for column in range(self.columns_):
            own = range(column * self.m, (column + 1) * self.m)
            predicted, partly = [s for s in active if s.cell in own], [s for s in matching if s.cell in own]
            if column not in columns:
                if learn and o["predicted_segment_decrement"] > 0:
                    for s in partly:
                        self.adapt(s, before, -o["predicted_segment_decrement"], 0)
                continue
            if predicted:
                for s in predicted:
                    self.active.add(s.cell)
                    self.winners.add(s.cell)
                    if learn:
                        self.adapt(s, before, inc, dec)
                        self.grow(s, new - potential[s.slot])
                continue
            self.active.update(own)
            if partly:
                best = max(sorted(partly, key=lambda s: s.cell), key=lambda s: potential[s.slot])
                self.winners.add(best.cell)
                if learn:
                    self.adapt(best, before, inc, dec)
                    self.grow(best, new - potential[best.slot])
                continue
            counts = [sum(s.cell == cell for s in self.segments) for cell in own]
            assert counts.count(min(counts)) == 1, "a choice between cells"
            winner = own[counts.index(min(counts))]
            self.winners.add(winner)
            if learn and winners:
                self.grow(self.create(winner), new)

    def create(self, cell):
        own = [s for s in self.segments if s.cell == cell]
        if len(own) >= self.o["max_segments_per_cell"]:
            self.segments.remove(min(own, key=lambda s: s.used))
        slot = min(set(range(self.o["capacity"])) - {s.slot for s in self.segments})
        self.segments.append(Segment(cell, slot, self.iteration.item(), []))
        return self.segments[-1]

    def adapt(self, s, before, inc, dec):
        for pair in s.synapses:
            pair[1] = min(max(pair[1] + (inc if pair[0] in before else -dec), 0.0), 1.0)
        s.synapses = [pair for pair in s.synapses if pair[1] >= 1e-5]
        if not s.synapses:
            self.segments.remove(s)

    def grow(self, s, n):
        candidates = [c for c in sorted(self.before_winners) if not s.has(c)]
        n, most = min(max(n, 0), len(candidates)), self.o["max_synapses_per_segment"]
        for _ in range(len(s.synapses) + n - most):
            weak = [p for p in s.synapses if p[0] not in self.before_winners]
            if weak:
                s.synapses.remove(min(weak, key=lambda p: p[1]))
        n = min(n, most - len(s.synapses))
        assert n in (0, len(candidates)), "a choice between synapses"
        s.synapses += [[c, self.o["initial_permanence"]] for c in candidates[:n]]


def temporal_memory(s):
    defaults = {
        "cells_per_column": 2, "activation_threshold": 2, "min_threshold": 1, "initial_permanence": 0.21,
        "connected_permanence": 0.5, "permanence_increment": 0.1, "permanence_decrement": 0.1,
        "predicted_segment_decrement": 0.0, "max_new_synapse_count": 20, "max_segments_per_cell": 255,
        "max_synapses_per_segment": 6, "capacity": 24,
    }  # fmt: skip

    def run(label, columns, steps, config, share=0.4, lead=None, **options):
        o = {**defaults, **config}
        module, m = Memory(columns, o), o["cells_per_column"]

        def draw(name, b, g):
            cells = columns * m
            if name in ("active_cells", "winner_cells"):
                return (torch.rand(b.shape, generator=g) < 0.4).to(torch.uint8)
            if name == "iteration":
                return torch.tensor(9)
            # A segment on the first cell of every column, so that cells with the fewest are never several.
            if name == "segment_cell":
                b[:columns] = torch.arange(columns) * m
            if name == "last_used":
                b[:columns] = torch.randperm(columns, generator=g)
            if name == "presynaptic":
                for i in range(columns):
                    b[i, :4] = torch.randperm(cells, generator=g)[:4].int()
            if name == "permanence":
                b[:columns, :4] = f32(0.3 + 0.5 * torch.rand(columns, 4, generator=g, dtype=torch.float64))
            return b

        shape = (columns,) if steps is None else (steps, columns)
        keys = {"column_count": columns, **{k: v for k, v in o.items()}}
        values = {"x": bits(*shape, share=share)}
        s.case("temporal_memory", label + "_unbatched", keys, module, values, draw=draw, silent=("x",), **options)

    run("one_step", 6, None, {}, learn=3)
    run("sequence", 5, 4, {"predicted_segment_decrement": 0.05}, learn=2)
    run("one_cell", 6, 3, {"cells_per_column": 1, "activation_threshold": 1}, learn=3)
    run("few_segments", 5, 3, {"max_segments_per_cell": 1, "min_threshold": 2, "cells_per_column": 1}, learn=3)
    run("fading", 5, 2, {"permanence_decrement": 0.4, "initial_permanence": 0.3, "max_synapses_per_segment": 8}, learn=3)
    run("eval", 6, 4, {}, training=False)

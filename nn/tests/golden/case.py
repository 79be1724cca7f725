"""What the golden suites of layers are made of: a case, and the files of a family.

Everything is computed in float64 from inputs and parameters that float32 holds exactly, and stored in float32.

A family F is `layers-F.json`, a list of cases, beside `layers-F.safetensors`. A case:

    name     "entry/label"; its tensors are stored as "<name>|<group>|<tensor>"
    config   the layer as JSON; "type" and the keys of its constructor
    training whether the layer is in training mode
    lazy     the layer makes its parameters at its first forward
    args     arguments of the call that are no tensors
    inputs   names in the order of the call (group "in"); floats get gradients (group "din")
    batch    those of them whose first axis is the batch
    learn    steps of the layer's own learning rule: forward, backward, rule
    outputs  number of outputs (group "out"); floats have an upstream gradient each (group "dout")

Further groups: "state" is the state dictionary before the call, "grad" the gradients of the parameters, "after" the
state that the call changed, "adamw" the parameters after two steps of AdamW on the sum of outputs times their upstream
gradients, "learn" the state that the steps of the rule changed, whose inputs are rolled by one place more in each step
along their last axis.
"""

import copy
import json
import zlib

import torch
from safetensors.torch import save_file
from torch import nn

LR, WEIGHT_DECAY, STEPS = 1e-3, 1e-2, 2

# Cases drawn once more, and which draw they have. With their first numbers PyTorch itself was off by more than 5 % in f16
# or bf16, at kinks of ReLU and where terms cancel; the potential of the spiking case lay 4e-4 below its threshold, a
# quarter of what bf16 resolves there.
DRAWS = {
    "basic_block/stride": 1,
    "rrdb/unbatched": 4,
    "rrdbnet_generator/four": 3,
    "spiking/batch_first": 1,
    "unet_discriminator/spectral_eval": 3,
}


class Fn(nn.Module):
    """A layer without parameters."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *inputs):
        return self.f(*inputs)


def f32(t):
    """Rounded to float32, in float64."""
    return t.float().double() if t.is_floating_point() else t


def draw_parameter(name, p, g):
    """Values that give sums of unit size, and that make every parameter matter (no zeros, no ones)."""
    noise = torch.randn(p.shape, generator=g, dtype=torch.float64)
    if p.dim() >= 2:
        return noise / (p[0].numel() ** 0.5)
    return 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)


def draw_buffer(name, b, g):
    noise = torch.randn(b.shape, generator=g, dtype=torch.float64)
    if name.endswith("running_mean"):
        return 0.3 * noise
    if name.endswith("running_var"):
        return 0.5 + noise.abs()
    if name.endswith("num_batches_tracked"):
        return torch.tensor(3)
    return b


def batch(module, run, values):
    """Names of the inputs whose first axis is the batch: the first item alone gives the first item of every output. Empty
    if there are none."""
    first = next(iter(values.values()))
    masks = ("attn_mask", "src_mask", "tgt_mask", "memory_mask")
    names = [n for n, t in values.items() if t.dim() > 0 and t.shape[:1] == first.shape[:1] and not n.endswith(masks)]
    # Initial states of two directions have the batch on their second axis.
    if first.dim() == 0 or ("h0" in values and "h0" not in names):
        return []
    with torch.no_grad():
        full = outputs_of(run(module, values))
        try:
            one = outputs_of(run(module, {n: t[:1] if n in names else t for n, t in values.items()}))
        except (RuntimeError, ValueError, IndexError):
            return []
    same = (
        y.dim() > 0 and y.shape == x[:1].shape and torch.allclose(y.double(), x[:1].double())
        for x, y in zip(full, one)
    )
    return names if all(same) else []


def outputs_of(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


class Suite:
    """The cases of a family."""

    def __init__(self, family):
        self.family, self.cases, self.tensors = family, [], {}

    def put(self, case, group, name, t):
        t = t.detach()
        t = t.float() if t.is_floating_point() else t
        t = t.to(torch.uint8) if t.dtype == torch.bool else t
        self.tensors[f"{case}|{group}|{name}"] = t.clone(memory_format=torch.contiguous_format)

    def case(
        self,
        entry,
        label,
        config,
        oracle,
        inputs,
        *,
        training=True,
        lazy=False,
        args=None,
        call=None,
        silent=(),
        draw=None,
        learn=0,
    ):
        """Adds one case.

        oracle  module with the entry's parameters, or a function
        inputs  name -> shape (drawn), function of a generator, or tensor
        call    how the oracle is called with the inputs by name (default: in order)
        silent  parameters and inputs whose gradient is 0 by construction
        draw    own values for some parameters: (name, tensor, generator) -> tensor or None
        learn   steps of the rule, the oracle's method `learn`
        """
        name = f"{entry}/{label}"
        assert all(c["name"] != name for c in self.cases), name
        drawn = f"{name}#{DRAWS[name]}" if name in DRAWS else name
        g = torch.Generator().manual_seed(zlib.crc32(drawn.encode()))
        module = (oracle if isinstance(oracle, nn.Module) else Fn(oracle)).double()
        module.train(training)
        with torch.no_grad():
            for n, p in module.named_parameters():
                own = draw(n, p, g) if draw else None
                p.copy_(f32(own if own is not None else draw_parameter(n, p, g)))
            for n, b in module.named_buffers():
                own = draw(n, b, g) if draw else None
                b.copy_(f32(own if own is not None else draw_buffer(n, b, g)))

        def value(v):
            if isinstance(v, tuple):
                return f32(torch.randn(v, generator=g, dtype=torch.float64))
            return f32(v(g) if callable(v) else v)

        values = {n: value(v) for n, v in inputs.items()}
        for n, t in module.state_dict().items():
            self.put(name, "state", n, t)
        for n, t in values.items():
            self.put(name, "in", n, t)

        start = copy.deepcopy(module)
        leaves = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in values.items()}
        run = (lambda m, v: call(m, **v)) if call else (lambda m, v: m(*v.values()))
        outs = outputs_of(run(module, leaves))
        dout, floats = {}, [t.is_floating_point() for t in outs]
        for i, y in enumerate(outs):
            self.put(name, "out", str(i), y)
            if floats[i]:
                assert torch.isfinite(y).all(), name
                dout[i] = value(tuple(y.shape))
                self.put(name, "dout", str(i), dout[i])

        def loss(outs):
            return sum((outs[i] * w).sum() for i, w in dout.items())

        loss(outs).backward()
        for n, t in leaves.items():
            if t.is_floating_point():
                assert t.grad is not None, f"{name}: {n}"
                assert n in silent or t.grad.abs().max() > 1e-6, f"{name}: the gradient of {n} is 0"
                self.put(name, "din", n, t.grad)
        parameters = dict(module.named_parameters())
        for n, p in parameters.items():
            assert p.grad is not None, f"{name}: {n}"
            assert n in silent or p.grad.abs().max() > 1e-6, f"{name}: the gradient of {n} is 0"
            self.put(name, "grad", n, p.grad)
        before = start.state_dict()
        for n, t in module.state_dict().items():
            if not torch.equal(t, before[n]):
                self.put(name, "after", n, t)

        if learn:
            taught = copy.deepcopy(start)
            for step in range(learn):
                rolled = {n: t.roll(step, -1).requires_grad_(t.is_floating_point()) for n, t in values.items()}
                loss(outputs_of(run(taught, rolled))).backward()
                taught.learn()
            for n, t in taught.state_dict().items():
                if not torch.equal(t, before[n]):
                    self.put(name, "learn", n, t)

        if parameters:
            step = torch.optim.AdamW(start.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
            for _ in range(STEPS):
                step.zero_grad()
                loss(outputs_of(run(start, values))).backward()
                step.step()
            for n, p in start.named_parameters():
                self.put(name, "adamw", n, p)

        c = {"name": name, "entry": entry, "config": {"type": entry, **config}, "training": training}
        if lazy:
            c["lazy"] = True
        if args:
            c["args"] = args
        c["inputs"] = list(inputs)
        c["batch"] = [] if "unbatched" in label else batch(start.eval(), run, values)
        c["outputs"] = len(outs)
        if learn:
            c["learn"] = learn
        if silent:
            c["silent"] = list(silent)
        self.cases.append(c)

    def write(self, folder):
        path = folder / f"layers-{self.family}"
        lines = ",\n".join(json.dumps(c) for c in self.cases)
        path.with_suffix(".json").write_text(f"[\n{lines}\n]\n")
        save_file(self.tensors, path.with_suffix(".safetensors"))
        entries = {c["entry"] for c in self.cases}
        size = sum(path.with_suffix(s).stat().st_size for s in (".json", ".safetensors"))
        print(f"{path.name}: {len(entries)} entries, {len(self.cases)} cases, {size // 1024} KiB")


def activation(kind):
    """The elementwise activation of a name, for layers that have one as an option."""
    import torch.nn.functional as F

    return {
        "identity": lambda x: x,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "leaky_relu": F.leaky_relu,
        "softplus": F.softplus,
        "mish": F.mish,
        "elu": F.elu,
    }[kind]


class Then(nn.Module):
    """A module followed by an activation; the parameters keep their names."""

    def __init__(self, module, act):
        super().__init__()
        for n, p in module.named_parameters(recurse=False):
            self.register_parameter(n, p)
        self.hidden, self.act = [module], activation(act)

    def forward(self, *inputs):
        module = self.hidden[0]
        return self.act(torch.func.functional_call(module, dict(self.named_parameters()), inputs))

"""Activations (sections 1, 2 and B1): forward from F.*, backward from autograd or, where the output is saved, from the aten op."""
import torch
import torch.nn.functional as F
from core import EXACT, TRANS, Tol, ULP32, ag, kernel, splice, summed, ulp
from conv import gelu

A, AB, B1 = "activation", "activation_backward", "activation_extra"
aten = torch.ops.aten

# name, section forward, section backward, function, argument defaults, forward tolerance, kinks of the gradient
POINTWISE = [
    ("relu", "S1.1", "S2.1", lambda x: F.relu(x), {}, EXACT, (0,)),
    ("leaky_relu", "S1.2", "S2.2", lambda x, slope: F.leaky_relu(x, slope), {"slope": 0.01}, ulp(), (0,)),
    ("gelu", "S1.5", "S2.5", lambda x, approx: gelu(x, approx), {"approx": "none"}, TRANS, ()),
    ("swish", "S1.6", "S2.8", lambda x, beta: x * torch.sigmoid(beta * x), {"beta": 1.0}, TRANS, ()),
    ("elu", "S1.8", "S2.7", lambda x, alpha: F.elu(x, alpha), {"alpha": 1.0}, TRANS, ()),
    ("mish", "S1.9", "S2.9", lambda x: F.mish(x), {}, TRANS, ()),
    ("softplus", "S1.10", "S2.10", lambda x, beta, threshold: F.softplus(x, beta, threshold), {"beta": 1.0, "threshold": 20.0}, TRANS, ()),
    ("hardswish", "S1.11", "S2.11", lambda x: F.hardswish(x), {}, TRANS, (-3, 3)),
    ("selu", "B1.1", "B1.1", lambda x: F.selu(x), {}, TRANS, (0,)),
    ("hardsigmoid", "B1.3", "B1.3", lambda x: F.hardsigmoid(x), {}, TRANS, (-3, 3)),
    ("hardtanh", "B1.4", "B1.4", lambda x, lo, hi: F.hardtanh(x, lo, hi), {"lo": -1.0, "hi": 1.0}, EXACT, (-1, 1)),
    ("relu6", "B1.4", "B1.4", lambda x: F.relu6(x), {}, EXACT, (0, 6)),
]


def _pointwise(name, fsec, bsec, fn, args, tol, kinks):
    def forward(c, shape, special=None, scale=2.0, **a):
        x = c.x("x", *shape, scale=scale, special=special)
        c.out("y", fn(x, **{**args, **{k: v for k, v in a.items() if k in args}}), tol)
    kernel(fsec, B1 if fsec[0] == "B" else A, name, "x", "y", args)(forward)
    if name == "swish":
        kernel(fsec, A, "silu", "x", "y", args)(forward)

    def backward(c, shape, special=None, scale=2.0, **a):
        dy = c.x("dy", *shape)
        x = c.putv("x", splice(c.away(c.rnd(*shape, scale=scale), kinks), special))
        y = fn(x, **{**args, **{k: v for k, v in a.items() if k in args}})
        dx, = ag(y, [x], dy)
        c.out("dx", dx, EXACT if name in ("relu", "hardtanh", "relu6") else Tol(8 * ULP32, 4e-7))
    kernel(bsec, B1 if bsec[0] == "B" else AB, name + "_backward", "dy x", "dx", args)(backward) if name != "elu" else None


for row in POINTWISE:
    _pointwise(*row)


@kernel("S1.3", A, "sigmoid", "x", "y")
def sigmoid(c, shape, special=None, scale=2.0):
    c.out("y", torch.sigmoid(c.x("x", *shape, scale=scale, special=special)), TRANS)


@kernel("S1.4", A, "tanh", "x", "y")
def tanh(c, shape, special=None, scale=2.0):
    c.out("y", torch.tanh(c.x("x", *shape, scale=scale, special=special)), TRANS)


@kernel("S1.7", A, "softmax", "x", "y", "axis")
def softmax(c, shape, axis=-1, special=None, scale=2.0):
    x = c.x("x", *shape, scale=scale, special=special)
    c.out("y", torch.softmax(x, axis), Tol(1e-6, 1e-7))


@kernel("S2.3", AB, "sigmoid_backward", "dy y", "dx")
def sigmoid_backward(c, shape, special=None):
    dy = c.x("dy", *shape, special=special)
    y = c.put("y", torch.sigmoid(c.rnd(*shape, scale=2)))
    c.out("dx", aten.sigmoid_backward(dy, y), Tol(8 * ULP32, 2e-7))


@kernel("S2.4", AB, "tanh_backward", "dy y", "dx")
def tanh_backward(c, shape, special=None):
    dy = c.x("dy", *shape, special=special)
    y = c.put("y", torch.tanh(c.rnd(*shape)))
    c.out("dx", aten.tanh_backward(dy, y), Tol(8 * ULP32, 4e-7))


@kernel("S2.6", AB, "softmax_backward", "dy y", "dx", "axis")
def softmax_backward(c, shape, axis=-1, special=None, scale=2.0):
    "special is spliced into y (a row that was NaN stays NaN)"
    dy = c.x("dy", *shape)
    y = c.put("y", splice(torch.softmax(c.rnd(*shape, scale=scale), axis), special))
    c.out("dx", aten._softmax_backward_data(dy, y, axis, y.dtype), summed(shape[axis], (y * dy).abs().sum(axis) if y.numel() else 0.0, 1e-6))


@kernel("S2.7", AB, "elu_backward", "dy x? y?", "dx", "alpha")
def elu_backward(c, shape, alpha=1.0, special=None, scale=2.0, saved="x"):
    "takes x, or y when alpha >= 0"
    dy = c.x("dy", *shape)
    raw = splice(c.away(c.rnd(*shape, scale=scale)), special)
    if saved == "x":
        v = c.put("x", raw)
    else:
        v = c.put("y", F.elu(raw, alpha))
    c.out("dx", aten.elu_backward(dy, alpha, 1, 1, saved == "y", v), Tol(8 * ULP32, 4e-7))


# ------------------------------------------------------------------------------------------------ B1
@kernel("B1.5", B1, "prelu", "x a", "y")
def prelu(c, shape, na=1, special=None):
    "a has 1 or C entries (axis 1)"
    x = c.x("x", *shape, special=special)
    a = c.put("a", c.uni(na, lo=-0.5, hi=0.8))
    c.out("y", F.prelu(x, a), ulp())


@kernel("B1.5", B1, "prelu_backward", "dy x a", "dx da")
def prelu_backward(c, shape, na=1):
    dy = c.x("dy", *shape)
    x = c.putv("x", c.away(c.rnd(*shape)))
    a = c.putv("a", c.uni(na, lo=-0.5, hi=0.8))
    dx, da = ag(F.prelu(x, a), [x, a], dy)
    c.out("dx", dx, ulp())
    c.out("da", da, summed(dy.numel() // na, (dy * x).abs().sum()))


GATES = {"glu": torch.sigmoid, "geglu": gelu, "swiglu": F.silu, "reglu": F.relu}


def _gate(name, act):
    def value(c, x, u, v, axis, gate_first):
        if x is not None:
            u, v = x.chunk(2, axis)
            return act(u) * v if gate_first else u * act(v)
        return act(u) * v

    def forward(c, shape, axis=-1, gate_first=False, two=False, special=None):
        """halves a, b of x along axis: y = a*act(b); gate_first: y = act(a)*b. Two-tensor form (gate, up instead of x): y = act(gate)*up"""
        if two:
            y = value(c, None, c.x("gate", *shape, special=special), c.x("up", *shape), axis, True)
        else:
            x = c.x("x", *shape, special=special)
            assert shape[axis] % 2 == 0
            y = value(c, x, None, None, axis, gate_first)
        c.out("y", y, Tol(8 * ULP32, 2e-7))
    kernel("B1.9", B1, name, "x? gate? up?", "y", {"axis": -1, "gate_first": False})(forward)

    def backward(c, shape, axis=-1, gate_first=False, two=False):
        if two:
            dy = c.x("dy", *shape)
            g, u = c.putv("gate", c.away(c.rnd(*shape))), c.var("up", *shape)
            dg, du = ag(value(c, None, g, u, axis, True), [g, u], dy)
            c.out("dgate", dg, Tol(1e-6, 1e-6))
            c.out("dup", du, Tol(1e-6, 4e-7))
        else:
            half = list(shape)
            half[axis] //= 2
            dy = c.x("dy", *half)
            x = c.putv("x", c.away(c.rnd(*shape)))
            c.out("dx", ag(value(c, x, None, None, axis, gate_first), [x], dy)[0], Tol(1e-6, 1e-6))
    kernel("B1.9", B1, name + "_backward", "dy x? gate? up?", "dx? dgate? dup?", {"axis": -1, "gate_first": False})(backward)


for _n, _f in GATES.items():
    _gate(_n, _f)


@kernel("B1.11", B1, "log_softmax", "x", "y", "axis")
def log_softmax(c, shape, axis=-1, special=None, scale=2.0):
    x = c.x("x", *shape, scale=scale, special=special)
    c.out("y", torch.log_softmax(x, axis), Tol(4 * ULP32, 1e-6 + 1.2e-7 * (float(x[torch.isfinite(x)].abs().max()) if x.numel() else 0)))


@kernel("B1.11", B1, "log_softmax_backward", "dy y", "dx", "axis")
def log_softmax_backward(c, shape, axis=-1):
    dy = c.x("dy", *shape)
    y = c.put("y", torch.log_softmax(c.rnd(*shape, scale=2), axis))
    c.out("dx", aten._log_softmax_backward_data(dy, y, axis, y.dtype), summed(shape[axis], dy.abs().sum(axis), 1e-6))


@kernel("B1.18", B1, "scaled_masked_softmax", "x mask?", "y", "scale")
def scaled_masked_softmax(c, shape, mask=None, scale=1.0):
    "softmax over the last axis of scale*x + mask; the additive mask (0 or -inf) broadcasts against x"
    x = c.x("x", *shape, scale=2)
    m = 0.0
    if mask:
        keep = c.uni(*mask) < 0.7
        keep[..., 0] = True
        m = c.put("mask", torch.where(keep, 0.0, float("-inf")))
    c.out("y", torch.softmax(scale * x + m, -1), Tol(1e-6, 2e-7))


@kernel("B1.18", B1, "scaled_masked_softmax_backward", "dy y", "dx", "scale")
def scaled_masked_softmax_backward(c, shape, scale=1.0):
    dy = c.x("dy", *shape)
    y = c.put("y", torch.softmax(c.rnd(*shape, scale=2), -1))
    c.out("dx", scale * aten._softmax_backward_data(dy, y, -1, y.dtype), summed(shape[-1], scale * (y * dy).abs().sum(-1), 1e-6))

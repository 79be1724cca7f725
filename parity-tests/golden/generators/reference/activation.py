"""Second formulas of activations."""
import numpy as np
from reference.base import R, dgelu, gelu, lse, ref, relu, sfp, sig, softmax


R("relu", lambda a, v: {"y": relu(v.x)})
R("leaky_relu", lambda a, v: {"y": np.where(v.x > 0, v.x, a.slope * v.x)})
R("sigmoid", lambda a, v: {"y": sig(v.x)})
R("tanh", lambda a, v: {"y": np.tanh(v.x)})
R("gelu", lambda a, v: {"y": gelu(v.x, a.approx)})
R("swish silu", lambda a, v: {"y": v.x * sig(a.beta * v.x)})
R("softmax", lambda a, v: {"y": softmax(v.x, a.axis)})
R("elu", lambda a, v: {"y": np.where(v.x > 0, v.x, a.alpha * np.expm1(np.minimum(v.x, 0)))})


@ref("mish")
def _(a, v):
    w = np.exp(np.minimum(v.x, 20))
    n = w * (w + 2)
    return {"y": np.where(v.x > 20, v.x, v.x * n / (n + 2))}


R("softplus", lambda a, v: {"y": np.where(a.beta * v.x > a.threshold, v.x, sfp(a.beta * v.x) / a.beta)})
R("hardswish", lambda a, v: {"y": np.where(v.x <= -3, 0, np.where(v.x >= 3, v.x, v.x * (v.x + 3) / 6))})
R("relu_backward", lambda a, v: {"dx": np.where(v.x <= 0, 0, v.dy)})
R("leaky_relu_backward", lambda a, v: {"dx": np.where(v.x > 0, v.dy, a.slope * v.dy)})
R("sigmoid_backward", lambda a, v: {"dx": v.dy * v.y * (1 - v.y)})
R("tanh_backward", lambda a, v: {"dx": v.dy * (1 - v.y * v.y)})
R("gelu_backward", lambda a, v: {"dx": v.dy * dgelu(v.x, a.approx)})


def softmax_b(dy, y, axis):
    return y * (dy - (dy * y).sum(axis, keepdims=True))


R("softmax_backward", lambda a, v: {"dx": softmax_b(v.dy, v.y, a.axis)})


@ref("elu_backward")
def _(a, v):
    if v.x is not None:
        return {"dx": np.where(v.x > 0, v.dy, v.dy * a.alpha * np.exp(np.minimum(v.x, 0)))}
    return {"dx": np.where(v.y > 0, v.dy, v.dy * (v.y + a.alpha))}


def dswish(x, b=1.0):
    s = sig(b * x)
    return s * (1 + b * x * (1 - s))


R("swish_backward", lambda a, v: {"dx": v.dy * dswish(v.x, a.beta)})


@ref("mish_backward")
def _(a, v):
    t, s = np.tanh(sfp(v.x)), sig(v.x)
    return {"dx": np.where(v.x > 20, v.dy, v.dy * (t + v.x * s * (1 - t * t)))}


R("softplus_backward", lambda a, v: {"dx": np.where(a.beta * v.x > a.threshold, v.dy, v.dy * sig(a.beta * v.x))})
R("hardswish_backward", lambda a, v: {"dx": np.where(v.x <= -3, 0, np.where(v.x < 3, v.dy * (v.x / 3 + 0.5), v.dy))})
SA, SS = 1.6732632423543772, 1.0507009873554805
R("selu", lambda a, v: {"y": np.where(v.x > 0, SS * v.x, SS * SA * np.expm1(np.minimum(v.x, 0)))})
R("selu_backward", lambda a, v: {"dx": v.dy * np.where(v.x > 0, SS, SS * SA * np.exp(np.minimum(v.x, 0)))})
clip = lambda x, lo, hi: np.where(np.isnan(x), x, np.minimum(np.maximum(x, lo), hi))
R("hardsigmoid", lambda a, v: {"y": clip(v.x / 6 + 0.5, 0, 1)})
R("hardsigmoid_backward", lambda a, v: {"dx": np.where((v.x > -3) & (v.x < 3), v.dy / 6, 0)})
R("hardtanh", lambda a, v: {"y": clip(v.x, a.lo, a.hi)})
R("relu6", lambda a, v: {"y": clip(v.x, 0, 6)})
R("hardtanh_backward", lambda a, v: {"dx": np.where((v.x > a.lo) & (v.x < a.hi), v.dy, 0)})
R("relu6_backward", lambda a, v: {"dx": np.where((v.x > 0) & (v.x < 6), v.dy, 0)})


def chan(p, x):
    return p if p.size == 1 else p.reshape([1, -1] + [1] * (x.ndim - 2))


R("prelu", lambda a, v: {"y": np.where(v.x > 0, v.x, chan(v.a, v.x) * v.x)})


@ref("prelu_backward")
def _(a, v):
    t = np.where(v.x > 0, 0, v.dy * v.x)
    ax = tuple(i for i in range(v.x.ndim) if i != 1)
    return {"dx": np.where(v.x > 0, v.dy, v.dy * chan(v.a, v.x)), "da": t.sum(ax) if v.a.size > 1 else np.array([t.sum()])}


GATE = {"glu": (sig, lambda x: sig(x) * (1 - sig(x))), "geglu": (gelu, dgelu), "swiglu": (lambda x: x * sig(x), dswish),
        "reglu": (relu, lambda x: (x > 0) * 1.0)}
for _n, (_f, _d) in GATE.items():
    def _fw(a, v, f=_f):
        if v.gate is not None:
            return {"y": f(v.gate) * v.up}
        p, q = np.split(v.x, 2, a.axis)
        return {"y": f(p) * q if a.gate_first else p * f(q)}

    def _bw(a, v, f=_f, d=_d):
        if v.gate is not None:
            return {"dgate": v.dy * v.up * d(v.gate), "dup": v.dy * f(v.gate)}
        p, q = np.split(v.x, 2, a.axis)
        r = (v.dy * q * d(p), v.dy * f(p)) if a.gate_first else (v.dy * f(q), v.dy * p * d(q))
        return {"dx": np.concatenate(r, a.axis)}
    R(_n, _fw)
    R(_n + "_backward", _bw)
R("log_softmax", lambda a, v: {"y": v.x - lse(v.x, a.axis, True)})
R("log_softmax_backward", lambda a, v: {"dx": v.dy - np.exp(v.y) * v.dy.sum(a.axis, keepdims=True)})
R("scaled_masked_softmax", lambda a, v: {"y": softmax(a.scale * v.x + (0 if v.mask is None else v.mask))})
R("scaled_masked_softmax_backward", lambda a, v: {"dx": a.scale * softmax_b(v.dy, v.y, -1)})

"""Second formulas: plain numpy in float64, written from the text of kernels.md and losses.md, not from the generators.

REFS[kernel](a, v) gets the arguments `a` (defaults filled in) and the inputs `v` (attribute access, floats as float64) and returns a dict of
outputs. Backward kernels without a formula of their own are checked by central differences of the forward formula (see numeric())."""
import math
import numpy as np
from scipy import special as sp

REFS = {}
PI = math.pi


class NS(dict):
    "attribute access; what is absent is None"
    __getattr__ = dict.get

    def __missing__(self, key):
        return None


def ref(*names):
    def deco(f):
        for n in names:
            for k in n.split():
                assert k not in REFS, k
                REFS[k] = f
        return f
    return deco


def R(names, f):
    ref(names)(f)


def numeric(forward, wrt, up="dy", out="y", h=1e-6, prefix="d"):
    "gradient by central differences of REFS[forward]; `wrt` lists input names"
    def g(a, v):
        res = {}
        for n in wrt:
            if n not in v or v[n] is None:
                continue
            x = v[n].astype(np.float64).copy()
            flat = x.reshape(-1)
            d = np.zeros_like(flat)
            for i in range(flat.size):
                old = flat[i]
                step = h * max(1.0, abs(old))
                vals = []
                for s in (step, -step):
                    flat[i] = old + s
                    w = NS(v)
                    w[n] = x
                    vals.append(np.asarray(REFS[forward](a, w)[out], dtype=np.float64))
                flat[i] = old
                u = np.ones_like(vals[0]) if up is None else np.asarray(v[up], dtype=np.float64)
                d[i] = np.sum((vals[0] - vals[1]) / (2 * step) * u)
            res[prefix + n] = d.reshape(x.shape)
        return res
    g.numeric = True
    return g


sig = lambda x: np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))
sfp = lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
relu = lambda x: np.where(x <= 0, 0, x)
Phi = lambda x: 0.5 * sp.erfc(-x / math.sqrt(2))


def gelu(x, approx="none"):
    if approx == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / PI) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * sp.erfc(-x / math.sqrt(2))


def dgelu(x, approx="none"):
    if approx == "tanh":
        u = math.sqrt(2 / PI) * (x + 0.044715 * x ** 3)
        t = np.tanh(u)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / PI) * (1 + 3 * 0.044715 * x * x)
    return Phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * PI)


def softmax(x, axis=-1):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


def lse(x, axis=-1, keepdims=False):
    with np.errstate(all="ignore"):
        m = x.max(axis, keepdims=True) if x.shape[axis] else np.full([1 if i == axis % x.ndim else s for i, s in enumerate(x.shape)], -np.inf)
        m0 = np.where(np.isfinite(m), m, 0)
        r = m0 + np.log(np.exp(x - m0).sum(axis, keepdims=True))
        r = np.where(np.isposinf(m), np.inf, r)
        return r if keepdims else np.squeeze(r, axis)

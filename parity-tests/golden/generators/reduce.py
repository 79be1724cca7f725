"""Reductions along axes."""
import math
import torch
from core import EXACT, Tol, ULP32, ag, kernel, matmul_tol, splice, summed, ulp
from conv import clean
from utility import kcount
from binary import draw_domain

T3 = "reduce"


R = {"axes": "required", "keepdim": False}


def _reduce(name, row, fn, tol, dom="any", extra=None, grad=True, out_kind=None):
    extra = extra or {}

    def forward(c, shape, axes, keepdim=False, special=None, dom=dom, **a):
        a = {**extra, **a}
        x = c.put("x", splice(draw_domain(c, shape, dom), special))
        y = fn(x, axes, keepdim, **a)
        c.notorch = name == "norm" and special is not None and max(map(abs, special)) > 1e18      # needs scaling, which f32 torch does not do
        c.out("y", y, tol(x, axes, y))
    kernel(row, T3, name, "x", "y", {**R, **extra})(forward)
    if grad:
        def backward(c, shape, axes, keepdim=False, special=None, dom=dom, flat=None, **a):
            "flat cases: the first row is constant"
            a = {**extra, **a}
            ys = fn(torch.ones(*shape) * 0.5, axes, keepdim, **a).shape
            dy = c.x("dy", *ys)
            raw = splice(c.away(draw_domain(c, shape, dom)), special)
            if flat is not None:
                raw[0] = flat
            x = c.putv("x", raw)
            g = ag(fn(x, axes, keepdim, **a), [x], dy)[0]
            if name == "logsumexp" and flat is not None:  # a slice of only -inf has zero gradient; PyTorch gives NaN
                g = torch.nan_to_num(g)
            c.out("dx", g, Tol(1e-5, 1e-30, 2e-6))
        kernel(row, T3, name + "_backward", "dy x", "dx", {**R, **extra})(backward)


def prod_axes(x, axes, keepdim):
    for a in sorted(axes, reverse=True):
        x = x.prod(a, keepdim=keepdim)
    return x


_sumtol = lambda x, axes, y: summed(kcount(x.shape, axes), clean(x).sum(axes) / 1.0)
_reduce("mean", "T3.1", lambda x, a, k: x.mean(a, k), lambda x, a, y: summed(kcount(x.shape, a), clean(x).mean(a)))
_reduce("prod", "T3.2", prod_axes, lambda x, a, y: Tol((8 + math.sqrt(max(1, kcount(x.shape, a)))) * ULP32, 1e-30))
_reduce("var", "T3.4", lambda x, a, k, correction: torch.var(x, a, correction=correction, keepdim=k), lambda x, a, y: Tol(1e-5, 1e-6), extra={"correction": 1})
_reduce("std", "T3.4", lambda x, a, k, correction: torch.std(x, a, correction=correction, keepdim=k), lambda x, a, y: Tol(1e-5, 1e-6), extra={"correction": 1})


def vnorm(x, a, k, p):
    return torch.linalg.vector_norm(x, float(p), a, k)


_reduce("norm", "T3.5", vnorm, lambda x, a, y: Tol((8 + math.log2(max(1, kcount(x.shape, a)))) * 2 * 6e-8 + 1e-6, 1e-30), extra={"p": 2.0})
_reduce("logsumexp", "T3.6", lambda x, a, k: torch.logsumexp(x, a, k), lambda x, a, y: Tol(1e-6, 5e-7))
_reduce("sum_sq", "T3.7", lambda x, a, k: (x * x).sum(a, k), lambda x, a, y: summed(kcount(x.shape, a), (clean(x) ** 2).sum(a)))
_reduce("l2_norm", "T3.7", lambda x, a, k: torch.linalg.vector_norm(x, 2, a, k), lambda x, a, y: Tol(1.5e-6, 1e-30))


def _anyall(name, fn):
    def gen(c, shape, axes, keepdim=False, density=0.5):
        x = c.mask("x", c.uni(*shape) < density)
        y = x
        for a in sorted(axes, reverse=True):
            y = fn(y, a, keepdim)
        c.out("y", y, kind="u8")
    kernel("T3.3", T3, name, "x:u8", "y:u8", R)(gen)


_anyall("any", torch.any)
_anyall("all", torch.all)


@kernel("T3.8", T3, "dot", "a b", "y")
def dot(c, n):
    a, b = c.x("a", n), c.x("b", n)
    c.out("y", torch.linalg.vecdot(a, b), matmul_tol(n, (clean(a) * clean(b)).sum()))


@kernel("T3.8", T3, "batched_dot", "a b", "y")
def batched_dot(c, shape):
    "over the last axis"
    a, b = c.x("a", *shape), c.x("b", *shape)
    c.out("y", torch.linalg.vecdot(a, b), matmul_tol(shape[-1], (clean(a) * clean(b)).sum(-1)))


@kernel("T3.8", T3, "batched_dot_backward", "dy a b", "da db")
def batched_dot_backward(c, shape):
    dy, a, b = c.x("dy", *shape[:-1]), c.var("a", *shape), c.var("b", *shape)
    for n, g in zip(("da", "db"), ag(torch.linalg.vecdot(a, b), [a, b], dy)):
        c.out(n, g, ulp(2))


@kernel("T3.9", T3, "sum_to_shape", "x", "y", {"shape": "required"})
def sum_to_shape(c, x, shape):
    X = c.x("x", *x)
    k = max(1, X.numel() // max(1, math.prod(shape)))
    c.out("y", X.sum_to_size(*shape), summed(k, clean(X).sum_to_size(*shape)))


@kernel("T3.10", T3, "mean_var", "x", "mean var", {**R, "correction": 1})
def mean_var(c, shape, axes, keepdim=False, correction=1, shift=0.0):
    x = c.x("x", *shape, shift=shift)
    v, m = torch.var_mean(x, axes, correction=correction, keepdim=keepdim)
    c.out("mean", m, Tol(1e-6, 5e-7 * max(1.0, abs(shift))))
    c.out("var", v, Tol(1e-5, 1e-6 * max(1.0, abs(shift))))


@kernel("T3.11", T3, "min_max", "x", "lo hi", {"axis": None, "keepdim": False})
def min_max(c, shape, axis=None, keepdim=False, special=None):
    "axis null: over everything"
    x = c.x("x", *shape, special=special)
    if axis is None:
        lo, hi = torch.aminmax(x)
    else:
        lo, hi = torch.aminmax(x, dim=axis, keepdim=keepdim)
    c.out("lo", lo, EXACT)
    c.out("hi", hi, EXACT)

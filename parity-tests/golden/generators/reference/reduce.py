"""Second formulas of reductions."""
import math
import numpy as np
from reference.base import R, REFS, lse, ref
from reference.utility import to_shape, unreduce
from reference.elementwise import sgn


ax_ = lambda a: tuple(a.axes)
kd = lambda a, v, t: unreduce(t, v.x.shape, a.axes, a.keepdim)
K_ = lambda a, v: math.prod(v.x.shape[i] for i in a.axes)


def quiet(f):
    def g(a, v):
        with np.errstate(all="ignore"):
            import warnings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return f(a, v)
    return g


R("mean", quiet(lambda a, v: {"y": v.x.sum(ax_(a), keepdims=a.keepdim) / np.float64(K_(a, v))}))
R("prod", lambda a, v: {"y": v.x.prod(ax_(a), keepdims=a.keepdim)})
R("var", quiet(lambda a, v: {"y": ((v.x - v.x.mean(ax_(a), keepdims=True)) ** 2).sum(ax_(a), keepdims=a.keepdim) / (max(K_(a, v) - a.correction, 0) if K_(a, v) > a.correction else np.nan)}))
R("std", quiet(lambda a, v: {"y": np.sqrt(REFS["var"](a, v)["y"])}))


def vn(a, v, keep):
    x, p = np.abs(v.x), a.p
    if p == "inf":
        return x.max(ax_(a), keepdims=keep)
    if p == 0:
        return (x != 0).sum(ax_(a), keepdims=keep) * 1.0
    return (x ** p).sum(ax_(a), keepdims=keep) ** (1 / p)


R("norm", lambda a, v: {"y": vn(a, v, a.keepdim)})


@ref("logsumexp")
def _(a, v):
    x = np.moveaxis(v.x, ax_(a), range(-len(a.axes), 0))
    y = lse(x.reshape(x.shape[:x.ndim - len(a.axes)] + (-1,)) if x.size else x.reshape(x.shape[:x.ndim - len(a.axes)] + (0,)), -1)
    return {"y": unreduce(y, v.x.shape, a.axes, False) if a.keepdim else y}


R("sum_sq", lambda a, v: {"y": (v.x ** 2).sum(ax_(a), keepdims=a.keepdim)})
R("l2_norm", lambda a, v: {"y": np.sqrt((v.x ** 2).sum(ax_(a), keepdims=a.keepdim))})
R("mean_backward", lambda a, v: {"dx": kd(a, v, v.dy) / K_(a, v) * np.ones(v.x.shape)})
R("var_backward", lambda a, v: {"dx": 2 * (v.x - v.x.mean(ax_(a), keepdims=True)) * kd(a, v, v.dy) / (K_(a, v) - a.correction)})


@ref("std_backward")
def _(a, v):
    d = v.x - v.x.mean(ax_(a), keepdims=True)
    n = K_(a, v) - a.correction
    s = np.sqrt((d * d).sum(ax_(a), keepdims=True) / n)
    return {"dx": np.where(s > 0, d * kd(a, v, v.dy) / (n * s), 0)}


@ref("norm_backward")
def _(a, v):
    y, g = vn(a, v, True), kd(a, v, v.dy)
    if a.p == "inf":
        hit = np.abs(v.x) == y
        return {"dx": sgn(v.x) * hit * g / hit.sum(ax_(a), keepdims=True)}
    return {"dx": np.where(y > 0, sgn(v.x) * (np.abs(v.x) / y) ** (a.p - 1) * g, 0)}


R("logsumexp_backward", lambda a, v: {"dx": np.nan_to_num(np.exp(v.x - kd(a, v, REFS["logsumexp"](a, v)["y"])) * kd(a, v, v.dy))})
R("sum_sq_backward", lambda a, v: {"dx": 2 * v.x * kd(a, v, v.dy)})
R("l2_norm_backward", lambda a, v: {"dx": np.nan_to_num(v.x / np.sqrt((v.x ** 2).sum(ax_(a), keepdims=True))) * kd(a, v, v.dy)})


@ref("prod_backward")
def _(a, v):
    x = v.x
    d = np.zeros(x.shape)
    for pos in np.ndindex(*x.shape):
        w = x.copy()
        w[pos] = 1
        d[pos] = w.prod(ax_(a), keepdims=True)[tuple(0 if i in [q % x.ndim for q in a.axes] else p for i, p in enumerate(pos))]
    return {"dx": d * kd(a, v, v.dy)}


R("any", lambda a, v: {"y": (v.x != 0).any(ax_(a), keepdims=a.keepdim)})
R("all", lambda a, v: {"y": (v.x != 0).all(ax_(a), keepdims=a.keepdim)})
R("dot batched_dot", lambda a, v: {"y": (v.a * v.b).sum(-1)})
R("batched_dot_backward", lambda a, v: {"da": v.dy[..., None] * v.b, "db": v.dy[..., None] * v.a})
R("sum_to_shape", lambda a, v: {"y": to_shape(v.x, a.shape)})
R("mean_var", lambda a, v: {"mean": v.x.mean(ax_(a), keepdims=a.keepdim), "var": v.x.var(ax_(a), ddof=a.correction, keepdims=a.keepdim)})
R("min_max", lambda a, v: {"lo": v.x.min(a.axis, keepdims=a.keepdim), "hi": v.x.max(a.axis, keepdims=a.keepdim)})

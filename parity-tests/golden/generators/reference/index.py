"""Second formulas of gather, scatter and creation."""
import math
import numpy as np
from reference.base import PI, R, ref
from reference.attention import phil, u01, u10
from reference.utility import num
from reference.shape import take, xs_


R("index_select", lambda a, v: {"y": np.take(v.x, v.idx, a.axis)})


@ref("index_select_backward")
def _(a, v):
    d = np.zeros(a.input_size)
    for i, j in enumerate(v.idx):
        ix = [slice(None)] * d.ndim
        ix[a.axis] = j
        d[tuple(ix)] += take(v.dy, a.axis, i)
    return {"dx": d}


def cells(idx, axis):
    for pos in np.ndindex(*idx.shape):
        q = list(pos)
        q[axis] = idx[pos]
        yield pos, tuple(q)


def gath(x, idx, axis):
    y = np.zeros(idx.shape)
    for p, q in cells(idx, axis):
        y[p] = x[q]
    return y


R("gather", lambda a, v: {"y": gath(v.x, v.idx, a.axis)})


@ref("gather_backward")
def _(a, v):
    d = np.zeros(a.input_size)
    for p, q in cells(v.idx, a.axis):
        d[q] += v.dy[p]
    return {"dx": d}


@ref("scatter")
def _(a, v):
    y = v.x.copy()
    for p, q in cells(v.idx, a.axis):
        y[q] = v.src[p]
    return {"y": y}


@ref("scatter_backward")
def _(a, v):
    d = v.dy.copy()
    for p, q in cells(v.idx, a.axis):
        d[q] = 0
    return {"dx": d, "dsrc": gath(v.dy, v.idx, a.axis)}


def sred(a, v):
    parts = {}
    for p, q in cells(v.idx, a.axis):
        parts.setdefault(q, []).append(p)
    y = v.x.copy()
    f = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[a.reduce]
    for q, ps in parts.items():
        y[q] = f(([v.x[q]] if a.include_self else []) + [v.src[p] for p in ps])
    return y, parts


R("scatter_reduce", lambda a, v: {"y": sred(a, v)[0]})


@ref("scatter_reduce_backward")
def _(a, v):
    y, parts = sred(a, v)
    dx, ds = v.dy.copy(), np.zeros(v.src.shape)
    for q, ps in parts.items():
        vals = ([v.x[q]] if a.include_self else []) + [v.src[p] for p in ps]
        g, n = v.dy[q], len(vals)
        if a.reduce == "sum":
            w = [g] * n
        elif a.reduce == "mean":
            w = [g / n] * n
        elif a.reduce == "prod":
            w = [g * np.prod(vals[:i] + vals[i + 1:]) for i in range(n)]
        else:
            hit = [t == y[q] for t in vals]
            w = [g * h / sum(hit) for h in hit]
        if a.include_self:
            dx[q] = w[0]
            w = w[1:]
        else:
            dx[q] = 0
        for p, t in zip(ps, w):
            ds[p] = t
    return {"dx": dx, "dsrc": ds}


def rowop(a, v, f):
    y = np.moveaxis(v.x.copy(), a.axis, 0)
    s = None if v.src is None else np.moveaxis(v.src, a.axis, 0)
    for i, j in enumerate(v.idx):
        y[j] = f(y[j], None if s is None else s[i])
    return {"y": np.moveaxis(y, 0, a.axis)}


R("index_add", lambda a, v: rowop(a, v, lambda y, s: y + a.alpha * s))
R("index_copy", lambda a, v: rowop(a, v, lambda y, s: s))
R("index_fill", lambda a, v: rowop(a, v, lambda y, s: a.value))


@ref("index_put")
def _(a, v):
    y = v.x.copy()
    ix = np.broadcast_arrays(*xs_(v, "idx"))
    for pos in np.ndindex(*ix[0].shape):
        q = tuple(t[pos] for t in ix)
        y[q] = y[q] + v.v[pos] if a.accumulate else v.v[pos]
    return {"y": y}


R("masked_fill", lambda a, v: {"y": np.where(v.c.astype(bool), num(a.value), v.x)})
R("masked_fill_backward", lambda a, v: {"dx": np.where(v.c.astype(bool), 0, v.dy)})


@ref("masked_scatter")
def _(a, v):
    y = v.x.copy().reshape(-1)
    k = 0
    for i, t in enumerate(v.c.reshape(-1)):
        if t:
            y[i], k = v.src[k], k + 1
    return {"y": y.reshape(v.x.shape)}


@ref("masked_select")
def _(a, v):
    y = [t for t, m in zip(v.x.reshape(-1), v.c.reshape(-1)) if m]
    return {"y": np.array(y), "count": np.array(len(y))}


@ref("masked_select_backward")
def _(a, v):
    d = np.zeros(v.c.shape)
    d[v.c.astype(bool)] = v.dy
    return {"dx": d}


@ref("nonzero")
def _(a, v):
    i = [p for p in np.ndindex(*v.x.shape) if v.x[p] != 0]
    return {"idx": np.array(i, int).reshape(-1, v.x.ndim), "count": np.array(len(i))}


R("one_hot", lambda a, v: {"y": (v.ids[..., None] == np.arange(a.C)) * 1.0})
R("strided_copy copy_strided", lambda a, v: {"y": v.x})
R("zeros", lambda a, v: {"y": np.zeros(a.shape)})
R("arange", lambda a, v: {"y": np.array([a.start + i * a.step for i in range(max(0, math.ceil((a.end - a.start) / a.step)))])})
R("linspace", lambda a, v: {"y": np.array([a.start + (a.end - a.start) * i / max(1, a.n - 1) for i in range(a.n)])})
num_ = lambda a: math.prod(a.shape)
R("philox_u32", lambda a, v: {"y": phil(a.n, a.seed, a.stream, a.offset).astype(np.uint32).view(np.int32)})
R("rand_uniform", lambda a, v: {"y": (a.lo + (a.hi - a.lo) * u01(phil(num_(a), a.seed, a.stream, a.offset))).reshape(a.shape)})


@ref("rand_normal")
def _(a, v):
    n = num_(a)
    w = phil((n + 3) // 4 * 4, a.seed, a.stream, a.offset)
    z = np.zeros(len(w))
    for j in range(0, len(w), 2):
        r = math.sqrt(-2 * math.log(float(u10(w[j:j + 1])[0])))
        t = 2 * PI * float(u01(w[j + 1:j + 2])[0])
        z[j], z[j + 1] = r * math.cos(t), r * math.sin(t)
    return {"y": (a.mean + a.std * z[:n]).reshape(a.shape)}


R("rand_bernoulli", lambda a, v: {"y": u01(phil(num_(a), a.seed, a.stream, a.offset)).reshape(a.shape) < (v.p if v.p is not None else np.float32(a.p))})
R("rand_int", lambda a, v: {"y": np.array([a.lo + ((int(w) * (a.hi - a.lo)) >> 32) for w in phil(num_(a), a.seed, a.stream, a.offset)]).reshape(a.shape)})
R("rand_exponential", lambda a, v: {"y": (-np.log(u10(phil(num_(a), a.seed, a.stream, a.offset))) / a.rate).reshape(a.shape)})
R("rand_gumbel", lambda a, v: {"y": (-np.log(-np.log(u10(phil(num_(a), a.seed, a.stream, a.offset))))).reshape(a.shape)})
R("rand_perm", lambda a, v: {"y": (lambda w: np.array(sorted(range(a.n), key=lambda i: (int(w[2 * i]), int(w[2 * i + 1]), i)), int))(phil(2 * a.n, a.seed, a.stream, a.offset))})


@ref("rand_categorical")
def _(a, v):
    if v.logits is not None:
        g = -np.log(-np.log(u10(phil(v.logits.size, a.seed, a.stream, a.offset)))).reshape(v.logits.shape)
        return {"y": np.argmax(v.logits + g, 1)[:, None]}
    u = u01(phil(len(v.p) * a.n, a.seed, a.stream, a.offset)).reshape(len(v.p), a.n)
    y = np.zeros(u.shape, int)
    for r in range(len(v.p)):
        for j in range(a.n):
            k, c = 0, v.p[r, 0]
            while c <= u[r, j] * v.p[r].sum():
                k += 1
                c += v.p[r, k]
            y[r, j] = k
    return {"y": y}

"""Second formulas of scans, sorting, distances."""
import math
import numpy as np
import scipy.optimize
from reference.base import R, ref
from reference.loss import cosv, nrm
from reference.reduce import quiet


def scan(x, axis, ex, rev):
    x = np.moveaxis(x, axis, 0)
    y, acc = np.zeros(x.shape), np.zeros(x.shape[1:])
    for i in (range(len(x))[::-1] if rev else range(len(x))):
        if ex:
            y[i] = acc
        acc = acc + x[i]
        if not ex:
            y[i] = acc
    return np.moveaxis(y, 0, axis)


R("cumsum", quiet(lambda a, v: {"y": scan(v.x, a.axis, a.exclusive, a.reverse)}))
R("cumsum_backward", lambda a, v: {"dx": scan(v.dy, a.axis, a.exclusive, not a.reverse)})


def order(row, desc):
    key = lambda i: (0 if (row[i] != row[i]) == desc else 1, 0.0 if row[i] != row[i] else (-row[i] if desc else row[i]), i)
    return sorted(range(len(row)), key=key)


def along(x, axis, f):
    m = np.moveaxis(x, axis, -1)
    r = np.array([f(row.tolist()) for row in m.reshape(-1, m.shape[-1])], int) if m.size else np.zeros((m.reshape(-1, max(1, m.shape[-1])).shape[0] if m.shape[-1] else math.prod(m.shape[:-1]), 0), int)
    return np.moveaxis(r.reshape(m.shape[:-1] + (-1,)) if r.size else np.zeros(m.shape[:-1] + (0,), int), -1, axis)


@ref("sort argsort")
def _(a, v):
    i = along(v.x, a.axis, lambda r: order(r, a.descending))
    return {"idx": i, "y": np.take_along_axis(v.x, i, a.axis)}


@ref("topk")
def _(a, v):
    i = along(v.x, a.axis, lambda r: order(r, a.largest)[:a.k]) if a.k else np.zeros([0 if k == a.axis % v.x.ndim else s for k, s in enumerate(v.x.shape)], int)
    return {"idx": i, "y": np.take_along_axis(v.x, i, a.axis)}


@ref("linear_assignment")
def _(a, v):
    "the best of all assignments, row by row over sets of columns; of large problems the vertex of the linear program"
    b, r, n = v.cost.shape
    found = np.full((b, r), -1)
    for i in range(b if n > 12 else 0):
        rows, cols = np.kron(np.eye(r), np.ones(n)), np.kron(np.ones(r), np.eye(n))
        best = scipy.optimize.linprog(v.cost[i].ravel(), cols, np.ones(n), rows, np.ones(r), (0, 1), method="highs").x.reshape(r, n)
        found[i] = best.argmax(1)
    for i in range(b if n <= 12 else 0):
        rows = r if v.counts is None else int(v.counts[i])
        best = {0: (0, 0.0, [])}
        for row in range(rows):
            after = {}
            for used, (pairs, cost, cols) in best.items():
                for c in [-1, *range(n)]:
                    if c >= 0 and (used >> c & 1 or not np.isfinite(v.cost[i, row, c])):
                        continue
                    to = used | (1 << c if c >= 0 else 0)
                    new = (pairs - (c >= 0), cost + (v.cost[i, row, c] if c >= 0 else 0), cols + [c])
                    if to not in after or new[:2] < after[to][:2]:
                        after[to] = new
            best = after
        if rows:
            found[i, :rows] = min(best.values())[2]
    return {"column": found}


def put_idx(a, v):
    d = np.zeros(a.input_size or v.dy.shape)
    np.put_along_axis(d, v.idx, v.dy, a.axis)
    return {"dx": d}


R("sort_backward topk_backward", put_idx)


@ref("searchsorted bucketize")
def _(a, v):
    def one(s, x):
        n = 0
        for e in s:
            n += (e < x or (a.right and e == x)) or x != x
        return n
    if v.sorted.ndim == 1:
        return {"y": np.array([one(v.sorted, x) for x in v["values"].reshape(-1)], int).reshape(v["values"].shape)}
    return {"y": np.array([[one(s, x) for x in r] for s, r in zip(v.sorted, v["values"])], int).reshape(v["values"].shape)}


def dist_(d, p):
    d = np.abs(d)
    return d.max(-1) if p == "inf" else (d ** p).sum(-1) ** (1 / p)


R("cdist", lambda a, v: {"y": dist_(v.a[..., :, None, :] - v.b[..., None, :, :], a.p)})


@ref("cdist_backward")
def _(a, v):
    d = v.a[:, None] - v.b[None]
    y = dist_(d, a.p)
    with np.errstate(all="ignore"):
        g = np.where(y[..., None] > 0, np.sign(d) * (np.abs(d) / y[..., None]) ** (a.p - 1), 0) * v.dy[..., None]
    return {"da": g.sum(1), "db": -g.sum(0)}



R("pdist", lambda a, v: {"y": np.array([dist_(v.x[i] - v.x[j], a.p) for i in range(len(v.x)) for j in range(i + 1, len(v.x))])})
R("pairwise_distance", lambda a, v: {"y": (lambda y: y[..., None] if a.keepdim else y)(dist_(v.a - v.b + a.eps, a.p))})
R("cosine_similarity", lambda a, v: {"y": cosv(v.a, v.b, a.eps, a.axis)})


@ref("cosine_similarity_backward")
def _(a, v):
    na, nb, g = np.expand_dims(nrm(v.a, a.axis), a.axis), np.expand_dims(nrm(v.b, a.axis), a.axis), np.expand_dims(v.dy, a.axis)
    y = (v.a * v.b).sum(a.axis, keepdims=True) / (na * nb)
    return {"da": (v.b / (na * nb) - y * v.a / na ** 2) * g, "db": (v.a / (na * nb) - y * v.b / nb ** 2) * g}

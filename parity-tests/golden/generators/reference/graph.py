"""Second formulas of graphs, meshes, segments."""
import math
import numpy as np
from reference.base import R, ref, softmax
from reference.conv import ACT


def csr_rows(rp):
    return np.repeat(np.arange(len(rp) - 1), np.diff(rp))


@ref("sparse_mm_forward")
def _(a, v):
    Y = np.zeros((len(v.rowptr) - 1,) + v.X.shape[1:])
    for i in range(len(Y)):
        for e in range(v.rowptr[i], v.rowptr[i + 1]):
            w = 1.0 if v["values"] is None else v["values"][e]
            Y[i] += np.asarray(w)[..., None] * v.X[v.col[e]]
    return {"Y": ACT[a.act](Y + (0 if v.bias is None else v.bias))}


@ref("sparse_mm_backward")
def _(a, v):
    dX, r = np.zeros(v.X.shape), csr_rows(v.rowptr)
    dv = np.zeros((len(r),) + v.X.shape[1:-1])
    for e, (i, j) in enumerate(zip(r, v.col)):
        w = 1.0 if v["values"] is None else v["values"][e]
        dX[j] += np.asarray(w)[..., None] * v.dY[i]
        dv[e] = (v.dY[i] * v.X[j]).sum(-1)
    return {"dX": dX, "dvalues": dv, "dbias": v.dY.reshape(-1, v.dY.shape[-1]).sum(0)}


def msg(a, v, e, x):
    s, d = v.src[e], v.dst[e]
    w = None if v.e is None else v.e[e]
    if w is not None and x is not None:
        w = np.asarray(w).reshape(np.shape(w) + (1,) * (x.ndim - 1 - np.ndim(w)))
    return {"copy_u": lambda: x[s], "copy_e": lambda: w, "u_mul_e": lambda: x[s] * w, "u_add_e": lambda: x[s] + w, "u_add_v": lambda: x[s] + x[d],
            "u_sub_v": lambda: x[s] - x[d], "u_mul_v": lambda: x[s] * x[d], "u_dot_v": lambda: (x[s] * x[d]).sum(-1)}[a.msg]()


@ref("message_passing_forward")
def _(a, v):
    E = len(v.src)
    m = [np.asarray(msg(a, v, e, v.x)) for e in range(E)]
    if a.msg == "u_dot_v":
        return {"y": np.array(m)}
    sh = m[0].shape if E else v.x.shape[1:]
    y, arg, deg = np.zeros((a.V,) + sh), np.full((a.V,) + sh, -1), np.bincount(v.dst, minlength=a.V)
    for n in range(a.V):
        es = [e for e in range(E) if v.dst[e] == n]
        if not es:
            continue
        st = np.array([m[e] for e in es])
        if a.red in ("sum", "mean"):
            y[n] = st.sum(0) / (len(es) if a.red == "mean" else 1)
        else:
            k = (np.argmax if a.red == "max" else np.argmin)(st, 0)
            y[n] = np.take_along_axis(st, k[None], 0)[0]
            arg[n] = np.array(es)[k]
    return {"y": y, "arg": arg, "degree": deg}


@ref("message_passing_backward")
def _(a, v):
    E = len(v.src)
    dx = None if v.x is None else np.zeros(v.x.shape)
    de = None if v.e is None else np.zeros(v.e.shape)
    for e in range(E):
        s, d = v.src[e], v.dst[e]
        if a.msg == "u_dot_v":
            g = v.dy[e]
            dx[s] += np.asarray(g)[..., None] * v.x[d]
            dx[d] += np.asarray(g)[..., None] * v.x[s]
            continue
        g = v.dy[d]
        if a.red == "mean":
            g = g / v.degree[d]
        elif a.red in ("max", "min"):
            g = np.where(v.arg[d] == e, g, 0)
        w = None if v.e is None else np.asarray(v.e[e])
        if w is not None and dx is not None:
            wb = w.reshape(w.shape + (1,) * (v.x.ndim - 1 - w.ndim))
            fold = lambda t: t.sum(tuple(range(w.ndim, t.ndim))) if t.ndim > w.ndim else t
        if a.msg in ("copy_u", "u_add_e", "u_add_v", "u_sub_v"):
            dx[s] += g
        if a.msg == "copy_e":
            de[e] += g
        if a.msg == "u_add_e":
            de[e] += fold(g)
        if a.msg == "u_mul_e":
            dx[s] += g * wb
            de[e] += fold(g * v.x[s])
        if a.msg == "u_add_v":
            dx[d] += g
        if a.msg == "u_sub_v":
            dx[d] -= g
        if a.msg == "u_mul_v":
            dx[s] += g * v.x[d]
            dx[d] += g * v.x[s]
    return {k: t for k, t in (("dx", dx), ("de", de)) if t is not None}


@ref("scatter_add")
def _(a, v):
    o, n, i = v.src.shape
    y = np.zeros((o, a.R, i)) if v.y is None else v.y.copy()
    for p in range(o):
        for q in range(n):
            for r in range(i):
                y[p, v.idx[q] if v.idx.ndim == 1 else v.idx[p, q, r], r] += v.src[p, q, r]
    return {"y": y}


R("scatter_add_backward", lambda a, v: {"dsrc": v.dy[:, v.idx] if v.idx.ndim == 1 else np.take_along_axis(v.dy, v.idx, 1)})


@ref("scatter_max")
def _(a, v):
    o, n, i = v.src.shape
    y, arg = np.full((o, a.R, i), float(a.empty_value)), np.full((o, a.R, i), -1)
    for r in range(a.R):
        pos = np.nonzero(v.idx == r)[0]
        if len(pos):
            k = np.argmax(v.src[:, pos], 1)
            y[:, r], arg[:, r] = np.take_along_axis(v.src[:, pos], k[:, None], 1)[:, 0], pos[k]
    return {"y": y, "arg": arg}


@ref("scatter_max_backward")
def _(a, v):
    d = np.zeros((v.dy.shape[0], a.n, v.dy.shape[2]))
    for p, r, q in np.ndindex(*v.dy.shape):
        if v.arg[p, r, q] >= 0:
            d[p, v.arg[p, r, q], q] += v.dy[p, r, q]
    return {"dsrc": d}


@ref("scatter_mean")
def _(a, v):
    n = np.bincount(v.idx, minlength=a.R)
    y = np.stack([v.src[:, v.idx == r].sum(1) / max(n[r], 1) for r in range(a.R)], 1)
    return {"y": y, "counts": n}


R("scatter_mean_backward", lambda a, v: {"dsrc": (v.dy / np.maximum(v.counts, 1)[:, None])[:, v.idx]})


@ref("edge_softmax")
def _(a, v):
    out = np.zeros(v.logits.shape)
    for n in range(a.V):
        k = v.dst == n
        if k.any():
            out[k] = softmax(v.logits[k], 0)
    return {"a": out}


@ref("edge_softmax_backward")
def _(a, v):
    s = np.zeros((a.V, v.a.shape[1]))
    np.add.at(s, v.dst, v.a * v.da)
    return {"dl": v.a * (v.da - s[v.dst])}


def heat(a, v):
    hs = []
    if a.mode == "direct":
        w, U = np.linalg.eigh(v.L)
        for t in v.t:
            hs.append(U @ (np.exp(-t * w)[:, None] * (U.T @ v.x)))
        return hs, None
    S = v.Phi.T @ (v.x if v.m is None else v.x * v.m[:, None])
    for t in v.t:
        hs.append(v.Phi @ (np.exp(-v.lam[:, None] * np.atleast_1d(t)[None]) * S))
    return hs, S


@ref("diffusion_conv_forward")
def _(a, v):
    hs, S = heat(a, v)
    return {"y": np.concatenate(hs, -1) @ v.W.T + (0 if v.b is None else v.b), "S_hat": S}


@ref("diffusion_conv_backward")
def _(a, v):
    hs, S = heat(a, v)
    H = np.concatenate(hs, -1)
    two = lambda t: t.reshape(-1, t.shape[-1])
    dH = np.split(v.dy @ v.W, len(v.t), -1)
    out = {"dW": two(v.dy).T @ two(H), "db": two(v.dy).sum(0), "dx": 0}
    dt = []
    for s, (t, g) in enumerate(zip(v.t, dH)):
        if a.mode == "direct":
            w, U = np.linalg.eigh(v.L)
            out["dx"] = out["dx"] + U @ (np.exp(-t * w)[:, None] * (U.T @ g))
            dt.append(-(g * (v.L @ hs[s])).sum())
            continue
        G = v.Phi.T @ g
        e = np.exp(-v.lam[:, None] * np.atleast_1d(t)[None])
        dx = v.Phi @ (e * G)
        out["dx"] = out["dx"] + (dx if v.m is None else dx * v.m[:, None])
        q = -v.lam[:, None] * e * S * G
        q = q.reshape(-1, q.shape[-1]).sum(0)
        dt.append(q if v.t.ndim == 2 else q.sum())
    out["dt"] = np.array(dt)
    return out


def nb_rows(x, col):
    return np.where((col >= 0)[:, None], np.take(x, np.maximum(col, 0), -2), 0)


def mesh_f(a, v):
    nb = [nb_rows(v.x, v.nbr[:, i]) for i in range(v.nbr.shape[1])]
    if a.mode == "concat":
        return [v.x] + nb
    p, q, r, s = nb
    return [v.x, np.abs(p - r), p + r, np.abs(q - s), q + s]


R("mesh_conv_forward", lambda a, v: {"y": np.concatenate(mesh_f(a, v), -1) @ v.W.T + (0 if v.b is None else v.b)})


@ref("mesh_conv_backward")
def _(a, v):
    f = np.concatenate(mesh_f(a, v), -1)
    two = lambda t: t.reshape(-1, t.shape[-1])
    df = np.split(v.dy @ v.W, 5 if a.mode == "symmetric" else 1 + v.nbr.shape[1], -1)
    dx = df[0].copy()
    nb = [nb_rows(v.x, v.nbr[:, i]) for i in range(v.nbr.shape[1])]
    if a.mode == "symmetric":
        s, t = np.sign(nb[0] - nb[2]), np.sign(nb[1] - nb[3])
        dn = [s * df[1] + df[2], t * df[3] + df[4], -s * df[1] + df[2], -t * df[3] + df[4]]
    else:
        dn = df[1:]
    for i, d in enumerate(dn):
        for e, j in enumerate(v.nbr[:, i]):
            if j >= 0:
                dx[..., j, :] += d[..., e, :]
    return {"dx": dx, "dW": two(v.dy).T @ two(f), "db": two(v.dy).sum(0)}


sp_f = lambda v: np.concatenate([nb_rows(v.x, v.spiral[:, i]) for i in range(v.spiral.shape[1])], -1)
R("spiral_conv_forward", lambda a, v: {"y": sp_f(v) @ v.W.T + (0 if v.b is None else v.b)})


@ref("spiral_conv_backward")
def _(a, v):
    g = np.split(v.dy @ v.W, v.spiral.shape[1], 1)
    dx = np.zeros(v.x.shape)
    for i, d in enumerate(g):
        for p, j in enumerate(v.spiral[:, i]):
            if j >= 0:
                dx[j] += d[p]
    return {"dx": dx, "dW": v.dy.T @ sp_f(v), "db": v.dy.sum(0)}


R("sddmm", lambda a, v: {"out": (v.x[v.src] * v.y[v.dst]).sum(1)})


@ref("sddmm_backward")
def _(a, v):
    dx, dy = np.zeros(v.x.shape), np.zeros(v.y.shape)
    np.add.at(dx, v.src, v.dout[:, None] * v.y[v.dst])
    np.add.at(dy, v.dst, v.dout[:, None] * v.x[v.src])
    return {"dx": dx, "dy": dy}


R("degree", lambda a, v: {"deg": np.array([(v.dst == i).sum() for i in range(a.V)])})


@ref("sym_normalize")
def _(a, v):
    r = csr_rows(v.rowptr)
    w = np.ones(len(r)) if v["values"] is None else v["values"]
    d = np.array([w[r == i].sum() for i in range(len(v.rowptr) - 1)])
    return {"values": np.array([x / math.sqrt(d[i] * d[j]) if d[i] > 0 and d[j] > 0 else 0.0 for x, i, j in zip(w, r, v.col)])}


def build(r, c, w, M):
    o = sorted(range(len(r)), key=lambda e: r[e])
    out = {"rowptr": np.array([sum(1 for x in r if x < i) for i in range(M + 1)]), "col": np.array([c[e] for e in o], int), "perm": np.array(o, int)}
    if w is not None:
        out["values"] = w[o] if len(o) else w
    return out


R("coo_to_csr", lambda a, v: build(v.row, v.col, v["values"], a.M))
R("csr_transpose", lambda a, v: build(v.col, csr_rows(v.rowptr), v["values"], a.K))


@ref("csr_sort")
def _(a, v):
    r = csr_rows(v.rowptr)
    o = sorted(range(len(r)), key=lambda e: (r[e], v.col[e]))
    out = {"col": np.array([v.col[e] for e in o], int), "perm": np.array(o, int)}
    if v["values"] is not None:
        out["values"] = v["values"][o] if len(o) else v["values"]
    return out


def segs(v):
    return [(int(p), int(q)) for p, q in zip(v.rowptr[:-1], v.rowptr[1:])]


SEGF = {"sum": lambda s, e: s.sum(0), "mean": lambda s, e: s.mean(0), "max": lambda s, e: s.max(0), "min": lambda s, e: s.min(0), "var": lambda s, e: s.var(0), "std": lambda s, e: np.sqrt(s.var(0) + e)}
for _n, _f in SEGF.items():
    R("segment_" + _n, lambda a, v, f=_f: {"y": np.array([f(v.x[p:q], a.eps or 0) if q > p else np.zeros(v.x.shape[1]) for p, q in segs(v)]).reshape(-1, v.x.shape[1])})


def segb(op):
    def f(a, v):
        d = np.zeros(v.x.shape)
        for k, (p, q) in enumerate(segs(v)):
            s, g, n = v.x[p:q], v.dy[k], q - p
            if n == 0:
                continue
            if op == "sum":
                d[p:q] = g
            elif op == "mean":
                d[p:q] = g / n
            elif op in ("max", "min"):
                i = (np.argmax if op == "max" else np.argmin)(s, 0)
                d[p + i, np.arange(s.shape[1])] = g
            elif op == "var":
                d[p:q] = 2 * (s - s.mean(0)) / n * g
            else:
                d[p:q] = (s - s.mean(0)) / (n * np.sqrt(s.var(0) + (a.eps or 0))) * g
        return {"dx": d}
    return f


for _n in SEGF:
    R(f"segment_{_n}_backward", segb(_n))

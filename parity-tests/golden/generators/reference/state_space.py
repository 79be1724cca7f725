"""Second formulas of state-space scans: explicit loops over the states of each batch and head."""
import math
import numpy as np
from reference.base import R, REFS, numeric, ref, sfp, sig
from reference.activation import dswish


def gla(v, back=False):
    B, T, H, D = v.q.shape
    y, st = np.zeros(v.v.shape), np.zeros((B, H, v.v.shape[-1], D))
    d = {n: np.zeros(v[n].shape) for n in "qkvg"}
    for b in range(B):
        for h in range(H):
            S = [np.zeros(st[b, h].shape)]
            for t in range(T):
                S.append(S[-1] * v.g[b, t, h] + np.outer(v.v[b, t, h], v.k[b, t, h]))
                y[b, t, h] = S[-1] @ v.q[b, t, h]
            st[b, h] = S[-1]
            if back:
                G = np.zeros_like(S[0])
                for t in range(T - 1, -1, -1):
                    G = G + np.outer(v.dy[b, t, h], v.q[b, t, h])
                    d["q"][b, t, h] = S[t + 1].T @ v.dy[b, t, h]
                    d["v"][b, t, h] = G @ v.k[b, t, h]
                    d["k"][b, t, h] = G.T @ v.v[b, t, h]
                    m = G * S[t]
                    d["g"][b, t, h] = m.sum() if v.g.ndim == 3 else m.sum(0)
                    G = G * v.g[b, t, h]
    return {"dq": d["q"], "dk": d["k"], "dv": d["v"], "dg": d["g"]} if back else {"y": y, "state": st}


R("gla_scan", lambda a, v: gla(v))
R("gla_scan_backward", lambda a, v: gla(v, True))


@ref("gated_delta_scan")
def _(a, v):
    B, T, H, D = v.q.shape
    y, st = np.zeros(v.v.shape), np.zeros((B, H, v.v.shape[-1], D))
    for b in range(B):
        for h in range(H):
            S = st[b, h]
            for t in range(T):
                k, be = v.k[b, t, h], v.b[b, t, h]
                S = v.a[b, t, h] * S @ (np.eye(D) - be * np.outer(k, k)) + be * np.outer(v.v[b, t, h], k)
                y[b, t, h] = S @ v.q[b, t, h]
            st[b, h] = S
    return {"y": y, "state": st}


R("gated_delta_scan_backward", numeric("gated_delta_scan", ["q", "k", "v", "a", "b"]))


def mamba(a, v, back=False):
    dt = sfp(v.dt) if a.softplus else v.dt
    B, T, E = v.x.shape
    N = v.A.shape[1]
    y, st = np.zeros((B, T, E)), np.zeros((B, E, N))
    d = {n: np.zeros(v[n].shape) for n in v if n in "x dt A B C D z".split() and v[n] is not None}
    gate = 1.0 if v.z is None else v.z * sig(v.z)
    for b in range(B):
        h = [np.zeros((E, N))]
        for t in range(T):
            h.append(np.exp(dt[b, t][:, None] * v.A) * h[-1] + (dt[b, t] * v.x[b, t])[:, None] * v.B[b, t])
            y[b, t] = h[-1] @ v.C[b, t] + (0 if v.D is None else v.D * v.x[b, t])
        st[b] = h[-1]
        if back:
            dh = np.zeros((E, N))
            for t in range(T - 1, -1, -1):
                g = v.dy[b, t]
                if v.z is not None:
                    d["z"][b, t] = g * y[b, t] * dswish(v.z[b, t])
                    g = g * v.z[b, t] * sig(v.z[b, t])
                dh = dh + g[:, None] * v.C[b, t]
                d["C"][b, t] = g @ h[t + 1]
                u = dh @ v.B[b, t]
                e = np.exp(dt[b, t][:, None] * v.A)
                w = dh * e * h[t]
                d["x"][b, t] = dt[b, t] * u + (0 if v.D is None else v.D * g)
                d["B"][b, t] = (dt[b, t] * v.x[b, t]) @ dh
                ddt = v.x[b, t] * u + (w * v.A).sum(1)
                d["dt"][b, t] = ddt * (sig(v.dt[b, t]) if a.softplus else 1)
                d["A"] += w * dt[b, t][:, None]
                if v.D is not None:
                    d["D"] += g * v.x[b, t]
                dh = dh * e
    return {"d" + n: t for n, t in d.items()} if back else {"y": y * gate, "state": st}


R("mamba_selective_scan", lambda a, v: mamba(a, v))
R("mamba_selective_scan_backward", lambda a, v: mamba(a, v, True))


@ref("mamba2_ssd_scan")
def _(a, v):
    "chunk-free matrix form: y_t = sum_{s<=t} exp(sum of A*dt over (s,t]) * dt_s * (C_t.B_s) x_s"
    B, T, H, P = v.x.shape
    y, st = np.zeros(v.x.shape), np.zeros((B, H, P, v.B.shape[-1]))
    r = H // v.B.shape[2]
    for b in range(B):
        for h in range(H):
            c = np.cumsum(v.A[h] * v.dt[b, :, h])
            for t in range(T):
                for s in range(t + 1):
                    y[b, t, h] += math.exp(c[t] - c[s]) * v.dt[b, s, h] * (v.C[b, t, h // r] @ v.B[b, s, h // r]) * v.x[b, s, h]
                if v.D is not None:
                    y[b, t, h] += v.D[h] * v.x[b, t, h]
            for s in range(T):
                st[b, h] += math.exp(c[-1] - c[s]) * v.dt[b, s, h] * np.outer(v.x[b, s, h], v.B[b, s, h // r])
    return {"y": y, "state": st}


R("mamba2_ssd_scan_backward", numeric("mamba2_ssd_scan", ["x", "dt", "A", "B", "C", "D"]))


@ref("associative_scan")
def _(a, v):
    f = (lambda t: t[:, ::-1]) if a.reverse else (lambda t: t)
    A, Bb = f(v.a), f(v.b)
    h, y = np.zeros(A[:, 0].shape), np.zeros(A.shape)
    for t in range(A.shape[1]):
        h = A[:, t] * h + Bb[:, t]
        y[:, t] = h
    return {"y": f(y)}


@ref("associative_scan_backward")
def _(a, v):
    f = (lambda t: t[:, ::-1]) if a.reverse else (lambda t: t)
    A, y, g = f(v.a), f(REFS["associative_scan"](a, v)["y"]), f(v.dy)
    da, db, c = np.zeros(A.shape), np.zeros(A.shape), 0
    for t in range(A.shape[1] - 1, -1, -1):
        c = c + g[:, t]
        db[:, t] = c
        da[:, t] = c * (y[:, t - 1] if t else 0)
        c = c * A[:, t]
    return {"da": f(da), "db": f(db)}

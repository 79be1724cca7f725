"""Second formulas of recurrent networks."""
import numpy as np
from reference.base import R, ref, sig
from reference.conv import addb, conv_core, conv_dw


def lstm(a, v):
    X = v.X.transpose(1, 0, 2) if a.batch_first else v.X
    T = X.shape[0]
    h, c = v.h_0, v.c_0
    Y = np.zeros((T, X.shape[1], h.shape[1]))
    G, C = [], [c]
    b = (0 if v.b_ih is None else v.b_ih + v.b_hh)
    for t in (range(T)[::-1] if a.reverse else range(T)):
        z = X[t] @ v.W_ih.T + h @ v.W_hh.T + b
        i, f, g, o = np.split(z, 4, 1)
        i, f, g, o = sig(i), sig(f), np.tanh(g), sig(o)
        c2 = f * c + i * g
        h2 = o * np.tanh(c2)
        if v.lengths is None:
            h, c, Y[t] = h2, c2, h2
        else:
            for r in range(len(h)):
                if t < v.lengths[r]:
                    h, c = h.copy(), c.copy()
                    h[r], c[r], Y[t, r] = h2[r], c2[r], h2[r]
        G.append(np.concatenate([i, f, g, o], 1))
        C.append(c)
    return {"Y": Y.transpose(1, 0, 2) if a.batch_first else Y, "h_T": h, "c_T": c, "gates": np.array(G).reshape(T, X.shape[1], 4 * h.shape[1]), "c": np.array(C)}


R("lstm_forward", lstm)


@ref("lstm_backward")
def _(a, v):
    T, B, _ = v.X.shape
    H = v.W_hh.shape[1]
    order = list(range(T))[::-1] if a.reverse else list(range(T))
    dh = np.zeros((B, H)) if v.dh_T is None else v.dh_T
    dc = np.zeros((B, H)) if v.dc_T is None else v.dc_T
    out = {"dX": np.zeros(v.X.shape), "dW_ih": 0, "dW_hh": 0, "db_ih": 0}
    for k in range(T - 1, -1, -1):
        t = order[k]
        live = np.ones((B, 1)) if v.lengths is None else (t < v.lengths)[:, None] * 1.0
        i, f, g, o = np.split(v.gates[k], 4, 1)
        dht = (dh + (0 if v.dY is None else v.dY[t])) * live
        tc = np.tanh(v.c[k + 1])
        dct = dc * live + dht * o * (1 - tc ** 2)
        dz = np.concatenate([dct * g * i * (1 - i), dct * v.c[k] * f * (1 - f), dct * i * (1 - g * g), dht * tc * o * (1 - o)], 1)
        out["dX"][t] = dz @ v.W_ih
        out["dW_ih"] = out["dW_ih"] + dz.T @ v.X[t]
        out["dW_hh"] = out["dW_hh"] + dz.T @ v.h[k]
        out["db_ih"] = out["db_ih"] + dz.sum(0)
        dh = dz @ v.W_hh + dh * (1 - live)
        dc = dct * f + dc * (1 - live)
    return {**out, "db_hh": out["db_ih"], "dh_0": dh, "dc_0": dc}


@ref("lstm_cell_forward")
def _(a, v):
    i, f, g, o = np.split(v.z, 4, 1)
    i, f, g, o = sig(i), sig(f), np.tanh(g), sig(o)
    c = f * v.c + i * g
    return {"h_next": o * np.tanh(c), "c_next": c, "gates": np.concatenate([i, f, g, o], 1)}


@ref("lstm_cell_backward")
def _(a, v):
    i, f, g, o = np.split(v.gates, 4, 1)
    tc = np.tanh(v.c_next)
    dc = v.dc_next + v.dh_next * o * (1 - tc ** 2)
    return {"dz": np.concatenate([dc * g * i * (1 - i), dc * v.c * f * (1 - f), dc * i * (1 - g * g), v.dh_next * tc * o * (1 - o)], 1), "dc": dc * f}


R("lstm_gates_precompute", lambda a, v: {"z": v.x @ v.W_ih.T + v.h @ v.W_hh.T + (0 if v.b_ih is None else v.b_ih + v.b_hh)})


@ref("gru_forward")
def _(a, v):
    X = v.X.transpose(1, 0, 2) if a.batch_first else v.X
    T, h = X.shape[0], v.h_0
    H = h.shape[1]
    Y, S = np.zeros((T, X.shape[1], H)), []
    bi, bh = (np.zeros(3 * H) if t is None else t for t in (v.b_ih, v.b_hh))
    for t in (range(T)[::-1] if a.reverse else range(T)):
        p, u = X[t] @ v.W_ih.T + bi, h @ v.W_hh.T + bh
        r, z = sig(p[:, :H] + u[:, :H]), sig(p[:, H:2 * H] + u[:, H:2 * H])
        n = np.tanh(p[:, 2 * H:] + ((r * h) @ v.W_hh[2 * H:].T + bh[2 * H:] if a.reset_before else r * u[:, 2 * H:]))
        h2 = (1 - z) * n + z * h
        live = np.ones((len(h), 1), bool) if v.lengths is None else (t < v.lengths)[:, None]
        Y[t] = np.where(live, h2, 0)
        h = np.where(live, h2, h)
        S.append((r, z, n, u[:, 2 * H:]))
    out = {"Y": Y.transpose(1, 0, 2) if a.batch_first else Y, "h_T": h}
    for k, nme in enumerate(("r", "z", "n", "u_n")):
        out[nme] = np.array([s[k] for s in S]).reshape(T, X.shape[1], H)
    return out


@ref("gru_backward")
def _(a, v):
    T, B, _ = v.X.shape
    H = v.W_hh.shape[1]
    order = list(range(T))[::-1] if a.reverse else list(range(T))
    dh = np.zeros((B, H)) if v.dh_T is None else v.dh_T
    out = {"dX": np.zeros(v.X.shape), "dW_ih": 0, "dW_hh": 0, "db_ih": 0, "db_hh": 0}
    for k in range(T - 1, -1, -1):
        t = order[k]
        dh = dh + (0 if v.dY is None else v.dY[t])
        r, z, n, un, h = v.r[k], v.z[k], v.n[k], v.u_n[k], v.h[k]
        dn = dh * (1 - z) * (1 - n * n)
        dz = dh * (h - n) * z * (1 - z)
        dr = dn * un * r * (1 - r)
        da, du = np.concatenate([dr, dz, dn], 1), np.concatenate([dr, dz, dn * r], 1)
        out["dX"][t] = da @ v.W_ih
        dh = dh * z + du @ v.W_hh
        for kk, d, x in (("ih", da, v.X[t]), ("hh", du, h)):
            out["dW_" + kk] = out["dW_" + kk] + d.T @ x
            out["db_" + kk] = out["db_" + kk] + d.sum(0)
    return {**out, "dh_0": dh}


@ref("gru_cell_forward")
def _(a, v):
    H = v.h.shape[1]
    r, z = sig(v.a[:, :H] + v.u[:, :H]), sig(v.a[:, H:2 * H] + v.u[:, H:2 * H])
    n = np.tanh(v.a[:, 2 * H:] + r * v.u[:, 2 * H:])
    return {"h_next": (1 - z) * n + z * v.h, "r": r, "z": z, "n": n}


@ref("gru_cell_backward")
def _(a, v):
    dn = v.dh_next * (1 - v.z) * (1 - v.n ** 2)
    dz = v.dh_next * (v.h - v.n) * v.z * (1 - v.z)
    dr = dn * v.u_n * v.r * (1 - v.r)
    return {"da": np.concatenate([dr, dz, dn], 1), "du": np.concatenate([dr, dz, dn * v.r], 1), "dh": v.dh_next * v.z}


@ref("convlstm_forward")
def _(a, v):
    p = (v.Wx.shape[-1] - 1) // 2
    h, c = v.h_0, v.c_0
    P = [0, 0, 0] if v.P is None else v.P
    Y, G, C = [], [], [c]
    for X in v.X:
        zi, zf, zg, zo = np.split(addb(conv_core(X, v.Wx, 1, p, 1, 1), v.b) + conv_core(h, v.Wh, 1, p, 1, 1), 4, 1)
        i, f, g = sig(zi + P[0] * c), sig(zf + P[1] * c), np.tanh(zg)
        c = f * c + i * g
        o = sig(zo + P[2] * c)
        h = o * np.tanh(c)
        Y.append(h), G.append(np.concatenate([i, f, g, o], 1)), C.append(c)
    return {"Y": np.array(Y), "h_T": h, "c_T": c, "gates": np.array(G), "c": np.array(C)}


@ref("convlstm_backward")
def _(a, v):
    T, k = len(v.X), v.Wx.shape[-1]
    p = (k - 1) // 2
    sp_ = v.X.shape[3:]
    P = [0, 0, 0] if v.P is None else v.P
    z0 = np.zeros(v.c[0].shape)
    dh, dc = (z0 if t is None else t for t in (v.dh_T, v.dc_T))
    out = {"dX": np.zeros(v.X.shape), "dWx": 0, "dWh": 0, "db": 0}
    dP = [0, 0, 0]
    for t in range(T - 1, -1, -1):
        dh = dh + (0 if v.dY is None else v.dY[t])
        i, f, g, o = np.split(v.gates[t], 4, 1)
        c0, c1 = v.c[t], v.c[t + 1]
        tc = np.tanh(c1)
        dzo = dh * tc * o * (1 - o)
        dc = dc + dh * o * (1 - tc ** 2) + dzo * P[2]
        dzi, dzf, dzg = dc * g * i * (1 - i), dc * c0 * f * (1 - f), dc * i * (1 - g * g)
        dz = np.concatenate([dzi, dzf, dzg, dzo], 1)
        dc = dc * f + dzi * P[0] + dzf * P[1]
        out["dX"][t] = conv_core(dz, v.Wx, 1, p, 1, 1, True, sp_)
        dh = conv_core(dz, v.Wh, 1, p, 1, 1, True, sp_)
        out["dWx"] = out["dWx"] + conv_dw(v.X[t], dz, (k, k), 1, p, 1, 1)
        out["dWh"] = out["dWh"] + conv_dw(v.h[t], dz, (k, k), 1, p, 1, 1)
        out["db"] = out["db"] + dz.sum((0, 2, 3))
        for j, q in enumerate((dzi * c0, dzf * c0, dzo * c1)):
            dP[j] = dP[j] + q.sum(0)
    if v.P is not None:
        q = np.array(dP)
        out["dP"] = q if q.shape == v.P.shape else q.sum((2, 3), keepdims=True)
    return {**out, "dh_0": dh, "dc_0": dc}

"""Second formulas of language models."""
import math
import numpy as np
from reference.base import NS, R, REFS, ref, sig, softmax
from reference.attention import phil, u01
from reference.loss import ce, plain
from reference.gemm import fp8


def rope(x, a, v, s):
    B, L, H, D = x.shape
    r = a.rotary_dim or D
    y = x.copy()
    for b in range(B):
        for l in range(L):
            p = l + a.offset if v.positions is None else (v.positions[l] if v.positions.ndim == 1 else v.positions[b, l])
            for i in range(r // 2):
                t = s * p * a.base ** (-2 * i / r)
                j, k = (2 * i, 2 * i + 1) if a.layout == "interleaved" else (i, i + r // 2)
                y[b, l, :, j] = x[b, l, :, j] * math.cos(t) - x[b, l, :, k] * math.sin(t)
                y[b, l, :, k] = x[b, l, :, j] * math.sin(t) + x[b, l, :, k] * math.cos(t)
    return y


R("rope", lambda a, v: {"y": rope(v.x, a, v, 1)})
R("rope_backward", lambda a, v: {"dx": rope(v.dy, a, v, -1)})


def flce(a, v):
    z = v.h @ v.W.T + (0 if v.b is None else v.b)
    if a.softcap:
        z = a.softcap * np.tanh(z / a.softcap)
    w = NS(a)
    w["reduction"] = "none"
    r = ce(w, NS(x=z, target=v.target))
    ok = v.target != a.ignore_index if v.target.ndim == 1 else np.ones(len(z), bool)
    l = np.where(ok, r["loss"] + a.z_loss * r["LSE"] ** 2, 0)
    return {"loss": l if a.reduction == "none" else l.sum() / (ok.sum() if a.reduction == "mean" else 1), "LSE": r["LSE"]}


plain("fused_linear_cross_entropy", flce, "h W b")
R("lora_linear", lambda a, v: {"y": v.base + a.s * (v.x @ v.A) @ v.B})
R("lora_linear_backward", lambda a, v: {"dx": a.s * v.dy @ v.B.T @ v.A.T, "dA": a.s * v.x.T @ (v.dy @ v.B.T), "dB": a.s * (v.x @ v.A).T @ v.dy})


@ref("logit_processors")
def _(a, v):
    y = v.logits.copy()
    for r in range(len(y)):
        if v.prev is not None:
            for k in {int(i) for i in v.prev[r] if i >= 0}:
                y[r, k] = y[r, k] / a.repetition_penalty if y[r, k] > 0 else y[r, k] * a.repetition_penalty
        y[r] /= a.temperature
        live = sorted(range(y.shape[1]), key=lambda i: -y[r, i])
        if a.top_k:
            live = live[:a.top_k]
        p = np.exp([y[r, i] - y[r, live[0]] for i in live])
        p /= p.sum()
        if a.top_p < 1:
            k = 1
            while p[:k].sum() < a.top_p and k < len(p):
                k += 1
            live, p = live[:k], p[:k]
        live = [i for i, q in zip(live, p) if q >= a.min_p * p[0]]
        y[r] = [y[r, i] if i in live else -np.inf for i in range(y.shape[1])]
    return {"y": y}


@ref("sample_tokens")
def _(a, v):
    if a.temperature == 0:
        return {"ids": np.argmax(v.logits, 1)}
    y = REFS["logit_processors"](a, v)["y"]
    u = u01(phil(len(y), a.seed, a.stream, a.offset))
    out = []
    for row, t in zip(y, u):
        p = softmax(row)
        out.append(int((np.cumsum(p) <= t).sum()))
    return {"ids": np.array(out)}


def quantize(top, enc):
    def f(a, v):
        x = v.x
        g = a.group or x.shape[-1]
        t = x.reshape(1, -1) if a.per == "tensor" else x.reshape(-1, g)
        s = np.abs(t).max(1) / top
        s = np.float64(np.float32(s))
        sc = (1,) if a.per == "tensor" else x.shape[:-1] if a.per == "row" else x.shape[:-1] + (x.shape[-1] // g,)
        return {"q": enc((t / s[:, None]).reshape(x.shape)), "scale": s.reshape(sc)}
    return f


def enc4(t):
    q = np.rint(t).astype(int) + 8
    return q[..., 0::2] + 16 * q[..., 1::2]


def enc8(t):
    codes = np.arange(256)
    vals = fp8(codes, "e4m3")
    ok = (codes & 127) != 127
    out = np.zeros(t.shape, int)
    for p in np.ndindex(*t.shape):
        d = np.where(ok, np.abs(vals - t[p]), np.inf)
        best = np.nonzero(d == d.min())[0]
        best = [b for b in best if (vals[b] != 0 or (b == 128) == (t[p] < 0 or (t[p] == 0 and np.signbit(t[p]))))]
        out[p] = sorted(best, key=lambda b: b & 1)[0]
    return out


R("quantize_int8", quantize(127, lambda t: np.rint(t).astype(int)))
R("quantize_int4", quantize(7, enc4))
R("quantize_fp8", quantize(448, enc8))


@ref("dequantize")
def _(a, v):
    if a.format == "int4":
        q = np.zeros(v.q.shape[:-1] + (v.q.shape[-1] * 2,))
        q[..., 0::2], q[..., 1::2] = v.q.astype(int) % 16 - 8, v.q.astype(int) // 16 - 8
    else:
        q = v.q.astype(float) if a.format == "int8" else fp8(v.q, "e4m3")
    return {"y": q * np.repeat(v.scale, a.group or q.shape[-1], -1)}


@ref("moe_router")
def _(a, v):
    s = softmax(v.logits) if a.score == "softmax" else sig(v.logits)
    T, E = s.shape
    ids = np.array([sorted(range(E), key=lambda e: (-r[e], e))[:a.k] for r in s])
    w = np.take_along_axis(s, ids, 1)
    if a.renormalize:
        w = w / w.sum(1, keepdims=True)
    fl = ids.reshape(-1)
    n = np.array([(fl == e).sum() for e in range(E)])
    return {"weights": w, "ids": ids, "counts": n, "offsets": np.concatenate([[0], np.cumsum(n)]), "perm": np.array(sorted(range(len(fl)), key=lambda i: (fl[i], i)))}


@ref("moe_router_backward")
def _(a, v):
    s = softmax(v.logits) if a.score == "softmax" else sig(v.logits)
    w = np.take_along_axis(s, v.ids, 1)
    g = v.dweights
    if a.renormalize:
        t = w.sum(1, keepdims=True)
        g = g / t - (g * w).sum(1, keepdims=True) / t ** 2
    ds = np.zeros(s.shape)
    for r in range(len(s)):
        ds[r, v.ids[r]] = g[r]
    return {"dlogits": s * (ds - (ds * s).sum(1, keepdims=True)) if a.score == "softmax" else ds * s * (1 - s)}


R("moe_permute", lambda a, v: {"y": v.x[v.perm // a.k]})


@ref("moe_unpermute")
def _(a, v):
    y = np.zeros((len(v.weights), v.x.shape[1]))
    for i, p in enumerate(v.perm):
        y[p // a.k] += v.weights[p // a.k, p % a.k] * v.x[i]
    return {"y": y}


@ref("moe_permute_backward")
def _(a, v):
    d = np.zeros((len(v.perm) // a.k, v.dy.shape[1]))
    np.add.at(d, v.perm // a.k, v.dy)
    return {"dx": d}


@ref("moe_unpermute_backward")
def _(a, v):
    dx, dw = np.zeros(v.x.shape), np.zeros(v.weights.shape)
    for i, p in enumerate(v.perm):
        dx[i] = v.weights[p // a.k, p % a.k] * v.dy[p // a.k]
        dw[p // a.k, p % a.k] = v.x[i] @ v.dy[p // a.k]
    return {"dx": dx, "dweights": dw}

"""Second formulas of attention."""
import math
import numpy as np
from reference.base import NS, R, lse, ref


def phil(n, seed, stream=0, offset=0):
    "scalar Philox, word by word"
    out = []
    M = 0xFFFFFFFF
    for i in range((n + 3) // 4):
        b = (offset + i) % 2 ** 64
        c = [b & M, b >> 32, stream & M, stream >> 32]
        k = [seed & M, seed >> 32]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ k[0], q & M, (p >> 32) ^ c[3] ^ k[1], p & M]
            k = [(k[0] + 0x9E3779B9) & M, (k[1] + 0xBB67AE85) & M]
        out += c
    return np.array(out[:n], dtype=np.uint64)


u01 = lambda w: (w >> np.uint64(8)).astype(np.float64) * 2.0 ** -24
u10 = lambda w: ((w >> np.uint64(8)).astype(np.float64) + 1) * 2.0 ** -24


def keepmask(n, a, p):
    return u01(phil(n, a.seed, a.stream, a.offset)) < np.float32(1) - np.float32(p)


class Att:
    "row by row, as the text of section 6 describes it"
    def __init__(self, a, v):
        B, Hq, Lq, D = v.Q.shape
        Hkv, Lk = v.K.shape[1:3]
        sc = 1 / math.sqrt(D) if a.scale is None else a.scale
        c = a.softcap or 0
        self.M = np.ones((B, Hq, Lq, Lk))
        if a.dropout:
            self.M = keepmask(B * Hq * Lq * Lk, a, a.dropout).reshape(B, Hq, Lq, Lk) / (1 - a.dropout)
        self.S, self.P, self.capfac = np.full((B, Hq, Lq, Lk), -np.inf), np.zeros((B, Hq, Lq, Lk)), np.ones((B, Hq, Lq, Lk))
        self.O, self.LSE = np.zeros((B, Hq, Lq, v.V.shape[3])), np.full((B, Hq, Lq), -np.inf)
        pick = lambda t, b, h, i, j: t[min(b, t.shape[0] - 1), min(h, t.shape[1] - 1), min(i, t.shape[2] - 1), min(j, t.shape[3] - 1)]
        for b in range(B):
            for h in range(Hq):
                kv = h // (Hq // Hkv)
                for i in range(Lq):
                    for j in range(Lk):
                        pos = i + (Lk - Lq if a.causal == "bottom_right" else 0)
                        if a.causal and j > pos:
                            continue
                        if a.window and ((a.window[0] >= 0 and j < pos - a.window[0]) or (a.window[1] >= 0 and j > pos + a.window[1])):
                            continue
                        if v.mask is not None and not pick(v.mask, b, h, i, j):
                            continue
                        if v.key_lengths is not None and j >= v.key_lengths[min(b, len(v.key_lengths) - 1)]:
                            continue
                        if v.key_padding is not None and v.key_padding[b, j]:
                            continue
                        s = sc * float(v.Q[b, h, i] @ v.K[b, kv, j])
                        if c > 0:
                            s = c * math.tanh(s / c)
                            self.capfac[b, h, i, j] = 1 - (s / c) ** 2
                        if v.bias is not None:
                            s += pick(v.bias, b, h, i, j)
                        self.S[b, h, i, j] = s
                    row = self.S[b, h, i]
                    if np.isfinite(row).any():
                        m = row.max()
                        e = np.exp(row - m)
                        self.LSE[b, h, i] = m + math.log(e.sum())
                        self.P[b, h, i] = e / e.sum()
                        self.O[b, h, i] = (self.P[b, h, i] * self.M[b, h, i]) @ v.V[b, kv]
        self.sc, self.r = sc, Hq // Hkv

    def backward(self, v, lse, O):
        P = np.where(np.isfinite(self.S), np.exp(self.S - np.where(np.isfinite(lse), lse, 0)[..., None]), 0)
        delta = (v.dO * O).sum(-1)
        dQ, dK, dV, dS = np.zeros(v.Q.shape), np.zeros(v.K.shape), np.zeros(v.V.shape), np.zeros(P.shape)
        B, Hq = P.shape[:2]
        for b in range(B):
            for h in range(Hq):
                kv = h // self.r
                dV[b, kv] += (P[b, h] * self.M[b, h]).T @ v.dO[b, h]
                dP = self.M[b, h] * (v.dO[b, h] @ v.V[b, kv].T)
                dS[b, h] = P[b, h] * (dP - delta[b, h][:, None])
                dz = dS[b, h] * self.capfac[b, h]
                dQ[b, h] = self.sc * dz @ v.K[b, kv]
                dK[b, kv] += self.sc * dz.T @ v.Q[b, h]
        out = {"dQ": dQ, "dK": dK, "dV": dV}
        if v.bias is not None:
            ax = tuple(i for i, (p, q) in enumerate(zip(dS.shape, v.bias.shape)) if p != q)
            out["dBias"] = dS.sum(ax, keepdims=True)
        return out


@ref("scaled_dot_product_attention flash_attention_v2 grouped_query_attention")
def _(a, v):
    t = Att(a, v)
    return {"O": t.O, "P": t.P, "LSE": t.LSE}


R("flash_attention_backward grouped_query_attention_backward cross_attention_backward", lambda a, v: Att(a, v).backward(v, v.LSE, v.O))


@ref("flash_decode")
def _(a, v):
    B, Hq, Lq, D = v.Q.shape
    Lk = v.K.shape[2]
    O, L = np.zeros((B, Hq, Lq, v.V.shape[3])), np.zeros((B, Hq, Lq))
    for b in range(B):
        n = Lk if v.key_lengths is None else int(v.key_lengths[b])
        t = Att(NS(scale=a.scale, causal="bottom_right"), NS(Q=v.Q[b:b + 1], K=v.K[b:b + 1, :, :n], V=v.V[b:b + 1, :, :n]))
        O[b], L[b] = t.O[0], t.LSE[0]
    return {"O": O, "LSE": L}


@ref("paged_attention")
def _(a, v):
    B, bs = len(v.seq_lens), v.K_cache.shape[1]
    cu = v.cu_seqlens_q if v.cu_seqlens_q is not None else np.arange(B + 1)
    O = np.zeros(v.Q.shape[:2] + (v.V_cache.shape[3],))
    for b in range(B):
        n = int(v.seq_lens[b])
        rows = [(int(v.block_table[b, t // bs]), t % bs) for t in range(n)]
        k = np.stack([v.K_cache[i, j] for i, j in rows], 1)[None]
        w = np.stack([v.V_cache[i, j] for i, j in rows], 1)[None]
        q = v.Q[cu[b]:cu[b + 1]].transpose(1, 0, 2)[None]
        O[cu[b]:cu[b + 1]] = Att(NS(scale=a.scale, causal="bottom_right"), NS(Q=q, K=k, V=w)).O[0].transpose(1, 0, 2)
    return {"O": O}


def varlen(a, v, back):
    out = NS(O=np.zeros(v.Q.shape[:2] + (v.V.shape[2],)), LSE=np.zeros(v.Q.shape[:2]), dQ=np.zeros(v.Q.shape), dK=np.zeros(v.K.shape), dV=np.zeros(v.V.shape))
    tr = lambda t: t.transpose(1, 0, 2)[None]
    for b in range(len(v.cu_seqlens_q) - 1):
        q, k = slice(*v.cu_seqlens_q[b:b + 2]), slice(*v.cu_seqlens_k[b:b + 2])
        w = NS(Q=tr(v.Q[q]), K=tr(v.K[k]), V=tr(v.V[k]))
        t = Att(a, w)
        out.O[q], out.LSE[q] = t.O[0].transpose(1, 0, 2), t.LSE[0].T
        if back:
            w.dO = tr(v.dO[q])
            g = t.backward(w, v.LSE[q].T[None], tr(v.O[q]))
            out.dQ[q], out.dK[k], out.dV[k] = (g[n][0].transpose(1, 0, 2) for n in ("dQ", "dK", "dV"))
    return out


R("attention_varlen", lambda a, v: varlen(a, v, False))
R("attention_varlen_backward", lambda a, v: varlen(a, v, True))


@ref("kv_cache_append")
def _(a, v):
    k, w = v.K_cache.copy(), v.V_cache.copy()
    bs = k.shape[1]
    for i, s in enumerate(v.slots):
        if s >= 0:
            k[s // bs, s % bs], w[s // bs, s % bs] = v.K[i], v.V[i]
    return {"K_cache": k, "V_cache": w}


def mha_parts(a, v):
    E = v.Wo.shape[0]
    Ws = np.split(v.W_in, 3) if v.W_in is not None else [v.Wq, v.Wk, v.Wv]
    bs = np.split(v.b_in, 3) if v.b_in is not None else [v.bq, v.bk, v.bv]
    Xs = [v.Xq, v.Xq if v.Xk is None else v.Xk, v.Xq if v.Xv is None else v.Xv]
    return Ws, bs, Xs, E


def heads(t, H):
    return t.reshape(t.shape[0], t.shape[1], H, -1).transpose(0, 2, 1, 3)


def merge(t):
    return t.transpose(0, 2, 1, 3).reshape(t.shape[0], t.shape[2], -1)


@ref("multi_head_attention")
def _(a, v):
    Ws, bs, Xs, E = mha_parts(a, v)
    q, k, w = (heads(X @ W.T + (0 if b is None else b), a.H) for X, W, b in zip(Xs, Ws, bs))
    t = Att(NS(causal=a.causal), NS(Q=q, K=k, V=w))
    return {"Y": merge(t.O) @ v.Wo.T + (0 if v.bo is None else v.bo), "q": q, "k": k, "v": w, "O": t.O, "LSE": t.LSE}


@ref("multi_head_attention_backward")
def _(a, v):
    Ws, _, Xs, E = mha_parts(a, v)
    two = lambda t: t.reshape(-1, t.shape[-1])
    om = merge(v.O)
    w = NS(Q=v.q, K=v.k, V=v.v, dO=heads(v.dY @ v.Wo, a.H))
    g = Att(NS(causal=a.causal), w).backward(w, v.LSE, v.O)
    out = {"dWo": two(v.dY).T @ two(om), "dbo": two(v.dY).sum(0)}
    d = [merge(g[n]) for n in ("dQ", "dK", "dV")]
    dX = [t @ W for t, W in zip(d, Ws)]
    dW = [two(t).T @ two(X) for t, X in zip(d, Xs)]
    db = [two(t).sum(0) for t in d]
    if v.W_in is not None:
        out["dW_in"], out["db_in"] = np.concatenate(dW), np.concatenate(db)
    else:
        out.update(zip(("dWq", "dWk", "dWv"), dW))
        out.update(zip(("dbq", "dbk", "dbv"), db))
    if v.Xk is None:
        out["dXq"] = sum(dX)
    else:
        out.update(zip(("dXq", "dXk", "dXv"), dX))
    return out

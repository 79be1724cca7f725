"""Attention (section 6 and the attention rows of B7). The composition below is compared with F.scaled_dot_product_attention whenever that
function can express the case."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from core import EXACT, Tol, ag, kernel, keep_mask

S, B7 = "attention", "language_model"
BACK = Tol(2e-4, 1e-5)
OPTS = "scale causal window softcap dropout seed stream offset"
DEF = {"scale": None, "causal": None, "window": None, "softcap": 0.0, "dropout": 0.0, "seed": 0, "stream": 0, "offset": 0}


def allowed(B, H, Lq, Lk, causal=None, window=None, mask=None, key_lengths=None):
    "bool [B, H, Lq, Lk]: may query i see key j"
    i, j = torch.arange(Lq)[:, None], torch.arange(Lk)[None]
    pos = i + (Lk - Lq if causal == "bottom_right" else 0)
    ok = torch.ones(Lq, Lk, dtype=torch.bool)
    if causal:
        ok &= j <= pos
    if window:
        left, right = window
        if left >= 0:
            ok &= j >= pos - left
        if right >= 0:
            ok &= j <= pos + right
    ok = ok.expand(B, H, Lq, Lk).clone()
    if mask is not None:
        ok &= mask
    if key_lengths is not None:
        ok &= (j < key_lengths[:, None, None])[:, None]
    return ok


def attend(Q, K, V, ok, scale, softcap=0.0, bias=None, M=None):
    "O, P (before dropout), LSE; M is the dropout factor mask/keep"
    B, Hq, Lq, D = Q.shape
    r = Hq // K.shape[1]
    Kr, Vr = K.repeat_interleave(r, 1), V.repeat_interleave(r, 1)
    s = scale * (Q @ Kr.transpose(-1, -2))
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    s = s.masked_fill(~ok, -math.inf)
    dead = ~ok.any(-1, keepdim=True)
    P = torch.softmax(s.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    lse = torch.logsumexp(s, -1) if s.shape[-1] else torch.full(s.shape[:-1], -math.inf, dtype=s.dtype)
    O = (P if M is None else P * M) @ Vr
    return O, P, lse


class Problem:
    "inputs and options of one attention call"
    def __init__(self, c, q, kv, dv=None, mask=None, bias=None, lengths=None, special=None, spread=1.0, grad=False, dead=None, itype="i32",
                 scale=None, causal=None, window=None, softcap=0.0, dropout=0.0, seed=0, stream=0, offset=0, saved=False, key_padding=False):
        B, Hq, Lq, D = q
        Hkv, Lk = kv
        dv = dv or D
        draw = c.var if grad else c.x
        if grad:
            self.dO = c.x("dO", B, Hq, Lq, dv)
        self.Q = draw("Q", B, Hq, Lq, D, scale=spread)
        self.K = draw("K", B, Hkv, Lk, D, scale=spread)
        self.V = draw("V", B, Hkv, Lk, dv)
        if Hq % Hkv:
            raise ValueError("query heads not a multiple of kv heads")
        braw = c.rnd(*bias) if bias else None
        keep = None
        if mask:
            keep = c.uni(*mask) < 0.7
            if dead is not None:
                keep[..., dead, :] = False                # query rows that may see nothing
        kl = torch.tensor(lengths) if lengths is not None else None
        pad = None
        if key_padding:                                   # u8 [B, Lk], true = pad
            pad = c.uni(B, Lk) < 0.3
        self.scale = 1 / math.sqrt(D) if scale is None else scale
        M = None
        if dropout:
            M = keep_mask(B * Hq * Lq * Lk, dropout, seed, stream, offset).reshape(B, Hq, Lq, Lk).to(c.compute) / (1 - dropout)
        self.M, self.softcap = M, softcap
        self.ok = allowed(B, Hq, Lq, Lk, causal, window, keep, kl)
        if pad is not None:
            self.ok = self.ok & ~pad[:, None, None]
        if saved:                                         # O and LSE come before bias and masks in the input order
            f = lambda t: None if t is None else t.detach().double()
            b64 = None if braw is None else c.round(braw).double()
            O, _, lse = attend(f(self.Q), f(self.K), f(self.V), self.ok, self.scale, softcap, b64, f(M))
            c.put("O", O)
            c.put("LSE", lse, "f32")
        self.bias = None
        if braw is not None:
            self.bias = c.putv("bias", braw) if grad else c.put("bias", braw)
        if keep is not None:
            c.mask("mask", keep)
        if kl is not None:
            c.idx("key_lengths", kl.numpy(), "i32")
        if pad is not None:
            c.mask("key_padding", pad)
        self.plain = not softcap and not dropout
        self.c, self.special = c, special

    def run(self):
        O, P, lse = attend(self.Q, self.K, self.V, self.ok, self.scale, self.softcap, self.bias, self.M)
        if self.plain and self.c.compute == torch.float64 and O.numel():
            add = torch.zeros(self.ok.shape, dtype=O.dtype).masked_fill(~self.ok, -math.inf)
            if self.bias is not None:
                add = add + self.bias
            with sdpa_kernel(SDPBackend.MATH):
                R = F.scaled_dot_product_attention(self.Q, self.K, self.V, attn_mask=add, scale=self.scale,
                                                   enable_gqa=self.Q.shape[1] != self.K.shape[1])
            live = self.ok.any(-1)
            assert torch.allclose(O[live], R[live], rtol=1e-10, atol=1e-12), self.c.id
        return O, P, lse


def fwd_tol(V):
    return Tol(1e-6, 3e-6 * max(1e-3, float(V.abs().max()) if V.numel() else 1.0))


LSE_TOL = Tol(2e-6, 3e-6)


@kernel("S6.1", S, "scaled_dot_product_attention", "Q K V bias? mask:u8? key_lengths:i32?", "O P? LSE:f32?", DEF)
def scaled_dot_product_attention(c, q, kv, want=("P",), **kw):
    "P is the softmax before dropout"
    p = Problem(c, q, kv, **kw)
    O, P, lse = p.run()
    c.out("O", O, fwd_tol(p.V))
    if "P" in want:
        c.out("P", P, Tol(5e-6, 3e-6))
    if "LSE" in want:
        c.out("LSE", lse, LSE_TOL)


@kernel("S6.2", S, "flash_attention_v2", "Q K V bias? mask:u8? key_lengths:i32?", "O LSE:f32", DEF)
def flash_attention_v2(c, q, kv, **kw):
    p = Problem(c, q, kv, **kw)
    O, P, lse = p.run()
    c.out("O", O, fwd_tol(p.V))
    c.out("LSE", lse, LSE_TOL)


kernel("S6.3", S, "grouped_query_attention", "Q K V bias? mask:u8? key_lengths:i32?", "O LSE:f32", DEF)(flash_attention_v2)


def _backward(c, q, kv, **kw):
    p = Problem(c, q, kv, grad=True, saved=True, **kw)
    O, _, _ = p.run()
    xs = [p.Q, p.K, p.V] + ([p.bias] if p.bias is not None else [])
    for n, g in zip(("dQ", "dK", "dV", "dBias"), ag(O, xs, p.dO)):
        c.out(n, torch.nan_to_num(g) if n == "dBias" else g, BACK)


IN_B = "dO Q K V O LSE:f32 bias? mask:u8? key_lengths:i32?"
kernel("S6.4", S, "flash_attention_backward", IN_B, "dQ dK dV dBias?", DEF)(_backward)
kernel("S6.5", S, "grouped_query_attention_backward", IN_B, "dQ dK dV dBias?", DEF)(_backward)


@kernel("S6.6", S, "cross_attention_backward", "dO Q K V O LSE:f32 bias? key_padding:u8?", "dQ dK dV dBias?",
        {k: DEF[k] for k in ("scale", "softcap", "dropout", "seed", "stream", "offset")})
def cross_attention_backward(c, q, kv, **kw):
    "key_padding [B, Lk]: true = pad"
    _backward(c, q, kv, **kw)


# ------------------------------------------------------------------------------------------------ multi-head attention module
def _split(t, H):
    return t.reshape(t.shape[0], t.shape[1], H, -1).transpose(1, 2)


def _merge(t):
    return t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1)


def mha_weights(c, E, ein, packed, bias, var):
    draw = c.var if var else c.x
    if packed:
        W = draw("W_in", 3 * E, E, scale=1 / math.sqrt(E))
        return [W], list(W.chunk(3)), None
    Ws = [draw(n, E, i, scale=1 / math.sqrt(i)) for n, i in zip(("Wq", "Wk", "Wv"), ein)]
    return Ws, Ws, None


def mha_forward(Xs, Ws, bs, Wo, bo, H, ok):
    q, k, v = (_split(F.linear(X, W, b), H) for X, W, b in zip(Xs, Ws, bs))
    O, _, lse = attend(q, k, v, ok, 1 / math.sqrt(q.shape[-1]))
    return F.linear(_merge(O), Wo, bo), q, k, v, O, lse


@kernel("S6.7", S, "multi_head_attention", "Xq Xk? Xv? Wq? Wk? Wv? W_in? bq? bk? bv? b_in? Wo bo?", "Y q? k? v? O? LSE:f32?", "H causal")
def multi_head_attention(c, B, Lq, E, H, Lk=None, ein=None, packed=False, bias=True, causal=None):
    """batch first: Xq [B, Lq, E_in]; Xk, Xv absent = self-attention; weights Wq, Wk, Wv [E, E_in] or packed W_in [3E, E] (q, k, v
    stacked); q, k, v, O are [B, H, L, E/H]"""
    self_attn = Lk is None
    Lk, ein = Lk or Lq, ein or (E, E, E)
    Xq = c.x("Xq", B, Lq, ein[0])
    Xs = [Xq] * 3 if self_attn else [Xq, c.x("Xk", B, Lk, ein[1]), c.x("Xv", B, Lk, ein[2])]
    _, Ws, _ = mha_weights(c, E, ein, packed, bias, False)
    bs = [None] * 3
    if bias:
        bs = list(c.x("b_in", 3 * E).chunk(3)) if packed else [c.x(n, E) for n in ("bq", "bk", "bv")]
    Wo, bo = c.x("Wo", E, E, scale=1 / math.sqrt(E)), c.x("bo", E) if bias else None
    assert E % H == 0
    Y, q, k, v, O, lse = mha_forward(Xs, Ws, bs, Wo, bo, H, allowed(B, H, Lq, Lk, causal))
    if packed and self_attn and c.compute == torch.float64:
        am = None if not causal else torch.full((Lq, Lk), -math.inf).triu(1)
        R, _ = F.multi_head_attention_forward(Xq.transpose(0, 1), Xq.transpose(0, 1), Xq.transpose(0, 1), E, H, torch.cat(Ws),
                                              torch.cat(bs) if bias else None, None, None, False, 0.0, Wo, bo, attn_mask=am)
        assert torch.allclose(R.transpose(0, 1), Y, rtol=1e-9, atol=1e-11)
    t = Tol(1e-5, 1e-5)
    for n, val in zip(("Y", "q", "k", "v", "O"), (Y, q, k, v, O)):
        c.out(n, val, t)
    c.out("LSE", lse, t)


@kernel("S6.7", S, "multi_head_attention_backward", "dY Xq Xk? Xv? Wq? Wk? Wv? W_in? Wo q k v O LSE:f32",
        "dXq dXk? dXv? dWq? dWk? dWv? dW_in? dbq? dbk? dbv? db_in? dWo dbo", "H causal")
def multi_head_attention_backward(c, B, Lq, E, H, Lk=None, ein=None, packed=False, causal=None):
    "self-attention (no Xk, Xv): dXq is the sum of the three input gradients; bias gradients are always produced"
    self_attn = Lk is None
    Lk, ein = Lk or Lq, ein or (E, E, E)
    dY = c.x("dY", B, Lq, E)
    Xq = c.var("Xq", B, Lq, ein[0])
    Xs = [Xq] * 3 if self_attn else [Xq, c.var("Xk", B, Lk, ein[1]), c.var("Xv", B, Lk, ein[2])]
    leaves, Ws, _ = mha_weights(c, E, ein, packed, True, True)
    bs = [c.round(c.rnd(E)).to(c.compute).requires_grad_() for _ in range(3)]
    Wo = c.var("Wo", E, E, scale=1 / math.sqrt(E))
    bo = torch.zeros(E, dtype=Wo.dtype, requires_grad=True)
    assert E % H == 0
    ok = allowed(B, H, Lq, Lk, causal)
    d = lambda t: t.detach().double()
    _, q, k, v, O, lse = mha_forward([d(x) for x in Xs], [d(w) for w in Ws], [d(b) for b in bs], d(Wo), d(bo), H, ok)
    for n, val in zip(("q", "k", "v", "O"), (q, k, v, O)):
        c.put(n, val)
    c.put("LSE", lse, "f32")
    Y = mha_forward(Xs, Ws, bs, Wo, bo, H, ok)[0]
    ins = [Xq] if self_attn else Xs
    g = ag(Y, ins + leaves + bs + [Wo, bo], dY)
    t = Tol(2e-4, 2e-5)
    names = (["dXq"] if self_attn else ["dXq", "dXk", "dXv"]) + (["dW_in"] if packed else ["dWq", "dWk", "dWv"])
    for n, val in zip(names, g):
        c.out(n, val, t)
    db = g[len(names):len(names) + 3]
    if packed:
        c.out("db_in", torch.cat(db), t)
    else:
        for n, val in zip(("dbq", "dbk", "dbv"), db):
            c.out(n, val, t)
    c.out("dWo", g[-2], t)
    c.out("dbo", g[-1], t)


# ------------------------------------------------------------------------------------------------ B7: inference forms
@kernel("B7.4", B7, "flash_decode", "Q K V key_lengths:i32?", "O LSE:f32", "scale splits")
def flash_decode(c, q, kv, dv=None, lengths=None, scale=None, splits=2):
    "Lq new tokens against a cache, causal bottom-right inside key_lengths; splits = number of key ranges, must not change the result"
    p = Problem(c, q, kv, dv, lengths=lengths, scale=scale)
    B, Hq, Lq, D = q
    kl = torch.tensor(lengths if lengths is not None else [kv[1]] * B)
    i, j = torch.arange(Lq)[None, :, None], torch.arange(kv[1])[None, None]
    p.ok = (j <= i + kl[:, None, None] - Lq)[:, None].expand(B, Hq, Lq, kv[1])
    O, _, lse = p.run()
    c.out("O", O, fwd_tol(p.V))
    c.out("LSE", lse, LSE_TOL)


@kernel("B7.3", B7, "paged_attention", "Q K_cache V_cache block_table:i32 seq_lens:i32 cu_seqlens_q:i32?", "O", "scale")
def paged_attention(c, heads, d, block, lens, new=None, scale=None, blocks=None, bad_block=False):
    """Q [B, Hq, D] (decode, one token per sequence) or [total, Hq, D] with cu_seqlens_q [B+1] (prefill); caches [blocks, block, Hkv, D];
    seq_lens counts the cached tokens including the new ones; token t of sequence b lies in block block_table[b, t div block], slot
    t mod block; causal bottom-right; unused table entries are -1"""
    Hq, Hkv = heads
    B = len(lens)
    per = [-(-n // block) for n in lens]
    blocks = blocks or sum(per) + 2
    new = new or [1] * B
    prefill = any(n != 1 for n in new)
    Q = c.x("Q", sum(new), Hq, d)
    K, V = c.x("K_cache", blocks, block, Hkv, d), c.x("V_cache", blocks, block, Hkv, d)
    perm = c.rng.permutation(blocks)
    table = np.full((B, max(per)), -1)
    pos = 0
    for b, n in enumerate(per):
        table[b, :n] = perm[pos:pos + n]
        pos += n
    if bad_block:
        table[0, 0] = blocks + 3
    c.idx("block_table", table, "i32")
    c.idx("seq_lens", lens, "i32")
    cu = np.concatenate([[0], np.cumsum(new)])
    if prefill:
        c.idx("cu_seqlens_q", cu, "i32")
    outs = []
    for b in range(B):
        rows = table[b, :per[b]]
        k = K[rows].reshape(-1, Hkv, d)[:lens[b]].transpose(0, 1)[None]
        v = V[rows].reshape(-1, Hkv, d)[:lens[b]].transpose(0, 1)[None]
        q = Q[cu[b]:cu[b + 1]].transpose(0, 1)[None]
        ok = allowed(1, Hq, new[b], lens[b], "bottom_right")
        O, _, _ = attend(q, k, v, ok, 1 / math.sqrt(d) if scale is None else scale)
        outs.append(O[0].transpose(0, 1))
    c.out("O", torch.cat(outs), fwd_tol(V))


@kernel("B7.2", B7, "kv_cache_append", "K V slots:idx K_cache V_cache", "K_cache V_cache")
def kv_cache_append(c, n, heads, d, blocks, block, itype="i32", skip=0, bad=False):
    "token i goes to flat slot slots[i] = block*block_size + offset; -1 skips the token; caches [blocks, block, Hkv, D] are updated in place"
    K, V = c.x("K", n, heads, d), c.x("V", n, heads, d)
    s = c.rng.permutation(blocks * block)[:n].copy()
    s[:skip] = -1
    if bad:
        s[-1] = blocks * block
    slots = c.idx("slots", s, itype)
    kc, vc = c.x("K_cache", blocks, block, heads, d).clone(), c.x("V_cache", blocks, block, heads, d).clone()
    for src, cache in ((K, kc), (V, vc)):
        for i in range(n):
            if slots[i] >= 0:
                cache[slots[i] // block, slots[i] % block] = src[i]
    c.out("K_cache", kc, EXACT)
    c.out("V_cache", vc, EXACT)


@kernel("B7.5", B7, "attention_varlen", "Q K V cu_seqlens_q:i32 cu_seqlens_k:i32", "O LSE:f32", "scale causal")
def attention_varlen(c, lq, lk, heads, d, dv=None, scale=None, causal=None):
    "packed Q [total_q, Hq, D], K, V [total_k, Hkv, D]; LSE [total_q, Hq]"
    Hq, Hkv = heads
    Q, K, V = c.x("Q", sum(lq), Hq, d), c.x("K", sum(lk), Hkv, d), c.x("V", sum(lk), Hkv, dv or d)
    _varlen_lens(c, lq, lk)
    O, lse = _varlen(Q, K, V, lq, lk, scale or 1 / math.sqrt(d), causal)
    c.out("O", O, fwd_tol(V))
    c.out("LSE", lse, LSE_TOL)


@kernel("B7.5", B7, "attention_varlen_backward", "dO Q K V O LSE:f32 cu_seqlens_q:i32 cu_seqlens_k:i32", "dQ dK dV", "scale causal")
def attention_varlen_backward(c, lq, lk, heads, d, dv=None, scale=None, causal=None):
    Hq, Hkv = heads
    dO = c.x("dO", sum(lq), Hq, dv or d)
    Q, K, V = c.var("Q", sum(lq), Hq, d), c.var("K", sum(lk), Hkv, d), c.var("V", sum(lk), Hkv, dv or d)
    sc = scale or 1 / math.sqrt(d)
    f = lambda t: t.detach().double()
    O, lse = _varlen(f(Q), f(K), f(V), lq, lk, sc, causal)
    c.put("O", O)
    c.put("LSE", lse, "f32")
    _varlen_lens(c, lq, lk)
    O, _ = _varlen(Q, K, V, lq, lk, sc, causal)
    for n, g in zip(("dQ", "dK", "dV"), ag(O, [Q, K, V], dO)):
        c.out(n, g, BACK)


def _varlen_lens(c, lq, lk):
    c.idx("cu_seqlens_q", np.concatenate([[0], np.cumsum(lq)]), "i32")
    c.idx("cu_seqlens_k", np.concatenate([[0], np.cumsum(lk)]), "i32")


def _varlen(Q, K, V, lq, lk, scale, causal):
    outs, lses, a, b = [], [], 0, 0
    for nq, nk in zip(lq, lk):
        q, k, v = Q[a:a + nq].transpose(0, 1)[None], K[b:b + nk].transpose(0, 1)[None], V[b:b + nk].transpose(0, 1)[None]
        O, _, lse = attend(q, k, v, allowed(1, Q.shape[1], nq, nk, causal), scale)
        outs.append(O[0].transpose(0, 1))
        lses.append(lse[0].transpose(0, 1))
        a, b = a + nq, b + nk
    return torch.cat(outs), torch.cat(lses)

"""Language-model kernels of B7 (attention forms are in k_attention) and the scans of B8."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from core import EXACT, Tol, ag, kernel, matmul_tol, philox, summed, uniform01
from conv import clean

B7, B8 = "language_model", "state_space"


# ------------------------------------------------------------------------------------------------ rotary embedding
def rope_rotate(x, pos, base, layout, rot, sign=1.0):
    "x [B, L, H, D]"
    h = rot // 2
    ang = pos[..., None].to(torch.float64) * base ** (-2 * torch.arange(h, dtype=torch.float64) / rot)
    co, si = torch.cos(ang)[..., None, :].to(x.dtype), sign * torch.sin(ang)[..., None, :].to(x.dtype)
    part = x[..., :rot]
    a, b = (part[..., 0::2], part[..., 1::2]) if layout == "interleaved" else (part[..., :h], part[..., h:])
    ra, rb = a * co - b * si, a * si + b * co
    r = torch.stack([ra, rb], -1).flatten(-2) if layout == "interleaved" else torch.cat([ra, rb], -1)
    return torch.cat([r, x[..., rot:]], -1)


ROPE = {"layout": "half", "base": 10000.0, "rotary_dim": None, "offset": 0}


def _rope(name, sign, first):
    def gen(c, B, L, H, D, layout="half", base=10000.0, rotary_dim=None, offset=0, positions=None):
        """x [B, L, H, D]; positions i32 [L] or [B, L], or offset + 0..L-1; angle of pair i is pos*base^(-2i/rotary_dim); layout half
        (i, i+rotary_dim/2) or interleaved (2i, 2i+1); rotary_dim null = D"""
        x = c.x(first, B, L, H, D)
        rot = rotary_dim or D
        if rot % 2 or rot > D:
            raise ValueError("rotary_dim")
        if positions:
            pos = c.idx("positions", c.integers(0, 500, (L,) if positions == 1 else (B, L)).numpy(), "i32")
        else:
            pos = torch.arange(L) + offset
        pos = pos.expand(B, L)
        c.out("d" + "x" if sign < 0 else "y", rope_rotate(x, pos, base, layout, rot, sign), Tol(1e-6, 1e-6 + 6e-8 * float(pos.max() if pos.numel() else 0) * 4))
    kernel("B7.1", B7, name, first + " positions:i32?", "dx" if sign < 0 else "y", ROPE)(gen)


_rope("rope", 1.0, "x")
_rope("rope_backward", -1.0, "dy")


# ------------------------------------------------------------------------------------------------ vocabulary loss, LoRA
FLC = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": 0.0, "reduction": "mean"}


def flce(h, W, b, t, ignore_index, label_smoothing, z_loss, softcap, reduction):
    z = F.linear(h, W, b)
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    l = F.cross_entropy(z, t, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    if z_loss:
        q = z_loss * torch.logsumexp(z, 1) ** 2
        ok = t != ignore_index if t.dim() == 1 else torch.ones(len(q), dtype=torch.bool)
        q = torch.where(ok, q, torch.zeros_like(q))
        l = l + (q if reduction == "none" else q.sum() if reduction == "sum" else q.sum() / ok.sum())
    return l


def flce_inputs(c, N, D, V, bias, soft, ignore, itype, var, ignore_index, bad_id):
    draw = c.var if var else c.x
    h, W = draw("h", N, D), draw("W", V, D, scale=1.5 / math.sqrt(D))
    b = draw("b", V, scale=0.3) if bias else None
    if soft:
        t = c.put("target", torch.softmax(c.rnd(N, V), 1))
    else:
        v = c.integers(0, V, (N,)).numpy().copy()
        if ignore:
            v[::3] = ignore_index
        if bad_id is not None:
            v[0] = bad_id
        t = c.idx("target", v, itype)
    return h, W, b, t


@kernel("B7.7", B7, "fused_linear_cross_entropy", "h W b? target", "loss LSE:f32?", FLC)
def fused_linear_cross_entropy(c, N, D, V, bias=False, soft=False, ignore=False, itype="i64", bad_id=None, **a):
    "logits h W^T + b, h [N, D], W [V, D]; target ids [N] or probabilities [N, V]; z_loss*LSE^2 over the counted rows; LSE of the capped logits"
    a = {**FLC, **a}
    h, W, b, t = flce_inputs(c, N, D, V, bias, soft, ignore, itype, False, a["ignore_index"], bad_id)
    y = flce(h, W, b, t, **a)
    c.out("loss", y, Tol(3e-6, 1.5e-6 * (N if a["reduction"] == "sum" else 1)), None if y.dim() else "f32")
    z = F.linear(h, W, b)
    if a["softcap"] > 0:
        z = a["softcap"] * torch.tanh(z / a["softcap"])
    c.out("LSE", torch.logsumexp(z, 1), Tol(2e-6, 2e-6))


@kernel("B7.7", B7, "fused_linear_cross_entropy_backward", "gy h W b? target", "dh dW db?", FLC)
def fused_linear_cross_entropy_backward(c, N, D, V, bias=False, soft=False, ignore=False, itype="i64", **a):
    a = {**FLC, **a}
    gy = c.x("gy", N) if a["reduction"] == "none" else c.put("gy", c.rnd(1)[0], "f32")
    h, W, b, t = flce_inputs(c, N, D, V, bias, soft, ignore, itype, True, a["ignore_index"], None)
    xs = [h, W] + ([b] if bias else [])
    y = flce(h, W, b, t, **a)
    for n, g in zip(("dh", "dW", "db"), ag(y, xs, gy.to(y.dtype))):
        c.out(n, g, Tol(5e-6, 1e-30, 4e-6))


@kernel("B7.8", B7, "lora_linear", "base x A B", "y", {"s": 1.0})
def lora_linear(c, M, D, r, N, s=1.0, rb=None):
    "y = base + s*(x A) B, x [M, D], A [D, r], B [r, N]"
    base, x, A, B = c.x("base", M, N), c.x("x", M, D), c.x("A", D, r, scale=1 / math.sqrt(D)), c.x("B", rb or r, N)
    mag = clean(base) + abs(s) * (clean(x) @ clean(A) @ clean(B)) if not rb else 0
    c.out("y", base + s * (x @ A @ B), matmul_tol(D + r, mag, 1.5))


@kernel("B7.8", B7, "lora_linear_backward", "dy x A B", "dx dA dB", {"s": 1.0})
def lora_linear_backward(c, M, D, r, N, s=1.0):
    "dx is the low-rank part only"
    dy, x, A, B = c.x("dy", M, N), c.var("x", M, D), c.var("A", D, r, scale=1 / math.sqrt(D)), c.var("B", r, N)
    aa = [clean(t).requires_grad_() for t in (x, A, B)]
    mags = ag(abs(s) * (aa[0] @ aa[1] @ aa[2]), aa, clean(dy))
    for n, g, m in zip(("dx", "dA", "dB"), ag(s * (x @ A @ B), [x, A, B], dy), mags):
        c.out(n, g, matmul_tol(max(M, N, D), m, 1.5))


# ------------------------------------------------------------------------------------------------ sampling
PROC = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def process(l, prev, temperature, top_k, top_p, min_p, repetition_penalty):
    "float64 numpy reference; order: repetition penalty, temperature, top-k, top-p, min-p; removed entries are -inf"
    l = l.copy()
    for r in range(l.shape[0]):
        if prev is not None and repetition_penalty != 1:
            for k in set(int(i) for i in prev[r] if i >= 0):
                l[r, k] = l[r, k] / repetition_penalty if l[r, k] > 0 else l[r, k] * repetition_penalty
        l[r] /= temperature
        order = np.argsort(-l[r], kind="stable")
        keep = np.ones(len(order), bool)
        if top_k:
            keep[order[top_k:]] = False
        e = np.where(keep, np.exp(l[r] - l[r].max()), 0)
        p = e / e.sum()
        if top_p < 1:
            cum = np.cumsum(p[order])
            n = int(np.argmax(cum >= top_p)) + 1 if (cum >= top_p).any() else len(order)
            keep[order[n:]] = False
        if min_p > 0:
            keep &= p >= min_p * p.max()
        l[r] = np.where(keep, l[r], -np.inf)
    return l


@kernel("B7.9", B7, "logit_processors", "logits prev:i32?", "y", PROC)
def logit_processors(c, rows, V, prev=None, **a):
    """order: repetition penalty on the ids in prev [rows, n] (-1 = none; logit/penalty if positive, logit*penalty otherwise), temperature,
    top-k, top-p (smallest prefix of the sorted probabilities with sum >= p), min-p relative to the largest probability; removed = -inf.
    top-p and min-p use the probabilities that are left after top-k"""
    a = {**PROC, **a}
    l = c.x("logits", rows, V, scale=2)
    pv = None
    if prev:
        pv = c.integers(-1, V, (rows, prev)).numpy()
        c.idx("prev", pv, "i32")
    if a["temperature"] <= 0:
        raise ValueError("temperature")
    c.out("y", torch.from_numpy(process(l.double().numpy(), pv, **a)), Tol(4e-7, 1e-7))


@kernel("B7.10", B7, "sample_tokens", "logits", "ids:i64", {**PROC, "seed": 0, "stream": 0, "offset": 0})
def sample_tokens(c, rows, V, seed=0, stream=0, offset=0, temperature=1.0, **a):
    "temperature 0: argmax, first maximum; otherwise the inverse CDF of rand_categorical on the processed probabilities, one u per row"
    a = {**PROC, **a, "temperature": temperature}
    l = c.x("logits", rows, V, scale=2).double().numpy()
    if temperature == 0:
        c.out("ids", torch.from_numpy(np.argmax(l, 1)), kind="i64")
        return
    y = process(l, None, **a)
    p = np.exp(y - y.max(1, keepdims=True))
    cum = np.cumsum(p, 1)
    u = uniform01(philox(rows, seed, stream, offset))[:, None] * cum[:, -1:]
    assert np.abs(cum / cum[:, -1:] - u / cum[:, -1:]).min() > 2e-5, "draw too close to a class border, change the seed"
    c.out("ids", torch.from_numpy((cum <= u).sum(1)), kind="i64")


# ------------------------------------------------------------------------------------------------ quantization
def _quant(name, bits):
    def gen(c, shape, per="tensor", group=None):
        "per tensor, row (last axis) or group (of the last axis); scale = max|x|/(127 or 7 or 448), q = nearest even of x/scale; an all-zero set has scale 1"
        x = c.x("x", *shape)
        top = {8: 127.0, 4: 7.0, "fp8": 448.0}[bits]
        v = x.double().reshape(-1, group) if per == "group" else x.double().reshape(-1, shape[-1]) if per == "row" else x.double().reshape(1, -1)
        m = v.abs().amax(1)
        s = torch.where(m > 0, m / top, torch.ones_like(m)).float().double()
        r = v / s[:, None]
        if bits == "fp8":
            q = r.float().to(torch.float8_e4m3fn).view(torch.uint8).reshape(shape)
        else:
            # keep clear of rounding ties, which depend on the last bit of the quotient
            q = r.round().reshape(shape)
            if bits == 4:
                q = q.reshape(-1, shape[-1]) + 8
                q = (q[:, 0::2] + 16 * q[:, 1::2]).reshape(*shape[:-1], shape[-1] // 2)
        frac = (r - r.floor() - 0.5).abs()
        assert bits == "fp8" or float(frac.min()) > 1e-6
        c.out("q", q, kind="u8" if bits in (4, "fp8") else "i8")
        sc = {"tensor": (1,), "row": shape[:-1], "group": (*shape[:-1], shape[-1] // (group or 1))}[per]
        c.out("scale", s.reshape(sc), Tol(2.4e-7, 1e-30))
    kernel("B7.11", B7, name, "x", "q:i8/u8 scale:f32", {"per": "tensor", "group": None})(gen)


_quant("quantize_int8", 8)
_quant("quantize_int4", 4)
_quant("quantize_fp8", "fp8")


@kernel("B7.11", B7, "dequantize", "q:i8/u8 scale:f32", "y", {"format": "int8", "group": None})
def dequantize(c, shape, format="int8", group=None):
    "y = scale*q; format int8, int4 (u8, even index in the low nibble, code - 8) or fp8 (e4m3); scale per group of the last axis, [..,1] without group"
    group = group or shape[-1]
    n = shape[-1] // group
    if format == "int8":
        q = c.integers(-127, 128, shape)
        c.raw("q", q.to(torch.int8))
    elif format == "int4":
        q = c.integers(0, 16, shape)
        c.raw("q", (q[..., 0::2] + 16 * q[..., 1::2]).to(torch.uint8))
        q = q - 8
    else:
        t = c.rnd(*shape).float().to(torch.float8_e4m3fn)
        c.raw("q", t.view(torch.uint8))
        q = t.float()
    s = c.put("scale", c.uni(*shape[:-1], n, lo=0.01, hi=0.2), "f32")
    c.out("y", q.to(s.dtype) * s.repeat_interleave(group, -1), Tol(1.2e-7, 1e-30))


# ------------------------------------------------------------------------------------------------ mixture of experts
@kernel("B7.13", B7, "moe_router", "logits", "weights ids:i32 counts:i32 offsets:i32 perm:i32", {"k": "required", "score": "softmax", "renormalize": True})
def moe_router(c, T, E, k, score="softmax", renormalize=True):
    """scores = softmax or sigmoid of logits [T, E]; ids [T, k] by falling score (ties: lower expert first), weights [T, k] (divided by their
    sum if renormalize); counts [E]; offsets [E+1]; perm [T*k]: assignments t*k+j sorted by expert, stable"""
    l = c.x("logits", T, E, scale=1.5)
    s = torch.softmax(l, 1) if score == "softmax" else torch.sigmoid(l)
    if k > E:
        raise ValueError("k")
    v, i = torch.sort(s, dim=1, descending=True, stable=True)
    v, i = v[:, :k], i[:, :k]
    w = v / v.sum(1, keepdim=True) if renormalize else v
    flat = i.reshape(-1)
    n = torch.bincount(flat, minlength=E)
    c.out("weights", w, Tol(2e-6, 2e-7))
    c.out("ids", i, kind="i32")
    c.out("counts", n, kind="i32")
    c.out("offsets", torch.cat([torch.zeros(1, dtype=torch.int64), n.cumsum(0)]), kind="i32")
    c.out("perm", torch.argsort(flat, stable=True), kind="i32")


@kernel("B7.13", B7, "moe_router_backward", "dweights logits ids:i32", "dlogits", {"score": "softmax", "renormalize": True})
def moe_router_backward(c, T, E, k, score="softmax", renormalize=True):
    dw, l = c.x("dweights", T, k), c.var("logits", T, E, scale=1.5)
    i = c.idx("ids", torch.topk(l.detach(), k, 1).indices.numpy(), "i32")
    v = (torch.softmax(l, 1) if score == "softmax" else torch.sigmoid(l)).gather(1, i)
    w = v / v.sum(1, keepdim=True) if renormalize else v
    c.out("dlogits", ag(w, [l], dw)[0], Tol(5e-6, 2e-6))


def assignments(c, T, E, k):
    ids = torch.stack([torch.from_numpy(c.rng.permutation(E)[:k].copy()) for _ in range(T)])
    return torch.argsort(ids.reshape(-1), stable=True)


@kernel("B7.14", B7, "moe_permute", "x perm:i32", "y", {"k": "required"})
def moe_permute(c, T, E, k, D):
    "y[i] = x[perm[i] div k], perm from moe_router"
    x, p = c.x("x", T, D), c.idx("perm", assignments(c, T, E, k).numpy(), "i32")
    c.out("y", x[p // k], EXACT)


@kernel("B7.14", B7, "moe_unpermute", "x perm:i32 weights", "y", {"k": "required"})
def moe_unpermute(c, T, E, k, D):
    "x [T*k, D] in expert order, weights [T, k]; y[t] = sum over j of weights[t, j] * row of assignment t*k+j"
    x = c.x("x", T * k, D)
    p = c.idx("perm", assignments(c, T, E, k).numpy(), "i32")
    w = c.put("weights", c.uni(T, k))
    back = torch.argsort(p)
    rows = x[back].reshape(T, k, D)
    c.out("y", (rows * w[..., None]).sum(1), matmul_tol(k, (clean(rows) * clean(w)[..., None]).sum(1)))


@kernel("B7.14", B7, "moe_permute_backward", "dy perm:i32", "dx", {"k": "required"})
def moe_permute_backward(c, T, E, k, D):
    dy = c.x("dy", T * k, D)
    p = c.idx("perm", assignments(c, T, E, k).numpy(), "i32")
    z = torch.zeros(T, D, dtype=dy.dtype)
    c.out("dx", z.index_add(0, p // k, dy), summed(k, z.double().index_add(0, p // k, clean(dy))))


@kernel("B7.14", B7, "moe_unpermute_backward", "dy x perm:i32 weights", "dx dweights", {"k": "required"})
def moe_unpermute_backward(c, T, E, k, D):
    dy, x = c.x("dy", T, D), c.x("x", T * k, D)
    p = c.idx("perm", assignments(c, T, E, k).numpy(), "i32")
    w = c.put("weights", c.uni(T, k))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = (x[torch.argsort(p)].reshape(T, k, D) * w[..., None]).sum(1)
    dx, dw = ag(y, [x, w], dy)
    c.out("dx", dx, Tol(1.2e-7, 1e-45))
    c.out("dweights", dw, matmul_tol(D, (clean(x)[torch.argsort(p)].reshape(T, k, D) * clean(dy)[:, None]).sum(-1)))


# ------------------------------------------------------------------------------------------------ B8 scans
SCAN = Tol(1e-4, 1e-5)


def gla(q, k, v, g, S=None):
    B, T, H, D = k.shape
    S = torch.zeros(B, H, v.shape[-1], D, dtype=q.dtype) if S is None else S
    o = []
    for t in range(T):
        gt = g[:, t][..., None, None] if g.dim() == 3 else g[:, t][:, :, None, :]
        S = gt * S + v[:, t][..., :, None] * k[:, t][..., None, :]
        o.append((S @ q[:, t][..., None])[..., 0])
    return torch.stack(o, 1), S


def delta(q, k, v, a, b):
    B, T, H, D = k.shape
    S = torch.zeros(B, H, v.shape[-1], D, dtype=q.dtype)
    o = []
    for t in range(T):
        kt, bt, at = k[:, t], b[:, t][..., None, None], a[:, t][..., None, None]
        S = at * (S - bt * (S @ kt[..., None]) * kt[..., None, :]) + bt * v[:, t][..., :, None] * kt[..., None, :]
        o.append((S @ q[:, t][..., None])[..., 0])
    return torch.stack(o, 1), S


def mamba(x, dt, A, Bm, C, D, z, softplus):
    "x, dt [B,T,E]; A [E,N]; Bm, C [B,T,N]; D [E]"
    d = F.softplus(dt) if softplus else dt
    h = torch.zeros(x.shape[0], x.shape[2], A.shape[1], dtype=x.dtype)
    ys = []
    for t in range(x.shape[1]):
        h = torch.exp(d[:, t][..., None] * A) * h + (d[:, t] * x[:, t])[..., None] * Bm[:, t][:, None]
        y = (h * C[:, t][:, None]).sum(-1)
        ys.append(y + D * x[:, t] if D is not None else y)
    y = torch.stack(ys, 1)
    return (y * F.silu(z) if z is not None else y), h


def ssd(x, dt, A, Bm, C, D):
    "x [B,T,H,P]; dt [B,T,H]; A [H]; Bm, C [B,T,G,N]; D [H]"
    r = x.shape[2] // Bm.shape[2]
    Bh, Ch = Bm.repeat_interleave(r, 2), C.repeat_interleave(r, 2)
    h = torch.zeros(x.shape[0], x.shape[2], x.shape[3], Bm.shape[3], dtype=x.dtype)
    ys = []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t] * A)[..., None, None] * h + (dt[:, t][..., None] * x[:, t])[..., None] * Bh[:, t][:, :, None]
        y = (h * Ch[:, t][:, :, None]).sum(-1)
        ys.append(y + D[:, None] * x[:, t] if D is not None else y)
    return torch.stack(ys, 1), h


def assoc(a, b, reverse):
    T, h, out = a.shape[1], torch.zeros_like(a[:, 0]), []
    for t in (range(T - 1, -1, -1) if reverse else range(T)):
        h = a[:, t] * h + b[:, t]
        out.append(h)
    return torch.stack(out[::-1] if reverse else out, 1)


def _scan(name, sec, ins, grads, args, draw, fn, note):
    "forward and backward of one recurrence; draw returns name -> raw value; fn(values, args) -> dict of outputs, 'y' first"
    def a_of(p):
        return {k: p.get(k, v) for k, v in args.items()}

    def forward(c, **p):
        v = {n: c.put(n, r) for n, r in draw(c, p).items()}
        for n, y in fn(v, a_of(p)).items():
            c.out(n, y, SCAN)
    forward.__doc__ = note
    kernel(sec, B8, name, ins, "y state?", args)(forward)

    def backward(c, **p):
        raw = draw(c, p)
        probe = fn({n: r for n, r in raw.items()}, a_of(p))["y"]
        dy = c.x("dy", *probe.shape)
        v = {n: c.put(n, r) for n, r in raw.items()}
        xs = [v[n].requires_grad_() for n in grads if n in v]
        for n, g in zip([n for n in grads if n in v], ag(fn(v, a_of(p))["y"], xs, dy)):
            c.out("d" + n, g, Tol(2e-4, 1e-30, 1e-5))
    kernel(sec, B8, name + "_backward", "dy " + ins, " ".join(f"d{g}?" for g in grads), args)(backward)


def _qkv(c, p):
    B, T, H, D = p["dims"]
    return {"q": c.rnd(B, T, H, D, scale=0.7), "k": c.rnd(B, T, H, D) / math.sqrt(D), "v": c.rnd(B, T, H, p.get("dv", D))}


def _gla_draw(c, p):
    B, T, H, D = p["dims"]
    return {**_qkv(c, p), "g": c.uni(B, T, H, *((D,) if p.get("per_key") else ()), lo=0.5, hi=1)}


def _delta_draw(c, p):
    B, T, H, D = p["dims"]
    q = _qkv(c, p)
    q["k"] = F.normalize(q["k"], dim=-1)
    return {**q, "a": c.uni(B, T, H, lo=0.6, hi=1), "b": c.uni(B, T, H)}


_scan("gla_scan", "B8.1", "q k v g", ["q", "k", "v", "g"], {}, _gla_draw,
      lambda v, a: dict(zip(("y", "state"), gla(v["q"], v["k"], v["v"], v["g"]))),
      "q, k [B,T,H,D], v [B,T,H,Dv], g [B,T,H] or [B,T,H,D]; y [B,T,H,Dv]; state [B,H,Dv,D] after the last step")
_scan("gated_delta_scan", "B8.2", "q k v a b", ["q", "k", "v", "a", "b"], {}, _delta_draw,
      lambda v, a: dict(zip(("y", "state"), delta(v["q"], v["k"], v["v"], v["a"], v["b"]))),
      "a, b [B,T,H]; shapes otherwise as gla_scan")


def _mamba_draw(c, p):
    B, T, E, N = p["dims"]
    r = {"x": c.rnd(B, T, E), "dt": c.rnd(B, T, E) if p.get("softplus") else c.uni(B, T, E, lo=0.05, hi=1), "A": -c.uni(E, N, lo=0.2, hi=2),
         "B": c.rnd(B, T, N), "C": c.rnd(B, T, N)}
    if p.get("skip", True):
        r["D"] = c.rnd(E)
    if p.get("gate"):
        r["z"] = c.rnd(B, T, E)
    return r


_scan("mamba_selective_scan", "B8.6", "x dt A B C D? z?", ["x", "dt", "A", "B", "C", "D", "z"], {"softplus": False}, _mamba_draw,
      lambda v, a: dict(zip(("y", "state"), mamba(v["x"], v["dt"], v["A"], v["B"], v["C"], v.get("D"), v.get("z"), a["softplus"]))),
      "x, dt, z [B,T,E], A [E,N], B, C [B,T,N], D [E]; y = (C.h + D x)*silu(z); state [B,E,N]")


def _ssd_draw(c, p):
    B, T, H, P, Gr, N = p["dims"]
    r = {"x": c.rnd(B, T, H, P), "dt": c.uni(B, T, H, lo=0.05, hi=1), "A": -c.uni(H, lo=0.2, hi=2), "B": c.rnd(B, T, Gr, N), "C": c.rnd(B, T, Gr, N)}
    if p.get("skip", True):
        r["D"] = c.rnd(H)
    return r


_scan("mamba2_ssd_scan", "B8.7", "x dt A B C D?", ["x", "dt", "A", "B", "C", "D"], {}, _ssd_draw,
      lambda v, a: dict(zip(("y", "state"), ssd(v["x"], v["dt"], v["A"], v["B"], v["C"], v.get("D")))),
      "x [B,T,H,P], dt [B,T,H], A [H], B, C [B,T,G,N] (H multiple of G), D [H]; state [B,H,P,N]")


def _assoc_draw(c, p):
    return {"a": c.uni(*p["dims"], lo=0.3, hi=1), "b": c.rnd(*p["dims"])}


_scan("associative_scan", "B8.9", "a b", ["a", "b"], {"reverse": False}, _assoc_draw, lambda v, a: {"y": assoc(v["a"], v["b"], a["reverse"])},
      "h_t = a_t h_{t-1} + b_t along axis 1 of [B,T,...], h before the first step = 0; reverse runs from the end")

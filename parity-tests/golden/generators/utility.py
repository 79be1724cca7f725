"""Embedding (section 9), utility kernels (section 11) and fused kernels (section 12)."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from core import (EXACT, NORM_B, NORM_F, TORCH, TRANS, Tol, ULP32, ag, keep_mask, kernel, matmul_tol, splice, summed, ulp)
from conv import ACTS, clean
from norm import STAT, affine, ln_saved, stats

S9, S11, S12 = "embedding", "utility", "fused"


def ids_for(c, shape, V, itype, bad=None, fixed=None):
    v = np.asarray(fixed).reshape(shape) if fixed is not None else c.integers(0, V, shape).numpy().copy()
    if bad is not None:
        v.reshape(-1)[-1] = bad
    return v


# ------------------------------------------------------------------------------------------------ embedding
@kernel("S9.1", S9, "embedding_forward", "ids:idx table", "y table?", {"padding_idx": None, "max_norm": None})
def embedding_forward(c, ids, V, D, itype="i64", padding_idx=None, max_norm=None, bad=None, special=None):
    "max_norm: rows that are used and exceed that L2 norm are rescaled in the table first (output table)"
    i = c.idx("ids", ids_for(c, ids, V, itype, bad), itype)
    t = c.x("table", V, D, special=special).clone()
    y = F.embedding(i, t, padding_idx, max_norm)
    c.out("y", y, EXACT if max_norm is None else Tol(1e-5, 1e-6))
    if max_norm is not None:
        c.out("table", t, Tol(1e-5, 1e-6))


@kernel("S9.2", S9, "embedding_backward", "dy ids:idx", "dTable", {"V": "required", "padding_idx": None, "scale_grad_by_freq": False})
def embedding_backward(c, n, V, D, itype="i64", padding_idx=None, scale_grad_by_freq=False, bad=None, fixed=None):
    dy = c.x("dy", n, D)
    i = c.idx("ids", ids_for(c, (n,), V, itype, bad, fixed), itype)
    t = torch.zeros(V, D, dtype=dy.dtype, requires_grad=True)
    fn = lambda dy: ag(F.embedding(i, t.to(dy.dtype), padding_idx, scale_grad_by_freq=scale_grad_by_freq), [t], dy)[0]
    k = int(torch.bincount(i, minlength=1).max()) if n else 1
    c.out("dTable", fn(dy), summed(k, fn(clean(dy)).abs()))


@kernel("S9.3", S9, "gather_kernel", "src idx:idx", "y")
def gather_kernel(c, R, Fd, n, itype="i64", bad=None, special=None):
    src = c.x("src", R, Fd, special=special)
    c.out("y", torch.index_select(src, 0, c.idx("idx", ids_for(c, (n,), R, itype, bad), itype)), EXACT)


@kernel("S9.4", S9, "scatter_add_kernel", "src idx:idx dst", "dst")
def scatter_add_kernel(c, R, Fd, n, itype="i64", bad=None, fixed=None):
    src = c.x("src", n, Fd)
    i = c.idx("idx", ids_for(c, (n,), R, itype, bad, fixed), itype)
    dst = c.x("dst", R, Fd)
    k = int(torch.bincount(i, minlength=1).max()) + 1 if n else 1
    c.out("dst", dst.index_add(0, i, src), summed(k, clean(dst).index_add(0, i, clean(src))))


# ------------------------------------------------------------------------------------------------ movement
@kernel("S11.1", S11, "transpose_2d", "x", "y")
def transpose_2d(c, shape, special=None):
    c.out("y", c.x("x", *shape, special=special).t(), EXACT)


@kernel("S11.2", S11, "batched_transpose", "x", "y")
def batched_transpose(c, shape):
    c.out("y", c.x("x", *shape).transpose(1, 2), EXACT)


@kernel("S11.3", S11, "permute_general", "x", "y", "perm")
def permute_general(c, shape, perm):
    c.out("y", c.x("x", *shape).permute(perm), EXACT)


@kernel("S11.4", S11, "copy_buffer", "src dst", "dst", "src_offset dst_offset count")
def copy_buffer(c, n, m, count, src_offset=0, dst_offset=0):
    "flat buffers; offsets and count in elements"
    s, d = c.x("src", n), c.x("dst", m).clone()
    if src_offset + count > n or dst_offset + count > m or count < 0:
        raise ValueError("range")
    d[dst_offset:dst_offset + count] = s[src_offset:src_offset + count]
    c.out("dst", d, EXACT)


@kernel("S11.5", S11, "fill_buffer", "", "y", "shape value")
def fill_buffer(c, shape, value):
    "dtype of the case; value may be one of the strings inf, -inf, nan"
    v = torch.full(shape, float(value) if isinstance(value, str) else value, dtype=TORCH[c.dtype])
    c.out("y", v, EXACT, None if v.is_floating_point() else c.dtype)


# ------------------------------------------------------------------------------------------------ dropout
DROP = {"p": "required", "seed": "required", "stream": 0, "offset": 0}


def dropout(x, p, seed, stream, offset):
    keep = keep_mask(x.numel(), p, seed, stream, offset).reshape(x.shape)
    return (torch.where(keep, x / (1 - p), torch.zeros_like(x)) if p < 1 else torch.zeros_like(x)), keep


@kernel("S11.6", S11, "dropout_forward", "x", "y mask:u8?", DROP)
def dropout_forward(c, shape, p, seed, stream=0, offset=0, special=None):
    x = c.x("x", *shape, special=special)
    if not 0 <= p <= 1:
        raise ValueError("p")
    y, keep = dropout(x, p, seed, stream, offset)
    c.out("y", y, EXACT if p in (0, 0.5, 1) else ulp(2))
    c.out("mask", keep, kind="u8")


@kernel("S11.7", S11, "dropout_backward", "dy mask:u8?", "dx", {"p": "required", "seed": None, "stream": 0, "offset": 0})
def dropout_backward(c, shape, p, seed=None, stream=0, offset=0):
    "either the saved mask or (seed, stream, offset) is given"
    dy = c.x("dy", *shape)
    if seed is None:
        keep = c.mask("mask", c.uni(*shape) < 1 - p)
        dx = torch.where(keep, dy / (1 - p), torch.zeros_like(dy))
    else:
        dx, _ = dropout(dy, p, seed, stream, offset)
    c.out("dx", dx, EXACT if p in (0, 0.5, 1) else ulp(2))


# ------------------------------------------------------------------------------------------------ clamp, where, arg reductions
def bound(v):
    return float(v) if isinstance(v, str) else v


@kernel("S11.8", S11, "clamp", "x lo? hi?", "y", {"lo": None, "hi": None})
def clamp(c, shape, lo=None, hi=None, tlo=None, thi=None, special=None):
    "scalar bounds are the arguments lo, hi; tensor bounds (broadcast) are the inputs lo, hi"
    x = c.x("x", *shape, special=special)
    if tlo or thi:
        a = c.x("lo", *tlo, shift=-0.7, scale=0.4) if tlo else None
        b = c.x("hi", *thi, shift=0.7, scale=0.4) if thi else None
    else:
        a, b = bound(lo), bound(hi)
    c.out("y", torch.clamp(x, a, b), EXACT)


@kernel("S11.8", S11, "clamp_backward", "dy x lo? hi?", "dx dlo? dhi?", {"lo": None, "hi": None})
def clamp_backward(c, shape, lo=None, hi=None, tensor=False):
    dy = c.x("dy", *shape)
    if tensor:
        a, b = c.uni(*shape, lo=-1, hi=-0.2), c.uni(*shape, lo=0.2, hi=1)
        raw = c.rnd(*shape)
        for e in (a, b):
            raw = torch.where((raw - e).abs() < 2e-3, raw + 5e-3, raw)
        x, a, b = c.putv("x", raw), c.putv("lo", a), c.putv("hi", b)
        for n, g in zip(("dx", "dlo", "dhi"), ag(torch.clamp(x, a, b), [x, a, b], dy)):
            c.out(n, g, EXACT)
    else:
        x = c.putv("x", c.away(c.rnd(*shape), [v for v in (lo, hi) if v is not None]))
        c.out("dx", ag(torch.clamp(x, lo, hi), [x], dy)[0], EXACT)


@kernel("S11.9", S11, "where_cond", "c:u8 a b", "y")
def where_cond(c, cs, a, b, special=None):
    m = c.mask("c", c.uni(*cs) < 0.5)
    c.out("y", torch.where(m, c.x("a", *a, special=special), c.x("b", *b)), EXACT)


@kernel("S11.9", S11, "where_cond_backward", "dy c:u8", "da db", {"a_shape": "required", "b_shape": "required"})
def where_cond_backward(c, cs, a, b, special=None):
    c.arg("a_shape", list(a))
    c.arg("b_shape", list(b))
    shape = torch.broadcast_shapes(cs, a, b)
    dy = c.x("dy", *shape, special=special)
    m = c.mask("c", c.uni(*cs) < 0.5)
    A, B = torch.zeros(*a, dtype=dy.dtype, requires_grad=True), torch.zeros(*b, dtype=dy.dtype, requires_grad=True)
    n = max(dy.numel() // max(A.numel(), 1), dy.numel() // max(B.numel(), 1), 1)
    for k, g, X in zip(("da", "db"), ag(torch.where(m, A, B), [A, B], dy), (A, B)):
        c.out(k, g, EXACT if n == 1 else summed(n, clean(dy).sum() / max(X.numel(), 1) * 3))


def ranked(c, shape, ties, special):
    return c.put("x", splice(c.integers(-3, 4, shape).double() if ties else c.rnd(*shape), special))


def _arg(name, fn):
    def gen(c, shape, axis, index="i64", ties=False, special=None):
        "index: dtype of the result"
        x = ranked(c, shape, ties, special)
        c.out("y", fn(x, axis), kind=index)
    kernel("S11.10" if name == "argmax_axis" else "S11.11", S11, name, "x", "y:i64", {"axis": "required", "index": "i64"})(gen)


_arg("argmax_axis", lambda x, a: x.argmax(a))
_arg("argmin_axis", lambda x, a: x.argmin(a))


def kcount(shape, axes):
    return math.prod(shape[a] for a in axes)


@kernel("S11.12", S11, "reduce_sum", "x", "y", "axes keepdim")
def reduce_sum(c, shape, axes, keepdim=False, special=None, scale=1.0):
    "integer input (i32, i64) gives i64, u8 masks are counted as i64"
    if c.dtype in ("i32", "i64", "u8"):
        x = c.raw("x", c.integers(0, 2, shape).to(torch.uint8) if c.dtype == "u8" else (c.rnd(*shape) * 2 ** 30).to(TORCH[c.dtype]))
        c.out("y", x.sum(axes, keepdim, dtype=torch.int64), kind="i64")
        return
    x = c.x("x", *shape, special=special, scale=scale)
    if not -len(shape) <= min(axes) <= max(axes) < len(shape):
        raise ValueError("axis")
    c.out("y", x.sum(axes, keepdim), summed(kcount(shape, axes), clean(x).sum(axes)))


@kernel("S11.12", S11, "reduce_sum_backward", "dy", "dx", "input_size axes keepdim")
def reduce_sum_backward(c, input_size, axes, keepdim=False):
    x = torch.zeros(*input_size, dtype=c.compute, requires_grad=True)
    y = x.sum(axes, keepdim)
    dy = c.x("dy", *y.shape)
    c.out("dx", ag(y, [x], dy)[0], EXACT)


def _minmax(name, both):
    def gen(c, shape, axes, keepdim=False, with_indices=False, ties=False, special=None):
        "with_indices (single axis): also the i64 index of the first extreme"
        x = ranked(c, shape, ties, special)
        c.out("y", getattr(x, both)(axes, keepdim), EXACT)
        if with_indices:
            c.out("idx", getattr(x, "argmax" if both == "amax" else "argmin")(axes[0], keepdim), kind="i64")
    kernel("S11.13", S11, name, "x", "y idx:i64?", {"axes": "required", "keepdim": False, "with_indices": False})(gen)

    def back(c, shape, axes, keepdim=False, ties=False):
        "shared equally among all positions equal to the extreme"
        y0 = getattr(torch.zeros(*shape), both)(axes, keepdim)
        dy = c.x("dy", *y0.shape)
        x = ranked(c, shape, ties, None).requires_grad_()
        y = getattr(x, both)(axes, keepdim)
        c.put("y", y.detach().double())
        c.out("dx", ag(y, [x], dy)[0], ulp(2))
    kernel("S11.13", S11, name + "_backward", "dy x y", "dx", {"axes": "required", "keepdim": False})(back)


_minmax("reduce_max", "amax")
_minmax("reduce_min", "amin")


@kernel("S11.13", S11, "reduce_max_index_backward", "dy idx:idx", "dx", {"input_size": "required", "axis": "required"})
def reduce_max_index_backward(c, shape, axis, itype="i64"):
    "single-axis form: dy goes to the saved index"
    c.arg("input_size", list(shape))
    x = torch.rand(*shape)
    out = list(shape)
    out.pop(axis)
    dy = c.x("dy", *out)
    i = c.idx("idx", c.integers(0, shape[axis], tuple(out)).numpy(), itype)
    c.out("dx", torch.zeros(*shape, dtype=dy.dtype).scatter(axis, i.unsqueeze(axis), dy.unsqueeze(axis)), EXACT)


# ------------------------------------------------------------------------------------------------ fused GEMM + bias + activation
EPI = {"relu": ("S12.1", "Y"), "gelu": ("S12.2", "Z"), "sigmoid": ("S12.3", "Y"), "tanh": ("S12.4", "Y"), "swish": ("S12.6", "Z")}


def linear(A, B, bias, trans_b, bias_per_row=False):
    z = A @ (B.t() if trans_b else B)
    if bias is not None:
        z = z + (bias[:, None] if bias_per_row else bias)
    return z


def gemm_inputs(c, A, N, trans_b, bias=True, var=False, bias_per_row=False, kb=None):
    draw = c.var if var else c.x
    K = kb or A[-1]
    return (draw("A", *A), draw("B", *((N, K) if trans_b else (K, N)), scale=1 / math.sqrt(max(K, 1))),
            draw("bias", A[-2] if bias_per_row else N) if bias else None)


def epilogue_tol(A, B, bias, trans_b, bias_per_row=False):
    t = matmul_tol(A.shape[-1], linear(clean(A), clean(B), None if bias is None else clean(bias), trans_b, bias_per_row))
    return Tol(6e-7, 1.2 * t.atol + 1e-7)


def _fused(act, sec, save):
    fn = lambda z, approx: F.gelu(z, approximate=approx) if act == "gelu" else ACTS[act](z)
    gelu_arg = {"approx": "none"} if act == "gelu" else {}

    def forward(c, A, N, trans_b=False, approx="none", kb=None):
        "A [..., M, K], B [K, N] or, with trans_b, [N, K]; Z = A B + bias is the saved tensor of gelu and swish"
        a, b, bias = gemm_inputs(c, A, N, trans_b, kb=kb)
        z = linear(a, b, bias, trans_b)
        t = epilogue_tol(a, b, bias, trans_b)
        c.out("Y", fn(z, approx), t)
        if save == "Z":
            c.out("Z", z, t)
    kernel(sec, S12, "gemm_bias_" + act, "A B bias", "Y" + (" Z" if save == "Z" else ""), {"trans_b": False, **gelu_arg})(forward)

    def backward(c, A, N, trans_b=False, approx="none"):
        dY = c.x("dY", *A[:-1], N)
        a, b, _ = gemm_inputs(c, A, N, trans_b, False, True)
        bias = c.round(c.rnd(N)).double()
        z = linear(a.detach().double(), b.detach().double(), bias, trans_b)
        if act == "relu":
            z = c.away(z, gap=1e-2)
        if save == "Z":
            Z = c.put("Z", z).requires_grad_()
            dZ, = ag(fn(Z, approx), [Z], dY)
        else:
            Y = c.put("Y", fn(z, approx))
            ops = torch.ops.aten
            dZ = {"relu": lambda: dY * (Y > 0), "sigmoid": lambda: ops.sigmoid_backward(dY, Y), "tanh": lambda: ops.tanh_backward(dY, Y)}[act]()
        emit_gemm_grads(c, dZ, a, b, trans_b)
    kernel(sec, S12, f"gemm_bias_{act}_backward", f"dY A B {save}", "dA dB dbias", {"trans_b": False, **gelu_arg})(backward)


def emit_gemm_grads(c, dZ, a, b, trans_b, bias_axis="col"):
    a, b = a.detach(), b.detach()
    two = lambda t: t.reshape(-1, t.shape[-1])
    dA = lambda dZ, b: dZ @ (b if trans_b else b.t())
    dB = lambda dZ, a: two(dZ).t() @ two(a) if trans_b else two(a).t() @ two(dZ)
    M, N, K = two(dZ).shape[0], dZ.shape[-1], a.shape[-1]
    c.out("dA", dA(dZ, b), matmul_tol(N, dA(clean(dZ), clean(b)), 1.5))
    c.out("dB", dB(dZ, a), matmul_tol(M, dB(clean(dZ), clean(a)), 1.5))
    c.out("dbias", two(dZ).sum(0) if bias_axis == "col" else two(dZ).sum(1), summed(max(M, N), two(clean(dZ)).sum(0 if bias_axis == "col" else 1) * 1.5))


for _a, (_s, _v) in EPI.items():
    _fused(_a, _s, _v)


@kernel("S12.5", S12, "gemm_bias", "A B bias", "Y", "trans_b bias_per_row")
def gemm_bias(c, A, N, trans_b=False, bias_per_row=False, kb=None):
    "bias_per_row: bias [M]"
    a, b, bias = gemm_inputs(c, A, N, trans_b, True, False, bias_per_row, kb)
    c.out("Y", linear(a, b, bias, trans_b, bias_per_row), epilogue_tol(a, b, bias, trans_b, bias_per_row))


@kernel("S12.5", S12, "gemm_bias_backward", "dY A B", "dA dB dbias", "trans_b bias_per_row")
def gemm_bias_backward(c, A, N, trans_b=False, bias_per_row=False):
    dY = c.x("dY", *A[:-1], N)
    a, b, _ = gemm_inputs(c, A, N, trans_b, False)
    emit_gemm_grads(c, dY, a, b, trans_b, "row" if bias_per_row else "col")


# ------------------------------------------------------------------------------------------------ fused layer norm
def _ln_act(name, sec, fn, args):
    def forward(c, rows, k, eps=1e-5, approx="none"):
        x = c.x("x", rows, k)
        g, b = affine(c, k)
        m, r = stats(x.double(), [1], eps)
        c.out("Y", fn(F.layer_norm(x, (k,), g, b, eps), approx), NORM_F)
        c.out("mean", m, STAT)
        c.out("rstd", r, STAT)
    kernel(sec, S12, name, "x gamma beta", "Y mean:f32 rstd:f32", {"eps": 1e-5, **args})(forward)


_ln_act("layernorm_relu", "S12.7", lambda t, a: F.relu(t), {})
_ln_act("layernorm_gelu", "S12.8", lambda t, a: F.gelu(t, approximate=a), {"approx": "none"})


def ln_apply(x, m, r, g, b):
    return (x - m[:, None]) * r[:, None] * g + b


@kernel("S12.7", S12, "layernorm_relu_backward", "dY x gamma mean:f32 rstd:f32 Y", "dx dgamma dbeta")
def layernorm_relu_backward(c, rows, k, eps=1e-5):
    dY = c.x("dY", rows, k)
    raw = c.round(c.rnd(rows, k)).double()
    x = c.put("x", raw)
    g, _ = affine(c, k, True, False)
    beta = c.round(c.rnd(k)).double()
    m, r = stats(raw, [1], eps)
    m, r = c.put("mean", m, "f32"), c.put("rstd", r, "f32")
    y = F.relu(c.away(ln_apply(raw, m.double(), r.double(), g.double(), beta), gap=1e-2))
    Y = c.put("Y", y)
    z = torch.zeros_like(g)
    for n, v in zip(("dx", "dgamma", "dbeta"), torch.ops.aten.native_layer_norm_backward(dY * (Y > 0), x, (k,), m[:, None], r[:, None], g, z, [True] * 3)):
        c.out(n, v, NORM_B)


@kernel("S12.8", S12, "layernorm_gelu_backward", "dY x gamma beta mean:f32 rstd:f32", "dx dgamma dbeta", "approx")
def layernorm_gelu_backward(c, rows, k, approx="none", eps=1e-5):
    dY, x, g, b, m, r = ln_saved(c, rows, k, eps, True, beta=True, up="dY")
    t = ln_apply(x, m, r, g, b).detach().requires_grad_()
    dt, = ag(F.gelu(t, approximate=approx), [t], dY)
    for n, v in zip(("dx", "dgamma", "dbeta"), torch.ops.aten.native_layer_norm_backward(dt, x, (k,), m[:, None], r[:, None], g, b, [True] * 3)):
        c.out(n, v, NORM_B)


@kernel("S12.9", S12, "residual_layernorm", "x r gamma beta", "Y s mean:f32 rstd:f32", "eps")
def residual_layernorm(c, rows, k, eps=1e-5, rshape=None):
    s = c.x("x", rows, k) + c.x("r", *(rshape or (rows, k)))
    g, b = affine(c, k)
    if rshape:
        raise ValueError("no broadcast")
    m, r = stats(s.double(), [1], eps)
    c.out("Y", F.layer_norm(s, (k,), g, b, eps), NORM_F)
    c.out("s", s, ulp())
    c.out("mean", m, STAT)
    c.out("rstd", r, STAT)


@kernel("S12.9", S12, "residual_layernorm_backward", "dY ds_in? s gamma mean:f32 rstd:f32", "ds dgamma dbeta")
def residual_layernorm_backward(c, rows, k, eps=1e-5, ds_in=True):
    "ds is the gradient of both x and r"
    dY = c.x("dY", rows, k)
    di = c.x("ds_in", rows, k) if ds_in else None
    raw = c.round(c.rnd(rows, k)).double()
    s = c.put("s", raw)
    g, _ = affine(c, k, True, False)
    m, r = stats(raw, [1], eps)
    m, r = c.put("mean", m, "f32"), c.put("rstd", r, "f32")
    ds, dg, db = torch.ops.aten.native_layer_norm_backward(dY, s, (k,), m[:, None], r[:, None], g, torch.zeros_like(g), [True] * 3)
    c.out("ds", ds + di if di is not None else ds, NORM_B)
    c.out("dgamma", dg, NORM_B)
    c.out("dbeta", db, NORM_B)


@kernel("S12.10", S12, "bias_dropout", "x bias r?", "y mask:u8?", DROP)
def bias_dropout(c, shape, p, seed, stream=0, offset=0, residual=False, bn=None):
    "y = r + dropout(x + bias)"
    x, b = c.x("x", *shape), c.x("bias", bn or shape[-1])
    r = c.x("r", *shape) if residual else 0.0
    y, keep = dropout(x + b, p, seed, stream, offset)
    c.out("y", y + r, Tol(4 * ULP32, 4e-7 / (1 - p) if p < 1 else 1e-7))
    c.out("mask", keep, kind="u8")


@kernel("S12.10", S12, "bias_dropout_backward", "dy", "dx dbias", DROP)
def bias_dropout_backward(c, shape, p, seed, stream=0, offset=0):
    dy = c.x("dy", *shape)
    dx, _ = dropout(dy, p, seed, stream, offset)
    c.out("dx", dx, EXACT if p in (0, 0.5, 1) else ulp(2))
    n = shape[-1]
    c.out("dbias", dx.reshape(-1, n).sum(0), summed(dx.numel() // max(n, 1), clean(dx).reshape(-1, n).sum(0) if dx.numel() else 0))

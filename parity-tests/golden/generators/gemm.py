"""Matrix products (section 16). Oracles: torch.addmm, baddbmm, addmv, addr and dequantized products."""
import math
import numpy as np
import torch
from core import EXACT, Tol, ag, kernel, matmul_tol, splice, summed
from conv import ACTS, clean
from utility import emit_gemm_grads

G = "gemm"


def op(t, flag):
    return t.transpose(-1, -2) if flag else t


def shapes(M, N, K, ta, tb):
    return ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))


@kernel("G1", G, "gemm", "A B C?", "C", "alpha beta trans_a trans_b out_dtype")
def gemm(c, M, N, K, alpha=1.0, beta=0.0, trans_a=False, trans_b=False, with_c=None, special=None, kb=None, out_dtype=None, poison=False):
    """C = alpha*op(A) op(B) + beta*C; C is not read when beta = 0 (cases may pass a C full of NaN); out_dtype f32 with half inputs:
    C in and out are f32"""
    sa, sb = shapes(M, N, K, trans_a, trans_b)
    if kb:
        sb = shapes(M, N, kb, trans_a, trans_b)[1]
    A, B = c.x("A", *sa, special=special), c.x("B", *sb)
    kind = out_dtype or "data"
    C = None
    if with_c if with_c is not None else beta != 0:
        C = c.put("C", torch.full((M, N), math.nan) if poison else c.rnd(M, N), kind)
    if K and alpha:
        y = alpha * (op(A, trans_a) @ op(B, trans_b))
    else:
        y = torch.zeros(M, N, dtype=A.dtype)
    mag = abs(alpha) * (op(clean(A), trans_a) @ op(clean(B), trans_b)) if not kb else 0
    if C is not None and beta != 0:
        y = y + beta * C
        mag = mag + abs(beta) * clean(C)
    if c.compute == torch.float64 and C is not None and beta != 0 and not poison and alpha and K:
        assert torch.allclose(torch.addmm(C, op(A, trans_a), op(B, trans_b), beta=beta, alpha=alpha), y, equal_nan=True)
    c.out("C", y, matmul_tol(K, mag))


@kernel("G1", G, "gemm_backward", "dC A B", "dA dB", "alpha trans_a trans_b")
def gemm_backward(c, M, N, K, alpha=1.0, trans_a=False, trans_b=False):
    "gradients in the stored layouts of A and B"
    sa, sb = shapes(M, N, K, trans_a, trans_b)
    dC, A, B = c.x("dC", M, N), c.var("A", *sa), c.var("B", *sb)
    fn = lambda A, B: alpha * (op(A, trans_a) @ op(B, trans_b))
    aA, aB = clean(A).requires_grad_(), clean(B).requires_grad_()
    mags = ag(abs(alpha) * (op(aA, trans_a) @ op(aB, trans_b)), [aA, aB], clean(dC))
    for n, g, m, k in zip(("dA", "dB"), ag(fn(A, B), [A, B], dC), mags, (N, M)):
        c.out(n, g, matmul_tol(k, m))


@kernel("G2", G, "gemm_strided_batched", "A B C?", "C", "alpha beta trans_a trans_b")
def gemm_strided_batched(c, b, M, N, K, alpha=1.0, beta=0.0, trans_a=False, trans_b=False):
    "A [b, M, K], B [b, K, N] (stored transposed with the flags); stride 0 along the batch through the strides argument"
    sa, sb = shapes(M, N, K, trans_a, trans_b)
    A, B = c.x("A", b, *sa), c.x("B", b, *sb)
    C = c.x("C", b, M, N) if beta else None
    y = alpha * (op(A, trans_a) @ op(B, trans_b))
    mag = abs(alpha) * (op(clean(A), trans_a) @ op(clean(B), trans_b))
    if C is not None:
        y, mag = torch.baddbmm(C, op(A, trans_a), op(B, trans_b), beta=beta, alpha=alpha), mag + abs(beta) * clean(C)
    c.out("C", y, matmul_tol(K, mag))


@kernel("G3", G, "gemm_grouped", "A* B*", "C*", "trans_b")
def gemm_grouped(c, sizes, trans_b=False):
    "inputs A0, A1, ..., then B0, B1, ...; outputs C0, C1, ..."
    As = [c.x(f"A{i}", m, k) for i, (m, n, k) in enumerate(sizes)]
    Bs = [c.x(f"B{i}", *((n, k) if trans_b else (k, n))) for i, (m, n, k) in enumerate(sizes)]
    for i, (A, B) in enumerate(zip(As, Bs)):
        c.out(f"C{i}", A @ op(B, trans_b), matmul_tol(A.shape[1], clean(A) @ op(clean(B), trans_b)))


@kernel("G3", G, "gemm_grouped_ragged", "A B offsets:i32", "C", "trans_b")
def gemm_grouped_ragged(c, rows, N, K, trans_b=False, bad=False):
    "A [total, K], one weight per group B [G, K, N] (or [G, N, K]), row offsets [G+1]; an offset beyond the rows of A is an index error"
    A = c.x("A", sum(rows), K)
    B = c.x("B", len(rows), *((N, K) if trans_b else (K, N)))
    off = np.concatenate([[0], np.cumsum(rows)])
    if bad:
        off[-1] += 2
    c.idx("offsets", off, "i32")
    fn = lambda A, B: torch.cat([A[a:b] @ op(B[i], trans_b) for i, (a, b) in enumerate(zip(off[:-1], off[1:]))])
    c.out("C", fn(A, B), matmul_tol(K, fn(clean(A), clean(B))))


@kernel("G4", G, "gemv", "A x y?", "y", "alpha beta trans_a")
def gemv(c, M, N, alpha=1.0, beta=0.0, trans_a=False):
    "y = alpha*op(A) x + beta*y, A [M, N]"
    A = c.x("A", M, N)
    x = c.x("x", M if trans_a else N)
    y0 = c.x("y", N if trans_a else M) if beta else None
    y = alpha * (op(A, trans_a) @ x)
    mag = abs(alpha) * (op(clean(A), trans_a) @ clean(x))
    if beta:
        y, mag = torch.addmv(y0, op(A, trans_a), x, beta=beta, alpha=alpha), mag + abs(beta) * clean(y0)
    c.out("y", y, matmul_tol(M if trans_a else N, mag))


@kernel("G4", G, "ger", "A x y", "A", "alpha")
def ger(c, M, N, alpha=1.0):
    "A += alpha x y^T"
    A, x, y = c.x("A", M, N), c.x("x", M), c.x("y", N)
    c.out("A", torch.addr(A, x, y, alpha=alpha), matmul_tol(1, clean(A) + abs(alpha) * clean(x)[:, None] * clean(y)[None]))


EPI = {"act": "none", "trans_b": False, "bias_axis": "col", "scale_axis": "col", "preact": False, "colsum": False}


@kernel("G5", G, "gemm_epilogue", "A B bias? residual? scale?", "Y Z? dbias?", EPI)
def gemm_epilogue(c, M, N, K, act="none", trans_b=False, bias=True, bias_axis="col", residual=False, scale=False, scale_axis="col",
                  preact=False, colsum=False):
    """Z = scale*(op(A) B) + bias + residual, Y = act(Z); bias and scale have N entries (col) or M entries (row); preact: second output Z;
    colsum: column sum of Y as output dbias; act none, relu, leaky_relu (0.01), gelu, gelu_tanh, sigmoid, tanh, swish, hardswish"""
    A, B = c.x("A", M, K), c.x("B", *((N, K) if trans_b else (K, N)), scale=1 / math.sqrt(max(K, 1)))
    per = lambda v, ax: v if ax == "col" else v[:, None]
    b = c.x("bias", N if bias_axis == "col" else M) if bias else None
    r = c.x("residual", M, N) if residual else None
    s = c.put("scale", c.uni(N if scale_axis == "col" else M, lo=0.5, hi=1.5)) if scale else None
    z, mag = A @ op(B, trans_b), clean(A) @ op(clean(B), trans_b)
    if s is not None:
        z, mag = z * per(s, scale_axis), mag * per(clean(s), scale_axis)
    if b is not None:
        z, mag = z + per(b, bias_axis), mag + per(clean(b), bias_axis)
    if r is not None:
        z, mag = z + r, mag + clean(r)
    t = matmul_tol(K, mag, 1.2, 6e-7)
    t = Tol(t.rtol, t.atol + 1e-7)
    Y = ACTS[act](z)
    c.out("Y", Y, t)
    if preact:
        c.out("Z", z, t)
    if colsum:
        c.out("dbias", Y.sum(0), Tol(1e-6, t.atol * M + summed(M, clean(Y).sum(0)).atol))


@kernel("G6", G, "gemm_backward_epilogue", "dY A B Z? Y?", "dA dB dbias", "act trans_b")
def gemm_backward_epilogue(c, M, N, K, act="gelu", trans_b=False):
    "saved tensor: Y for none, relu, sigmoid, tanh; Z for the others"
    dY = c.x("dY", M, N)
    A, B = c.x("A", M, K), c.x("B", *((N, K) if trans_b else (K, N)), scale=1 / math.sqrt(K))
    z = A.double() @ op(B.double(), trans_b) + c.rnd(N)
    z = c.away(z, (0.0, -3.0, 3.0), 1e-2)
    if act in ("relu", "sigmoid", "tanh", "none"):
        Y = c.put("Y", ACTS[act](z))
        ops = torch.ops.aten
        dZ = {"relu": lambda: dY * (Y > 0), "none": lambda: dY, "sigmoid": lambda: ops.sigmoid_backward(dY, Y),
              "tanh": lambda: ops.tanh_backward(dY, Y)}[act]()
    else:
        Z = c.put("Z", z).requires_grad_()
        dZ, = ag(ACTS[act](Z), [Z], dY)
    emit_gemm_grads(c, dZ, A, B, trans_b)


@kernel("G7", G, "syrk_gram", "A C?", "C", "alpha beta")
def syrk_gram(c, M, K, alpha=1.0, beta=0.0):
    "C = alpha*A A^T + beta*C, both triangles written; the input C is symmetric"
    A = c.x("A", M, K)
    y, mag = alpha * (A @ A.t()), abs(alpha) * (clean(A) @ clean(A).t())
    if beta:
        r = c.rnd(M, M)
        C = c.put("C", r + r.t())
        y, mag = y + beta * C, mag + abs(beta) * clean(C)
    c.out("C", y, matmul_tol(K, mag))


@kernel("G8", G, "gemm_quantized", "x q:i8/u8 scale zero?", "y", {"bits": 8, "group": None})
def gemm_quantized(c, M, N, K, bits=8, group=None, zero=False):
    """y [M, N] = x [M, K] W^T, W = scale*(q - zero). bits 8: q i8 [N, K], scale [N]. bits 4: q u8 [N, K/2] packs two unsigned codes per
    byte, even k in the low nibble; scale (and zero, in codes) [N, K/group]; without zero the codes are offset by 8. scale is f16"""
    x = c.x("x", M, K)
    if bits == 8:
        q = c.integers(-127, 128, (N, K))
        c.raw("q", q.to(torch.int8))
        s = c.put("scale", c.uni(N, lo=0.002, hi=0.02), "f16").to(x.dtype)[:, None]
        z = 0
    else:
        q = c.integers(0, 16, (N, K))
        c.raw("q", (q[:, 0::2] + 16 * q[:, 1::2]).to(torch.uint8))
        s = c.put("scale", c.uni(N, K // group, lo=0.01, hi=0.1), "f16").to(x.dtype).repeat_interleave(group, 1)
        z = 8
        if zero:
            z = c.put("zero", c.integers(4, 12, (N, K // group)).double(), "f16").to(x.dtype).repeat_interleave(group, 1)
    W = (q.to(x.dtype) - z) * s
    c.out("y", x @ W.t(), matmul_tol(K, clean(x) @ clean(W).t(), 2.0))


@kernel("G8", G, "gemm_w8a8", "xq:i8 wq:i8 xscale:f32 wscale:f32", "y:f32")
def gemm_w8a8(c, M, N, K):
    "xq [M, K], wq [N, K], i32 accumulation, y = xscale[m]*wscale[n]*(xq wq^T)"
    a, b = c.integers(-127, 128, (M, K)), c.integers(-127, 128, (N, K))
    c.raw("xq", a.to(torch.int8)), c.raw("wq", b.to(torch.int8))
    sx, sw = c.put("xscale", c.uni(M, lo=0.001, hi=0.02), "f32"), c.put("wscale", c.uni(N, lo=0.001, hi=0.02), "f32")
    acc = (a.to(sx.dtype) @ b.to(sx.dtype).t())
    c.out("y", sx[:, None] * sw[None] * acc, Tol(4e-7, 1e-12))


FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@kernel("G9", G, "gemm_fp8", "a:u8 b:u8 scale_a:f32 scale_b:f32", "y:f32", {"fmt_a": "e4m3", "fmt_b": "e4m3", "block": None})
def gemm_fp8(c, M, N, K, fmt_a="e4m3", fmt_b="e4m3", rowwise=False, block=None):
    """a [M, K], b [N, K] hold fp8 bit patterns (e4m3 is the finite variant without infinities); y [M, N] = decode(a)*scale_a times
    (decode(b)*scale_b)^T. Scales: one element (per tensor), [M] and [N] (per row), or, with block, [M, K/block] and [N/block, K/block]"""
    dec = []
    for n, r, f in (("a", M, fmt_a), ("b", N, fmt_b)):
        t = c.rnd(r, K).to(torch.float32).to(FP8[f])
        c.raw(n, t.view(torch.uint8))
        dec.append(t.to(torch.float32).to(c.compute))
    sa_shape, sb_shape = ((M,), (N,)) if rowwise else ((1,), (1,))
    if block:
        sa_shape, sb_shape = (M, K // block), (N // block, K // block)
    sa, sb = c.put("scale_a", c.uni(*sa_shape, lo=0.5, hi=2), "f32"), c.put("scale_b", c.uni(*sb_shape, lo=0.5, hi=2), "f32")
    if block:
        A = dec[0] * sa.repeat_interleave(block, 1)
        B = dec[1] * sb.repeat_interleave(block, 0).repeat_interleave(block, 1)
    else:
        A = dec[0] * (sa[:, None] if rowwise else sa)
        B = dec[1] * (sb[:, None] if rowwise else sb)
    c.out("y", A @ B.t(), matmul_tol(K, clean(A) @ clean(B).t(), 2.0))

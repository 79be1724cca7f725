"""Graph kernels (section 13, B12), segment reductions (B2.13) and mesh kernels (section 14)."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from core import EXACT, TORCH, Tol, ag, kernel, matmul_tol, splice, summed
from conv import ACTS, clean

S, S14, B12, B2 = "graph", "mesh", "graph_extra", "scan_sort_distance"


def random_csr(c, M, K, nnz, empty_rows=True, unsorted=False, skew=False):
    "rowptr, col with duplicate entries allowed and some empty rows"
    rows = np.sort(c.integers(0, M, (nnz,)).numpy()) if nnz else np.zeros(0, np.int64)
    if skew and nnz:
        rows[: nnz // 2] = rows[0]                       # one long row
        rows = np.sort(rows)
    if empty_rows and M > 2:
        rows = np.where(rows == M // 2, M // 2 - 1, rows)
    col = c.integers(0, K, (nnz,)).numpy() if nnz else np.zeros(0, np.int64)
    if not unsorted:
        order = np.lexsort((col, rows))
        rows, col = rows[order], col[order]
    rowptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=M))])
    return rowptr, col, rows


def spmm(rows, col, val, X, M):
    "through index_add; val [nnz] or [nnz, H] (X [K, H, F]) or None"
    m = X[col]
    if val is not None:
        m = m * val.reshape(*val.shape, *[1] * (m.dim() - val.dim()))
    return torch.zeros(M, *X.shape[1:], dtype=X.dtype).index_add(0, rows, m)


@kernel("S13.1", S, "sparse_mm_forward", "rowptr:idx col:idx values? X bias?", "Y", "act")
def sparse_mm_forward(c, M, K, nnz, Fd, heads=None, values=True, bias=False, act="none", itype="i64", bad=False, **g):
    "values [nnz], [nnz, H] (then X [K, H, F]) or absent = 1; bias over the last axis"
    rp, col, rows = random_csr(c, M, K, nnz, **g)
    if bad:
        col[-1] = K
    c.idx("rowptr", rp, itype)
    col, rows = c.idx("col", col, itype), torch.from_numpy(rows)
    val = c.x("values", *((nnz, heads) if heads else (nnz,))) if values else None
    X = c.x("X", *((K, heads, Fd) if heads else (K, Fd)))
    b = c.x("bias", Fd) if bias else None
    Y = spmm(rows, col, val, X, M)
    if c.compute == torch.float64 and values and not heads and nnz:
        dense = torch.zeros(M, K).index_put((rows, col), val, accumulate=True)
        assert torch.allclose(dense @ X, Y)
    mag = spmm(rows, col, None if val is None else clean(val), clean(X), M) + (0 if b is None else clean(b))
    c.out("Y", ACTS[act](Y + b if bias else Y), matmul_tol(max(1, int(np.diff(rp).max()) if M else 1), mag))


@kernel("S13.2", S, "sparse_mm_backward", "dY rowptr:idx col:idx values? X", "dX dvalues? dbias?")
def sparse_mm_backward(c, M, K, nnz, Fd, heads=None, values=True, bias=False, itype="i64", **g):
    "dbias = column sum of dY"
    dY = c.x("dY", *((M, heads, Fd) if heads else (M, Fd)))
    rp, col, rows = random_csr(c, M, K, nnz, **g)
    c.idx("rowptr", rp, itype)
    col, rows = c.idx("col", col, itype), torch.from_numpy(rows)
    val = c.var("values", *((nnz, heads) if heads else (nnz,))) if values else None
    X = c.var("X", *((K, heads, Fd) if heads else (K, Fd)))
    xs = [X] + ([val] if values else [])
    g = ag(spmm(rows, col, val, X, M), xs, dY)
    k = int(torch.bincount(col, minlength=1).max()) if nnz else 1
    t = (lambda v: None if v is None else clean(v).requires_grad_())
    aX, av = t(X), t(val)
    m = ag(spmm(rows, col, av, aX, M), [aX] + ([av] if values else []), clean(dY))
    c.out("dX", g[0], matmul_tol(k, m[0]))
    if values:
        c.out("dvalues", g[1], matmul_tol(Fd, m[1]))
    if bias:
        ax = tuple(range(dY.dim() - 1))
        c.out("dbias", dY.sum(ax), summed(M, clean(dY).sum(ax)))


# ------------------------------------------------------------------------------------------------ message passing
def edge_bc(e, x):
    "edge feature e broadcast against node features of rank x.dim()"
    return e.reshape(*e.shape, *[1] * (x.dim() - e.dim()))


def message(msg, xu, xv, e):
    return {"copy_u": lambda: xu, "copy_e": lambda: e, "u_mul_e": lambda: xu * edge_bc(e, xu), "u_add_e": lambda: xu + edge_bc(e, xu),
            "u_add_v": lambda: xu + xv, "u_sub_v": lambda: xu - xv, "u_mul_v": lambda: xu * xv, "u_dot_v": lambda: (xu * xv).sum(-1)}[msg]()


def aggregate(m, dst, V, red):
    z = torch.zeros(V, *m.shape[1:], dtype=m.dtype)
    ix = dst.reshape(-1, *[1] * (m.dim() - 1)).expand_as(m)
    if red == "sum":
        return z.index_add(0, dst, m)
    return z.scatter_reduce(0, ix, m, {"mean": "mean", "max": "amax", "min": "amin"}[red], include_self=False)


def arg_of(m, y, dst, V):
    "smallest edge id that attains the extreme, -1 for nodes without edges"
    arg = torch.full((V,) + tuple(m.shape[1:]), -1, dtype=torch.int64)
    for e in range(m.shape[0] - 1, -1, -1):
        hit = (m[e] == y[dst[e]]) | (m[e].isnan() & y[dst[e]].isnan())
        arg[dst[e]] = torch.where(hit, torch.full_like(arg[dst[e]], e), arg[dst[e]])
    return arg


def graph_inputs(c, V, E, Fd, msg, e_shape, itype, var, bad=False, heads=None):
    src, dst = c.integers(0, V, (E,)).numpy().copy(), c.integers(0, max(1, V - 1), (E,)).numpy().copy()   # the last node has no in-edge
    if bad:
        src[0] = V
    src, dst = c.idx("src", src, itype), c.idx("dst", dst, itype)
    draw = c.var if var else c.x
    x = draw("x", V, *((heads,) if heads else ()), Fd) if msg != "copy_e" else None
    e = None
    if msg in ("copy_e", "u_mul_e", "u_add_e"):
        shape = {"scalar": (E,), "head": (E, heads), "full": (E, *((heads,) if heads else ()), Fd)}[e_shape]
        e = draw("e", *shape)
    return src, dst, x, e


@kernel("S13.3", S, "message_passing_forward", "src:idx dst:idx x? e?", "y arg:idx? degree:idx?", {"msg": "required", "red": "sum", "V": "required"})
def message_passing_forward(c, V, E, Fd, msg, red="sum", e="scalar", heads=None, itype="i64", bad=False, nan=False):
    """x [V, F] or [V, H, F]; e [E], [E, H] or x-like per edge; u_dot_v returns per-edge values [E] or [E, H] and ignores red; arg (edge id, -1
    if none) for max/min, degree (in-degree) for mean, both in the index dtype; equal values: smallest edge id"""
    src, dst, x, ev = graph_inputs(c, V, E, Fd, msg, e, itype, False, bad, heads)
    if nan:
        x = x.clone()
    m = message(msg, None if x is None else x[src], None if x is None else x[dst], ev)
    if msg == "u_dot_v":
        c.out("y", m, matmul_tol(Fd, (clean(x)[src] * clean(x)[dst]).sum(-1)))
        return
    y = aggregate(m, dst, V, red)
    k = int(torch.bincount(dst, minlength=1).max()) if E else 1
    arith = msg not in ("copy_u", "copy_e")
    if red in ("max", "min"):
        c.out("y", y, Tol(1.2e-7, 3e-7) if arith else EXACT)
        c.out("arg", arg_of(m, y, dst, V), kind=itype)
    else:
        c.out("y", y, summed(k + 1, aggregate(clean(m), dst, V, red) * 1.5 + 0.1))
        if red == "mean":
            c.out("degree", torch.bincount(dst, minlength=V), kind=itype)


@kernel("S13.4", S, "message_passing_backward", "dy src:idx dst:idx x? e? arg:idx? degree:idx?", "dx? de?", {"msg": "required", "red": "sum"})
def message_passing_backward(c, V, E, Fd, msg, red="sum", e="scalar", heads=None, itype="i64"):
    H = (heads,) if heads else ()
    full_e = e == "full" or msg != "copy_e"
    if msg == "u_dot_v":
        dy = c.x("dy", E, *H)
    else:
        dy = c.x("dy", V, *(H + (Fd,) if full_e else H if e == "head" else ()))
    src, dst, x, ev = graph_inputs(c, V, E, Fd, msg, e, itype, True, heads=heads)
    m = message(msg, None if x is None else x[src], None if x is None else x[dst], ev)
    y = m if msg == "u_dot_v" else aggregate(m, dst, V, red)
    if red in ("max", "min"):
        c.idx("arg", arg_of(m.detach(), y.detach(), dst, V).numpy(), itype)
    if red == "mean" and msg != "u_dot_v":
        c.idx("degree", torch.bincount(dst, minlength=V).numpy(), itype)
    xs = [t for t in (x, ev) if t is not None]
    g = ag(y, xs, dy)
    k = int(max(torch.bincount(dst, minlength=1).max(), torch.bincount(src, minlength=1).max())) if E else 1
    for t, v in zip(xs, g):
        c.out("dx" if t is x else "de", v, summed(2 * k + Fd, (dy.abs().max() if dy.numel() else 0) * (1 + float(t.detach().abs().max() if t.numel() else 0)) * (k + 1)))


# ------------------------------------------------------------------------------------------------ scatter reductions over [outer, n, inner]
def scatter_inputs(c, outer, n, inner, R, itype, like_src, bad, ties=False, special=None, fixed=None):
    src = c.put("src", splice(c.integers(-2, 3, (outer, n, inner)).double() if ties else c.rnd(outer, n, inner), special))
    shape = (outer, n, inner) if like_src else (n,)
    v = c.integers(0, max(1, R - 1), shape).numpy().copy() if fixed is None else np.asarray(fixed)      # row R-1 stays empty
    if bad is not None:
        v.reshape(-1)[0] = bad
    i = c.idx("idx", v, itype)
    return src, i, i if like_src else i[None, :, None].expand(outer, n, inner)


SC = {"R": "required"}


@kernel("S13.5", S, "scatter_add", "src idx:idx y?", "y", SC)
def scatter_add(c, outer, n, inner, R, itype="i64", like_src=False, onto=False, bad=None, fixed=None):
    "src [outer, n, inner], idx [n] or src-shaped; y [outer, R, inner], added onto the input y if given, else onto zeros"
    src, i, ix = scatter_inputs(c, outer, n, inner, R, itype, like_src, bad, fixed=fixed)
    y = c.x("y", outer, R, inner) if onto else torch.zeros(outer, R, inner, dtype=src.dtype)
    c.out("y", y.scatter_add(1, ix, src), summed(n, clean(y).scatter_add(1, ix, clean(src))))


@kernel("S13.5", S, "scatter_add_backward", "dy idx:idx", "dsrc")
def scatter_add_backward(c, outer, n, inner, R, itype="i64", like_src=False):
    dy = c.x("dy", outer, R, inner)
    v = c.integers(0, R, (outer, n, inner) if like_src else (n,))
    i = c.idx("idx", v.numpy(), itype)
    c.out("dsrc", dy.gather(1, i if like_src else i[None, :, None].expand(outer, n, inner)), EXACT)


@kernel("S13.6", S, "scatter_max", "src idx:idx", "y arg:idx", {"R": "required", "empty_value": 0.0})
def scatter_max(c, outer, n, inner, R, empty_value=0.0, itype="i64", ties=False, special=None, bad=None):
    "idx [n]; arg [outer, R, inner] in the index dtype: position along n, -1 if none, smallest position on ties"
    src, i, ix = scatter_inputs(c, outer, n, inner, R, itype, False, bad, ties, special)
    y = torch.full((outer, R, inner), empty_value, dtype=src.dtype).scatter_reduce(1, ix, src, "amax", include_self=False)
    arg = torch.full((outer, R, inner), -1, dtype=torch.int64)
    for p in range(n - 1, -1, -1):
        r = int(i[p])
        hit = (src[:, p] == y[:, r]) | (src[:, p].isnan() & y[:, r].isnan())
        arg[:, r] = torch.where(hit, torch.full_like(arg[:, r], p), arg[:, r])
    c.out("y", y, EXACT)
    c.out("arg", arg, kind=itype)


@kernel("S13.6", S, "scatter_max_backward", "dy arg:idx", "dsrc", {"n": "required"})
def scatter_max_backward(c, outer, n, inner, R, itype="i64"):
    dy = c.x("dy", outer, R, inner)
    src = c.rnd(outer, n, inner).requires_grad_()
    i = c.integers(0, max(1, R - 1), (n,))
    ix = i[None, :, None].expand(outer, n, inner)
    y = torch.zeros(outer, R, inner, dtype=src.dtype).scatter_reduce(1, ix, src, "amax", include_self=False)
    arg = torch.full((outer, R, inner), -1, dtype=torch.int64)
    for p in range(n):
        arg[:, i[p]] = torch.where(src[:, p] == y[:, i[p]], torch.full_like(arg[:, i[p]], p), arg[:, i[p]])
    c.idx("arg", arg.detach().numpy(), itype)
    g, = ag(y, [src], dy.to(src.dtype))
    c.out("dsrc", g, EXACT)


@kernel("S13.7", S, "scatter_mean", "src idx:idx", "y counts:i32", SC)
def scatter_mean(c, outer, n, inner, R, itype="i64", bad=None):
    "counts [R]"
    src, i, ix = scatter_inputs(c, outer, n, inner, R, itype, False, bad)
    z = torch.zeros(outer, R, inner, dtype=src.dtype)
    y = z.scatter_reduce(1, ix, src, "mean", include_self=False)
    c.out("y", y, summed(n, z.double().scatter_reduce(1, ix, clean(src), "mean", include_self=False)))
    c.out("counts", torch.bincount(i, minlength=R), kind="i32")


@kernel("S13.7", S, "scatter_mean_backward", "dy idx:idx counts:i32", "dsrc")
def scatter_mean_backward(c, outer, n, inner, R, itype="i64"):
    dy = c.x("dy", outer, R, inner)
    i = c.idx("idx", c.integers(0, R, (n,)).numpy(), itype)
    c.idx("counts", torch.bincount(i, minlength=R).numpy(), "i32")
    src = torch.zeros(outer, n, inner, dtype=dy.dtype, requires_grad=True)
    y = torch.zeros(outer, R, inner, dtype=dy.dtype).scatter_reduce(1, i[None, :, None].expand(outer, n, inner), src, "mean", include_self=False)
    c.out("dsrc", ag(y, [src], dy)[0], Tol(2.4e-7, 1e-45))


def edge_softmax_value(l, dst, V):
    ix = dst[:, None].expand_as(l)
    m = torch.zeros(V, l.shape[1], dtype=l.dtype).scatter_reduce(0, ix, l.detach(), "amax", include_self=False)
    e = torch.exp(l - m[dst])
    return e / torch.zeros(V, l.shape[1], dtype=l.dtype).index_add(0, dst, e)[dst]


@kernel("S13.8", S, "edge_softmax", "logits dst:idx", "a", {"V": "required"})
def edge_softmax(c, E, H, V, itype="i64", scale=2.0, bad=None):
    l = c.x("logits", E, H, scale=scale)
    d = c.integers(0, V, (E,)).numpy().copy()
    if bad is not None:
        d[0] = bad
    c.out("a", edge_softmax_value(l, c.idx("dst", d, itype), V), Tol(1e-6, 1e-7))


@kernel("S13.8", S, "edge_softmax_backward", "da a dst:idx", "dl", {"V": "required"})
def edge_softmax_backward(c, E, H, V, itype="i64"):
    da = c.x("da", E, H)
    d = c.integers(0, V, (E,))
    a = c.put("a", edge_softmax_value(c.rnd(E, H, scale=2), d, V))
    d = c.idx("dst", d.numpy(), itype)
    s = torch.zeros(V, H, dtype=a.dtype).index_add(0, d, a * da)
    c.out("dl", a * (da - s[d]), summed(E, clean(da).max() * 2 if E else 0, 1e-6))


# ------------------------------------------------------------------------------------------------ heat diffusion
def diffuse(x, Phi, lam, m, t, W, b):
    xm = x if m is None else x * m[:, None]
    S_hat = Phi.t() @ xm
    hs = []
    for s in range(t.shape[0]):
        ts = t[s] if t.dim() == 2 else t[s].expand(x.shape[-1])
        hs.append(Phi @ (torch.exp(-lam[:, None] * ts[None]) * S_hat))
    H = torch.cat(hs, -1)
    return H @ W.t() + (0 if b is None else b), S_hat


def diffuse_direct(x, L, t, W, b):
    H = torch.cat([torch.linalg.matrix_exp(-ts * L) @ x for ts in t], -1)
    return H @ W.t() + (0 if b is None else b)


def laplacian(c, V):
    w = torch.triu((c.uni(V, V) < 0.4) * c.uni(V, V, lo=0.2, hi=1), 1)
    w = w + w.t()
    return torch.diag(w.sum(1)) - w


def diffusion_inputs(c, V, C, K, S, O, mode, var, batch, mass, per_channel, bias):
    draw, put = (c.var, c.putv) if var else (c.x, c.put)
    x = draw("x", *((batch,) if batch else ()), V, C)
    Phi = lam = m = L = None
    if mode == "eigen":
        Phi, lam = c.x("Phi", V, K, scale=1 / math.sqrt(V)), c.put("lam", c.uni(K, lo=0, hi=3))
        m = c.put("m", c.uni(V, lo=0.5, hi=1.5)) if mass else None
    else:
        L = c.put("L", laplacian(c, V))
    t = put("t", c.uni(S, C, lo=0.05, hi=1) if per_channel else c.uni(S, lo=0.05, hi=1.5))
    W = draw("W", O, S * C, scale=1 / math.sqrt(S * C))
    return x, Phi, lam, m, L, t, W


@kernel("S13.9", S, "diffusion_conv_forward", "x Phi? lam? m? L? t W b?", "y S_hat?", "mode")
def diffusion_conv_forward(c, V, C, K, S, O, mode="eigen", batch=None, mass=True, per_channel=False, bias=True):
    "mode eigen: Phi, lam, m; mode direct: dense L [V, V]"
    x, Phi, lam, m, L, t, W = diffusion_inputs(c, V, C, K, S, O, mode, False, batch, mass, per_channel, bias)
    b = c.x("b", O) if bias else None
    if mode == "eigen":
        y, sh = diffuse(x, Phi, lam, m, t, W, b)
        c.out("y", y, Tol(5e-6, 5e-6))
        c.out("S_hat", sh, Tol(5e-6, 3e-6))
    else:
        c.out("y", diffuse_direct(x, L, t, W, b), Tol(1e-5, 1e-5))


@kernel("S13.10", S, "diffusion_conv_backward", "dy x Phi? lam? m? L? t W S_hat?", "dx dt dW db", "mode")
def diffusion_conv_backward(c, V, C, K, S, O, mode="eigen", batch=None, mass=True, per_channel=False):
    dy = c.x("dy", *((batch,) if batch else ()), V, O)
    x, Phi, lam, m, L, t, W = diffusion_inputs(c, V, C, K, S, O, mode, True, batch, mass, per_channel, True)
    b = torch.zeros(O, dtype=dy.dtype, requires_grad=True)
    if mode == "eigen":
        d = lambda v: None if v is None else v.detach().double()
        c.put("S_hat", diffuse(*map(d, (x, Phi, lam, m, t, W, b)))[1])
        y, _ = diffuse(x, Phi, lam, m, t, W, b)
    else:
        y = diffuse_direct(x, L, t, W, b)
    for n, g in zip(("dx", "dt", "dW", "db"), ag(y, [x, t, W, b], dy)):
        c.out(n, g, Tol(2e-5, 1e-5 + 2e-6 * float(g.detach().abs().max() if g.numel() else 0)))


# ------------------------------------------------------------------------------------------------ mesh
def neighbours(c, E, n, itype, bad):
    v = c.integers(0, max(E, 1), (E, n)).numpy().copy()
    v[c.uni(E, n).numpy() < 0.2] = -1
    if bad:
        v[0, 0] = E
    return v


def mesh_features(x, nbr, mode):
    pad = torch.cat([x, torch.zeros_like(x[..., :1, :])], -2)
    nb = [pad[..., torch.where(nbr[:, i] < 0, torch.full_like(nbr[:, i], x.shape[-2]), nbr[:, i]), :] for i in range(nbr.shape[1])]
    if mode == "concat":
        return torch.cat([x] + nb, -1)
    a, b, cc, d = nb
    return torch.cat([x, (a - cc).abs(), a + cc, (b - d).abs(), b + d], -1)


def mesh_call(c, E, C, O, n, mode, batch, bad, var, bias=True):
    draw = c.var if var else c.x
    if mode == "symmetric" and n != 4:
        c.error = c.error or "invalid"
    Fd = 5 * C if mode == "symmetric" else C * (1 + n)
    x = draw("x", *((batch,) if batch else ()), E, C)
    nbr = c.idx("nbr", neighbours(c, E, n, "i32", bad), "i32")
    W = draw("W", O, Fd, scale=1 / math.sqrt(Fd))
    return x, nbr, W


@kernel("S14.3", S14, "mesh_conv_forward", "x nbr:i32 W b?", "y", "mode")
def mesh_conv_forward(c, E, C, O, n=4, mode="concat", batch=None, bias=True, bad=False):
    "x [E, C] or [B, E, C], nbr [E, n] with -1 = none; mode concat or symmetric"
    x, nbr, W = mesh_call(c, E, C, O, n, mode, batch, bad, False)
    b = c.x("b", O) if bias else None
    f = mesh_features(x, nbr, mode)
    c.out("y", F.linear(f, W, b), matmul_tol(W.shape[1], F.linear(clean(f), clean(W), None if b is None else clean(b)), 1.5))


@kernel("S14.4", S14, "mesh_conv_backward", "dy x nbr:i32 W", "dx dW db", "mode")
def mesh_conv_backward(c, E, C, O, n=4, mode="concat", batch=None):
    dy = c.x("dy", *((batch,) if batch else ()), E, O)
    x, nbr, W = mesh_call(c, E, C, O, n, mode, batch, False, True)
    b = torch.zeros(O, dtype=dy.dtype, requires_grad=True)
    for k, g in zip(("dx", "dW", "db"), ag(F.linear(mesh_features(x, nbr, mode), W, b), [x, W, b], dy)):
        c.out(k, g, Tol(1e-6, 1.5e-6 * max(1.0, float(g.detach().abs().max()) if g.numel() else 1.0)))


def spiral_gather(x, sp):
    pad = torch.cat([x, torch.zeros_like(x[:1])])
    return pad[torch.where(sp < 0, torch.full_like(sp, x.shape[0]), sp)].reshape(sp.shape[0], -1)


def spirals(c, V, L, bad):
    v = c.integers(0, max(V, 1), (V, L)).numpy().copy()
    v[:, 0] = np.arange(V)
    cut = c.integers(max(1, L // 2), L + 1, (V,)).numpy()
    for i in range(V):
        v[i, cut[i]:] = -1
    if bad:
        v[0, -1] = V + 4
    return v


@kernel("S14.5", S14, "spiral_conv_forward", "x spiral:i32 W b?", "y")
def spiral_conv_forward(c, V, C, L, O, bias=True, bad=False):
    x = c.x("x", V, C)
    sp = c.idx("spiral", spirals(c, V, L, bad), "i32")
    W = c.x("W", O, L * C, scale=1 / math.sqrt(L * C))
    b = c.x("b", O) if bias else None
    f = spiral_gather(x, sp)
    c.out("y", F.linear(f, W, b), matmul_tol(L * C, F.linear(clean(f), clean(W), None if b is None else clean(b))))


@kernel("S14.6", S14, "spiral_conv_backward", "dy x spiral:i32 W", "dx dW db")
def spiral_conv_backward(c, V, C, L, O):
    dy, x = c.x("dy", V, O), c.var("x", V, C)
    sp = c.idx("spiral", spirals(c, V, L, False), "i32")
    W = c.var("W", O, L * C, scale=1 / math.sqrt(L * C))
    b = torch.zeros(O, dtype=dy.dtype, requires_grad=True)
    for k, g in zip(("dx", "dW", "db"), ag(F.linear(spiral_gather(x, sp), W, b), [x, W, b], dy)):
        c.out(k, g, Tol(1e-6, 1.5e-6 * max(1.0, float(g.detach().abs().max()) if g.numel() else 1.0)))


# ------------------------------------------------------------------------------------------------ B12
@kernel("B12.1", B12, "sddmm", "src:idx dst:idx x y", "out")
def sddmm(c, M, K, E, Fd, itype="i64", bad=False):
    "out[e] = x[src[e]] . y[dst[e]]"
    s = c.integers(0, M, (E,)).numpy().copy()
    if bad:
        s[0] = -1
    s, d = c.idx("src", s, itype), c.idx("dst", c.integers(0, K, (E,)).numpy(), itype)
    x, y = c.x("x", M, Fd), c.x("y", K, Fd)
    c.out("out", (x[s] * y[d]).sum(-1), matmul_tol(Fd, (clean(x)[s] * clean(y)[d]).sum(-1)))


@kernel("B12.1", B12, "sddmm_backward", "dout src:idx dst:idx x y", "dx dy")
def sddmm_backward(c, M, K, E, Fd, itype="i64"):
    g = c.x("dout", E)
    s, d = c.idx("src", c.integers(0, M, (E,)).numpy(), itype), c.idx("dst", c.integers(0, K, (E,)).numpy(), itype)
    x, y = c.var("x", M, Fd), c.var("y", K, Fd)
    ax, ay = clean(x).requires_grad_(), clean(y).requires_grad_()
    mags = ag((ax[s] * ay[d]).sum(-1), [ax, ay], clean(g))
    for k, v, m in zip(("dx", "dy"), ag((x[s] * y[d]).sum(-1), [x, y], g), mags):
        c.out(k, v, matmul_tol(E, m))


@kernel("B12.3", B12, "degree", "dst:idx", "deg:i64", {"V": "required"})
def degree(c, V, E, itype="i64", bad=False):
    "i64 counts"
    d = c.integers(0, max(1, V - 1), (E,)).numpy().copy()
    if bad:
        d[0] = V
    c.out("deg", torch.bincount(c.idx("dst", d, itype), minlength=V), kind="i64")


@kernel("B12.3", B12, "sym_normalize", "rowptr:idx col:idx values?", "values", {})
def sym_normalize(c, V, nnz, values=True, itype="i64", isolated=True):
    "square matrix; d_i = sum of row i; value / sqrt(d_row d_col), 0 where a degree is 0"
    rp, col, rows = random_csr(c, V, V, nnz, isolated)
    c.idx("rowptr", rp, itype)
    col = c.idx("col", col, itype)
    v = c.put("values", c.uni(nnz, lo=0.1, hi=2)) if values else torch.ones(nnz, dtype=c.compute)
    d = torch.zeros(V, dtype=v.dtype).index_add(0, torch.from_numpy(rows), v)
    r = torch.where(d > 0, d.clamp_min(1e-30) ** -0.5, torch.zeros_like(d))
    c.out("values", v * r[torch.from_numpy(rows)] * r[col], Tol(2e-6, 1e-9))


@kernel("B12.4", B12, "coo_to_csr", "row:idx col:idx values?", "rowptr:idx col:idx perm:idx values?", {"M": "required"})
def coo_to_csr(c, M, K, nnz, values=True, itype="i64", bad=False):
    "stable counting sort by row (columns keep their input order); perm[i] = input position of output entry i; results in the index dtype"
    r = c.integers(0, M, (nnz,)).numpy().copy()
    if bad:
        r[0] = M
    r, col = c.idx("row", r, itype), c.idx("col", c.integers(0, K, (nnz,)).numpy(), itype)
    v = c.x("values", nnz) if values else None
    perm = torch.argsort(r, stable=True)
    c.out("rowptr", torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(r, minlength=M).cumsum(0)]), kind=itype)
    c.out("col", col[perm], kind=itype)
    c.out("perm", perm, kind=itype)
    if values:
        c.out("values", v[perm], EXACT)


@kernel("B12.4", B12, "csr_transpose", "rowptr:idx col:idx values?", "rowptr:idx col:idx perm:idx values?", {"K": "required"})
def csr_transpose(c, M, K, nnz, values=True, itype="i64"):
    "K columns; entries of each output row ordered by input row, then input order"
    rp, col, rows = random_csr(c, M, K, nnz, True, True)
    c.idx("rowptr", rp, itype)
    col, rows = c.idx("col", col, itype), torch.from_numpy(rows)
    v = c.x("values", nnz) if values else None
    perm = torch.argsort(col, stable=True)
    c.out("rowptr", torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(col, minlength=K).cumsum(0)]), kind=itype)
    c.out("col", rows[perm], kind=itype)
    c.out("perm", perm, kind=itype)
    if values:
        c.out("values", v[perm], EXACT)


@kernel("B12.4", B12, "csr_sort", "rowptr:idx col:idx values?", "col:idx perm:idx values?")
def csr_sort(c, M, K, nnz, values=True, itype="i64"):
    "sorts the columns inside every row, stable"
    rp, col, rows = random_csr(c, M, K, nnz, True, True)
    c.idx("rowptr", rp, itype)
    col = c.idx("col", col, itype)
    v = c.x("values", nnz) if values else None
    perm = torch.from_numpy(np.lexsort((np.arange(nnz), col.numpy(), rows)))
    c.out("col", col[perm], kind=itype)
    c.out("perm", perm, kind=itype)
    if values:
        c.out("values", v[perm], EXACT)


# ------------------------------------------------------------------------------------------------ segments (B2.13)
SEG = ("sum", "mean", "max", "min", "var", "std")


def segment_value(x, rp, op, eps):
    rows = []
    for a, b in zip(rp[:-1], rp[1:]):
        s = x[a:b]
        if b == a:
            rows.append(torch.zeros_like(x.sum(0)))
        elif op in ("max", "min"):
            rows.append(s.amax(0) if op == "max" else s.amin(0))
        elif op in ("var", "std"):
            v = s.var(0, correction=0)
            rows.append(v if op == "var" else torch.sqrt(v + eps))
        else:
            rows.append(getattr(s, op)(0))
    return torch.stack(rows) if rows else x.new_zeros(0, *x.shape[1:])


def _segment(op):
    args = {"eps": 0.0} if op == "std" else {}

    def draw_ptr(c, sizes):
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def forward(c, sizes, Fd, itype="i64", eps=0.0, special=None):
        "x [n, F], rowptr [M+1]; empty segments give 0; var and std are biased, std = sqrt(var + eps)"
        rp = draw_ptr(c, sizes)
        x = c.x("x", int(rp[-1]), Fd, special=special)
        c.idx("rowptr", rp, itype)
        y = segment_value(x, rp, op, eps)
        t = EXACT if op in ("max", "min") else Tol(1e-5, 1e-6) if op in ("var", "std") else \
            summed(max(sizes, default=1), segment_value(clean(x), rp, op, eps))
        c.out("y", y, t)
    kernel("B2.13", B2, "segment_" + op, "x rowptr:idx", "y", args)(forward)

    def backward(c, sizes, Fd, itype="i64", eps=0.0):
        rp = draw_ptr(c, sizes)
        dy, x = c.x("dy", len(sizes), Fd), c.var("x", int(rp[-1]), Fd)
        c.idx("rowptr", rp, itype)
        c.out("dx", ag(segment_value(x, rp, op, eps), [x], dy)[0], EXACT if op in ("sum", "max", "min") else Tol(1e-5, 1e-6))
    kernel("B2.13", B2, f"segment_{op}_backward", "dy x rowptr:idx", "dx", args)(backward)


for _o in SEG:
    _segment(_o)

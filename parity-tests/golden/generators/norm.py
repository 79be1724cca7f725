"""Normalisation (section 4 and B3). Oracles: F.*_norm, torch.native_*_norm, and the aten backward ops on the saved statistics."""
import math
import torch
import torch.nn.functional as F
from core import EXACT, NORM_B, NORM_F, Tol, ag, kernel, summed, TRANS
from conv import ACTS

S, B3 = "norm", "norm_extra"
aten = torch.ops.aten
STAT = Tol(1e-5, 1e-6)


def fwd_tol(x, mean, rstd):
    "a large mean costs digits in x - mean, whatever the algorithm"
    return Tol(1e-5, 1e-6 * max(1.0, float((mean.double() * rstd.double()).abs().nan_to_num(0).max()) if mean.numel() else 1.0))


def affine(c, n, gamma=True, beta=True):
    g = c.put("gamma", c.rnd(n) * 0.5 + 1.0) if gamma else None
    b = c.x("beta", n) if beta else None
    return g, b


def stats(x, dims, eps):
    "float64 mean and rstd"
    m = x.mean(dims)
    return m, 1 / torch.sqrt(x.var(dims, correction=0) + eps)


# ------------------------------------------------------------------------------------------------ batch norm
@kernel("S4.1", S, "batchnorm_forward", "x gamma? beta? running_mean:f32? running_var:f32? counter:i64?",
        "y save_mean:f32? save_rstd:f32? running_mean:f32? running_var:f32? counter:i64?", "eps momentum training")
def batchnorm_forward(c, shape, eps=1e-5, momentum=0.1, training=True, gamma=True, beta=True, running=True, count=None, const=None,
                      shift=0.0, special=None, cn=None):
    """running buffers are updated in place when training and unchanged otherwise; momentum null: factor 1/(counter+1), counter is the
    number of batches seen before and is incremented"""
    C = shape[1] if len(shape) > 1 else 0
    x = c.x("x", *shape, shift=shift, special=special) if const is None else c.put("x", torch.full(shape, const))
    g, b = affine(c, cn or C, gamma, beta)
    rm = c.x("running_mean", C, kind="f32") if running else None
    rv = c.put("running_var", c.uni(C, lo=0.5, hi=2), "f32") if running else None
    f = momentum
    if momentum is None:
        n = c.raw("counter", torch.tensor(count, dtype=torch.int64))
        f = 1.0 / (count + 1)
    if training and x.numel() // max(C, 1) == 1:
        raise ValueError("one value per channel")
    dims = [0] + list(range(2, len(shape)))
    m, r = stats(x.double(), dims, eps)
    rm2, rv2 = (None, None) if rm is None else (rm.clone().to(x.dtype), rv.clone().to(x.dtype))
    y = F.batch_norm(x, rm2, rv2, g, b, training, f, eps)
    if not training:
        m, r = rm.double(), 1 / torch.sqrt(rv.double() + eps)
    c.out("y", y, fwd_tol(x, m, r))
    if training:
        c.out("save_mean", m, STAT)
        c.out("save_rstd", r, STAT)
    if running:
        c.out("running_mean", rm2, STAT if training else EXACT)
        c.out("running_var", rv2, STAT if training else EXACT)
    if momentum is None:
        c.out("counter", torch.tensor(count + 1), kind="i64")


@kernel("S4.6", S, "batchnorm_backward", "dy x gamma? save_mean:f32 save_rstd:f32", "dx dgamma dbeta", "training")
def batchnorm_backward(c, shape, training=True, gamma=True, shift=0.0, eps=1e-5):
    "training false: save_mean, save_rstd are the running mean and 1/sqrt(running_var+eps)"
    C, dims = shape[1], [0] + list(range(2, len(shape)))
    raw = c.round(c.rnd(*shape, shift=shift)).double()
    dy, x = c.x("dy", *shape), c.put("x", raw)
    g, _ = affine(c, C, gamma, False)
    if training:
        m, r = stats(raw, dims, eps)
    else:
        m, r = c.rnd(C) * 0.3, 1 / torch.sqrt(c.uni(C, lo=0.5, hi=2))
    m, r = c.put("save_mean", m, "f32"), c.put("save_rstd", r, "f32")
    w = torch.ones(C, dtype=x.dtype) if g is None else g
    if training:
        dx, dg, db = aten.native_batch_norm_backward(dy, x, w, None, None, m, r, True, eps, [True] * 3)
    else:
        xh = (x - view(m, x)) * view(r, x)
        dx, dg, db = dy * view(w * r, x), (dy * xh).sum(dims), dy.sum(dims)
    c.out("dx", dx, NORM_B)
    c.out("dgamma", dg, NORM_B)
    c.out("dbeta", db, NORM_B)


def view(v, x):
    return v.reshape(1, -1, *[1] * (x.dim() - 2))


# ------------------------------------------------------------------------------------------------ layer norm, rms norm
@kernel("S4.2", S, "layernorm_forward", "x gamma? beta?", "y mean:f32? rstd:f32?", "eps")
def layernorm_forward(c, rows, k, eps=1e-5, gamma=True, beta=True, const=None, shift=0.0, special=None, gn=None):
    x = c.x("x", rows, k, shift=shift, special=special) if const is None else c.put("x", torch.full((rows, k), const))
    g, b = affine(c, gn or k, gamma, beta)
    y = F.layer_norm(x, (k,), g, b, eps)
    m, r = stats(x.double(), [1], eps)
    c.out("y", y, fwd_tol(x, m, r))
    c.out("mean", m, STAT)
    c.out("rstd", r, STAT)


def ln_saved(c, rows, k, eps, gamma, shift=0.0, beta=False, up="dy"):
    "upstream gradient, x, gamma, beta, saved statistics"
    dy = c.x(up, rows, k)
    raw = c.round(c.rnd(rows, k, shift=shift)).double()
    x = c.put("x", raw)
    g, b = affine(c, k, gamma, beta)
    m, r = stats(raw, [1], eps)
    return dy, x, g, b, c.put("mean", m, "f32"), c.put("rstd", r, "f32")


def ln_backward(dy, x, g, m, r):
    b = None if g is None else torch.zeros_like(g)
    w = torch.ones(x.shape[1], dtype=x.dtype) if g is None else g
    return aten.native_layer_norm_backward(dy, x, (x.shape[1],), m[:, None], r[:, None], w, torch.zeros_like(w) if b is None else b, [True] * 3)


@kernel("S4.7", S, "layernorm_backward", "dy x gamma? mean:f32 rstd:f32", "dx")
def layernorm_backward(c, rows, k, gamma=True, shift=0.0, eps=1e-5):
    dy, x, g, _, m, r = ln_saved(c, rows, k, eps, gamma, shift)
    c.out("dx", ln_backward(dy, x, g, m, r)[0], NORM_B)


@kernel("S4.8", S, "layernorm_grad_params", "dy x mean:f32 rstd:f32", "dgamma dbeta")
def layernorm_grad_params(c, rows, k, shift=0.0, eps=1e-5):
    dy, x, _, _, m, r = ln_saved(c, rows, k, eps, False, shift)
    _, dg, db = ln_backward(dy, x, None, m, r)
    c.out("dgamma", dg, NORM_B)
    c.out("dbeta", db, NORM_B)


@kernel("S4.5", S, "rmsnorm_forward", "x gamma?", "y r:f32?", "eps gamma_offset")
def rmsnorm_forward(c, rows, k, eps=1e-6, gamma_offset=0.0, gamma=True, special=None, scale=1.0, gn=None):
    x = c.x("x", rows, k, special=special, scale=scale)
    g, _ = affine(c, gn or k, gamma, False)
    c.out("y", F.rms_norm(x, (k,), None if g is None else g + gamma_offset, eps), NORM_F)
    c.out("r", 1 / torch.sqrt((x.double() ** 2).mean(1) + eps), STAT)


def rms_saved(c, rows, k, eps, gamma, scale=1.0):
    dy = c.x("dy", rows, k)
    raw = c.round(c.rnd(rows, k, scale=scale)).double()
    x = c.putv("x", raw)
    g, _ = affine(c, k, gamma, False)
    c.put("r", 1 / torch.sqrt((raw ** 2).mean(1) + eps), "f32")
    return dy, x, g


@kernel("S4.11", S, "rmsnorm_backward", "dy x gamma? r:f32", "dx", "gamma_offset")
def rmsnorm_backward(c, rows, k, eps=1e-6, gamma_offset=0.0, gamma=True, scale=1.0):
    dy, x, g = rms_saved(c, rows, k, eps, gamma, scale)
    c.out("dx", ag(F.rms_norm(x, (k,), None if g is None else g + gamma_offset, eps), [x], dy)[0], NORM_B)


@kernel("S4.12", S, "rmsnorm_grad_gamma", "dy x r:f32", "dgamma")
def rmsnorm_grad_gamma(c, rows, k, eps=1e-6, scale=1.0):
    dy, x, _ = rms_saved(c, rows, k, eps, False, scale)
    g = torch.ones(k, dtype=x.dtype, requires_grad=True)
    c.out("dgamma", ag(F.rms_norm(x, (k,), g, eps), [g], dy)[0], NORM_B)


# ------------------------------------------------------------------------------------------------ group and instance norm
def group_stats(x, G, eps):
    v = x.double().reshape(x.shape[0], G, math.prod(x.shape[1:]) // G)
    return stats(v, [2], eps)


@kernel("S4.3", S, "groupnorm_forward", "x gamma? beta?", "y mean:f32? rstd:f32?", "G eps")
def groupnorm_forward(c, shape, G, eps=1e-5, gamma=True, beta=True, const=None, shift=0.0, special=None):
    x = c.x("x", *shape, shift=shift, special=special) if const is None else c.put("x", torch.full(shape, const))
    g, b = affine(c, shape[1], gamma, beta)
    y = F.group_norm(x, G, g, b, eps)
    m, r = group_stats(x, G, eps)
    c.out("y", y, fwd_tol(x, m, r))
    c.out("mean", m, STAT)
    c.out("rstd", r, STAT)


@kernel("S4.9", S, "groupnorm_backward", "dy x gamma? mean:f32 rstd:f32", "dx dgamma dbeta", "G")
def groupnorm_backward(c, shape, G, gamma=True, shift=0.0, eps=1e-5):
    raw = c.round(c.rnd(*shape, shift=shift)).double()
    dy, x = c.x("dy", *shape), c.put("x", raw)
    g, _ = affine(c, shape[1], gamma, False)
    m, r = group_stats(raw, G, eps)
    m, r = c.put("mean", m, "f32"), c.put("rstd", r, "f32")
    w = torch.ones(shape[1], dtype=x.dtype) if g is None else g
    dx, dg, db = aten.native_group_norm_backward(dy, x, m, r, w, shape[0], shape[1], math.prod(shape[2:]), G, [True] * 3)
    c.out("dx", dx, NORM_B)
    c.out("dgamma", dg, NORM_B)
    c.out("dbeta", db, NORM_B)


@kernel("S4.4", S, "instancenorm_forward", "x gamma? beta? running_mean:f32? running_var:f32?",
        "y mean:f32? rstd:f32? running_mean:f32? running_var:f32?", "eps momentum use_input_stats")
def instancenorm_forward(c, shape, eps=1e-5, momentum=0.1, use_input_stats=True, gamma=True, beta=True, running=False, shift=0.0):
    C = shape[1]
    x = c.x("x", *shape, shift=shift)
    g, b = affine(c, C, gamma, beta)
    rm = c.x("running_mean", C, kind="f32") if running else None
    rv = c.put("running_var", c.uni(C, lo=0.5, hi=2), "f32") if running else None
    if math.prod(shape[2:]) == 1 and use_input_stats:
        raise ValueError("one value per instance")
    rm2, rv2 = (None, None) if rm is None else (rm.clone().to(x.dtype), rv.clone().to(x.dtype))
    y = F.instance_norm(x, rm2, rv2, g, b, use_input_stats, momentum, eps)
    m, r = group_stats(x, C, eps) if use_input_stats else (rm.double(), 1 / torch.sqrt(rv.double() + eps))
    c.out("y", y, fwd_tol(x, m, r))
    if use_input_stats:
        c.out("mean", m, STAT)
        c.out("rstd", r, STAT)
    if running:
        c.out("running_mean", rm2, STAT if use_input_stats else EXACT)
        c.out("running_var", rv2, STAT if use_input_stats else EXACT)


@kernel("S4.10", S, "instancenorm_backward", "dy x gamma? mean:f32 rstd:f32", "dx dgamma dbeta")
def instancenorm_backward(c, shape, gamma=True, shift=0.0, eps=1e-5):
    N, C, n = shape[0], shape[1], math.prod(shape[2:])
    raw = c.round(c.rnd(*shape, shift=shift)).double()
    dy, x = c.x("dy", *shape), c.put("x", raw)
    g, _ = affine(c, C, gamma, False)
    m, r = group_stats(raw, C, eps)
    m, r = c.put("mean", m, "f32"), c.put("rstd", r, "f32")
    w = torch.ones(C, dtype=x.dtype) if g is None else g
    one = lambda t: t.reshape(1, N * C, n)
    dx, dg, db = aten.native_batch_norm_backward(one(dy), one(x), w.repeat(N), None, None, m.reshape(-1), r.reshape(-1), True, eps, [True] * 3)
    c.out("dx", dx.reshape(shape), NORM_B)
    c.out("dgamma", dg.reshape(N, C).sum(0), NORM_B)
    c.out("dbeta", db.reshape(N, C).sum(0), NORM_B)


# ------------------------------------------------------------------------------------------------ B3
@kernel("B3.1", B3, "l2_normalize", "x", "y", "axis eps")
def l2_normalize(c, shape, axis=-1, eps=1e-12, zero=False):
    v = c.rnd(*shape)
    if zero:
        v[0] = 0
    c.out("y", F.normalize(c.put("x", v), 2, axis, eps), NORM_F)


@kernel("B3.1", B3, "l2_normalize_backward", "dy x", "dx", "axis eps")
def l2_normalize_backward(c, shape, axis=-1, eps=1e-12):
    dy, x = c.x("dy", *shape), c.var("x", *shape)
    c.out("dx", ag(F.normalize(x, 2, axis, eps), [x], dy)[0], NORM_B)


@kernel("B3.2", B3, "batchnorm_act", "x gamma? beta? running_mean:f32? running_var:f32?",
        "y save_mean:f32? save_rstd:f32? running_mean:f32? running_var:f32?", "act eps momentum training")
def batchnorm_act(c, shape, act="relu", eps=1e-5, momentum=0.1, training=True):
    x = c.x("x", *shape)
    g, b = affine(c, shape[1])
    rm, rv = c.x("running_mean", shape[1], kind="f32"), c.put("running_var", c.uni(shape[1], lo=0.5, hi=2), "f32")
    rm2, rv2 = rm.clone().to(x.dtype), rv.clone().to(x.dtype)
    c.out("y", ACTS[act](F.batch_norm(x, rm2, rv2, g, b, training, momentum, eps)), NORM_F)
    m, r = stats(x.double(), [0] + list(range(2, len(shape))), eps)
    if training:
        c.out("save_mean", m, STAT)
        c.out("save_rstd", r, STAT)
    c.out("running_mean", rm2, STAT if training else EXACT)
    c.out("running_var", rv2, STAT if training else EXACT)


@kernel("B3.2", B3, "batchnorm_act_backward", "dy x gamma? beta? save_mean:f32 save_rstd:f32", "dx dgamma dbeta", "act training")
def batchnorm_act_backward(c, shape, act="relu", training=True, eps=1e-5):
    dims = [0] + list(range(2, len(shape)))
    raw = c.round(c.rnd(*shape)).double()
    dy, x = c.x("dy", *shape), c.putv("x", raw)
    g, b = affine(c, shape[1])
    g.requires_grad_(), b.requires_grad_()
    m, r = stats(raw, dims, eps) if training else (c.rnd(shape[1]) * 0.3, 1 / torch.sqrt(c.uni(shape[1], lo=0.5, hi=2) + eps))
    m, r = c.put("save_mean", m, "f32"), c.put("save_rstd", r, "f32")
    if training:
        y = F.batch_norm(x, None, None, g, b, True, 0.1, eps)
    else:
        y = (x - view(m, x)) * view(r, x) * view(g, x) + view(b, x)
    for n, v in zip(("dx", "dgamma", "dbeta"), ag(ACTS[act](y), [x, g, b], dy)):
        c.out(n, v, NORM_B)


@kernel("B3.4", B3, "groupnorm_swish", "x gamma? beta?", "y mean:f32? rstd:f32?", "G eps")
def groupnorm_swish(c, shape, G, eps=1e-5):
    x = c.x("x", *shape)
    g, b = affine(c, shape[1])
    m, r = group_stats(x, G, eps)
    c.out("y", F.silu(F.group_norm(x, G, g, b, eps)), NORM_F)
    c.out("mean", m, STAT)
    c.out("rstd", r, STAT)


@kernel("B3.4", B3, "groupnorm_swish_backward", "dy x gamma beta mean:f32 rstd:f32", "dx dgamma dbeta", "G")
def groupnorm_swish_backward(c, shape, G, eps=1e-5):
    raw = c.round(c.rnd(*shape)).double()
    dy, x = c.x("dy", *shape), c.putv("x", raw)
    g, b = affine(c, shape[1])
    g.requires_grad_(), b.requires_grad_()
    m, r = group_stats(raw, G, eps)
    c.put("mean", m, "f32"), c.put("rstd", r, "f32")
    for n, v in zip(("dx", "dgamma", "dbeta"), ag(F.silu(F.group_norm(x, G, g, b, eps)), [x, g, b], dy)):
        c.out(n, v, NORM_B)


@kernel("B3.4", B3, "add_groupnorm", "x r gamma? beta?", "y s mean:f32? rstd:f32?", "G eps")
def add_groupnorm(c, shape, G, eps=1e-5):
    "s = x + r, y = GN(s)"
    s = c.x("x", *shape) + c.x("r", *shape)
    g, b = affine(c, shape[1])
    m, r = group_stats(s, G, eps)
    c.out("y", F.group_norm(s, G, g, b, eps), NORM_F)
    c.out("s", s, Tol(1.2e-7, 1e-45))
    c.out("mean", m, STAT)
    c.out("rstd", r, STAT)


@kernel("B3.5", B3, "residual_rmsnorm", "x r gamma?", "y s", "eps gamma_offset")
def residual_rmsnorm(c, rows, k, eps=1e-6, gamma_offset=0.0, gamma=True):
    s = c.x("x", rows, k) + c.x("r", rows, k)
    g, _ = affine(c, k, gamma, False)
    c.out("y", F.rms_norm(s, (k,), None if g is None else g + gamma_offset, eps), NORM_F)
    c.out("s", s, Tol(1.2e-7, 1e-45))


@kernel("B3.5", B3, "residual_rmsnorm_backward", "dy ds_in? s gamma? r:f32", "ds dgamma?", "gamma_offset")
def residual_rmsnorm_backward(c, rows, k, eps=1e-6, gamma_offset=0.0, gamma=True, ds_in=True):
    "ds is the gradient of both x and the residual; the input r is the saved 1/rms of s"
    dy = c.x("dy", rows, k)
    di = c.x("ds_in", rows, k) if ds_in else 0.0
    raw = c.round(c.rnd(rows, k)).double()
    s = c.putv("s", raw)
    g, _ = affine(c, k, gamma, False)
    c.put("r", 1 / torch.sqrt((raw ** 2).mean(1) + eps), "f32")
    xs = [s] + ([g.requires_grad_()] if gamma else [])
    grads = ag(F.rms_norm(s, (k,), None if g is None else g + gamma_offset, eps), xs, dy)
    c.out("ds", grads[0] + di, NORM_B)
    if gamma:
        c.out("dgamma", grads[1], NORM_B)

"""Second formulas of convolution, by direct loops over taps."""
import math
import numpy as np
from reference.base import R, dgelu, gelu, ref, relu, sig
from reference.activation import dswish


def full(p, nd):
    return [p] * nd if isinstance(p, int) else list(p)


def conv_core(x, w, s, p, d, g, transpose=False, out=None):
    """x [N,Ci,..], w [Co,Ci/g,..] -> y by looping over taps; with transpose the adjoint map: x is the small side, w [Ci,Co/g,..], out the size"""
    nd = x.ndim - 2
    s, p, d = full(s, nd), full(p, nd), full(d, nd)
    k = w.shape[2:]
    if not transpose:
        o = [(i + 2 * q - e * (m - 1) - 1) // t + 1 for i, q, e, m, t in zip(x.shape[2:], p, d, k, s)]
        xp = np.pad(x, [(0, 0), (0, 0)] + [(q, q) for q in p])
        co, cig = w.shape[0], w.shape[1]
        y = np.zeros((x.shape[0], co) + tuple(o))
        for tap in np.ndindex(*k):
            sl = tuple(slice(t * e, t * e + (n - 1) * q + 1, q) for t, e, n, q in zip(tap, d, o, s))
            for gi in range(g):
                part = xp[(slice(None), slice(gi * cig, (gi + 1) * cig)) + sl]
                wt = w[(slice(gi * co // g, (gi + 1) * co // g), slice(None)) + tap]
                y[:, gi * co // g:(gi + 1) * co // g] += np.einsum("nc...,oc->no...", part, wt)
        return y
    ci, cog = w.shape[0], w.shape[1]
    big = [n + 2 * q for n, q in zip(out, p)]
    need = [max(b, (i - 1) * t + e * (m - 1) + 1) for b, i, t, e, m in zip(big, x.shape[2:], s, d, k)]
    y = np.zeros((x.shape[0], cog * g) + tuple(need))
    for tap in np.ndindex(*k):
        sl = tuple(slice(t * e, t * e + (n - 1) * q + 1, q) for t, e, n, q in zip(tap, d, x.shape[2:], s))
        for gi in range(g):
            part = x[:, gi * ci // g:(gi + 1) * ci // g]
            wt = w[(slice(gi * ci // g, (gi + 1) * ci // g), slice(None)) + tap]
            y[(slice(None), slice(gi * cog, (gi + 1) * cog)) + sl] += np.einsum("nc...,co->no...", part, wt)
    return y[(slice(None), slice(None)) + tuple(slice(q, q + n) for q, n in zip(p, out))]


def conv_dw(x, dy, k, s, p, d, g):
    nd = x.ndim - 2
    s, p, d = full(s, nd), full(p, nd), full(d, nd)
    xp = np.pad(x, [(0, 0), (0, 0)] + [(q, q) for q in p])
    co, cig = dy.shape[1], x.shape[1] // g
    dw = np.zeros((co, cig) + tuple(k))
    for tap in np.ndindex(*k):
        sl = tuple(slice(t * e, t * e + (n - 1) * q + 1, q) for t, e, n, q in zip(tap, d, dy.shape[2:], s))
        for gi in range(g):
            part = xp[(slice(None), slice(gi * cig, (gi + 1) * cig)) + sl]
            dd = dy[:, gi * co // g:(gi + 1) * co // g]
            n = math.prod(dd.shape[2:])
            dw[(slice(gi * co // g, (gi + 1) * co // g), slice(None)) + tap] = np.einsum("nop,ncp->oc", dd.reshape(*dd.shape[:2], n), part.reshape(*part.shape[:2], n))
    return dw


def addb(y, b):
    return y if b is None else y + b.reshape([1, -1] + [1] * (y.ndim - 2))


def sum_sp(t):
    return t.sum(tuple(i for i in range(t.ndim) if i != 1))


R("conv2d_direct conv3d_direct conv1d conv2d_half", lambda a, v: {"y": addb(conv_core(v.x, v.w, a.s, a.p, a.d, a.g), v.b)})
R("depthwise_conv2d", lambda a, v: {"y": addb(conv_core(v.x, v.w, a.s, a.p, a.d, v.x.shape[1]), v.b)})
R("conv2d_backward_input conv3d_backward_input conv1d_backward_input",
  lambda a, v: {"dx": conv_core(v.dy, v.w, a.s, a.p, a.d, a.g, True, a.input_size[2:])})
R("conv2d_backward_weights conv3d_backward_weights conv1d_backward_weights",
  lambda a, v: {"dw": conv_dw(v.x, v.dy, a.k, a.s, a.p, a.d, a.g), "db": sum_sp(v.dy)})


def tsize(x, w, a):
    nd = x.ndim - 2
    s, p, op, d = (full(q, nd) for q in (a.s, a.p, a.op, a.d))
    return [(i - 1) * t - 2 * q + e * (m - 1) + o + 1 for i, t, q, e, m, o in zip(x.shape[2:], s, p, d, w.shape[2:], op)]


R("conv_transpose2d conv_transpose1d conv_transpose3d",
  lambda a, v: {"y": addb(conv_core(v.x, v.w, a.s, a.p, a.d, a.g, True, tsize(v.x, v.w, a)), v.b)})


def deconv_i(a, v):
    return {"dx": conv_core(v.dy, v.w, a.s, a.p, a.d, a.g)}


R("deconv_backward_input conv_transpose1d_backward_input conv_transpose3d_backward_input", deconv_i)
R("deconv_backward_weights conv_transpose1d_backward_weights conv_transpose3d_backward_weights",
  lambda a, v: {"dw": conv_dw(v.dy, v.x, a.k, a.s, a.p, a.d, a.g), "db": sum_sp(v.dy)})


def pair_b(a, v):
    g = a.g if a.g else v.x.shape[1]
    return {"dx": conv_core(v.dy, v.w, a.s, a.p, a.d, g, True, v.x.shape[2:]), "dw": conv_dw(v.x, v.dy, v.w.shape[2:], a.s, a.p, a.d, g), "db": sum_sp(v.dy)}


R("depthwise_conv2d_backward dilated_conv2d_backward", pair_b)


@ref("im2col")
def _(a, v):
    k = full(a.k, 2)
    N, C = v.x.shape[:2]
    s, p, d = full(a.s, 2), full(a.p, 2), full(a.d, 2)
    o = [(i + 2 * q - e * (m - 1) - 1) // t + 1 for i, q, e, m, t in zip(v.x.shape[2:], p, d, k, s)]
    xp = np.pad(v.x, [(0, 0), (0, 0), (p[0],) * 2, (p[1],) * 2])
    col = np.zeros((N, C * k[0] * k[1], o[0] * o[1]))
    for c in range(C):
        for kh in range(k[0]):
            for kw in range(k[1]):
                col[:, (c * k[0] + kh) * k[1] + kw] = xp[:, c, kh * d[0]:kh * d[0] + (o[0] - 1) * s[0] + 1:s[0], kw * d[1]:kw * d[1] + (o[1] - 1) * s[1] + 1:s[1]].reshape(N, o[0] * o[1])
    return {"col": col}


@ref("col2im")
def _(a, v):
    k, s, p, d = (full(q, 2) for q in (a.k, a.s, a.p, a.d))
    H, W = a.output_size
    N, C = v.col.shape[0], v.col.shape[1] // (k[0] * k[1])
    oh, ow = [(i + 2 * q - e * (m - 1) - 1) // t + 1 for i, q, e, m, t in zip((H, W), p, d, k, s)]
    x = np.zeros((N, C, H, W))
    col = v.col.reshape(N, C, k[0], k[1], oh, ow)
    for kh in range(k[0]):
        for kw in range(k[1]):
            for i in range(oh):
                for j in range(ow):
                    h, w = i * s[0] - p[0] + kh * d[0], j * s[1] - p[1] + kw * d[1]
                    if 0 <= h < H and 0 <= w < W:
                        x[:, :, h, w] += col[:, :, kh, kw, i, j]
    return {"x": x}


ACT = {"none": lambda x: x, "relu": relu, "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x), "gelu": gelu, "gelu_tanh": lambda x: gelu(x, "tanh"),
       "sigmoid": sig, "tanh": np.tanh, "swish": lambda x: x * sig(x), "hardswish": lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6))}
DACT = {"none": lambda x: np.ones_like(x), "relu": lambda x: (x > 0) * 1.0, "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01), "gelu": dgelu,
        "gelu_tanh": lambda x: dgelu(x, "tanh"), "sigmoid": lambda x: sig(x) * (1 - sig(x)), "tanh": lambda x: 1 - np.tanh(x) ** 2, "swish": dswish,
        "hardswish": lambda x: np.where(x <= -3, 0, np.where(x < 3, x / 3 + 0.5, 1.0))}


@ref("causal_conv1d")
def _(a, v):
    k = v.w.shape[1]
    lead = v.state if v.state is not None else np.zeros(v.x.shape[:2] + (k - 1,))
    f = np.concatenate([lead, v.x], 2)
    y = np.stack([(f[:, :, t:t + k] * v.w).sum(-1) for t in range(v.x.shape[2])], 2)
    return {"y": ACT[a.act](addb(y, v.b)), "state": f[:, :, f.shape[2] - (k - 1):]}


@ref("causal_conv1d_backward")
def _(a, v):
    k, L = v.w.shape[1], v.x.shape[2]
    f = np.concatenate([np.zeros(v.x.shape[:2] + (k - 1,)), v.x], 2)
    z = addb(np.stack([(f[:, :, t:t + k] * v.w).sum(-1) for t in range(L)], 2), v.b)
    dz = v.dy * DACT[a.act](z)
    dx = np.zeros_like(f)
    dw = np.zeros_like(v.w)
    for j in range(k):
        dx[:, :, j:j + L] += dz * v.w[:, j][None, :, None]
        dw[:, j] = (dz * f[:, :, j:j + L]).sum((0, 2))
    return {"dx": dx[:, :, k - 1:], "dw": dw, "db": dz.sum((0, 2))}


@ref("conv_bias_act")
def _(a, v):
    z = addb(conv_core(v.x, v.w, a.s, a.p, a.d, a.g), v.b)
    return {"y": ACT[a.act](z + (0 if v.residual is None else v.residual))}

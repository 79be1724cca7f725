"""Second formulas of fused kernels and matrix products."""
import numpy as np
from reference.base import R, dgelu, gelu, ref
from reference.activation import dswish
from reference.conv import ACT, DACT
from reference.utility import drop


def lin(a, v):
    z = v.A @ (v.B.T if a.trans_b else v.B)
    if v.bias is not None:
        z = z + (v.bias[:, None] if a.bias_per_row else v.bias)
    return z


def gact(name, z, a):
    return gelu(z, a.approx) if name == "gelu" and a.approx else ACT[name](z)


def gback(a, v, dZ):
    two = lambda t: t.reshape(-1, t.shape[-1])
    dB = two(v.A).T @ two(dZ)
    return {"dA": dZ @ (v.B if a.trans_b else v.B.T), "dB": dB.T if a.trans_b else dB, "dbias": two(dZ).sum(1 if a.bias_per_row else 0)}


for _n in ("relu", "gelu", "sigmoid", "tanh", "swish"):
    R("gemm_bias_" + _n, lambda a, v, n=_n: {"Y": gact(n, lin(a, v), a), "Z": lin(a, v)})
R("gemm_bias_relu_backward", lambda a, v: gback(a, v, np.where(v.Y > 0, v.dY, 0)))
R("gemm_bias_sigmoid_backward", lambda a, v: gback(a, v, v.dY * v.Y * (1 - v.Y)))
R("gemm_bias_tanh_backward", lambda a, v: gback(a, v, v.dY * (1 - v.Y ** 2)))
R("gemm_bias_gelu_backward", lambda a, v: gback(a, v, v.dY * dgelu(v.Z, a.approx)))
R("gemm_bias_swish_backward", lambda a, v: gback(a, v, v.dY * dswish(v.Z)))
R("gemm_bias", lambda a, v: {"Y": lin(a, v)})
R("gemm_bias_backward", lambda a, v: gback(a, v, v.dY))


@ref("gemm_backward_epilogue")
def _(a, v):
    d = {"none": lambda: 1.0, "relu": lambda: v.Y > 0, "sigmoid": lambda: v.Y * (1 - v.Y), "tanh": lambda: 1 - v.Y ** 2}.get(a.act, lambda: DACT[a.act](v.Z))()
    return gback(a, v, v.dY * d)


@ref("gemm_epilogue")
def _(a, v):
    per = lambda t, ax: t if ax == "col" else t[:, None]
    z = v.A @ (v.B.T if a.trans_b else v.B)
    z = z * (1 if v.scale is None else per(v.scale, a.scale_axis)) + (0 if v.bias is None else per(v.bias, a.bias_axis)) + (0 if v.residual is None else v.residual)
    Y = ACT[a.act](z)
    return {"Y": Y, "Z": z, "dbias": Y.sum(0)}


tr = lambda t, f: t.swapaxes(-1, -2) if f else t


@ref("gemm gemm_strided_batched")
def _(a, v):
    y = a.alpha * np.matmul(tr(v.A, a.trans_a), tr(v.B, a.trans_b)) if a.alpha else 0
    return {"C": y + (a.beta * v.C if a.beta else 0) + np.zeros(tr(v.A, a.trans_a).shape[:-1] + tr(v.B, a.trans_b).shape[-1:])}


@ref("gemm_backward")
def _(a, v):
    dA, dB = a.alpha * v.dC @ tr(v.B, a.trans_b).T, a.alpha * tr(v.A, a.trans_a).T @ v.dC
    return {"dA": tr(dA, a.trans_a), "dB": tr(dB, a.trans_b)}


R("gemm_grouped", lambda a, v: {"C" + k[1:]: v[k] @ tr(v["B" + k[1:]], a.trans_b) for k in v if k[0] == "A"})
R("gemm_grouped_ragged", lambda a, v: {"C": np.concatenate([v.A[p:q] @ tr(v.B[i], a.trans_b) for i, (p, q) in enumerate(zip(v.offsets[:-1], v.offsets[1:]))])})
R("gemv", lambda a, v: {"y": a.alpha * tr(v.A, a.trans_a) @ v.x + (a.beta * v.y if a.beta else 0)})
R("ger", lambda a, v: {"A": v.A + a.alpha * np.outer(v.x, v.y)})
R("syrk_gram", lambda a, v: {"C": a.alpha * v.A @ v.A.T + (a.beta * v.C if a.beta else 0)})


@ref("gemm_quantized")
def _(a, v):
    if a.bits == 8:
        W = v.q * v.scale[:, None]
    else:
        q = np.zeros((v.q.shape[0], v.q.shape[1] * 2))
        q[:, 0::2], q[:, 1::2] = v.q % 16, v.q // 16
        z = 8 if v.zero is None else np.repeat(v.zero, a.group, 1)
        W = (q - z) * np.repeat(v.scale, a.group, 1)
    return {"y": v.x @ W.T}


R("gemm_w8a8", lambda a, v: {"y": v.xscale[:, None] * v.wscale * (v.xq.astype(float) @ v.wq.astype(float).T)})


def fp8(b, fmt):
    "decode one fp8 byte"
    e, m = (4, 3) if fmt == "e4m3" else (5, 2)
    bias = 7 if fmt == "e4m3" else 15
    b = b.astype(int)
    s, ex, ma = np.where(b >> 7, -1.0, 1.0), (b >> m) & (2 ** e - 1), b & (2 ** m - 1)
    return s * np.where(ex == 0, ma * 2.0 ** (1 - bias - m), (1 + ma / 2 ** m) * 2.0 ** (ex - bias))


@ref("gemm_fp8")
def _(a, v):
    A, B = fp8(v.a, a.fmt_a), fp8(v.b, a.fmt_b)
    if a.block:
        return {"y": (A * np.repeat(v.scale_a, a.block, 1)) @ (B * np.repeat(np.repeat(v.scale_b, a.block, 0), a.block, 1)).T}
    sa, sb = (v.scale_a[:, None], v.scale_b[:, None]) if v.scale_a.size > 1 or v.scale_b.size > 1 else (v.scale_a, v.scale_b)
    return {"y": (A * sa) @ (B * sb).T}


@ref("bias_dropout")
def _(a, v):
    y, k = drop(v.x + v.bias, a)
    return {"y": y + (0 if v.r is None else v.r), "mask": k}


@ref("bias_dropout_backward")
def _(a, v):
    d = drop(v.dy, a)[0]
    return {"dx": d, "dbias": d.reshape(-1, d.shape[-1]).sum(0)}

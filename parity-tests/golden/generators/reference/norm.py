"""Second formulas of normalization."""
import numpy as np
from reference.base import R, dgelu, gelu, ref, relu, sig
from reference.activation import dswish
from reference.conv import ACT, DACT, sum_sp


def cview(p, x, c=1):
    if p is None:
        return None
    return p.reshape([1, -1] + [1] * (x.ndim - 2)) if c == 1 else p


def norm_f(x, m, r, g, b):
    y = (x - m) * r
    y = y if g is None else y * g
    return y if b is None else y + b


def core_b(dy, x, m, r, g, axes):
    xh = (x - m) * r
    gg = dy * g
    return r * (gg - gg.mean(axes, keepdims=True) - xh * (gg * xh).mean(axes, keepdims=True)), dy * xh


@ref("batchnorm_forward", "batchnorm_act")
def _(a, v):
    ax = tuple(i for i in range(v.x.ndim) if i != 1)
    n = v.x.size // v.x.shape[1] if v.x.shape[1] else 0
    out = {}
    if a.training:
        m, var = v.x.mean(ax), v.x.var(ax)
        f = a.momentum
        if f is None:
            f = 1 / (int(v.counter) + 1)
            out["counter"] = np.array(int(v.counter) + 1)
        if v.running_mean is not None:
            out["running_mean"] = (1 - f) * v.running_mean + f * m
            out["running_var"] = (1 - f) * v.running_var + f * var * n / (n - 1)
        r = 1 / np.sqrt(var + a.eps)
        out["save_mean"], out["save_rstd"] = m, r
    else:
        m, r = v.running_mean, 1 / np.sqrt(v.running_var + a.eps)
        out["running_mean"], out["running_var"] = v.running_mean, v.running_var
    out["y"] = ACT[a.act or "none"](norm_f(v.x, cview(m, v.x), cview(r, v.x), cview(v.gamma, v.x), cview(v.beta, v.x)))
    return out


def bn_back(dy, v, g, training):
    ax = tuple(i for i in range(v.x.ndim) if i != 1)
    m, r = cview(v.save_mean, v.x), cview(v.save_rstd, v.x)
    dx, t = core_b(dy, v.x, m, r, g, ax)
    if not training:
        dx = dy * g * r
    return {"dx": dx, "dgamma": t.sum(ax), "dbeta": dy.sum(ax)}


R("batchnorm_backward", lambda a, v: bn_back(v.dy, v, 1.0 if v.gamma is None else cview(v.gamma, v.x), a.training))


@ref("batchnorm_act_backward")
def _(a, v):
    z = norm_f(v.x, cview(v.save_mean, v.x), cview(v.save_rstd, v.x), cview(v.gamma, v.x), cview(v.beta, v.x))
    return bn_back(v.dy * DACT[a.act](z), v, cview(v.gamma, v.x), a.training)


def ln_stats(x, eps):
    return x.mean(1), 1 / np.sqrt(x.var(1) + eps)


def ln_all(x, v, eps, f=lambda t: t):
    m, r = ln_stats(x, eps)
    y = f(norm_f(x, m[:, None], r[:, None], v.gamma, v.beta))
    return y, m, r


R("layernorm_forward", lambda a, v: dict(zip(("y", "mean", "rstd"), ln_all(v.x, v, a.eps))))
R("layernorm_relu", lambda a, v: dict(zip(("Y", "mean", "rstd"), ln_all(v.x, v, a.eps, relu))))
R("layernorm_gelu", lambda a, v: dict(zip(("Y", "mean", "rstd"), ln_all(v.x, v, a.eps, lambda t: gelu(t, a.approx)))))
R("residual_layernorm", lambda a, v: dict(zip(("Y", "mean", "rstd", "s"), ln_all(v.x + v.r, v, a.eps) + (v.x + v.r,))))


def ln_back(dy, x, m, r, g):
    return core_b(dy, x, m[:, None], r[:, None], 1.0 if g is None else g, (1,))


R("layernorm_backward", lambda a, v: {"dx": ln_back(v.dy, v.x, v.mean, v.rstd, v.gamma)[0]})
R("layernorm_grad_params", lambda a, v: {"dgamma": ln_back(v.dy, v.x, v.mean, v.rstd, None)[1].sum(0), "dbeta": v.dy.sum(0)})


def ln_params(dy, x, v):
    dx, t = ln_back(dy, x, v.mean, v.rstd, v.gamma)
    return {"dx": dx, "dgamma": t.sum(0), "dbeta": dy.sum(0)}


R("layernorm_relu_backward", lambda a, v: ln_params(np.where(v.Y > 0, v.dY, 0), v.x, v))
R("layernorm_gelu_backward", lambda a, v: ln_params(v.dY * dgelu(norm_f(v.x, v.mean[:, None], v.rstd[:, None], v.gamma, v.beta), a.approx), v.x, v))


@ref("residual_layernorm_backward")
def _(a, v):
    r = ln_params(v.dY, v.s, v)
    return {"ds": r["dx"] + (0 if v.ds_in is None else v.ds_in), "dgamma": r["dgamma"], "dbeta": r["dbeta"]}


def rms(x, g, eps, off):
    r = 1 / np.sqrt((x * x).mean(1) + eps)
    return (x * r[:, None] if g is None else x * r[:, None] * (off + g)), r


def rms_back(dy, x, r, g, off):
    gg = dy if g is None else dy * (off + g)
    return r[:, None] * (gg - x * r[:, None] ** 2 * (gg * x).mean(1, keepdims=True))


R("rmsnorm_forward", lambda a, v: dict(zip(("y", "r"), rms(v.x, v.gamma, a.eps, a.gamma_offset))))
R("rmsnorm_backward", lambda a, v: {"dx": rms_back(v.dy, v.x, v.r, v.gamma, a.gamma_offset)})
R("rmsnorm_grad_gamma", lambda a, v: {"dgamma": (v.dy * v.x * v.r[:, None]).sum(0)})
R("residual_rmsnorm", lambda a, v: {"y": rms(v.x + v.r, v.gamma, a.eps, a.gamma_offset)[0], "s": v.x + v.r})


@ref("residual_rmsnorm_backward")
def _(a, v):
    return {"ds": rms_back(v.dy, v.s, v.r, v.gamma, a.gamma_offset) + (0 if v.ds_in is None else v.ds_in), "dgamma": (v.dy * v.s * v.r[:, None]).sum(0)}


def gn(x, G, v, eps):
    N, C = x.shape[:2]
    t = x.reshape(N, G, x[:1].size // G if N else 1)
    m, r = t.mean(2), 1 / np.sqrt(t.var(2) + eps)
    big = lambda s: np.repeat(s, C // G, 1).reshape([N, C] + [1] * (x.ndim - 2))
    return norm_f(x, big(m), big(r), cview(v.gamma, x), cview(v.beta, x)), m, r


R("groupnorm_forward", lambda a, v: dict(zip(("y", "mean", "rstd"), gn(v.x, a.G, v, a.eps))))


@ref("groupnorm_swish")
def _(a, v):
    y, m, r = gn(v.x, a.G, v, a.eps)
    return {"y": y * sig(y), "mean": m, "rstd": r}


R("add_groupnorm", lambda a, v: dict(zip(("y", "mean", "rstd", "s"), gn(v.x + v.r, a.G, v, a.eps) + (v.x + v.r,))))


def gn_back(dy, v, G, g):
    N, C = v.x.shape[:2]
    sh = (N, G, v.x[:1].size // G)
    gg = (dy * (1.0 if g is None else cview(g, v.x))).reshape(sh)
    xh = (v.x.reshape(sh) - v.mean[..., None]) * v.rstd[..., None]
    dx = v.rstd[..., None] * (gg - gg.mean(2, keepdims=True) - xh * (gg * xh).mean(2, keepdims=True))
    return {"dx": dx.reshape(v.x.shape), "dgamma": sum_sp(dy * xh.reshape(v.x.shape)), "dbeta": sum_sp(dy)}


R("groupnorm_backward", lambda a, v: gn_back(v.dy, v, a.G, v.gamma))
R("instancenorm_backward", lambda a, v: gn_back(v.dy, v, v.x.shape[1], v.gamma))


@ref("groupnorm_swish_backward")
def _(a, v):
    N, C = v.x.shape[:2]
    big = lambda s: np.repeat(s, C // a.G, 1).reshape([N, C] + [1] * (v.x.ndim - 2))
    z = norm_f(v.x, big(v.mean), big(v.rstd), cview(v.gamma, v.x), cview(v.beta, v.x))
    return gn_back(v.dy * dswish(z), v, a.G, v.gamma)


@ref("instancenorm_forward")
def _(a, v):
    C = v.x.shape[1]
    if a.use_input_stats:
        y, m, r = gn(v.x, C, v, a.eps)
        out = {"y": y, "mean": m, "rstd": r}
        if v.running_mean is not None:
            n = v.x[0, 0].size
            var = v.x.reshape(v.x.shape[0], C, -1).var(2)
            out["running_mean"] = (1 - a.momentum) * v.running_mean + a.momentum * m.mean(0)
            out["running_var"] = (1 - a.momentum) * v.running_var + a.momentum * (var * n / (n - 1)).mean(0)
        return out
    return {"y": norm_f(v.x, cview(v.running_mean, v.x), cview(1 / np.sqrt(v.running_var + a.eps), v.x), cview(v.gamma, v.x), cview(v.beta, v.x)),
            "running_mean": v.running_mean, "running_var": v.running_var}


R("l2_normalize", lambda a, v: {"y": v.x / np.maximum(np.sqrt((v.x ** 2).sum(a.axis, keepdims=True)), a.eps)})


@ref("l2_normalize_backward")
def _(a, v):
    n = np.sqrt((v.x ** 2).sum(a.axis, keepdims=True))
    xh = v.x / np.maximum(n, 1e-300)
    return {"dx": np.where(n > a.eps, (v.dy - xh * (v.dy * xh).sum(a.axis, keepdims=True)) / np.maximum(n, 1e-300), v.dy / a.eps)}

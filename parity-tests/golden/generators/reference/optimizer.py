"""Second formulas of optimizer steps."""
import math
import numpy as np
from reference.base import R, ref


def opt(update):
    def f(a, v):
        w, st = v.w.copy(), {k: (v[k].copy() if v[k] is not None else None) for k in ("v", "m", "s", "ga", "b")}
        skip = v.found_inf is not None and v.found_inf != 0
        for i in range(0 if skip else a.steps):
            g = v.g[i] * (1.0 if v.inv_scale is None else v.inv_scale)
            w = update(a, w, -g if a.maximize else g, st, a.step + i)
        out = {"w": w, "w_copy": w}
        for k, t in st.items():
            out[k] = np.zeros_like(w) if t is None else t
        return out
    return f


def _mom(a, w, g, s, t, nesterov, damp):
    g = g + a.wd * w
    s["v"] = g if s["v"] is None else a.mu * s["v"] + (1 - damp) * g
    return w - a.lr * (g + a.mu * s["v"] if nesterov else s["v"])


def _adam(a, w, g, s, t):
    z = np.zeros_like(w)
    s["m"] = a.b1 * (z if s["m"] is None else s["m"]) + (1 - a.b1) * g
    s["v"] = a.b2 * (z if s["v"] is None else s["v"]) + (1 - a.b2) * g * g
    return s["m"] / (1 - a.b1 ** t), s["v"] / (1 - a.b2 ** t)


def _adam_step(a, w, g, s, t):
    m, q = _adam(a, w, g + a.wd * w, s, t)
    return w - a.lr * m / (np.sqrt(q) + a.eps)


def _adamw_step(a, w, g, s, t):
    m, q = _adam(a, w, g, s, t)
    return w * (1 - a.lr * a.wd) - a.lr * m / (np.sqrt(q) + a.eps)


def _rms(a, w, g, s, t):
    z = np.zeros_like(w)
    g = g + a.wd * w
    s["s"] = a.a * (z if s["s"] is None else s["s"]) + (1 - a.a) * g * g
    q = s["s"]
    if a.centered:
        s["ga"] = a.a * (z if s["ga"] is None else s["ga"]) + (1 - a.a) * g
        q = q - s["ga"] ** 2
    d = np.sqrt(q) + a.eps
    if a.mu > 0:
        s["b"] = a.mu * (z if s["b"] is None else s["b"]) + g / d
        return w - a.lr * s["b"]
    return w - a.lr * g / d


def _adagrad(a, w, g, s, t):
    g = g + a.wd * w
    s["s"] = (0 if s["s"] is None else s["s"]) + g * g
    return w - a.lr / (1 + (t - 1) * a.lr_decay) * g / (np.sqrt(s["s"]) + a.eps)


def _lars(a, w, g, s, t):
    n, m = math.sqrt((w * w).sum()), math.sqrt((g * g).sum())
    q = a.eta * n / (m + a.wd * n + a.eps) if n > 0 and m > 0 else 1.0
    s["v"] = a.mu * (0 if s["v"] is None else s["v"]) + a.lr * q * (g + a.wd * w)
    return w - s["v"]


def _lamb(a, w, g, s, t):
    m, q = _adam(a, w, g, s, t)
    u = m / (np.sqrt(q) + a.eps) + a.wd * w
    n, k = math.sqrt((w * w).sum()), math.sqrt((u * u).sum())
    return w - a.lr * (n / k if n > 0 and k > 0 else 1.0) * u


R("sgd_step", opt(lambda a, w, g, s, t: w - a.lr * (g + a.wd * w)))
R("sgd_momentum_update", opt(lambda a, w, g, s, t: _mom(a, w, g, s, t, a.nesterov, a.damp)))
R("nag_step", opt(lambda a, w, g, s, t: _mom(a, w, g, s, t, True, 0)))
for _n, _f in (("adam_step", _adam_step), ("adamw_step", _adamw_step), ("rmsprop_step", _rms), ("adagrad_step", _adagrad), ("lars_step", _lars), ("lamb_step", _lamb)):
    R(_n, opt(_f))


@ref("gradient_clip_norm")
def _(a, v):
    gs = {k: x for k, x in v.items()}
    flat = np.concatenate([x.reshape(-1) for x in gs.values()])
    tot = np.abs(flat).max() if a.p == "inf" else (np.abs(flat) ** a.p).sum() ** (1 / a.p)
    c = 1.0 if np.isnan(tot) else min(1.0, a.max_norm / (tot + 1e-6))
    c = np.nan if np.isnan(tot) else c
    return {"total": tot, **{k: x * c for k, x in gs.items()}}


R("gradient_clip_value", lambda a, v: {k: np.where(np.isnan(x), x, np.minimum(np.maximum(x, -a.c), a.c)) for k, x in v.items()})

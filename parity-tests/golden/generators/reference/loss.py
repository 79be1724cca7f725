"""Second formulas of losses: per item, then reduced."""
import math
import numpy as np
from reference.base import NS, PI, R, lse, numeric, ref, relu, sfp, sig, softmax


def red(l, a, w=None, n=None):
    how = a.reduction or "mean"
    if how == "none":
        return {"loss": l}
    s = l.sum()
    if how == "sum":
        return {"loss": s}
    n = l.size if n is None else n
    d = n if w is None else w
    with np.errstate(all="ignore"):
        return {"loss": np.float64(s) / np.float64(d)}


def elem(name, f, wrt="p", back=None):
    def fw(a, v):
        l = f(a, v)
        w = v.weight if v.weight is not None else (v.mask.astype(float) if v.mask is not None else None)
        if w is not None:
            return red(np.where(w > 0, l, 0) * w, a, w.sum())
        return red(l, a)
    R(name, fw)
    if back != "-":
        R(back or name + "_backward", numeric(name, wrt.split(), "gy", "loss"))


def plain(name, f, wrt="p", back=None):
    R(name, f)
    if back != "-":
        R(back or name + "_backward", numeric(name, wrt.split(), "gy", "loss"))


def scaled(a, v, n):
    "upstream gradient per item: gy, divided by n for the mean"
    w = v.weight if v.weight is not None else None if v.mask is None else v.mask.astype(float)
    if w is not None and a.reduction == "mean":
        n = w.sum()
    return v.gy * (1 if w is None else w) / (n if a.reduction == "mean" else 1)


elem("mse_loss", lambda a, v: (v.p - v.t) ** 2, "p t", "-")


@ref("mse_backward")
def _(a, v):
    d = 2 * (v.p - v.t) * scaled(a, v, v.p.size)
    return {"dp": d, "dt": -d}



elem("mae_loss", lambda a, v: np.abs(v.p - v.t))


def smooth(d, b):
    d = np.abs(d)
    return d if b == 0 else np.where(d < b, d * d / (2 * b), d - b / 2)


elem("smooth_l1_loss", lambda a, v: smooth(v.p - v.t, a.beta), "p", "-")
R("smooth_l1_backward", lambda a, v: {"dp": scaled(a, v, v.p.size) * (np.clip((v.p - v.t) / a.beta, -1, 1) if a.beta else np.sign(v.p - v.t))})
elem("huber_loss", lambda a, v: np.where(np.abs(v.p - v.t) <= a.delta, (v.p - v.t) ** 2 / 2, a.delta * (np.abs(v.p - v.t) - a.delta / 2)))
elem("log_cosh_loss", lambda a, v: np.logaddexp(v.p - v.t, v.t - v.p) - math.log(2))


def quant(a, v):
    q = np.array(a.q)
    t = v.t[..., None] if q.ndim else v.t
    return np.maximum(q * (t - v.p), (q - 1) * (t - v.p))


elem("quantile_loss", quant)
elem("charbonnier_loss", lambda a, v: np.sqrt((v.p - v.t) ** 2 + a.eps ** 2))
elem("mean_bias_error_loss", lambda a, v: v.t - v.p)
elem("hinge_loss", lambda a, v: np.maximum(0, 1 - v.t * v.p))
elem("squared_hinge_loss", lambda a, v: np.maximum(0, 1 - v.t * v.p) ** 2)
elem("modified_huber_loss", lambda a, v: np.where(v.t * v.p >= -1, np.maximum(0, 1 - v.t * v.p) ** 2, -4 * v.t * v.p))
elem("exponential_loss", lambda a, v: np.exp(-v.t * v.p))


def pois(a, v):
    l = np.exp(v.p) - v.t * v.p if a.log_input else v.p - v.t * np.log(v.p + a.eps)
    if a.full:
        t = np.maximum(v.t, 1.0000001)
        l = l + np.where(v.t > 1, v.t * np.log(t) - v.t + 0.5 * np.log(2 * PI * t), 0)
    return l


elem("poisson_loss", pois)
elem("born_rule_mse_loss", lambda a, v: (v.p ** 2 - v.t) ** 2)
elem("wasserstein_loss", lambda a, v: -v.y * v.c, "c")
plain("root_mean_squared_error_loss", lambda a, v: {"loss": np.sqrt(((v.p - v.t) ** 2).mean())})
plain("elastic_net_loss", lambda a, v: {"loss": ((v.p - v.t) ** 2).mean() + a.alpha * a.r * np.abs(v.p).sum() + a.alpha * (1 - a.r) / 2 * (v.p ** 2).sum()})


def bce(p, t):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -(t * np.maximum(np.log(p), -100) + (1 - t) * np.maximum(np.log1p(-p), -100))


W1 = lambda v: 1.0 if v.weight is None else v.weight
plain("bce_loss", lambda a, v: red(W1(v) * bce(v.p, v.t), a), "p", "-")
R("bce_backward", lambda a, v: {"dp": v.gy * W1(v) * (v.p - v.t) / np.maximum(v.p * (1 - v.p), 1e-12) / (v.p.size if a.reduction == "mean" else 1)})


def bcel(x, t, q=1.0):
    return (1 - t) * x + (1 + (q - 1) * t) * (np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0))


plain("binary_cross_entropy_with_logits_loss", lambda a, v: red(W1(v) * bcel(v.x, v.t, 1.0 if v.pos_weight is None else v.pos_weight), a), "x")


def focal(a, v):
    p = sig(v.x) if a.input == "logits" else v.x
    pt = p * v.t + (1 - p) * (1 - v.t)
    ce = bcel(v.x, v.t) if a.input == "logits" else -np.log(pt)
    at = a.alpha * v.t + (1 - a.alpha) * (1 - v.t) if a.alpha >= 0 else 1.0
    return red(at * (1 - pt) ** a.gamma * ce, a)


plain("focal_loss", focal, "x", "-")
_focal_num = numeric("focal_loss", ["x"], "gy", "loss")


@ref("focal_loss_backward")
def _(a, v):
    if not np.isin(v.t, (0, 1)).all():
        return _focal_num(a, v)
    s = 2 * v.t - 1
    at = a.alpha * v.t + (1 - a.alpha) * (1 - v.t) if a.alpha >= 0 else 1.0
    n = v.x.size if a.reduction == "mean" else 1
    if a.input == "logits":
        pt, lp = sig(s * v.x), -sfp(-s * v.x)
        return {"dx": at * s * (1 - pt) ** a.gamma * (a.gamma * pt * lp - (1 - pt)) * v.gy / n}
    pt = v.x * v.t + (1 - v.x) * (1 - v.t)
    return {"dx": at * s * (a.gamma * (1 - pt) ** (a.gamma - 1) * np.log(pt) - (1 - pt) ** a.gamma / pt) * v.gy / n}



rows = lambda n: np.arange(n)


def focalm(a, v):
    lp = (v.x - lse(v.x, 1, True))[rows(len(v.x)), v.target]
    return red(-(1.0 if v.alpha is None else v.alpha[v.target]) * (1 - np.exp(lp)) ** a.gamma * lp, a)


plain("multiclass_focal_loss", focalm, "x")


def ce(a, v):
    x = np.moveaxis(v.x, 1, -1)
    C = x.shape[-1]
    lp = x - lse(x, -1, True)
    e = a.label_smoothing
    w = np.ones(C) if v.weight is None else v.weight
    if v.target.ndim == v.x.ndim:
        q = (1 - e) * np.moveaxis(v.target, 1, -1) + e / C
        r = red(-(w * q * lp).sum(-1), a)
    else:
        t = v.target
        ok = t != a.ignore_index
        ts = np.where(ok, t, 0)
        with np.errstate(invalid="ignore"):
            l = -(1 - e) * w[ts] * np.take_along_axis(lp, ts[..., None], -1)[..., 0]
            if e:
                l = l - e / C * (w * lp).sum(-1)
        r = red(np.where(ok, l, 0), a, (w[ts] * ok).sum())
    r["LSE"] = lse(x, -1)
    return r


R("cross_entropy_loss", ce)


@ref("cross_entropy_backward")
def _(a, v):
    x = np.moveaxis(v.x, 1, -1)
    C, e = x.shape[-1], a.label_smoothing
    P = np.exp(x - v.LSE[..., None])
    w = np.ones(C) if v.weight is None else v.weight
    gy = v.gy[..., None] if a.reduction == "none" else v.gy
    if v.target.ndim == v.x.ndim:
        q = (1 - e) * np.moveaxis(v.target, 1, -1) + e / C
        d = P * (w * q).sum(-1, keepdims=True) - w * q
        den = P[..., 0].size
    else:
        ok = v.target != a.ignore_index
        ts = np.where(ok, v.target, 0)
        d = ((1 - e) * w[ts][..., None] * (P - np.eye(C)[ts]) + e / C * (P * w.sum() - w)) * ok[..., None]
        den = (w[ts] * ok).sum()
    return {"dx": np.moveaxis(gy * d / (den if a.reduction == "mean" else 1), -1, 1)}


def catce(a, v):
    C = v.p.shape[-1]
    t = (1 - a.label_smoothing) * v.t + a.label_smoothing / C
    return red(-(t * np.log(np.maximum(v.p, 1e-7))).sum(-1), a)


plain("categorical_cross_entropy_loss", catce)


def nllw(lp, t, w, a):
    ok = t != a.ignore_index if a.ignore_index is not None else np.ones(t.shape, bool)
    ts = np.where(ok, t, 0)
    ww = w[ts] * ok
    return red(-ww * lp[rows(len(ts)), ts], a, ww.sum())


plain("sparse_categorical_cross_entropy_loss", lambda a, v: nllw(np.log(np.maximum(v.p, 1e-7)), v.target, np.ones(v.p.shape[1]), a))
plain("nll_loss", lambda a, v: nllw(v.x, v.target, np.ones(v.x.shape[1]) if v.weight is None else v.weight, a), "x")
plain("weighted_cross_entropy_loss", lambda a, v: nllw(np.log(v.p), v.target, v.weight, a) if a.mode == "categorical" else red(v.weight * bce(v.p, v.t), a))


def kl(a, v):
    q = v.p if a.log_input else np.log(v.p)
    l = np.exp(v.t) * (v.t - q) if a.log_target else np.where(v.t > 0, v.t * (np.log(np.maximum(v.t, 1e-300)) - q), 0)
    if a.reduction == "batchmean":
        return {"loss": l.sum() / l.shape[0]}
    return red(l, a)


plain("kullback_leibler_divergence", kl)


def ordi(a, v):
    f = v.s[:, None] - v.theta if v.f is None else v.f
    return red(bcel(f, (v.y[:, None] > np.arange(f.shape[1])) * 1.0).sum(1), a)


plain("ordinal_regression_loss", ordi, "f s theta")


def dist(a, v):
    T = a.T
    lz, ly = v.z / T - lse(v.z / T, 1, True), v.y / T - lse(v.y / T, 1, True)
    k = T * T * (np.exp(ly) * (ly - lz)).sum() / len(v.z)
    if v.labels is not None:
        k = a.alpha * -(v.z - lse(v.z, 1, True))[rows(len(v.z)), v.labels].mean() + (1 - a.alpha) * k
    return {"loss": k}


plain("distillation_loss", dist, "z")
plain("margin_loss", lambda a, v: red((v.t * np.maximum(0, a.m_plus - v.v) ** 2 + a["lambda"] * (1 - v.t) * np.maximum(0, v.v - a.m_minus) ** 2).sum(1), a), "v")
nrm = lambda x, ax=-1: np.sqrt((x * x).sum(ax))


def cosv(u, w, eps, ax=-1):
    return (u * w).sum(ax) / (np.maximum(nrm(u, ax), eps) * np.maximum(nrm(w, ax), eps))


plain("cosine_similarity_loss", lambda a, v: red(1 - cosv(v.p, v.t, a.eps), a), "p t")


def trip(a, v):
    if a.squared:
        l = ((v.a - v.p) ** 2).sum(1) - ((v.a - v.q) ** 2).sum(1) + a.margin
    else:
        d = lambda u, w: (np.abs(u - w + a.eps) ** a.p).sum(1) ** (1 / a.p)
        n = d(v.a, v.q)
        if a.swap:
            n = np.minimum(n, d(v.p, v.q))
        l = d(v.a, v.p) - n + a.margin
    return red(np.maximum(0, l), a)


plain("triplet_loss", trip, "a p q", "-")
_trip_num = numeric("triplet_loss", ["a", "p", "q"], "gy", "loss")


@ref("triplet_loss_backward")
def _(a, v):
    if a.swap or (not a.squared and a.p != 2):
        return _trip_num(a, v)
    w = NS(a)
    w["reduction"] = "none"
    act = (trip(w, v)["loss"] > 0) * v.gy / (len(v.a) if a.reduction == "mean" else 1)
    if a.squared:
        g = [2 * (v.q - v.p), -2 * (v.a - v.p), 2 * (v.a - v.q)]
    else:
        dp, dn = v.a - v.p + a.eps, v.a - v.q + a.eps
        dp, dn = dp / nrm(dp)[:, None], dn / nrm(dn)[:, None]
        g = [dp - dn, -dp, dn]
    return dict(zip(("da", "dp", "dq"), [t * np.asarray(act)[:, None] for t in g]))





def contr(a, v):
    d = nrm(v.u - v.v)
    return red((v.y * d * d + (1 - v.y) * np.maximum(0, a.margin - d) ** 2) * (0.5 if a.half else 1), a)


R("contrastive_loss", contr)


@ref("contrastive_loss_backward")
def _(a, v):
    d = nrm(v.u - v.v)
    c = (v.gy / len(d) if a.reduction == "mean" else v.gy) * (0.5 if a.half else 1) * np.ones(len(d))
    f = v.y - (1 - v.y) * np.where(d > 0, np.maximum(0, a.margin - d) / np.where(d > 0, d, 1), 0)
    du = (c * 2 * f)[:, None] * (v.u - v.v)
    return {"du": du, "dv": -du}


def nce(a, v):
    s0, sn = v.s0, v.sn
    if v.logq0 is not None:
        s0, sn = s0 - math.log(sn.shape[1]) - v.logq0, sn - math.log(sn.shape[1]) - v.logqn
    return red(sfp(-s0) + sfp(sn).sum(1), a)


plain("noise_contrastive_estimation_loss", nce, "s0 sn")
unit = lambda x: x / nrm(x)[:, None]


def ntx(a, v):
    z = unit(np.concatenate([v.z1, v.z2]))
    B = len(v.z1)
    s = z @ z.T / a.tau
    np.fill_diagonal(s, -np.inf)
    return {"loss": (lse(s, 1) - s[rows(2 * B), (rows(2 * B) + B) % (2 * B)]).mean()}


plain("nt_xent_loss", ntx, "z1 z2")


def infonce(a, v):
    B = len(v.q)
    if v.negatives is not None:
        s = np.concatenate([(v.q * v.k).sum(1, keepdims=True), v.q @ v.negatives.T], 1) / a.tau
        return {"loss": (lse(s, 1) - s[:, 0]).mean()}
    s = v.q @ v.k.T / a.tau
    return {"loss": (lse(s, 1) - np.diag(s)).mean()}


plain("info_nce_loss", infonce, "q k negatives")


def barlow(a, v):
    z = [(t - t.mean(0)) / np.sqrt(((t - t.mean(0)) ** 2).mean(0)) for t in (v.z1, v.z2)]
    C = z[0].T @ z[1] / len(v.z1)
    on = np.diag(C)
    return {"loss": ((1 - on) ** 2).sum() + a["lambda"] * ((C ** 2).sum() - (on ** 2).sum())}


plain("barlow_twins_loss", barlow, "z1 z2")
plain("byol_loss", lambda a, v: {"loss": (2 - 2 * cosv(v.p, v.z, 1e-300)).mean()})
plain("dino_loss", lambda a, v: {"loss": -(softmax((v.y - v.center) / a.tau_t) * (v.z / a.tau_s - lse(v.z / a.tau_s, 1, True))).sum(1).mean()}, "z")


def supcon(a, v):
    z, B = unit(v.z), len(v.z)
    s = z @ z.T / a.tau
    out = []
    for i in range(B):
        o = [j for j in range(B) if j != i]
        pos = [j for j in o if v.labels[j] == v.labels[i]]
        if pos:
            out.append(-np.mean([s[i, j] - lse(s[i, o]) for j in pos]))
    return {"loss": np.mean(out)}


plain("supervised_contrastive_loss", supcon, "z")


def arc(a, v):
    l = a.s * v.x.copy()
    for i, t in enumerate(v.target):
        c = v.x[i, t]
        if c > 0:
            l[i, t] = a.s * (c * math.cos(a.m) - math.sqrt(1 - c * c) * math.sin(a.m))
    return {"loss": (lse(l, 1) - l[rows(len(l)), v.target]).mean()}


plain("arcface_loss", arc, "x")


def masks(a, v):
    p = sig(v.p) if a.from_logits else v.p
    k = 2 if a.per_channel else 1
    f = lambda t: t.reshape(t.shape[:k] + (-1,))
    return f(p), f(v.t)


def dice(a, v):
    p, t = masks(a, v)
    I, S = (p * t).sum(-1), ((p * p + t * t) if a.squared else p + t).sum(-1)
    return red(1 - (2 * I + a.smooth) / (S + a.smooth), a)


plain("dice_loss", dice)


def jac(a, v):
    p, t = masks(a, v)
    I = (p * t).sum(-1)
    return red(1 - (I + a.smooth) / (p.sum(-1) + t.sum(-1) - I + a.smooth), a)


plain("jaccard_loss", jac)


def tver(a, v):
    p, t = masks(a, v)
    tp, fp, fn = (p * t).sum(-1), (p * (1 - t)).sum(-1), ((1 - p) * t).sum(-1)
    return 1 - (tp + a.smooth) / (tp + a.a * fp + a.b * fn + a.smooth)


plain("tversky_loss", lambda a, v: red(tver(a, v), a))
plain("focal_tversky_loss", lambda a, v: red(tver(a, v) ** a.gamma, a))


def lovasz(a, v):
    out = []
    for k in range(v.p.shape[1]):
        fg = (v.target == k) * 1.0
        if not fg.sum():
            continue
        e = np.abs(fg - v.p[:, k])
        o = np.argsort(-e, kind="stable")
        prev, tot, inter, extra = 0.0, 0.0, fg.sum(), 0.0
        for i in o:
            inter -= fg[i]
            extra += 1 - fg[i]
            j = 1 - inter / (fg.sum() + extra)
            tot += e[i] * (j - prev)
            prev = j
        out.append(tot)
    return {"loss": np.mean(out)}


plain("lovasz_softmax_loss", lovasz)


def boxes(a, v, kind):
    p, t = v.p, v.t
    cl = lambda x: np.maximum(x, 0)
    ar = lambda b: cl(b[:, 2] - b[:, 0]) * cl(b[:, 3] - b[:, 1])
    I = cl(np.minimum(p[:, 2], t[:, 2]) - np.maximum(p[:, 0], t[:, 0])) * cl(np.minimum(p[:, 3], t[:, 3]) - np.maximum(p[:, 1], t[:, 1]))
    U = ar(p) + ar(t) - I
    i = I / (U + a.eps)
    cw, ch = np.maximum(p[:, 2], t[:, 2]) - np.minimum(p[:, 0], t[:, 0]), np.maximum(p[:, 3], t[:, 3]) - np.minimum(p[:, 1], t[:, 1])
    if kind == "iou":
        return red(1 - i, a)
    if kind == "giou":
        return red(1 - i + (cw * ch - U) / (cw * ch + a.eps), a)
    ctr = lambda b: (b[:, :2] + b[:, 2:]) / 2
    l = 1 - i + ((ctr(p) - ctr(t)) ** 2).sum(1) / (cw ** 2 + ch ** 2 + a.eps)
    if kind == "ciou":
        at = lambda b: np.arctan((b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]))
        vv = 4 / PI ** 2 * (at(t) - at(p)) ** 2
        al = v["_alpha"] if v["_alpha"] is not None else vv / (1 - i + vv + a.eps)
        if v["_want_alpha"] is not None:
            return {"alpha": al}
        l = l + al * vv
    return red(l, a)


for _k in ("iou", "giou", "diou", "ciou"):
    R(_k + "_loss", lambda a, v, k=_k: boxes(a, v, k))
for _k in ("iou", "giou", "diou"):
    R(_k + "_loss_backward", numeric(_k + "_loss", ["p"], "gy", "loss"))
_ciou_num = numeric("ciou_loss", ["p"], "gy", "loss")


@ref("ciou_loss_backward")
def _(a, v):
    w = NS(v)
    w["_want_alpha"] = 1
    al = boxes(a, w, "ciou")["alpha"]
    w = NS(v)
    w["_alpha"] = al
    return _ciou_num(a, w)


def ctc(a, v, grad=False):
    x = v.x.transpose(1, 0, 2) if a.batch_first else v.x
    losses, pos, grads = [], 0, np.zeros_like(x)
    B = x.shape[1]
    ninf = -np.inf
    for b in range(B):
        S, T = int(v.target_lengths[b]), int(v.input_lengths[b])
        lab = v.targets[b, :S] if v.targets.ndim == 2 else v.targets[pos:pos + S]
        pos += S
        ext = [a.blank]
        for k in lab:
            ext += [int(k), a.blank]
        n = len(ext)
        al, be = np.full((T, n), ninf), np.full((T, n), ninf)
        lg = np.logaddexp
        skip = lambda s: s >= 2 and ext[s] != a.blank and ext[s] != ext[s - 2]
        with np.errstate(all="ignore"):
            for t in range(T):
                for s in range(n):
                    if t == 0:
                        if s < 2:
                            al[0, s] = x[0, b, ext[s]]
                        continue
                    r = al[t - 1, s]
                    if s >= 1:
                        r = lg(r, al[t - 1, s - 1])
                    if skip(s):
                        r = lg(r, al[t - 1, s - 2])
                    al[t, s] = r + x[t, b, ext[s]]
            for t in range(T - 1, -1, -1):
                for s in range(n):
                    if t == T - 1:
                        if s >= n - 2:
                            be[t, s] = x[t, b, ext[s]]
                        continue
                    r = be[t + 1, s]
                    if s + 1 < n:
                        r = lg(r, be[t + 1, s + 1])
                    if s + 2 < n and skip(s + 2):
                        r = lg(r, be[t + 1, s + 2])
                    be[t, s] = r + x[t, b, ext[s]]
            l = -(lg(al[T - 1, n - 1], al[T - 1, n - 2]) if n > 1 else al[T - 1, 0])
            if np.isfinite(l):
                for t in range(T):
                    for s in range(n):
                        o = al[t, s] + be[t, s] - x[t, b, ext[s]] + l
                        if o > ninf:
                            grads[t, b, ext[s]] -= math.exp(o)
        losses.append(0.0 if a.zero_infinity and np.isinf(l) else l)
    l = np.array(losses)
    tl = np.maximum(v.target_lengths, 1)
    if grad:
        f = v.gy * np.ones(B) / (tl * B if a.reduction == "mean" else 1)
        g = grads * f[None, :, None]
        return {"dx": g.transpose(1, 0, 2) if a.batch_first else g}
    return {"loss": l if a.reduction == "none" else l.sum() if a.reduction == "sum" else (l / tl).mean()}


R("ctc_loss", ctc)
R("ctc_loss_backward", lambda a, v: ctc(a, v, True))


def rnnt(a, v):
    lp = v.x - lse(v.x, -1, True)
    bl = a.blank % v.x.shape[-1]
    out = []
    for b in range(len(lp)):
        T, U = int(v.input_lengths[b]), int(v.target_lengths[b])
        al = np.full((T, U + 1), -np.inf)
        al[0, 0] = 0
        for t in range(T):
            for u in range(U + 1):
                if t:
                    al[t, u] = np.logaddexp(al[t, u], al[t - 1, u] + lp[b, t - 1, u, bl])
                if u:
                    al[t, u] = np.logaddexp(al[t, u], al[t, u - 1] + lp[b, t, u - 1, v.targets[b, u - 1]])
        out.append(-(al[T - 1, U] + lp[b, T - 1, U, bl]))
    return red(np.array(out), a)


plain("rnnt_loss", rnnt, "x")


def perc(a, v):
    n = len(a.weights)
    f = (lambda d: np.abs(d)) if a.l1 else (lambda d: d * d)
    return {"loss": sum(w * f(v[f"f{i}"] - v[f"g{i}"]).mean() for i, w in zip(range(n), a.weights))}


R("perceptual_loss", perc)
R("perceptual_loss_backward", lambda a, v: {f"df{i}": v.gy * w * (np.sign(v[f"f{i}"] - v[f"g{i}"]) if a.l1 else 2 * (v[f"f{i}"] - v[f"g{i}"])) / v[f"f{i}"].size
                                           for i, w in enumerate(a.weights)})
R("physics_informed_loss", lambda a, v: {"loss": sum(w * (v[f"r{i}"] ** 2).mean() for i, w in enumerate(a.weights))})


def quantum(a, v):
    p, f = v.psi[..., 0] + 1j * v.psi[..., 1], v.phi[..., 0] + 1j * v.phi[..., 1]
    return red(1 - np.abs((f.conj() * p).sum(1)) ** 2 / ((np.abs(p) ** 2).sum(1) * (np.abs(f) ** 2).sum(1)), a)


plain("quantum_loss", quantum, "psi")


def sid(a, v):
    out = []
    for b in range(len(v.p)):
        ok = (v.t[b] > 0) & (True if v.mask is None else v.mask[b].astype(bool))
        d = np.log(v.p[b][ok]) - np.log(v.t[b][ok])
        r = (d * d).mean() - a["lambda"] * d.mean() ** 2
        out.append(10 * math.sqrt(r) if a.sqrt else r)
    return red(np.array(out), a)


plain("scale_invariant_depth_loss", sid)
hann = lambda n: 0.5 - 0.5 * np.cos(2 * PI * np.arange(n) / n)


def frames_of(x, n, hop, win, center):
    w = np.zeros(n)
    o = (n - len(win)) // 2
    w[o:o + len(win)] = win
    if center:
        x = np.pad(x, [(0, 0), (n // 2, n // 2)], mode="reflect")
    k = 1 + (x.shape[1] - n) // hop
    return np.stack([x[:, t * hop:t * hop + n] * w for t in range(k)], 1)


def mrstft(a, v):
    tot = 0
    for n, h, w in a.resolutions:
        m = [np.sqrt(np.maximum(np.abs(np.fft.rfft(frames_of(x, n, h, hann(w), True))) ** 2, 1e-7)) for x in (v.p, v.t)]
        tot += np.sqrt(((m[1] - m[0]) ** 2).sum()) / np.sqrt((m[1] ** 2).sum()) + np.abs(np.log(m[1]) - np.log(m[0])).mean()
    return {"loss": tot / len(a.resolutions)}


plain("multi_resolution_stft_loss", mrstft)


def adv(a, v):
    h = a.mode == "hinge"
    if a.role == "generator":
        return {"loss": (-v.d_fake if h else sfp(-v.d_fake)).mean()}
    return {"loss": ((relu(1 - v.d_real) if h else sfp(-v.d_real)).mean() + (relu(1 + v.d_fake) if h else sfp(v.d_fake)).mean())}


plain("adversarial_loss", adv, "d_fake d_real")
plain("diag_gaussian_kl_loss", lambda a, v: red(-0.5 * (1 + v.lv - v.mu ** 2 - np.exp(v.lv)).sum(1), a), "mu lv")


def ranking(a, v):
    s, n = 0.0, 0
    for i in range(len(v.s)):
        for j in range(len(v.s)):
            if v.rel[i] > v.rel[j]:
                s, n = s + sfp(-(v.s[i] - v.s[j])), n + 1
    return {"loss": s / n if n else 0.0}


plain("pairwise_ranking_loss", ranking, "s")


def maer(a, v):
    t = v.t
    if a.normalize:
        t = (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, ddof=1, keepdims=True) + 1e-6)
    return {"loss": ((v.p - t) ** 2).mean(-1)[v.mask.astype(bool)].mean()}


plain("mae_reconstruction_loss", maer)
plain("margin_ranking_loss", lambda a, v: red(np.maximum(0, -v.y * (v.x1 - v.x2) + a.margin), a), "x1 x2")
plain("hinge_embedding_loss", lambda a, v: red(np.where(v.y == 1, v.x, np.maximum(0, a.margin - v.x)), a), "x")
plain("cosine_embedding_loss", lambda a, v: red(np.where(v.y == 1, 1 - cosv(v.x1, v.x2, 1e-12), np.maximum(0, cosv(v.x1, v.x2, 1e-12) - a.margin)), a), "x1 x2")
plain("soft_margin_loss", lambda a, v: red(np.log1p(np.exp(-v.y * v.x)), a), "x")


def mml(a, v):
    N, C = v.x.shape
    w = np.ones(C) if v.weight is None else v.weight
    l = np.zeros(N)
    for i in range(N):
        for j in range(C):
            if j != v.target[i]:
                l[i] += w[v.target[i]] * max(0, a.margin - v.x[i, v.target[i]] + v.x[i, j]) ** a.p / C
    return red(l, a)


plain("multi_margin_loss", mml, "x")


def mlml(a, v):
    N, C = v.x.shape
    l = np.zeros(N)
    for i in range(N):
        lab = []
        for t in v.target[i]:
            if t < 0:
                break
            lab.append(int(t))
        l[i] = sum(max(0, 1 - v.x[i, y] + v.x[i, j]) for y in lab for j in range(C) if j not in lab) / C
    return red(l, a)


plain("multilabel_margin_loss", mlml, "x")
plain("multilabel_soft_margin_loss", lambda a, v: red((W1(v) * bcel(v.x, v.t)).mean(1), a), "x")
plain("gaussian_nll_loss", lambda a, v: red(0.5 * (np.log(np.maximum(v["var"], a.eps)) + (v.p - v.t) ** 2 / np.maximum(v["var"], a.eps) + (math.log(2 * PI) if a.full else 0)), a), "p var")
lsg = lambda x: -sfp(-x)
plain("dpo_loss", lambda a, v: red(-lsg(a.beta * ((v.w - v.w_ref) - (v.l - v.l_ref))), a), "w l")
plain("ipo_loss", lambda a, v: red(((v.w - v.w_ref) - (v.l - v.l_ref) - 0.5 / a.beta) ** 2, a), "w l")
plain("simpo_loss", lambda a, v: red(-lsg(a.beta * (v.w - v.l) - a.gamma), a), "w l")
plain("orpo_loss", lambda a, v: red(-lsg(np.log(np.exp(v.w) / (1 - np.exp(v.w))) - np.log(np.exp(v.l) / (1 - np.exp(v.l)))), a), "w l")
plain("z_loss", lambda a, v: red(a.coef * lse(v.x, 1) ** 2, a), "x")


def lbl(a, v):
    N, E = v.probs.shape
    f = np.array([(v.ids == e).sum() / v.ids.size for e in range(E)])
    return {"loss": E * (f * v.probs.mean(0)).sum()}


plain("moe_load_balance_loss", lbl, "probs")

"""Losses (section 7 and losses.md). Every entry of LOSSES describes one loss by its inputs and its per-item value; forward and backward
kernels are both derived from it, the backward by autograd."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from core import Tol, ag, kernel, splice

S7, SL = "loss", "loss_extra"
BACK_NAMES = {"mse_loss": "mse_backward", "cross_entropy_loss": "cross_entropy_backward", "bce_loss": "bce_backward",
              "smooth_l1_loss": "smooth_l1_backward"}


class Ctx:
    "what a loss description needs: input registration that knows which inputs get gradients, and the arguments"
    def __init__(self, c, grads, a, p):
        self.c, self.grads, self.a, self.p, self.v = c, grads, a, p, {}

    def put(self, name, raw, kind="data"):
        t = self.c.put(name, raw, kind)
        if name in self.grads:
            t.requires_grad_()
        self.v[name] = t
        return t

    def ids(self, name, raw, itype=None):
        self.v[name] = self.c.idx(name, raw, itype or self.p.get("itype", "i64"))
        return self.v[name]

    def mask(self, name, raw):
        self.v[name] = self.c.mask(name, raw)
        return self.v[name]


def reduce(l, how, w=None, count=None):
    if how == "none":
        return l
    if how == "sum":
        return l.sum()
    if w is not None:
        return l.sum() / w
    return l.sum() / count if count is not None else (l.mean() if l.numel() else l.sum() / 0.0)


def loss(sec, name, ins, grads, args, elementwise=False, rtol=2e-6, scale=1e-6, back=True, reductions=True, note=None, default="mean"):
    """decorator: fn(x, **params) draws its inputs through the Ctx and returns either a per-item tensor (reduced here) or a pair
    (per-item tensor, function(reduction) -> value)"""
    suite = S7 if sec.startswith("S7") else SL
    allargs = {**args, **({"reduction": default} if reductions else {})}
    extra = " weight? mask:u8?" if elementwise else ""
    gl = grads.split()

    def deco(fn):
        def value(x, reduction):
            l = fn(x)
            custom = None
            if isinstance(l, tuple):
                l, custom = l
            if elementwise:
                w = None
                if x.p.get("weight"):
                    w = x.put("weight", x.c.uni(*l.shape, lo=0.1, hi=2))
                if x.p.get("mask"):
                    m = x.mask("mask", x.c.uni(*l.shape) < 0.7)
                    w = m.to(l.dtype)
                if w is not None:
                    l = torch.where(w > 0, l, torch.zeros_like(l)) * w
                    return l, reduce(l, reduction, w.sum())
            return l, (custom(reduction) if custom else reduce(l, reduction))

        def ctx(c, grads, p):
            a = {k: p.get(k, v) for k, v in allargs.items()}
            return Ctx(c, grads, a, p)

        def forward(c, **p):
            x = ctx(c, (), p)
            l, y = value(x, x.a.get("reduction", "mean"))
            n = max(l.numel(), 1)
            l64 = l.detach().double()
            fin = l64[torch.isfinite(l64)].abs()
            mean_mag = float(fin.sum() / n) if fin.numel() else 0.0
            if y.dim() == 0:
                m = mean_mag * (n if x.a.get("reduction") == "sum" else 1)
                t = Tol(rtol, (8 + math.log2(n)) * 6e-8 * m + scale * 0.2 * m + 2e-7 * (n if x.a.get("reduction") == "sum" else 1))
            else:
                t = Tol(rtol, 3e-7, 2e-7)
            c.out("loss", y, t, None if y.dim() else "f32")
        forward.__doc__ = note
        kernel(sec, suite, name, ins + extra, "loss", allargs)(forward)
        if not back:
            return fn

        def backward(c, **p):
            probe = ctx(c, (), p)                          # first pass with a scratch case: shape of the upstream gradient
            scratch = Scratch(c)
            probe.c = scratch
            _, y = value(probe, probe.a.get("reduction", "mean"))
            g = c.rnd(*y.shape) if "gy" not in p else torch.full(tuple(y.shape), float(p["gy"]))
            gy = c.put("gy", g, "data" if y.dim() else "f32")
            c.rng = scratch.rng0
            x = ctx(c, gl, p)
            _, y = value(x, x.a.get("reduction", "mean"))
            live = [n for n in gl if n in x.v]
            for n, d in zip(live, ag(y, [x.v[n] for n in live], gy.to(y.dtype))):
                c.out("d" + n, d, Tol(rtol, 1e-30, scale))
        bname = BACK_NAMES.get(name, name + "_backward")
        kernel(sec, suite, bname, "gy " + ins + extra, " ".join("d" + g + ("?" if len(gl) > 1 else "") for g in gl), allargs)(backward)
        return fn
    return deco


class Scratch:
    "registers nothing; used to learn the output shape before the upstream gradient is drawn"
    def __init__(self, c):
        import copy
        self.c, self.rng0, self.rng, self.compute, self.dtype = c, copy.deepcopy(c.rng), copy.deepcopy(c.rng), c.compute, c.dtype
        self.error = c.error

    def put(self, name, raw, kind="data"):
        return self.c.round(raw, kind).to(self.c.ctype(kind))

    def idx(self, name, v, itype):
        return torch.as_tensor(np.asarray(v)).long()

    def mask(self, name, v):
        return torch.as_tensor(v).bool()

    def arg(self, *a):
        pass

    def out(self, *a, **k):
        pass

    def round(self, *a):
        return self.c.round(*a)

    def rnd(self, *s, scale=1.0, shift=0.0):
        return torch.from_numpy(self.rng.standard_normal(s)) * scale + shift

    def uni(self, *s, lo=0.0, hi=1.0):
        return torch.from_numpy(self.rng.random(s)) * (hi - lo) + lo

    def integers(self, lo, hi, shape):
        return torch.from_numpy(np.asarray(self.rng.integers(lo, hi, size=shape)))

    def away(self, x, points=(0.0,), gap=1e-3):
        from core import Case
        return Case.away(self, x, points, gap)


# ------------------------------------------------------------------------------------------------ element-wise regression losses
def pair(x, lo=None, hi=None, kinks=(0.0,)):
    "p and t of the case's shape whose difference keeps clear of the kinks"
    s = x.p["shape"]
    t = x.c.rnd(*s)
    d = x.c.away(x.c.rnd(*s, scale=x.p.get("scale", 1.0)), kinks, 2e-3)
    p = t + d
    if x.p.get("special"):
        p = splice(p, x.p["special"])
    if x.p.get("same"):
        p = t
    if x.p.get("tshape"):
        t = x.c.rnd(*x.p["tshape"])
    return x.put("p", p), x.put("t", t)


def same(p, t):
    if p.shape != t.shape:
        raise ValueError("shapes differ")
    return p, t


@loss("S7.1", "mse_loss", "p t", "p t", {}, True)
def mse(x):
    p, t = same(*pair(x))
    return F.mse_loss(p, t, reduction="none")


@loss("L2", "mae_loss", "p t", "p", {}, True)
def mae(x):
    p, t = same(*pair(x))
    return F.l1_loss(p, t, reduction="none")


@loss("S7.4", "smooth_l1_loss", "p t", "p", {"beta": 1.0}, True)
def smooth_l1(x):
    b = x.a["beta"]
    p, t = same(*pair(x, kinks=(0.0, b, -b)))
    if b < 0:
        raise ValueError("beta")
    return F.smooth_l1_loss(p, t, beta=b, reduction="none")


@loss("L4", "huber_loss", "p t", "p", {"delta": 1.0}, True)
def huber(x):
    d = x.a["delta"]
    p, t = same(*pair(x, kinks=(d, -d)))
    return F.huber_loss(p, t, delta=d, reduction="none")


@loss("L3", "root_mean_squared_error_loss", "p t", "p", {}, reductions=False, note="scalar only")
def rmse(x):
    p, t = same(*pair(x))
    m = F.mse_loss(p, t, reduction="none")
    safe = lambda v: torch.where(v > 0, torch.sqrt(torch.where(v > 0, v, torch.ones_like(v))), v)      # gradient 0 at L = 0
    return m, lambda r: safe(m.mean())


@loss("L5", "log_cosh_loss", "p t", "p", {}, True)
def log_cosh(x):
    p, t = same(*pair(x))
    a = (p - t).abs()
    return a + torch.log1p(torch.exp(-2 * a)) - math.log(2)


@loss("L6", "quantile_loss", "p t", "p", {"q": 0.5}, True,
      note="q a number, or a list with p of shape [..., Q] and t [...] (items [..., Q])")
def quantile(x):
    q = x.a["q"]
    if isinstance(q, (list, tuple)):
        t = x.c.rnd(*x.p["shape"])
        p = t[..., None] + x.c.away(x.c.rnd(*x.p["shape"], len(q)))
        p, t = x.put("p", p), x.put("t", t)[..., None]
        qq = torch.tensor(q, dtype=p.dtype)
    else:
        p, t = same(*pair(x))
        qq = q
    return torch.maximum(qq * (t - p), (qq - 1) * (t - p))


@loss("L7", "charbonnier_loss", "p t", "p", {"eps": 1e-3}, True)
def charbonnier(x):
    p, t = same(*pair(x))
    return torch.sqrt((p - t) ** 2 + x.a["eps"] ** 2)


@loss("L8", "mean_bias_error_loss", "p t", "p", {}, True)
def mean_bias(x):
    p, t = same(*pair(x))
    return t - p


@loss("L9", "elastic_net_loss", "p t", "p", {"alpha": 0.01, "r": 0.5}, reductions=False, note="scalar only")
def elastic(x):
    p, t = same(*pair(x))
    a, r = x.a["alpha"], x.a["r"]
    l = (p - t) ** 2
    return l, lambda _: l.mean() + a * r * p.abs().sum() + a * (1 - r) / 2 * (p ** 2).sum()


def signs(x, kinks=(1.0,)):
    "scores p and labels t in {-1, 1}, with t*p away from the kinks"
    s = x.p["shape"]
    t = torch.where(x.c.uni(*s) < 0.5, -1.0, 1.0)
    z = x.c.away(x.c.rnd(*s, scale=x.p.get("scale", 1.5)), kinks, 2e-3)
    return x.put("p", z * t), x.put("t", t)


@loss("L10", "hinge_loss", "p t", "p", {}, True)
def hinge(x):
    p, t = signs(x)
    return F.relu(1 - t * p)


@loss("L11", "squared_hinge_loss", "p t", "p", {}, True)
def squared_hinge(x):
    p, t = signs(x)
    return F.relu(1 - t * p) ** 2


@loss("L12", "modified_huber_loss", "p t", "p", {}, True)
def modified_huber(x):
    p, t = signs(x, (1.0, -1.0))
    z = t * p
    return torch.where(z >= -1, F.relu(1 - z) ** 2, -4 * z)


@loss("L13", "exponential_loss", "p t", "p", {}, True)
def exponential(x):
    p, t = signs(x)
    return torch.exp(-t * p)


@loss("L14", "poisson_loss", "p t", "p", {"eps": 1e-8, "log_input": False, "full": False}, True)
def poisson(x):
    s = x.p["shape"]
    li = x.a["log_input"]
    p = x.put("p", x.c.rnd(*s) if li else x.c.uni(*s, lo=0.2, hi=5))
    t = x.put("t", x.c.integers(0, 6, s).double())
    return F.poisson_nll_loss(p, t, log_input=li, full=x.a["full"], eps=x.a["eps"], reduction="none")


@loss("S7.3", "bce_loss", "p t weight?", "p", {}, note="weight multiplies the items; mean divides by the number of items, as PyTorch")
def bce(x):
    s = x.p["shape"]
    p = x.put("p", splice(x.c.uni(*s, lo=0.02, hi=0.98), x.p.get("special")))
    t = x.put("t", splice(x.c.uni(*s) if x.p.get("soft") else (x.c.uni(*s) < 0.5).double(), x.p.get("tspecial")))
    w = x.put("weight", x.c.uni(*s, lo=0.1, hi=2)) if x.p.get("weight") else None
    return F.binary_cross_entropy(p, t, w, reduction="none")


@loss("L39", "binary_cross_entropy_with_logits_loss", "x t weight? pos_weight?", "x", {},
      note="weight multiplies the items; pos_weight has the size of the last axis; mean divides by the number of items, as PyTorch")
def bce_logits(x):
    s = x.p["shape"]
    v = x.put("x", splice(x.c.rnd(*s, scale=x.p.get("scale", 2.0)), x.p.get("special")))
    t = x.put("t", x.c.uni(*s))
    w = x.put("weight", x.c.uni(*s, lo=0.1, hi=2)) if x.p.get("weight") else None
    q = x.put("pos_weight", x.c.uni(s[-1], lo=0.5, hi=3)) if x.p.get("pos_weight") else None
    return F.binary_cross_entropy_with_logits(v, t, w, pos_weight=q, reduction="none")


@loss("S7.9", "focal_loss", "x t", "x", {"alpha": 0.25, "gamma": 2.0, "input": "logits"}, scale=2e-6,
      note="input probability: x holds p in (0,1)")
def focal(x):
    s, al, ga = x.p["shape"], x.a["alpha"], x.a["gamma"]
    t = x.c.uni(*s) if x.p.get("soft") else (x.c.uni(*s) < 0.4).double()
    if x.a["input"] == "logits":
        v, t = x.put("x", splice(x.c.rnd(*s, scale=x.p.get("scale", 2.0)), x.p.get("special"))), x.put("t", t)
        p = torch.sigmoid(v)
        ce = F.binary_cross_entropy_with_logits(v, t, reduction="none")
    else:
        p, t = x.put("x", x.c.uni(*s, lo=0.02, hi=0.98)), x.put("t", t)
        pt = p * t + (1 - p) * (1 - t)
        ce = -torch.log(pt)
    pt = p * t + (1 - p) * (1 - t)
    at = al * t + (1 - al) * (1 - t) if al >= 0 else 1.0
    return at * (1 - pt) ** ga * ce


@loss("L22", "multiclass_focal_loss", "x target:idx alpha?", "x", {"gamma": 2.0}, scale=2e-6,
      note="l = -alpha[t]*(1-pt)^gamma*ln pt, pt = softmax(x)[target]; alpha [C] optional; mean over B")
def focal_multi(x):
    B, C = x.p["shape"]
    v, t = x.put("x", x.c.rnd(B, C, scale=2)), x.ids("target", x.c.integers(0, C, (B,)))
    al = x.put("alpha", x.c.uni(C, lo=0.1, hi=1)) if x.p.get("alpha") else None
    lp = F.log_softmax(v, 1).gather(1, t[:, None])[:, 0]
    l = -(1 - lp.exp()) ** x.a["gamma"] * lp
    return l if al is None else l * al[t]


@loss("L41", "born_rule_mse_loss", "p t", "p", {}, True)
def born(x):
    s = x.p["shape"]
    p, t = x.put("p", x.c.rnd(*s)), x.put("t", x.c.uni(*s))
    return (p ** 2 - t) ** 2


@loss("L35", "wasserstein_loss", "c y", "c", {}, True)
def wasserstein(x):
    s = x.p["shape"]
    return -(x.put("c", x.c.rnd(*s)) * x.put("y", torch.where(x.c.uni(*s) < 0.5, -1.0, 1.0)))


# ------------------------------------------------------------------------------------------------ class losses
def class_ids(x, shape, C):
    t = x.c.integers(0, C, shape).numpy().copy()
    ig = x.p.get("ignore")
    if ig == "all":
        t[...] = x.a["ignore_index"]
    elif ig:
        t[x.c.uni(*shape).numpy() < 0.3] = x.a["ignore_index"]
    if x.p.get("bad_id") is not None:
        t.reshape(-1)[0] = x.p["bad_id"]
    return x.ids("target", t)


def _ce():
    args = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}

    def inputs(c, p, a, grad):
        x = Ctx(c, ("x",) if grad else (), a, p)
        N, C = p["shape"][:2]
        sp = tuple(p["shape"][2:])
        v = x.put("x", splice(c.rnd(*p["shape"], scale=p.get("scale", 2.0)), p.get("special")))
        soft = p.get("soft")
        t = x.put("target", torch.softmax(c.rnd(*p["shape"], scale=1.5), 1)) if soft else class_ids(x, (N,) + sp, C)
        w = x.put("weight", c.uni(p.get("wn", C), lo=0.2, hi=2)) if p.get("weight") else None
        return x, v, t, w

    def call(v, t, w, a, reduction):
        return F.cross_entropy(v, t, w, ignore_index=a["ignore_index"], label_smoothing=a["label_smoothing"], reduction=reduction)

    def forward(c, **p):
        "x [N, C, S...]; target ids [N, S...] or probabilities of x's shape; LSE [N, S...]"
        a = {k: p.get(k, v) for k, v in args.items()}
        x, v, t, w = inputs(c, p, a, False)
        y = call(v, t, w, a, a["reduction"])
        l = call(v, t, w, a, "none").detach().double()
        fin = l[torch.isfinite(l)].abs()
        n = max(l.numel(), 1)
        m = float(fin.sum()) / (1 if a["reduction"] == "sum" else n) if fin.numel() else 0.0
        xm = float(v[torch.isfinite(v)].abs().max()) if v.numel() else 0.0
        c.out("loss", y, Tol(2e-6, (8 + math.log2(n)) * 6e-8 * m + 1.2e-7 * xm * (n if a["reduction"] == "sum" else 1) + 2e-7) if y.dim() == 0
              else Tol(2e-6, 4e-7 + 2.4e-7 * xm), None if y.dim() else "f32")
        if p.get("lse"):
            c.out("LSE", torch.logsumexp(v, 1), Tol(1e-6, 1e-6))
    kernel("S7.2", S7, "cross_entropy_loss", "x target weight?", "loss LSE:f32?", args)(forward)

    def backward(c, **p):
        "LSE [N, S...] and, for mean, the denominator den of the forward are saved tensors"
        a = {k: p.get(k, v) for k, v in args.items()}
        N, C = p["shape"][:2]
        sp = tuple(p["shape"][2:])
        none = a["reduction"] == "none"
        gy = c.put("gy", c.rnd(N, *sp) if none else torch.tensor(float(p.get("gy", c.rnd(1)[0]))), "data" if none else "f32")
        x, v, t, w = inputs(c, p, a, True)
        c.put("LSE", torch.logsumexp(v.detach().double(), 1), "f32")
        if a["reduction"] == "mean":
            if p.get("soft"):
                den = float(N * math.prod(sp))
            else:
                ok = t != a["ignore_index"]
                ww = torch.ones(C) if w is None else w.detach().double()
                den = float(ww[t.clamp(0, C - 1)].to(torch.float64)[ok].sum())
            c.put("den", torch.tensor(den), "f32")
        y = call(v, t, w, a, a["reduction"])
        c.out("dx", ag(y, [v], gy.to(y.dtype))[0], Tol(2e-6, 1e-30, 1e-6))
    kernel("S7.6", S7, "cross_entropy_backward", "gy x target weight? LSE:f32 den:f32?", "dx", args)(backward)


_ce()


@loss("L19", "categorical_cross_entropy_loss", "p t", "p", {"label_smoothing": 0.0}, note="p probabilities along the last axis; items [B]")
def categorical(x):
    s, e = x.p["shape"], x.a["label_smoothing"]
    p = x.put("p", splice(torch.softmax(x.c.rnd(*s, scale=1.5), -1), x.p.get("special")))
    ids = x.c.integers(0, s[-1], s[:-1])
    t = x.put("t", F.one_hot(ids, s[-1]).double() if not x.p.get("soft") else torch.softmax(x.c.rnd(*s), -1))
    t = (1 - e) * t + e / s[-1]
    return -(t * torch.log(p.clamp_min(1e-7))).sum(-1)


@loss("L20", "sparse_categorical_cross_entropy_loss", "p target:idx", "p", {"ignore_index": -100}, note="p probabilities [B, C]")
def sparse_categorical(x):
    B, C = x.p["shape"]
    p = x.put("p", torch.softmax(x.c.rnd(B, C, scale=1.5), -1))
    t = class_ids(x, (B,), C)
    lp = p.clamp_min(1e-7).log()
    f = lambda r: F.nll_loss(lp, t, ignore_index=x.a["ignore_index"], reduction=r)
    return f("none"), f


@loss("L21", "weighted_cross_entropy_loss", "p target? t? weight", "p", {"mode": "categorical"},
      note="categorical: p probabilities [B, C], ids target, class weights [C], mean divides by the sum of the weights of the targets; "
           "binary: p, t and weight of one shape, mean divides by the number of items")
def weighted_ce(x):
    s = x.p["shape"]
    if x.a["mode"] == "categorical":
        p = x.put("p", torch.softmax(x.c.rnd(*s, scale=1.5), -1))
        t = class_ids(x, (s[0],), s[1])
        w = x.put("weight", x.c.uni(s[1], lo=0.2, hi=2))
        f = lambda r: F.nll_loss(p.log(), t, weight=w, reduction=r)
    else:
        p, t = x.put("p", x.c.uni(*s, lo=0.02, hi=0.98)), x.put("t", x.c.uni(*s))
        w = x.put("weight", x.c.uni(*s, lo=0.2, hi=2))
        f = lambda r: F.binary_cross_entropy(p, t, w, reduction=r)
    return f("none"), f


@loss("L15", "kullback_leibler_divergence", "p t", "p", {"log_input": False, "log_target": False},
      default="batchmean", note="last axis; reduction batchmean (sum over items / B), sum, mean (over elements) or none")
def kl(x):
    s, li, lt = x.p["shape"], x.a["log_input"], x.a["log_target"]
    lp, t = torch.log_softmax(x.c.rnd(*s, scale=1.5), -1), torch.softmax(x.c.rnd(*s, scale=1.5), -1)
    if x.p.get("zero"):
        t[..., 0] = 0
    p = x.put("p", lp if li else lp.exp())
    t = x.put("t", t.log() if lt else t)
    q = p if li else p.log()
    f = lambda r: F.kl_div(q, t, reduction=r, log_target=lt)
    return f("none"), f


@loss("L69", "nll_loss", "x target:idx weight?", "x", {"ignore_index": -100}, note="x log-probabilities [N, C]")
def nll(x):
    B, C = x.p["shape"]
    v = x.put("x", torch.log_softmax(x.c.rnd(B, C), -1))
    t = class_ids(x, (B,), C)
    w = x.put("weight", x.c.uni(C, lo=0.2, hi=2)) if x.p.get("weight") else None
    f = lambda r: F.nll_loss(v, t, weight=w, ignore_index=x.a["ignore_index"], reduction=r)
    return f("none"), f


@loss("L31", "ordinal_regression_loss", "f? s? theta? y:idx", "f s theta", {},
      note="f [B, K-1] logits, or score s [B] minus thresholds theta [K-1]; labels y in 0..K-1; items [B]")
def ordinal(x):
    B, K = x.p["shape"]
    if x.p.get("score"):
        s = x.put("s", x.c.rnd(B))
        th = x.put("theta", torch.sort(x.c.rnd(K - 1))[0])
        f = s[:, None] - th
    else:
        f = x.put("f", x.c.rnd(B, K - 1, scale=1.5))
    y = x.ids("y", x.c.integers(0, K, (B,)))
    lev = (y[:, None] > torch.arange(K - 1)).to(f.dtype)
    return F.binary_cross_entropy_with_logits(f, lev, reduction="none").sum(1)


@loss("L37", "distillation_loss", "z y labels:idx?", "z", {"T": 3.0, "alpha": 0.3}, reductions=False, scale=2e-6, note="scalar only")
def distillation(x):
    B, C = x.p["shape"]
    T, al = x.a["T"], x.a["alpha"]
    z, y = x.put("z", x.c.rnd(B, C, scale=2)), x.put("y", x.c.rnd(B, C, scale=2))
    k = T * T * F.kl_div((z / T).log_softmax(1), (y / T).softmax(1), reduction="batchmean")
    if x.p.get("labels", True):
        k = al * F.cross_entropy(z, x.ids("labels", x.c.integers(0, C, (B,)))) + (1 - al) * k
    return k[None], lambda _: k


@loss("L27", "margin_loss", "v t", "v", {"m_plus": 0.9, "m_minus": 0.1, "lambda": 0.5}, note="items [B]: sum over classes")
def margin(x):
    B, C = x.p["shape"]
    mp, mm, la = x.a["m_plus"], x.a["m_minus"], x.a["lambda"]
    v = x.put("v", x.c.away(x.c.uni(B, C), (mp, mm), 2e-3))
    t = x.put("t", F.one_hot(x.c.integers(0, C, (B,)), C).double())
    return (t * F.relu(mp - v) ** 2 + la * (1 - t) * F.relu(v - mm) ** 2).sum(1)


# ------------------------------------------------------------------------------------------------ embedding losses
@loss("L16", "cosine_similarity_loss", "p t", "p t", {"eps": 1e-8}, scale=2e-6, note="rows [B, E]; items [B]")
def cosine(x):
    p, t = x.put("p", x.c.rnd(*x.p["shape"])), x.put("t", x.c.rnd(*x.p["shape"]))
    return 1 - F.cosine_similarity(p, t, dim=-1, eps=x.a["eps"])


@loss("S7.11", "triplet_loss", "a p q", "a p q", {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, "squared": False}, rtol=1e-5, scale=1e-5,
      note="inputs a, p, q [B, E]; the argument p is the norm degree; items [B]")
def triplet(x):
    a = x.put("a", x.c.rnd(*x.p["shape"]))
    p = x.put("p", x.c.rnd(*x.p["shape"]))
    q = x.put("q", x.c.rnd(*x.p["shape"]))
    if x.a["squared"]:
        return F.relu(((a - p) ** 2).sum(1) - ((a - q) ** 2).sum(1) + x.a["margin"])
    return F.triplet_margin_loss(a, p, q, x.a["margin"], x.a["p"], x.a["eps"], x.a["swap"], reduction="none")


@loss("S7.13", "contrastive_loss", "u v y", "u v", {"margin": 1.0, "half": False}, rtol=1e-5, scale=1e-5, note="u, v [B, E], y [B]; items [B]")
def contrastive(x):
    B, E = x.p["shape"]
    u = x.c.rnd(B, E, scale=x.p.get("scale", 0.4))
    v = x.c.rnd(B, E, scale=x.p.get("scale", 0.4))
    y = (x.c.uni(B) < 0.5).double()
    if x.p.get("same"):
        v[0], y[0] = u[0], 0.0
    u, v, y = x.put("u", u), x.put("v", v), x.put("y", y)
    d2 = ((u - v) ** 2).sum(1)
    d = torch.where(d2 > 0, torch.sqrt(torch.where(d2 > 0, d2, torch.ones_like(d2))), torch.zeros_like(d2))
    l = y * d2 + (1 - y) * F.relu(x.a["margin"] - d) ** 2
    return l * 0.5 if x.a["half"] else l


@loss("L29", "noise_contrastive_estimation_loss", "s0 sn logq0? logqn?", "s0 sn", {},
      note="s0 [B], sn [B, K]; logq0, logqn: log noise probabilities of the words, delta = s - ln K - logq; items [B]")
def nce(x):
    B, K = x.p["shape"]
    s0, sn = x.put("s0", x.c.rnd(B)), x.put("sn", x.c.rnd(B, K))
    if x.p.get("noise"):
        q0, qn = x.put("logq0", -x.c.uni(B, lo=0.5, hi=6)), x.put("logqn", -x.c.uni(B, K, lo=0.5, hi=6))
        s0, sn = s0 - math.log(K) - q0, sn - math.log(K) - qn
    return F.softplus(-s0) + F.softplus(sn).sum(1)


def normalized(t):
    return F.normalize(t, dim=-1, eps=1e-12)


@loss("L62", "nt_xent_loss", "z1 z2", "z1 z2", {"tau": 0.1}, reductions=False, rtol=1e-5, scale=1e-5, note="rows are L2-normalised inside")
def nt_xent(x):
    B, E = x.p["shape"]
    z = torch.cat([normalized(x.put("z1", x.c.rnd(B, E))), normalized(x.put("z2", x.c.rnd(B, E)))])
    s = (z @ z.t() / x.a["tau"]).masked_fill(torch.eye(2 * B, dtype=torch.bool), -math.inf)
    t = (torch.arange(2 * B) + B) % (2 * B)
    l = F.cross_entropy(s, t, reduction="none")
    return l, lambda _: l.mean()


@loss("L63", "info_nce_loss", "q k negatives?", "q k negatives", {"tau": 0.07}, reductions=False, rtol=1e-5, scale=1e-5,
      note="inputs are used as they are (no normalisation inside); without negatives the other keys of the batch are the negatives")
def info_nce(x):
    B, E = x.p["shape"]
    q = x.put("q", normalized(x.c.rnd(B, E)))
    k = x.put("k", normalized(x.c.rnd(B, E)))
    if x.p.get("K"):
        n = x.put("negatives", normalized(x.c.rnd(x.p["K"], E)))
        s, t = torch.cat([(q * k).sum(1, keepdim=True), q @ n.t()], 1), torch.zeros(B, dtype=torch.int64)
    else:
        s, t = q @ k.t(), torch.arange(B)
    l = F.cross_entropy(s / x.a["tau"], t, reduction="none")
    return l, lambda _: l.mean()


@loss("L64", "barlow_twins_loss", "z1 z2", "z1 z2", {"lambda": 0.0051}, reductions=False, rtol=1e-5, scale=1e-4,
      note="columns standardised with the biased variance, no epsilon")
def barlow(x):
    B, E = x.p["shape"]
    a = x.c.rnd(B, E)
    z = [x.put("z1", a), x.put("z2", a * 0.7 + 0.5 * x.c.rnd(B, E))]
    s = [(t - t.mean(0)) / t.std(0, correction=0) for t in z]
    C = s[0].t() @ s[1] / B
    d = torch.diagonal(C)
    l = ((1 - d) ** 2).sum() + x.a["lambda"] * ((C ** 2).sum() - (d ** 2).sum())
    return l[None], lambda _: l


@loss("L65", "byol_loss", "p z", "p", {}, reductions=False, rtol=1e-5, scale=1e-5, note="mean over B of 2 - 2 cos(p, z); no gradient for z")
def byol(x):
    p, z = x.put("p", x.c.rnd(*x.p["shape"])), x.put("z", x.c.rnd(*x.p["shape"]))
    l = 2 - 2 * F.cosine_similarity(p, z, dim=-1, eps=1e-12)
    return l, lambda _: l.mean()


@loss("L66", "dino_loss", "z y center", "z", {"tau_s": 0.1, "tau_t": 0.04}, reductions=False, rtol=1e-5, scale=1e-5,
      note="student z, teacher y [B, C], center [C]; mean over B")
def dino(x):
    B, C = x.p["shape"]
    z, y, ce = x.put("z", x.c.rnd(B, C, scale=0.3)), x.put("y", x.c.rnd(B, C, scale=0.2)), x.put("center", x.c.rnd(C, scale=0.1))
    l = -(torch.softmax((y - ce) / x.a["tau_t"], 1) * F.log_softmax(z / x.a["tau_s"], 1)).sum(1)
    return l, lambda _: l.mean()


@loss("L72", "supervised_contrastive_loss", "z labels:idx", "z", {"tau": 0.1}, reductions=False, rtol=1e-5, scale=2e-5,
      note="rows L2-normalised inside; per anchor the mean of -log p over its positives; mean over anchors that have positives")
def supcon(x):
    B, E = x.p["shape"]
    z = normalized(x.put("z", x.c.rnd(B, E)))
    y = x.ids("labels", x.c.integers(0, 3, (B,)))
    eye = torch.eye(B, dtype=torch.bool)
    lp = F.log_softmax((z @ z.t() / x.a["tau"]).masked_fill(eye, -math.inf), 1)
    pos = (y[:, None] == y[None]) & ~eye
    n = pos.sum(1)
    l = -(torch.where(pos, lp, torch.zeros_like(lp))).sum(1)[n > 0] / n[n > 0]
    return l, lambda _: l.mean()


@loss("L72", "arcface_loss", "x target:idx", "x", {"s": 64.0, "m": 0.5}, reductions=False, rtol=1e-5, scale=2e-5,
      note="x cosines [B, C]; target logit s*cos(theta+m) if cos theta > 0 else s*cos theta, others s*cos theta; mean cross entropy")
def arcface(x):
    B, C = x.p["shape"]
    v = x.put("x", x.c.away(x.c.uni(B, C, lo=-0.9, hi=0.9), gap=5e-3))
    t = x.ids("target", x.c.integers(0, C, (B,)))
    m = x.a["m"]
    ct = v.gather(1, t[:, None])
    phi = torch.where(ct > 0, torch.cos(torch.acos(ct) + m), ct)
    l = F.cross_entropy(x.a["s"] * v.scatter(1, t[:, None], phi), t, reduction="none")
    return l, lambda _: l.mean()


# ------------------------------------------------------------------------------------------------ segmentation and boxes
def soft_masks(x):
    s = x.p["shape"]
    lg = x.a.get("from_logits")
    p = x.put("p", x.c.rnd(*s) if lg else x.c.uni(*s))
    t = x.put("t", torch.zeros(s) if x.p.get("blank") else (x.c.uni(*s) < 0.4).double())
    p = torch.sigmoid(p) if lg else p
    ax = tuple(range(2 if x.a.get("per_channel") else 1, len(s)))
    return p, t, ax


@loss("L23", "dice_loss", "p t", "p", {"smooth": 1.0, "squared": False, "from_logits": False, "per_channel": False},
      note="items: per sample, or per sample and channel")
def dice(x):
    p, t, ax = soft_masks(x)
    I = (p * t).sum(ax)
    S = ((p * p + t * t) if x.a["squared"] else (p + t)).sum(ax)
    s = x.a["smooth"]
    return 1 - (2 * I + s) / (S + s)


@loss("L24", "jaccard_loss", "p t", "p", {"smooth": 1.0})
def jaccard(x):
    p, t, ax = soft_masks(x)
    I = (p * t).sum(ax)
    return 1 - (I + x.a["smooth"]) / ((p + t).sum(ax) - I + x.a["smooth"])


def tversky_index(x):
    p, t, ax = soft_masks(x)
    tp, fp, fn = (p * t).sum(ax), (p * (1 - t)).sum(ax), ((1 - p) * t).sum(ax)
    s = x.a["smooth"]
    return 1 - (tp + s) / (tp + x.a["a"] * fp + x.a["b"] * fn + s)


@loss("L71", "tversky_loss", "p t", "p", {"a": 0.3, "b": 0.7, "smooth": 1.0}, note="items: per sample")
def tversky(x):
    return tversky_index(x)


@loss("L71", "focal_tversky_loss", "p t", "p", {"a": 0.3, "b": 0.7, "smooth": 1.0, "gamma": 0.75}, note="items: per sample, (1 - index)^gamma")
def focal_tversky(x):
    return tversky_index(x) ** x.a["gamma"]


@loss("L71", "lovasz_softmax_loss", "p target:idx", "p", {}, reductions=False, scale=1e-5,
      note="p probabilities [N, C], ids [N]; mean over the classes that occur in target")
def lovasz(x):
    N, C = x.p["shape"]
    p = x.put("p", torch.softmax(x.c.rnd(N, C, scale=1.5), 1))
    t = x.ids("target", x.c.integers(0, C, (N,)))
    parts = []
    for k in range(C):
        fg = (t == k).to(p.dtype)
        if fg.sum() == 0:
            continue
        e, order = torch.sort((fg - p[:, k]).abs(), descending=True)
        f = fg[order]
        inter, union = f.sum() - f.cumsum(0), f.sum() + (1 - f).cumsum(0)
        j = 1 - inter / union
        parts.append((e * torch.cat([j[:1], j[1:] - j[:-1]])).sum())
    l = torch.stack(parts)
    return l, lambda _: l.mean()


def box_pair(x):
    n = x.p["n"]
    c = x.c.uni(n, 2, lo=0, hi=4)
    a = torch.cat([c, c + x.c.uni(n, 2, lo=0.5, hi=3)], 1)
    far = 8.0 if x.p.get("apart") else 0.0
    d = c + x.c.uni(n, 2, lo=0.1, hi=0.9) + far
    b = torch.cat([d, d + x.c.uni(n, 2, lo=0.5, hi=3)], 1)
    return x.put("p", a), x.put("t", b)


def iou_parts(p, t, eps):
    wh = lambda b: ((b[:, 2] - b[:, 0]).clamp_min(0), (b[:, 3] - b[:, 1]).clamp_min(0))
    (w1, h1), (w2, h2) = wh(p), wh(t)
    iw = (torch.minimum(p[:, 2], t[:, 2]) - torch.maximum(p[:, 0], t[:, 0])).clamp_min(0)
    ih = (torch.minimum(p[:, 3], t[:, 3]) - torch.maximum(p[:, 1], t[:, 1])).clamp_min(0)
    inter = iw * ih
    union = w1 * h1 + w2 * h2 - inter
    cw = torch.maximum(p[:, 2], t[:, 2]) - torch.minimum(p[:, 0], t[:, 0])
    ch = torch.maximum(p[:, 3], t[:, 3]) - torch.minimum(p[:, 1], t[:, 1])
    return inter / (union + eps), union, cw, ch, (w1, h1, w2, h2)


def _boxes(name, sec, fn):
    @loss(sec, name, "p t", "p", {"eps": 1e-7}, rtol=1e-5, scale=1e-5, note="paired xyxy boxes [N, 4]; items [N]")
    def item(x):
        p, t = box_pair(x)
        return fn(p, t, x.a["eps"])


def _diou(p, t, eps):
    i, _, cw, ch, _ = iou_parts(p, t, eps)
    rho = ((p[:, 0] + p[:, 2] - t[:, 0] - t[:, 2]) ** 2 + (p[:, 1] + p[:, 3] - t[:, 1] - t[:, 3]) ** 2) / 4
    return 1 - i + rho / (cw ** 2 + ch ** 2 + eps), i


def _giou(p, t, eps):
    i, u, cw, ch, _ = iou_parts(p, t, eps)
    hull = cw * ch
    return 1 - i + (hull - u) / (hull + eps)


def _ciou(p, t, eps):
    d, i = _diou(p, t, eps)
    w1, h1, w2, h2 = iou_parts(p, t, eps)[4]
    v = 4 / math.pi ** 2 * (torch.atan(w2 / h2) - torch.atan(w1 / h1)) ** 2
    al = (v / (1 - i + v + eps)).detach()
    return d + al * v


_boxes("iou_loss", "L53", lambda p, t, e: 1 - iou_parts(p, t, e)[0])
_boxes("giou_loss", "L54", _giou)
_boxes("diou_loss", "L55", lambda p, t, e: _diou(p, t, e)[0])
_boxes("ciou_loss", "L56", _ciou)


# ------------------------------------------------------------------------------------------------ sequence losses
def ctc_inputs(x):
    p = x.p
    T, B, C = p["shape"]
    lp = torch.log_softmax(x.c.rnd(T, B, C, scale=1.5), -1)
    if x.a["batch_first"]:
        lp = lp.transpose(0, 1)
    v = x.put("x", lp)
    blank, tl = x.a["blank"], p["target_lengths"]
    pick = lambda n: [(int(k) if k < blank else int(k) + 1) for k in x.c.integers(0, C - 1, (n,))]
    seqs = [pick(n) for n in tl]
    for s in p.get("repeat", ()):                       # make neighbouring labels equal
        seqs[s] = [seqs[s][i // 2] for i in range(len(seqs[s]))]
    if p.get("padded"):
        m = max(max(tl), 1)
        t = np.full((B, m), blank)
        for b, s in enumerate(seqs):
            t[b, :len(s)] = s
    else:
        t = np.array(sum(seqs, []), dtype=np.int64)
    t = x.ids("targets", t)
    il = x.ids("input_lengths", p.get("input_lengths", [T] * B))
    tl = x.ids("target_lengths", tl)
    return v.transpose(0, 1) if x.a["batch_first"] else v, t, il, tl


@loss("L28", "ctc_loss", "x targets:idx input_lengths:idx target_lengths:idx", "x", {"blank": 0, "zero_infinity": False, "batch_first": False},
      rtol=1e-5, scale=1e-5, note="x log-probabilities [T, B, C]; targets concatenated [sum] or [B, S]; dx is taken with respect to the "
      "log-probabilities as independent values: -gy*occupancy (no softmax term)")
def ctc(x):
    v, t, il, tl = ctc_inputs(x)
    f = lambda r: ctc_value(v, t, il, tl, x.a["blank"], r, x.a["zero_infinity"])
    return f("none"), f


def ctc_value(v, t, il, tl, blank, reduction, zi):
    "the DP itself (differentiable), checked against F.ctc_loss; that function's gradient is taken through log_softmax"
    B, out, pos = v.shape[1], [], 0
    for b in range(B):
        S = int(tl[b])
        lab = t[b, :S] if t.dim() == 2 else t[pos:pos + S]
        pos += S
        ext = [blank]
        for k in lab.tolist():
            ext += [k, blank]
        NEG = torch.tensor(-math.inf, dtype=v.dtype)
        a = [v[0, b, ext[0]]] + ([v[0, b, ext[1]]] if S else []) + [None] * max(0, len(ext) - 2)
        for i in range(1, int(il[b])):
            n = []
            for s in range(len(ext)):
                terms = [a[s]] + ([a[s - 1]] if s else [])
                if s > 1 and ext[s] != blank and ext[s] != ext[s - 2]:
                    terms.append(a[s - 2])
                terms = [q for q in terms if q is not None]
                n.append(logsum(terms) + v[i, b, ext[s]] if terms else None)
            a = n
        ends = [q for q in (a[-1], a[-2] if S else None) if q is not None]
        out.append(-logsum(ends) if ends else -NEG)
    l = torch.stack(out)
    if zi:
        l = torch.where(torch.isinf(l), torch.zeros_like(l), l)
    want = F.ctc_loss(v.detach().double(), t, il, tl, blank, "none", zi)
    if v.dtype == torch.float64:
        assert torch.allclose(want, l.detach(), rtol=1e-9, atol=1e-9), (want, l)
    return l if reduction == "none" else l.sum() if reduction == "sum" else (l / tl.clamp_min(1)).mean()


def logsum(terms):
    return terms[0] if len(terms) == 1 else torch.logsumexp(torch.stack(terms), 0)


@loss("L76", "rnnt_loss", "x targets:idx input_lengths:idx target_lengths:idx", "x", {"blank": -1}, rtol=1e-5, scale=1e-5,
      note="x logits [B, T, U+1, C], log-softmax inside; blank -1 = last class; mean over B")
def rnnt(x):
    p = x.p
    B, T, U1, C = p["shape"]
    v = x.put("x", x.c.rnd(B, T, U1, C))
    blank = x.a["blank"] % C
    t = x.ids("targets", np.array([[k if k < blank else k + 1 for k in x.c.integers(0, C - 1, (U1 - 1,)).tolist()] for _ in range(B)]).reshape(B, U1 - 1), "i32")
    il = x.ids("input_lengths", p.get("input_lengths", [T] * B), "i32")
    tl = x.ids("target_lengths", p.get("target_lengths", [U1 - 1] * B), "i32")
    lp, out = F.log_softmax(v, -1), []
    for b in range(B):
        n, m = int(il[b]), int(tl[b])
        a = {}
        for i in range(n):
            for u in range(m + 1):
                terms = []
                if i:
                    terms.append(a[i - 1, u] + lp[b, i - 1, u, blank])
                if u:
                    terms.append(a[i, u - 1] + lp[b, i, u - 1, t[b, u - 1]])
                a[i, u] = logsum(terms) if terms else torch.zeros((), dtype=lp.dtype)
        out.append(-(a[n - 1, m] + lp[b, n - 1, m, blank]))
    return torch.stack(out)


# ------------------------------------------------------------------------------------------------ others with a closed form
@loss("L30", "perceptual_loss", "f* g*", "", {"weights": "required", "l1": False}, reductions=False, back=False,
      note="sum_l weights[l]*mean((f_l-g_l)^2), or mean |f_l-g_l| with l1")
def perceptual(x):
    ls = []
    for i, s in enumerate(x.p["shapes"]):
        x.put(f"f{i}", x.c.rnd(*s))
    for i, s in enumerate(x.p["shapes"]):
        x.put(f"g{i}", x.c.rnd(*s))
        fn = F.l1_loss if x.a["l1"] else F.mse_loss
        ls.append(x.a["weights"][i] * fn(x.v[f"f{i}"], x.v[f"g{i}"]))
    l = torch.stack(ls)
    return l, lambda _: l.sum()


@kernel("L30", SL, "perceptual_loss_backward", "gy:f32 f* g*", "df*", {"weights": "required", "l1": False})
def perceptual_backward(c, shapes, weights, l1=False):
    gy = c.put("gy", torch.tensor(0.37), "f32")
    f = []
    for i, s in enumerate(shapes):
        f.append(c.var(f"f{i}", *s))
    tot = 0.0
    for i, s in enumerate(shapes):
        tot = tot + weights[i] * (F.l1_loss if l1 else F.mse_loss)(f[i], c.x(f"g{i}", *s))
    for i, d in enumerate(ag(tot, f, gy.to(tot.dtype))):
        c.out(f"df{i}", d, Tol(2e-6, 1e-30, 1e-6))


@loss("L38", "physics_informed_loss", "r*", "", {"weights": "required"}, reductions=False, back=False,
      note="sum_l weights[l]*mean(r_l^2) over residual tensors")
def physics(x):
    l = torch.stack([w * (x.put(f"r{i}", x.c.rnd(*s)) ** 2).mean() for i, (s, w) in enumerate(zip(x.p["shapes"], x.a["weights"]))])
    return l, lambda _: l.sum()


@loss("L32", "quantum_loss", "psi phi", "psi", {}, note="complex states interleaved: [B, D, 2]; items [B]", scale=3e-6)
def quantum(x):
    B, D = x.p["shape"]
    psi, phi = x.c.rnd(B, D, 2), x.c.rnd(B, D, 2)
    phi = phi / phi.norm(dim=(1, 2), keepdim=True)
    psi, phi = x.put("psi", psi), x.put("phi", phi)
    re = (psi * phi).sum((1, 2))
    im = (phi[..., 0] * psi[..., 1] - phi[..., 1] * psi[..., 0]).sum(1)
    return 1 - (re ** 2 + im ** 2) / ((psi ** 2).sum((1, 2)) * (phi ** 2).sum((1, 2)))


@loss("L34", "scale_invariant_depth_loss", "p t mask:u8?", "p", {"lambda": 0.5, "sqrt": False}, rtol=1e-5, scale=1e-5,
      note="items: per sample over all other axes; valid pixels have t > 0 and mask true; sqrt: 10*sqrt of the item")
def sid(x):
    s = x.p["shape"]
    p = x.put("p", x.c.uni(*s, lo=0.3, hi=5))
    t = x.c.uni(*s, lo=0.3, hi=5)
    t[x.c.uni(*s) < 0.2] = 0
    t = x.put("t", t)
    ok = t > 0
    if x.p.get("mask"):
        ok = ok & x.mask("mask", x.c.uni(*s) < 0.8)
    out = []
    for b in range(s[0]):
        d = torch.log(p[b][ok[b]]) - torch.log(t[b][ok[b]])
        v = (d ** 2).mean() - x.a["lambda"] * d.mean() ** 2
        out.append(10 * torch.sqrt(v) if x.a["sqrt"] else v)
    return torch.stack(out)


@loss("L44", "multi_resolution_stft_loss", "p t", "p", {"resolutions": "required"}, reductions=False, rtol=5e-5, scale=2e-4,
      note="p, t [B, T]; resolutions [[fft, hop, window], ...]; periodic Hann window centred in the frame, center=true with reflect padding; "
           "norms over the whole batch")
def mrstft(x):
    s = x.p["shape"]
    t = x.c.rnd(*s)
    p, t = x.put("p", t + 0.3 * x.c.rnd(*s)), x.put("t", t)
    tot = 0.0
    for n, h, w in x.a["resolutions"]:
        win = torch.hann_window(w, dtype=p.dtype)
        m = []
        for v in (p, t):
            z = torch.stft(v, n, h, w, win, center=True, pad_mode="reflect", return_complex=True)
            m.append(torch.sqrt(torch.clamp(z.real ** 2 + z.imag ** 2, min=1e-7)))
        tot = tot + (m[1] - m[0]).norm() / m[1].norm() + (m[1].log() - m[0].log()).abs().mean()
    l = tot / len(x.a["resolutions"])
    return l[None], lambda _: l


@loss("L47", "adversarial_loss", "d_fake d_real?", "d_fake d_real", {"role": "generator", "mode": "vanilla"}, reductions=False,
      note="role generator or discriminator; mode vanilla or hinge; means over all scores")
def adversarial(x):
    s, hinge_mode = x.p["shape"], x.a["mode"] == "hinge"
    f = x.put("d_fake", x.c.away(x.c.rnd(*s, scale=x.p.get("scale", 1.5)), (-1.0, 1.0)))
    if x.a["role"] == "generator":
        l = -f if hinge_mode else F.softplus(-f)
        return l, lambda _: l.mean()
    r = x.put("d_real", x.c.away(x.c.rnd(*s, scale=1.5), (-1.0, 1.0)))
    l = F.relu(1 - r) + F.relu(1 + f) if hinge_mode else F.softplus(-r) + F.softplus(f)
    return l, lambda _: l.mean()


@loss("L48", "diag_gaussian_kl_loss", "mu lv", "mu lv", {}, note="-0.5*sum(1+lv-mu^2-e^lv) per row; mean over B")
def gaussian_kl(x):
    mu, lv = x.put("mu", x.c.rnd(*x.p["shape"])), x.put("lv", x.c.rnd(*x.p["shape"]))
    return -0.5 * (1 + lv - mu ** 2 - lv.exp()).sum(1)


@loss("L50", "pairwise_ranking_loss", "s rel", "s", {}, reductions=False, scale=2e-6,
      note="weights 1: mean of softplus(s_j - s_i) over pairs with rel_i > rel_j; no pair gives 0")
def ranking(x):
    n = x.p["n"]
    s, r = x.put("s", x.c.rnd(n)), x.put("rel", torch.zeros(n) if x.p.get("tied") else x.c.integers(0, 4, (n,)).double())
    ok = r[:, None] > r[None]
    l = torch.where(ok, F.softplus(s[None] - s[:, None]), torch.zeros((), dtype=s.dtype))
    return l, lambda _: l.sum() / max(int(ok.sum()), 1)


@loss("L67", "mae_reconstruction_loss", "p t mask:u8", "p", {"normalize": False}, reductions=False, rtol=1e-5, scale=1e-5,
      note="p, t [B, L, P], mask [B, L] (true = counted); normalize standardises target patches (unbiased variance, eps 1e-6)")
def mae_rec(x):
    B, L, P = x.p["shape"]
    p, t = x.put("p", x.c.rnd(B, L, P)), x.put("t", x.c.rnd(B, L, P))
    m = x.mask("mask", x.c.uni(B, L) < 0.6)
    if x.a["normalize"]:
        t = (t - t.mean(-1, keepdim=True)) / torch.sqrt(t.var(-1, keepdim=True) + 1e-6)
    l = ((p - t) ** 2).mean(-1)
    return l, lambda _: (l * m.to(l.dtype)).sum() / m.sum()


def _simple(name, ins, grads, args, draw, fn, rtol=2e-6, scale=2e-6, note=None):
    "losses that are one torch.nn.functional call"
    @loss("L70", name, ins, grads, args, rtol=rtol, scale=scale, note=note)
    def item(x):
        t = draw(x)
        f = lambda r: fn(t, x.a, r)
        return f("none"), f


def pm1(x, *s):
    return torch.where(x.c.uni(*s) < 0.5, -1.0, 1.0)


_simple("margin_ranking_loss", "x1 x2 y", "x1 x2", {"margin": 0.0},
        lambda x: [x.put("x1", x.c.rnd(*x.p["shape"])), x.put("x2", x.c.rnd(*x.p["shape"])), x.put("y", pm1(x, *x.p["shape"]))],
        lambda t, a, r: F.margin_ranking_loss(*t, margin=a["margin"], reduction=r))
_simple("hinge_embedding_loss", "x y", "x", {"margin": 1.0},
        lambda x: [x.put("x", x.c.away(x.c.uni(*x.p["shape"], lo=0, hi=2), (x.a["margin"],))), x.put("y", pm1(x, *x.p["shape"]))],
        lambda t, a, r: F.hinge_embedding_loss(*t, margin=a["margin"], reduction=r))
_simple("cosine_embedding_loss", "x1 x2 y", "x1 x2", {"margin": 0.0},
        lambda x: [x.put("x1", x.c.rnd(*x.p["shape"])), x.put("x2", x.c.rnd(*x.p["shape"])), x.put("y", pm1(x, x.p["shape"][0]))],
        lambda t, a, r: F.cosine_embedding_loss(*t, margin=a["margin"], reduction=r), 1e-5, 1e-5)
_simple("soft_margin_loss", "x y", "x", {},
        lambda x: [x.put("x", x.c.rnd(*x.p["shape"], scale=2)), x.put("y", pm1(x, *x.p["shape"]))],
        lambda t, a, r: F.soft_margin_loss(*t, reduction=r))
_simple("multi_margin_loss", "x target:idx weight?", "x", {"p": 1, "margin": 1.0},
        lambda x: [x.put("x", x.c.rnd(*x.p["shape"])), x.ids("target", x.c.integers(0, x.p["shape"][1], (x.p["shape"][0],))),
                   x.put("weight", x.c.uni(x.p["shape"][1], lo=0.2, hi=2)) if x.p.get("weight") else None],
        lambda t, a, r: F.multi_margin_loss(t[0], t[1], p=a["p"], margin=a["margin"], weight=t[2], reduction=r), note="p = 1 or 2; items [N]")


def _mlm_target(x):
    N, C = x.p["shape"]
    t = np.full((N, C), -1)
    for i in range(N):
        k = int(x.c.integers(0, C, (1,)))
        t[i, :k] = x.c.rng.permutation(C)[:k]
    return x.ids("target", t, "i64")


_simple("multilabel_margin_loss", "x target:idx", "x", {}, lambda x: [x.put("x", x.c.rnd(*x.p["shape"])), _mlm_target(x)],
        lambda t, a, r: F.multilabel_margin_loss(*t, reduction=r), note="target [N, C] label ids, -1 ends the list; items [N]")
_simple("multilabel_soft_margin_loss", "x t weight?", "x", {},
        lambda x: [x.put("x", x.c.rnd(*x.p["shape"], scale=2)), x.put("t", (x.c.uni(*x.p["shape"]) < 0.4).double()),
                   x.put("weight", x.c.uni(x.p["shape"][1], lo=0.2, hi=2)) if x.p.get("weight") else None],
        lambda t, a, r: F.multilabel_soft_margin_loss(t[0], t[1], t[2], reduction=r), note="items [N]: mean over classes")
_simple("gaussian_nll_loss", "p t var", "p var", {"full": False, "eps": 1e-6},
        lambda x: [x.put("p", x.c.rnd(*x.p["shape"])), x.put("t", x.c.rnd(*x.p["shape"])), x.put("var", x.c.uni(*x.p["shape"], lo=0.1, hi=3))],
        lambda t, a, r: F.gaussian_nll_loss(*t, full=a["full"], eps=a["eps"], reduction=r))


def logps(x, names):
    return [x.put(n, -x.c.uni(x.p["n"], lo=0.2, hi=4)) for n in names.split()]


@loss("L74", "dpo_loss", "w l w_ref l_ref", "w l", {"beta": 0.1}, note="-logsigmoid(beta*((w-w_ref)-(l-l_ref))), sequence log-probabilities [B]")
def dpo(x):
    w, l, wr, lr = logps(x, "w l w_ref l_ref")
    return -F.logsigmoid(x.a["beta"] * ((w - wr) - (l - lr)))


@loss("L74", "ipo_loss", "w l w_ref l_ref", "w l", {"beta": 0.1}, scale=3e-6, note="((w-w_ref) - (l-l_ref) - 1/(2 beta))^2")
def ipo(x):
    w, l, wr, lr = logps(x, "w l w_ref l_ref")
    return ((w - wr) - (l - lr) - 1 / (2 * x.a["beta"])) ** 2


@loss("L74", "simpo_loss", "w l", "w l", {"beta": 2.0, "gamma": 1.0},
      note="-logsigmoid(beta*(w-l) - gamma), w and l are length-normalised log-probabilities")
def simpo(x):
    w, l = logps(x, "w l")
    return -F.logsigmoid(x.a["beta"] * (w - l) - x.a["gamma"])


@loss("L74", "orpo_loss", "w l", "w l", {}, rtol=1e-5, scale=1e-5,
      note="odds-ratio term only: -logsigmoid(log odds(w) - log odds(l)), log odds(v) = v - log(1 - e^v), mean token log-probabilities")
def orpo(x):
    w, l = logps(x, "w l")
    odds = lambda v: v - torch.log(-torch.expm1(v))
    return -F.logsigmoid(odds(w) - odds(l))


@loss("L75", "z_loss", "x", "x", {"coef": 1e-4}, scale=2e-6, note="coef*logsumexp(x)^2 per row of [N, C]; mean over N")
def z(x):
    return x.a["coef"] * torch.logsumexp(x.put("x", x.c.rnd(*x.p["shape"], scale=2)), 1) ** 2


@loss("L75", "moe_load_balance_loss", "probs ids:idx", "probs", {}, reductions=False,
      note="E*sum_e f_e*P_e, f_e = share of the N*k assignments ids [N, k], P_e = mean of probs [N, E]; f without gradient")
def load_balance(x):
    N, E = x.p["shape"]
    pr = x.put("probs", torch.softmax(x.c.rnd(N, E), 1))
    ids = x.ids("ids", x.c.integers(0, E, (N, x.p.get("k", 2))))
    f = torch.bincount(ids.reshape(-1), minlength=E).to(pr.dtype) / ids.numel()
    l = E * (f * pr.mean(0)).sum()
    return l[None], lambda _: l

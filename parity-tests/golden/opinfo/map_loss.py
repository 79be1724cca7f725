"""Losses with their reductions and weights."""
import math
import torch
import torch.nn.functional as F
from core import Tol
from harness import Skip, maps
from conv import clean
from binary import top

SUITE = "loss"
BACK = {"mse_loss": "mse_backward", "cross_entropy_loss": "cross_entropy_backward", "bce_loss": "bce_backward", "smooth_l1_loss": "smooth_l1_backward"}


def loss_tol(items, reduction, rtol, scale):
    "the bound of generators/loss.py: rounding of each item and of their sum"
    n = max(items.numel(), 1)
    if reduction == "none":
        return Tol(rtol, 3e-7, 2e-7)
    l = items.detach().double()
    l = l[torch.isfinite(l)].abs()
    m = float(l.sum() / n) * (n if reduction == "sum" else 1) if l.numel() else 0.0
    return Tol(rtol, (8 + math.log2(n)) * 6e-8 * m + scale * 0.2 * m + 2e-7 * (n if reduction == "sum" else 1))


def emit(s, kernel, ins, args, grads, fn, reduction, rtol=2e-6, scale=1e-6):
    "a loss and its gradient with respect to the named inputs; fn(reduction) evaluates it"
    reduction = reduction or "mean"
    y = fn(reduction)
    args = {**args, "reduction": reduction}
    s.emit(kernel, ins, args, {"loss": (y, loss_tol(fn("none"), reduction, rtol, scale))})
    if not y.numel() or not all(bool(t.isfinite().all()) for t in ins.values() if t is not None):
        return
    gy = s.grad_like(y, shift=1.0)
    found = s.grad(gy, *[ins[g] for g in grads], y=y)
    if all(bool(g.isfinite().all()) for g in found):
        outs = {"d" + n: (g, Tol(rtol, 1e-30, scale)) for n, g in zip(grads, found)}
        s.emit(BACK.get(kernel, kernel + "_backward"), {"gy": gy, **ins}, args, outs)


def legacy(s, names, **defaults):
    "the arguments of a loss without the long deprecated forms of reduction"
    names += " reduction size_average reduce"
    got = s.bind(names, reduction="mean", **defaults)
    got = [v.detach() if n in ("target", "weight", "pos_weight") and v is not None else v for n, v in zip(names.split(), got)]
    if got[-1] is not None or got[-2] is not None:
        raise Skip("deprecated forms of reduction")
    return got[:-2]


def same_shape(s, *ts):
    if any(t.shape != s.x.shape for t in ts if t is not None):
        raise Skip("a loss of broadcast operands")


def plain(s, kernel, fn, names="", args=lambda: {}, grads=("p",)):
    t, *rest, reduction = legacy(s, ("target " + names).strip())
    same_shape(s, t)
    a = {k: v for k, v in args(*rest).items() if v is not None}
    given = {n: v for n, v in zip(names.split(), rest) if v is not None}
    emit(s, kernel, {"p": s.x, "t": t}, a, grads, lambda r: fn(s.x, t, reduction=r, **given), reduction)


maps(SUITE, "nn.functional.mse_loss")(lambda s: plain(s, "mse_loss", F.mse_loss))
maps(SUITE, "nn.functional.l1_loss")(lambda s: plain(s, "mae_loss", F.l1_loss))
maps(SUITE, "nn.functional.smooth_l1_loss")(lambda s: plain(s, "smooth_l1_loss", F.smooth_l1_loss, "beta", lambda b: {"beta": b}))
maps(SUITE, "nn.functional.huber_loss")(lambda s: plain(s, "huber_loss", F.huber_loss, "delta", lambda d: {"delta": d}))


@maps(SUITE, "nn.functional.poisson_nll_loss")
def poisson(s):
    t, log_input, full, eps, reduction = legacy(s, "target log_input full eps", log_input=True, full=False, eps=1e-8)
    same_shape(s, t)
    fn = lambda r: F.poisson_nll_loss(s.x, t, log_input=bool(log_input), full=bool(full), eps=eps, reduction=r)
    emit(s, "poisson_loss", {"p": s.x, "t": t}, {"log_input": bool(log_input), "full": bool(full), "eps": eps}, ("p",), fn, reduction)


@maps(SUITE, "nn.functional.binary_cross_entropy")
def bce(s):
    t, w, reduction = legacy(s, "target weight")
    same_shape(s, t, w)
    emit(s, "bce_loss", {"p": s.x, "t": t, "weight": w}, {}, ("p",), lambda r: F.binary_cross_entropy(s.x, t, w, reduction=r), reduction)


@maps(SUITE, "nn.functional.binary_cross_entropy_with_logits")
def bce_logits(s):
    t, w, pos, reduction = legacy(s, "target weight pos_weight")
    same_shape(s, t, w)
    if pos is not None and (s.x.dim() == 0 or pos.shape != s.x.shape[-1:]):
        raise Skip("a loss of broadcast operands")
    fn = lambda r: F.binary_cross_entropy_with_logits(s.x, t, w, pos_weight=pos, reduction=r)
    emit(s, "binary_cross_entropy_with_logits_loss", {"x": s.x, "t": t, "weight": w, "pos_weight": pos}, {}, ("x",), fn, reduction)


def batched(s, t):
    "a sample without the batch axis gets one"
    x, t = (s.x.unsqueeze(0), t.unsqueeze(0)) if s.x.dim() == 1 else (s.x, t)
    return x, t


@maps(SUITE, "nn.functional.cross_entropy")
def cross_entropy(s):
    t, w, ignore, smoothing, reduction = legacy(s, "target weight ignore_index label_smoothing", ignore_index=-100, label_smoothing=0.0)
    if s.x.dim() < 2 or (not t.is_floating_point() and bool(((t < 0) | (t >= s.x.shape[1]))[t != ignore].any())):
        raise Skip("a class without a batch")
    call = lambda r: F.cross_entropy(s.x, t, w, ignore_index=ignore, label_smoothing=smoothing, reduction=r)
    y, n, xm = call(reduction), max(call("none").numel(), 1), top(s.x)
    args = {"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
    m = float(clean(call("none")).sum()) / (1 if reduction == "sum" else n)
    rows = n if reduction == "sum" else 1
    tol = Tol(2e-6, (8 + math.log2(n)) * 6e-8 * m + 1.2e-7 * xm * rows + 2e-7) if y.dim() == 0 else Tol(2e-6, 4e-7 + 2.4e-7 * xm)
    ins = {"x": s.x, "target": t, "weight": w}
    s.emit("cross_entropy_loss", ins, args, {"loss": (y, tol)})
    gy = s.grad_like(y, shift=1.0)
    dx, = s.grad(gy, s.x, y=y)
    if not bool(dx.isfinite().all()):
        return
    saved = {"LSE": s.saved(torch.logsumexp(s.x, 1), "f32")}
    if reduction == "mean":
        ww = torch.ones(s.x.shape[1]) if w is None else w.detach().double()
        den = float(n) if t.is_floating_point() else float(ww.double()[t.clamp(0, s.x.shape[1] - 1)][t != ignore].sum())
        saved["den"] = torch.tensor(den, dtype=s.compute)
    s.emit("cross_entropy_backward", {"gy": gy, **ins, **saved}, args, {"dx": (dx, Tol(2e-6, 1e-30, 1e-6))})


@maps(SUITE, "nn.functional.nll_loss")
def nll(s):
    t, w, ignore, reduction = legacy(s, "target weight ignore_index", ignore_index=-100)
    if s.x.dim() != 2:
        raise Skip("nll_loss of images")
    fn = lambda r: F.nll_loss(s.x, t, w, ignore_index=ignore, reduction=r)
    emit(s, "nll_loss", {"x": s.x, "target": t, "weight": w}, {"ignore_index": ignore}, ("x",), fn, reduction)


@maps(SUITE, "nn.functional.kl_div")
def kl_div(s):
    t, log_target, reduction = legacy(s, "target log_target", log_target=False)
    same_shape(s, t)
    if s.x.dim() == 0 or (reduction == "batchmean" and s.x.dim() != 2):
        raise Skip("kl_div of a scalar")
    call = lambda r: F.kl_div(s.x, t, log_target=bool(log_target), reduction=r)
    emit(s, "kullback_leibler_divergence", {"p": s.x, "t": t}, {"log_input": True, "log_target": bool(log_target)}, ("p",), call, reduction)


@maps(SUITE, "nn.functional.gaussian_nll_loss")
def gaussian_nll(s):
    t, var, full, eps, reduction = legacy(s, "target var full eps", full=False, eps=1e-6)
    same_shape(s, t)
    if not isinstance(var, torch.Tensor) or var.shape != s.x.shape or s.x.dim() == 0:
        raise Skip("a loss of broadcast operands")
    fn = lambda r: F.gaussian_nll_loss(s.x, t, var, full=bool(full), eps=eps, reduction=r)
    emit(s, "gaussian_nll_loss", {"p": s.x, "t": t, "var": var}, {"full": bool(full), "eps": eps}, ("p", "var"), fn, reduction, scale=2e-6)


def pointwise_margin(s, kernel, fn, names, args, grads=("x",)):
    got = legacy(s, names)
    *ts, reduction = got
    tensors = [t for t in ts if isinstance(t, torch.Tensor)]
    same_shape(s, *tensors)
    margin = next((t for t in ts if not isinstance(t, torch.Tensor) and t is not None), None)
    kw = {} if margin is None or not args else {args: margin}
    ins = {"x": s.x, "y": tensors[0]} if len(tensors) == 1 else {"x1": s.x, "x2": tensors[0], "y": tensors[1]}
    emit(s, kernel, ins, kw, grads, lambda r: fn(s.x, *tensors, reduction=r, **kw), reduction, scale=2e-6)


maps(SUITE, "nn.functional.hinge_embedding_loss")(lambda s: pointwise_margin(s, "hinge_embedding_loss", F.hinge_embedding_loss, "target margin", "margin"))
maps(SUITE, "nn.functional.soft_margin_loss")(lambda s: pointwise_margin(s, "soft_margin_loss", F.soft_margin_loss, "target", ""))
maps(SUITE, "nn.functional.margin_ranking_loss")(
    lambda s: pointwise_margin(s, "margin_ranking_loss", F.margin_ranking_loss, "input2 target margin", "margin", ("x1", "x2")))


@maps(SUITE, "nn.functional.cosine_embedding_loss")
def cosine_embedding(s):
    b, t, margin, reduction = legacy(s, "input2 target margin", margin=0.0)
    if s.x.dim() != 2 or b.shape != s.x.shape or t.shape != s.x.shape[:1]:
        raise Skip("a loss of broadcast operands")
    fn = lambda r: F.cosine_embedding_loss(s.x, b, t, margin=margin, reduction=r)
    emit(s, "cosine_embedding_loss", {"x1": s.x, "x2": b, "y": t}, {"margin": margin}, ("x1", "x2"), fn, reduction, scale=2e-6)


@maps(SUITE, "nn.functional.multi_margin_loss")
def multi_margin(s):
    t, p, margin, weight, reduction = legacy(s, "target p margin weight", p=1, margin=1.0)
    x, t = batched(s, t.reshape(()) if s.x.dim() == 1 else t)
    if x.dim() != 2:
        raise Skip("a loss of broadcast operands")
    fn = lambda r: F.multi_margin_loss(x, t, p=p, margin=margin, weight=weight, reduction=r)
    if s.x.dim() == 1:
        raise Skip("a class without a batch")
    emit(s, "multi_margin_loss", {"x": x, "target": t, "weight": weight}, {"p": p, "margin": margin}, ("x",), fn, reduction, scale=2e-6)


@maps(SUITE, "nn.functional.multilabel_soft_margin_loss")
def multilabel_soft_margin(s):
    t, w, reduction = legacy(s, "target weight")
    if s.x.dim() != 2 or (w is not None and w.shape != s.x.shape[1:]):
        raise Skip("a loss of broadcast operands")
    fn = lambda r: F.multilabel_soft_margin_loss(s.x, t, w, reduction=r)
    emit(s, "multilabel_soft_margin_loss", {"x": s.x, "t": t, "weight": w}, {}, ("x",), fn, reduction, scale=2e-6)


@maps(SUITE, "nn.functional.triplet_margin_loss")
def triplet(s):
    q, r, margin, p, eps, swap, reduction = legacy(s, "positive negative margin p eps swap", margin=1.0, p=2.0, eps=1e-6, swap=False)
    if s.x.dim() != 2 or s.x.shape != q.shape or s.x.shape != r.shape:
        raise Skip("a loss of broadcast operands")
    fn = lambda how: F.triplet_margin_loss(s.x, q, r, margin=margin, p=p, eps=eps, swap=bool(swap), reduction=how)
    emit(s, "triplet_loss", {"a": s.x, "p": q, "q": r}, {"margin": margin, "p": float(p), "eps": eps, "swap": bool(swap)}, ("a", "p", "q"), fn, reduction, 1e-5, 1e-5)

"""Convolutions, pooling, normalisation, resampling, attention."""
import math
import torch
import torch.nn.functional as F
from core import EXACT, NORM_B, NORM_F, Tol, matmul_tol, rel, summed
from harness import Skip, maps
from attention import fwd_tol as attention_tol
from conv import CONV, CONVT, clean, conv_tol, winograd
from norm import STAT, fwd_tol, group_stats, stats

aten = torch.ops.aten


def batched(s, rank):
    "the input and the result with a batch axis"
    if s.x.dim() == rank:
        return s.x, s.y
    if s.x.dim() == rank - 1:
        return s.x.unsqueeze(0), s.y.unsqueeze(0)
    raise Skip("an input of another rank")


# ------------------------------------------------------------------------------------------------ convolutions
FORWARD = {1: "conv1d", 2: "conv2d_direct", 3: "conv3d_direct"}
INPUT = {1: "conv1d_backward_input", 2: "conv2d_backward_input", 3: "conv3d_backward_input"}
WEIGHTS = {1: "conv1d_backward_weights", 2: "conv2d_backward_weights", 3: "conv3d_backward_weights"}
TINPUT = {1: "conv_transpose1d_backward_input", 2: "deconv_backward_input", 3: "conv_transpose3d_backward_input"}
TWEIGHTS = {1: "conv_transpose1d_backward_weights", 2: "deconv_backward_weights", 3: "conv_transpose3d_backward_weights"}


def every(v, nd):
    v = [v] if isinstance(v, int) else list(v)
    return v * nd if len(v) == 1 else v


def padding(p, k, d):
    if p == "valid":
        return [0] * len(k)
    if p == "same":
        if any(e * (n - 1) % 2 for n, e in zip(k, d)):
            raise Skip("same padding that is not symmetric")
        return [e * (n - 1) // 2 for n, e in zip(k, d)]
    return every(p, len(k))


def both_gradients(fn, x, w, dy):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    return torch.autograd.grad(fn(x, w, None), [x, w], dy)


def convolution(s, nd):
    w, b, stride, pad, dil, g = s.bind("weight bias stride padding dilation groups", stride=1, padding=0, dilation=1, groups=1)
    k = list(w.shape[2:])
    st, d = every(stride, nd), every(dil, nd)
    p = padding(pad, k, d)
    x, y = batched(s, nd + 2)
    args = {"s": st, "p": p, "d": d, "g": g}
    args = {n: v[0] if isinstance(v, list) and len(set(v)) == 1 else v for n, v in args.items()}
    fn = lambda x, w, b: CONV[nd](x, w, b, st, p, d, g)
    wide = winograd(nd, k, st, d, g)
    s.emit(FORWARD[nd], {"x": x, "w": w, "b": b}, args, {"y": (y, conv_tol(fn, x, w, b, math.prod(k) * x.shape[1] // g, wide))})
    gradients(s, fn, x, w, b, y, args, INPUT[nd], WEIGHTS[nd], {"input_size": list(x.shape)}, w.shape[0] // g * math.prod(k),
              x.shape[0] * math.prod(y.shape[2:]), wide)


def gradients(s, fn, x, w, b, y, args, kin, kweights, size, terms, places, wide=1.0):
    if not y.numel() or not x.numel():
        return
    dy = s.grad_like(y)
    dx, dw = both_gradients(fn, x, w, dy)
    mx, mw = both_gradients(fn, clean(x), clean(w), clean(dy))
    s.emit(kin, {"dy": dy, "w": w}, {**size, **args}, {"dx": (dx, matmul_tol(terms, mx, wide))})
    outs = {"dw": (dw, matmul_tol(places, mw, wide))}
    if b is not None:
        axes = [0] + list(range(2, dy.dim()))
        outs["db"] = (dy.sum(axes), summed(dy.numel() // dy.shape[1], clean(dy).sum(axes)))
    s.emit(kweights, {"x": x, "dy": dy}, {"k": list(w.shape[2:]), **args}, outs)


def transposed(s, nd):
    w, b, stride, pad, op, g, dil = s.bind("weight bias stride padding output_padding groups dilation",
                                           stride=1, padding=0, output_padding=0, groups=1, dilation=1)
    k = list(w.shape[2:])
    st, p, o, d = (every(v, nd) for v in (stride, pad, op, dil))
    x, y = batched(s, nd + 2)
    args = {n: v[0] if len(set(v)) == 1 else v for n, v in {"s": st, "p": p, "op": o, "d": d}.items()}
    args["g"] = g
    fn = lambda x, w, b: CONVT[nd](x, w, b, st, p, o, g, d)
    s.emit(f"conv_transpose{nd}d", {"x": x, "w": w, "b": b}, args, {"y": (y, conv_tol(fn, x, w, b, x.shape[1] // g * math.prod(k)))})
    gradients(s, fn, x, w, b, y, args, TINPUT[nd], TWEIGHTS[nd], {}, w.shape[1] * math.prod(k), x.shape[0] * math.prod(x.shape[2:]))


for _nd in (1, 2, 3):
    maps("conv", f"nn.functional.conv{_nd}d")(lambda s, n=_nd: convolution(s, n))
    maps("conv", f"nn.functional.conv_transpose{_nd}d")(lambda s, n=_nd: transposed(s, n))


@maps("conv", "nn.functional.unfold")
def im2col(s):
    k, d, p, st = s.bind("kernel_size dilation padding stride", dilation=1, padding=0, stride=1)
    x, y = batched(s, 4)
    s.emit("im2col", {"x": x}, {"k": every(k, 2), "s": every(st, 2), "p": every(p, 2), "d": every(d, 2)}, {"col": y})


# ------------------------------------------------------------------------------------------------ pooling
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def max_pool(s, nd):
    k, st, p, d, ceil, _ = s.bind("kernel_size stride padding dilation ceil_mode return_indices", padding=0, dilation=1, ceil_mode=False)
    k, p, d = every(k, nd), every(p, nd), every(d, nd)
    st = k if st in (None, ()) else every(st, nd)
    x = s.x if s.x.dim() == nd + 2 else s.x.unsqueeze(0)
    y, i = MAX[nd](x, k, st, p, d, bool(ceil), return_indices=True)
    args = {"k": k, "s": st, "p": p, "d": d, "ceil_mode": bool(ceil)}
    s.emit(f"maxpool{nd}d", {"x": x}, args, {"y": y, "idx": i})
    dy = s.grad_like(y)
    dx, = s.grad(dy, x, y=y)
    n = math.prod(k)
    tol = EXACT if all(a >= (b - 1) * e + 1 for a, b, e in zip(st, k, d)) else summed(n, dy.abs().max() * n)
    s.emit(f"maxpool{nd}d_backward", {"dy": dy, "idx": i}, {"input_size": list(x.shape), **args}, {"dx": (dx, tol)})


def avg_pool(s, nd):
    k, st, p, ceil, count, divisor = s.bind("kernel_size stride padding ceil_mode count_include_pad divisor_override",
                                            padding=0, ceil_mode=False, count_include_pad=True)
    k, p = every(k, nd), every(p, nd)
    st = k if st in (None, ()) else every(st, nd)
    more = [] if nd == 1 else [divisor]
    x, y = batched(s, nd + 2)
    fn = lambda x, m=more: AVG[nd](x, k, st, p, bool(ceil), bool(count), *m)
    args = {"k": k, "s": st, "p": p, "ceil_mode": bool(ceil), "count_include_pad": bool(count), **({} if nd == 1 else {"divisor_override": divisor})}
    if divisor is not None and divisor < 0:
        raise Skip("a negative divisor")
    s.emit(f"avgpool{nd}d", {"x": x}, args, {"y": (y, summed(math.prod(k), fn(clean(x))))})
    dy, ones = s.grad_like(y), clean(x).requires_grad_()
    mag, = torch.autograd.grad(fn(ones), [ones], clean(dy))
    s.emit(f"avgpool{nd}d_backward", {"dy": dy}, {"input_size": list(x.shape), **args},
           {"dx": (s.grad(dy, x, y=fn(x))[0], summed(math.prod(k), mag))})


def adaptive(s, nd, kind):
    size, _ = s.bind("output_size return_indices")
    x = s.x if s.x.dim() == nd + 2 else s.x.unsqueeze(0)
    size = [n if o is None else o for n, o in zip(x.shape[2:], every(size, nd))]
    fn = getattr(F, f"adaptive_{kind}_pool{nd}d")
    if not x.numel() or 0 in size:
        raise Skip("an empty image")
    if kind == "avg":
        y = fn(x, size)
        n = math.prod(-(-a // b) + 1 for a, b in zip(x.shape[2:], size))
        s.emit(f"adaptive_avgpool{nd}d", {"x": x}, {"output_size": size}, {"y": (y, summed(n, fn(clean(x), size)))})
        dy, ones = s.grad_like(y), clean(x).requires_grad_()
        mag, = torch.autograd.grad(fn(ones, size), [ones], clean(dy))
        return s.emit(f"adaptive_avgpool{nd}d_backward", {"dy": dy}, {"input_size": list(x.shape)}, {"dx": (s.grad(dy, x, y=y)[0], summed(n, mag))})
    y, i = fn(x, size, return_indices=True)
    s.emit(f"adaptive_maxpool{nd}d", {"x": x}, {"output_size": size}, {"y": y, "idx": i})
    dy = s.grad_like(y)
    s.emit(f"adaptive_maxpool{nd}d_backward", {"dy": dy, "idx": i}, {"input_size": list(x.shape)},
           {"dx": (s.grad(dy, x, y=y)[0], summed(8, dy.abs().max() * 8))})


for _nd in (1, 2, 3):
    maps("pool", f"nn.functional.max_pool{_nd}d")(lambda s, n=_nd: max_pool(s, n))
    maps("pool", f"nn.functional.avg_pool{_nd}d")(lambda s, n=_nd: avg_pool(s, n))
    for _kind in ("avg", "max"):
        maps("pool", f"nn.functional.adaptive_{_kind}_pool{_nd}d")(lambda s, n=_nd, k=_kind: adaptive(s, n, k))


# ------------------------------------------------------------------------------------------------ normalisation
def sane(eps, momentum=0.1):
    if eps is not None and not 0 < eps or momentum is not None and not 0 <= momentum <= 1:
        raise Skip("a negative epsilon or momentum")


def batch_norm(s, rm, rv, g, b, training, momentum, eps):
    sane(eps, momentum)
    x, c = s.x, s.x.shape[1] if s.x.dim() > 1 else 0
    if not x.numel() or x.numel() // c == 1:
        raise Skip("one value per channel")
    dims = [0] + list(range(2, x.dim()))
    rm2, rv2 = (None if t is None else t.detach().clone() for t in (rm, rv))
    y = F.batch_norm(x, rm2, rv2, g, b, training, momentum, eps)
    m, r = stats(x.detach().double(), dims, eps) if training else (rm.detach().double(), 1 / torch.sqrt(rv.detach().double() + eps))
    outs = {"y": (y, fwd_tol(x.detach(), m, r))}
    if training:
        outs.update({"save_mean": (m, STAT), "save_rstd": (r, STAT)})
    if rm is not None:
        outs.update({"running_mean": (rm2, STAT if training else EXACT), "running_var": (rv2, STAT if training else EXACT)})
    s.emit("batchnorm_forward", {"x": x, "gamma": g, "beta": b, "running_mean": rm, "running_var": rv},
           {"eps": eps, "momentum": momentum, "training": training}, outs)
    dy = s.grad_like(y)
    m, r = s.saved(m, "f32"), s.saved(r, "f32")
    w = torch.ones(c, dtype=s.compute) if g is None else g.detach()
    one = lambda v: v.reshape(1, -1, *[1] * (x.dim() - 2))
    xh = (x.detach() - one(m)) * one(r)
    dg, db = (dy * xh).sum(dims), dy.sum(dims)
    n = x.numel() // c
    dx = one(w * r) * (dy - (one(db) + xh * one(dg)) / n) if training else dy * one(w * r)
    s.emit("batchnorm_backward", {"dy": dy, "x": x, "gamma": g, "save_mean": m, "save_rstd": r}, {"training": training},
           {"dx": (dx, NORM_B), "dgamma": (dg, NORM_B), "dbeta": (db, NORM_B)})


@maps("norm", "nn.functional.batch_norm nn.functional.batch_norm.without_cudnn")
def batch_norm_(s):
    rm, rv, g, b, training, momentum, eps = s.bind("running_mean running_var weight bias training momentum eps",
                                                   training=False, momentum=0.1, eps=1e-5)
    batch_norm(s, rm, rv, g, b, bool(training), momentum, eps)


@maps("norm", "native_batch_norm _native_batch_norm_legit")
def native_batch_norm(s):
    g, b, *rest = s.args
    rm, rv, training, momentum, eps = rest if len(rest) == 5 else (None, None, *rest)
    batch_norm(s, rm, rv, g, b, bool(training), momentum, eps)


def flat(t):
    return None if t is None else t.reshape(-1)


@maps("norm", "nn.functional.layer_norm native_layer_norm")
def layer_norm(s):
    shape, g, b, eps = s.bind("normalized_shape weight bias eps", eps=1e-5)
    sane(eps)
    k = math.prod(shape)
    if k < 2 or not s.x.numel():
        raise Skip("one value per row")
    x = s.x.reshape(-1, k)
    y = F.layer_norm(x, (k,), flat(g), flat(b), eps)
    m, r = stats(x.detach().double(), [1], eps)
    s.emit("layernorm_forward", {"x": x, "gamma": flat(g), "beta": flat(b)}, {"eps": eps},
           {"y": (y, fwd_tol(x.detach(), m, r)), "mean": (m, STAT), "rstd": (r, STAT)})
    dy, m, r = s.grad_like(y), s.saved(m, "f32"), s.saved(r, "f32")
    xh = (x.detach() - m[:, None]) * r[:, None]
    v = dy if g is None else dy * flat(g).detach()
    dx = r[:, None] * (v - v.mean(1, True) - xh * (v * xh).mean(1, True))
    s.emit("layernorm_backward", {"dy": dy, "x": x, "gamma": flat(g), "mean": m, "rstd": r}, {}, {"dx": (dx, NORM_B)})
    if g is not None:
        s.emit("layernorm_grad_params", {"dy": dy, "x": x, "mean": m, "rstd": r}, {},
               {"dgamma": ((dy * xh).sum(0), NORM_B), "dbeta": (dy.sum(0), NORM_B)})


@maps("norm", "nn.functional.rms_norm")
def rms_norm(s):
    shape, g, eps = s.bind("normalized_shape weight eps")
    if eps is None:
        raise Skip("an epsilon that depends on the type")
    sane(eps)
    k = math.prod(shape)
    if not s.x.numel():
        raise Skip("one value per row")
    x = s.x.reshape(-1, k)
    y = F.rms_norm(x, (k,), flat(g), eps)
    s.emit("rmsnorm_forward", {"x": x, "gamma": flat(g)}, {"eps": eps}, {"y": (y, NORM_F)})
    dy = s.grad_like(y)
    dx, = s.grad(dy, x, y=y)
    r = s.saved(torch.rsqrt((x.detach().double() ** 2).mean(1) + eps), "f32")
    s.emit("rmsnorm_backward", {"dy": dy, "x": x, "gamma": flat(g), "r": r}, {}, {"dx": (dx, NORM_B)})
    if g is not None:
        dg, = s.grad(dy, g, y=y)
        s.emit("rmsnorm_grad_gamma", {"dy": dy, "x": x, "r": r}, {}, {"dgamma": (dg.reshape(-1), NORM_B)})


@maps("norm", "nn.functional.group_norm")
def group_norm(s):
    G, g, b, eps = s.bind("num_groups weight bias eps", eps=1e-5)
    sane(eps)
    x = s.x
    if not x.numel() or math.prod(x.shape[1:]) // G < 2:
        raise Skip("one value per group")
    m, r = group_stats(x.detach(), G, eps)
    s.emit("groupnorm_forward", {"x": x, "gamma": g, "beta": b}, {"G": G, "eps": eps},
           {"y": (s.y, fwd_tol(x.detach(), m, r)), "mean": (m, STAT), "rstd": (r, STAT)})
    dy, m, r = s.grad_like(s.y), s.saved(m, "f32"), s.saved(r, "f32")
    w = torch.ones(x.shape[1], dtype=s.compute) if g is None else g.detach()
    dx, dg, db = aten.native_group_norm_backward(dy, x.detach().contiguous(), m, r, w, x.shape[0], x.shape[1], math.prod(x.shape[2:]), G, [True] * 3)
    s.emit("groupnorm_backward", {"dy": dy, "x": x, "gamma": g, "mean": m, "rstd": r}, {"G": G},
           {"dx": (dx, NORM_B), "dgamma": (dg, NORM_B), "dbeta": (db, NORM_B)})


@maps("norm", "nn.functional.instance_norm")
def instance_norm(s):
    rm, rv, g, b, own, momentum, eps = s.bind("running_mean running_var weight bias use_input_stats momentum eps",
                                              use_input_stats=True, momentum=0.1, eps=1e-5)
    sane(eps, momentum)
    x = s.x
    if not x.numel() or math.prod(x.shape[2:]) < 2 or not own:
        raise Skip("one value per instance")
    rm2, rv2 = (None if t is None else t.detach().clone() for t in (rm, rv))
    y = F.instance_norm(x, rm2, rv2, g, b, True, momentum, eps)
    m, r = group_stats(x.detach(), x.shape[1], eps)
    outs = {"y": (y, fwd_tol(x.detach(), m, r)), "mean": (m, STAT), "rstd": (r, STAT)}
    if rm is not None:
        outs.update({"running_mean": (rm2, STAT), "running_var": (rv2, STAT)})
    s.emit("instancenorm_forward", {"x": x, "gamma": g, "beta": b, "running_mean": rm, "running_var": rv}, {"eps": eps, "momentum": momentum}, outs)


@maps("norm", "nn.functional.normalize masked.normalize")
def normalize(s):
    if s.op.name == "masked.normalize":
        p, dim, eps, mask = s.bind("ord dim eps mask", eps=1e-12)
    else:
        p, dim, eps = s.bind("p dim eps", p=2.0, dim=1, eps=1e-12)
        mask = None
    if mask is not None or float(p) != 2 or not isinstance(dim, int) or s.x.dim() == 0:
        raise Skip("a norm of another degree, with a mask or over several axes")
    s.emit("l2_normalize", {"x": s.x}, {"axis": dim, "eps": eps}, {"y": (s.y, NORM_F)})
    dy = s.grad_like(s.y)
    s.emit("l2_normalize_backward", {"dy": dy, "x": s.x}, {"axis": dim, "eps": eps}, {"dx": (s.grad(dy, s.x)[0], NORM_B)})


# ------------------------------------------------------------------------------------------------ resampling
MODES = {"nearest": "nearest", "nearest-exact": "nearest-exact", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic", "area": "area"}


@maps("resample", "nn.functional.interpolate.nearest nn.functional.interpolate.nearest-exact nn.functional.interpolate.linear "
                  "nn.functional.interpolate.bilinear nn.functional.interpolate.bicubic nn.functional.interpolate.trilinear "
                  "nn.functional.interpolate.area nn.functional.upsample_nearest nn.functional.upsample_bilinear")
def interpolate(s):
    size, scale, mode, corners, recompute, antialias = s.bind("size scale_factor mode align_corners recompute_scale_factor antialias")
    if s.op.name.startswith("nn.functional.upsample"):
        mode, corners = ("nearest", None) if s.op.name.endswith("nearest") else ("bilinear", True)
    if scale is not None and not recompute:
        raise Skip("a scale that is not the ratio of the sizes")
    if not s.x.numel():
        raise Skip("an empty image")
    size = list(s.y.shape[2:])
    args = {"mode": MODES[mode], "align_corners": bool(corners), "antialias": bool(antialias)}
    tol = EXACT if mode.startswith("nearest") else Tol(1e-6, 3e-6 if mode == "bicubic" else 1e-6)
    s.emit("interpolate", {"x": s.x}, {"size": size, **args}, {"y": (s.y, tol)})
    dy = s.grad_like(s.y)
    s.emit("interpolate_backward", {"dy": dy}, {"input_size": list(s.x.shape), **args}, {"dx": (s.grad(dy, s.x)[0], rel(2e-6, 2e-6))})


@maps("resample", "nn.functional.grid_sample grid_sampler_2d grid_sampler_3d")
def grid_sample(s):
    grid, mode, pad, corners = s.bind("grid mode padding_mode align_corners", mode="bilinear", padding_mode="zeros", align_corners=False)
    if isinstance(mode, int):
        mode, pad = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[pad]
    args = {"mode": MODES[mode], "padding_mode": pad, "align_corners": bool(corners)}
    s.emit("grid_sample", {"x": s.x, "grid": grid}, args, {"y": (s.y, EXACT if mode == "nearest" else Tol(1e-5, 1e-5))})
    dy = s.grad_like(s.y)
    dx, dg = s.grad(dy, s.x, grid)
    s.emit("grid_sample_backward", {"dy": dy, "x": s.x, "grid": grid}, args, {"dx": (dx, Tol(1e-5, 2e-5)), "dgrid": (dg, rel(2e-5, 1e-5, 1e-6))})


# ------------------------------------------------------------------------------------------------ attention
@maps("attention", "nn.functional.scaled_dot_product_attention")
def attention(s):
    k, v, mask, dropout, causal, scale, gqa = s.bind("key value attn_mask dropout_p is_causal scale enable_gqa", dropout_p=0.0)
    if dropout or s.x.dim() != 4 or s.x.shape[0] != k.shape[0] or s.x.shape[1] % k.shape[1]:
        raise Skip("attention with dropout, or of tensors of another rank")
    ins = {"Q": s.x, "K": k, "V": v}
    if mask is not None:
        full_shape = [s.x.shape[0], s.x.shape[1], s.x.shape[2], k.shape[2]]
        ins["bias" if mask.is_floating_point() else "mask"] = mask.expand(full_shape).contiguous()
    s.emit("scaled_dot_product_attention", ins, {"scale": scale, "causal": "top_left" if causal else None}, {"O": (s.y, attention_tol(v))})

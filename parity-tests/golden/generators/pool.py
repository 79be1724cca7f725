"""Pooling (section 5, B5), resampling (S14.1, S14.2, B6.1-B6.3), regions (B6.8) and box suppression (B6.11)."""
import math
import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from core import EXACT, Tol, ag, kernel, rel, splice, summed
from conv import clean, full

S, B5, B6, S14 = "pool", "pool_extra", "resample", "mesh"
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADA = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADM = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def values(c, shape, ties, special):
    "plain normal data, or small integers so that windows contain ties"
    v = c.integers(-2, 3, shape).double() if ties else c.rnd(*shape)
    return splice(v, special)


def _max(nd, sec, suite, name):
    def forward(c, x, k, s=None, p=0, d=1, ceil_mode=False, ties=False, special=None):
        "idx is the i32 position inside one (n, c) plane; s null: s = k"
        k, s, p, d = full(k, nd), full(s if s is not None else k, nd), full(p, nd), full(d, nd)
        X = c.put("x", values(c, x, ties, special))
        y, i = MAX[nd](X, k, s, p, d, ceil_mode, return_indices=True)
        c.out("y", y, EXACT)
        c.out("idx", i, kind="i32")
    kernel(sec, suite, name, "x", "y idx:i32", {"k": "required", "s": None, "p": 0, "d": 1, "ceil_mode": False})(forward)


def _max_backward(nd, sec, suite, name):
    def backward(c, x, k, s=None, p=0, d=1, ceil_mode=False, ties=False):
        "input_size is the full shape of dx"
        k, s, p, d = full(k, nd), full(s if s is not None else k, nd), full(p, nd), full(d, nd)
        c.arg("input_size", list(x))
        X = c.round(values(c, x, ties, None)).to(c.compute).requires_grad_()
        y, i = MAX[nd](X, k, s, p, d, ceil_mode, return_indices=True)
        dy = c.x("dy", *y.shape)
        c.idx("idx", i.numpy(), "i32")
        dx, = ag(y, [X], dy)
        n = math.prod(k)
        c.out("dx", dx, EXACT if all(a >= (b - 1) * e + 1 for a, b, e in zip(s, k, d)) else
              summed(n, dy.abs().max() * n if dy.numel() else 0))
    kernel(sec, suite, name, "dy idx:i32", "dx",
           {"input_size": "required", "k": "required", "s": None, "p": 0, "d": 1, "ceil_mode": False})(backward)


def _avg(nd, sec, suite, name):
    args = {"k": "required", "s": None, "p": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
    if nd == 1:
        args.pop("divisor_override")

    def call(X, k, s, p, ceil_mode, cip, div):
        s = s if s is not None else k
        if nd == 1:
            return AVG[1](X, k, s, p, ceil_mode, cip)
        return AVG[nd](X, k, s, p, ceil_mode, cip, div)

    def forward(c, x, k, s=None, p=0, ceil_mode=False, count_include_pad=True, divisor_override=None, special=None):
        X = c.x("x", *x, special=special)
        n = math.prod(full(k, nd))
        y = call(X, k, s, p, ceil_mode, count_include_pad, divisor_override)
        c.out("y", y, summed(n, call(clean(X), k, s, p, ceil_mode, count_include_pad, divisor_override)))
    kernel(sec, suite, name, "x", "y", args)(forward)
    return args, call


def _avg_backward(nd, sec, suite, name, args, call):
    def backward(c, x, k, s=None, p=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        c.arg("input_size", list(x))
        X = torch.zeros(*x, dtype=c.compute, requires_grad=True)
        y = call(X, k, s, p, ceil_mode, count_include_pad, divisor_override)
        dy = c.x("dy", *y.shape)
        X64 = torch.zeros(*x, requires_grad=True)
        mag, = ag(call(X64.double(), k, s, p, ceil_mode, count_include_pad, divisor_override), [X64], clean(dy).to(X64.dtype))
        c.out("dx", ag(y, [X], dy)[0], summed(math.prod(full(k, nd)), mag))
    kernel(sec, suite, name, "dy", "dx", {"input_size": "required", **args})(backward)


def _adaptive(nd, sec_f, sec_b, suite):
    def forward(c, x, output_size):
        X = c.x("x", *x)
        n = math.prod(-(-i // o) + 1 for i, o in zip(x[2:], output_size)) if 0 not in output_size else 1
        c.out("y", ADA[nd](X, output_size), summed(n, ADA[nd](clean(X), output_size)))
    kernel(sec_f, suite, f"adaptive_avgpool{nd}d", "x", "y", "output_size")(forward)

    def backward(c, x, output_size):
        c.arg("input_size", list(x))
        dy = c.x("dy", *x[:2], *output_size)

        def fn(dy):
            X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
            return ag(ADA[nd](X, output_size), [X], dy)[0]
        n = math.prod(-(-o // i) + 1 for i, o in zip(x[2:], output_size))
        c.out("dx", fn(dy), summed(n, fn(clean(dy))))
    kernel(sec_b, suite, f"adaptive_avgpool{nd}d_backward", "dy", "dx", {"input_size": "required"})(backward)


def _adaptive_max(nd):
    def forward(c, x, output_size, ties=False, special=None):
        X = c.put("x", values(c, x, ties, special))
        y, i = ADM[nd](X, output_size, return_indices=True)
        c.out("y", y, EXACT)
        c.out("idx", i, kind="i32")
    kernel("B5.2", B5, f"adaptive_maxpool{nd}d", "x", "y idx:i32", "output_size")(forward)

    def backward(c, x, output_size):
        c.arg("input_size", list(x))
        X = c.round(c.rnd(*x)).to(c.compute).requires_grad_()
        y, i = ADM[nd](X, output_size, return_indices=True)
        dy = c.x("dy", *y.shape)
        c.idx("idx", i.numpy(), "i32")
        c.out("dx", ag(y, [X], dy)[0], summed(8, dy.abs().max() * 8))
    kernel("B5.2", B5, f"adaptive_maxpool{nd}d_backward", "dy idx:i32", "dx", {"input_size": "required"})(backward)


_max(2, "S5.1", S, "maxpool2d")
_max_backward(2, "S5.6", S, "maxpool2d_backward")
_max(3, "S5.11", S, "maxpool3d")
_max_backward(3, "S5.11", S, "maxpool3d_backward")
_avg_backward(2, "S5.7", S, "avgpool2d_backward", *_avg(2, "S5.2", S, "avgpool2d"))
_avg_backward(3, "S5.12", S, "avgpool3d_backward", *_avg(3, "S5.12", S, "avgpool3d"))
_adaptive(2, "S5.5", "S5.10", S)
_max(1, "B5.1", B5, "maxpool1d")
_max_backward(1, "B5.1", B5, "maxpool1d_backward")
_avg_backward(1, "B5.1", B5, "avgpool1d_backward", *_avg(1, "B5.1", B5, "avgpool1d"))
_adaptive(1, "B5.2", "B5.2", B5)
_adaptive(3, "B5.2", "B5.2", B5)
for _nd in (1, 2, 3):
    _adaptive_max(_nd)


@kernel("S5.3", S, "global_avgpool2d", "x", "y")
def global_avgpool2d(c, x, special=None):
    X = c.x("x", *x, special=special)
    c.out("y", X.mean((2, 3), keepdim=True), summed(x[2] * x[3], clean(X).mean((2, 3))))


@kernel("S5.4", S, "global_maxpool2d", "x", "y idx:i32")
def global_maxpool2d(c, x, ties=False, special=None):
    y, i = F.adaptive_max_pool2d(c.put("x", values(c, x, ties, special)), 1, return_indices=True)
    c.out("y", y, EXACT)
    c.out("idx", i, kind="i32")


@kernel("S5.8", S, "global_avgpool2d_backward", "dy", "dx", "input_size")
def global_avgpool2d_backward(c, input_size):
    dy = c.x("dy", *input_size[:2], 1, 1)
    X = torch.zeros(*input_size, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(X.mean((2, 3), keepdim=True), [X], dy)[0], Tol(2.4e-7, 1e-45))


@kernel("S5.9", S, "global_maxpool2d_backward", "dy idx:i32", "dx", "input_size")
def global_maxpool2d_backward(c, input_size):
    n, ch, h, w = input_size
    dy = c.x("dy", n, ch, 1, 1)
    X = c.rnd(*input_size).to(dy.dtype).requires_grad_()
    y, i = F.adaptive_max_pool2d(X, 1, return_indices=True)
    c.idx("idx", i.numpy(), "i32")
    c.out("dx", ag(y, [X], dy)[0], EXACT)


# ------------------------------------------------------------------------------------------------ nearest upsampling in 3-D
def _near3(x, size, exact):
    return F.interpolate(x, size=size, mode="nearest-exact" if exact else "nearest")


@kernel("S14.1", S14, "upsample3d_nearest", "x", "y", {"size": None, "scale": None, "exact": False})
def upsample3d_nearest(c, x, size=None, scale=None, exact=False):
    "size = [D, H, W] of the output, or integer scale per axis"
    X = c.x("x", *x)
    c.out("y", _near3(X, size or [a * b for a, b in zip(x[2:], scale)], exact), EXACT)


@kernel("S14.2", S14, "upsample3d_nearest_backward", "dy", "dx", {"input_size": "required", "exact": False})
def upsample3d_nearest_backward(c, x, size, exact=False):
    c.arg("input_size", list(x))
    dy = c.x("dy", *x[:2], *size)

    def fn(dy):
        X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
        return ag(_near3(X, size, exact), [X], dy)[0]
    c.out("dx", fn(dy), summed(math.prod(-(-o // i) for i, o in zip(x[2:], size)), fn(clean(dy))))


# ------------------------------------------------------------------------------------------------ B6
INTERP = {"nearest": ("nearest",) * 3, "nearest-exact": ("nearest-exact",) * 3, "linear": ("linear", "bilinear", "trilinear"),
          "cubic": (None, "bicubic", None), "area": ("area",) * 3}


def _interp(x, size, mode, align, antialias):
    m = INTERP[mode][len(size) - 1]
    lin = mode in ("linear", "cubic")
    return F.interpolate(x, size=size, mode=m, align_corners=align if lin else None, **({"antialias": True} if antialias else {}))


@kernel("B6.1", B6, "interpolate", "x", "y", "size mode align_corners antialias")
def interpolate(c, x, size, mode="linear", align_corners=False, antialias=False):
    "mode nearest, nearest-exact, linear, cubic or area; the rank follows from x ([N, C, spatial...])"
    X = c.x("x", *x)
    y = _interp(X, size, mode, align_corners, antialias)
    c.out("y", y, EXACT if mode.startswith("nearest") else Tol(1e-6, 1e-6 if mode == "linear" else 3e-6))


@kernel("B6.1", B6, "interpolate_backward", "dy", "dx", {"input_size": "required", "mode": "linear", "align_corners": False, "antialias": False})
def interpolate_backward(c, x, size, mode="linear", align_corners=False, antialias=False):
    c.arg("input_size", list(x))
    dy = c.x("dy", *x[:2], *size)
    X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(_interp(X, size, mode, align_corners, antialias), [X], dy)[0], rel(2e-6, 2e-6))


@kernel("B6.2", B6, "affine_grid", "theta", "grid", "size align_corners")
def affine_grid(c, size, align_corners=False):
    "size is the full output shape [N, C, spatial...]"
    nd = len(size) - 2
    t = c.x("theta", size[0], nd, nd + 1)
    c.out("grid", F.affine_grid(t, size, align_corners), Tol(5e-7, 1e-6))


@kernel("B6.2", B6, "affine_grid_backward", "dgrid", "dtheta", "size align_corners")
def affine_grid_backward(c, size, align_corners=False):
    nd = len(size) - 2
    dg = c.x("dgrid", size[0], *size[2:], nd)
    t = torch.zeros(size[0], nd, nd + 1, dtype=dg.dtype, requires_grad=True)
    n = math.prod(size[2:])
    c.out("dtheta", ag(F.affine_grid(t, size, align_corners), [t], dg)[0], summed(n, clean(dg).sum(tuple(range(1, nd + 1))), 1e-6))


def grid_values(c, n, out, nd, x, align, span, mode):
    "sampling positions whose pixel coordinate keeps clear of the integers and, for nearest, of the halves"
    sizes = [float(s) for s in reversed(x[2:])]
    g = c.uni(n, *out, nd, lo=-span, hi=span)
    for a, s in enumerate(sizes):
        pix = (g[..., a] + 1) / 2 * (s - 1) if align else ((g[..., a] + 1) * s - 1) / 2
        fr = pix - pix.floor()
        pix = torch.where((fr - fr.round()).abs() < 0.02, pix + 0.05, pix)
        fr = pix - pix.floor()
        pix = torch.where((fr - 0.5).abs() < 0.02, pix + 0.05, pix)
        g[..., a] = pix / (s - 1) * 2 - 1 if align and s > 1 else (2 * pix + 1) / s - 1
    return g


def _gs(X, g, mode, padding_mode, align):
    return F.grid_sample(X, g, mode={"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}[mode], padding_mode=padding_mode,
                         align_corners=align)


@kernel("B6.3", B6, "grid_sample", "x grid", "y", "mode padding_mode align_corners")
def grid_sample(c, x, out, mode="linear", padding_mode="zeros", align_corners=False, span=1.2, special=None):
    "mode linear (bilinear or trilinear by rank), nearest or cubic; grid [N, out..., 2 or 3], last axis in x, y(, z) order"
    nd = len(out)
    X = c.x("x", *x)
    g = c.put("grid", splice(grid_values(c, x[0], out, nd, x, align_corners, span, mode), special))
    c.out("y", _gs(X, g, mode, padding_mode, align_corners), EXACT if mode == "nearest" else Tol(1e-5, 1e-5))


@kernel("B6.3", B6, "grid_sample_backward", "dy x grid", "dx dgrid", "mode padding_mode align_corners")
def grid_sample_backward(c, x, out, mode="linear", padding_mode="zeros", align_corners=False, span=1.2):
    dy, X = c.x("dy", *x[:2], *out), c.var("x", *x)
    g = c.putv("grid", grid_values(c, x[0], out, len(out), x, align_corners, span, mode))
    dx, dg = ag(_gs(X, g, mode, padding_mode, align_corners), [X, g], dy)
    c.out("dx", dx, Tol(1e-5, 2e-5))
    c.out("dgrid", dg, rel(2e-5, 1e-5, 1e-6))


def regions(c, x, n, scale, spread):
    "boxes x1 y1 x2 y2 of images of `scale` cells per unit, and the image of each"
    h, w = x[2], x[3]
    size = torch.tensor([w, h], dtype=torch.float64)
    first = (c.uni(n, 2, lo=-spread, hi=1 - 0.2 * spread) * size).double()
    last = first + c.uni(n, 2, lo=0.05, hi=0.3 + spread).double() * size
    return torch.cat([first, last], 1) / scale, c.integers(0, x[0], (n,)).numpy()


def _roi(X, boxes, images, size, scale, ratio, aligned):
    rois = torch.cat([torch.as_tensor(images).to(boxes.dtype)[:, None], boxes], 1)
    return torchvision.ops.roi_align(X, rois, size, scale, ratio or -1, aligned)


@kernel("B6.8", B6, "roi_align", "x boxes images:idx", "y", "size spatial_scale sampling_ratio aligned")
def roi_align(c, x, n, size, spatial_scale=1.0, sampling_ratio=0, aligned=False, spread=0.3, itype="i64"):
    "boxes xyxy; sampling_ratio 0: as many samples as a bin is cells long (torchvision's -1)"
    X = c.x("x", *x)
    b, i = regions(c, x, n, spatial_scale, spread)
    boxes, images = c.put("boxes", b), c.idx("images", i, itype)
    c.out("y", _roi(X, boxes, images, size, spatial_scale, sampling_ratio, aligned), Tol(1e-5, 2e-5))


@kernel("B6.8", B6, "roi_align_backward", "dy boxes images:idx", "dx",
        {"input_size": "required", "spatial_scale": 1.0, "sampling_ratio": 0, "aligned": False})
def roi_align_backward(c, x, n, size, spatial_scale=1.0, sampling_ratio=0, aligned=False, spread=0.3, itype="i64"):
    c.arg("input_size", list(x))
    dy = c.x("dy", n, x[1], *size)
    b, i = regions(c, x, n, spatial_scale, spread)
    boxes, images = c.put("boxes", b), c.idx("images", i, itype)
    X = torch.zeros(*x, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(_roi(X, boxes, images, size, spatial_scale, sampling_ratio, aligned), [X], dy)[0], Tol(1e-5, 4e-5))


@kernel("B6.11", B6, "nms", "boxes scores", "keep:i64 count:i64", "iou_threshold")
def nms(c, n, iou_threshold=0.5, ties=False):
    "boxes xyxy; keep holds the kept indices by falling score (first count entries of the buffer), count is a one-element tensor"
    b = greedy_boxes(c, n, iou_threshold)
    s = c.uni(n)
    if ties:
        s = (s * 4).floor() / 4
    boxes, scores = c.put("boxes", b), c.put("scores", s)
    keep = _nms(boxes.double().numpy(), scores.double().numpy(), iou_threshold)
    c.out("keep", torch.tensor(keep, dtype=torch.int64), kind="i64")
    c.out("count", torch.tensor(len(keep)), kind="i64")


@kernel("B6.11", B6, "batched_nms", "boxes scores ids:idx", "keep:i64 count:i64", "iou_threshold")
def batched_nms(c, n, groups, iou_threshold=0.5, itype="i64"):
    "suppression only inside one id; keep is sorted by falling score over all ids"
    boxes, scores = c.put("boxes", greedy_boxes(c, n, iou_threshold)), c.put("scores", c.uni(n))
    ids = c.idx("ids", c.integers(0, groups, (n,)).numpy(), itype).numpy()
    kept = []
    for g in range(groups):
        sel = np.nonzero(ids == g)[0]
        kept += [int(sel[i]) for i in _nms(boxes.double().numpy()[sel], scores.double().numpy()[sel], iou_threshold)]
    kept.sort(key=lambda i: (-float(scores[i]), i))
    c.out("keep", torch.tensor(kept, dtype=torch.int64), kind="i64")
    c.out("count", torch.tensor(len(kept)), kind="i64")


def iou_matrix(b):
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    w = np.maximum(0, np.minimum(b[:, None, 2], b[None, :, 2]) - np.maximum(b[:, None, 0], b[None, :, 0]))
    h = np.maximum(0, np.minimum(b[:, None, 3], b[None, :, 3]) - np.maximum(b[:, None, 1], b[None, :, 1]))
    return w * h / np.maximum(area[:, None] + area[None] - w * h, 1e-30)


def greedy_boxes(c, n, thr):
    "clustered boxes with no pair closer than 1e-3 to the threshold"
    while True:
        ctr = c.uni(n, 2, lo=0, hi=6)
        wh = c.uni(n, 2, lo=1, hi=4)
        b = torch.cat([ctr, ctr + wh], 1)
        m = iou_matrix(c.round(b).double().numpy()) if n else np.zeros((0, 0))
        if n == 0 or np.abs(m - thr).min() > (1e-3 if n < 80 else 1e-5):
            return b


def _nms(b, s, thr):
    order = sorted(range(len(s)), key=lambda i: (-s[i], i))
    m, keep, gone = (iou_matrix(b) if len(s) else None), [], set()
    for i in order:
        if i in gone:
            continue
        keep.append(i)
        gone.update(j for j in order if m[i, j] > thr and j != i)
    return keep

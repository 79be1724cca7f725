"""Reductions, scans, sorting, selection and search, distances."""
import math
import torch
from core import Tol, matmul_tol, summed, ulp
from harness import Skip, maps
from conv import clean
from utility import kcount

SUITE = "reduce"
GRAD = Tol(1e-5, 1e-30, 2e-6)


def axes_of(s, dim):
    "the axes as the kernels take them: all where none is named"
    if s.x.dim() == 0:
        return []
    if dim is None or dim == () or dim == []:
        return list(range(s.x.dim()))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % s.x.dim() for d in dims]


def reduce_args(s, names="dim keepdim dtype mask"):
    dim, keepdim, dtype, mask = s.bind(names, keepdim=False)
    if mask is not None or dtype is not None:
        raise Skip("a reduction with a mask or of another type")
    return {"axes": axes_of(s, dim), "keepdim": bool(keepdim)}


def reduction(s, kernel, tol, args, back=True, y=None):
    y = s.y if y is None else y
    s.emit(kernel, {"x": s.x}, args, {"y": (y, tol(s.x, args["axes"]))})
    if not back or s.x.numel() == 0:
        return
    dy = s.grad_like(y)
    dx, = s.grad(dy, s.x, y=y)
    if bool(dx.isfinite().all()):
        s.emit(kernel + "_backward", {"dy": dy, "x": s.x}, args, {"dx": (dx, GRAD)})


count = lambda x, axes: kcount(x.shape, axes)
sum_tol = lambda x, a: summed(count(x, a), clean(x).sum(a) if a else clean(x))
mean_tol = lambda x, a: summed(count(x, a), clean(x).mean(a) if a else clean(x))
prod_tol = lambda x, a: Tol((8 + math.sqrt(max(1, count(x, a)))) * 1.2e-7, 1e-30)
norm_tol = lambda x, a: Tol((8 + math.log2(max(1, count(x, a)))) * 2 * 6e-8 + 1e-6, 1e-30)
lse_tol = lambda x, a: Tol(1e-6, 5e-7)
var_tol = lambda x, a: Tol(1e-5, 1e-6)


@maps(SUITE, "sum masked.sum")
def sum_(s):
    a = reduce_args(s)
    s.emit("reduce_sum", {"x": s.x}, a, {"y": (s.y, sum_tol(s.x, a["axes"]))})
    dy = s.grad_like(s.y)
    s.emit("reduce_sum_backward", {"dy": dy}, {"input_size": list(s.x.shape), **a}, {"dx": s.grad(dy, s.x)[0]})


maps(SUITE, "mean masked.mean")(lambda s: reduction(s, "mean", mean_tol, reduce_args(s)))
maps(SUITE, "prod masked.prod")(lambda s: reduction(s, "prod", prod_tol, reduce_args(s)))
maps(SUITE, "logsumexp masked.logsumexp")(lambda s: reduction(s, "logsumexp", lse_tol, reduce_args(s)))


@maps(SUITE, "sum_to_size")
def sum_to_size(s):
    shape = list(s.y.shape)
    s.emit("sum_to_shape", {"x": s.x}, {"shape": shape}, {"y": (s.y, summed(max(1, s.x.numel() // max(1, s.y.numel())), clean(s.x).sum_to_size(*shape)))})


def spread_args(s, names="dim unbiased keepdim correction mask"):
    dim, unbiased, keepdim, correction, mask = s.bind(names, keepdim=False)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if mask is not None:
        raise Skip("a reduction with a mask or of another type")
    c = 1 if correction is None and unbiased in (None, True) else 0 if correction is None else correction
    a = {"axes": axes_of(s, dim), "keepdim": bool(keepdim), "correction": c}
    if count(s.x, a["axes"]) - c <= 0:
        raise Skip("a variance of too few elements")
    return a


def spread_of(s, kernel, fn):
    a = spread_args(s)
    y = fn(s.x, a["axes"], correction=a["correction"], keepdim=a["keepdim"])
    reduction(s, kernel, var_tol, a, y=y)


maps(SUITE, "var var.unbiased masked.var")(lambda s: spread_of(s, "var", torch.var))
maps(SUITE, "std std.unbiased masked.std")(lambda s: spread_of(s, "std", torch.std))


@maps(SUITE, "var_mean var_mean.unbiased")
def var_mean(s):
    a = spread_args(s)
    var, mean = s.y
    s.emit("mean_var", {"x": s.x}, a, {"mean": (mean, Tol(1e-6, 5e-7)), "var": (var, Tol(1e-5, 1e-6))})


def norm(s, p, dim, keepdim, y=None):
    p = 2.0 if p in (None, "fro") else p
    if isinstance(p, str) or float(p) < 0 or float(p) == 0 or (0 < float(p) < 1):
        raise Skip(f"norm of degree {p}")
    args = {"axes": axes_of(s, dim), "keepdim": bool(keepdim), "p": float(p)}
    reduction(s, "norm", norm_tol, args)


@maps(SUITE, "norm norm.fro norm.inf")
def norm_(s):
    p, dim, keepdim, dtype = s.bind("p dim keepdim dtype", keepdim=False, p="fro")
    if dtype is not None:
        raise Skip("a reduction with a mask or of another type")
    norm(s, p, dim, keepdim)


@maps(SUITE, "linalg.vector_norm linalg.norm linalg.norm.subgradients_at_zero linalg.matrix_norm masked.norm")
def linalg_norm(s):
    name = s.op.full_name
    if name == "masked.norm":
        p, dim, keepdim, mask = s.bind("ord dim keepdim mask", keepdim=False)
        if mask is not None:
            raise Skip("a reduction with a mask or of another type")
    else:
        p, dim, keepdim, dtype = s.bind("ord dim keepdim dtype", keepdim=False)
        if dtype is not None:
            raise Skip("a reduction with a mask or of another type")
    if name == "linalg.matrix_norm":
        dim = (-2, -1) if dim is None else dim
        if p not in (None, "fro"):
            raise Skip("a matrix norm other than Frobenius")
    elif name != "linalg.vector_norm" and name != "masked.norm":
        rank = s.x.dim() if dim is None else len(axes_of(s, dim))
        if p not in (None, "fro") and rank == 2:
            raise Skip("a matrix norm other than Frobenius")
    norm(s, p, dim, keepdim)


def extreme(s, kernel, args):
    s.emit(kernel, {"x": s.x}, args, {"y": s.y})
    dy, y = s.grad_like(s.y), s.y.detach()
    s.emit(kernel + "_backward", {"dy": dy, "x": s.x, "y": y}, args, {"dx": (s.grad(dy, s.x)[0], ulp(2))})


maps(SUITE, "amax masked.amax")(lambda s: extreme(s, "reduce_max", reduce_args(s)))
maps(SUITE, "amin masked.amin")(lambda s: extreme(s, "reduce_min", reduce_args(s)))
maps(SUITE, "max.reduction_no_dim")(lambda s: extreme(s, "reduce_max", {"axes": axes_of(s, None), "keepdim": False}))
maps(SUITE, "min.reduction_no_dim")(lambda s: extreme(s, "reduce_min", {"axes": axes_of(s, None), "keepdim": False}))


@maps(SUITE, "max.reduction_with_dim min.reduction_with_dim")
def with_index(s):
    dim, keepdim = s.bind("dim keepdim", keepdim=False)
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    y, i = s.y
    kernel, axis = "reduce_" + s.op.name, dim % s.x.dim()
    s.emit(kernel, {"x": s.x}, {"axes": [axis], "keepdim": bool(keepdim), "with_indices": True}, {"y": y, "idx": i})
    if not keepdim:
        dy = s.grad_like(y)
        s.emit("reduce_max_index_backward", {"dy": dy, "idx": i}, {"input_size": list(s.x.shape), "axis": axis}, {"dx": s.grad(dy, s.x, y=y)[0]})


@maps(SUITE, "argmax argmin masked.argmax masked.argmin")
def arg(s):
    dim, keepdim, dtype, mask = s.bind("dim keepdim dtype mask", keepdim=False)
    if keepdim or mask is not None or s.x.dim() == 0 or (dim is None and s.x.dim() > 1):
        raise Skip("argmax over several axes, with a mask or with the axis kept")
    s.emit(s.op.name.split(".")[-1] + "_axis", {"x": s.x}, {"axis": dim or 0}, {"y": s.y.long()})


@maps(SUITE, "aminmax")
def aminmax(s):
    dim, keepdim = s.bind("dim keepdim", keepdim=False)
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    lo, hi = s.y
    s.emit("min_max", {"x": s.x}, {"axis": dim, "keepdim": bool(keepdim)}, {"lo": lo, "hi": hi})


@maps(SUITE, "any all", ("bool",))
def any_all(s):
    dim, keepdim = s.bind("dim keepdim", keepdim=False)
    s.emit(s.op.name, {"x": s.x}, {"axes": axes_of(s, dim), "keepdim": bool(keepdim)}, {"y": s.y})


# ------------------------------------------------------------------------------------------------ scans and order
@maps(SUITE, "cumsum")
def cumsum(s):
    axis, dtype = s.bind("dim dtype")
    if dtype not in (None, torch.float32) or s.x.dim() == 0 or (dtype is not None and s.dtype != "f32"):
        raise Skip("a scan of another type or of a scalar")
    y = torch.cumsum(s.x, axis)
    s.emit("cumsum", {"x": s.x}, {"axis": axis}, {"y": (y, summed(s.x.shape[axis], clean(s.x).cumsum(axis)))})
    dy = s.grad_like(y)
    dx, = s.grad(dy, s.x, y=y)
    s.emit("cumsum_backward", {"dy": dy}, {"axis": axis}, {"dx": (dx, summed(s.x.shape[axis], clean(dy).flip(axis).cumsum(axis)))})


def distinct(s, axis):
    "orders of equal values are a matter of stability; gradients and indices of unstable forms need none"
    v = s.x.detach().sort(axis).values
    return not bool((v.diff(dim=axis) == 0).any())


@maps(SUITE, "sort msort argsort")
def sort(s):
    axis, down, stable = s.bind("dim descending stable", dim=0 if s.op.name == "msort" else -1, descending=False)
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    y, i = torch.sort(s.x, dim=axis, descending=bool(down), stable=True)
    args = {"axis": axis, "descending": bool(down)}
    if s.op.name == "argsort":
        return s.emit("argsort", {"x": s.x}, args, {"idx": i})
    s.emit("sort", {"x": s.x}, args, {"y": y, "idx": i})
    dy = s.grad_like(y)
    s.emit("sort_backward", {"dy": dy, "idx": i}, {"axis": axis}, {"dx": s.grad(dy, s.x, y=y)[0]})


@maps(SUITE, "topk")
def topk(s):
    k, axis, largest, ordered = s.bind("k dim largest sorted", dim=-1, largest=True, sorted=True)
    if s.x.dim() == 0 or not ordered or not distinct(s, axis):
        raise Skip("topk of a scalar, of equal values or without order")
    y, i = s.y
    s.emit("topk", {"x": s.x}, {"k": k, "axis": axis, "largest": bool(largest)}, {"y": y, "idx": i})
    dy = s.grad_like(y)
    s.emit("topk_backward", {"dy": dy, "idx": i}, {"input_size": list(s.x.shape), "axis": axis}, {"dx": s.grad(dy, s.x, y=y)[0]})


@maps(SUITE, "searchsorted bucketize")
def search(s):
    out32, right, side, sorter = s.bind("_ out_int32 right side sorter")[1:]
    edges, values = (s.x, s.args[0]) if s.op.name == "searchsorted" else (s.args[0], s.x)
    if sorter is not None or edges.dim() == 0 or edges.shape[:-1] != values.shape[:-1] and edges.dim() > 1:
        raise Skip("a search through a permutation")
    right = bool(right) or side == "right"
    s.emit(s.op.name, {"sorted": edges, "values": values}, {"right": right, "index": "i32" if out32 else "i64"},
           {"y": torch.searchsorted(edges.detach(), values.detach(), right=right, out_int32=bool(out32))})


# ------------------------------------------------------------------------------------------------ distances, products of vectors
@maps(SUITE, "cdist")
def cdist(s):
    b, p, mode = s.bind("x2 p compute_mode", p=2.0)
    if s.x.shape[:-2] != b.shape[:-2]:
        raise Skip("a distance of broadcast operands, or of a degree below 1")
    y = torch.cdist(s.x, b, float(p), compute_mode="donot_use_mm_for_euclid_dist")
    s.emit("cdist", {"a": s.x, "b": b}, {"p": float(p)}, {"y": (y, Tol(3e-6, 2e-6))})
    if y.dim() == 3 or y.dim() == 2:
        dy = s.grad_like(y)
        saved, back = s.saved(y), torch.ops.aten._cdist_backward
        flat = lambda *t: [v.detach().contiguous() for v in t]
        da = back(*flat(dy, s.x, b), float(p), saved)
        db = back(*flat(dy.mT, b, s.x), float(p), saved.mT.contiguous())
        s.emit("cdist_backward", {"dy": dy, "a": s.x, "b": b, "y": saved}, {"p": float(p)},
               {"da": (da, Tol(2e-5, 1e-5)), "db": (db, Tol(2e-5, 1e-5))})


@maps(SUITE, "nn.functional.pdist")
def pdist(s):
    p, = s.bind("p", p=2.0)
    s.emit("pdist", {"x": s.x}, {"p": float(p)}, {"y": (s.y, Tol(3e-6, 2e-6))})


@maps(SUITE, "nn.functional.pairwise_distance")
def pairwise(s):
    b, p, eps, keepdim = s.bind("x2 p eps keepdim", p=2.0, eps=1e-6, keepdim=False)
    if s.x.shape != b.shape or float(p) < 1:
        raise Skip("a distance of broadcast operands, or of a degree below 1")
    s.emit("pairwise_distance", {"a": s.x, "b": b}, {"p": float(p), "eps": eps, "keepdim": bool(keepdim)}, {"y": (s.y, Tol(3e-6, 2e-6))})


@maps(SUITE, "dist")
def dist(s):
    b, p = s.bind("other p", p=2.0)
    if s.x.shape != b.shape or s.x.dim() == 0 or not float(p) >= 1:
        raise Skip("a distance of broadcast operands, or of a degree below 1")
    s.emit("pairwise_distance", {"a": s.x.reshape(-1), "b": b.reshape(-1)}, {"p": float(p), "eps": 0.0}, {"y": (s.y, Tol(3e-6, 2e-6))})


@maps(SUITE, "nn.functional.cosine_similarity")
def cosine(s):
    b, axis, eps = s.bind("x2 dim eps", dim=1, eps=1e-8)
    if s.x.shape != b.shape or s.x.dim() == 0:
        raise Skip("a similarity of broadcast operands")
    s.emit("cosine_similarity", {"a": s.x, "b": b}, {"axis": axis, "eps": eps}, {"y": (s.y, Tol(3e-6, 1e-6))})
    dy = s.grad_like(s.y)
    da, db = s.grad(dy, s.x, b)
    s.emit("cosine_similarity_backward", {"dy": dy, "a": s.x, "b": b}, {"axis": axis, "eps": eps},
           {"da": (da, Tol(1e-5, 2e-6)), "db": (db, Tol(1e-5, 2e-6))})


@maps(SUITE, "dot vdot inner linalg.vecdot")
def dot(s):
    b, dim = s.bind("other dim", dim=-1)
    if s.x.shape != b.shape or s.x.dim() == 0 or dim not in (-1, s.x.dim() - 1) or (s.op.name == "inner" and s.x.dim() != 1):
        raise Skip("a product of broadcast operands, or not over the last axis")
    kernel = "dot" if s.x.dim() == 1 else "batched_dot"
    s.emit(kernel, {"a": s.x, "b": b}, {}, {"y": (s.y, matmul_tol(s.x.shape[-1], (clean(s.x) * clean(b)).sum(-1)))})
    dy = s.grad_like(s.y)
    da, db = s.grad(dy, s.x, b)
    if s.x.dim() > 1:
        s.emit("batched_dot_backward", {"dy": dy, "a": s.x, "b": b}, {}, {"da": (da, ulp(2)), "db": (db, ulp(2))})

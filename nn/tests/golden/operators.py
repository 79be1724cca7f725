"""Writes operators.json beside this file: calls of PyTorch's operators with values, gradients and edge cases. `python operators.py`, with PyTorch and
mpmath; everything is float64, from inputs that float32 holds exactly.

A list of cases:

    op       the operator; tests/suite/pytorch_operators.rs calls ours by this name
    args     arguments that are no tensors, by PyTorch's names
    inputs   tensors: dtype, shape, and elements in order ("nan", "inf" and "-inf" are strings)
    outputs  tensors; null for one that PyTorch leaves open
    dout     upstream gradients of the outputs; null without a gradient
    din      gradients of the inputs; null without one"""

import json
import math
import pathlib
import zlib

import mpmath
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
NAN, INF = math.nan, math.inf
CASES = []


def number(v):
    if isinstance(v, float):
        return str(v) if math.isnan(v) or math.isinf(v) else float(f"{v:.12g}")
    return int(v)


def entry(t):
    if t is None:
        return None
    t = t.detach()
    t = t.to(torch.uint8) if t.dtype == torch.bool else t
    names = {torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8"}
    return {"dtype": names[t.dtype], "shape": list(t.shape), "data": [number(v) for v in t.flatten().tolist()]}


def draw(g, *shape):
    """Numbers in (-2, 2) of few digits, no two of which are equal."""
    n = math.prod(shape)
    places = torch.randperm(max(n, 1) * 3, generator=g)[:n].double()
    return ((places + 0.5) / (max(n, 1) * 3) * 4 - 2).mul(4096).round().div(4096).reshape(shape)


def t(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def ints(*values):
    return t(*values, dtype=torch.int64)


def case(op, f, *inputs, grad=True, open=(), **args):
    """Adds a case: shapes of inputs are drawn. `open`: outputs that PyTorch leaves open. `grad`: whether PyTorch gives gradients."""
    g = torch.Generator().manual_seed(zlib.crc32(f"{op}{len(CASES)}".encode()))
    inputs = [draw(g, *x) if isinstance(x, tuple) else x for x in inputs]
    leaves = [x.clone().requires_grad_(grad and x.is_floating_point()) for x in inputs]
    outputs = f(*leaves, **args)
    outputs = [y for y in outputs] if isinstance(outputs, (tuple, list)) else [outputs]
    outputs = [y if isinstance(y, torch.Tensor) else torch.tensor(y) for y in outputs]
    dout = [draw(g, *y.shape) if y.requires_grad else None for y in outputs]
    loss = [(y * d).sum() for y, d in zip(outputs, dout) if d is not None]
    if loss:
        sum(loss).backward()
    din = [x.grad if x.requires_grad else None for x in leaves]
    assert bool(loss) == any(d is not None for d in din), op
    for i in open:
        outputs[i] = None
    lists = {"inputs": inputs, "outputs": outputs, "dout": dout, "din": din}
    args = {k: number(v) if isinstance(v, float) else v for k, v in args.items()}
    CASES.append({"op": op, "args": args, **{k: [entry(x) for x in v] for k, v in lists.items()}})


def write(name):
    lines = ",\n".join(json.dumps(c) for c in CASES)
    path = pathlib.Path(__file__).with_name(name)
    path.write_text(f"[\n{lines}\n]\n")
    print(f"{path.name}: {len(CASES)} cases, {len({c['op'] for c in CASES})} operators, {path.stat().st_size // 1024} KiB")


def running():
    case("logcumsumexp", torch.logcumsumexp, (2, 5), dim=1)
    case("logcumsumexp", torch.logcumsumexp, (3, 2, 2), dim=-3)
    case("logcumsumexp", torch.logcumsumexp, t(-700.0, 0.0, 700.0, -INF, 1.0), dim=0)
    case("cumprod", torch.cumprod, (2, 6), dim=1)
    case("cumprod", torch.cumprod, t(2.0, 0.0, 3.0, 0.0, 5.0), dim=0)
    case("cumprod", torch.cumprod, ints([1, 2, 3], [4, 0, 6]), dim=-1)
    for op in (torch.cummax, torch.cummin):
        case(op.__name__, op, (2, 7), dim=1)
        case(op.__name__, op, t([1.0, 1.0, 0.0, 2.0, 2.0], [1.0, NAN, 3.0, NAN, -1.0]), dim=1)
        case(op.__name__, op, ints(3, 3, 1, 1, 4), dim=0)
    case("diff", torch.diff, (2, 5), n=1, dim=-1)
    case("diff", torch.diff, (4, 3), n=2, dim=0)
    case("diff", torch.diff, (2, 3), n=5, dim=1)
    case("diff", lambda x, p, a, **k: torch.diff(x, prepend=p, append=a, **k), (2, 3), (2, 1), (2, 2), n=1, dim=1)
    case("diff", torch.diff, ints(1, 4, 9), n=1, dim=0)
    case("trapezoid", torch.trapezoid, (2, 5), dx=0.5, dim=-1)
    case("trapezoid", torch.trapezoid, (4, 3), (4,), dim=0)
    case("trapezoid", torch.trapezoid, (2, 4), (2, 4), dim=1)
    case("trapezoid", torch.trapezoid, (1, 3), dx=1.0, dim=0)
    case("cumulative_trapezoid", torch.cumulative_trapezoid, (2, 5), dx=2.0, dim=1)
    case("cumulative_trapezoid", torch.cumulative_trapezoid, (4, 3), (4,), dim=0)


def statistics():
    gaps = t([1.0, NAN, 3.0], [NAN, NAN, NAN])
    case("nansum", torch.nansum, gaps, dim=[1], keepdim=False)
    case("nansum", torch.nansum, (2, 3, 2), dim=[0, -1], keepdim=True)
    case("nanmean", torch.nanmean, t([1.0, NAN, 3.0], [NAN, 5.0, NAN]), dim=[1], keepdim=False)
    case("nanmean", torch.nanmean, gaps, grad=False, dim=[1], keepdim=True)
    case("count_nonzero", torch.count_nonzero, t([0.0, NAN, 2.0], [0.0, -0.0, 1.0]), grad=False, dim=[1])
    case("count_nonzero", torch.count_nonzero, ints([0, 1], [2, 3]), dim=[0, 1])
    case("std_mean", torch.std_mean, (3, 4), dim=[1], correction=1, keepdim=False)
    case("var_mean", torch.var_mean, (3, 4), dim=[0, 1], correction=0, keepdim=True)
    case("var_mean", torch.var_mean, (3, 1), grad=False, dim=[1], correction=1, keepdim=False)
    case("trace", torch.trace, (3, 4))
    case("trace", torch.trace, ints([1, 2], [3, 4]))
    case("dist", torch.dist, (2, 3), (3,), p=2.0)
    case("dist", torch.dist, (4,), (4,), p=1.0)
    case("dist", torch.dist, (4,), (4,), p=INF)
    case("renorm", torch.renorm, (3, 4), p=2.0, dim=0, maxnorm=1.5)
    case("renorm", torch.renorm, (2, 3, 2), p=1.0, dim=-2, maxnorm=3.0)
    case("cov", torch.cov, (3, 5), correction=1)
    case("cov", torch.cov, (5,), correction=0)
    weights = (ints(1, 2, 1, 3), t(0.5, 1.0, 0.25, 2.0))
    case("cov", lambda x, w, **k: torch.cov(x, fweights=w, **k), (2, 4), weights[0], correction=1)
    case("cov", lambda x, w, a: torch.cov(x, fweights=w, aweights=a), (2, 4), *weights, grad=False)
    case("corrcoef", torch.corrcoef, (3, 6))
    case("corrcoef", torch.corrcoef, (4,), grad=False)


def order():
    rows = t([3.0, NAN, 1.0, 2.0], [4.0, 1.0, 3.0, 2.0], [NAN, NAN, NAN, NAN])
    for op in (torch.median, torch.nanmedian):
        name = op.__name__
        case(name + "_dim", op, (3, 5), dim=1, keepdim=False)
        case(name + "_dim", op, (4, 2, 2), dim=0, keepdim=True)
        case(name + "_dim", op, rows, grad=False, open=[1], dim=1, keepdim=False)
        case(name, op, (3, 4))
        case(name, op, t(2.0, 1.0, 2.0, 2.0, 5.0))
        case(name, op, t(2.0, NAN, 1.0, 0.0))
        case(name, op, ints(4, 1, 3, 2))
    case("kthvalue", torch.kthvalue, (2, 5), k=2, dim=1, keepdim=False)
    case("kthvalue", torch.kthvalue, (4, 3), k=4, dim=-2, keepdim=True)
    case("kthvalue", torch.kthvalue, t(NAN, 1.0, 0.0), grad=False, k=3, dim=0, keepdim=False)
    case("mode", torch.mode, t([1.0, 2.0, 2.0, 1.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0]), open=[1], dim=1, keepdim=False)
    case("mode", torch.mode, ints([1, 2, 2], [3, 2, 1]), open=[1], dim=0, keepdim=True)
    case("mode", torch.mode, t([1.0, 2.0, 2.0, 7.0], [5.0, 4.0, 6.0, 4.0]), grad=False, open=[1], dim=-1, keepdim=False)

    def quantiles(op):
        return lambda x, q, interpolation="linear", **k: op(x, torch.tensor(q), interpolation=interpolation, **k)

    for op in (torch.quantile, torch.nanquantile):
        name, f = op.__name__, quantiles(op)
        case(name, f, (3, 5), q=[0.0, 0.3, 0.75, 1.0], dim=1, keepdim=False)
        case(name, f, (4, 2), q=0.4, dim=0, keepdim=True)
        case(name, f, (2, 3), q=[0.5], keepdim=True)
        case(name, f, (2, 3), q=0.2)
        case(name, f, rows, grad=False, q=[0.4, 1.0], dim=1, keepdim=False)
        for how in ("lower", "higher", "nearest", "midpoint"):
            case(name, f, (7,), q=[0.1, 0.25, 0.6], dim=0, keepdim=False, interpolation=how)


def counts():
    case("histc", torch.histc, (12,), grad=False, bins=4, min=0.0, max=0.0)
    case("histc", torch.histc, t(0.0, 1.0, 2.0, 3.0, 4.0, NAN, 9.0, 3.999), grad=False, bins=4, min=0.0, max=4.0)
    case("histc", torch.histc, t(2.0, 2.0), grad=False, bins=3, min=0.0, max=0.0)
    case("bincount", torch.bincount, ints(0, 3, 3, 1), minlength=0)
    case("bincount", torch.bincount, ints(0, 3, 3, 1), minlength=6)
    case("bincount", torch.bincount, ints(), minlength=2)
    case("bincount", torch.bincount, ints(0, 3, 3, 1), t(0.5, 1.0, 2.0, 4.0), grad=False, minlength=0)
    case("isin", torch.isin, t([1.0, 2.0], [NAN, 4.0]), t(4.0, NAN, 1.0), grad=False, invert=False)
    case("isin", torch.isin, ints(1, 2, 3), ints([3], [1]), invert=True)
    case("isin", torch.isin, ints(1, 2, 3), ints(), invert=False)
    unique = lambda x, f: f(x, return_inverse=True, return_counts=True)
    for x in (ints([3, 1, 3], [2, 1, 1]), t(0.5, -1.0, 0.5), ints()):
        case("unique", lambda x: unique(x, torch.unique), x, grad=False)
        case("unique_consecutive", lambda x: unique(x, torch.unique_consecutive), x, grad=False)


def bags():
    ids, starts = ints(1, 3, 0, 1, 4, 3), ints(0, 2, 2, 5)

    def bag(table, ids, offsets=None, weights=None, **k):
        return F.embedding_bag(ids, table, offsets, per_sample_weights=weights, **k)

    for mode in ("sum", "mean", "max"):
        case("embedding_bag", bag, (5, 3), ints([1, 3], [0, 4]), mode=mode)
        case("embedding_bag", bag, (5, 3), ids, starts, mode=mode)
        case("embedding_bag", bag, (5, 3), ids, starts, mode=mode, padding_idx=3)
        case("embedding_bag", bag, (5, 2), ints([1, 1], [3, 3]), mode=mode, padding_idx=-4)
    case("embedding_bag", bag, (5, 3), ids, ints(0, 1, 6), mode="sum", include_last_offset=True)
    case("embedding_bag", bag, (5, 3), ids, starts, mode="mean", scale_grad_by_freq=True)
    case("embedding_bag", bag, (5, 3), ids, starts, (6,), mode="sum")
    case("embedding_bag", bag, (5, 3), ids, starts, (6,), mode="sum", padding_idx=1)


def windows():
    case("local_response_norm", F.local_response_norm, (2, 5, 3), size=3, alpha=0.1, beta=0.75, k=1.0)
    case("local_response_norm", F.local_response_norm, (1, 4, 2, 2), size=4, alpha=0.5, beta=0.5, k=2.0)

    def unpool(x, index, size=None, dims=2, **k):
        return getattr(F, f"max_unpool{dims}d")(x, index, output_size=size, **k)

    case("max_unpool", unpool, (1, 2, 2), ints([[1, 2], [0, 3]]), kernel_size=[2], stride=[2], padding=[0], dims=1)
    index = ints([[[0, 3], [8, 11]]], [[[5, 7], [12, 10]]])
    case("max_unpool", unpool, (2, 1, 2, 2), index, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0])
    case("max_unpool", unpool, (2, 1, 2, 2), index, kernel_size=[2, 2], stride=[2, 2], padding=[0, 0], size=[4, 5])

    def fractional(x, u, kernel_size, output_size):
        return F.fractional_max_pool2d(x, kernel_size, output_size, return_indices=True, _random_samples=u)

    places = t([[0.1, 0.9], [0.5, 0.3]])
    case("fractional_max_pool2d", lambda x, u, **k: fractional(x, u.detach(), **k), (1, 2, 6, 5), places, kernel_size=[2, 2], output_size=[3, 2])
    case("fractional_max_pool2d", lambda x, u, **k: fractional(x, u.detach(), **k), (1, 2, 4, 4), places, kernel_size=[2, 3], output_size=[1, 2])
    case("lp_pool", lambda x, p, kernel_size, stride: F.lp_pool2d(x, p, kernel_size, stride), (1, 2, 4, 4), p=2.0, kernel_size=[2, 2], stride=[2, 1])
    case("bilinear", F.bilinear, (2, 3), (2, 4), (2, 3, 4), (2,))
    case("bilinear", F.bilinear, (3,), (2,), (4, 3, 2))


def pointwise():
    edges = t(-INF, -3.0, -0.5, -0.0, 0.0, 0.25, 0.5, 2.0, 800.0, INF, NAN)
    finite = edges[1:-2]
    case("celu", F.celu, edges, grad=False, alpha=1.0)
    case("celu", F.celu, finite, alpha=0.5)
    case("softsign", F.softsign, finite)
    for name in ("softshrink", "hardshrink"):
        case(name, getattr(F, name), edges, lambd=0.5)
        case(name, getattr(F, name), (5,), lambd=0.25)
    case("tanhshrink", F.tanhshrink, finite)
    case("threshold", F.threshold, edges, threshold=0.25, value=7.0)
    case("logsigmoid", F.logsigmoid, t(-900.0, -30.0, -1.0, 0.0, 1.0, 30.0))
    case("rrelu", F.rrelu, finite, lower=0.1, upper=0.3, training=False)
    case("sinc", torch.sinc, finite[:-1])
    case("logit", torch.logit, t(0.0, 0.1, 0.5, 1.0, 0.999), grad=False)
    case("logit", torch.logit, t(0.1, 0.5, 0.75))
    case("logit", torch.logit, t(0.0, 0.1, 0.5, 0.99, -3.0, 2.0), eps=0.05)
    case("heaviside", torch.heaviside, edges, t(0.5), grad=False)
    case("heaviside", torch.heaviside, ints([-1, 0, 2]), ints([5], [6]))
    a, b = t(1.0, 1.0, INF, INF, NAN, 0.0), t(1.00001, 1.1, INF, -INF, NAN, 1e-9)
    case("isclose", torch.isclose, a, b, grad=False, rtol=1e-4, atol=1e-8, equal_nan=False)
    case("isclose", torch.isclose, a, b, grad=False, rtol=0.2, atol=0.0, equal_nan=True)
    case("isclose", torch.isclose, ints(1, 2, 30), ints(1, 3, 31), rtol=0.1, atol=0.0, equal_nan=False)
    case("allclose", torch.allclose, a[:3], b[:3], grad=False, rtol=0.2, atol=0.0, equal_nan=False)
    case("allclose", torch.allclose, a, b, grad=False, rtol=0.2, atol=0.0, equal_nan=True)
    case("equal", torch.equal, ints(1, 2), ints(1, 2))
    case("equal", torch.equal, ints(1, 2), ints([1, 2]))
    case("equal", torch.equal, t(1.0, NAN), t(1.0, NAN), grad=False)
    case("signbit", torch.signbit, edges[:-1], grad=False)
    case("signbit", torch.signbit, ints(-1, 0, 1))
    whole = (ints([12, 0, -8, 0], [1, 7, 2147483647, -6]), ints(18, 5, 12, 0))
    case("gcd", torch.gcd, *whole)
    case("lcm", torch.lcm, *whole)
    case("gcd", torch.gcd, ints(7540113804746346429, 2**62), ints(4660046610375530309, 2**61 + 2**60))
    case("gcd", torch.gcd, t(1836311903, 233, dtype=torch.int32), t(1134903170, 144, dtype=torch.int32))
    case("gcd", torch.gcd, t(144, 233, dtype=torch.uint8), t(233, 0, dtype=torch.uint8))
    case("mvlgamma", torch.mvlgamma, t(2.5, 3.0, 7.25), p=3)
    case("ndtr", torch.special.ndtr, t(-6.0, -1.0, 0.0, 0.5, 3.0))
    for name in ("i0", "i0e", "i1", "i1e"):
        case(name, getattr(torch.special, name), t(-4.0, -0.5, 0.25, 1.0, 9.0))
    case("xlog1py", torch.special.xlog1py, t(0.5, 1.0, 2.0), t(0.25, 3.0, -0.5))
    case("xlog1py", torch.special.xlog1py, t(0.0, NAN, 0.0), t(-1.0, 1.0, NAN), grad=False)
    case("zeta", torch.special.zeta, t(2.0, 3.5, 5.0), t(1.0, 2.5, 0.5), grad=False)
    case("entr", torch.special.entr, t(0.1, 0.5, 1.0, 3.0))
    case("entr", torch.special.entr, t(0.0, -1.0, NAN, INF), grad=False)
    case("deg2rad", torch.deg2rad, t(180.0, -90.0))
    case("rad2deg", torch.rad2deg, t(1.0, -3.0))
    case("nan_to_num", torch.nan_to_num, t(NAN, INF, -INF, 1.5), nan=0.5, posinf=9.0, neginf=-9.0)


def by_index():
    row = ints(2, 0, 2)
    for how in ("prod", "mean", "amax", "amin"):
        for whole in (True, False):
            f = lambda x, i, s, dim, reduce, include_self: x.index_reduce(dim, i, s, reduce, include_self=include_self)
            case("index_reduce", f, (4, 2), row, (3, 2), dim=0, reduce=how, include_self=whole)
    f = lambda x, i, s, dim: x.index_reduce(dim, i, s, "amax")
    case("index_reduce", f, t([1.0, 2.0, 3.0]), ints(1, 1), t([2.0, 2.0]), dim=-1)
    case("take", torch.take, (2, 3), ints([0, -1], [4, 4]))
    f = lambda x, i, s, accumulate: x.clone().put_(i, s, accumulate=accumulate)
    case("put", f, (2, 3), ints(0, -1, 3), (3,), accumulate=False)
    case("put", f, (2, 3), ints([0, 3], [3, 5]), (2, 2), accumulate=True)
    mask = t([True, False, True], [False, False, True], dtype=torch.bool)
    case("index_mask", lambda x, m: x[m.bool()], (2, 3), mask.to(torch.uint8))
    case("index_mask", lambda x, m: x[m.bool()], (2, 3, 2), mask.to(torch.uint8))
    case("index_mask", lambda x, m: x[m.bool()], (3, 2), t(0, 0, 0, dtype=torch.uint8))
    case("select_scatter", torch.select_scatter, (2, 3), (2,), dim=1, index=-1)
    case("slice_scatter", torch.slice_scatter, (2, 5), (2, 2), dim=1, start=1, end=5, step=2)
    case("diagonal_scatter", torch.diagonal_scatter, (3, 4), (3,), offset=1)
    case("diagonal_scatter", torch.diagonal_scatter, (2, 3, 3), (3, 2), offset=0, dim1=0, dim2=2, open=())
    case("diag_embed", torch.diag_embed, (2, 3), offset=0, dim1=-2, dim2=-1)
    case("diag_embed", torch.diag_embed, (2, 3), offset=-1, dim1=0, dim2=2)
    case("diag_embed", torch.diag_embed, (2, 3), offset=1, dim1=2, dim2=0)
    case("diag", torch.diag, (3,), diagonal=1)
    case("diag", torch.diag, (3, 4), diagonal=-1)


def arrangement():
    for k in (-1, 0, 1, 2, 7):
        case("rot90", torch.rot90, (2, 3), k=k, dims=[0, 1])
    case("rot90", torch.rot90, (2, 3, 2), k=1, dims=[2, 0])
    case("moveaxis", torch.moveaxis, (2, 3, 4), source=[0], destination=[-1])
    case("moveaxis", torch.moveaxis, (2, 3, 4), source=[2, 0], destination=[0, 1])
    case("unflatten", torch.unflatten, (2, 6), dim=1, sizes=[3, -1])
    case("tile", torch.tile, (2, 1), dims=[2])
    case("tile", torch.tile, (2,), dims=[2, 1, 2])
    for i, shape in enumerate(((), (2,), (2, 3), (1, 2, 3, 1))):
        case(f"atleast_{min(i + 1, 3)}d", getattr(torch, f"atleast_{min(i + 1, 3)}d"), shape)
        case("atleast_3d", torch.atleast_3d, shape)
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        f = lambda *parts: getattr(torch, name)(parts)
        case(name, f, (2,), (2,) if name in ("vstack", "dstack", "column_stack") else (3,))
        case(name, f, (2, 2), (2, 2))
    case("hstack", lambda *parts: torch.hstack(parts), (), ())
    case("column_stack", lambda *parts: torch.column_stack(parts), (2,), (2, 3))
    case("unbind", torch.unbind, (2, 3), dim=-1)
    case("tensor_split", lambda x, indices_or_sections, dim: torch.tensor_split(x, indices_or_sections, dim), (7, 2), indices_or_sections=3, dim=0)
    case("tensor_split", lambda x, indices_or_sections, dim: torch.tensor_split(x, indices_or_sections, dim), (2, 2), indices_or_sections=3, dim=1)
    case("broadcast_tensors", torch.broadcast_tensors, (3, 1), (2,), ())
    case("block_diag", torch.block_diag, (2, 3), (2,), (), (1, 1))
    for indexing in ("ij", "xy"):
        case("meshgrid", torch.meshgrid, (2,), (3,), (), indexing=indexing)
    case("cartesian_prod", torch.cartesian_prod, (2,), (3,))
    case("cartesian_prod", torch.cartesian_prod, (2,))
    for repeated in (False, True):
        case("combinations", torch.combinations, (4,), r=2, with_replacement=repeated)
        case("combinations", torch.combinations, (3,), r=3, with_replacement=repeated)
    case("combinations", torch.combinations, (2,), r=3, with_replacement=False)
    case("unravel_index", lambda x, shape: torch.unravel_index(x, shape), ints([0, 7], [23, 12]), shape=[2, 3, 4])
    case("logspace", lambda like, start, end, steps, base: torch.logspace(start, end, steps, base), t(0.0), grad=False, start=-1.0, end=2.0, steps=4, base=10.0)
    like = t(0.0)
    for n, periodic in ((8, True), (7, False), (1, True), (0, False)):
        kind = {"window_length": n, "periodic": periodic}
        for name in ("hann", "blackman", "bartlett"):
            case(f"{name}_window", lambda like, **k: getattr(torch, f"{name}_window")(**k), like, grad=False, **kind)
        case("hamming_window", lambda like, **k: torch.hamming_window(**k), like, grad=False, alpha=0.6, beta=0.3, **kind)
        case("kaiser_window", lambda like, **k: torch.kaiser_window(**k), like, grad=False, beta=5.0, **kind)
    for offset in (-2, 0, 1, 5, -5):
        for name in ("tril_indices", "triu_indices"):
            case(name, lambda like, **k: getattr(torch, name)(**k), like, grad=False, row=3, col=4, offset=offset)
    case("vander", lambda x, increasing: torch.vander(x, increasing=increasing), (3,), grad=False, increasing=False)
    case("vander", torch.vander, t(0.0, 2.0, -1.5), grad=False, N=4, increasing=True)
    case("vander", lambda x, N, increasing: torch.linalg.vander(x, N=N), (2, 2), grad=False, N=3, increasing=True)


def products():
    for beta, alpha in ((1.0, 1.0), (0.5, -2.0)):
        case("addmm", torch.addmm, (3,), (2, 4), (4, 3), beta=beta, alpha=alpha)
        case("addmm", torch.baddbmm, (2, 2, 3), (2, 2, 4), (2, 4, 3), beta=beta, alpha=alpha)
        case("addmm", torch.addmv, (2,), (2, 4), (4,), beta=beta, alpha=alpha)
        case("addbmm", torch.addbmm, (2, 3), (2, 2, 4), (2, 4, 3), beta=beta, alpha=alpha)
        case("addr", torch.addr, (2, 3), (2,), (3,), beta=beta, alpha=alpha)
    case("addmm", torch.addmm, t([NAN, INF]), t([1.0], [2.0]), t([3.0, 4.0]), grad=False, beta=0.0, alpha=1.0)
    case("tensordot", lambda a, b, dims: torch.tensordot(a, b, dims), (2, 3, 4), (4, 3, 2), dims=[[1, 2], [1, 0]])
    case("tensordot", lambda a, b, dims: torch.tensordot(a, b, dims), (2, 3), (2,), dims=[[], []])
    case("inner", torch.inner, (2, 3), (4, 3))
    case("inner", torch.inner, (3,), (3,))
    case("inner", torch.inner, (), (2, 2))
    case("kron", torch.kron, (2, 2), (2, 3))
    case("kron", torch.kron, (2,), (2, 1, 2))
    case("cross", torch.linalg.cross, (2, 3), (2, 3), dim=-1)
    case("cross", torch.linalg.cross, (3, 1), (3, 2), dim=0)
    case("multi_dot", lambda *m: torch.linalg.multi_dot(m), (2, 5), (5, 1), (1, 4), (4, 3))
    case("multi_dot", lambda *m: torch.linalg.multi_dot(m), (5,), (5, 2), (2,))
    for upper in (False, True):
        spd = lambda a: a @ a.mT + 2 * torch.eye(a.shape[-1])
        factor = lambda a: torch.linalg.cholesky(spd(a), upper=upper)
        case("cholesky_solve", lambda b, a, upper: torch.cholesky_solve(b, factor(a), upper), (2, 3, 2), (3, 3), upper=upper)
        case("cholesky_inverse", lambda a, upper: torch.cholesky_inverse(factor(a), upper), (2, 3, 3), upper=upper)
    for n in (-2, 0, 1, 5):
        case("matrix_power", lambda x, n: torch.linalg.matrix_power(x, n), (2, 2, 2), grad=n != 0, n=n)


def spectral():
    la = torch.linalg
    # Gradients of inverses grow with the square of the condition.
    square = t([3.0, 0.5, -1.0], [0.25, 2.0, 0.5], [-0.5, 1.0, -2.5])
    for shape in ((2, 4, 3), (3, 4), (3, 3)):
        # The signs of vectors are open.
        factors = lambda x: [f.square() if f.dim() == x.dim() else f for f in la.svd(x, full_matrices=False)]
        case("svd", factors, shape)
        case("svdvals", la.svdvals, shape)
        case("pinv", la.pinv, square if shape == (3, 3) else shape)
        case("matrix_rank", la.matrix_rank, shape, grad=False)
        for ord in ("fro", "nuc", 2, -2, 1, -1, "inf", "-inf"):
            norm = lambda x, ord, keepdim, f=la.matrix_norm: f(x, ord=float(ord) if "inf" in str(ord) else ord, keepdim=keepdim)
            case("matrix_norm", norm, shape, ord=ord, keepdim=ord == 1)
    for ord in ("fro", "nuc", 2, -2, 1, -1, "inf", "-inf"):
        p = float(ord) if "inf" in str(ord) else ord
        # PyTorch's own cond of these has no backward.
        cond = la.cond if ord in (2, -2) else lambda x, p: la.matrix_norm(x, ord=p) * la.matrix_norm(la.inv(x), ord=p)
        case("cond", lambda x, ord: cond(x, p=p), (2, 3, 3), ord=ord)
    singular = t([[1.0, 2.0, 0.5], [2.0, 4.0, 1.0], [0.0, 1.0, -3.0]], [[0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
    case("cond", lambda x, ord: la.cond(x, p=ord), singular, grad=False, ord="fro")
    case("matrix_rank", la.matrix_rank, singular, grad=False)
    case("matrix_rank", la.matrix_rank, singular, grad=False, atol=0.6)
    case("matrix_rank", la.matrix_rank, singular, grad=False, rtol=0.5)
    case("pinv", la.pinv, singular, rtol=1e-5)
    case("pinv", la.pinv, torch.eye(3) * 0.5)


def special():
    sp = torch.special
    case("erfcx", sp.erfcx, t(-3.0, -0.5, 0.0, 0.25, 2.0, 30.0, 500.0))
    case("log_ndtr", sp.log_ndtr, t(-40.0, -5.0, -1.0, -0.5, 0.0, 2.0, 7.0))
    case("ndtri", sp.ndtri, t(1e-12, 0.001, 0.09375, 0.25, 0.5, 0.75, 0.984375))
    ends = t(-INF, -1.0, 0.0, 1.0, 2.0, INF, NAN)
    for name in ("erfcx", "log_ndtr", "ndtri"):
        case(name, getattr(sp, name), ends, grad=False)
    both = t(-30.0, -7.0, -0.5, 0.0, 0.25, 3.0, 8.0, 8.5, 40.0)
    case("spherical_bessel_j0", sp.spherical_bessel_j0, both, grad=False)
    positive = t(-1.0, 0.0, 0.0625, 0.75, 2.0, 2.5, 8.0, 9.0, 40.0, INF)
    # PyTorch's have 9 digits beyond x = 5.
    exact = lambda f, order: lambda x: torch.tensor([float(f(order, v)) for v in x.tolist()])
    for order in (0, 1):
        case(f"bessel_j{order}", exact(mpmath.besselj, order), both, grad=False)
        case(f"bessel_y{order}", exact(mpmath.bessely, order), positive[2:-1], grad=False)
        case(f"bessel_y{order}", getattr(sp, f"bessel_y{order}"), positive[:2], grad=False)
    for name in ("modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"):
        case(name, getattr(sp, name), positive, grad=False)


def bins():
    places = t([[0.1, 0.9, 0.4], [0.5, 0.3, 0.7]])
    fractional = lambda x, u, kernel_size, output_size: F.fractional_max_pool3d(
        x, kernel_size, output_size, return_indices=True, _random_samples=u.detach())
    for shape, kernel, out in (((1, 2, 5, 6, 4), [2, 2, 2], [3, 2, 2]), ((1, 2, 4, 4, 5), [2, 3, 1], [1, 1, 4])):
        case("fractional_max_pool3d", fractional, shape, places, kernel_size=kernel, output_size=out)
    rows = ints(3, 1, 2, 3, 1, 2, 0, 5, 5, 3, 1, 2, 0, 5, 4).reshape(5, 3)
    several = {"return_inverse": True, "return_counts": True}
    deep = rows.reshape(5, 1, 3).expand(5, 2, 3).contiguous()
    for x, dim in ((rows, 0), (rows, 1), (deep, -3), (t([0.5, -1.0], [0.5, -1.0]), 0), (ints().reshape(0, 3), 0)):
        case("unique_dim", lambda x, dim: torch.unique(x, dim=dim, **several), x, grad=False, dim=dim)
        if x.numel():
            follow = lambda x, dim: torch.unique_consecutive(x, dim=dim, **several)
            case("unique_consecutive_dim", follow, x, grad=False, dim=dim)
    x, w = (3, 4), (3, 4)
    h = lambda x, w, bins, range, density: torch.histogram(x, bins, range=range, weight=w, density=density)
    case("histogram", lambda x, bins, density: torch.histogram(x, bins, density=density), x, grad=False, bins=5, density=False)
    case("histogram", lambda x, w, **k: h(x, w, **k), x, w, grad=False, bins=4, range=[-1.0, 1.5], density=True)
    case("histogram", lambda x, bins, density: torch.histogram(x, bins, density=density), t(2.0, 2.0), grad=False, bins=3, density=True)
    edges = t(-1.5, -0.25, 0.0, 1.75)
    of_edges = lambda x, e, density: torch.histogram(x, e, density=density)[0]
    case("histogram_of_edges", of_edges, x, edges, grad=False, density=False)
    case("histogram_of_edges", of_edges, t(-1.5, -0.25, 0.0, 1.75, 2.0, -2.0), edges, grad=False, density=True)
    flat = lambda y: [y.hist, *y.bin_edges]
    case("histogramdd", lambda x, bins, density: flat(torch.histogramdd(x, bins, density=density)), (9, 2), grad=False, bins=[3, 2], density=False)
    sides = (t(-1.5, 0.0, 0.5, 1.75), t(-2.0, 0.25, 1.0))
    of_edges = lambda x, a, b, density: torch.histogramdd(x, [a, b], density=density).hist
    case("histogramdd_of_edges", of_edges, (9, 2), *sides, grad=False, density=False)
    dd = lambda x, w, bins, range, density: flat(torch.histogramdd(x, bins, range=range, weight=w, density=density))
    case("histogramdd", dd, (2, 5, 2), (2, 5), grad=False, bins=[2, 4], range=[-1.0, 1.0, -2.0, 1.0], density=True)


def gammas():
    exactly = lambda f: lambda *x: torch.tensor([float(f(*v)) for v in zip(*(y.tolist() for y in x))])
    case("airy_ai", exactly(mpmath.airyai), t(-INF, -30.0, -7.0, -0.5, 0.0, 0.25, 3.0, 8.0, 8.5, 40.0, INF), grad=False)
    case("airy_ai", torch.special.airy_ai, t(NAN), grad=False)
    shape, place = t(0.0078125, 0.5, 0.75, 3.0, 3.0, 25.0, 300.0, 1000.0), t(0.5, 0.25, 1.25, 1.0, 7.5, 20.0, 310.0, 500.0)
    low = lambda a, x: mpmath.gammainc(a, 0, x, regularized=True)
    case("igamma", exactly(low), shape, place, grad=False)
    case("igammac", exactly(lambda a, x: mpmath.gammainc(a, x, mpmath.inf, regularized=True)), shape, place, grad=False)
    edges = t(0.0, 0.0, 2.0, INF, 3.0, INF, -1.0, 2.0, NAN), t(0.0, 2.0, 0.0, 3.0, INF, INF, 2.0, -1.0, 1.0)
    for name in ("igamma", "igammac"):
        case(name, getattr(torch, name), *edges, grad=False)
        slope = getattr(torch, name)
        case(name + "_of_3.5", lambda x, slope=slope: slope(t(3.5), x), t(0.0, 0.25, 3.0, 5.5, 40.0))


if __name__ == "__main__":
    for family in (running, statistics, order, counts, bags, windows, pointwise, by_index, arrangement, products, spectral, special, bins, gammas):
        family()
    write("operators.json")

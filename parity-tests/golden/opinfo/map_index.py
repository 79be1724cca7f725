"""Gather, scatter, indexing by tensors and masks, embedding."""
import torch
from core import EXACT, Tol, ULP32, summed
from harness import Skip, maps
from conv import clean
from binary import top

SUITE = "index"


def axis_of(s, dim):
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    return dim % s.x.dim()


@maps(SUITE, "index_select")
def index_select(s):
    dim, idx = s.bind("dim index")
    axis = axis_of(s, dim)
    s.emit("index_select", {"x": s.x, "idx": idx.reshape(-1)}, {"axis": axis}, {"y": s.y})
    dy = s.grad_like(s.y)
    s.emit("index_select_backward", {"dy": dy, "idx": idx.reshape(-1)}, {"input_size": list(s.x.shape), "axis": axis},
           {"dx": (s.grad(dy, s.x)[0], summed(idx.numel(), top(dy) * idx.numel()))})


@maps(SUITE, "gather take_along_dim take")
def gather(s):
    x, y = s.x, s.y
    if s.op.name == "gather":
        dim, idx, _ = s.bind("dim index sparse_grad")
    else:
        idx, dim = s.bind("index dim")
    if dim is None:
        x, idx, y, dim = x.reshape(-1), torch.where(idx < 0, idx + x.numel(), idx).reshape(-1), y.reshape(-1), 0
    if x.dim() == 0 or x.dim() != idx.dim() or idx.dtype not in (torch.int32, torch.int64) or not bool((idx >= 0).all()):
        raise Skip("an index that broadcasts, or of a scalar")
    axis = dim % x.dim()
    if y.shape != idx.shape or any(i > n for k, (i, n) in enumerate(zip(idx.shape, x.shape)) if k != axis):
        raise Skip("an index that broadcasts, or of a scalar")
    s.emit("gather", {"x": x, "idx": idx}, {"axis": axis}, {"y": y})
    dy = s.grad_like(y)
    dx, = s.grad(dy, s.x, y=y)
    n = idx.shape[axis]
    s.emit("gather_backward", {"dy": dy, "idx": idx}, {"input_size": list(x.shape), "axis": axis},
           {"dx": (dx.reshape(x.shape), summed(n, top(dy) * n))})


def cells(src, idx):
    return src[tuple(slice(0, n) for n in idx.shape)]


def reduced(s, dim, idx, src, how, include_self, back=True):
    axis = axis_of(s, dim)
    part, k = cells(src, idx), idx.shape[axis] + 1
    if idx.numel() == 0:
        raise Skip("no index")
    tol = EXACT if how in ("amax", "amin") else Tol((8 + k) * ULP32, 1e-30) if how == "prod" else \
        summed(k, clean(s.x).scatter_reduce(axis, idx.long(), clean(part), "sum", include_self=True))
    args = {"axis": axis, "reduce": how, "include_self": include_self}
    s.emit("scatter_reduce", {"x": s.x, "idx": idx, "src": part}, args, {"y": (s.y, tol)})
    dx, dsrc = s.grad(dy := s.grad_like(s.y), s.x, src)
    if back and src.shape == idx.shape and bool(dx.isfinite().all()) and bool(dsrc.isfinite().all()):
        tol = EXACT if how in ("amax", "amin", "sum") else Tol(1e-5, 1e-6)
        s.emit("scatter_reduce_backward", {"dy": dy, "x": s.x, "idx": idx, "src": src, "y": s.saved(s.y)}, args,
               {"dx": (dx, tol), "dsrc": (dsrc, tol)})


@maps(SUITE, "scatter")
def scatter(s):
    dim, idx, src, reduce = s.bind("dim index src reduce")
    if not isinstance(src, torch.Tensor) or idx.numel() == 0:
        raise Skip("scatter of a number")
    if reduce is not None:
        return reduced(s, dim, idx, src, {"add": "sum", "multiply": "prod"}[reduce], True, back=False)
    axis, part = axis_of(s, dim), cells(src, idx)
    s.emit("scatter", {"x": s.x, "idx": idx, "src": part}, {"axis": axis}, {"y": s.y})
    flat = torch.zeros(s.x.shape).scatter_add(axis, idx.long(), torch.ones(idx.shape))
    if bool((flat > 1).any()):
        return
    dy = s.grad_like(s.y)
    dx, dsrc = s.grad(dy, s.x, src)
    s.emit("scatter_backward", {"dy": dy, "idx": idx}, {"axis": axis}, {"dx": dx, "dsrc": cells(dsrc, idx)})


@maps(SUITE, "scatter_add")
def scatter_add(s):
    dim, idx, src = s.bind("dim index src")
    reduced(s, dim, idx, src, "sum", True)


@maps(SUITE, "scatter_reduce.sum scatter_reduce.prod scatter_reduce.mean scatter_reduce.amin scatter_reduce.amax")
def scatter_reduce(s):
    dim, idx, src, how, own = s.bind("dim index src reduce include_self", include_self=True)
    reduced(s, dim, idx, src, how, bool(own))


@maps(SUITE, "index_reduce.mean index_reduce.prod index_reduce.amin index_reduce.amax")
def index_reduce(s):
    dim, idx, src, how, own = s.bind("dim index source reduce include_self", include_self=True)
    axis = axis_of(s, dim)
    shape = [1] * s.x.dim()
    shape[axis] = -1
    reduced(s, axis, idx.reshape(shape).expand(src.shape).contiguous(), src, how, bool(own))


@maps(SUITE, "index_add")
def index_add(s):
    dim, idx, src, alpha = s.bind("dim index source alpha", alpha=1)
    axis = axis_of(s, dim)
    n = idx.numel()
    mag = clean(s.x).index_add(axis, idx, clean(src), alpha=abs(alpha))
    s.emit("index_add", {"x": s.x, "idx": idx, "src": src}, {"axis": axis, "alpha": alpha}, {"y": (s.y, summed(n + 1, mag))})


@maps(SUITE, "index_copy")
def index_copy(s):
    dim, idx, src = s.bind("dim index source")
    if idx.unique().numel() != idx.numel():
        raise Skip("indices that repeat")
    s.emit("index_copy", {"x": s.x, "idx": idx, "src": src}, {"axis": axis_of(s, dim)}, {"y": s.y})


@maps(SUITE, "index_fill")
def index_fill(s):
    dim, idx, value = s.bind("dim index value")
    axis = axis_of(s, dim)
    value = float(value)
    idx = torch.where(idx < 0, idx + s.x.shape[axis], idx).reshape(-1)
    s.emit("index_fill", {"x": s.x, "idx": idx}, {"axis": axis, "value": value}, {"y": s.x.detach().index_fill(axis, idx, value)})


@maps(SUITE, "index_put")
def index_put(s):
    idx, v, accumulate = s.bind("indices values accumulate", accumulate=False)
    if any(i is None or i.dtype == torch.bool for i in idx):
        raise Skip("indexing by a mask")
    if not accumulate and idx[0].unique().numel() != idx[0].numel():
        raise Skip("indices that repeat")
    tol = EXACT if not accumulate else summed(idx[0].numel() + 1, top(s.x) + top(v) * idx[0].numel())
    shape = list(torch.broadcast_shapes(*[i.shape for i in idx])) + list(s.x.shape[len(idx):])
    s.emit("index_put", {"x": s.x, **{f"idx{n}": torch.where(i < 0, i + s.x.shape[n], i) for n, i in enumerate(idx)}, "v": v.expand(shape).contiguous()},
           {"accumulate": bool(accumulate)}, {"y": (s.y, tol)})


@maps(SUITE, "masked_fill")
def masked_fill(s):
    mask, value = s.bind("mask value")
    value = float(value)
    if s.y.shape != s.x.shape or mask.dim() > s.x.dim():
        raise Skip("a mask that widens its tensor")
    s.emit("masked_fill", {"x": s.x, "c": mask}, {"value": value}, {"y": s.y})
    if mask.shape == s.x.shape:
        dy = s.grad_like(s.y)
        s.emit("masked_fill_backward", {"dy": dy, "c": mask}, {}, {"dx": s.grad(dy, s.x)[0]})


@maps(SUITE, "masked_scatter")
def masked_scatter(s):
    mask, src = s.bind("mask source")
    if s.y.shape != s.x.shape:
        raise Skip("a mask that widens its tensor")
    s.emit("masked_scatter", {"x": s.x, "c": mask.expand(s.x.shape).contiguous(), "src": src.reshape(-1)}, {}, {"y": s.y})


@maps(SUITE, "masked_select")
def masked_select(s):
    mask, = s.bind("mask")
    if mask.shape != s.x.shape:
        raise Skip("a mask that broadcasts")
    count = torch.tensor(s.y.numel())
    s.emit("masked_select", {"x": s.x, "c": mask}, {"capacity": s.x.numel()}, {"y": s.y, "count": count})


@maps(SUITE, "nonzero argwhere")
def nonzero(s):
    if s.kw.get("as_tuple"):
        raise Skip("argument as_tuple")
    s.emit("nonzero", {"x": s.x}, {"capacity": max(1, s.x.numel())}, {"idx": s.y, "count": torch.tensor(s.y.shape[0])})


@maps(SUITE, "nn.functional.one_hot", ("i64",))
def one_hot(s):
    n, = s.bind("num_classes", num_classes=-1)
    C = s.y.shape[-1]
    if C == 0:
        raise Skip("no class")
    s.emit("one_hot", {"ids": s.x}, {"C": C}, {"y": s.y.double()})


@maps(SUITE, "nn.functional.embedding")
def embedding(s):
    ids, padding, max_norm, norm_type, by_freq, sparse = s.bind("input padding_idx max_norm norm_type scale_grad_by_freq sparse", norm_type=2.0)
    table = s.x
    if max_norm is not None:
        raise Skip("embedding with a bound on the norm changes its table")
    padding = None if padding is None else padding % table.shape[0]
    s.emit("embedding_forward", {"ids": ids, "table": table}, {"padding_idx": padding}, {"y": s.y})
    dy = s.grad_like(s.y)
    y = torch.nn.functional.embedding(ids, table, padding, scale_grad_by_freq=bool(by_freq))
    dt, = s.grad(dy, table, y=y)
    k = int(torch.bincount(ids.reshape(-1), minlength=1).max()) if ids.numel() else 1
    s.emit("embedding_backward", {"dy": dy.reshape(-1, table.shape[1]), "ids": ids.reshape(-1)},
           {"V": table.shape[0], "padding_idx": padding, "scale_grad_by_freq": bool(by_freq)}, {"dTable": (dt, summed(k, top(dy) * k))})

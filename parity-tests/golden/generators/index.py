"""Gather and scatter."""
import math
import numpy as np
import torch
import torch.nn.functional as F
from core import EXACT, Tol, ULP32, ag, kernel, splice, summed
from conv import clean
from utility import bound
from binary import draw_domain, top

T5 = "index"


def index_values(c, shape, n, bad, unique=False, axis=0):
    if unique:
        v = np.argsort(c.rng.random((*shape[:axis], n, *shape[axis + 1:])), axis=axis)
        v = np.take(v, np.arange(shape[axis]), axis)
    else:
        v = c.integers(0, n, shape).numpy().copy()
    if bad is not None:
        v.reshape(-1)[-1] = bad
    return v


@kernel("T5.1", T5, "index_select", "x idx:idx", "y", {"axis": "required"})
def index_select(c, shape, n, axis, itype="i64", bad=None):
    x = c.x("x", *shape)
    c.out("y", torch.index_select(x, axis, c.idx("idx", index_values(c, (n,), shape[axis], bad), itype)), EXACT)


@kernel("T5.1", T5, "index_select_backward", "dy idx:idx", "dx", {"input_size": "required", "axis": "required"})
def index_select_backward(c, shape, n, axis, itype="i64"):
    c.arg("input_size", list(shape))
    ds = list(shape)
    ds[axis] = n
    dy = c.x("dy", *ds)
    i = c.idx("idx", index_values(c, (n,), shape[axis], None), itype)
    x = torch.zeros(*shape, dtype=dy.dtype)
    c.out("dx", x.index_add(axis, i, dy), summed(n, top(dy) * n))


@kernel("T5.2", T5, "gather", "x idx:idx", "y", {"axis": "required"})
def gather(c, shape, idx, axis, itype="i64", bad=None):
    "idx has the rank of x and at most its size on the other axes"
    x = c.x("x", *shape)
    c.out("y", torch.gather(x, axis, c.idx("idx", index_values(c, tuple(idx), shape[axis], bad), itype)), EXACT)


@kernel("T5.2", T5, "gather_backward", "dy idx:idx", "dx", {"input_size": "required", "axis": "required"})
def gather_backward(c, shape, idx, axis, itype="i64"):
    c.arg("input_size", list(shape))
    dy = c.x("dy", *idx)
    i = c.idx("idx", index_values(c, tuple(idx), shape[axis], None), itype)
    c.out("dx", torch.zeros(*shape, dtype=dy.dtype).scatter_add(axis, i, dy), summed(idx[axis], top(dy) * idx[axis]))


@kernel("T5.3", T5, "scatter", "x idx:idx src", "y", {"axis": "required"})
def scatter(c, shape, idx, axis, itype="i64", bad=None, dup=False):
    "duplicates: the last position in row-major order wins"
    x = c.x("x", *shape)
    v = index_values(c, tuple(idx), shape[axis], bad, not dup, axis)
    i = c.idx("idx", v, itype)
    src = c.x("src", *idx)
    y = x.clone()
    for pos in np.ndindex(*idx):
        q = list(pos)
        q[axis] = int(i[pos])
        y[tuple(q)] = src[pos]
    if not dup:
        assert torch.equal(y, x.scatter(axis, i, src))
    c.out("y", y, EXACT)


@kernel("T5.3", T5, "scatter_backward", "dy idx:idx", "dx dsrc", {"axis": "required"})
def scatter_backward(c, shape, idx, axis, itype="i64"):
    dy = c.x("dy", *shape)
    i = c.idx("idx", index_values(c, tuple(idx), shape[axis], None, True, axis), itype)
    x, s = torch.zeros(*shape, dtype=dy.dtype, requires_grad=True), torch.zeros(*idx, dtype=dy.dtype, requires_grad=True)
    for n, g in zip(("dx", "dsrc"), ag(x.scatter(axis, i, s), [x, s], dy)):
        c.out(n, g, EXACT)


@kernel("T5.4", T5, "scatter_reduce", "x idx:idx src", "y", {"axis": "required", "reduce": "required", "include_self": True})
def scatter_reduce(c, shape, idx, axis, reduce, include_self=True, itype="i64", bad=None, special=None):
    "reduce sum, prod, mean, amax or amin"
    x = c.x("x", *shape)
    i = c.idx("idx", index_values(c, tuple(idx), shape[axis], bad), itype)
    src = c.x("src", *idx, special=special)
    y = x.scatter_reduce(axis, i, src, reduce, include_self=include_self)
    k = idx[axis] + 1
    t = EXACT if reduce in ("amax", "amin") else Tol((8 + k) * ULP32, 1e-30) if reduce == "prod" else \
        summed(k, clean(x).scatter_reduce(axis, i, clean(src), "sum", include_self=True))
    c.out("y", y, t)


@kernel("T5.4", T5, "scatter_reduce_backward", "dy x idx:idx src y", "dx dsrc", {"axis": "required", "reduce": "required", "include_self": True})
def scatter_reduce_backward(c, shape, idx, axis, reduce, include_self=True, itype="i64"):
    "y is the forward result; amax and amin share the gradient between equal values"
    dy, x = c.x("dy", *shape), c.var("x", *shape)
    i = c.idx("idx", index_values(c, tuple(idx), shape[axis], None), itype)
    s = c.putv("src", draw_domain(c, idx, "nonzero"))
    y = x.scatter_reduce(axis, i, s, reduce, include_self=include_self)
    y64 = x.detach().double().scatter_reduce(axis, i, s.detach().double(), reduce, include_self=include_self)
    c.put("y", y64)
    for n, g in zip(("dx", "dsrc"), ag(y, [x, s], dy)):
        c.out(n, g, EXACT if reduce in ("amax", "amin", "sum") else Tol(1e-5, 1e-6))


def rows_shape(shape, n, axis):
    s = list(shape)
    s[axis] = n
    return s


@kernel("T5.5", T5, "index_add", "x idx:idx src", "y", {"axis": "required", "alpha": 1})
def index_add(c, shape, n, axis, alpha=1, itype="i64", bad=None):
    x = c.x("x", *shape)
    i = c.idx("idx", index_values(c, (n,), shape[axis], bad), itype)
    s = c.x("src", *rows_shape(shape, n, axis))
    c.out("y", x.index_add(axis, i, s, alpha=alpha), summed(n + 1, clean(x).index_add(axis, i, clean(s), alpha=abs(alpha))))


@kernel("T5.5", T5, "index_copy", "x idx:idx src", "y", {"axis": "required"})
def index_copy(c, shape, n, axis, itype="i64", bad=None):
    "indices without duplicates"
    x = c.x("x", *shape)
    v = c.rng.permutation(shape[axis])[:n].copy()
    if bad is not None:
        v[-1] = bad
    i = c.idx("idx", v, itype)
    c.out("y", x.index_copy(axis, i, c.x("src", *rows_shape(shape, n, axis))), EXACT)


@kernel("T5.5", T5, "index_fill", "x idx:idx", "y", {"axis": "required", "value": "required"})
def index_fill(c, shape, n, axis, value, itype="i64", bad=None):
    x = c.x("x", *shape)
    c.out("y", x.index_fill(axis, c.idx("idx", index_values(c, (n,), shape[axis], bad), itype), value), EXACT)


@kernel("T5.6", T5, "index_put", "x idx*:idx v", "y", {"accumulate": False})
def index_put(c, shape, idx, accumulate=False, itype="i64", bad=None):
    "index tensors idx0, idx1, ... address the leading axes and broadcast together; v has the broadcast shape + the remaining axes"
    x = c.x("x", *shape)
    bc = torch.broadcast_shapes(*map(tuple, idx))
    if accumulate:
        ix = [index_values(c, tuple(s), shape[a], None) for a, s in enumerate(idx)]
    else:                                                 # distinct cells: a permutation on axis 0, which must have the broadcast shape
        n = math.prod(bc)
        ix = [c.rng.permutation(shape[0])[:n].reshape(bc)] + [index_values(c, tuple(s), shape[a + 1], None) for a, s in enumerate(idx[1:])]
    if bad is not None:
        ix[0].reshape(-1)[0] = bad
    ts = tuple(c.idx(f"idx{a}", v, itype) for a, v in enumerate(ix))
    v = c.x("v", *bc, *shape[len(idx):])
    y = x.index_put(ts, v, accumulate)
    c.out("y", y, EXACT if not accumulate else summed(math.prod(bc) + 1, top(x) + top(v) * math.prod(bc)))


@kernel("T5.7", T5, "masked_fill", "x c:u8", "y", {"value": "required"})
def masked_fill(c, shape, cs, value):
    x = c.x("x", *shape)
    c.out("y", x.masked_fill(c.mask("c", c.uni(*cs) < 0.4), bound(value)), EXACT)


@kernel("T5.7", T5, "masked_fill_backward", "dy c:u8", "dx")
def masked_fill_backward(c, shape):
    dy = c.x("dy", *shape)
    c.out("dx", dy.masked_fill(c.mask("c", c.uni(*shape) < 0.4), 0.0), EXACT)


@kernel("T5.7", T5, "masked_scatter", "x c:u8 src", "y")
def masked_scatter(c, shape, extra=2):
    "a source shorter than the number of true cells is an index error (the mask is device data)"
    x = c.x("x", *shape)
    m = c.mask("c", c.uni(*shape) < 0.4)
    n = int(m.sum()) + extra
    src = c.x("src", max(n, 0))
    c.out("y", x.masked_scatter(m, src), EXACT)


@kernel("T5.8", T5, "masked_select", "x c:u8", "y count:i64", {"capacity": "required"})
def masked_select(c, shape, density=0.4, spare=3):
    "y: the first count entries of the output buffer of `capacity` elements; count is a scalar tensor"
    x = c.x("x", *shape)
    m = c.mask("c", c.uni(*shape) < density)
    y = x.masked_select(m)
    c.arg("capacity", y.numel() + spare)
    c.out("y", y, EXACT)
    c.out("count", torch.tensor(y.numel()), kind="i64")


@kernel("T5.8", T5, "masked_select_backward", "dy c:u8", "dx")
def masked_select_backward(c, shape, density=0.4):
    m = c.uni(*shape) < density
    dy = c.x("dy", int(m.sum()))
    m = c.mask("c", m)
    c.out("dx", torch.zeros(*shape, dtype=dy.dtype).masked_scatter(m, dy), EXACT)


@kernel("T5.8", T5, "nonzero", "x", "idx:i64 count:i64", {"capacity": "required"})
def nonzero(c, shape, density=0.4, spare=3, special=None):
    "idx [count, rank] i64 in row-major order (first count rows of the buffer)"
    x = c.put("x", splice(torch.where(c.uni(*shape) < density, c.rnd(*shape), torch.zeros(1)), special))
    i = torch.nonzero(x)
    c.arg("capacity", i.shape[0] + spare)
    c.out("idx", i, kind="i64")
    c.out("count", torch.tensor(i.shape[0]), kind="i64")


@kernel("T5.9", T5, "one_hot", "ids:idx", "y", {"C": "required", "to": "f32"})
def one_hot(c, ids, C, to="f32", itype="i64", bad=None):
    "to: f32 or u8"
    i = c.idx("ids", index_values(c, tuple(ids), C, bad), itype)
    y = F.one_hot(i, C)
    c.out("y", y.double() if to == "f32" else y, EXACT, None if to == "f32" else "u8")


@kernel("T5.10 T6.2", T5, "strided_copy copy_strided", "x", "y")
def strided_copy(c, shape):
    "makes a contiguous copy of a strided input"
    c.out("y", c.x("x", *shape), EXACT)

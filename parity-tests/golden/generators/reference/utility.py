"""Second formulas of embedding and utility."""
import numpy as np
from reference.base import R, ref
from reference.attention import keepmask
from reference.loss import nrm


@ref("embedding_forward")
def _(a, v):
    t = v.table.copy()
    if a.max_norm is not None:
        for i in set(v.ids.reshape(-1).tolist()):
            n = nrm(t[i])
            if n > a.max_norm:
                t[i] *= a.max_norm / n
    return {"y": t[v.ids], "table": t}


@ref("embedding_backward")
def _(a, v):
    d = np.zeros((a.V, v.dy.shape[1]))
    for i, g in zip(v.ids, v.dy):
        if i != a.padding_idx:
            d[i] += g / ((v.ids == i).sum() if a.scale_grad_by_freq else 1)
    return {"dTable": d}


R("gather_kernel", lambda a, v: {"y": v.src[v.idx]})


@ref("scatter_add_kernel")
def _(a, v):
    d = v.dst.copy()
    for i, s in zip(v.idx, v.src):
        d[i] += s
    return {"dst": d}


R("transpose_2d", lambda a, v: {"y": v.x.T})
R("batched_transpose", lambda a, v: {"y": v.x.swapaxes(1, 2)})
R("permute_general", lambda a, v: {"y": v.x.transpose(a.perm)})


@ref("copy_buffer")
def _(a, v):
    d = v.dst.copy()
    d[a.dst_offset:a.dst_offset + a.count] = v.src[a.src_offset:a.src_offset + a.count]
    return {"dst": d}


def rounded(x, dt):
    "round a float64 array to a storage type and back"
    if dt == "f32":
        return np.float64(np.float32(x))
    if dt == "f16":
        return np.float64(np.float16(x))
    if dt == "bf16":
        f = np.asarray(x, dtype=np.float32)
        b = f.view(np.uint32).astype(np.uint64)
        r = ((b + 0x7FFF + ((b >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(f), f, r).astype(np.float64)
    return np.asarray(x)


def num(x):
    return float(x) if isinstance(x, str) else x


R("fill_buffer full", lambda a, v: {"y": np.full(a.shape, rounded(num(a.value), v["_dtype"]))})


def drop(x, a):
    k = keepmask(x.size, a, a.p).reshape(x.shape)
    with np.errstate(all="ignore"):
        return np.where(k, x / (1 - a.p) if a.p < 1 else 0, 0.0), k


R("dropout_forward", lambda a, v: dict(zip(("y", "mask"), drop(v.x, a))))
R("dropout_backward", lambda a, v: {"dx": drop(v.dy, a)[0] if v.mask is None else np.where(v.mask, v.dy / (1 - a.p), 0)})


@ref("clamp")
def _(a, v):
    y = v.x
    with np.errstate(invalid="ignore"):
        for lo, hi in ((v.lo if v.lo is not None else num(a.lo), v.hi if v.hi is not None else num(a.hi)),):
            y = y if lo is None else np.maximum(y, lo)
            y = y if hi is None else np.minimum(y, hi)
    return {"y": y}


@ref("clamp_backward")
def _(a, v):
    lo = v.lo if v.lo is not None else (-np.inf if a.lo is None else a.lo)
    hi = v.hi if v.hi is not None else (np.inf if a.hi is None else a.hi)
    return {"dx": np.where((v.x > lo) & (v.x < hi), v.dy, 0), "dlo": np.where(v.x < lo, v.dy, 0), "dhi": np.where(v.x > hi, v.dy, 0)}


def to_shape(t, shape):
    shape = tuple(shape)
    t = t.sum(tuple(range(t.ndim - len(shape)))) if t.ndim > len(shape) else t
    ax = tuple(i for i, (p, q) in enumerate(zip(t.shape, shape)) if p != q)
    return t.sum(ax, keepdims=True) if ax else t


R("where_cond", lambda a, v: {"y": np.where(v.c.astype(bool), v.a, v.b)})
R("where_cond_backward", lambda a, v: {"da": to_shape(np.where(v.c.astype(bool), v.dy, 0), a.a_shape), "db": to_shape(np.where(v.c.astype(bool), 0, v.dy), a.b_shape)})


def argm(x, axis, f):
    return f(x, axis)                       # numpy: first extreme, first NaN wins


R("argmax_axis", lambda a, v: {"y": np.argmax(v.x, a.axis)})
R("argmin_axis", lambda a, v: {"y": np.argmin(v.x, a.axis)})
R("reduce_sum", lambda a, v: {"y": np.sum(v.x if v.x.dtype.kind == "f" else v.x.astype(np.int64), tuple(a.axes), keepdims=a.keepdim)})


def unreduce(t, shape, axes, keepdim):
    if not keepdim:
        for ax in sorted(x % len(shape) for x in axes):
            t = np.expand_dims(t, ax)
    return t


R("reduce_sum_backward", lambda a, v: {"dx": np.broadcast_to(unreduce(v.dy, a.input_size, a.axes, a.keepdim), a.input_size)})


def extreme(f, af):
    def g(a, v):
        r = {"y": f(v.x, axis=tuple(a.axes), keepdims=a.keepdim)}
        if a.with_indices:
            i = af(v.x, a.axes[0])
            r["idx"] = np.expand_dims(i, a.axes[0]) if a.keepdim else i
        return r
    return g


R("reduce_max", extreme(np.max, np.argmax))
R("reduce_min", extreme(np.min, np.argmin))


@ref("reduce_max_backward reduce_min_backward")
def _(a, v):
    y, d = (unreduce(t, v.x.shape, a.axes, a.keepdim) for t in (v.y, v.dy))
    hit = v.x == y
    return {"dx": hit * d / hit.sum(tuple(a.axes), keepdims=True)}


@ref("reduce_max_index_backward")
def _(a, v):
    d = np.zeros(a.input_size)
    np.put_along_axis(d, np.expand_dims(v.idx, a.axis), np.expand_dims(v.dy, a.axis), a.axis)
    return {"dx": d}

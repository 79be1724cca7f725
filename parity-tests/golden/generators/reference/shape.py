"""Second formulas of movement: the gradient is the transposed index map."""
import math
import numpy as np
from reference.base import NS, R, ref


def sl(a, n):
    return slice(a.start, a.end, a.step)


def take(x, axis, s):
    ix = [slice(None)] * x.ndim
    ix[axis] = s
    return x[tuple(ix)]


NPMODE = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def npad(a, x):
    k = len(a.pad) // 2
    w = [(0, 0)] * (x.ndim - k) + [(a.pad[2 * i], a.pad[2 * i + 1]) for i in range(k)][::-1]
    crop = tuple(slice(max(0, -p), n - max(0, -q)) for (p, q), n in zip(w, x.shape))
    w = [(max(0, p), max(0, q)) for p, q in w]
    kw = {"constant_values": a.value} if a.mode == "constant" and a.value else {}
    return np.pad(x[crop], w, NPMODE[a.mode], **kw)


def pixel(x, r):
    *b, c, h, w = x.shape
    t = x.reshape(*b, c // (r * r), r, r, h, w)
    n = len(b)
    return t.transpose(*range(n + 1), n + 3, n + 1, n + 4, n + 2).reshape(*b, c // (r * r), h * r, w * r)


def unpixel(x, r):
    *b, c, h, w = x.shape
    t = x.reshape(*b, c, h // r, r, w // r, r)
    n = len(b)
    return t.transpose(*range(n + 1), n + 2, n + 4, n + 1, n + 3).reshape(*b, c * r * r, h // r, w // r)


def demb(x, k):
    n = x.shape[-1] + abs(k)
    y = np.zeros(x.shape[:-1] + (n, n), x.dtype)
    for i in range(x.shape[-1]):
        y[..., i + max(0, -k), i + max(0, k)] = x[..., i]
    return y


MOVE = {"reshape": lambda a, x: x.reshape(a.shape), "expand": lambda a, x: np.broadcast_to(x, a.shape), "squeeze": lambda a, x: np.squeeze(x, tuple(i for i in a.axes if x.shape[i] == 1)),
        "slice": lambda a, x: take(x, a.axis, sl(a, 0)), "repeat": lambda a, x: np.tile(x, a.repeats), "flip": lambda a, x: np.flip(x, a.axes), "roll": lambda a, x: np.roll(x, a.shifts, a.axes),
        "pad": npad, "unfold_windows": lambda a, x: np.lib.stride_tricks.sliding_window_view(x, a.size, a.axis)[(slice(None),) * a.axis + (slice(None, None, a.step),)],
        "tril": lambda a, x: np.tril(x, a.k), "triu": lambda a, x: np.triu(x, a.k), "diag": lambda a, x: np.diag(x, a.k), "diag_embed": lambda a, x: demb(x, a.k),
        "diagonal": lambda a, x: np.diagonal(x, a.k, a.axis1, a.axis2), "pixel_shuffle": lambda a, x: pixel(x, a.r), "pixel_unshuffle": lambda a, x: unpixel(x, a.r),
        "channel_shuffle": lambda a, x: x.reshape(x.shape[0], a.groups, -1, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)}


def mover(f):
    def b(a, v):
        n = math.prod(a.input_size)
        ids = (np.arange(n) + 1).reshape(a.input_size)          # 0 marks padding
        w = NS(a)
        w["value"] = 0
        m = np.asarray(f(w, ids)).reshape(-1)
        d = np.zeros(n + 1)
        np.add.at(d, m, v.dy.reshape(-1))
        return {"dx": d[1:].reshape(a.input_size)}
    return b


for _n, _f in MOVE.items():
    R(_n, lambda a, v, f=_f: {"y": f(a, v.x)})
    if _n != "squeeze":
        R(_n + "_backward", mover(_f))


@ref("set_slice")
def _(a, v):
    y = v.y.copy()
    n = v.v.shape[a.axis]
    for i in range(n):
        ix = [slice(None)] * y.ndim
        ix[a.axis] = a.start + i * a.step
        y[tuple(ix)] = take(v.v, a.axis, i)
    return {"y": y}


@ref("set_slice_backward")
def _(a, v):
    ii = [a.start + i * a.step for i in range(a.n)]
    b = v.dy.copy()
    ix = [slice(None)] * b.ndim
    ix[a.axis] = ii
    dv = b[tuple(ix)].copy()
    b[tuple(ix)] = 0
    return {"dbase": b, "dv": dv}


xs_ = lambda v, p="x": [v[f"{p}{i}"] for i in range(sum(k.startswith(p) and k[len(p):].isdigit() for k in v))]
R("concat", lambda a, v: {"y": np.concatenate(xs_(v), a.axis)})
cuts = lambda s: np.cumsum(s)[:-1]
R("concat_backward", lambda a, v: {f"dx{i}": t for i, t in enumerate(np.split(v.dy, cuts(a.sizes), a.axis))})
R("split", lambda a, v: {f"y{i}": t for i, t in enumerate(np.split(v.x, cuts(a.sizes), a.axis))})
R("stack", lambda a, v: {"y": np.stack(xs_(v), a.axis)})
R("unstack", lambda a, v: {f"y{i}": take(v.x, a.axis, i) for i in range(v.x.shape[a.axis])})
R("repeat_interleave", lambda a, v: {"y": np.repeat(v.x, v.counts if v.counts is not None else a.repeats, a.axis)})


@ref("repeat_interleave_backward")
def _(a, v):
    c = v.counts if v.counts is not None else [a.repeats] * a.input_size[a.axis]
    st = np.concatenate([[0], np.cumsum(c)])
    return {"dx": np.stack([take(v.dy, a.axis, slice(int(st[i]), int(st[i + 1]))).sum(a.axis) for i in range(len(c))], a.axis)}


R("eye", lambda a, v: {"y": np.eye(a.n, a.m or a.n)})
R("meshgrid", lambda a, v: {f"y{i}": t for i, t in enumerate(np.meshgrid(*xs_(v), indexing=a.indexing))})


@ref("cartesian_prod")
def _(a, v):
    import itertools
    return {"y": np.array(list(itertools.product(*xs_(v))))}

"""Movement."""
import torch
import torch.nn.functional as F
from core import EXACT, ag, kernel, summed
from conv import clean
from binary import INTS, ints, top

T4 = "shape"


def move(row, name, args=None, back=True, ins="x", outs="y"):
    """movement kernels: fn(x, **args); the backward case feeds dy and the shape of x"""
    args = args or {}

    def deco(fn):
        def forward(c, shape, special=None, x=None, **a):
            shape, a = (shape, a) if x is None else (x, {**a, "shape": shape})       # x: shape of the input where `shape` is an argument
            if c.dtype in INTS:
                x = c.raw("x", ints(c, shape))
                return c.out("y", fn(x, **{**args, **a}), kind=c.dtype)
            x = c.x("x", *shape, special=special)
            c.out("y", fn(x, **{**args, **a}), EXACT)
        forward.__doc__ = fn.__doc__
        kernel(row, T4, name, "x", "y", args)(forward)
        if back:
            def backward(c, shape, x=None, **a):
                shape, a = (shape, a) if x is None else (x, {**a, "shape": shape})
                c.arg("input_size", list(shape))
                X = torch.zeros(*shape, dtype=c.compute, requires_grad=True)
                y = fn(X, **{**args, **a})
                dy = c.x("dy", *y.shape)

                def run(dy):
                    X = torch.zeros(*shape, dtype=dy.dtype, requires_grad=True)
                    return ag(fn(X, **{**args, **a}), [X], dy)[0]
                k = max(1, -(-dy.numel() // max(1, X.numel())))
                ones = run(torch.ones_like(clean(dy)))
                c.out("dx", run(dy), EXACT if not ones.numel() or ones.max() <= 1 else summed(int(ones.max()), run(clean(dy))))
            kernel(row, T4, name + "_backward", "dy", "dx", {"input_size": "required", **args})(backward)
        return fn
    return deco


@move("T4.1", "reshape", {"shape": "required"})
def reshape(x, shape):
    "shape may hold one -1"
    return x.reshape(shape)


@move("T4.1", "expand", {"shape": "required"})
def expand(x, shape):
    return x.expand(shape)


@move("T4.1", "squeeze", {"axes": "required"}, back=False)
def squeeze(x, axes):
    return x.squeeze(tuple(axes))


@move("T4.2", "slice", {"axis": "required", "start": 0, "end": None, "step": 1})
def slice_(x, axis, start=0, end=None, step=1):
    "elements start, start+step, ... < end along axis; needs 0 <= start <= end <= size"
    n = x.shape[axis]
    end = n if end is None else end
    if step < 1 or not 0 <= start <= end <= n:
        raise ValueError("range")
    ix = [slice(None)] * x.dim()
    ix[axis] = slice(start, end, step)
    return x[tuple(ix)]


@kernel("T4.3", T4, "set_slice", "y v", "y", {"axis": "required", "start": 0, "step": 1})
def set_slice(c, shape, n, axis, start=0, step=1):
    "writes v (n entries along axis) into y at start, start+step, ..."
    vs = list(shape)
    vs[axis] = n
    y, v = c.x("y", *shape).clone(), c.x("v", *vs)
    ix = [slice(None)] * len(shape)
    ix[axis] = slice(start, start + (n - 1) * step + 1 if n else start, step)
    if n and start + (n - 1) * step >= shape[axis]:
        raise ValueError("range")
    y[tuple(ix)] = v
    c.out("y", y, EXACT)


@kernel("T4.3", T4, "set_slice_backward", "dy", "dbase dv", {"axis": "required", "start": 0, "step": 1, "n": "required"})
def set_slice_backward(c, shape, n, axis, start=0, step=1):
    dy = c.x("dy", *shape)
    ix = [slice(None)] * len(shape)
    ix[axis] = slice(start, start + (n - 1) * step + 1, step)
    base = dy.clone()
    base[tuple(ix)] = 0
    c.out("dbase", base, EXACT)
    c.out("dv", dy[tuple(ix)], EXACT)


@kernel("T4.4", T4, "concat", "x*", "y", {"axis": "required"})
def concat(c, shapes, axis):
    c.out("y", torch.cat([c.x(f"x{i}", *s) for i, s in enumerate(shapes)], axis), EXACT)


@kernel("T4.4", T4, "concat_backward", "dy", "dx*", {"axis": "required", "sizes": "required"})
def concat_backward(c, shape, axis, sizes):
    dy = c.x("dy", *shape)
    for i, p in enumerate(torch.split(dy, sizes, axis)):
        c.out(f"dx{i}", p, EXACT)


@kernel("T4.5", T4, "split", "x", "y*", {"axis": "required", "sizes": "required"})
def split(c, shape, axis, sizes):
    for i, p in enumerate(torch.split(c.x("x", *shape), sizes, axis)):
        c.out(f"y{i}", p, EXACT)


@kernel("T4.5", T4, "stack", "x*", "y", {"axis": 0})
def stack(c, shape, n, axis=0, bad=False):
    c.out("y", torch.stack([c.x(f"x{i}", *(shape if not (bad and i) else list(shape) + [1])) for i in range(n)], axis), EXACT)


@kernel("T4.5", T4, "unstack", "x", "y*", {"axis": 0})
def unstack(c, shape, axis=0):
    for i, p in enumerate(torch.unbind(c.x("x", *shape), axis)):
        c.out(f"y{i}", p, EXACT)


@move("T4.6", "repeat", {"repeats": "required"})
def repeat(x, repeats):
    "tile; one count per axis"
    return x.repeat(*repeats)


@kernel("T4.6", T4, "repeat_interleave", "x counts:i32?", "y", {"axis": "required", "repeats": None})
def repeat_interleave(c, shape, axis, repeats=None, counts=None):
    "repeats: one number; counts: i32 per element of the axis"
    x = c.x("x", *shape)
    if counts is not None:
        repeats = c.idx("counts", counts, "i32")
    c.out("y", torch.repeat_interleave(x, repeats, axis), EXACT)


@kernel("T4.6", T4, "repeat_interleave_backward", "dy counts:i32?", "dx", {"input_size": "required", "axis": "required", "repeats": None})
def repeat_interleave_backward(c, shape, axis, repeats=None, counts=None):
    c.arg("input_size", list(shape))
    n = sum(counts) if counts is not None else repeats * shape[axis]
    ds = list(shape)
    ds[axis] = n
    dy = c.x("dy", *ds)
    r = c.idx("counts", counts, "i32") if counts is not None else repeats
    x = torch.zeros(*shape, dtype=dy.dtype, requires_grad=True)
    k = max(counts) if counts is not None else repeats
    c.out("dx", ag(torch.repeat_interleave(x, r, axis), [x], dy)[0], summed(k, top(dy) * k))


@move("T4.7", "flip", {"axes": "required"})
def flip(x, axes):
    return torch.flip(x, axes)


@move("T4.7", "roll", {"shifts": "required", "axes": "required"})
def roll(x, shifts, axes):
    return torch.roll(x, shifts, axes)


@move("T4.8", "pad", {"pad": "required", "mode": "constant", "value": 0.0})
def pad(x, pad, mode="constant", value=0.0):
    "pad = [before, after] pairs flattened, LAST axis first (torch order), for the last len(pad)/2 axes; negative crops"
    k = len(pad) // 2
    if mode == "constant":
        return F.pad(x, pad, mode, value)
    lead = x.shape[:x.dim() - k]                        # F.pad wants one or two leading axes
    y = F.pad(x.reshape(1, -1, *x.shape[x.dim() - k:]), pad, mode)
    return y.reshape(*lead, *y.shape[2:])


@move("T4.9", "unfold_windows", {"axis": "required", "size": "required", "step": 1})
def unfold_windows(x, axis, size, step=1):
    "the window axis is appended last"
    return x.unfold(axis, size, step)


@move("T4.10", "tril", {"k": 0})
def tril(x, k=0):
    return torch.tril(x, k)


@move("T4.10", "triu", {"k": 0})
def triu(x, k=0):
    return torch.triu(x, k)


@move("T4.10", "diag", {"k": 0})
def diag(x, k=0):
    "vector to matrix or matrix to vector"
    return torch.diag(x, k)


@move("T4.10", "diag_embed", {"k": 0})
def diag_embed(x, k=0):
    return torch.diag_embed(x, k)


@move("T4.10", "diagonal", {"k": 0, "axis1": 0, "axis2": 1})
def diagonal(x, k=0, axis1=0, axis2=1):
    "the diagonal becomes the last axis"
    return torch.diagonal(x, k, axis1, axis2)


@kernel("T4.10", T4, "eye", "", "y", {"n": "required", "m": None})
def eye(c, n, m=None):
    c.out("y", torch.eye(n, m or n), EXACT)


@move("T4.11", "pixel_shuffle", {"r": "required"})
def pixel_shuffle(x, r):
    return F.pixel_shuffle(x, r)


@move("T4.11", "pixel_unshuffle", {"r": "required"})
def pixel_unshuffle(x, r):
    return F.pixel_unshuffle(x, r)


@move("T4.11", "channel_shuffle", {"groups": "required"})
def channel_shuffle(x, groups):
    assert x.shape[1] % groups == 0
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


@kernel("T4.12", T4, "meshgrid", "x*", "y*", {"indexing": "ij"})
def meshgrid(c, sizes, indexing="ij"):
    for i, g in enumerate(torch.meshgrid(*[c.x(f"x{i}", n) for i, n in enumerate(sizes)], indexing=indexing)):
        c.out(f"y{i}", g, EXACT)


@kernel("T4.12", T4, "cartesian_prod", "x*", "y")
def cartesian_prod(c, sizes):
    c.out("y", torch.cartesian_prod(*[c.x(f"x{i}", n) for i, n in enumerate(sizes)]), EXACT)

"""Views, copies, joins, padding, creation."""
import torch
from core import EXACT, REGISTRY, TORCH, Tol, ULP32, summed, ulp
from harness import Skip, maps
from conv import clean

SUITE = "movement"


def moved(s, kernel, args, x=None, y=None, back=True):
    "a copy by `kernel`, and its gradient where that has a kernel: sums of the elements of dy that came from one place"
    x, y = s.x if x is None else x, s.y if y is None else y
    s.emit(kernel, {"x": x}, args, {"y": y})
    if back and kernel + "_backward" in REGISTRY and s.x.numel():
        dy = s.grad_like(y)
        dx, = s.grad(dy, s.x, y=y)
        ones, = s.grad(torch.ones_like(y), s.x, y=y)
        n = int(ones.max()) if ones.numel() else 1
        mag, = s.grad(clean(dy).to(y.dtype), s.x, y=y)
        s.emit(kernel + "_backward", {"dy": dy}, {"input_size": list(x.shape), **args},
               {"dx": (dx.reshape(x.shape), EXACT if n <= 1 else summed(n, mag))})


# ------------------------------------------------------------------------------------------------ the same elements in another shape
@maps(SUITE, "reshape view view_copy reshape_as view_as ravel flatten unflatten unsqueeze unsqueeze_copy atleast_1d atleast_2d atleast_3d "
             "resolve_conj resolve_neg")
def reshape(s):
    if not isinstance(s.x, torch.Tensor) or isinstance(s.y, (tuple, list)):
        raise Skip("a list of tensors")
    moved(s, "reshape", {"shape": list(s.y.shape)})


@maps(SUITE, "squeeze squeeze_copy squeeze.multiple")
def squeeze(s):
    dim, = s.bind("dim")
    dims = range(s.x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    axes = sorted({d % s.x.dim() for d in dims if s.x.shape[d] == 1})
    moved(s, "squeeze", {"axes": axes})


@maps(SUITE, "expand expand_as expand_copy broadcast_to")
def expand(s):
    moved(s, "expand", {"shape": list(s.y.shape)})


@maps(SUITE, "clone contiguous positive alias_copy")
def copy(s):
    s.emit("strided_copy", {"x": s.x}, {}, {"y": s.y})


@maps(SUITE, "as_strided as_strided_copy select narrow T H mT mH t real __getitem__")
def view(s):
    "the result is a strided view of the input, which the kernel copies"
    y = torch.as_strided(s.x.detach(), *s.args, **s.kw) if s.op.name.startswith("as_strided") else s.y
    if y.untyped_storage().data_ptr() != s.x.untyped_storage().data_ptr():
        raise Skip("an index that is no view")
    s.emit("strided_copy", {"x": y}, {}, {"y": y.detach().clone()})


@maps(SUITE, "narrow_copy t_copy")
def view_copy(s):
    x = s.x.t() if s.op.name == "t_copy" else s.x.narrow(*s.args, **s.kw)
    s.emit("strided_copy", {"x": x}, {}, {"y": s.y})


def bare(x, dims):
    return [d % max(1, x.dim()) for d in dims]


@maps(SUITE, "permute permute_copy transpose transpose_copy movedim")
def permute(s):
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    mark = torch.empty([3 + i for i in range(s.x.dim())], device="meta")
    perm = [n - 3 for n in (torch.movedim if s.op.name == "movedim" else getattr(torch, s.op.name.replace("_copy", "")))(mark, *s.args, **s.kw).shape]
    s.emit("permute_general", {"x": s.x}, {"perm": perm}, {"y": s.y})


@maps(SUITE, "slice")
def slice_(s):
    axis, start, end, step = s.bind("dim start end step", dim=0, start=0, step=1)
    n = s.x.shape[axis]
    start, end, _ = slice(start, end, step).indices(n)
    moved(s, "slice", {"axis": axis, "start": start, "end": max(start, end), "step": step})


@maps(SUITE, "select_scatter")
def scatter_slice(s):
    v, axis, at = s.bind("src dim index")
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    v, start, step = v.unsqueeze(axis), at % s.x.shape[axis], 1
    args = {"axis": axis, "start": start, "step": step}
    s.emit("set_slice", {"y": s.x, "v": v}, args, {"y": s.y})
    src = s.args[0]
    dy = s.grad_like(s.y)
    dbase, dv = s.grad(dy, s.x, src)
    s.emit("set_slice_backward", {"dy": dy}, {**args, "n": v.shape[axis]}, {"dbase": dbase, "dv": dv.reshape(v.shape)})


# ------------------------------------------------------------------------------------------------ joins and splits
@maps(SUITE, "cat hstack vstack dstack column_stack")
def cat(s):
    parts = list(s.x)
    at_least = {"hstack": torch.atleast_1d, "vstack": torch.atleast_2d, "dstack": torch.atleast_3d}.get(s.op.name, lambda t: t)
    parts = [t.reshape(-1, 1) if s.op.name == "column_stack" and t.dim() < 2 else at_least(t) for t in parts]
    axis = {"hstack": 0 if parts[0].dim() == 1 else 1, "vstack": 0, "dstack": 2, "column_stack": 1}.get(s.op.name)
    axis = s.bind("dim", dim=0)[0] if axis is None else axis
    if len({(t.dim(), t.dtype) for t in parts}) > 1:
        raise Skip("tensors of different rank or type")
    s.emit("concat", {f"x{i}": t for i, t in enumerate(parts)}, {"axis": axis}, {"y": s.y})
    dy, sizes = s.grad_like(s.y), [t.shape[axis] for t in parts]
    s.emit("concat_backward", {"dy": dy}, {"axis": axis, "sizes": sizes}, {f"dx{i}": g for i, g in enumerate(dy.split(sizes, axis))})


@maps(SUITE, "stack")
def stack(s):
    s.emit("stack", {f"x{i}": t for i, t in enumerate(s.x)}, {"axis": s.bind("dim", dim=0)[0] % s.y.dim()}, {"y": s.y})


@maps(SUITE, "unbind unbind_copy")
def unbind(s):
    s.emit("unstack", {"x": s.x}, {"axis": s.bind("dim", dim=0)[0] % s.x.dim()}, {f"y{i}": t for i, t in enumerate(s.y)})


@maps(SUITE, "split split.list_args split_with_sizes split_with_sizes_copy unsafe_split chunk unsafe_chunk tensor_split hsplit vsplit dsplit")
def split(s):
    axis = {"hsplit": 1 if s.x.dim() > 1 else 0, "vsplit": 0, "dsplit": 2}.get(s.op.name)
    axis = s.bind("sizes dim", dim=0)[1] if axis is None else axis
    if s.x.dim() == 0 or isinstance(s.args[0], torch.Tensor):
        raise Skip("split by a tensor, or of a scalar")
    s.emit("split", {"x": s.x}, {"axis": axis, "sizes": [t.shape[axis] for t in s.y]}, {f"y{i}": t for i, t in enumerate(s.y)})


@maps(SUITE, "meshgrid.variadic_tensors meshgrid.list_of_tensors cartesian_prod")
def grid(s):
    xs = list(s.x) if isinstance(s.x, (list, tuple)) else [s.x, *s.args]
    xs = [t for t in xs if isinstance(t, torch.Tensor)]
    kernel = s.op.name
    indexing = s.kw.get("indexing", "ij")
    if kernel == "meshgrid" and indexing == "xy" and len(xs) < 2:
        raise Skip("meshgrid of one vector with xy")
    ins = {f"x{i}": t.reshape(-1) for i, t in enumerate(xs)}
    if kernel == "cartesian_prod":
        if s.y.dim() != 2:
            raise Skip("cartesian_prod of one vector")
        return s.emit(kernel, ins, {}, {"y": s.y})
    s.emit(kernel, ins, {"indexing": indexing}, {f"y{i}": t for i, t in enumerate(s.y)})


@maps(SUITE, "broadcast_tensors")
def broadcast_tensors(s):
    for x, y in zip([s.x, *s.args], s.y):
        s.emit("expand", {"x": x}, {"shape": list(y.shape)}, {"y": y})


# ------------------------------------------------------------------------------------------------ repetition, order, triangles
@maps(SUITE, "repeat tile")
def repeat(s):
    r = list(s.args[0]) if isinstance(s.args[0], (tuple, list)) else list(s.args)
    if len(r) > s.x.dim():
        x = s.x.reshape([1] * (len(r) - s.x.dim()) + list(s.x.shape))
    else:
        x, r = s.x, [1] * (s.x.dim() - len(r)) + r
    if x.dim() == 0:
        raise Skip("repetition of a scalar")
    moved(s, "repeat", {"repeats": r}, x=x)


@maps(SUITE, "repeat_interleave")
def repeat_interleave(s):
    r, axis = s.bind("repeats dim")
    x = s.x if axis is not None else s.x.reshape(-1)
    axis = 0 if axis is None else axis
    if isinstance(r, torch.Tensor):
        if r.dim() == 0 or r.numel() != x.shape[axis]:
            raise Skip("one count for all elements, in a tensor")
        return s.emit("repeat_interleave", {"x": x, "counts": r}, {"axis": axis}, {"y": s.y})
    moved(s, "repeat_interleave", {"axis": axis, "repeats": r}, x=x)


@maps(SUITE, "flip fliplr flipud")
def flip(s):
    dims = {"fliplr": [1], "flipud": [0]}.get(s.op.name) or list(s.bind("dims")[0])
    if not dims:
        raise Skip("flip of no axis")
    moved(s, "flip", {"axes": bare(s.x, dims)})


@maps(SUITE, "roll")
def roll(s):
    shifts, dims = s.bind("shifts dims")
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims is None or dims == ():
        x = s.x.reshape(-1)
        return s.emit("roll", {"x": x}, {"shifts": shifts, "axes": [0]}, {"y": s.y.reshape(-1)})
    dims = [dims] if isinstance(dims, int) else list(dims)
    moved(s, "roll", {"shifts": shifts, "axes": bare(s.x, dims)})


@maps(SUITE, "fft.fftshift fft.ifftshift")
def fftshift(s):
    dims, = s.bind("dim")
    dims = list(range(s.x.dim())) if dims is None else [dims] if isinstance(dims, int) else list(dims)
    half = (lambda n: n // 2) if s.op.name == "fft.fftshift" else (lambda n: -(n // 2))
    moved(s, "roll", {"shifts": [half(s.x.shape[d]) for d in dims], "axes": bare(s.x, dims)})


@maps(SUITE, "tril triu")
def triangle(s):
    moved(s, s.op.name, {"k": s.bind("diagonal", diagonal=0)[0]})


@maps(SUITE, "diag")
def diag(s):
    moved(s, "diag", {"k": s.bind("diagonal", diagonal=0)[0]})


@maps(SUITE, "diagflat")
def diagflat(s):
    moved(s, "diag", {"k": s.bind("offset", offset=0)[0]}, x=s.x.reshape(-1))


@maps(SUITE, "diag_embed")
def diag_embed(s):
    k, a, b = s.bind("offset dim1 dim2", offset=0, dim1=-2, dim2=-1)
    rank = s.x.dim() + 1
    if (a % rank, b % rank) != (rank - 2, rank - 1):
        raise Skip("diagonals on other axes than the last two")
    moved(s, "diag_embed", {"k": k})


@maps(SUITE, "diagonal diagonal_copy linalg.diagonal")
def diagonal(s):
    last = s.op.name == "linalg.diagonal"
    k, a, b = s.bind("offset dim1 dim2", offset=0, dim1=-2 if last else 0, dim2=-1 if last else 1)
    moved(s, "diagonal", {"k": k, "axis1": a % s.x.dim(), "axis2": b % s.x.dim()})


@maps(SUITE, "unfold unfold_copy")
def unfold(s):
    axis, size, step = s.bind("dimension size step")
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")
    moved(s, "unfold_windows", {"axis": axis, "size": size, "step": step})


@maps(SUITE, "nn.functional.pad.constant nn.functional.pad.reflect nn.functional.pad.replicate nn.functional.pad.replicate_negative "
             "nn.functional.pad.circular constant_pad_nd")
def pad(s):
    if s.op.name == "constant_pad_nd":
        p, value = s.bind("pad value")
        mode = "constant"
    else:
        p, mode, value = s.bind("pad mode value", mode="constant")
    if mode == "circular" and min(p) < 0 < max(p):
        raise Skip("circular padding of mixed signs")
    if isinstance(value, bool) or (value is not None and float(torch.tensor(float(value)).to(TORCH[s.dtype])) != float(value)):
        raise Skip("a number that the storage type does not hold")
    moved(s, "pad", {"pad": list(p), "mode": mode, "value": float(value or 0.0)})


for _name, _arg in (("pixel_shuffle", "r"), ("pixel_unshuffle", "r"), ("channel_shuffle", "groups")):
    @maps(SUITE, "nn.functional." + _name)
    def shuffle(s, kernel=_name, arg=_arg):
        n, = s.bind({"pixel_shuffle": "upscale_factor", "pixel_unshuffle": "downscale_factor"}.get(kernel, "groups"))
        if s.x.dim() != 4:
            raise Skip("shuffle of a tensor that is not a batch of images")
        moved(s, kernel, {arg: n})


# ------------------------------------------------------------------------------------------------ creation
def made(s, kernel, args, y=None, tol=EXACT):
    s.emit(kernel, {}, args, {"y": ((s.y if y is None else y).to(s.compute), tol)})


def full(s, value):
    y = s.y
    if not y.is_floating_point() or float(torch.tensor(float(value)).to(TORCH[s.dtype])) != float(value):
        raise Skip("a number that the storage type does not hold")
    made(s, "full", {"shape": list(y.shape), "value": float(value)})


@maps(SUITE, "zeros zeros_like new_zeros zero_")
def zeros(s):
    "the result's type does not matter for zeros; zero_ changes its input, so it gets a copy"
    x = s.x.detach().clone() if isinstance(s.x, torch.Tensor) else s.x
    made(s, "zeros", {"shape": list(s.op.op(x, *s.args, **s.kw).shape)}, torch.zeros(s.op.op(x, *s.args, **s.kw).shape))


maps(SUITE, "ones ones_like new_ones")(lambda s: full(s, 1.0))
maps(SUITE, "full full_like new_full")(lambda s: full(s, s.args[-1]))


@maps(SUITE, "fill")
def fill(s):
    v, = s.bind("value")
    s.emit("full", {}, {"shape": list(s.x.shape), "value": float(v)},
           {"y": torch.full_like(s.x.detach(), float(torch.tensor(float(v)).to(TORCH[s.dtype])))})


@maps(SUITE, "eye")
def eye(s):
    m, = s.bind("m") if "m" in s.kw or s.args else [None]
    made(s, "eye", {"n": s.x, "m": m})


@maps(SUITE, "arange")
def arange(s):
    a = [s.x, *s.args]
    start, end, step = (0, a[0], 1) if len(a) == 1 else (a[0], a[1], a[2] if len(a) > 2 else 1)
    y = torch.arange(start, end, step, dtype=s.compute)
    made(s, "arange", {"start": start, "end": end, "step": step}, y, ulp(2))


@maps(SUITE, "linspace", ("f32",))
def linspace(s):
    end, n, dtype, _ = s.bind("end steps dtype device")
    if dtype not in (None, torch.float32) or isinstance(s.x, complex) or isinstance(end, complex):
        raise Skip("another type")
    y = torch.linspace(s.x, end, n, dtype=s.compute)
    made(s, "linspace", {"start": float(s.x), "end": float(end), "n": n}, y, Tol(ULP32, 1.5 * ULP32 * max(abs(s.x), abs(end))))

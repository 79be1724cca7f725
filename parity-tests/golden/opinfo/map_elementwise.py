"""Functions of one, two and three tensors, activations, comparisons, casts."""
import math
import numpy as np
import torch
import activation, unary
from core import EXACT, REGISTRY, TORCH, TRANS, Tol, ULP32, summed, ulp
from harness import Skip, maps, stored_between
from binary import BINARY, grad_tol, top

SUITE = "elementwise"
aten = torch.ops.aten
UNARY_GRAD, SPECIAL_GRAD = Tol(2e-6, 1e-30, 1e-6), Tol(6e-6, 1e-30, 1e-6)


def operand(s, v):
    "a tensor operand as it is; a number as a tensor of no axes where the storage type holds it"
    if isinstance(v, complex):
        raise Skip("complex numbers")
    if isinstance(v, torch.Tensor):
        if v.dtype != s.compute or not isinstance(s.x, torch.Tensor):
            raise Skip("operands of different types")
        return v
    t = torch.tensor(float(v), dtype=s.compute, requires_grad=True)
    if float(t.to(TORCH[s.dtype])) != float(v):
        raise Skip("a number that the storage type does not hold")
    return t


# ------------------------------------------------------------------------------------------------ one tensor
# PyTorch's formulas give NaN at the infinities where these functions have a limit, and pass or drop the gradient at NaN.
LIMITS = ("swish", "mish", "i0", "i1")
NO_GRADIENT = LIMITS + ("acosh", "elu", "selu", "relu6", "hardtanh", "i1e", "rsqrt", "digamma")


def finite(s, kernel, kernels):
    return kernel not in kernels or bool(s.x.isfinite().all())


def unary(s, kernel, tol, gradtol, args=None):
    s.bind("")
    if not finite(s, kernel, LIMITS):
        raise Skip("an infinity at which PyTorch has no value")
    s.emit(kernel, {"x": s.x}, args or {}, {"y": (s.y, tol)})
    pole = kernel == "digamma" and bool(((s.x <= 0) & (s.x == s.x.round())).any())
    pole = pole or (kernel == "i1" and bool((s.x.abs() > 700).any()))          # PyTorch subtracts infinities there
    if pole or not finite(s, kernel, NO_GRADIENT) or (kernel == "acosh" and bool((s.x < 1).any())):
        return
    if gradtol is not None and kernel + "_backward" in REGISTRY and s.y.requires_grad:
        dy = s.grad_like(s.y)
        s.emit(kernel + "_backward", {"dy": dy, "x": s.x}, args or {}, {"dx": (s.grad(dy, s.x)[0], gradtol)})


ALIAS = {"special.i0e": "i0e", "special.i1": "i1", "special.i1e": "i1e", "sgn": "sign"}
for _name in ("abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac i0 log log10 log1p log2 lgamma "
              "digamma neg reciprocal rsqrt sqrt square sign sgn sin sinh tan trunc special.i0e special.i1 special.i1e").split():
    _row = unary.UNARY[ALIAS.get(_name, _name)]
    _kernel = ALIAS.get(_name, _name)
    _grad = EXACT if _kernel in ("neg", "abs", "sign", "frac") else SPECIAL_GRAD if _row[0] == "T2.20" else UNARY_GRAD
    maps(SUITE, _name)(lambda s, k=_kernel, t=_row[3], g=_grad: unary(s, k, t, g))


def scaled(s, c):
    s.bind("")
    dy = s.grad_like(s.y)
    s.emit("scale", {"x": s.x}, {"c": c}, {"y": (s.x * c, ulp())})
    s.emit("scale_backward", {"dy": dy, "x": s.x}, {"c": c}, {"dx": (dy * c, Tol(2e-6, 1e-30, 5e-7))})


maps(SUITE, "deg2rad")(lambda s: scaled(s, math.pi / 180))
maps(SUITE, "rad2deg")(lambda s: scaled(s, 180 / math.pi))
for _name in ("isnan", "isinf", "isfinite"):
    maps(SUITE, _name)(lambda s, n=_name: s.emit(n, {"x": s.x}, {}, {"y": s.y}))


maps(SUITE, "logical_not", ("bool",))(lambda s: s.emit("logical_not", {"x": s.x}, {}, {"y": s.y}))


maps(SUITE, "bitwise_not", ("i32", "i64", "u8"))(lambda s: s.emit("bitwise_not", {"x": s.x}, {}, {"y": s.y}))


@maps(SUITE, "round round.decimals_0 round.decimals_3 round.decimals_neg_3")
def round_(s):
    d, = s.bind("decimals", decimals=0)
    if d and s.dtype != "f32":
        raise Skip("round of 16-bit values to decimals is not the rounding of their values")
    s.emit("round", {"x": s.x}, {"decimals": d}, {"y": (s.y, EXACT if d == 0 else Tol(3 * ULP32, 1e-30))})


@maps(SUITE, "nan_to_num")
def nan_to_num(s):
    nan, pos, neg = s.bind("nan posinf neginf")
    big = float(torch.finfo(TORCH[s.dtype]).max)
    y = torch.nan_to_num(s.x, nan or 0.0, big if pos is None else pos, -big if neg is None else neg)
    s.emit("nan_to_num", {"x": s.x}, {"nan": nan or 0.0, "posinf": pos, "neginf": neg}, {"y": y})
    if nan is None and pos is None and neg is None:
        dy = s.grad_like(y)
        s.emit("nan_to_num_backward", {"dy": dy, "x": s.x}, {}, {"dx": s.grad(dy, s.x, y=y)[0]})


@maps(SUITE, "polygamma.polygamma_n_1 polygamma.polygamma_n_2 polygamma.polygamma_n_3 polygamma.polygamma_n_4")
def polygamma(s):
    n, = s.bind("n")
    if not bool(s.x.isfinite().all()):
        raise Skip("an infinity at which PyTorch has no value")
    s.emit("polygamma", {"x": s.x}, {"n": n}, {"y": (s.y, Tol(1e-5, 1e-6))})


CASTS = {"bfloat16": "bf16", "half": "f16", "float": "f32", "int": "i32", "long": "i64", "byte": "u8"}


def cast(s, to):
    if to in ("i32", "i64", "u8"):
        lo, hi = (0, 255) if to == "u8" else (-2.0 ** 31, 2.0 ** 31 - 1)
        if not bool(((s.x > lo - 1) & (s.x < hi)).all()):
            raise Skip("values beyond the integer type")
        return s.emit("cast", {"x": s.x}, {"to": to}, {"y": s.x.detach().trunc().to(TORCH[to])})
    s.emit("cast", {"x": s.x}, {"to": to}, {"y": s.x.detach().to(TORCH[to]).double()})


for _name, _to in CASTS.items():
    maps(SUITE, _name)(lambda s, t=_to: cast(s, t))


# ------------------------------------------------------------------------------------------------ activations
ACT = {row[0]: row for row in activation.POINTWISE}
ACT_GRAD = Tol(8 * ULP32, 4e-7)


def activation(s, kernel, names="", args=lambda: {}):
    "pointwise activations; `args` makes the kernel's arguments of the operator's"
    got = s.bind((names + " inplace").strip())
    if got[-1]:
        raise Skip("argument inplace")
    a = args(*got[:-1])
    if not finite(s, kernel, LIMITS):
        raise Skip("an infinity at which PyTorch has no value")
    s.emit(kernel, {"x": s.x}, a, {"y": (s.y, ACT[kernel][5])})
    if not finite(s, kernel, NO_GRADIENT):
        return
    dy = s.grad_like(s.y)
    back = EXACT if kernel in ("relu", "hardtanh", "relu6") else ACT_GRAD
    s.emit(kernel + "_backward", {"dy": dy, "x": s.x}, a, {"dx": (s.grad(dy, s.x)[0], back)})


for _name, _kernel in {"relu": "relu", "relu6": "relu6", "silu": "swish", "mish": "mish", "hardswish": "hardswish", "selu": "selu",
                       "hardsigmoid": "hardsigmoid"}.items():
    maps("activation", "nn.functional." + _name)(lambda s, k=_kernel: activation(s, k))
opt = lambda **kw: {k: v for k, v in kw.items() if v is not None}
maps("activation", "nn.functional.leaky_relu")(lambda s: activation(s, "leaky_relu", "negative_slope", lambda v: opt(slope=v)))
maps("activation", "nn.functional.elu")(lambda s: activation(s, "elu", "alpha", lambda v: opt(alpha=v)))
maps("activation", "nn.functional.gelu")(lambda s: activation(s, "gelu", "approximate", lambda v: opt(approx=v)))
maps("activation", "nn.functional.softplus")(lambda s: activation(s, "softplus", "beta threshold", lambda b, t: opt(beta=b, threshold=t)))
maps("activation", "nn.functional.hardtanh")(lambda s: activation(s, "hardtanh", "min_val max_val", lambda a, b: opt(lo=a, hi=b)))


@maps("activation", "nn.functional.celu")
def celu(s):
    alpha, = s.bind("alpha", alpha=1.0)
    if alpha != 1.0:
        raise Skip("celu with alpha other than 1 is not elu")
    activation(s, "elu", "alpha", lambda a: {})


def from_output(s, kernel, backward, gradtol):
    "activations whose gradient takes the result"
    s.bind("")
    s.emit(kernel, {"x": s.x}, {}, {"y": (s.y, TRANS)})
    dy, y = s.grad_like(s.y), s.saved(s.y)
    s.emit(kernel + "_backward", {"dy": dy, "y": y}, {}, {"dx": (backward(dy, y), gradtol)})


maps("activation", "sigmoid")(lambda s: from_output(s, "sigmoid", aten.sigmoid_backward, Tol(8 * ULP32, 2e-7)))
maps("activation", "tanh")(lambda s: from_output(s, "tanh", aten.tanh_backward, Tol(8 * ULP32, 4e-7)))


@maps("activation", "nn.functional.prelu")
def prelu(s):
    a, = s.bind("weight")
    if s.x.dim() < 1 or (s.x.dim() < 2 and a.numel() > 1) or a.dim() != 1:
        raise Skip("prelu of a vector")
    s.emit("prelu", {"x": s.x, "a": a}, {}, {"y": (s.y, ulp())})
    dy = s.grad_like(s.y)
    dx, da = s.grad(dy, s.x, a)
    s.emit("prelu_backward", {"dy": dy, "x": s.x, "a": a}, {},
           {"dx": (dx, ulp()), "da": (da, summed(s.x.numel() // max(1, a.numel()), (dy * s.x).abs().sum()))})


@maps("activation", "nn.functional.glu")
def glu(s):
    axis, = s.bind("dim", dim=-1)
    s.emit("glu", {"x": s.x}, {"axis": axis}, {"y": (s.y, Tol(8 * ULP32, 2e-7))})
    dy = s.grad_like(s.y)
    s.emit("glu_backward", {"dy": dy, "x": s.x}, {"axis": axis}, {"dx": (s.grad(dy, s.x)[0], Tol(1e-6, 1e-6))})


def lone_scalar(s):
    if s.x.dim() == 0:
        raise Skip("an axis of a tensor without axes")


@maps("activation", "softmax masked.softmax torch.ops.aten._safe_softmax.default")
def softmax(s):
    axis, _, mask, dtype = s.bind("dim _stacklevel mask dtype")
    lone_scalar(s)
    if mask is not None or dtype is not None:
        raise Skip("softmax with a mask or of another type")
    if not bool(s.x.isfinite().any(axis).all()):
        raise Skip("softmax of a row without finite values")
    s.emit("softmax", {"x": s.x}, {"axis": axis}, {"y": (s.y, Tol(1e-6, 1e-7))})
    dy, y = s.grad_like(s.y), s.saved(s.y)
    g = aten._softmax_backward_data(dy, y, axis, y.dtype)
    s.emit("softmax_backward", {"dy": dy, "y": y}, {"axis": axis}, {"dx": (g, summed(y.shape[axis], (y * dy).abs().sum(axis), 1e-6))})


@maps("activation", "log_softmax masked.log_softmax")
def log_softmax(s):
    axis, mask, dtype = s.bind("dim mask dtype")
    lone_scalar(s)
    if mask is not None or dtype is not None:
        raise Skip("softmax with a mask or of another type")
    s.emit("log_softmax", {"x": s.x}, {"axis": axis}, {"y": (s.y, Tol(4 * ULP32, 1e-6 + 1.2e-7 * top(s.x)))})
    dy, y = s.grad_like(s.y), s.saved(s.y)
    g = aten._log_softmax_backward_data(dy, y, axis, y.dtype)
    s.emit("log_softmax_backward", {"dy": dy, "y": y}, {"axis": axis}, {"dx": (g, summed(y.shape[axis], dy.abs().sum(axis), 1e-6))})


@maps("activation", "nn.functional.softmin masked.softmin")
def softmin(s):
    axis, mask, dtype = s.bind("dim mask dtype")
    lone_scalar(s)
    if mask is not None or dtype is not None or axis % s.x.dim() != s.x.dim() - 1:
        raise Skip("softmin with a mask, of another type, or not over the last axis")
    s.emit("scaled_masked_softmax", {"x": s.x}, {"scale": -1.0}, {"y": (s.y, Tol(1e-6, 2e-7))})
    dy, y = s.grad_like(s.y), s.saved(s.y)
    g = -aten._softmax_backward_data(dy, y, -1, y.dtype)
    s.emit("scaled_masked_softmax_backward", {"dy": dy, "y": y}, {"scale": -1.0}, {"dx": (g, summed(y.shape[-1], (y * dy).abs().sum(-1), 1e-6))})


# ------------------------------------------------------------------------------------------------ two tensors
def copies(dy, x):
    return max(1, dy.numel() // max(1, x.numel()))


def gradient(s, kernel, a, b, call):
    "both gradients of a function of two tensors, where they are finite"
    y = call(a, b)
    if not y.requires_grad:
        return
    dy = s.grad_like(y)
    grads = s.grad(dy, a, b, y=y)
    if not all(bool(g.isfinite().all()) for g in grads):
        return
    wide = [t.detach().expand(y.shape).clone().requires_grad_() for t in (a, b)]
    terms = s.grad(dy, *wide, y=call(*wide))
    outs = {}
    for n, g, t, x in zip(("da", "db"), grads, terms, (a, b)):
        k = copies(dy, x)
        tol = grad_tol(g, dy, k)
        outs[n] = (g, tol if k == 1 else stored_between(tol, t.abs().sum_to_size(x.shape)))
    s.emit(kernel + "_backward", {"dy": dy, "a": a, "b": b}, {}, outs)


def binary(s, kernel, tol, swap=False):
    v, = s.bind("other")
    a, b = operand(s, s.x), operand(s, v)
    call = lambda a, b: s.op.op(b, a) if swap else s.op.op(a, b)
    if swap:
        a, b = b, a
    if kernel == "copysign" and bool(b.isnan().any()):
        raise Skip("the sign of NaN")
    s.emit(kernel, {"a": a, "b": b}, {}, {"y": (call(a, b), tol(a, b))})
    # Where both are equal, the kernel gives each half of the gradient, as for maximum and minimum; PyTorch gives all of it to the first.
    if kernel in ("fmax", "fmin") and bool((a == b).any()):
        return
    gradient(s, kernel, a, b, call)


PLAIN = {"mul": "mul", "__rmul__": "mul", "maximum": "maximum", "max.binary": "maximum", "minimum": "minimum", "min.binary": "minimum",
         "fmax": "fmax", "fmin": "fmin", "remainder": "remainder", "fmod": "fmod", "atan2": "atan2", "hypot": "hypot",
         "copysign": "copysign", "logaddexp": "logaddexp", "logaddexp2": "logaddexp2", "xlogy": "xlogy", "special.xlog1py": "xlog1py",
         "pow": "pow"}
for _name, _kernel in PLAIN.items():
    maps(SUITE, _name)(lambda s, k=_kernel: binary(s, k, BINARY[k][4]))
for _name, _kernel in {"__rmod__": "remainder", "__rpow__": "pow"}.items():
    maps(SUITE, _name)(lambda s, k=_kernel: binary(s, k, BINARY[k][4], swap=True))
close = lambda a, b: ulp()
for _name, _swap in {"div.no_rounding_mode": False, "true_divide": False, "__rdiv__": True}.items():
    maps(SUITE, _name)(lambda s, w=_swap: binary(s, "div", close, swap=w))


@maps(SUITE, "div.floor_rounding div.trunc_rounding floor_divide")
def divide(s):
    v, mode = s.bind("other rounding_mode", rounding_mode="floor")
    a, b = operand(s, s.x), operand(s, v)
    s.emit("div", {"a": a, "b": b}, {"mode": mode}, {"y": s.y})


@maps(SUITE, "add __radd__")
def add(s):
    v, alpha = s.bind("other alpha", alpha=1)
    if isinstance(s.x, torch.Tensor) and not isinstance(v, torch.Tensor):
        c = float(v) * alpha
        s.emit("add_scalar", {"x": s.x}, {"c": c}, {"y": (s.y, ulp())})
        dy = s.grad_like(s.y)
        return s.emit("add_scalar_backward", {"dy": dy, "x": s.x}, {"c": c}, {"dx": dy})
    a, b = operand(s, s.x), operand(s, v)
    s.emit("add", {"a": a, "b": b}, {"alpha": alpha}, {"y": (s.y, ulp() if alpha == 1 else Tol(2 * ULP32, ULP32 * abs(alpha) * top(b)))})
    dy = s.grad_like(s.y)
    outs = {}
    for n, g, x in zip(("da", "db"), s.grad(dy, a, b), (a, b)):
        k = copies(dy, x)
        outs[n] = (g, ulp() if k == 1 else summed(k, abs(alpha) * top(dy) * k))
    s.emit("add_backward", {"dy": dy}, {"alpha": alpha, "a_shape": list(a.shape), "b_shape": list(b.shape)}, outs)


@maps(SUITE, "sub rsub __rsub__")
def sub(s):
    v, alpha = s.bind("other alpha", alpha=1)
    if alpha != 1:
        raise Skip("a difference with a factor")
    if not isinstance(v, torch.Tensor) and s.op.name != "sub":
        return s.emit("rsub_scalar", {"x": s.x}, {"c": float(v)}, {"y": (s.y, ulp())})
    a, b = operand(s, s.x), operand(s, v)
    if s.op.name != "sub":
        a, b = b, a
    s.emit("sub", {"a": a, "b": b}, {}, {"y": (s.y, ulp())})
    gradient(s, "sub", a, b, torch.sub)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    maps("compare", _name)(lambda s, k=_name: s.emit(k, {"a": operand(s, s.x), "b": operand(s, s.bind("other")[0])}, {}, {"y": s.y}))
for _name in ("logical_and", "logical_or", "logical_xor"):
    @maps("compare", _name, ("bool",))
    def logical(s, k=_name):
        s.emit(k, {"a": s.x, "b": s.bind("other")[0]}, {}, {"y": s.y})
BITS = {"bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "__rand__": "bitwise_and", "__ror__": "bitwise_or",
        "__rxor__": "bitwise_xor", "bitwise_left_shift": "bitwise_shl", "bitwise_right_shift": "bitwise_shr"}
for _name, _kernel in BITS.items():
    @maps("compare", _name, ("i32", "i64", "u8"))
    def bits(s, k=_kernel):
        b, = s.bind("other")
        if not all(isinstance(t, torch.Tensor) and t.dtype == TORCH[s.dtype] for t in (s.x, b)):
            raise Skip("operands of different types")
        if k in ("bitwise_shl", "bitwise_shr") and not bool(((b >= 0) & (b < 8 * b.element_size())).all()):
            raise Skip("a shift beyond the width")
        s.emit(k, {"a": s.x, "b": b}, {}, {"y": s.y})


@maps(SUITE, "nextafter")
def nextafter(s):
    b = operand(s, s.bind("other")[0])
    if s.dtype != "f32":
        raise Skip("nextafter in 16 bits")
    y = np.nextafter(s.x.detach().numpy().astype(np.float32), b.detach().numpy().astype(np.float32))
    s.emit("nextafter", {"a": s.x, "b": b}, {}, {"y": torch.as_tensor(y.astype(np.float64))})


@maps(SUITE, "clamp")
def clamp(s):
    lo, hi = s.bind("min max")
    if isinstance(lo, torch.Tensor) or isinstance(hi, torch.Tensor):
        bounds = {n: operand(s, t) for n, t in (("lo", lo), ("hi", hi)) if t is not None}
        if s.y.shape != s.x.shape:
            raise Skip("clamp that broadcasts its input")
        s.emit("clamp", {"x": s.x, **bounds}, {}, {"y": s.y})
        return
    s.emit("clamp", {"x": s.x}, {"lo": lo, "hi": hi}, {"y": s.y})
    back = s.grad_like(s.x)
    s.emit("clamp_backward", {"dy": back, "x": s.x}, {"lo": lo, "hi": hi}, {"dx": s.grad(back, s.x)[0]})


@maps(SUITE, "clamp_min clamp_max")
def clamp_one(s):
    v, = s.bind("other")
    name = "lo" if s.op.name == "clamp_min" else "hi"
    if not isinstance(v, torch.Tensor):
        return s.emit("clamp", {"x": s.x}, {name: v}, {"y": s.y})
    if s.y.shape != s.x.shape:
        raise Skip("clamp that broadcasts its input")
    s.emit("clamp", {"x": s.x, name: v}, {}, {"y": s.y})


@maps(SUITE, "lerp")
def lerp(s):
    b, t = s.bind("end weight")
    tensor = isinstance(t, torch.Tensor)
    args = {} if tensor else {"t": t}
    ins = {"a": s.x, "b": b, **({"t": t} if tensor else {})}
    s.emit("lerp", ins, args, {"y": (s.y, Tol(2 * ULP32, 2 * ULP32 * (top(s.x) + top(b))))})
    dy = s.grad_like(s.y)
    xs = [s.x, b] + ([t] if tensor else [])
    outs = {n: (g, grad_tol(g, dy, copies(dy, x))) for n, g, x in zip(("da", "db", "dt"), s.grad(dy, *xs), xs)}
    s.emit("lerp_backward", {"dy": dy, **ins}, args, outs)


@maps(SUITE, "addcmul addcdiv")
def addc(s):
    b, c, v = s.bind("tensor1 tensor2 value", value=1.0)
    b, c = operand(s, b), operand(s, c)
    name = s.op.name
    factor = top(c) if name == "addcmul" else 3.4
    s.emit(name, {"a": s.x, "b": b, "c": c}, {"v": v}, {"y": (s.y, Tol(2 * ULP32, 2 * ULP32 * (top(s.x) + abs(v) * top(b) * factor)))})
    dy = s.grad_like(s.y)
    xs = [s.x, b, c]
    outs = {n: (g, grad_tol(g, dy, copies(dy, x))) for n, g, x in zip(("da", "db", "dc"), s.grad(dy, *xs), xs)}
    s.emit(name + "_backward", {"dy": dy, "a": s.x, "b": b, "c": c}, {"v": v}, outs)


@maps(SUITE, "where")
def where(s):
    c, b = s.bind("mask other")
    a, b = operand(s, s.x), operand(s, b)
    y = torch.where(c, a, b)
    s.emit("where_cond", {"c": c, "a": a, "b": b}, {}, {"y": y})
    if y.shape != c.shape:
        return
    dy = s.grad_like(y)
    outs = {}
    for n, g, x in zip(("da", "db"), s.grad(dy, a, b, y=y), (a, b)):
        k = copies(dy, x)
        outs[n] = (g, EXACT if k == 1 else summed(k, top(dy) * 3))
    s.emit("where_cond_backward", {"dy": dy, "c": c}, {"a_shape": list(a.shape), "b_shape": list(b.shape)}, outs)

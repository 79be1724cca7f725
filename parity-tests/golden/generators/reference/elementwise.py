"""Second formulas of functions of one and two tensors."""
import math
import numpy as np
from scipy import special as sp
from reference.base import PI, R, ref, sig
from reference.utility import rounded, to_shape


def nanmax(x, y, f):
    with np.errstate(invalid="ignore"):
        return f(x, y)


TB = {"sub": np.subtract, "mul": np.multiply, "pow": np.power, "maximum": np.maximum, "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod,
      "atan2": np.arctan2, "hypot": np.hypot, "copysign": np.copysign, "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2, "xlogy": sp.xlogy, "xlog1py": sp.xlog1py,
      "nextafter": lambda a, b: np.nextafter(np.float32(a), np.float32(b)).astype(np.float64)}
for _n, _f in TB.items():
    R(_n, lambda a, v, f=_f: {"y": f(v.a, v.b)})


@ref("remainder")
def _(a, v):
    with np.errstate(all="ignore"):
        y = np.fmod(v.a, v.b)
        return {"y": np.where((y != 0) & ((y < 0) != (v.b < 0)), y + v.b, y)}


L2 = math.log(2)
half = lambda w: (w, 1 - w)
sgn = np.sign
DB = {"sub": lambda a, b: (1 + 0 * a, -1 + 0 * b), "mul": lambda a, b: (b, a), "div": lambda a, b: (1 / b, -a / b ** 2),
      "pow": lambda a, b: (np.where(b == 0, 0, b * a ** (b - 1)), np.where((a == 0) & (b >= 0), 0, a ** b * np.log(a))),
      "maximum": lambda a, b: (np.where(a == b, 0.5, a > b), np.where(a == b, 0.5, b > a)), "minimum": lambda a, b: (np.where(a == b, 0.5, a < b), np.where(a == b, 0.5, b < a)),
      "fmax": lambda a, b: half(np.where(a == b, 0.5, (a > b) | np.isnan(b))), "fmin": lambda a, b: half(np.where(a == b, 0.5, (a < b) | np.isnan(b))),
      "remainder": lambda a, b: (1 + 0 * a * b, -np.floor(a / b)), "fmod": lambda a, b: (1 + 0 * a * b, -np.trunc(a / b)),
      "atan2": lambda a, b: (b / (a * a + b * b), -a / (a * a + b * b)), "hypot": lambda a, b: tuple(np.where(np.hypot(a, b) > 0, t / np.hypot(a, b), 0) for t in (a, b)),
      "copysign": lambda a, b: (sgn(a) * np.where(np.signbit(b), -1, 1), 0 * a * b), "logaddexp": lambda a, b: (sig(a - b), sig(b - a)),
      "logaddexp2": lambda a, b: (sig((a - b) * L2), sig((b - a) * L2)), "xlogy": lambda a, b: (np.log(b), a / b), "xlog1py": lambda a, b: (np.log1p(b), a / (1 + b))}
for _n, _f in DB.items():
    R(_n + "_backward", lambda a, v, f=_f: {k: to_shape(v.dy * d * np.ones_like(v.dy), t.shape) for k, d, t in zip(("da", "db"), f(*np.broadcast_arrays(v.a, v.b)), (v.a, v.b))})
R("add", lambda a, v: {"y": v.a + a.alpha * v.b})
R("add_backward", lambda a, v: {"da": to_shape(v.dy, a.a_shape), "db": to_shape(a.alpha * v.dy, a.b_shape)})


@ref("div")
def _(a, v):
    with np.errstate(all="ignore"):
        if v.a.dtype.kind in "iu":
            q = v.a.astype(np.int64) // v.b.astype(np.int64)
            if a.mode == "trunc":
                q = np.where((v.a % v.b != 0) & ((v.a < 0) != (v.b < 0)), q + 1, q)
            return {"y": q}
        y = v.a / v.b
        return {"y": np.floor(y) if a.mode == "floor" else np.trunc(y) if a.mode == "trunc" else y}


for _n, _f in {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
               "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}.items():
    R(_n, lambda a, v, f=_f: {"y": f(v.a, v.b)})
R("bitwise_shl", lambda a, v: {"y": np.where(v.b < 8 * v.a.dtype.itemsize, v.a << np.minimum(v.b, 8 * v.a.dtype.itemsize - 1), 0).astype(v.a.dtype)})
R("bitwise_shr", lambda a, v: {"y": np.where(v.b < 8 * v.a.dtype.itemsize, v.a >> np.minimum(v.b, 8 * v.a.dtype.itemsize - 1), np.where(v.a < 0, -1, 0)).astype(v.a.dtype)})
R("lerp", lambda a, v: {"y": (lambda t: np.where(t < 0.5, v.a + t * (v.b - v.a), v.b - (v.b - v.a) * (1 - t)))(v.t if v.t is not None else a.t)})
R("lerp_backward", lambda a, v: (lambda t: {"da": v.dy * (1 - t), "db": v.dy * t, "dt": v.dy * (v.b - v.a)})(v.t if v.t is not None else a.t))
R("add_scaled", lambda a, v: {"y": a.ca * v.a + a.cb * v.b})
R("fma", lambda a, v: {"y": v.a * v.b + v.c})
R("addcmul", lambda a, v: {"y": v.a + a.v * v.b * v.c})
R("addcdiv", lambda a, v: {"y": v.a + a.v * v.b / v.c})
R("addcmul_backward", lambda a, v: {"da": v.dy, "db": v.dy * a.v * v.c, "dc": v.dy * a.v * v.b})
R("addcdiv_backward", lambda a, v: {"da": v.dy, "db": v.dy * a.v / v.c, "dc": -v.dy * a.v * v.b / v.c ** 2})
R("ldexp", lambda a, v: {"y": np.ldexp(v.a, v.b.astype(int))})
R("ldexp_backward", lambda a, v: {"da": v.dy * 2.0 ** v.b})
s2p = 2 / math.sqrt(PI)
TU = {"neg": (np.negative, lambda x, y: -1 + 0 * x), "abs": (np.abs, lambda x, y: sgn(x)), "sign": (lambda x: np.where(np.isnan(x), 0, sgn(x)), lambda x, y: 0 * x), "exp": (np.exp, lambda x, y: y), "exp2": (np.exp2, lambda x, y: y * L2),
      "exp10": (sp.exp10, lambda x, y: y * math.log(10)), "expm1": (np.expm1, lambda x, y: y + 1), "log1p": (np.log1p, lambda x, y: 1 / (1 + x)), "log": (np.log, lambda x, y: 1 / x),
      "log2": (np.log2, lambda x, y: 1 / (x * L2)), "log10": (np.log10, lambda x, y: 1 / (x * math.log(10))), "sqrt": (np.sqrt, lambda x, y: 0.5 / y), "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x, y: -y ** 3 / 2),
      "cbrt": (np.cbrt, lambda x, y: 1 / (3 * y * y)), "square": (np.square, lambda x, y: 2 * x), "reciprocal": (lambda x: 1 / x, lambda x, y: -y * y), "sin": (np.sin, lambda x, y: np.cos(x)), "cos": (np.cos, lambda x, y: -np.sin(x)),
      "tan": (np.tan, lambda x, y: 1 + y * y), "asin": (np.arcsin, lambda x, y: 1 / np.sqrt(1 - x * x)), "acos": (np.arccos, lambda x, y: -1 / np.sqrt(1 - x * x)), "atan": (np.arctan, lambda x, y: 1 / (1 + x * x)),
      "sinh": (np.sinh, lambda x, y: np.cosh(x)), "cosh": (np.cosh, lambda x, y: np.sinh(x)), "asinh": (np.arcsinh, lambda x, y: 1 / np.sqrt(x * x + 1)), "acosh": (np.arccosh, lambda x, y: 1 / np.sqrt(x * x - 1)),
      "atanh": (np.arctanh, lambda x, y: 1 / (1 - x * x)), "erf": (sp.erf, lambda x, y: s2p * np.exp(-x * x)), "erfc": (sp.erfc, lambda x, y: -s2p * np.exp(-x * x)), "erfinv": (sp.erfinv, lambda x, y: math.sqrt(PI) / 2 * np.exp(y * y)),
      "floor": (np.floor, None), "ceil": (np.ceil, None), "trunc": (np.trunc, None), "frac": (lambda x: x - np.trunc(x), lambda x, y: 1 + 0 * x), "lgamma": (sp.gammaln, lambda x, y: sp.digamma(x)),
      "digamma": (sp.digamma, lambda x, y: sp.polygamma(1, x)), "i0": (sp.i0, lambda x, y: sp.i1(x)), "i0e": (sp.i0e, lambda x, y: sp.i1e(x) - sgn(x) * y), "i1": (sp.i1, lambda x, y: sp.i0(x) - y / x),
      "i1e": (sp.i1e, lambda x, y: sp.i0e(x) - y * (sgn(x) + 1 / x))}
for _n, (_f, _d) in TU.items():
    R(_n, lambda a, v, f=_f: {"y": f(v.x)})
    if _d:
        R(_n + "_backward", lambda a, v, f=_f, d=_d: {"dx": v.dy * d(v.x, f(v.x))})
R("sincos", lambda a, v: {"s": np.sin(v.x), "co": np.cos(v.x)})
R("round", lambda a, v: {"y": np.round(v.x, a.decimals)})
R("isnan", lambda a, v: {"y": np.isnan(v.x)})
R("isinf", lambda a, v: {"y": np.isinf(v.x)})
R("isfinite", lambda a, v: {"y": np.isfinite(v.x)})
BIG = {"f32": float(np.finfo(np.float32).max), "f16": 65504.0}
R("nan_to_num", lambda a, v: {"y": np.nan_to_num(v.x, nan=a.nan, posinf=BIG[v["_dtype"]] if a.posinf is None else a.posinf, neginf=-BIG[v["_dtype"]] if a.neginf is None else a.neginf)})
R("nan_to_num_backward", lambda a, v: {"dx": np.where(np.isfinite(v.x), v.dy, 0)})
R("logical_not", lambda a, v: {"y": np.logical_not(v.x)})
R("bitwise_not", lambda a, v: {"y": np.invert(v.x)})
R("scale", lambda a, v: {"y": a.c * v.x})
R("add_scalar", lambda a, v: {"y": v.x + a.c})
R("rsub_scalar", lambda a, v: {"y": a.c - v.x})
R("pow_scalar", lambda a, v: {"y": v.x ** a.c})
R("scale_backward", lambda a, v: {"dx": a.c * v.dy})
R("add_scalar_backward", lambda a, v: {"dx": v.dy})
R("rsub_scalar_backward", lambda a, v: {"dx": -v.dy})
R("pow_scalar_backward", lambda a, v: {"dx": v.dy * a.c * v.x ** (a.c - 1)})


@ref("cast")
def _(a, v):
    x = v.x
    if a.to in ("i32", "i64", "u8"):
        lo, hi = {"i32": (-2 ** 31, 2 ** 31 - 1), "i64": (-2 ** 63, 2 ** 63 - 1), "u8": (0, 255)}[a.to]
        if x.dtype.kind in "iu":
            return {"y": np.array([min(max(int(q), lo), hi) for q in x.reshape(-1)]).reshape(x.shape)}
        f = [0 if q != q else lo if q <= lo else hi if q >= hi else int(q) for q in x.reshape(-1).tolist()]
        return {"y": np.array(f, dtype=np.int64).reshape(x.shape)}
    with np.errstate(over="ignore"):
        return {"y": rounded(x.astype(np.float64), a.to)}


R("polygamma", lambda a, v: {"y": sp.polygamma(a.n, v.x)})
R("zeta", lambda a, v: {"y": sp.zeta(v.x, v.q)})

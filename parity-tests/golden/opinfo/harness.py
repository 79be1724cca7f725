"""From a sample of PyTorch's operator database to cases: one call of an operator in one arithmetic, and the entries that such calls leave.

A mapping is a function of a Sample. It reads the operator's arguments, evaluates the operator (`s.y`) and its gradient (`s.grad`), and hands
kernel names with inputs, arguments and expected outputs to `s.emit`. Every mapping runs in float64 for the expected values; for 16-bit storage it
runs once more in the storage type itself, which yields PyTorch's own error and from it the tolerance, as in core.py.
"""
import hashlib, random
import numpy as np
import torch
from core import EXACT, HALF_UNIT, INF, MAX_FINITE, REGISTRY, TORCH, accepted, jsonable

SAMPLED = {**TORCH, "bool": torch.bool}        # what an operator is sampled in; masks are u8 in a case
MAP = {}                        # operator -> (suite, mapping, dtypes)
FLOATS = ("f32", "f16", "bf16")
DENSE = ("prelu", "searchsorted", "bucketize", "maxpool")      # kernels that take contiguous inputs only


class Skip(Exception):
    "a sample whose meaning no kernel has; the text is counted"


def maps(suite, ops, dtypes=FLOATS):
    "registers a mapping for the space-separated operators; the mapping gets the Sample"
    def deco(fn):
        for op in ops.split():
            assert op not in MAP, op
            MAP[op] = (suite, fn, dtypes)
        return fn
    return deco


def seed_all(text):
    n = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    torch.manual_seed(n)
    random.seed(n)
    np.random.seed(n)


def span(t):
    "number of elements between the first and the last one of a strided tensor"
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def restrided(t, to):
    "the same strided view over storage of another type"
    if t.is_contiguous() or not t.numel():
        return t.to(to)
    flat = torch.as_strided(t, (span(t),), (1,), t.storage_offset())
    return torch.as_strided(flat.to(to), t.shape, t.stride())


class Sample:
    "one call of an operator with its tensors in the arithmetic `compute`"
    def __init__(self, op, raw, dtype, compute, seed):
        self.op, self.dtype, self.compute, self.seed = op, dtype, compute, seed
        self.calls, self._y, self.draws = [], None, 0
        self.x, self.args, self.kw = self._of(raw.input), [self._of(a) for a in raw.args], {k: self._of(v) for k, v in raw.kwargs.items()}

    def _of(self, v):
        if isinstance(v, torch.Tensor):
            v = v.detach()
            if v.is_complex():
                return v.to(torch.complex128)
            if not v.is_floating_point():
                return v
            v = restrided(v.to(TORCH[self.dtype]) if v.dtype != TORCH[self.dtype] else v, self.compute) if self.dtype in FLOATS else v
            return v.requires_grad_()
        if isinstance(v, (list, tuple)):
            return type(v)(self._of(i) for i in v)
        return v

    def bind(self, names, **defaults):
        "the arguments after the first, by name; a keyword that is not listed makes the sample one that no kernel serves"
        names = names.split()
        if len(self.args) > len(names):
            raise Skip("more arguments than mapped")
        got = dict(zip(names, self.args))
        for k, v in self.kw.items():
            if k not in names:
                raise Skip(f"argument {k}")
            got[k] = v
        return [got.get(n, defaults.get(n)) for n in names]

    @property
    def y(self):
        "the operator's result"
        if self._y is None:
            self._y = self.op.op(self.x, *self.args, **self.kw)
        return self._y

    def grad_like(self, y, shift=0.0):
        "a random upstream gradient of y, rounded to the storage type (a scalar's to f32)"
        g = torch.Generator().manual_seed(self.seed + self.draws)
        self.draws += 1
        kind = "f32" if y.dim() == 0 and self.dtype in HALF_UNIT and shift else self.dtype
        return (torch.randn(y.shape, generator=g, dtype=torch.float64) + shift).to(TORCH[kind]).to(self.compute)

    def saved(self, t, kind="data"):
        "a saved tensor of the forward, rounded to its storage type"
        return t.detach().to(TORCH[self.dtype if kind == "data" else kind]).to(self.compute)

    def grad(self, dy, *xs, y=None):
        "gradients of the result with respect to xs"
        y = self.y if y is None else y
        if not y.requires_grad:
            raise Skip("no gradient")
        found = torch.autograd.grad(y, list(xs), dy.to(y.dtype), retain_graph=True, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(found, xs)]

    def emit(self, kernel, ins, args, outs):
        self.calls.append((kernel, ins, args, {n: v if isinstance(v, tuple) else (v, EXACT) for n, v in outs.items()}))


def number(v):
    "an argument for JSON: whole sizes stay integers, a tuple becomes a list"
    if isinstance(v, torch.Tensor):
        v = v.item()
    return jsonable([number(i) for i in v] if isinstance(v, (list, tuple, torch.Size)) else v)


def stored(name, t, kind, dtype, dense):
    "an input as the file holds it, and its strides where it is not contiguous"
    t = t.detach()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    if t.dtype == torch.bool:
        t = t.to(torch.uint8)
    if t.is_floating_point():
        scalar = name == "gy" and t.dim() == 0
        to = TORCH["f32" if scalar else dtype if kind == "data" or kind not in TORCH else kind]
        t = restrided(t, to if to.is_floating_point else torch.float32)
    elif kind in ("i32", "i64") and t.dtype != TORCH[kind]:
        t = t.to(TORCH[kind])
    if dense or t.is_contiguous() or not t.numel():
        return t.contiguous(), None
    if span(t) > 4 * t.numel() + 16:
        return t.contiguous(), None
    # Cells that the view does not touch hold a poison value, as in core.py.
    flat = torch.full((span(t),), 77 if t.dtype == torch.uint8 else 777, dtype=t.dtype)
    flat[torch.as_strided(torch.arange(span(t)), t.shape, t.stride()).reshape(-1)] = t.reshape(-1)
    return flat, {"shape": list(t.shape), "strides": list(t.stride()), "offset": 0}


def expected(value, kind, dtype):
    "an expected output: beyond the storage range it is infinite, and the file holds the narrowest type that keeps the value"
    value = value.detach().contiguous()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj()).contiguous()
    if value.dtype == torch.bool:
        return value.to(torch.uint8)
    if not value.is_floating_point():
        return value.to(TORCH[kind]) if kind in ("i32", "u8") else value
    value = value.double()
    kind = dtype if kind not in MAX_FINITE else kind
    if kind in MAX_FINITE:
        value = torch.where(value.abs() >= MAX_FINITE[kind], torch.copysign(torch.tensor(INF, dtype=torch.float64), value), value)
    return value


def narrow(value, tol, dtype):
    "16-bit results that are compared within a tolerance need no more than f32; exact ones any type that holds them"
    for t in (TORCH.get(dtype), torch.float32):
        if t is not None and t.is_floating_point and torch.equal(value.to(t).double().nan_to_num(7.0), value.nan_to_num(7.0)):
            return value.to(t)
    return value.float() if dtype in HALF_UNIT and "exact" not in tol else value


def tolerance(out, tol, native, dtype):
    "as core.tolerances: the f32 bound, for 16-bit storage two roundings and twice what PyTorch itself loses"
    res = tol.resolve(out)
    if dtype in HALF_UNIT and not tol.exact:
        u, atol = HALF_UNIT[dtype], res["atol"]
        if native is not None and native.shape == out.shape:
            e = 2 * (native.detach().to(TORCH[dtype]).double() - out).abs() - 2 * u * out.abs()
            e = e[torch.isfinite(e)]
            atol = max(atol, float(e.max()) if e.numel() else 0.0)
        res = {"rtol": 2 * u, "atol": atol + 1e-5 + u * getattr(tol, "stored", 0.0)}
    return {k: float("%.3g" % v) if not isinstance(v, bool) else v for k, v in res.items()}


def stored_between(tol, terms):
    """16-bit storage rounds what is summed last once on the way, as PyTorch does (the gradient of a broadcast operand before its copies are
    added): one rounding of the sum of magnitudes, the bound `Stored` of the random cases"""
    tol.stored = float(terms.detach().double().abs().max()) if terms.numel() else 0.0
    return tol


def run(fn, op, raw, dtype, compute, seed):
    s = Sample(op, raw, dtype, compute, seed)
    torch.set_default_dtype(torch.float64 if compute == torch.float64 else torch.float32)
    try:
        fn(s)
    finally:
        torch.set_default_dtype(torch.float32)
    return s.calls


def natively(fn, op, raw, dtype, seed):
    "the outputs in the storage type's own arithmetic, f32 where PyTorch has none"
    for compute in (TORCH[dtype], torch.float32):
        try:
            return run(fn, op, raw, dtype, compute, seed)
        except Exception:                                                      # noqa: BLE001
            continue
    return None


def cases(fn, op, raw, dtype, cid, seed, reasons):
    """(JSON entry, tensors) of every kernel call that the sample stands for; one whose bound PyTorch in f32 misses is left out, as a correct
    implementation must be able to pass (check.py asks the same of the other suites)"""
    missed = []
    calls = run(fn, op, raw, dtype, torch.float64, seed)
    dtype = "u8" if dtype == "bool" else dtype
    native = natively(fn, op, raw, dtype, seed) if dtype in FLOATS else None
    native = native if native is not None and len(native) == len(calls) else None
    for n, (kernel, ins, args, outs) in enumerate(calls):
        k = REGISTRY[kernel]
        name = cid + ("" if n == 0 else "bcdefgh"[n - 1])
        kinds = {f["name"]: f["kind"] for f in k.ins}
        entry, tensors, strides = {"id": name, "kernel": kernel, "dtype": dtype, "args": {}, "in": [], "out": {}}, {}, {}
        for i, t in ins.items():
            if t is None:
                continue
            tensors[f"{name}|in|{i}"], view = stored(i, t, kinds.get(i.rstrip("0123456789"), kinds.get(i, "data")), dtype, kernel.startswith(DENSE))
            entry["in"].append(i)
            if view:
                strides[i] = view
        entry["args"] = {a: number(v) for a, v in args.items() if k.args.get(a, "required") != v or isinstance(v, bool) != isinstance(k.args[a], bool)}
        if strides:
            entry["args"]["strides"] = strides
        for o, (value, tol) in outs.items():
            kind = k.out_kind.get(o, k.out_kind.get(o.rstrip("0123456789"), "data"))
            want = expected(value, kind, dtype)
            if want.dtype != torch.float64:
                entry["out"][o] = {"exact": True}
            else:
                other = native[n][3][o][0].detach() if native is not None else None
                entry["out"][o] = tolerance(want, tol, other, kind if kind in MAX_FINITE and kind != "f32" else dtype)
                if dtype == "f32" and other is not None and other.shape == want.shape and not bool(accepted(other, want, entry["out"][o]).all()):
                    missed.append(kernel)
                want = narrow(want, entry["out"][o], dtype)
            tensors[f"{name}|out|{o}"] = want
        if kernel not in missed:
            yield entry, tensors
    reasons.update(f"{kernel}: PyTorch in f32 misses the bound" for kernel in missed)

"""Creation."""
import math
import numpy as np
import torch
from core import EXACT, TORCH, Tol, ULP32, kernel, normal01, philox, ulp, uniform01, uniform10

T6 = "create"


@kernel("T6.1", T6, "full", "", "y", {"shape": "required", "value": "required"})
def full_(c, shape, value):
    v = torch.full(tuple(shape), value, dtype=TORCH[c.dtype])
    c.out("y", v, EXACT, None if v.is_floating_point() else c.dtype)


@kernel("T6.1", T6, "zeros", "", "y", {"shape": "required"})
def zeros(c, shape):
    v = torch.zeros(tuple(shape), dtype=TORCH[c.dtype])
    c.out("y", v, EXACT, None if v.is_floating_point() else c.dtype)


@kernel("T6.1", T6, "arange", "", "y", {"start": 0, "end": "required", "step": 1})
def arange(c, end, start=0, step=1):
    "ceil((end - start)/step) values start + i*step"
    if step == 0:
        raise ValueError("step")
    y = torch.arange(start, end, step)
    c.out("y", y, ulp(2), None if c.dtype in ("f32", "f16", "bf16") else c.dtype)


@kernel("T6.1", T6, "linspace", "", "y", {"start": "required", "end": "required", "n": "required"})
def linspace(c, start, end, n):
    y = torch.linspace(start, end, n, dtype=torch.float64)
    c.out("y", y, Tol(ULP32, 1.5 * ULP32 * max(abs(start), abs(end))))


RNG = {"seed": "required", "stream": 0, "offset": 0}


def count(shape):
    return math.prod(shape)


@kernel("T6.3", T6, "philox_u32", "", "y:i32", {"n": "required", **RNG})
def philox_u32(c, n, seed, stream=0, offset=0):
    "raw words, stored as i32 bit patterns"
    c.out("y", torch.from_numpy(philox(n, seed, stream, offset).view(np.int32).copy()), kind="i32")


@kernel("T6.4", T6, "rand_uniform", "", "y", {"shape": "required", "lo": 0.0, "hi": 1.0, **RNG})
def rand_uniform(c, shape, seed, stream=0, offset=0, lo=0.0, hi=1.0):
    u = uniform01(philox(count(shape), seed, stream, offset)).reshape(shape)
    exact = (lo, hi) == (0.0, 1.0)
    c.out("y", torch.from_numpy(lo + (hi - lo) * u), EXACT if exact else Tol(ULP32, 1.5 * ULP32 * max(abs(lo), abs(hi))))


@kernel("T6.5", T6, "rand_normal", "", "y", {"shape": "required", "mean": 0.0, "std": 1.0, **RNG})
def rand_normal(c, shape, seed, stream=0, offset=0, mean=0.0, std=1.0):
    z = normal01(count(shape), seed, stream, offset).reshape(shape)
    c.out("y", torch.from_numpy(mean + std * z), Tol(4 * ULP32, 5e-7 * std + ULP32 * abs(mean)))


@kernel("T6.6", T6, "rand_bernoulli", "p?", "y:u8", {"shape": "required", "p": None, **RNG})
def rand_bernoulli(c, shape, seed, stream=0, offset=0, p=None):
    "u < p, p scalar (argument) or tensor (input); both in f32"
    u = uniform01(philox(count(shape), seed, stream, offset)).reshape(shape)
    q = c.put("p", c.uni(*shape)).double().numpy() if p is None else float(np.float32(p))
    c.out("y", torch.from_numpy(u < q), kind="u8")


@kernel("T6.7", T6, "rand_int", "", "y:i64", {"shape": "required", "lo": 0, "hi": "required", "index": "i64", **RNG})
def rand_int(c, shape, hi, seed, lo=0, stream=0, offset=0, index="i64"):
    "lo + floor(w*(hi-lo)/2^32) for one word w per element"
    if hi <= lo:
        raise ValueError("empty range")
    w = philox(count(shape), seed, stream, offset).astype(np.uint64)
    c.out("y", torch.from_numpy((lo + ((w * np.uint64(hi - lo)) >> np.uint64(32)).astype(np.int64)).reshape(shape)), kind=index)


@kernel("T6.8", T6, "rand_exponential", "", "y", {"shape": "required", "rate": 1.0, **RNG})
def rand_exponential(c, shape, seed, rate=1.0, stream=0, offset=0):
    "-ln(u)/rate, u in (0,1]"
    u = uniform10(philox(count(shape), seed, stream, offset)).reshape(shape)
    u = np.where(u == 1, 1 - 2.0 ** -25, u)
    c.out("y", torch.from_numpy(-np.log(u) / rate), Tol(4 * ULP32, 1e-7 / rate))


@kernel("T6.8", T6, "rand_gumbel", "", "y", {"shape": "required", **RNG})
def rand_gumbel(c, shape, seed, stream=0, offset=0):
    "-ln(-ln u), u in (0,1]"
    u = uniform10(philox(count(shape), seed, stream, offset)).reshape(shape)
    u = np.where(u == 1, 1 - 2.0 ** -25, u)
    c.out("y", torch.from_numpy(-np.log(-np.log(u))), Tol(1e-6, 1e-6))


@kernel("T6.9", T6, "rand_perm", "", "y:i64", {"n": "required", **RNG})
def rand_perm(c, n, seed, stream=0, offset=0):
    "element i has the key (w[2i], w[2i+1]) compared lexicographically, then i; y lists the elements by rising key"
    w = philox(2 * n, seed, stream, offset).reshape(-1, 2) if n else np.zeros((0, 2), np.uint32)
    c.out("y", torch.from_numpy(np.lexsort((np.arange(n), w[:, 1], w[:, 0])).astype(np.int64)), kind="i64")


@kernel("T6.10", T6, "rand_categorical", "p? logits?", "y:i64", {"n": 1, **RNG})
def rand_categorical(c, rows, K, seed, n=1, stream=0, offset=0, logits=False):
    """y [rows, n]; p form: sample i = row*n + j uses u_i and returns the number of k with cum_k <= u*total (cum = running sum of p);
    logits form (n = 1): argmax of logits + gumbel of element row*K + k"""
    if logits:
        l = c.x("logits", rows, K)
        u = uniform10(philox(rows * K, seed, stream, offset)).reshape(rows, K)
        c.out("y", torch.from_numpy(np.argmax(l.double().numpy() - np.log(-np.log(u)), 1)[:, None]), kind="i64")
        return
    p = c.integers(0, 9, (rows, K)).double()
    p[:, 0] += 1                                         # dyadic weights: every partial sum is exact
    P = c.put("p", p / 16).double().numpy()
    u = uniform01(philox(rows * n, seed, stream, offset)).reshape(rows, n)
    cum = np.cumsum(P, 1)
    c.out("y", torch.from_numpy((cum[:, None, :] <= (u * cum[:, -1:])[:, :, None]).sum(-1)), kind="i64")

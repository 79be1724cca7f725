"""Dense linear algebra (B9) and Fourier transforms (B10). Oracles: torch.linalg.*, torch.fft.*, torch.stft, torch.istft."""
import math
import torch
import torch.nn.functional as F
from core import EXACT, Tol, ag, kernel, rel

B9, B10 = "linalg", "fourier"
LA = rel(2e-5, 2e-5)                    # well-conditioned systems only


def spd(c, batch, n):
    m = c.rnd(*batch, n, n)
    return m @ m.transpose(-1, -2) / n + torch.eye(n) * 1.0


def general(c, batch, n):
    return c.rnd(*batch, n, n) / math.sqrt(n) + torch.eye(n) * 1.5


@kernel("B9.1", B9, "cholesky", "A", "L? info:i32", {"upper": False})
def cholesky(c, n, batch=(), upper=False, fail=None):
    "info [batch]: 0, or k+1 of the failing leading minor (the output L of a failed matrix is NaN)"
    A = spd(c, batch, n)
    if fail is not None:                                  # make the leading minor of size fail+1 of matrix 0 indefinite
        A[(0,) * len(batch)][fail, fail] = -1.0
    A = c.put("A", A)
    L, info = torch.linalg.cholesky_ex(A, upper=upper)
    if fail is not None:
        L = torch.where((info != 0)[..., None, None], torch.full_like(L, math.nan), L)
    c.out("L", L, LA)
    c.out("info", info, kind="i32")


@kernel("B9.1", B9, "cholesky_backward", "dL L", "dA", {"upper": False})
def cholesky_backward(c, n, batch=(), upper=False):
    "dA is symmetric"
    dL = c.rnd(*batch, n, n)
    A = spd(c, batch, n)
    L = torch.linalg.cholesky(A, upper=upper)
    dL = c.put("dL", torch.triu(dL) if upper else torch.tril(dL))
    L = c.put("L", L)
    Ar = (L.transpose(-1, -2) @ L if upper else L @ L.transpose(-1, -2)).detach().requires_grad_()
    c.out("dA", ag(torch.linalg.cholesky(Ar, upper=upper), [Ar], dL)[0], rel(1e-4, 5e-5))


TRI = {"upper": False, "left": True, "trans": False, "unit": False}


def triangle(c, batch, n, upper, unit):
    t = c.rnd(*batch, n, n, scale=0.5)
    t = torch.triu(t, 1) if upper else torch.tril(t, -1)
    return t / math.sqrt(n) * 2 + torch.diag_embed(c.uni(*batch, n, lo=1, hi=2))


def tri_solve(A, B, upper, left, trans, unit):
    A = A.transpose(-1, -2) if trans else A
    return torch.linalg.solve_triangular(A, B, upper=upper != trans, left=left, unitriangular=unit)


@kernel("B9.2", B9, "triangular_solve", "A B", "X", TRI)
def triangular_solve(c, n, k, batch=(), upper=False, left=True, trans=False, unit=False):
    "op(A) X = B (left) or X op(A) = B; only the named triangle of A is read (the other one holds NaN), with unit also not the diagonal"
    t = triangle(c, batch, n, upper, unit)
    poison = torch.ones(n, n).tril(-1 if not unit else 0) if upper else torch.ones(n, n).triu(1 if not unit else 0)
    A = c.put("A", torch.where(poison.bool(), torch.full_like(t, math.nan), t))
    B = c.x("B", *batch, *((n, k) if left else (k, n)))
    cl = torch.nan_to_num(A)
    c.out("X", tri_solve(cl, B, upper, left, trans, unit), LA)


@kernel("B9.2", B9, "triangular_solve_backward", "dX A X", "dA dB", TRI)
def triangular_solve_backward(c, n, k, batch=(), upper=False, left=True, trans=False, unit=False):
    sh = (*batch, *((n, k) if left else (k, n)))
    dX = c.x("dX", *sh)
    A = c.putv("A", triangle(c, batch, n, upper, unit))
    B = c.rnd(*sh)
    X64 = tri_solve(A.detach().double(), B, upper, left, trans, unit)
    X = c.put("X", X64)
    At = A.transpose(-1, -2) if trans else A
    Bv = ((At.detach().triu(1) if upper != trans else At.detach().tril(-1)) + (torch.eye(n) if unit else torch.diag_embed(torch.diagonal(At.detach(), dim1=-2, dim2=-1))))
    Bv = (Bv @ X if left else X @ Bv).to(A.dtype).requires_grad_()
    dA, dB = ag(tri_solve(A, Bv, upper, left, trans, unit), [A, Bv], dX)
    c.out("dA", dA, rel(5e-5, 3e-5))
    c.out("dB", dB, LA)


@kernel("B9.3", B9, "lu_factor", "A", "LU pivots:i32 info:i32")
def lu_factor(c, n, batch=(), singular=False):
    "LAPACK layout; pivots are 1-based row exchanges"
    A = general(c, batch, n)
    if singular:
        A[..., :, -1] = 0
    LU, p, info = torch.linalg.lu_factor_ex(c.put("A", A))
    c.out("LU", LU, LA)
    c.out("pivots", p, kind="i32")
    c.out("info", info, kind="i32")


@kernel("B9.3", B9, "lu_solve", "LU pivots:i32 B", "X")
def lu_solve(c, n, k, batch=()):
    LU, p = torch.linalg.lu_factor(general(c, batch, n))
    LU = c.put("LU", LU)
    c.idx("pivots", p.numpy(), "i32")
    c.out("X", torch.linalg.lu_solve(LU, p, c.x("B", *batch, n, k)), LA)


@kernel("B9.3", B9, "solve", "A B", "X")
def solve(c, n, k, batch=(), bad=None):
    "A [.., n, n], B [.., n, k]"
    A = c.put("A", general(c, batch, n))
    c.out("X", torch.linalg.solve(A, c.x("B", *batch, bad or n, k)), LA)


@kernel("B9.3", B9, "solve_backward", "dX A X", "dA dB")
def solve_backward(c, n, k, batch=()):
    dX, A = c.x("dX", *batch, n, k), c.putv("A", general(c, batch, n))
    X = c.put("X", torch.linalg.solve(A.detach().double(), c.rnd(*batch, n, k)))
    B = (A.detach() @ X).requires_grad_()
    for nme, g in zip(("dA", "dB"), ag(torch.linalg.solve(A, B), [A, B], dX)):
        c.out(nme, g, rel(5e-5, 3e-5))


@kernel("B9.3", B9, "inv", "A", "Y")
def inv(c, n, batch=()):
    c.out("Y", torch.linalg.inv(c.put("A", general(c, batch, n))), LA)


@kernel("B9.3", B9, "inv_backward", "dY Y", "dA")
def inv_backward(c, n, batch=()):
    "dA = -Y^T dY Y^T"
    dY = c.x("dY", *batch, n, n)
    Y = c.put("Y", torch.linalg.inv(general(c, batch, n)))
    A = torch.linalg.inv(Y).detach().requires_grad_()
    c.out("dA", ag(torch.linalg.inv(A), [A], dY)[0], rel(5e-5, 3e-5))


@kernel("B9.3", B9, "det", "A", "y")
def det(c, n, batch=()):
    c.out("y", torch.linalg.det(c.put("A", general(c, batch, n))), LA)


@kernel("B9.3", B9, "det_backward", "dy A y", "dA")
def det_backward(c, n, batch=()):
    dy, A = c.x("dy", *batch), c.putv("A", general(c, batch, n))
    c.put("y", torch.linalg.det(A.detach().double()))
    c.out("dA", ag(torch.linalg.det(A), [A], dy)[0], rel(5e-5, 3e-5))


@kernel("B9.3", B9, "slogdet", "A", "sign logabsdet")
def slogdet(c, n, batch=()):
    s, l = torch.linalg.slogdet(c.put("A", general(c, batch, n)))
    c.out("sign", s, EXACT)
    c.out("logabsdet", l, Tol(1e-5, 1e-5))


@kernel("B9.8", B9, "newton_schulz", "X", "Y", {"steps": 5})
def newton_schulz(c, shape, steps=5):
    "X/(|X|_F + 1e-7), transposed while rows > columns, then steps of X = a X + (b A + c A^2) X with A = X X^T, (a, b, c) = (3.4445, -4.775, 2.0315)"
    X = c.x("X", *shape)
    X = X / (X.norm() + 1e-7)
    t = shape[0] > shape[1]
    X = X.t() if t else X
    for _ in range(steps):
        A = X @ X.t()
        X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
    c.out("Y", X.t() if t else X, Tol(5e-5, 5e-5))


# ------------------------------------------------------------------------------------------------ Fourier
def ri(z):
    return torch.view_as_real(z)


def work(t):
    "complex transforms have no half or bf16 form"
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


FFT = {"axes": [-1], "norm": "backward"}
FT = rel(2e-6, 1.5e-6)


def _fft(name, fn):
    def forward(c, shape, axes=(-1,), norm="backward"):
        "complex tensors are interleaved: trailing axis of 2; axes count without it"
        x = c.x("x", *shape, 2)
        c.out("y", ri(fn(torch.view_as_complex(work(x)), dim=tuple(axes), norm=norm)), FT)
    kernel("B10.1", B10, name, "x", "y", FFT)(forward)

    def backward(c, shape, axes=(-1,), norm="backward"):
        "gradient in the real-pair sense (adjoint transform)"
        dy = c.x("dy", *shape, 2)
        x = torch.zeros(*shape, 2, dtype=work(dy).dtype, requires_grad=True)
        c.out("dx", ag(ri(fn(torch.view_as_complex(x), dim=tuple(axes), norm=norm)), [x], work(dy))[0], FT)
    kernel("B10.1", B10, name + "_backward", "dy", "dx", FFT)(backward)


_fft("fft", torch.fft.fftn)
_fft("ifft", torch.fft.ifftn)


@kernel("B10.1", B10, "rfft", "x", "y", FFT)
def rfft(c, shape, axes=(-1,), norm="backward"):
    "the last listed axis gets n/2+1 bins"
    c.out("y", ri(torch.fft.rfftn(work(c.x("x", *shape)), dim=tuple(axes), norm=norm)), FT)


@kernel("B10.1", B10, "rfft_backward", "dy", "dx", {"input_size": "required", **FFT})
def rfft_backward(c, shape, axes=(-1,), norm="backward"):
    c.arg("input_size", list(shape))
    out = list(shape)
    out[axes[-1]] = out[axes[-1]] // 2 + 1
    dy = work(c.x("dy", *out, 2))
    x = torch.zeros(*shape, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(ri(torch.fft.rfftn(x, dim=tuple(axes), norm=norm)), [x], dy)[0], FT)


@kernel("B10.1", B10, "irfft", "x", "y", {"n": "required", **FFT})
def irfft(c, shape, n, axes=(-1,), norm="backward"):
    "shape without the pair axis; n = length of the last listed axis of y; imaginary parts of DC and Nyquist are ignored"
    x = c.x("x", *shape, 2)
    s = [x.shape[a if a >= 0 else a - 1] for a in axes[:-1]] + [n]
    c.out("y", torch.fft.irfftn(torch.view_as_complex(work(x)), s, dim=tuple(axes), norm=norm), FT)


@kernel("B10.1", B10, "irfft_backward", "dy", "dx", {"n": "required", **FFT})
def irfft_backward(c, shape, n, axes=(-1,), norm="backward"):
    s = [shape[a] for a in axes[:-1]] + [n]
    out = list(shape)
    out[axes[-1]] = n
    dy = work(c.x("dy", *out))
    x = torch.zeros(*shape, 2, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(torch.fft.irfftn(torch.view_as_complex(x), s, dim=tuple(axes), norm=norm), [x], dy)[0], FT)


STFT = {"n_fft": "required", "hop": "required", "center": True, "normalized": False, "onesided": True}


@kernel("B10.2", B10, "stft", "x window", "y", STFT)
def stft(c, shape, n_fft, hop, center=True, normalized=False, onesided=True, win=None):
    "x [B, T]; window [win_length] is centred in the frame; center pads by reflection; y [B, bins, frames, 2]"
    x, w = c.x("x", *shape), c.put("window", torch.hann_window(win or n_fft))
    z = torch.stft(work(x), n_fft, hop, win or n_fft, work(w), center, "reflect", normalized, onesided, True)
    c.out("y", ri(z), FT)


@kernel("B10.2", B10, "stft_backward", "dy window", "dx", {"input_size": "required", **STFT})
def stft_backward(c, shape, n_fft, hop, center=True, normalized=False, onesided=True, win=None):
    c.arg("input_size", list(shape))
    wraw = torch.hann_window(win or n_fft)
    z = torch.stft(torch.zeros(*shape), n_fft, hop, win or n_fft, wraw, center, "reflect", normalized, onesided, True)
    dy = work(c.x("dy", *ri(z).shape))
    w = work(c.put("window", wraw))
    x = torch.zeros(*shape, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(ri(torch.stft(x, n_fft, hop, win or n_fft, w, center, "reflect", normalized, onesided, True)), [x], dy)[0], rel(5e-6, 3e-6))


@kernel("B10.2", B10, "istft", "x window", "y", {**STFT, "length": None})
def istft(c, B, frames, n_fft, hop, center=True, normalized=False, onesided=True, win=None, length=None):
    "x [B, bins, frames, 2]; overlap-add divided by the sum of squared windows; center drops n_fft/2 samples at both ends"
    bins = n_fft // 2 + 1 if onesided else n_fft
    raw = c.rnd(B, bins, frames, 2)
    if not onesided:                                      # the spectrum of a real signal: conjugate symmetric
        raw = ri(torch.fft.fft(c.rnd(B, n_fft, frames), dim=1))
        raw[:, n_fft // 2 + 1:] = raw[:, 1:(n_fft + 1) // 2].flip(1) * torch.tensor([1.0, -1.0])
    x, w = c.put("x", raw), c.put("window", torch.hann_window(win or n_fft) + 0.1)
    z = torch.view_as_complex(work(x))
    c.out("y", torch.istft(z, n_fft, hop, win or n_fft, work(w), center, normalized, onesided, length, False), rel(5e-6, 3e-6))


@kernel("B10.2", B10, "istft_backward", "dy window", "dx", {"frames": "required", **STFT, "length": None})
def istft_backward(c, B, frames, n_fft, hop, center=True, normalized=False, onesided=True, win=None, length=None):
    bins = n_fft // 2 + 1 if onesided else n_fft
    wraw = torch.hann_window(win or n_fft) + 0.1
    call = lambda x, w: torch.istft(torch.view_as_complex(x), n_fft, hop, win or n_fft, w, center, normalized, onesided, length, False)
    dy = work(c.x("dy", *call(torch.zeros(B, bins, frames, 2), wraw).shape))
    w = work(c.put("window", wraw))
    x = torch.zeros(B, bins, frames, 2, dtype=dy.dtype, requires_grad=True)
    c.out("dx", ag(call(x, w), [x], dy)[0], rel(5e-6, 3e-6))

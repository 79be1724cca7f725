"""Second formulas of linear algebra and Fourier transforms."""
import math
import numpy as np
from reference.base import PI, R, ref
from reference.loss import frames_of


T_ = lambda x: x.swapaxes(-1, -2)
def chol_one(A, upper):
    n = len(A)
    L = np.zeros((n, n))
    for j in range(n):
        s = A[j, j] - (L[j, :j] ** 2).sum()
        if not s > 0:
            return np.full((n, n), np.nan), j + 1
        L[j, j] = math.sqrt(s)
        for i in range(j + 1, n):
            L[i, j] = (A[i, j] - L[i, :j] @ L[j, :j]) / L[j, j]
    return (L.T if upper else L), 0


def batch(f, *xs):
    b = xs[0].shape[:-2]
    if not b:
        return f(*xs)
    rs = [f(*[x[p] for x in xs]) for p in np.ndindex(*b)]
    if isinstance(rs[0], tuple):
        return tuple(np.array([r[i] for r in rs]).reshape(b + np.shape(rs[0][i])) for i in range(len(rs[0])))
    return np.array(rs).reshape(b + np.shape(rs[0]))


@ref("cholesky")
def _(a, v):
    L, i = batch(lambda A: chol_one(np.tril(A) + np.tril(A, -1).T if not a.upper else np.triu(A) + np.triu(A, 1).T, a.upper), v.A)
    return {"L": L, "info": np.array(i)}


@ref("cholesky_backward")
def _(a, v):
    L, dL = (T_(v.L), T_(v.dL)) if a.upper else (v.L, v.dL)
    P = np.tril(T_(L) @ dL)
    n = L.shape[-1]
    P[..., range(n), range(n)] *= 0.5
    Li = np.linalg.inv(L)
    S = T_(Li) @ P @ Li
    return {"dA": (S + T_(S)) / 2}


def tri(a, A):
    M = np.where(np.triu(np.ones(A.shape[-2:], bool)) if a.upper else np.tril(np.ones(A.shape[-2:], bool)), A, 0)
    if a.unit:
        M = np.where(np.eye(A.shape[-1], dtype=bool), 1, M)
    return T_(M) if a.trans else M


R("triangular_solve", lambda a, v: {"X": np.linalg.solve(tri(a, v.A), v.B) if a.left else T_(np.linalg.solve(T_(tri(a, v.A)), T_(v.B)))})


@ref("triangular_solve_backward")
def _(a, v):
    M = tri(a, v.A)
    if a.left:
        dB = np.linalg.solve(T_(M), v.dX)
        dM = -dB @ T_(v.X)
    else:
        dB = T_(np.linalg.solve(M, T_(v.dX)))
        dM = -T_(v.X) @ dB
    dA = T_(dM) if a.trans else dM
    dA = np.triu(dA, 1 if a.unit else 0) if a.upper else np.tril(dA, -1 if a.unit else 0)
    return {"dA": dA, "dB": dB}


def lu_one(A):
    A, n, piv, info = A.copy(), len(A), [], 0
    for k in range(n):
        p = k + int(np.argmax(np.abs(A[k:, k])))
        piv.append(p + 1)
        A[[k, p]] = A[[p, k]]
        if A[k, k] == 0:
            info = info or k + 1
            continue
        A[k + 1:, k] /= A[k, k]
        A[k + 1:, k + 1:] -= np.outer(A[k + 1:, k], A[k, k + 1:])
    return A, np.array(piv), info


R("lu_factor", lambda a, v: dict(zip(("LU", "pivots", "info"), map(np.asarray, batch(lu_one, v.A)))))


@ref("lu_solve")
def _(a, v):
    b = v.LU.shape[:-2]
    X = np.zeros(v.B.shape)
    for p in np.ndindex(*b):
        B = v.B[p].copy()
        for k, q in enumerate(v.pivots[p]):
            B[[k, q - 1]] = B[[q - 1, k]]
        X[p] = np.linalg.solve(np.triu(v.LU[p]), np.linalg.solve(np.tril(v.LU[p], -1) + np.eye(len(B)), B))
    return {"X": X}


R("solve", lambda a, v: {"X": np.linalg.solve(v.A, v.B)})


@ref("solve_backward")
def _(a, v):
    dB = np.linalg.solve(T_(v.A), v.dX)
    return {"dB": dB, "dA": -dB @ T_(v.X)}


R("inv", lambda a, v: {"Y": np.linalg.inv(v.A)})
R("inv_backward", lambda a, v: {"dA": -T_(v.Y) @ v.dY @ T_(v.Y)})
R("det", lambda a, v: {"y": np.linalg.det(v.A)})
R("det_backward", lambda a, v: {"dA": (v.dy * v.y)[..., None, None] * T_(np.linalg.inv(v.A))})
R("slogdet", lambda a, v: dict(zip(("sign", "logabsdet"), np.linalg.slogdet(v.A))))


@ref("newton_schulz")
def _(a, v):
    X = v.X / (np.sqrt((v.X ** 2).sum()) + 1e-7)
    t = X.shape[0] > X.shape[1]
    X = X.T if t else X
    for _ in range(a.steps):
        A = X @ X.T
        X = 3.4445 * X - 4.775 * A @ X + 2.0315 * A @ (A @ X)
    return {"Y": X.T if t else X}


def dft(n, sign, norm):
    k = np.arange(n)
    m = np.exp(sign * 2j * PI * np.outer(k, k) / n)
    f = {"backward": 1 if sign < 0 else 1 / n, "forward": 1 / n if sign < 0 else 1, "ortho": 1 / math.sqrt(n)}[norm]
    return m * f


def cx(x):
    return x[..., 0] + 1j * x[..., 1]


def pr(z):
    return np.stack([z.real, z.imag], -1)


def trans(z, axes, mats):
    for ax, m in zip(axes, mats):
        ax = ax % z.ndim
        z = np.moveaxis(np.tensordot(m, z, (1, ax)), 0, ax)
    return z


def mats(z, a, sign):
    return [dft(z.shape[ax], sign, a.norm) for ax in a.axes]


R("fft", lambda a, v: {"y": pr(trans(cx(v.x), a.axes, mats(cx(v.x), a, -1)))})
R("ifft", lambda a, v: {"y": pr(trans(cx(v.x), a.axes, mats(cx(v.x), a, 1)))})
R("fft_backward", lambda a, v: {"dx": pr(trans(cx(v.dy), a.axes, [m.conj().T for m in mats(cx(v.dy), a, -1)]))})
R("ifft_backward", lambda a, v: {"dx": pr(trans(cx(v.dy), a.axes, [m.conj().T for m in mats(cx(v.dy), a, 1)]))})


@ref("rfft")
def _(a, v):
    z = trans(v.x.astype(complex), a.axes, mats(v.x, a, -1))
    return {"y": pr(np.take(z, range(v.x.shape[a.axes[-1]] // 2 + 1), a.axes[-1]))}


def half_mats(shape, a):
    ms = [dft(shape[ax], -1, a.norm) for ax in a.axes]
    n = shape[a.axes[-1]]
    ms[-1] = ms[-1][:n // 2 + 1]
    return ms


R("rfft_backward", lambda a, v: {"dx": trans(cx(v.dy), a.axes, [m.conj().T for m in half_mats(a.input_size, a)]).real})


def herm(n):
    "real-linear map of half-spectrum pairs to the real signal, unscaled: columns for re and im parts"
    k = np.arange(n // 2 + 1)
    w = np.where((k == 0) | ((n % 2 == 0) & (k == n // 2)), 1.0, 2.0)
    e = np.exp(2j * PI * np.outer(np.arange(n), k) / n) * w
    edge = (k == 0) | ((n % 2 == 0) & (k == n // 2))
    return e.real, np.where(edge, 0, -e.imag)


def irscale(n, norm):
    return {"backward": 1 / n, "forward": 1, "ortho": 1 / math.sqrt(n)}[norm]


@ref("irfft")
def _(a, v):
    z = cx(v.x)
    z = trans(z, a.axes[:-1], [dft(z.shape[ax], 1, a.norm) for ax in a.axes[:-1]])
    re, im = herm(a.n)
    ax = a.axes[-1] % z.ndim
    f = lambda t, m: np.moveaxis(np.tensordot(m, t, (1, ax)), 0, ax)
    return {"y": (f(z.real, re) + f(z.imag, im)) * irscale(a.n, a.norm)}


@ref("irfft_backward")
def _(a, v):
    re, im = herm(a.n)
    ax = a.axes[-1] % v.dy.ndim
    f = lambda t, m: np.moveaxis(np.tensordot(m, t, (1, ax)), 0, ax)
    z = (f(v.dy, re.T) + 1j * f(v.dy, im.T)) * irscale(a.n, a.norm)
    return {"dx": pr(trans(z, a.axes[:-1], [dft(z.shape[q], 1, a.norm).conj().T for q in a.axes[:-1]]))}


def stft(a, x, win):
    F = frames_of(x, a.n_fft, a.hop, win, a.center)
    z = np.fft.fft(F)
    z = z[..., :a.n_fft // 2 + 1] if a.onesided else z
    return pr(z.swapaxes(1, 2)) / (math.sqrt(a.n_fft) if a.normalized else 1)


R("stft", lambda a, v: {"y": stft(a, v.x, v.window)})


@ref("stft_backward")
def _(a, v):
    "the transform is linear: one basis vector at a time"
    B, T = a.input_size
    d = np.zeros((B, T))
    for t in range(T):
        e = np.zeros((1, T))
        e[0, t] = 1
        d[:, t] = (v.dy * stft(a, e, v.window)).sum((1, 2, 3))
    return {"dx": d}


def istft(a, z, win, frames):
    n, o = a.n_fft, (a.n_fft - len(win)) // 2
    w = np.zeros(n)
    w[o:o + len(win)] = win
    z = cx(z) * (math.sqrt(n) if a.normalized else 1)
    f = np.fft.irfft(z, n, axis=1) if a.onesided else np.fft.ifft(z, axis=1).real
    L = n + a.hop * (frames - 1)
    y, s = np.zeros((len(z), L)), np.zeros(L)
    for t in range(frames):
        y[:, t * a.hop:t * a.hop + n] += f[:, :, t] * w
        s[t * a.hop:t * a.hop + n] += w * w
    st = n // 2 if a.center else 0
    end = st + a.length if a.length is not None else L - (n // 2 if a.center else 0)
    return (y / np.where(s > 0, s, 1))[:, st:end]


R("istft", lambda a, v: {"y": istft(a, v.x, v.window, v.x.shape[2])})


@ref("istft_backward")
def _(a, v):
    bins = a.n_fft // 2 + 1 if a.onesided else a.n_fft
    d = np.zeros((len(v.dy), bins, a.frames, 2))
    for p in np.ndindex(bins, a.frames, 2):
        e = np.zeros((1, bins, a.frames, 2))
        e[(0,) + p] = 1
        d[(slice(None),) + p] = (v.dy * istft(a, e, v.window, a.frames)).sum(1)
    return {"dx": d}

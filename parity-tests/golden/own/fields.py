"""Neural fields from their formulas and from F.grid_sample; gradients by autograd."""
import numpy as np
import torch
import torch.nn.functional as F
from core import kernel, philox, rel, uniform01, uniform10

S = "fields"
TOL, GRAD = rel(2e-6, 2e-6), rel(1e-5, 1e-5)


def grads(c, y, inputs, tol=GRAD):
    "stores the gradients of y, which is weighted by the upstream gradients drawn before"
    for (name, x), g in zip(inputs.items(), torch.autograd.grad(y, list(inputs.values()), allow_unused=True)):
        c.out("d" + name, torch.zeros_like(x) if g is None else g, tol)


# ------------------------------------------------------------------------------------------------ hash grids
def row_of(corner, n, rows):
    if (n + 1) ** corner.shape[1] <= rows:
        return sum(corner[:, a] * (n + 1) ** a for a in range(corner.shape[1]))
    h = torch.zeros_like(corner[:, 0])
    for a, by in zip(range(corner.shape[1]), (1, 2654435761, 805459861)):
        h = h ^ ((corner[:, a] * by) & 0xFFFFFFFF)
    return h % rows


def encoded(x, table, base, growth):
    features = []
    for level in range(table.shape[0]):
        n = int(np.floor(base * growth ** level))
        at = x.clamp(0, 1) * n
        first = at.detach().floor().clamp(max=n - 1)
        part, y = at - first, 0
        for k in range(2 ** x.shape[1]):
            upper = torch.tensor([k >> a & 1 for a in range(x.shape[1])])
            weight = torch.where(upper.bool(), part, 1 - part).prod(1)
            y = y + weight[:, None] * table[level][row_of(first.long() + upper, n, table.shape[1])]
        features.append(y)
    return torch.cat(features, 1)


GRID = {"base": 16, "growth": 2.0}


@kernel("B11.1", S, "hash_grid_encode", "x table", "y", GRID)
def hash_grid_encode(c, n, axes, table, base=16, growth=2.0):
    x, t = c.put("x", c.uni(n, axes, lo=-0.05, hi=1.05)), c.x("table", *table)
    c.out("y", encoded(x, t, base, growth), TOL)


@kernel("B11.1", S, "hash_grid_encode_backward", "dy x table", "dx dtable", GRID)
def hash_grid_encode_backward(c, n, axes, table, base=16, growth=2.0):
    dy = c.x("dy", n, table[0] * table[2])
    x, t = c.putv("x", c.uni(n, axes, lo=-0.05, hi=1.05)), c.var("table", *table)
    grads(c, (encoded(x, t, base, growth) * dy).sum(), {"x": x, "table": t})


# ------------------------------------------------------------------------------------------------ volumes
def sampled(grid, points):
    at = (2 * points - 1)[None, None, None]
    y = F.grid_sample(grid.permute(3, 0, 1, 2)[None], at, mode="bilinear", padding_mode="border", align_corners=True)
    return y[0, :, 0, 0].T


@kernel("B11.2", S, "trilinear_interpolate", "grid points", "y")
def trilinear_interpolate(c, grid, n):
    g, p = c.x("grid", *grid), c.put("points", c.uni(n, 3, lo=-0.05, hi=1.05))
    c.out("y", sampled(g, p), TOL)


@kernel("B11.2", S, "trilinear_interpolate_backward", "dy grid points", "dgrid dpoints")
def trilinear_interpolate_backward(c, grid, n):
    dy = c.x("dy", n, grid[3])
    g, p = c.var("grid", *grid), c.putv("points", c.uni(n, 3, lo=-0.05, hi=1.05))
    grads(c, (sampled(g, p) * dy).sum(), {"grid": g, "points": p})


# ------------------------------------------------------------------------------------------------ spherical harmonics
def basis(r, count):
    "by the polynomials that PlenOctrees and 3D Gaussian splatting use, made homogeneous"
    x, y, z = r.unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    rr = xx + yy + zz
    all_ = [0.28209479177387814 + 0 * x,
            -0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x,
            1.0925484305920792 * x * y, -1.0925484305920792 * y * z, 0.31539156525252005 * (2 * zz - xx - yy), -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
            -0.5900435899266435 * y * (3 * xx - yy), 2.890611442640554 * x * y * z, -0.4570457994644658 * y * (4 * zz - xx - yy),
            0.3731763325901154 * z * (2 * zz - 3 * xx - 3 * yy), -0.4570457994644658 * x * (4 * zz - xx - yy), 1.445305721320277 * z * (xx - yy),
            -0.5900435899266435 * x * (xx - 3 * yy),
            2.5033429417967046 * x * y * (xx - yy), -1.7701307697799304 * y * z * (3 * xx - yy), 0.9461746957575601 * x * y * (7 * zz - rr),
            -0.6690465435572892 * y * z * (7 * zz - 3 * rr), 0.10578554691520431 * (zz * (35 * zz - 30 * rr) + 3 * rr * rr),
            -0.6690465435572892 * x * z * (7 * zz - 3 * rr), 0.47308734787878004 * (xx - yy) * (7 * zz - rr),
            -1.7701307697799304 * x * z * (xx - 3 * yy), 0.6258357354491761 * (xx * (xx - 3 * yy) - yy * (3 * xx - yy))]
    return torch.stack(all_[:count], -1)


def directions(c, n):
    r = c.rnd(n, 3)
    return r / r.norm(dim=1, keepdim=True)


@kernel("B11.4", S, "spherical_harmonics", "r coefficients", "y")
def spherical_harmonics(c, n, channels, count):
    r, k = c.put("r", directions(c, n)), c.x("coefficients", n, channels, count)
    c.out("y", (basis(r, count)[:, None] * k).sum(-1), TOL)


@kernel("B11.4", S, "spherical_harmonics_backward", "dy r coefficients", "dr dcoefficients")
def spherical_harmonics_backward(c, n, channels, count):
    dy = c.x("dy", n, channels)
    r, k = c.putv("r", directions(c, n)), c.var("coefficients", n, channels, count)
    grads(c, ((basis(r, count)[:, None] * k).sum(-1) * dy).sum(), {"r": r, "coefficients": k})


# ------------------------------------------------------------------------------------------------ Gaussians
def covariance(q, s):
    w, x, y, z = (q / q.norm(dim=1, keepdim=True)).unbind(1)
    r = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                     2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                     2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).reshape(-1, 3, 3)
    m = r @ torch.diag_embed(s)
    return m @ m.transpose(1, 2)


@kernel("B11.3", S, "gaussian_covariance", "rotation scale", "y")
def gaussian_covariance(c, n):
    c.out("y", covariance(c.x("rotation", n, 4), c.put("scale", c.uni(n, 3, lo=0.1, hi=2))), TOL)


@kernel("B11.3", S, "gaussian_covariance_backward", "dy rotation scale", "drotation dscale")
def gaussian_covariance_backward(c, n):
    dy = c.x("dy", n, 3, 3)
    q, s = c.var("rotation", n, 4), c.putv("scale", c.uni(n, 3, lo=0.1, hi=2))
    grads(c, (covariance(q, s) * dy).sum(), {"rotation": q, "scale": s})


# ------------------------------------------------------------------------------------------------ rays
RNG = {"seed": None, "stream": 0, "offset": 0}


@kernel("B11.5", S, "ray_sampling", "near far", "t", {"samples": "required", **RNG})
def ray_sampling(c, n, samples, seed=None, stream=0, offset=0):
    near, far = c.put("near", c.uni(n)), c.put("far", c.uni(n, lo=2, hi=6))
    u = 0.5 if seed is None else torch.from_numpy(uniform01(philox(n * samples, seed, stream, offset))).reshape(n, samples)
    c.out("t", near[:, None] + (far - near)[:, None] * (torch.arange(samples) + u) / samples, TOL)


@kernel("B11.5", S, "importance_sampling", "edges weights", "t", {"samples": "required", "padding": 0.0, **RNG})
def importance_sampling(c, n, intervals, samples, padding=0.0, seed=None, stream=0, offset=0, none=False):
    edges = c.put("edges", 1 + c.uni(n, intervals + 1, lo=0.05, hi=0.5).cumsum(1))
    weights = c.put("weights", c.uni(n, intervals, lo=0.1, hi=1) * (0 if none else 1))
    u = 0.5 if seed is None else uniform10(philox(n * samples, seed, stream, offset)).reshape(n, samples)
    share = (np.arange(samples) + u) / samples + np.zeros((n, samples))
    w = weights.numpy() + padding
    w = np.where(w.sum(1, keepdims=True) > 0, w, 1)
    cdf = np.concatenate([np.zeros((n, 1)), np.cumsum(w / w.sum(1, keepdims=True), 1)], 1)
    t = np.stack([np.interp(share[r], cdf[r], edges[r].numpy()) for r in range(n)])
    c.out("t", torch.from_numpy(t), rel(1e-5, 1e-5))


def rendered(density, color, delta, t):
    x = density * delta
    before = torch.cumsum(x, 1) - x
    w = torch.exp(-before) * -torch.expm1(-x)
    out = {"y": (w[..., None] * color).sum(1), "opacity": w.sum(1), "w": w}
    if t is not None:
        out["depth"] = (w * t).sum(1)
    return out


def ray_inputs(c, n, samples, channels, distances, put):
    v = {"density": put("density", c.uni(n, samples, hi=3)), "color": put("color", c.rnd(n, samples, channels)),
         "delta": put("delta", c.uni(n, samples, lo=0.01, hi=0.02 + 2 / samples))}
    if distances:
        v["t"] = put("t", c.uni(n, samples, lo=1, hi=5))
    return v


@kernel("B11.5", S, "volume_render", "density color delta t?", "y opacity w depth?")
def volume_render(c, n, samples, channels=3, distances=False):
    v = ray_inputs(c, n, samples, channels, distances, c.put)
    for name, value in rendered(v["density"], v["color"], v["delta"], v.get("t")).items():
        c.out(name, value, rel(1e-5, 2e-6))


@kernel("B11.5", S, "volume_render_backward", "dy density color delta t? dopacity dw ddepth?", "ddensity dcolor ddelta dt?")
def volume_render_backward(c, n, samples, channels=3, distances=False):
    dy = c.x("dy", n, channels)
    v = ray_inputs(c, n, samples, channels, distances, c.putv)
    y = rendered(v["density"], v["color"], v["delta"], v.get("t"))
    loss = (y["y"] * dy).sum() + (y["opacity"] * c.x("dopacity", n)).sum() + (y["w"] * c.x("dw", n, samples)).sum()
    if distances:
        loss = loss + (y["depth"] * c.x("ddepth", n)).sum()
    grads(c, loss, v)

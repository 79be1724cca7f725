"""Images of Gaussians in space (B11.3) from their formulas; gradients by autograd."""
import torch
from core import kernel, rel

S = "splatting"
TOL, GRAD = rel(1e-5, 5e-6), rel(5e-5, 2e-5)
IMAGE = {"width": "required", "height": "required", "near": 0.01, "blur": 0.3}


# ------------------------------------------------------------------------------------------------ projection
def projected(means, covariance, view, intrinsics, width, height, near, blur):
    w, t = view[:3, :3], view[:3, 3]
    p = means @ w.T + t
    focal = torch.stack([intrinsics[0, 0], intrinsics[1, 1]])
    slope = p[:, :2] / p[:, 2:]
    centers = slope * focal + intrinsics[:2, 2]
    most = 1.3 * torch.tensor([width, height], dtype=means.dtype) / (2 * focal)
    held = torch.maximum(torch.minimum(slope, most), -most)
    zeros = torch.zeros_like(p[:, 0])
    j = torch.stack([focal[0] / p[:, 2], zeros, -focal[0] * held[:, 0] / p[:, 2], zeros, focal[1] / p[:, 2], -focal[1] * held[:, 1] / p[:, 2]], 1)
    m = j.reshape(-1, 2, 3) @ w
    s = m @ ((covariance + covariance.mT) / 2) @ m.mT + blur * torch.eye(2, dtype=means.dtype)
    inverse = torch.linalg.inv(s)
    radii = torch.ceil(3 * torch.sqrt(torch.linalg.eigvalsh(s.detach())[:, 1]))
    x, y = centers.detach().unbind(1)
    seen = (p[:, 2] > near) & (x + radii > 0) & (x - radii < width) & (y + radii > 0) & (y - radii < height)
    keep = lambda v: torch.where(seen.reshape([-1] + [1] * (v.ndim - 1)), v, torch.zeros_like(v))
    conics = torch.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], 1)
    return keep(centers), keep(conics), keep(p[:, 2]), keep(radii).to(torch.int32)


def scene(c, n, put, width, height, spread=1.5, size=0.14):
    "about 4 before a camera that is turned a little; some behind it"
    means = put("means", c.rnd(n, 3) * spread)
    m = c.rnd(n, 3, 3) * size
    covariance = put("covariance", m @ m.mT + 0.01 * torch.eye(3))
    view = c.put("view", torch.tensor([[0.96, 0, 0.28, 0.1], [0, 1, 0, -0.2], [-0.28, 0, 0.96, 4], [0, 0, 0, 1]]))
    intrinsics = c.put("intrinsics", torch.tensor([[0.9 * width, 0, 0.5 * width], [0, 1.1 * width, 0.45 * height], [0, 0, 1]]))
    return means, covariance, view, intrinsics


@kernel("B11.3", S, "project_gaussians", "means covariance view intrinsics", "centers conics depths radii:i32", IMAGE)
def project_gaussians(c, n, width, height, near=0.01, blur=0.3, spread=1.5):
    io = scene(c, n, c.put, width, height, spread)
    for name, value in zip(("centers", "conics", "depths"), projected(*io, width, height, near, blur)):
        c.out(name, value, TOL)
    c.out("radii", projected(*(v.double() for v in io), width, height, near, blur)[3], kind="i32")


@kernel("B11.3", S, "project_gaussians_backward", "dcenters dconics ddepths means covariance view intrinsics radii:i32", "dmeans dcovariance", IMAGE)
def project_gaussians_backward(c, n, width, height, near=0.01, blur=0.3, spread=1.5):
    up = c.x("dcenters", n, 2), c.x("dconics", n, 3), c.x("ddepths", n)
    io = scene(c, n, c.putv, width, height, spread)
    out = projected(*io, width, height, near, blur)
    c.idx("radii", out[3].numpy(), "i32")
    loss = sum((g * y).sum() for g, y in zip(up, out))
    for name, g in zip(("dmeans", "dcovariance"), torch.autograd.grad(loss, io[:2])):
        c.out(name, g, GRAD)


# ------------------------------------------------------------------------------------------------ image
def image(centers, conics, colors, opacities, depths, radii, width, height):
    order = torch.sort(depths.detach(), stable=True).indices
    order = order[radii[order] > 0]
    y, x = torch.meshgrid(torch.arange(height, dtype=centers.dtype) + 0.5, torch.arange(width, dtype=centers.dtype) + 0.5, indexing="ij")
    t = torch.ones_like(x)
    open_, seen = torch.ones_like(x, dtype=torch.bool), torch.zeros(height, width, colors.shape[1], dtype=centers.dtype)
    for i in order.tolist():
        dx, dy = x - centers[i, 0], y - centers[i, 1]
        alpha = opacities[i] * torch.exp(-0.5 * (conics[i, 0] * dx ** 2 + conics[i, 2] * dy ** 2) - conics[i, 1] * dx * dy)
        alpha = torch.where(alpha > 0.99, torch.full_like(alpha, 0.99), alpha)
        counts = open_ & (alpha >= 1 / 255)
        ends = counts & (t * (1 - alpha) < 1e-4)
        open_, counts = open_ & ~ends, counts & ~ends
        alpha = torch.where(counts, alpha, torch.zeros_like(alpha))
        seen = seen + (alpha * t)[..., None] * colors[i]
        t = t * (1 - alpha)
    return seen, t


def splats(c, n, channels, put, width, height, opaque):
    centers = put("centers", (c.uni(n, 2, lo=-0.2, hi=1.2)) * torch.tensor([width, height]))
    a, b, d = c.uni(n, lo=0.2), c.uni(n, lo=-0.3, hi=0.3), c.uni(n, lo=0.2)
    conics = put("conics", torch.stack([a * a, a * b, b * b + d * d], 1))
    colors, opacities = put("colors", c.rnd(n, channels)), put("opacities", c.uni(n, lo=0.05, hi=0.95) if not opaque else c.uni(n, lo=0.9))
    depths = c.put("depths", c.uni(n, lo=0.5, hi=9))
    radii = c.idx("radii", (c.integers(0, 9, (n,)) > 0).to(torch.int32).numpy() * 7, "i32")
    return centers, conics, colors, opacities, depths, radii


SPLATS = "centers conics colors opacities depths radii:i32"
SIZE = {"width": "required", "height": "required"}


@kernel("B11.3", S, "rasterize_gaussians", SPLATS, "image transmittance", SIZE)
def rasterize_gaussians(c, n, width, height, channels=3, opaque=False):
    for name, value in zip(("image", "transmittance"), image(*splats(c, n, channels, c.put, width, height, opaque), width, height)):
        c.out(name, value, TOL)


@kernel("B11.3", S, "rasterize_gaussians_backward", "dimage dtransmittance " + SPLATS, "dcenters dconics dcolors dopacities", SIZE)
def rasterize_gaussians_backward(c, n, width, height, channels=3, opaque=False):
    up = c.x("dimage", height, width, channels), c.x("dtransmittance", height, width)
    io = splats(c, n, channels, c.putv, width, height, opaque)
    loss = sum((g * y).sum() for g, y in zip(up, image(*io, width, height))) + sum(v.sum() * 0 for v in io[:4])
    for name, g in zip(("dcenters", "dconics", "dcolors", "dopacities"), torch.autograd.grad(loss, io[:4])):
        c.out(name, g, GRAD)

"""Symmetric indefinite systems (B9.7). Oracles: torch.linalg.ldl_factor_ex, torch.linalg.ldl_solve."""
import torch
from core import kernel, rel

S = "ldl"
TOL = rel(5e-5, 5e-5)


def indefinite(c, batch, n):
    "blocks of one and of two rows: every second element of the diagonal is nearly 0"
    a = c.rnd(*batch, n, n)
    diagonal = torch.diagonal(a, dim1=-2, dim2=-1) * torch.tensor([1e-3, 4.0]).repeat(n)[:n]
    return torch.tril(a, -1) + torch.tril(a, -1).mT + torch.diag_embed(diagonal)


@kernel("B9.7", S, "ldl_factor", "A", "LD pivots:i32 info:i32")
def ldl_factor(c, n, batch=(), empty=False):
    a = indefinite(c, batch, n)
    if empty:
        a[..., 2:, :] = a[..., :, 2:] = 0
    ld, pivots, info = torch.linalg.ldl_factor_ex(c.put("A", a).double())
    c.out("LD", ld, TOL)
    c.out("pivots", pivots, kind="i32")
    c.out("info", info, kind="i32")


def factors(c, n, batch):
    ld, pivots, _ = torch.linalg.ldl_factor_ex(indefinite(c, batch, n))
    ld = c.put("LD", ld)
    c.idx("pivots", pivots.numpy(), "i32")
    return ld, pivots


@kernel("B9.7", S, "ldl_solve", "LD pivots:i32 B", "X")
def ldl_solve(c, n, k, batch=()):
    ld, pivots = factors(c, n, batch)
    c.out("X", torch.linalg.ldl_solve(ld, pivots, c.x("B", *batch, n, k)), TOL)


@kernel("B9.7", S, "ldl_solve_backward", "dX LD pivots:i32", "dB")
def ldl_solve_backward(c, n, k, batch=()):
    "by the inverse: PyTorch has no derivative of ldl_solve"
    dx = c.x("dX", *batch, n, k)
    ld, pivots = factors(c, n, batch)
    inverse = torch.linalg.ldl_solve(ld, pivots, torch.eye(n, dtype=ld.dtype).expand(*batch, n, n).contiguous())
    c.out("dB", inverse.mT @ dx, TOL)

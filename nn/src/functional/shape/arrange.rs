//! Axes moved, added and joined by PyTorch's names.

use trefoil::ops::shape::PadMode;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axes, axis};
use crate::functional::elementwise::arithmetic::broadcast;

/// The tensors joined along an axis.
fn joined(along: isize, parts: &[Tensor]) -> Result<Tensor> {
    Tensor::concat(along, &parts.iter().collect::<Vec<_>>())
}

/// Each part changed.
fn each(parts: &[&Tensor], f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    parts.iter().map(|p| f(p)).collect()
}

impl Tensor {
    /// Axes `from[i]` moved to the places `to[i]`, the others in their order; a view. Source `torch.movedim`. Errors: repeated axes, lists of
    /// different lengths.
    #[doc(alias = "movedim")]
    pub fn moveaxis(&self, from: &[isize], to: &[isize]) -> Result<Tensor> {
        const OP: &str = "moveaxis";
        let (from, to) = (axes(OP, from, self.rank())?, axes(OP, to, self.rank())?);
        let repeated = |list: &[usize]| list.iter().enumerate().any(|(i, a)| list[..i].contains(a));
        if from.len() != to.len() || repeated(&from) || repeated(&to) {
            let expected = format!("as many different axes as {from:?} are");
            return Err(invalid(OP, "to", expected, format!("{to:?}")));
        }
        let mut others = (0..self.rank()).filter(|a| !from.contains(a));
        let source = |place: usize| match to.iter().position(|&t| t == place) {
            Some(i) => from[i] as isize,
            None => others.next().unwrap_or(place) as isize,
        };
        self.permute(&(0..self.rank()).map(source).collect::<Vec<_>>())
    }

    /// An axis divided into several of the given sizes, of which one may be -1: what is left. Source `torch.unflatten`. Errors: sizes whose
    /// product is not that of the axis.
    pub fn unflatten(&self, along: isize, sizes: &[isize]) -> Result<Tensor> {
        const OP: &str = "unflatten";
        let at = axis(OP, along, self.rank())?;
        let n = self.shape()[at];
        let wrong = || invalid(OP, "sizes", format!("sizes whose product is {n}"), format!("{sizes:?}"));
        let given = sizes.iter().filter(|&&s| s != -1);
        let known = given.map(|&s| usize::try_from(s).ok()).try_fold(1usize, |n, s| n.checked_mul(s?));
        let known = known.ok_or_else(wrong)?;
        let rest = match sizes.iter().filter(|&&s| s == -1).count() {
            0 => 1,
            1 if known > 0 => n / known,
            _ => return Err(wrong()),
        };
        if known.checked_mul(rest) != Some(n) {
            return Err(wrong());
        }
        let sizes: Vec<usize> =
            sizes.iter().map(|&s| if s == -1 { rest } else { s.unsigned_abs() }).collect();
        self.reshape(&[&self.shape()[..at], &sizes, &self.shape()[at + 1..]].concat())
    }

    /// Rotated by `k` quarter turns in the plane of two axes, from the first towards the second. Source `torch.rot90`. Errors: equal axes.
    pub fn rot90(&self, k: isize, plane: [isize; 2]) -> Result<Tensor> {
        let [a, b] = [axis("rot90", plane[0], self.rank())?, axis("rot90", plane[1], self.rank())?];
        if a == b {
            return Err(invalid("rot90", "plane", "two different axes", format!("{plane:?}")));
        }
        let [a, b] = [a as isize, b as isize];
        match k.rem_euclid(4) {
            0 => self.copy(),
            1 => self.flip(&[b])?.transpose(a, b),
            2 => self.flip(&[a, b]),
            _ => self.flip(&[a])?.transpose(a, b),
        }
    }

    /// A scalar as a vector of one; others unchanged. Source `torch.atleast_1d`.
    pub fn atleast_1d(&self) -> Result<Tensor> {
        if self.rank() == 0 { self.reshape(&[1]) } else { Ok(self.clone()) }
    }

    /// A scalar or a vector as one row; others unchanged. Source `torch.atleast_2d`.
    pub fn atleast_2d(&self) -> Result<Tensor> {
        if self.rank() < 2 { self.reshape(&[1, self.numel()]) } else { Ok(self.clone()) }
    }

    /// A vector `[n]` as `[1, n, 1]`, a matrix `[m, n]` as `[m, n, 1]`, a scalar as `[1, 1, 1]`; others unchanged. Source `torch.atleast_3d`.
    pub fn atleast_3d(&self) -> Result<Tensor> {
        if self.rank() < 3 { self.atleast_2d()?.unsqueeze(-1) } else { Ok(self.clone()) }
    }

    /// Joined side by side: vectors along their axis, others along the second. Source `torch.hstack`. Errors: as [`concat`](Tensor::concat).
    pub fn hstack(parts: &[&Tensor]) -> Result<Tensor> {
        let parts = each(parts, Tensor::atleast_1d)?;
        let vectors = parts.first().is_some_and(|p| p.rank() == 1);
        joined(if vectors { 0 } else { 1 }, &parts)
    }

    /// Joined one below the other, vectors as rows. Source `torch.vstack`. Errors: as [`concat`](Tensor::concat).
    #[doc(alias = "row_stack")]
    pub fn vstack(parts: &[&Tensor]) -> Result<Tensor> {
        joined(0, &each(parts, Tensor::atleast_2d)?)
    }

    /// Joined along the third axis, which vectors and matrices get as the last. Source `torch.dstack`. Errors: as [`concat`](Tensor::concat).
    pub fn dstack(parts: &[&Tensor]) -> Result<Tensor> {
        joined(2, &each(parts, Tensor::atleast_3d)?)
    }

    /// Joined along the second axis, vectors as columns. Source `torch.column_stack`. Errors: as [`concat`](Tensor::concat).
    pub fn column_stack(parts: &[&Tensor]) -> Result<Tensor> {
        let column = |p: &Tensor| if p.rank() < 2 { p.reshape(&[p.numel(), 1]) } else { Ok(p.clone()) };
        joined(1, &each(parts, column)?)
    }

    /// The whole tensor repeated along its axes; the shorter of shape and counts is filled up with ones in front. Source `torch.tile`. Errors:
    /// as [`repeat`](Tensor::repeat).
    pub fn tile(&self, times: &[usize]) -> Result<Tensor> {
        let rank = self.rank().max(times.len());
        let filled = |list: &[usize]| [vec![1; rank - list.len()], list.to_vec()].concat();
        self.reshape(&filled(self.shape()))?.repeat(&filled(times))
    }

    /// The parts of an axis, each without it; views. Source `torch.unbind`.
    #[doc(alias = "unstack")]
    pub fn unbind(&self, along: isize) -> Result<Vec<Tensor>> {
        let at = axis("unbind", along, self.rank())?;
        (0..self.shape()[at]).map(|i| self.select(along, i)).collect()
    }

    /// `n` parts of an axis, views, whose sizes differ by one at most, the larger first. Source `torch.tensor_split`. Errors: no parts.
    pub fn tensor_split(&self, along: isize, n: usize) -> Result<Vec<Tensor>> {
        let size = self.shape()[axis("tensor_split", along, self.rank())?];
        if n == 0 {
            return Err(invalid("tensor_split", "n", "at least 1", "0"));
        }
        let sizes: Vec<usize> = (0..n).map(|i| size / n + usize::from(i < size % n)).collect();
        self.split(along, &sizes)
    }

    /// Tensors expanded to the shape to which all broadcast. Source `torch.broadcast_tensors`. Errors: shapes that do not broadcast.
    pub fn broadcast_tensors(parts: &[&Tensor]) -> Result<Vec<Tensor>> {
        let mut shape: Vec<usize> = vec![];
        for p in parts {
            shape = broadcast("broadcast_tensors", &shape, p.shape())?.to_vec();
        }
        each(parts, |p| p.expand(&shape))
    }

    /// Matrices along the diagonal of a matrix of zeros; vectors are rows. Source `torch.block_diag`. Errors: no parts, more than two axes.
    pub fn block_diag(parts: &[&Tensor]) -> Result<Tensor> {
        const OP: &str = "block_diag";
        if let Some(p) = parts.iter().find(|p| p.rank() > 2) {
            return Err(invalid(OP, "parts", "at most two axes", format!("shape {:?}", p.shape())));
        }
        let blocks = each(parts, Tensor::atleast_2d)?;
        let width: usize = blocks.iter().map(|b| b.shape()[1]).sum();
        let mut left = 0;
        let mut rows = vec![];
        for b in &blocks {
            let right = width - left - b.shape()[1];
            rows.push(b.pad(PadMode::Constant(0.0), &[(0, 0), (left as isize, right as isize)])?);
            left += b.shape()[1];
        }
        joined(0, &rows)
    }
}

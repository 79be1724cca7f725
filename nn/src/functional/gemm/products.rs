//! Products of vectors, matrices and tensors, made of matrix products.

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, axes, axis, same_device};
use crate::functional::elementwise::arithmetic::broadcast;

impl Tensor {
    /// beta x + alpha y; x is not read where beta is 0.
    fn plus_product(&self, y: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        let y = if alpha == 1.0 { y.clone() } else { y.mul_scalar(alpha)? };
        if beta == 0.0 {
            return y.expand(&broadcast("addmm", self.shape(), y.shape())?);
        }
        if beta == 1.0 { self.add(&y) } else { self.mul_scalar(beta)?.add(&y) }
    }

    /// beta * self + alpha * (a b) for matrices, batches of them, or a matrix and a vector, as [`matmul`](Tensor::matmul) multiplies them; self
    /// broadcasts, and with beta = 0 its values do not matter. Source `torch.addmm`, `torch.baddbmm`, `torch.addmv`. Errors: sizes that do not
    /// fit.
    #[doc(alias = "baddbmm")]
    #[doc(alias = "addmv")]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product(&a.matmul(b)?, beta, alpha)
    }

    /// beta * self + alpha times the sum of the products of two batches of matrices `[B, m, k]` and `[B, k, n]`. Source `torch.addbmm`. Errors:
    /// other ranks, sizes that do not fit.
    pub fn addbmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        if (a.rank(), b.rank()) != (3, 3) {
            let got = format!("shapes {:?} and {:?}", a.shape(), b.shape());
            return Err(invalid("addbmm", "b", "two batches of matrices", got));
        }
        self.plus_product(&a.tensordot(b, &[0, 2], &[0, 1])?, beta, alpha)
    }

    /// beta * self + alpha times the [outer](Tensor::outer) product of two vectors. Source `torch.addr`. Errors: other ranks.
    pub fn addr(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        self.plus_product(&a.outer(b)?, beta, alpha)
    }

    /// The sums of products over pairs of axes, `a_axes[i]` of this tensor with `b_axes[i]` of `b`: the other axes of this tensor, then those of
    /// b. Source `torch.tensordot`, whose number n stands for the last n axes and the first n of b. Errors: lists of different lengths, sizes
    /// that differ, repeated axes.
    pub fn tensordot(&self, b: &Tensor, a_axes: &[isize], b_axes: &[isize]) -> Result<Tensor> {
        const OP: &str = "tensordot";
        let (over_a, over_b) = (axes(OP, a_axes, self.rank())?, axes(OP, b_axes, b.rank())?);
        let sizes = |t: &Tensor, list: &[usize]| list.iter().map(|&a| t.shape()[a]).collect::<Vec<_>>();
        let inner = sizes(self, &over_a);
        if inner != sizes(b, &over_b) {
            let expected = format!("axes of sizes {inner:?}");
            return Err(invalid(OP, "b_axes", expected, format!("sizes {:?}", sizes(b, &over_b))));
        }
        let others =
            |t: &Tensor, over: &[usize]| (0..t.rank()).filter(|a| !over.contains(a)).collect::<Vec<_>>();
        let (free_a, free_b) = (others(self, &over_a), others(b, &over_b));
        let order = |first: &[usize], then: &[usize]| first.iter().chain(then).map(|&a| a as isize).collect();
        let (order_a, order_b): (Vec<isize>, Vec<isize>) = (order(&free_a, &over_a), order(&over_b, &free_b));
        let (left, right) = (sizes(self, &free_a), sizes(b, &free_b));
        let k: usize = inner.iter().product();
        let a = self.permute(&order_a)?.reshape(&[left.iter().product(), k])?;
        let b = b.permute(&order_b)?.reshape(&[k, right.iter().product()])?;
        a.matmul(&b)?.reshape(&[left, right].concat())
    }

    /// The sums of products over the last axes of both tensors; a scalar multiplies. Source `torch.inner`. Errors: last axes of different sizes.
    pub fn inner(&self, b: &Tensor) -> Result<Tensor> {
        if self.rank() == 0 || b.rank() == 0 {
            return self.mul(b);
        }
        self.tensordot(b, &[-1], &[-1])
    }

    /// Kronecker products: each element of this tensor times all of `b`; the shorter shape is filled up with ones in front. Source
    /// `torch.kron`. Errors: more than four axes.
    pub fn kron(&self, b: &Tensor) -> Result<Tensor> {
        let rank = self.rank().max(b.rank());
        if rank > 4 {
            return Err(invalid("kron", "b", "tensors of at most four axes", format!("{rank} axes")));
        }
        let filled = |t: &Tensor| [vec![1; rank - t.rank()], t.shape().to_vec()].concat();
        let (sa, sb) = (filled(self), filled(b));
        let spread = |s: &[usize], first: bool| -> Vec<usize> {
            s.iter().flat_map(|&n| if first { [n, 1] } else { [1, n] }).collect()
        };
        let y = self.reshape(&spread(&sa, true))?.mul(&b.reshape(&spread(&sb, false))?)?;
        y.reshape(&sa.iter().zip(&sb).map(|(m, n)| m * n).collect::<Vec<_>>())
    }

    /// Cross products of vectors of three elements along an axis; the other axes broadcast. Source `torch.linalg.cross`, whose axis is -1, and
    /// `torch.cross`. Errors: other sizes of the axis.
    pub fn cross(&self, b: &Tensor, along: isize) -> Result<Tensor> {
        const OP: &str = "cross";
        same_device(OP, self, b)?;
        let shape = broadcast(OP, self.shape(), b.shape())?;
        let at = axis(OP, along, shape.len())?;
        for t in [self, b] {
            let own = (t.rank() + at).checked_sub(shape.len());
            if own.is_none_or(|own| t.shape()[own] != 3) {
                let got = format!("shapes {:?} and {:?}", self.shape(), b.shape());
                return Err(invalid(OP, "b", format!("3 elements on axis {at} of both"), got));
            }
        }
        let at = [at as isize];
        let (a, b) = (self.expand(&shape)?, b.expand(&shape)?);
        let ahead = a.roll(&[-1], &at)?.mul(&b.roll(&[-2], &at)?)?;
        ahead.sub(&a.roll(&[-2], &at)?.mul(&b.roll(&[-1], &at)?)?)
    }

    /// x1 W x2 + b for x1 `[.., I]`, x2 `[.., J]`, W `[out, I, J]`, b `[out]`: `[.., out]`. Source `torch.nn.functional.bilinear`. Errors: sizes
    /// that do not fit.
    pub fn bilinear(&self, x2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let y = Tensor::einsum("...i,oij,...j->...o", &[self, weight, x2])?;
        bias.map_or(Ok(y.clone()), |b| y.add(b))
    }

    /// The product of a chain of matrices, of which the first may be a row and the last a column (vectors), in the order of least arithmetic.
    /// Source `torch.linalg.multi_dot`. Errors: no matrices, other ranks, sizes that do not fit.
    #[doc(alias = "chain_matmul")]
    pub fn multi_dot(parts: &[&Tensor]) -> Result<Tensor> {
        const OP: &str = "multi_dot";
        let last = parts.len().saturating_sub(1);
        let fits = |(i, p): (usize, &&Tensor)| p.rank() == 2 || (p.rank() == 1 && (i == 0 || i == last));
        if parts.is_empty() || !parts.iter().enumerate().all(fits) {
            let got = format!("{:?}", parts.iter().map(|p| p.shape()).collect::<Vec<_>>());
            return Err(invalid(OP, "parts", "matrices, vectors at the ends", got));
        }
        if let [one] = parts {
            return Ok((*one).clone());
        }
        let rows = |i: usize| if i == 0 && parts[0].rank() == 1 { 1 } else { parts[i].shape()[0] };
        let mut sizes: Vec<usize> = (0..parts.len()).map(rows).collect();
        sizes.push(if parts[last].rank() == 1 { 1 } else { parts[last].shape()[1] });
        let cut = cheapest_cuts(&sizes);
        chain(parts, &cut, 0, last)
    }
}

/// For every part i..=j of a chain of matrices `[sizes[i], sizes[i + 1]]`, behind which matrix to cut it for the fewest multiplications.
fn cheapest_cuts(sizes: &[usize]) -> Vec<Vec<usize>> {
    let n = sizes.len() - 1;
    let (mut cost, mut cut) = (vec![vec![0f64; n]; n], vec![vec![0; n]; n]);
    for length in 1..n {
        for i in 0..n - length {
            let j = i + length;
            let of = |k: usize| {
                let outer = sizes[i] as f64 * sizes[k + 1] as f64 * sizes[j + 1] as f64;
                cost[i][k] + cost[k + 1][j] + outer
            };
            let best = (i..j).min_by(|&a, &b| of(a).total_cmp(&of(b))).unwrap_or(i);
            (cut[i][j], cost[i][j]) = (best, of(best));
        }
    }
    cut
}

/// The product of the matrices i..=j.
fn chain(parts: &[&Tensor], cut: &[Vec<usize>], i: usize, j: usize) -> Result<Tensor> {
    if i == j {
        return Ok(parts[i].clone());
    }
    chain(parts, cut, i, cut[i][j])?.matmul(&chain(parts, cut, cut[i][j] + 1, j)?)
}

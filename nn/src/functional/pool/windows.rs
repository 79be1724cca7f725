//! Pooling made of other operations: its inverse, random windows, p-norms.

use trefoil::DType;
use trefoil::ops::pool::Window;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// One size per axis of a plane.
fn spatial<'a>(op: &'static str, x: &'a Tensor, axes: usize) -> Result<&'a [usize]> {
    match x.shape() {
        [_, _, spatial @ ..] if spatial.len() == axes => Ok(spatial),
        other => {
            let expected = format!("shape [N, C, spatial..] with {axes} spatial axes");
            Err(invalid(op, "self", expected, format!("{other:?}")))
        }
    }
}

/// The size that has so many windows, or the given one.
fn unpooled(op: &'static str, x: &Tensor, w: &Window, size: Option<&[usize]>) -> Result<Vec<usize>> {
    let spatial = spatial(op, x, w.kernel.len())?;
    if let Some(size) = size {
        if size.len() == spatial.len() {
            return Ok(size.to_vec());
        }
        let expected = format!("{} sizes, one per axis", spatial.len());
        return Err(invalid(op, "size", expected, format!("{size:?}")));
    }
    let of = |(i, n): (usize, &usize)| {
        let end = n.checked_sub(1)?.checked_mul(*w.stride.get(i)?)?.checked_add(w.kernel[i])?;
        end.checked_sub(w.padding.get(i)?.checked_mul(2)?)
    };
    let sizes: Option<Vec<usize>> = spatial.iter().enumerate().map(of).collect();
    sizes.ok_or_else(|| invalid(op, "window", "windows that fit", format!("{w:?} for {spatial:?}")))
}

/// The first cells (i64 `[N, C, out]`) of `out` windows of `kernel` cells that cover `n` cells, from a number u in [0, 1) for each plane
/// `[N, C]`: floor((i + u) a) - floor(u a) with a = (n - kernel) / (out - 1), and n - kernel for the last.
fn random_starts(u: &Tensor, n: usize, kernel: usize, out: usize) -> Result<Tensor> {
    let last = Tensor::full(u.device(), DType::I64, &[u.shape()[0], u.shape()[1], 1], (n - kernel) as f64)?;
    if out == 1 {
        return Ok(last);
    }
    let step = (n - kernel) as f64 / (out - 1) as f64;
    let u = u.unsqueeze(-1)?;
    let i = Tensor::arange(u.device(), u.dtype(), 0.0, 1.0, out - 1)?;
    let whole = |t: Tensor| t.mul_scalar(step)?.to_dtype(DType::I64);
    Tensor::concat(-1, &[&whole(u.add(&i)?)?.sub(&whole(u)?)?, &last])
}

impl Tensor {
    /// The inverse of [`max_pool_with_index`](Tensor::max_pool_with_index), `[N, C, windows..] -> [N, C, spatial..]`: each maximum at its
    /// position `index` (i32 or i64, of this tensor's shape) in a plane of zeros. `size` are the sizes of the plane, by default the smallest
    /// with so many windows. Of maxima at one position the last counts. Source `torch.nn.functional.max_unpool1d`, `2d`, `3d`. Errors: shapes
    /// that do not fit; a position outside of the plane is reported by the next call that waits.
    #[doc(alias = "max_unpool2d")]
    pub fn max_unpool(&self, index: &Tensor, window: &Window, size: Option<&[usize]>) -> Result<Tensor> {
        const OP: &str = "max_unpool";
        same_device(OP, self, index)?;
        let size = unpooled(OP, self, window, size)?;
        if index.shape() != self.shape() {
            let got = format!("{:?}", index.shape());
            return Err(invalid(OP, "index", format!("shape {:?}", self.shape()), got));
        }
        let lead = &self.shape()[..2];
        let flat = [lead, &[self.shape()[2..].iter().product()]].concat();
        let planes = [lead, &[size.iter().product()]].concat();
        let zeros = Tensor::zeros(self.device(), self.dtype(), &planes)?;
        let y = zeros.scatter(2, &index.reshape(&flat)?, &self.reshape(&flat)?)?;
        y.reshape(&[lead, &size].concat())
    }

    /// Maxima of `out` windows of `kernel` cells whose places are drawn for each plane (Graham, 2015), `[N, C, H, W] -> [N, C, out..]`, and
    /// their positions in the plane (i64). `samples`: numbers in [0, 1), `[N, C, 2]`, the first for the columns and the second for the rows
    /// ([`rand`](Tensor::rand) draws them). Of equals the first is chosen and receives the gradient. Source
    /// `torch.nn.functional.fractional_max_pool2d`. Errors: shapes that do not fit, windows that the plane does not hold.
    pub fn fractional_max_pool2d(
        &self,
        kernel: [usize; 2],
        out: [usize; 2],
        samples: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        // PyTorch counts the axes of planes from the last one, those of volumes from the first.
        self.fractional_max_pool("fractional_max_pool2d", (kernel, out), samples, [1, 0])
    }

    /// [`fractional_max_pool2d`](Tensor::fractional_max_pool2d) of volumes `[N, C, D, H, W]`; `samples` `[N, C, 3]` are for D, H and W. Source
    /// `torch.nn.functional.fractional_max_pool3d`. Errors: as there.
    pub fn fractional_max_pool3d(
        &self,
        kernel: [usize; 3],
        out: [usize; 3],
        samples: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        self.fractional_max_pool("fractional_max_pool3d", (kernel, out), samples, [0, 1, 2])
    }

    /// With the place among the samples of each axis.
    fn fractional_max_pool<const D: usize>(
        &self,
        op: &'static str,
        (kernel, out): ([usize; D], [usize; D]),
        samples: &Tensor,
        sample: [usize; D],
    ) -> Result<(Tensor, Tensor)> {
        same_device(op, self, samples)?;
        let plane = spatial(op, self, D)?;
        let (n, c) = (self.shape()[0], self.shape()[1]);
        if samples.shape() != [n, c, D] {
            let got = format!("{:?}", samples.shape());
            return Err(invalid(op, "samples", format!("shape [{n}, {c}, {D}]"), got));
        }
        for i in 0..D {
            if kernel[i] == 0 || out[i] == 0 || out[i].saturating_add(kernel[i]) > plane[i].saturating_add(1)
            {
                let expected = format!("windows that {plane:?} cells hold");
                return Err(invalid(op, "out", expected, format!("{out:?} windows of {kernel:?}")));
            }
        }
        // [N, C, out.., kernel..] of positions in the plane, of which an axis contributes to its two.
        let mut place = Tensor::zeros(self.device(), DType::I64, &[1])?;
        for i in 0..D {
            let u = samples.detach().select(2, sample[i])?;
            let start = random_starts(&u, plane[i], kernel[i], out[i])?;
            let taps = Tensor::arange(self.device(), DType::I64, 0.0, 1.0, kernel[i])?;
            let mut shape = [vec![n, c], vec![1; 2 * D]].concat();
            (shape[2 + i], shape[2 + D + i]) = (out[i], kernel[i]);
            let cells = start.unsqueeze(-1)?.add(&taps)?.reshape(&shape)?;
            let step: usize = plane[i + 1..].iter().product();
            place = place.add(&cells.mul_scalar(step as f64)?)?;
        }
        let windows = [n, c, out.iter().product(), kernel.iter().product()];
        let place = place.reshape(&windows)?;
        let flat = self.reshape(&[n, c, plane.iter().product()])?;
        let taken = flat.gather(2, &place.reshape(&[n, c, windows[2] * windows[3]])?)?.reshape(&windows)?;
        let (y, best) = taken.max_with_index(3)?;
        let index = place.gather(3, &best.unsqueeze(3)?)?;
        let shape = [&[n, c][..], &out].concat();
        Ok((y.reshape(&shape)?, index.reshape(&shape)?))
    }

    /// p-norms of windows, `[N, C, spatial..] -> [N, C, windows..]`: the p-th root of the sums of x^p. Source
    /// `torch.nn.functional.lp_pool1d`, `2d`, `3d`. Errors: those of [`avg_pool`](Tensor::avg_pool), padding, p of 0.
    #[doc(alias = "lp_pool2d")]
    pub fn lp_pool(&self, p: f64, window: &Window) -> Result<Tensor> {
        if p == 0.0 || window.padding.iter().any(|&n| n != 0) {
            let got = format!("p = {p}, {window:?}");
            return Err(invalid("lp_pool", "window", "no padding, and p other than 0", got));
        }
        let mean = self.pow_scalar(p)?.avg_pool(window)?;
        let cells: usize = window.kernel.iter().product();
        mean.mul_scalar(cells as f64)?.pow_scalar(1.0 / p)
    }
}

//! Interpolation, sampling and the exchange of channels for resolution.

use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::resample::{GridSample, GridSampleBwd, Interpolate, InterpolateMode, RoiAlign};

use crate::core::autograd::{BackwardCtx, Saved, linear_map, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::index::select::front;
use crate::functional::operand::{operand, view, whole};

impl Tensor {
    /// x [N, C, spatial..] brought to another size along its one to three spatial axes. Oracle `F.interpolate(x, size, ..)`. Errors:
    /// `Invalid` for rank, sizes of 0, `align_corners` or `antialias` in other modes than linear and cubic.
    pub fn interpolate(&self, size: &[usize], p: Interpolate) -> Result<Tensor> {
        let shape = match self.shape() {
            [n, c, spatial @ ..] if spatial.len() == size.len() => [&[*n, *c], size].concat(),
            other => {
                let expected = format!("shape [N, C, ..] with {} spatial axes", size.len());
                return Err(invalid("interpolate", "x", expected, format!("{other:?}")));
            }
        };
        let x = self.contiguous()?;
        let y = self.like(&shape)?;
        self.device().interpolate(p, x.operand().view()?, y.operand().view_mut()?)?;
        let (full, size) = (self.shape().to_vec(), size.to_vec());
        Ok(y.record("interpolate", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (full, size) = (full.clone(), size.clone());
                    let put = move |dy: &Tensor| {
                        let (dy, dx) = (dy.contiguous()?, dy.like(&full)?);
                        dy.device().interpolate_bwd(p, dy.operand().view()?, dx.operand().grad(false)?)?;
                        Ok(dx)
                    };
                    let take = move |u: &Tensor| u.interpolate(&size, p);
                    let dx = linear_map("interpolate", &cx.dy()?, Arc::new(put), Arc::new(take))?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().interpolate_bwd(p, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// As [`interpolate`](Tensor::interpolate) to floor(n * scale) cells per axis, at positions that lie 1/scale cells apart. That differs
    /// from the size alone where n * scale is no whole number. As in PyTorch (on the CPU), an axis keeps its cells where that size is n
    /// (linear, and nearest of images), and repeats each where it is 2n (nearest of images). Oracle `F.interpolate(x, scale_factor=scale,
    /// ..)`.
    ///
    /// Errors: `Invalid` for scales that are not positive and finite, results without cells, and for cubic or antialiased interpolation
    /// where n * scale is no whole number.
    pub fn interpolate_by(&self, scale: &[f64], p: Interpolate) -> Result<Tensor> {
        const OP: &str = "interpolate";
        let spatial = match self.shape() {
            [_, _, spatial @ ..] if spatial.len() == scale.len() => spatial,
            other => {
                let expected = format!("shape [N, C, ..] with {} spatial axes", scale.len());
                return Err(invalid(OP, "x", expected, format!("{other:?}")));
            }
        };
        let wide: Vec<f64> = spatial.iter().zip(scale).map(|(&n, s)| n as f64 * s).collect();
        if !wide.iter().all(|&m| (1.0..(1u64 << 30) as f64).contains(&m)) {
            let expected = format!("positive factors that give {spatial:?} between 1 and 2^30 cells");
            return Err(invalid(OP, "scale", expected, format!("{scale:?}")));
        }
        let size: Vec<usize> = wide.iter().map(|m| m.floor() as usize).collect();
        let by_size = p.align_corners || p.mode == InterpolateMode::Area;
        if by_size || wide.iter().all(|m| m.fract() == 0.0) {
            return self.interpolate(&size, p);
        }
        if p.antialias || p.mode == InterpolateMode::Cubic {
            let expected = format!("factors that make whole numbers of {spatial:?}");
            return Err(invalid(OP, "scale", expected, format!("{scale:?}")));
        }
        // One axis after the other: rows chosen (nearest) or blended (linear).
        let (mut axes, image) = (size.iter().zip(scale).enumerate(), size.len() == 2);
        axes.try_fold(self.clone(), |x, (a, (&m, s))| {
            let n = spatial[a];
            match p.mode {
                InterpolateMode::Linear if m == n => Ok(x),
                InterpolateMode::Nearest if image && m == n => Ok(x),
                InterpolateMode::Nearest if image && m == 2 * n => x.repeat_interleave(a as isize + 2, 2),
                _ => x.resample_axis(a + 2, m, s.recip(), p.mode),
            }
        })
    }

    /// `m` cells along one axis at positions `step` apart; nearest, nearest-exact or linear.
    fn resample_axis(&self, at: usize, m: usize, step: f64, mode: InterpolateMode) -> Result<Tensor> {
        let last = self.shape()[at] as f64 - 1.0;
        let dtype = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let cell = Tensor::arange(self.device(), dtype, 0.0, 1.0, m)?;
        let rows =
            |t: &Tensor| self.index_select(at as isize, &t.clamp(None, Some(last))?.to_dtype(DType::I64)?);
        match mode {
            InterpolateMode::Nearest => rows(&cell.mul_scalar(step)?.floor()?),
            InterpolateMode::NearestExact => rows(&cell.add_scalar(0.5)?.mul_scalar(step)?.floor()?),
            _ => {
                let at_cells =
                    cell.add_scalar(0.5)?.mul_scalar(step)?.add_scalar(-0.5)?.clamp(Some(0.0), None)?;
                let low = at_cells.floor()?;
                let mut along = vec![1; self.rank()];
                along[at] = m;
                let weight = at_cells.sub(&low)?.to_dtype(self.dtype())?.reshape(&along)?;
                let (a, b) = (rows(&low)?, rows(&low.add_scalar(1.0)?)?);
                a.add(&b.sub(&a)?.mul(&weight)?)
            }
        }
    }

    /// Positions of a grid [N, H, W, 2] or [N, D, H, W, 3] under the affine maps of this tensor, [N, 2, 3] or [N, 3, 4]. `size` holds the
    /// grid's spatial sizes. Oracle `F.affine_grid`. Errors: `Invalid` for shapes.
    pub fn affine_grid(&self, size: &[usize], align_corners: bool) -> Result<Tensor> {
        let &[n, axes, _] = self.shape() else {
            let expected = "shape [N, 2, 3] or [N, 3, 4]";
            return Err(invalid("affine_grid", "theta", expected, format!("{:?}", self.shape())));
        };
        let theta = self.contiguous()?;
        let grid = self.like(&[&[n], size, &[axes]].concat())?;
        self.device().affine_grid(align_corners, theta.operand().view()?, grid.operand().view_mut()?)?;
        Ok(grid.record("affine_grid", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dtheta) = cx.target(0)? else { return Ok(()) };
                let dgrid = cx.dy()?.contiguous()?;
                Ok(dgrid.device().affine_grid_bwd(align_corners, dgrid.operand().view()?, dtheta.out()?)?)
            }
        }))
    }

    /// x [N, C, H, W] or [N, C, D, H, W] at the positions of `grid` [N, out.., 2 or 3], whose last axis is x, y(, z) with the ends of an
    /// axis at -1 and 1. Both receive gradients. Oracle `F.grid_sample`. Errors: `Invalid` for shapes, dtypes, cubic volumes.
    pub fn grid_sample(&self, grid: &Tensor, p: GridSample) -> Result<Tensor> {
        const OP: &str = "grid_sample";
        same_device(OP, self, grid)?;
        let (xs, gs) = (self.shape(), grid.shape());
        if xs.len() < 3 || gs.len() != xs.len() {
            let expected = format!("the rank of x, shape {xs:?}");
            return Err(invalid(OP, "grid", expected, format!("shape {gs:?}")));
        }
        let (x, grid) = (self.contiguous()?, grid.contiguous()?);
        let y = self.like(&[&xs[..2], &gs[1..gs.len() - 1]].concat())?;
        let (xo, go, yo) = (x.operand(), grid.operand(), y.operand());
        self.device().grid_sample(p, xo.view()?, go.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[&x, &grid], || {
            let (x, grid) = (Saved::new(&x), Saved::new(&grid));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dgrid) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (dyo, x, grid) = (dy.operand(), x.get(cx)?.operand(), grid.get(cx)?.operand());
                let io = GridSampleBwd::new(dyo.view()?, x.view()?, grid.view()?)
                    .dx(out(&dx)?)
                    .dgrid(out(&dgrid)?);
                Ok(dy.device().grid_sample_bwd(p, io)?)
            }
        }))
    }

    /// Regions of x [N, C, H, W] as `size` [h, w] bins each, the means of bilinear samples: `boxes` [K, 4] (x1, y1, x2, y2) of this tensor's
    /// dtype, `images` (i32 or i64 `[K]`) the image of each `->` [K, C, h, w]. A box that is not finite gives NaN. The input receives the
    /// gradient; the boxes have none. Source `torchvision.ops.roi_align`, whose `sampling_ratio` of -1 is 0 here. Errors: `Invalid` for shapes
    /// and dtypes that do not fit, bins or samples beyond 2^15 and 2^22 along an axis, a scale that is not positive; an image out of range is
    /// reported when the device is next waited for.
    pub fn roi_align(
        &self,
        boxes: &Tensor,
        images: &Tensor,
        size: [usize; 2],
        p: RoiAlign,
    ) -> Result<Tensor> {
        const OP: &str = "roi_align";
        for t in [boxes, images] {
            same_device(OP, self, t)?;
        }
        let (&[_, channels, _, _], &[count]) = (self.shape(), images.shape()) else {
            let got = format!("shapes {:?} and {:?}", self.shape(), images.shape());
            return Err(invalid(OP, "x", "shapes [N, C, H, W] of x and [K] of images", got));
        };
        let (x, boxes, images) = (self.contiguous()?, boxes.detach().contiguous()?, images.contiguous()?);
        let y = self.like(&[count, channels, size[0], size[1]])?;
        let [xo, bo, io, yo] = [&x, &boxes, &images, &y].map(Tensor::operand);
        self.device().roi_align(p, xo.view()?, bo.view()?, io.view()?, yo.view_mut()?)?;
        Ok(y.record(OP, &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                let [dyo, bo, io] = [&dy, &boxes, &images].map(Tensor::operand);
                Ok(dy.device().roi_align_bwd(p, dyo.view()?, bo.view()?, io.view()?, dx.out()?)?)
            }
        }))
    }

    /// Blocks of `r * r` channels as squares of cells: [.., C*r*r, H, W] -> [.., C, r*H, r*W]. Oracle `F.pixel_shuffle`. Errors: `Invalid`
    /// for rank below 3, r = 0, channels not divisible by r*r.
    pub fn pixel_shuffle(&self, r: usize) -> Result<Tensor> {
        let (lead, [c, h, w]) = self.last_three("pixel_shuffle")?;
        let Some(per) = r.checked_mul(r).filter(|&n| n > 0 && c.is_multiple_of(n)) else {
            let expected = format!("a factor whose square divides the {c} channels");
            return Err(invalid("pixel_shuffle", "r", expected, format!("{r}")));
        };
        let x = self.reshape(&[lead.iter().product(), c / per, r, r, h, w])?;
        x.permute(&[0, 1, 4, 2, 5, 3])?.reshape(&[lead, &[c / per, h * r, w * r]].concat())
    }

    /// The inverse of [`pixel_shuffle`](Tensor::pixel_shuffle): [.., C, r*H, r*W] -> [.., C*r*r, H, W]. Oracle `F.pixel_unshuffle`. Errors:
    /// `Invalid` for rank below 3, r = 0, sizes not divisible by r.
    pub fn pixel_unshuffle(&self, r: usize) -> Result<Tensor> {
        let (lead, [c, h, w]) = self.last_three("pixel_unshuffle")?;
        if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            let expected = format!("a factor that divides {h} and {w}");
            return Err(invalid("pixel_unshuffle", "r", expected, format!("{r}")));
        }
        let (h, w) = (h / r, w / r);
        let x = self.reshape(&[lead.iter().product(), c, h, r, w, r])?;
        let channels = c.saturating_mul(r).saturating_mul(r);
        x.permute(&[0, 1, 3, 5, 2, 4])?.reshape(&[lead, &[channels, h, w]].concat())
    }

    /// Channels of `groups` groups dealt out in turn: channel `j` of group `i` goes to `j * groups + i`, x [B, C, ..] (`F.channel_shuffle`).
    /// Errors: `Invalid` for rank below 3, groups that do not divide C.
    pub fn channel_shuffle(&self, groups: usize) -> Result<Tensor> {
        let &[b, c, _, ..] = self.shape() else {
            let got = format!("{:?}", self.shape());
            return Err(invalid("channel_shuffle", "x", "shape [B, C, ..] of rank 3 or more", got));
        };
        if groups == 0 || !c.is_multiple_of(groups) {
            let expected = format!("a number that divides the {c} channels");
            return Err(invalid("channel_shuffle", "groups", expected, format!("{groups}")));
        }
        let x = self.reshape(&[b, groups, c / groups, self.shape()[2..].iter().product()])?;
        x.permute(&[0, 2, 1, 3])?.reshape(self.shape())
    }

    /// Leading sizes, and the last three.
    fn last_three(&self, op: &'static str) -> Result<(&[usize], [usize; 3])> {
        match self.shape() {
            [lead @ .., c, h, w] => Ok((lead, [*c, *h, *w])),
            other => Err(invalid(op, "x", "shape [.., C, H, W]", format!("{other:?}"))),
        }
    }

    /// Non-maximum suppression of boxes (x1, y1, x2, y2), which are this tensor `[n, 4]`, floats: the positions (i64, by falling score) of
    /// those that overlap no kept box of a higher score (of equal scores the first box) with an intersection over union above
    /// `iou_threshold`. With `groups` (i32 or i64 `[n]`) only boxes of one group exclude each other. Waits for the device, which alone knows
    /// how many are kept. No gradient. Source `torchvision.ops.nms`, `batched_nms`. Errors: `Invalid` for shapes and dtypes that do not
    /// fit, a threshold that is NaN.
    pub fn nms(&self, scores: &Tensor, groups: Option<&Tensor>, iou_threshold: f64) -> Result<Tensor> {
        const OP: &str = "nms";
        for t in [Some(scores), groups].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        let (boxes, scores) = (self.detach().contiguous()?, scores.detach().contiguous()?);
        let groups = whole(groups)?;
        let Some(&n) = boxes.shape().first() else {
            return Err(invalid(OP, "boxes", "shape [n, 4]", "a scalar"));
        };
        let list = |n: usize| Tensor::empty(self.device(), DType::I64, &[n]);
        let (keep, count) = (list(n)?, list(1)?);
        let [bo, so, ko, co] = [&boxes, &scores, &keep, &count].map(Tensor::operand);
        let go = operand(groups.as_ref());
        let into = (ko.view_mut()?, co.view_mut()?);
        self.device().nms(iou_threshold, bo.view()?, so.view()?, view(&go)?, into.0, into.1)?;
        front(&keep, &count)
    }
}

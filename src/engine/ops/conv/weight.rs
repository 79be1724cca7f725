//! Weight gradients of convolutions, and windows as columns.

use std::borrow::Cow;

use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims};
use crate::engine::ops::conv::{COUNT, Depthwise, DepthwiseArgs, NEAR, Way};
use crate::error::Result;
use crate::ops::conv::*;
use crate::spec::BLOCK;
use crate::spec::kernels::conv::*;

/// Elements of partial sums beyond which a sum is not split further.
const PARTS: usize = 1 << 27;

/// Whether 32-bit positions can describe the gradient.
fn fits(s: &ConvShape) -> std::result::Result<(), Cow<'static, str>> {
    let far = |a: usize| {
        let reach = s.kernel[a].saturating_mul(s.dilation[a]).saturating_add(s.pad[a]);
        s.input[a].max(s.output[a]).max(s.stride[a]).max(reach) >= NEAR
    };
    let large = s.cig() * s.in_plane() >= COUNT || s.n.saturating_mul(s.out_plane()) >= COUNT;
    if (0..3).any(far) || large || s.cig() * s.taps() >= COUNT {
        return Err("its extents need 64-bit positions".into());
    }
    Ok(())
}

impl Engine {
    pub(in crate::engine::ops) fn weight_way(
        &self,
        op: &'static str,
        dtype: DType,
        s: &ConvShape,
    ) -> Result<Way> {
        self.conv_way(op, dtype, fits(s), s.n * s.out_plane() >= 32)
    }

    /// dw (+)= sums of dy * x.
    pub(in crate::engine::ops) fn weight_gradient(
        &self,
        op: &'static str,
        way: Way,
        s: &ConvShape,
        x: View<'_>,
        dy: View<'_>,
        g: GradMut<'_>,
    ) -> Result<()> {
        let size = g.out.numel();
        if size == 0 {
            return Ok(());
        }
        let (m, cols, k) = (s.cog(), s.cig() * s.taps(), s.n * s.out_plane());
        if k == 0 {
            return self.conv_join(&g, None, 0);
        }
        let (dtype, caps) = (x.dtype(), self.device_caps());
        let thin = s.groups > 1 && m <= 4 && s.cig() <= 4;
        let auto = !matches!(way, Way::Tile128 | Way::Tile64 | Way::SplitK);
        let direct = way == Way::Direct || (auto && (thin || fits(s).is_err()));
        if direct {
            return self.direct_weight(op, s, x, dy, g);
        }
        let large = match way {
            Way::Tile128 => true,
            Way::Tile64 | Way::SplitK => false,
            _ => dtype != DType::F64 && !caps.is_cpu && m > 64 && cols > 64,
        };
        let side = if large { 128 } else { 64 };
        let (mt, ct) = (m.div_ceil(side), cols.div_ceil(side));
        // Two blocks of the large tile are resident per unit, four of the small one.
        let want = (caps.compute_units as usize).max(1) * if large { 2 } else { 4 };
        let least = if way == Way::SplitK { 2 } else { 1 };
        let splits = (want / (mt * ct * s.groups)).min(k / 64).min(PARTS / size).max(least);
        let per = k.div_ceil(splits).next_multiple_of(8);
        let splits = k.div_ceil(per);

        let plan = self.scratch(DType::I32, 4 * (1 + cols))?;
        self.conv_plan(s, false, None, &plan.view(), (1, 1, s.cig()), s.input)?;
        let real = dtype.accumulator();
        let part = self.scratch(real, splits * size)?;
        let plane = s.in_plane();
        let args = ConvWeightArgs {
            x: self.arg_in(&x),
            dy: self.arg_in(&dy),
            plan: self.arg_in(&plan.view()),
            part: self.arg_in(&part.view()),
            img: dims(s.input.into_iter().chain([s.ci * plane, s.cig() * plane])),
            out: dims(s.output.into_iter().chain([m, s.groups, s.n])),
            step: dims(s.stride.into_iter().chain(s.pad)),
            size: dims([cols, splits, per, mt, ct, k]),
        };
        let kernel = if large { &CONV_WEIGHT128 } else { &CONV_WEIGHT64 };
        let blocks = mt.saturating_mul(ct).saturating_mul(s.groups).saturating_mul(splits);
        self.launch(kernel, dtype, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
    }

    /// Adds the runs of a split sum.
    fn conv_join(&self, g: &GradMut<'_>, part: Option<&View<'_>>, splits: usize) -> Result<()> {
        let n = g.out.numel();
        let args = ConvCombineArgs {
            part: self.arg_opt(part),
            dw: self.arg_out(&g.out),
            n: n as i64,
            splits: splits as i32,
            accumulate: i32::from(g.accumulate),
        };
        self.launch(&CONV_COMBINE, g.out.dtype(), "", Grid::Stride(n), &args)
    }

    /// One block per pair of channels, chunk of taps and run of places.
    fn direct_weight(
        &self,
        op: &'static str,
        s: &ConvShape,
        x: View<'_>,
        dy: View<'_>,
        g: GradMut<'_>,
    ) -> Result<()> {
        self.conv_extents(op, s)?;
        let (dtype, size, k) = (x.dtype(), g.out.numel(), s.n * s.out_plane());
        if let Some(t) = (s.cig() == 1).then(|| Depthwise::of(s, &x, &dy)).flatten() {
            return self.depthwise_weight(s, &t, x, dy, g);
        }
        let blocks = size / s.taps() * s.taps().div_ceil(9);
        let want = (self.device_caps().compute_units as usize).max(1) * 16;
        let splits = (want / blocks).min(k / 1024).min(PARTS / size).max(1);
        let per = k.div_ceil(splits).next_multiple_of(256);
        let splits = k.div_ceil(per);
        let real = dtype.accumulator();
        let part = self.scratch(real, splits * size)?;
        let args = ConvDirectWeightArgs {
            x: self.arg_in(&x),
            dy: self.arg_in(&dy),
            part: self.arg_in(&part.view()),
            img: dims(s.input),
            out: dims(s.output.into_iter().chain([s.cog(), s.groups, s.n, s.cig()])),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            splits: splits as i32,
            per: per as i64,
        };
        self.launch(&CONV_DIRECT_WEIGHT, dtype, "", Grid::Blocks([blocks * splits, 1, 1]), &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
    }

    /// One block per channel and run of items.
    fn depthwise_weight(
        &self,
        s: &ConvShape,
        t: &Depthwise,
        x: View<'_>,
        dy: View<'_>,
        g: GradMut<'_>,
    ) -> Result<()> {
        let DepthwiseArgs { items: n, size, by, wide } = t.weight(s);
        let want = (self.device_caps().compute_units as usize).max(1) * 8;
        let splits = (want / s.co).min(n / BLOCK as usize).min(PARTS / g.out.numel()).max(1);
        let per = n.div_ceil(splits).next_multiple_of(BLOCK as usize);
        let splits = n.div_ceil(per);
        let part = self.scratch(x.dtype().accumulator(), splits * g.out.numel())?;
        let args = ConvDepthwiseWeightArgs {
            x: self.arg_in(&x),
            dy: self.arg_in(&dy),
            part: self.arg_in(&part.view()),
            n: n as i64,
            per: per as i64,
            size,
            by,
            wide,
        };
        let grid = Grid::Blocks([s.co * splits, 1, 1]);
        self.launch(&CONV_DEPTHWISE_WEIGHT, x.dtype(), "", grid, &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
    }

    /// im2col and col2im.
    pub(in crate::engine::ops) fn columns(
        &self,
        op: &'static str,
        p: &Conv,
        kernel: &[usize],
        from: View<'_>,
        to: GradMut<'_>,
    ) -> Result<()> {
        let (gather, out) = (op == "im2col", to.out.as_view());
        let (x, col) = if gather { (&from, &out) } else { (&out, &from) };
        let s = check_columns(op, p, kernel, x, col, &to.out)?;
        self.check_owner(op, if gather { "x" } else { "col" }, &from)?;
        self.check_owner(op, if gather { "col" } else { "x" }, &out)?;
        self.conv_extents(op, &s)?;
        let n = out.numel();
        let (dtype, grid) = (out.dtype(), Grid::Stride(n));
        let (from, to, n, accumulate) =
            (self.arg_in(&from), self.arg_in(&out), n as i64, i32::from(to.accumulate));
        let (img, out) = (dims(s.input), dims(s.output));
        let win = dims(s.kernel.into_iter().chain(s.stride));
        let geo = dims(s.pad.into_iter().chain(s.dilation));
        if gather {
            let args = Im2colArgs { x: from, col: to, n, img, out, win, geo, accumulate };
            self.launch(&IM2COL, dtype, "", grid, &args)
        } else {
            let args = Col2imArgs { col: from, x: to, n, img, out, win, geo, accumulate };
            self.launch(&COL2IM, dtype, "", grid, &args)
        }
    }
}

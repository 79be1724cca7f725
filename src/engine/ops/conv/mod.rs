//! Convolution: one description of a gathered product, which serves forward and adjoint, and the kernels for it. Weight gradients and columns are
//! in `weight.rs`.

pub(super) mod causal;
mod columns;
pub(super) mod deformable;
mod depthwise;
mod few;
mod format;
mod matrix;
mod plan;
mod reduced;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;
mod vendor;
pub(super) mod weight;

use self::format::channels_last;
use self::plan::conv::{ConvPlan, ConvProblem};
use self::plan::weight::{WeightPlan, WeightProblem};
use self::plan::{COUNT, Library, Tile};
use self::reduced::Reduced;
use self::vendor::Wanted;
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::{ConvPass, VendorConvProblem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::error::{GpuError, Result};
use crate::ops::activation::Activation;
use crate::ops::conv::*;
use crate::ops::core::Choice;
use crate::ops::gemm::{Gemm, GemmAxis, GemmIo, GemmOps, Precision, fused_act};
use crate::ops::reduce::ReduceOps;
use crate::ops::shape::ShapeOps;
use crate::spec::Kernel;
use crate::spec::kernels::conv::*;

/// y = act(scale * (conv or its adjoint of x with w) + bias + residual).
struct Gathered<'a> {
    p: ConvProblem<'static>,
    x: View<'a>,
    w: View<'a>,
    scale: Option<View<'a>>,
    bias: Option<View<'a>>,
    residual: Option<View<'a>>,
    y: ViewMut<'a>,
    z: Option<ViewMut<'a>>,
    accumulate: bool,
    act: Activation,
    precision: Precision,
}

impl<'a> Gathered<'a> {
    fn forward(s: ConvShape, back: bool, p: &Conv, io: ConvIo<'a>) -> Self {
        Gathered {
            p: ConvProblem {
                s,
                back,
                dtype: io.x.dtype(),
                last: false,
                tf32: p.precision == Precision::Tf32,
                vendor: Library::unasked("the portable kernels are asked"),
            },
            x: io.x,
            w: io.w,
            scale: io.scale,
            bias: io.bias,
            residual: io.residual,
            y: io.y,
            z: io.z,
            accumulate: false,
            act: p.act,
            precision: p.precision,
        }
    }

    fn gradient(s: ConvShape, back: bool, p: &Conv, x: View<'a>, w: View<'a>, g: GradMut<'a>) -> Self {
        let (y, accumulate) = (g.out, g.accumulate);
        let io = ConvIo { x, w, bias: None, scale: None, residual: None, y, z: None };
        Gathered { accumulate, act: Activation::Identity, ..Gathered::forward(s, back, p, io) }
    }
}

/// How a weight gradient runs.
struct WeightWay {
    plan: WeightPlan,
    /// The convolution whose gradient it is.
    reduced: Reduced,
    /// Whether its operands are channels last; else they are contiguous.
    last: bool,
    vendor: Option<VendorConvProblem>,
}

/// The kernel of a tile.
fn tile_kernel(tile: Tile) -> &'static Kernel<ConvTileArgs> {
    match tile {
        Tile::Square128 => &CONV_TILE128,
        Tile::Wide64 => &CONV_TILE64W,
        Tile::Wide32 => &CONV_TILE32,
        Tile::Wide16 => &CONV_TILE16,
        Tile::Square64 => &CONV_TILE64,
    }
}

impl Engine {
    /// What serves 3 x 3 taps over 32 images of 56 x 56 with 64 channels in f32.
    pub(crate) fn explain_conv(&self, op: &'static str) -> Result<Choice> {
        let s = ConvShape {
            n: 32,
            groups: 1,
            ci: 64,
            co: 64,
            input: [1, 56, 56],
            output: [1, 56, 56],
            kernel: [1, 3, 3],
            stride: [1; 3],
            pad: [0, 1, 1],
            dilation: [1; 3],
        };
        let (back, dtype) = (op == "conv_transpose", DType::F32);
        let pass = if back { ConvPass::Input } else { ConvPass::Forward };
        let tf32 = false;
        let mut problem = ConvProblem { s, back, dtype, last: false, tf32, vendor: Library::unasked("") };
        let own = problem.own(self.device_caps());
        let want = Wanted { s, pass, dtype, tf32, aligned: true, last: false, epilogue: false, own };
        let vendor = self.conv_vendor(op, &want);
        problem.vendor = self.offered(&vendor);
        self.explain_problem(op, &problem)
    }

    /// Computes a product whose operands are checked.
    fn gathered(&self, op: &'static str, q: Gathered<'_>) -> Result<()> {
        let last = channels_last(q.read());
        self.reduced(q, |q| self.in_format(q, last, |q| self.gathered_in_format(op, q)))
    }

    /// Computes a product whose operands are all channels last, or all contiguous.
    fn gathered_in_format(&self, op: &'static str, q: Gathered<'_>) -> Result<()> {
        let vendor = self.conv_vendor(op, &q.wanted(self.device_caps()));
        let problem = ConvProblem { vendor: self.offered(&vendor), ..q.p };
        let plan = self.plan_with(op, &problem, (q.precision, q.plain()))?;
        match (plan, vendor) {
            _ if q.y.numel() == 0 => Ok(()),
            (ConvPlan::Vendor, Ok(p)) => self.vendor_gathered(op, &p, q),
            (plan, _) => self.gathered_by(op, plan, q),
        }
    }

    /// The kernels of this crate, by sizes.
    fn portable_gathered(&self, q: Gathered<'_>) -> Result<()> {
        let plan = q.p.best(self.device_caps());
        self.gathered_by("conv", plan, q)
    }

    fn gathered_by(&self, op: &'static str, plan: ConvPlan, q: Gathered<'_>) -> Result<()> {
        match plan {
            ConvPlan::Vendor => self.portable_gathered(q),
            ConvPlan::Pointwise if q.p.last || q.p.s.in_plane() == 1 => self.pointwise_channels_last(q),
            plan if q.p.last => self.in_format(q, false, |q| self.gathered_by(op, plan, q)),
            ConvPlan::Matrix { tile, runs } => self.conv_matrix(&q, tile, runs),
            ConvPlan::Few(tile) => self.adjoint_of_few(op, &q, tile),
            ConvPlan::Columns => self.adjoint_by_columns(q),
            ConvPlan::Pointwise => self.pointwise(q),
            ConvPlan::Tiles { tile, parts } => self.conv_tiles(&q, tile, parts),
            direct => self.direct(op, &q, direct),
        }
    }

    /// The tile kernels, and the second pass where k is split.
    fn conv_tiles(&self, q: &Gathered<'_>, tile: Tile, parts: usize) -> Result<()> {
        let (p, s, dtype) = (&q.p, &q.p.s, q.p.dtype);
        let ((m, r), (from, to), steps) = (p.channels(), p.maps(), p.phases());
        let wide_type = dtype.accumulator();
        let mpad = m.next_multiple_of(tile.size().0);
        let (k, phases): (usize, usize) = (r * s.taps(), steps.iter().product());
        let plan = self.scratch(DType::I32, 4 * (phases + k))?;
        let wt = self.scratch(wide_type, s.groups * k * mpad)?;
        self.conv_plan(s, p.back, Some((&q.w, &wt.view())), &plan.view(), (m, mpad, r), from)?;

        let (mt, ct, blocks) = tile.blocks(p);
        let part = (parts > 1)
            .then(|| self.scratch(wide_type, parts * phases * s.groups * m * p.columns()))
            .transpose()?;
        let plane = from.iter().product::<usize>();
        let (step, pad) = if p.back { ([1; 3], [0; 3]) } else { (s.stride, s.pad) };
        let y = q.y.as_view();
        // Runs of four columns lie side by side where they cannot leave their image.
        let wide = phases == 1 && to.iter().product::<usize>().is_multiple_of(4) && aligned16(&y);
        let out = dims([to[0], to[1], to[2], m, s.groups, s.n, parts, wide as usize]);
        let phase = dims([steps[0], steps[1], steps[2], phases, k, mpad, mt, ct]);
        let (z, (act, slope)) = (q.z.as_ref().map(ViewMut::as_view), fused_act("conv", q.act)?);
        let args = ConvTileArgs {
            x: self.arg_in(&q.x),
            wt: self.arg_in(&wt.view()),
            plan: self.arg_in(&plan.view()),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            part: self.arg_opt(part.as_ref().map(|p| p.view()).as_ref()),
            img: dims([from[0], from[1], from[2], s.groups * r * plane, r * plane]),
            out,
            step: dims([step[0], step[1], step[2], pad[0], pad[1], pad[2]]),
            phase,
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let grid = Grid::Blocks([blocks.saturating_mul(parts), 1, 1]);
        self.launch(tile_kernel(tile), dtype, "", grid, &args)?;
        part.map_or(Ok(()), |part| self.conv_split(q, &part.view(), parts))
    }

    /// The sums of the parts [parts, phases, groups, rows, columns] of a product, and what follows it.
    fn conv_split(&self, q: &Gathered<'_>, part: &View<'_>, parts: usize) -> Result<()> {
        let (p, s, y) = (&q.p, &q.p.s, q.y.as_view());
        let ((m, _), (_, to), steps) = (p.channels(), p.maps(), p.phases());
        let phases: usize = steps.iter().product();
        let wide = phases == 1 && to.iter().product::<usize>().is_multiple_of(4) && aligned16(&y);
        let (z, (act, slope)) = (q.z.as_ref().map(ViewMut::as_view), fused_act("conv", q.act)?);
        let args = ConvSplitArgs {
            part: self.arg_in(part),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            out: dims([to[0], to[1], to[2], m, s.groups, s.n, parts, wide as usize]),
            phase: dims([steps[0], steps[1], steps[2], phases]),
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
        };
        let items = phases * s.groups * m * p.columns().div_ceil(4);
        self.launch(&CONV_SPLIT, p.dtype, "", Grid::Stride(items), &args)
    }

    /// Makes a plan, and the weights that go with it: (w, wt). `rows`: rows, rows with padding, channels that are summed over.
    pub(in crate::engine::ops) fn conv_plan(
        &self,
        s: &ConvShape,
        back: bool,
        weights: Option<(&View<'_>, &View<'_>)>,
        plan: &View<'_>,
        (m, mpad, r): (usize, usize, usize),
        from: [usize; 3],
    ) -> Result<()> {
        let groups = if weights.is_some() { s.groups } else { 1 };
        let dtype = weights.map_or(DType::F32, |(w, _)| w.dtype());
        let phases: usize = if back { s.stride.iter().product() } else { 1 };
        let args = ConvPlanArgs {
            w: self.arg_opt(weights.map(|w| w.0)),
            plan: self.arg_in(plan),
            wt: self.arg_opt(weights.map(|w| w.1)),
            back: i32::from(back),
            m: m as i32,
            mpad: mpad as i32,
            r: r as i32,
            groups: groups as i32,
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            img: dims(from),
        };
        let items = (groups * r * s.taps() * mpad).max(phases);
        self.launch(&CONV_PLAN, dtype, "", Grid::Stride(items), &args)
    }

    /// One output, or a strip of outputs, per thread.
    fn direct(&self, op: &'static str, q: &Gathered<'_>, plan: ConvPlan) -> Result<()> {
        let (s, dtype, (m, r), (from, to)) = (&q.p.s, q.p.dtype, q.p.channels(), q.p.maps());
        self.conv_extents(op, s)?;
        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let (act, p) = fused_act(op, q.act)?;
        let args = ConvDirectArgs {
            x: self.arg_in(&q.x),
            w: self.arg_in(&q.w),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            img: dims(from),
            out: dims(to.into_iter().chain([m, s.groups, s.n, r])),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            back: i32::from(q.p.back),
            accumulate: i32::from(q.accumulate),
            act,
            p,
        };
        if let ConvPlan::Depthwise(d) = plan {
            return self.depthwise(q, d, args);
        }
        if plan == ConvPlan::Strips {
            let items = s.n * s.groups * m * to[1].div_ceil(4) * to[2];
            return self.launch(&CONV_ROWS, dtype, "", Grid::Stride(items), &args);
        }
        self.launch(&CONV_DIRECT, dtype, "", Grid::Stride(q.y.numel()), &args)
    }

    /// The kernels without plans count positions along an axis in 32 bits.
    pub(in crate::engine::ops) fn conv_extents(&self, op: &'static str, s: &ConvShape) -> Result<()> {
        let far = |a: usize| {
            let reach = s.kernel[a].saturating_mul(s.dilation[a]).saturating_add(s.pad[a]);
            s.input[a].max(s.output[a].saturating_mul(s.stride[a])).saturating_add(reach) >= COUNT
        };
        if (0..3).any(far) || s.taps() >= COUNT {
            let why = "an axis or a window beyond 2^30 elements".into();
            return Err(GpuError::Unsupported { op, device: self.device_caps().id, why });
        }
        Ok(())
    }

    /// One tap: a matrix product with every image.
    fn pointwise(&self, q: Gathered<'_>) -> Result<()> {
        let (s, (m, r)) = (q.p.s, q.p.channels());
        let plane = s.in_plane();
        let p = Gemm::new()
            .trans(q.p.back, false)
            .scaled(1.0, if q.accumulate { 1.0 } else { 0.0 })
            .act(q.act)
            .precision(q.precision)
            .axes(GemmAxis::Row, GemmAxis::Row);
        let y = q.y.reshape(&[s.n, m, plane])?;
        let io = GemmIo {
            a: q.w.reshape(&[s.co, s.ci])?,
            b: q.x.reshape(&[s.n, r, plane])?,
            c: q.accumulate.then(|| y.as_view()),
            bias: q.bias,
            residual: q.residual.map(|v| v.reshape(&[s.n, m, plane])).transpose()?,
            scale: q.scale,
            z: q.z.map(|z| z.reshape(&[s.n, m, plane])).transpose()?,
            y,
            colsum: None,
        };
        self.gemm(&p, io)
    }

    fn conv_forward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        let s = check_conv(op, way, p, &io)?;
        let (y, z) = (io.y.as_view(), io.z.as_ref().map(ViewMut::as_view));
        self.check_owner_all(
            op,
            &[
                ("x", Some(io.x)),
                ("w", Some(io.w)),
                ("bias", io.bias),
                ("scale", io.scale),
                ("residual", io.residual),
                ("y", Some(y)),
                ("z", z),
            ],
        )?;
        let q = Gathered::forward(s, way == Direction::Transpose, p, io);
        self.gathered(op, q)
    }

    fn conv_backward(&self, op: &'static str, way: Direction, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        let shape = check_conv_bwd(op, way, p, &io)?;
        self.check_owner_all(op, &[("dy", Some(io.dy)), ("x", io.x), ("w", io.w), ("saved", io.saved)])?;
        for (arg, g) in [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias), ("dresidual", &io.dresidual)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(op, arg, &g.out.as_view()))?;
        }
        if io.dx.is_none() && io.dw.is_none() && io.dbias.is_none() && io.dresidual.is_none() {
            return Ok(());
        }
        let back = way == Direction::Conv;
        // Both products are chosen before anything runs, so that a refusal leaves all outputs as they are.
        let weight_plan = match (shape, &io.dw, &io.x) {
            (Some(s), Some(g), Some(x)) => Some(self.weight_plan(op, p, s, [x, &io.dy, &g.out.as_view()])?),
            _ => None,
        };
        let mut scratch = None;
        let dz = self.before_activation(p.act, io.dy, io.saved, &mut scratch)?;
        if let (Some(s), Some(g), Some(w)) = (shape, io.dx, io.w) {
            let q = Gathered::gradient(s, back, p, dz, w, g);
            self.gathered(op, q)?;
        }
        if let (Some(g), Some(x), Some(way)) = (io.dw, io.x, weight_plan) {
            let views = if back { [x, dz] } else { [dz, x] };
            self.weight_by(op, &way, views, g, p.precision)?;
        }
        if let Some(g) = io.dbias {
            self.channel_sums(dz, g)?;
        }
        match io.dresidual {
            Some(g) => self.strided_copy(dz, g),
            None => Ok(()),
        }
    }

    /// A weight gradient the way that was chosen for it.
    fn weight_by(
        &self,
        op: &'static str,
        way: &WeightWay,
        views: [View<'_>; 2],
        g: GradMut<'_>,
        precision: Precision,
    ) -> Result<()> {
        let s = &way.reduced.s;
        self.reduced_weight(&way.reduced, views, g, |views, g| {
            self.weight_in_format(views, g, way.last, |views, g| match (way.plan, &way.vendor) {
                (WeightPlan::Pointwise, _) => self.pointwise_weight(s, views, g, precision),
                (_, Some(p)) => self.vendor_weight(op, (p, s), views, g),
                (own, None) => self.own_weight(op, own, s, views, g),
            })
        })
    }

    /// How a weight gradient of x, dy and dw runs: by the library, if it has a problem for it.
    fn weight_plan(
        &self,
        op: &'static str,
        p: &Conv,
        s: ConvShape,
        views: [&View<'_>; 3],
    ) -> Result<WeightWay> {
        let (dtype, last) = (views[0].dtype(), channels_last(views[..2].iter().copied()));
        let tf32 = p.precision == Precision::Tf32;
        let reduced = Reduced::of(&s, views.into_iter().all(View::is_contiguous));
        let s = reduced.s;
        let mut problem = WeightProblem { s, dtype, last, tf32, vendor: Library::unasked("") };
        let want = Wanted {
            s,
            pass: ConvPass::Weight,
            dtype,
            tf32,
            aligned: views.into_iter().all(aligned16),
            last,
            epilogue: false,
            own: problem.own(self.device_caps()),
        };
        let vendor = self.conv_vendor(op, &want);
        problem.vendor = self.offered(&vendor);
        let plan = self.plan_with(op, &problem, p.precision)?;
        Ok(WeightWay { plan, reduced, last, vendor: vendor.ok().filter(|_| plan == WeightPlan::Vendor) })
    }

    /// Sums of [N, C, ...] per channel.
    pub(in crate::engine::ops) fn channel_sums(&self, dz: View<'_>, g: GradMut<'_>) -> Result<()> {
        let (n, c) = (dz.shape()[0], dz.shape()[1]);
        let plane = dz.shape()[2..].iter().product();
        self.sum_to_shape(dz.reshape(&[n, c, plane])?, g.out.reshape(&[c, 1])?.grad(g.accumulate))
    }
}

impl ConvOps for Engine {
    fn conv(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv", Direction::Conv, p, io)
    }

    fn conv_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_bwd", Direction::Conv, p, io)
    }

    fn conv_transpose(&self, p: &Conv, io: ConvIo<'_>) -> Result<()> {
        self.conv_forward("conv_transpose", Direction::Transpose, p, io)
    }

    fn conv_transpose_bwd(&self, p: &Conv, io: ConvBwd<'_>) -> Result<()> {
        self.conv_backward("conv_transpose_bwd", Direction::Transpose, p, io)
    }

    fn im2col(&self, p: &Conv, kernel: &[usize], x: View<'_>, col: GradMut<'_>) -> Result<()> {
        self.columns("im2col", p, kernel, x, col)
    }

    fn col2im(&self, p: &Conv, kernel: &[usize], col: View<'_>, x: GradMut<'_>) -> Result<()> {
        self.columns("col2im", p, kernel, col, x)
    }
}

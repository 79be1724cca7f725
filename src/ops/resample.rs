//! Resampling: signatures and checks.

use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// How [`ResampleOps::interpolate`] reads between cells. n cells become m along an axis; s is the position of output o in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterpolateMode {
    /// cell floor(o n / m)
    Nearest,
    /// cell floor((o + 0.5) n / m)
    NearestExact,
    /// linear in each axis (bilinear, trilinear); s below 0 is taken as 0
    Linear,
    /// cubic convolution in each axis with a = -0.75; taps beyond the border add their weights to its cell
    Cubic,
    /// mean of the cells that the output covers, which is [`Pooling::Adaptive`](crate::ops::pool::Pooling::Adaptive)
    Area,
}

/// Parameters of [`ResampleOps::interpolate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interpolate {
    /// How values between cells are made.
    pub mode: InterpolateMode,
    /// Linear and cubic: s = o (n - 1) / (m - 1), so that the outer cells stay where they are (0 for m = 1); else s = (o + 0.5) n / m - 0.5.
    pub align_corners: bool,
    /// Linear and cubic: the filter (triangle; cubic convolution with a = -0.5) is widened by max(1, n / m) and its weights inside the
    /// input are divided by their sum.
    pub antialias: bool,
}

impl Interpolate {
    /// Neither aligned corners nor antialiasing.
    pub fn new(mode: InterpolateMode) -> Self {
        Interpolate { mode, align_corners: false, antialias: false }
    }

    /// Keeps the outer cells in place.
    pub fn align_corners(mut self, on: bool) -> Self {
        self.align_corners = on;
        self
    }

    /// Widens the filter where the output is smaller.
    pub fn antialias(mut self, on: bool) -> Self {
        self.antialias = on;
        self
    }
}

/// How [`ResampleOps::grid_sample`] reads between cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SampleMode {
    /// the nearest cell; halves go to the even one
    Nearest,
    /// bilinear or trilinear
    Linear,
    /// cubic convolution with a = -0.75; images only
    Cubic,
}

/// What [`ResampleOps::grid_sample`] reads outside the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplePadding {
    /// zeros
    Zeros,
    /// the border's value: positions are clamped to the cells' centres
    Border,
    /// mirrored at the border (with `align_corners` at the centres of its cells), then clamped
    Reflection,
}

/// Parameters of [`ResampleOps::grid_sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GridSample {
    /// How values between cells are made.
    pub mode: SampleMode,
    /// What lies outside.
    pub padding: SamplePadding,
    /// Whether -1 and 1 are the centres of the outer cells instead of their outer edges.
    pub align_corners: bool,
}

impl GridSample {
    /// Zeros outside, edges at -1 and 1.
    pub fn new(mode: SampleMode) -> Self {
        GridSample { mode, padding: SamplePadding::Zeros, align_corners: false }
    }

    /// Sets what lies outside.
    pub fn padding(mut self, padding: SamplePadding) -> Self {
        self.padding = padding;
        self
    }

    /// Puts -1 and 1 at the centres of the outer cells.
    pub fn align_corners(mut self, on: bool) -> Self {
        self.align_corners = on;
        self
    }
}

io_struct! {
    /// Operands of [`ResampleOps::grid_sample_bwd`].
    #[derive(Debug)]
    pub struct GridSampleBwd<'a> {
        /// Upstream gradient, the output's shape.
        pub dy: View<'a>,
        /// Forward's input.
        pub x: View<'a>,
        /// Forward's grid.
        pub grid: View<'a>,
        /// Gradient of the input.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the grid.
        pub dgrid: Option<GradMut<'a>>,
    }
}

/// Samples of a region along an axis, over all bins: larger boxes get no more.
pub(crate) const ROI_SAMPLES: usize = 1 << 22;

/// Samples of a region along an axis that can be asked for: they are a grid, of which every point is read.
const ROI_GRID: usize = 1 << 13;

/// Parameters of [`ResampleOps::roi_align`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RoiAlign {
    /// Cells of x per unit of the boxes.
    pub spatial_scale: f64,
    /// Samples of a bin along each axis, at most 2^13 in all bins of an axis; 0: as many as the bin is cells long, rounded up.
    pub sampling_ratio: usize,
    /// Whether a cell's centre is half a cell behind its number: boxes are moved by half a cell. Without, they are at least one cell long.
    pub aligned: bool,
}

impl Default for RoiAlign {
    fn default() -> Self {
        RoiAlign::new()
    }
}

impl RoiAlign {
    /// torchvision's defaults: boxes in cells, as many samples as a bin has cells, not aligned.
    pub const fn new() -> Self {
        RoiAlign { spatial_scale: 1.0, sampling_ratio: 0, aligned: false }
    }

    /// Sets the cells per unit of the boxes.
    pub const fn spatial_scale(mut self, scale: f64) -> Self {
        self.spatial_scale = scale;
        self
    }

    /// Sets the samples of a bin along each axis.
    pub const fn sampling_ratio(mut self, samples: usize) -> Self {
        self.sampling_ratio = samples;
        self
    }

    /// Moves boxes by half a cell.
    pub const fn aligned(mut self, on: bool) -> Self {
        self.aligned = on;
        self
    }
}

op_family! {
    /// Interpolation and sampling of images and volumes: x [N, C, spatial...]. f32, f16, bf16, f64; all operands contiguous. Positions and
    /// weights in the arithmetic type; gradients gather, so that each element is written once and in a fixed order: all are deterministic.
    ///
    /// Errors (`Invalid`): rank, shapes, dtypes, strides; empty spatial axes; spatial sizes from 2^30 on.
    pub trait ResampleOps : Resample => RESAMPLE_OPS {
        /// y [N, C, size...] = x brought to another size along its one to three spatial axes. `Invalid` for `align_corners` or `antialias` in
        /// other modes than linear and cubic. Oracle `F.interpolate` (which has cubic and antialias for images only).
        fn interpolate(&self, p: Interpolate, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = for each cell the sum of the dy that read it, times the weights with which they did.
        fn interpolate_bwd(&self, p: Interpolate, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// grid [N, H, W, 2] or [N, D, H, W, 3] of positions x, y(, z) = theta (base, 1), theta [N, 2, 3] or [N, 3, 4]; the base points run from
        /// -1 to 1 along each axis, times (n - 1) / n unless `align_corners` (0 for a single point). Oracle `F.affine_grid`.
        fn affine_grid(&self, align_corners: bool, theta: View<'_>, grid: ViewMut<'_>) -> Result<()>;
        /// dtheta = sum over the points of dgrid (base, 1)^T.
        fn affine_grid_bwd(&self, align_corners: bool, dgrid: View<'_>, dtheta: GradMut<'_>) -> Result<()>;
        /// y [N, C, out...] = x at the positions of grid [N, out..., 2 or 3], whose last axis is x, y(, z); -1 and 1 are the ends of an axis. A
        /// position that is NaN gives NaN. `Invalid` for cubic volumes and planes of 2^31 cells. Oracle `F.grid_sample`.
        fn grid_sample(&self, p: GridSample, x: View<'_>, grid: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx and dgrid. Where padding holds a position fixed its gradient is 0; nearest has no gradient of the grid (0). A position that is
        /// NaN sends nothing to dx and has the gradient NaN (nearest: 0). The parts of dx are sorted by cell and added in the order of the outputs.
        fn grid_sample_bwd(&self, p: GridSample, io: GridSampleBwd<'_>) -> Result<()>;
        /// y [K, C, h, w] = for each of K boxes [K, 4] (x1, y1, x2, y2) of x [N, C, H, W] its h x w bins, each the mean of bilinear samples; `images`
        /// (i32 or i64 \[K\]) are the boxes' images. A sample more than a cell outside counts as 0. A box that is not finite gives NaN; an image
        /// outside [0, N) gives zeros and is `IndexOutOfRange`. At most 2^22 samples lie along an axis of a box. `Invalid` for sides h, w and
        /// samples beyond that. Source Mask R-CNN (He et al., 2017); oracle `torchvision.ops.roi_align`.
        fn roi_align(&self, p: RoiAlign, x: View<'_>, boxes: View<'_>, images: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = for each cell the sum over the boxes and samples that read it; boxes that are not finite send nothing. The boxes get no
        /// gradient. dx [N, C, H, W] is the input's shape.
        fn roi_align_bwd(&self, p: RoiAlign, dy: View<'_>, boxes: View<'_>, images: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Keeps the boxes [n, 4] (x1, y1, x2, y2) that overlap no kept box of a higher score (of equal scores the first box) with an
        /// intersection over union above `iou_threshold`; with `groups` (i32 or i64 \[n\]) only boxes of one group exclude each other. Their numbers go to
        /// the front of `keep` (i64 \[n\]) by falling score, the rest of which stays as it is; `count` is one i64. No gradient.
        /// Oracle `torchvision.ops.nms`, `batched_nms`.
        fn nms(&self, iou_threshold: f64, boxes: View<'_>, scores: View<'_>, groups: Option<View<'_>>, keep: ViewMut<'_>, count: ViewMut<'_>) -> Result<()>;
    }
}

/// Kernels compute positions along an axis in 32 bits.
const LARGEST: usize = 1 << 30;

/// Sizes of a resampling over three spatial axes; those that are missing come first and have size 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sizes {
    /// Number of (n, c).
    pub(crate) planes: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
}

fn three(v: &[usize]) -> [usize; 3] {
    let mut s = [1; 3];
    s[3 - v.len()..].copy_from_slice(v);
    s
}

/// All spatial sizes are between 1 and [`LARGEST`].
fn solid(op: &'static str, arg: &'static str, spatial: &[usize]) -> Result<()> {
    if spatial.iter().all(|&n| n > 0 && n < LARGEST) {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, "spatial sizes from 1 to 2^30", format!("{spatial:?}")))
}

fn check_sizes(
    op: &'static str,
    p: Interpolate,
    x: (&'static str, &View<'_>),
    y: (&'static str, &View<'_>),
) -> Result<Sizes> {
    let smooth = matches!(p.mode, InterpolateMode::Linear | InterpolateMode::Cubic);
    for (arg, on) in [("align_corners", p.align_corners), ("antialias", p.antialias)] {
        if on && !smooth {
            return Err(GpuError::invalid(op, arg, "the mode linear or cubic", format!("{:?}", p.mode)));
        }
    }
    check::float(op, x.0, x.1)?;
    check::dtype(op, y.0, y.1, x.1.dtype())?;
    let (xs, ys) = (x.1.shape(), y.1.shape());
    if !(3..=5).contains(&xs.len()) {
        let want = "shape [N, C, spatial...] with one to three spatial axes";
        return Err(GpuError::invalid(op, x.0, want, format!("{xs:?}")));
    }
    if ys.len() != xs.len() || ys[..2] != xs[..2] {
        let want = format!("shape {:?} and {} sizes", &xs[..2], xs.len() - 2);
        return Err(GpuError::invalid(op, y.0, want, format!("{ys:?}")));
    }
    solid(op, x.0, &xs[2..])?;
    solid(op, y.0, &ys[2..])?;
    check::contiguous(op, x.0, x.1)?;
    check::contiguous(op, y.0, y.1)?;
    Ok(Sizes { planes: xs[0] * xs[1], input: three(&xs[2..]), output: three(&ys[2..]) })
}

/// Checks of [`ResampleOps::interpolate`].
pub(crate) fn check_interpolate(p: Interpolate, x: &View<'_>, y: &ViewMut<'_>) -> Result<Sizes> {
    const OP: &str = "interpolate";
    let s = check_sizes(OP, p, ("x", x), ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    Ok(s)
}

/// Checks of [`ResampleOps::interpolate_bwd`].
pub(crate) fn check_interpolate_bwd(p: Interpolate, dy: &View<'_>, dx: &GradMut<'_>) -> Result<Sizes> {
    const OP: &str = "interpolate_bwd";
    let s = check_sizes(OP, p, ("dx", &dx.out.as_view()), ("dy", dy))?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy)])?;
    Ok(s)
}

/// Sizes of an affine grid: images or volumes, and the points of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AffineSizes {
    pub(crate) batch: usize,
    /// 2 or 3.
    pub(crate) axes: usize,
    /// D, H, W of the points; D is 1 for images.
    pub(crate) points: [usize; 3],
}

fn check_affine(
    op: &'static str,
    theta: (&'static str, &View<'_>),
    grid: (&'static str, &View<'_>),
) -> Result<AffineSizes> {
    check::float(op, theta.0, theta.1)?;
    check::dtype(op, grid.0, grid.1, theta.1.dtype())?;
    let ts = theta.1.shape();
    let &[batch, axes @ (2 | 3), columns] = ts else {
        return Err(GpuError::invalid(op, theta.0, "shape [N, 2, 3] or [N, 3, 4]", format!("{ts:?}")));
    };
    if columns != axes + 1 {
        return Err(GpuError::invalid(op, theta.0, "shape [N, 2, 3] or [N, 3, 4]", format!("{ts:?}")));
    }
    let gs = grid.1.shape();
    if gs.len() != axes + 2 || gs[0] != batch || gs[axes + 1] != axes {
        let want = format!("shape [{batch}, {axes} sizes, {axes}]");
        return Err(GpuError::invalid(op, grid.0, want, format!("{gs:?}")));
    }
    solid(op, grid.0, &gs[1..=axes])?;
    check::contiguous(op, theta.0, theta.1)?;
    check::contiguous(op, grid.0, grid.1)?;
    Ok(AffineSizes { batch, axes, points: three(&gs[1..=axes]) })
}

/// Checks of [`ResampleOps::affine_grid`].
pub(crate) fn check_affine_grid(theta: &View<'_>, grid: &ViewMut<'_>) -> Result<AffineSizes> {
    const OP: &str = "affine_grid";
    let s = check_affine(OP, ("theta", theta), ("grid", &grid.as_view()))?;
    check::separate_output(OP, "grid", grid, &[("theta", *theta)])?;
    Ok(s)
}

/// Checks of [`ResampleOps::affine_grid_bwd`].
pub(crate) fn check_affine_grid_bwd(dgrid: &View<'_>, dtheta: &GradMut<'_>) -> Result<AffineSizes> {
    const OP: &str = "affine_grid_bwd";
    let s = check_affine(OP, ("dtheta", &dtheta.out.as_view()), ("dgrid", dgrid))?;
    check::separate_output(OP, "dtheta", &dtheta.out, &[("dgrid", *dgrid)])?;
    Ok(s)
}

/// Sizes of a grid sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleSizes {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// 2 or 3.
    pub(crate) axes: usize,
    /// D, H, W; D is 1 for images.
    pub(crate) input: [usize; 3],
    /// Positions per sample.
    pub(crate) outputs: usize,
}

impl SampleSizes {
    /// Cells of a plane.
    pub(crate) fn cells(&self) -> usize {
        self.input.iter().product()
    }
}

fn check_sample(
    op: &'static str,
    p: GridSample,
    x: &View<'_>,
    grid: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<SampleSizes> {
    check::float(op, "x", x)?;
    check::dtype(op, "grid", grid, x.dtype())?;
    check::dtype(op, y.0, y.1, x.dtype())?;
    let (xs, gs) = (x.shape(), grid.shape());
    let axes = xs.len().wrapping_sub(2);
    if !(2..=3).contains(&axes) {
        let want = "shape [N, C, H, W] or [N, C, D, H, W]";
        return Err(GpuError::invalid(op, "x", want, format!("{xs:?}")));
    }
    if p.mode == SampleMode::Cubic && axes == 3 {
        return Err(GpuError::invalid(op, "mode", "linear or nearest for volumes", "Cubic"));
    }
    if gs.len() != axes + 2 || gs[0] != xs[0] || gs[axes + 1] != axes {
        let want = format!("shape [{}, {axes} sizes, {axes}]", xs[0]);
        return Err(GpuError::invalid(op, "grid", want, format!("{gs:?}")));
    }
    solid(op, "x", &xs[2..])?;
    solid(op, "grid", &gs[1..=axes])?;
    let want = [&xs[..2], &gs[1..=axes]].concat();
    check::shape(op, y.0, y.1, &want)?;
    for (arg, v) in [("x", x), ("grid", grid), y] {
        check::contiguous(op, arg, v)?;
    }
    let s = SampleSizes {
        batch: xs[0],
        channels: xs[1],
        axes,
        input: three(&xs[2..]),
        outputs: gs[1..=axes].iter().product(),
    };
    if s.cells() > i32::MAX as usize {
        let got = format!("{} cells", s.cells());
        return Err(GpuError::invalid(op, "x", "planes of less than 2^31 cells", got));
    }
    Ok(s)
}

/// Checks of [`ResampleOps::grid_sample`].
pub(crate) fn check_grid_sample(
    p: GridSample,
    x: &View<'_>,
    grid: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<SampleSizes> {
    const OP: &str = "grid_sample";
    let s = check_sample(OP, p, x, grid, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x), ("grid", *grid)])?;
    Ok(s)
}

/// Checks of [`ResampleOps::grid_sample_bwd`].
pub(crate) fn check_grid_sample_bwd(p: GridSample, io: &GridSampleBwd<'_>) -> Result<SampleSizes> {
    const OP: &str = "grid_sample_bwd";
    let s = check_sample(OP, p, &io.x, &io.grid, ("dy", &io.dy))?;
    let mut others = vec![("dy", io.dy), ("x", io.x), ("grid", io.grid)];
    for (arg, g, like) in [("dx", &io.dx, &io.x), ("dgrid", &io.dgrid, &io.grid)] {
        if let Some(g) = g {
            let v = g.out.as_view();
            check::dtype(OP, arg, &v, like.dtype())?;
            check::shape(OP, arg, &v, like.shape())?;
            check::contiguous(OP, arg, &v)?;
            check::separate_output(OP, arg, &g.out, &others)?;
            others.push((arg, v));
        }
    }
    Ok(s)
}

/// Sizes of a region pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoiSizes {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    /// H, W.
    pub(crate) input: [usize; 2],
    pub(crate) boxes: usize,
    /// h, w.
    pub(crate) bins: [usize; 2],
}

fn check_roi(
    op: &'static str,
    p: RoiAlign,
    x: (&'static str, &View<'_>),
    [boxes, images]: [&View<'_>; 2],
    y: (&'static str, &View<'_>),
) -> Result<RoiSizes> {
    if !p.spatial_scale.is_finite() || p.spatial_scale <= 0.0 {
        return Err(GpuError::invalid(op, "spatial_scale", "a positive number", p.spatial_scale.to_string()));
    }
    check::float(op, x.0, x.1)?;
    for (arg, v) in [("boxes", boxes), y] {
        check::dtype(op, arg, v, x.1.dtype())?;
    }
    check::one_of(op, "images", images, &[DType::I32, DType::I64])?;
    let &[batch, channels, height, width] = x.1.shape() else {
        return Err(GpuError::invalid(op, x.0, "shape [N, C, H, W]", format!("{:?}", x.1.shape())));
    };
    let &[count, 4] = boxes.shape() else {
        return Err(GpuError::invalid(op, "boxes", "shape [K, 4]", format!("{:?}", boxes.shape())));
    };
    check::shape(op, "images", images, &[count])?;
    let ys = y.1.shape();
    let &[first, second, rows, columns] = ys else {
        return Err(GpuError::invalid(op, y.0, "shape [K, C, h, w]", format!("{ys:?}")));
    };
    if [first, second] != [count, channels] {
        let want = format!("shape [{count}, {channels}, h, w]");
        return Err(GpuError::invalid(op, y.0, want, format!("{ys:?}")));
    }
    solid(op, x.0, &[height, width])?;
    if height * width > i32::MAX as usize {
        let got = format!("{} cells", height * width);
        return Err(GpuError::invalid(op, x.0, "planes of less than 2^31 cells", got));
    }
    // A bin's number is an `int`, and so are the samples of all bins of an axis.
    if rows == 0 || columns == 0 || rows > 1 << 15 || columns > 1 << 15 {
        return Err(GpuError::invalid(op, y.0, "h and w from 1 to 2^15", format!("{ys:?}")));
    }
    let most = ROI_GRID / rows.max(columns);
    if p.sampling_ratio > most.max(1) {
        let want = format!("at most {} for {rows} x {columns} bins", most.max(1));
        return Err(GpuError::invalid(op, "sampling_ratio", want, p.sampling_ratio.to_string()));
    }
    for (arg, v) in [x, ("boxes", boxes), ("images", images), y] {
        check::contiguous(op, arg, v)?;
    }
    Ok(RoiSizes { batch, channels, input: [height, width], boxes: count, bins: [rows, columns] })
}

/// Checks of [`ResampleOps::roi_align`].
pub(crate) fn check_roi_align(
    p: RoiAlign,
    x: &View<'_>,
    boxes: &View<'_>,
    images: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<RoiSizes> {
    const OP: &str = "roi_align";
    let s = check_roi(OP, p, ("x", x), [boxes, images], ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("x", *x), ("boxes", *boxes), ("images", *images)])?;
    Ok(s)
}

/// Checks of [`ResampleOps::roi_align_bwd`].
pub(crate) fn check_roi_align_bwd(
    p: RoiAlign,
    dy: &View<'_>,
    boxes: &View<'_>,
    images: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<RoiSizes> {
    const OP: &str = "roi_align_bwd";
    let s = check_roi(OP, p, ("dx", &dx.out.as_view()), [boxes, images], ("dy", dy))?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy), ("boxes", *boxes), ("images", *images)])?;
    Ok(s)
}

/// Checks of [`ResampleOps::nms`]; the number of boxes.
pub(crate) fn check_nms(
    iou_threshold: f64,
    boxes: &View<'_>,
    scores: &View<'_>,
    groups: Option<&View<'_>>,
    keep: &ViewMut<'_>,
    count: &ViewMut<'_>,
) -> Result<usize> {
    const OP: &str = "nms";
    if iou_threshold.is_nan() {
        return Err(GpuError::invalid(OP, "iou_threshold", "a number", "NaN"));
    }
    check::float(OP, "boxes", boxes)?;
    check::dtype(OP, "scores", scores, boxes.dtype())?;
    let &[n, 4] = boxes.shape() else {
        return Err(GpuError::invalid(OP, "boxes", "shape [n, 4]", format!("{:?}", boxes.shape())));
    };
    if n > i32::MAX as usize {
        return Err(GpuError::invalid(OP, "boxes", "less than 2^31 boxes", format!("{n}")));
    }
    check::shape(OP, "scores", scores, &[n])?;
    let mut inputs = vec![("boxes", *boxes), ("scores", *scores)];
    if let Some(g) = groups {
        check::one_of(OP, "groups", g, &[DType::I32, DType::I64])?;
        check::shape(OP, "groups", g, &[n])?;
        inputs.push(("groups", *g));
    }
    let (k, c) = (keep.as_view(), count.as_view());
    check::dtype(OP, "keep", &k, DType::I64)?;
    check::shape(OP, "keep", &k, &[n])?;
    check::dtype(OP, "count", &c, DType::I64)?;
    if c.numel() != 1 {
        return Err(GpuError::invalid(OP, "count", "one element", format!("shape {:?}", c.shape())));
    }
    for (arg, v) in inputs.iter().copied().chain([("keep", k)]) {
        check::contiguous(OP, arg, &v)?;
    }
    check::separate_output(OP, "keep", keep, &inputs)?;
    inputs.push(("keep", k));
    check::separate_output(OP, "count", count, &inputs)?;
    Ok(n)
}

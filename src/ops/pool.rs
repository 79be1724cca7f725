//! Pooling: signatures and checks.

use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::{Dims, MAX_RANK};

/// Sliding windows of [`Pooling`]. Every list has one entry per spatial axis, or a single one that holds for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// Taps per axis, at least 1.
    pub kernel: Dims,
    /// Steps from window to window, at least 1; the kernel by default.
    pub stride: Dims,
    /// Cells added before and behind each axis, at most half the kernel; 0 by default. They never win a maximum and add 0 to a sum.
    pub padding: Dims,
    /// Steps from tap to tap, at least 1 (and 1 for averages); 1 by default.
    pub dilation: Dims,
    /// Rounds the number of windows up; a window must still start inside the input or the padding before it.
    pub ceil_mode: bool,
    /// Whether an average counts the padded cells of its window; true by default. What a window has beyond the padding never counts.
    pub count_include_pad: bool,
    /// What averages divide by, in place of the number of cells; not 0.
    pub divisor: Option<i64>,
}

/// The first entries of a list; longer ones are refused for their length anyway.
fn list(v: &[usize]) -> Dims {
    Dims::new(&v[..v.len().min(MAX_RANK)]).unwrap_or_else(|| unreachable!("cut to the rank that fits"))
}

impl Window {
    /// Windows of this many taps, side by side.
    pub fn new(kernel: &[usize]) -> Self {
        Window {
            kernel: list(kernel),
            stride: list(kernel),
            padding: list(&[0]),
            dilation: list(&[1]),
            ceil_mode: false,
            count_include_pad: true,
            divisor: None,
        }
    }

    /// Sets the steps between windows.
    pub fn stride(mut self, stride: &[usize]) -> Self {
        self.stride = list(stride);
        self
    }

    /// Sets the padding.
    pub fn padding(mut self, padding: &[usize]) -> Self {
        self.padding = list(padding);
        self
    }

    /// Sets the steps between taps.
    pub fn dilation(mut self, dilation: &[usize]) -> Self {
        self.dilation = list(dilation);
        self
    }

    /// Rounds the number of windows up.
    pub fn ceil_mode(mut self, on: bool) -> Self {
        self.ceil_mode = on;
        self
    }

    /// Whether averages count padded cells.
    pub fn count_include_pad(mut self, on: bool) -> Self {
        self.count_include_pad = on;
        self
    }

    /// Sets what averages divide by.
    pub fn divisor(mut self, divisor: i64) -> Self {
        self.divisor = Some(divisor);
        self
    }

    /// Number of windows along each of the spatial axes `input`: floor((i + 2p - d(k-1) - 1) / s) + 1; with `ceil_mode` rounded up, without a
    /// window that would begin behind the input and its padding before it. `Invalid` for parameters that do not fit them.
    pub fn output_size(&self, input: &[usize]) -> Result<Dims> {
        let g = self.geometry("pool", input)?;
        Ok(list(&g.output[3 - input.len()..]))
    }

    fn geometry(&self, op: &'static str, input: &[usize]) -> Result<PoolGeometry> {
        let rank = input.len();
        let mut g = PoolGeometry::of(op, input)?;
        let lists = [
            ("kernel", &self.kernel, &mut g.kernel),
            ("stride", &self.stride, &mut g.stride),
            ("padding", &self.padding, &mut g.padding),
            ("dilation", &self.dilation, &mut g.dilation),
        ];
        for (arg, from, to) in lists {
            if from.len() != rank && from.len() != 1 {
                return Err(GpuError::invalid(
                    op,
                    arg,
                    format!("one number per axis, {rank}"),
                    format!("{from:?}"),
                ));
            }
            let least = usize::from(arg != "padding");
            for a in 0..rank {
                let v = from[a % from.len()];
                if v < least || v >= LARGEST {
                    let want = format!("numbers from {least} to 2^30");
                    return Err(GpuError::invalid(op, arg, want, format!("{from:?}")));
                }
                to[3 - rank + a] = v;
            }
        }
        if self.divisor == Some(0) {
            return Err(GpuError::invalid(op, "divisor", "a number that is not 0", "0"));
        }
        for a in 3 - rank..3 {
            let (n, k, s, p, d) = (g.input[a], g.kernel[a], g.stride[a], g.padding[a], g.dilation[a]);
            if p > k / 2 {
                let want = format!("at most half the window, {}", k / 2);
                return Err(GpuError::invalid(op, "padding", want, format!("{p}")));
            }
            let (reach, padded) = (d * (k - 1) + 1, n + 2 * p);
            // Rounding up gives the first window up to a stride less one cells behind the padded input.
            let spare = if self.ceil_mode { s - 1 } else { 0 };
            if padded >= LARGEST || reach > padded + spare {
                let got = format!("{reach} cells over {n} and {p} cells of padding on both sides");
                return Err(GpuError::invalid(op, "kernel", "a window that fits into the padded input", got));
            }
            let mut m = (padded + spare - reach) / s + 1;
            if self.ceil_mode && (m - 1) * s >= n + p {
                m -= 1;
            }
            g.output[a] = m;
        }
        g.count_include_pad = self.count_include_pad;
        g.divisor = self.divisor;
        Ok(g)
    }
}

/// Which cells of its input an output of a pooling sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
// A few hundred bytes per call, on the stack: cheaper than a box.
#[allow(clippy::large_enum_variant)]
pub enum Pooling {
    /// Windows of one size that slide over the input.
    Sliding(Window),
    /// As many windows as the output has cells, which may overlap: window i of m over n cells is [floor(i n / m), ceil((i + 1) n / m)).
    /// One window is global pooling.
    Adaptive,
}

impl From<Window> for Pooling {
    fn from(w: Window) -> Self {
        Pooling::Sliding(w)
    }
}

op_family! {
    /// Pooling of x [N, C, spatial...] with one to three spatial axes, each plane (n, c) for itself. f32, f16, bf16, f64; all operands
    /// contiguous. y and `index` have shape [N, C, windows...]; sums run in the arithmetic type in a fixed order; gradients gather: each
    /// cell of dx is written once, by reading the windows that may cover it. All are deterministic.
    ///
    /// Errors (`Invalid`): rank, shapes, dtypes, strides; an empty spatial axis; padding above half the window; a window that does not fit
    /// into the padded input (with `ceil_mode`: by its stride or more); a kernel, stride, dilation or divisor of 0; dilation of averages;
    /// spatial sizes from 2^30 on.
    pub trait PoolOps : Pool => POOL_OPS {
        /// y = maximum of each window. Among equal values the first position in row-major order wins; NaN wins over numbers, the last NaN
        /// over others. `index` (i32) receives the positions of the maxima inside their planes, row-major over the spatial axes, which is
        /// what the gradient needs (-1 where a dilated window has no tap inside the input, with y = -inf).
        /// Oracle `F.max_pool{1,2,3}d(.., return_indices=True)`, `F.adaptive_max_pool{1,2,3}d`.
        fn max_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>, index: Option<ViewMut<'_>>) -> Result<()>;
        /// dx = sum of the dy whose saved `index` is this cell. An index outside the plane is `IndexOutOfRange`; one outside its window counts
        /// nowhere.
        fn max_pool_bwd(&self, windows: Pooling, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// y = sum of each window over its divisor: the number of cells of the window inside the input, with those in the padding if
        /// `count_include_pad`, or `divisor`. Oracle `F.avg_pool{1,2,3}d`, `F.adaptive_avg_pool{1,2,3}d`.
        fn avg_pool(&self, windows: Pooling, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = sum over the windows that contain the cell of dy over the window's divisor.
        fn avg_pool_bwd(&self, windows: Pooling, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}

/// Kernels compute positions along an axis, padded, in 32 bits.
const LARGEST: usize = 1 << 30;

/// A checked pooling over three spatial axes; those that are missing come first and have size 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PoolGeometry {
    /// Number of (n, c).
    pub(crate) planes: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) padding: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pub(crate) adaptive: bool,
    pub(crate) count_include_pad: bool,
    pub(crate) divisor: Option<i64>,
}

impl PoolGeometry {
    fn of(op: &'static str, input: &[usize]) -> Result<Self> {
        if input.is_empty() || input.len() > 3 || input.iter().any(|&n| n == 0 || n >= LARGEST) {
            let want = "one to three spatial axes of 1 to 2^30 cells";
            return Err(GpuError::invalid(op, "x", want, format!("{input:?}")));
        }
        let mut sizes = [1; 3];
        sizes[3 - input.len()..].copy_from_slice(input);
        Ok(PoolGeometry {
            planes: 0,
            input: sizes,
            output: [1; 3],
            kernel: [1; 3],
            stride: [1; 3],
            padding: [0; 3],
            dilation: [1; 3],
            adaptive: false,
            count_include_pad: true,
            divisor: None,
        })
    }

    fn new(
        op: &'static str,
        windows: Pooling,
        wide: (&'static str, &View<'_>),
        small: (&'static str, &View<'_>),
    ) -> Result<Self> {
        let ((wide_arg, x), (small_arg, y)) = (wide, small);
        check::float(op, wide_arg, x)?;
        check::dtype(op, small_arg, y, x.dtype())?;
        if !(3..=5).contains(&x.shape().len()) {
            let want = "shape [N, C, spatial...] with one to three spatial axes";
            return Err(GpuError::invalid(op, wide_arg, want, format!("{:?}", x.shape())));
        }
        let (batch, spatial) = x.shape().split_at(2);
        let rank = spatial.len();
        let mut g = match windows {
            Pooling::Sliding(w) => {
                let g = w.geometry(op, spatial)?;
                let mut want = batch.to_vec();
                want.extend_from_slice(&g.output[3 - rank..]);
                check::shape(op, small_arg, y, &want)?;
                g
            }
            Pooling::Adaptive => {
                let mut g = PoolGeometry::of(op, spatial)?;
                let fits = y.shape().len() == rank + 2
                    && y.shape()[..2] == *batch
                    && y.shape()[2..].iter().all(|&m| m > 0 && m < LARGEST);
                if !fits {
                    let want = format!("shape {batch:?} and {rank} sizes above 0");
                    return Err(GpuError::invalid(op, small_arg, want, format!("{:?}", y.shape())));
                }
                g.output[3 - rank..].copy_from_slice(&y.shape()[2..]);
                g.adaptive = true;
                g
            }
        };
        g.planes = batch.iter().product();
        check::contiguous(op, wide_arg, x)?;
        check::contiguous(op, small_arg, y)?;
        Ok(g)
    }

    /// Cells of a plane of the input.
    pub(crate) fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Windows of a plane.
    pub(crate) fn windows(&self) -> usize {
        self.output.iter().product()
    }

    fn check_average(&self, op: &'static str) -> Result<()> {
        if self.dilation == [1; 3] {
            return Ok(());
        }
        Err(GpuError::invalid(op, "dilation", "1 for averages", format!("{:?}", self.dilation)))
    }

    fn check_index(&self, op: &'static str, y: &View<'_>, index: &View<'_>) -> Result<()> {
        check::dtype(op, "index", index, DType::I32)?;
        check::shape(op, "index", index, y.shape())?;
        check::contiguous(op, "index", index)?;
        if self.plane() > i32::MAX as usize {
            let got = format!("{} cells", self.plane());
            return Err(GpuError::invalid(op, "index", "planes of less than 2^31 cells", got));
        }
        Ok(())
    }
}

/// Checks of [`PoolOps::max_pool`].
pub(crate) fn check_max_pool(
    windows: Pooling,
    x: &View<'_>,
    y: &ViewMut<'_>,
    index: Option<&ViewMut<'_>>,
) -> Result<PoolGeometry> {
    const OP: &str = "max_pool";
    let v = y.as_view();
    let g = PoolGeometry::new(OP, windows, ("x", x), ("y", &v))?;
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    if let Some(i) = index {
        g.check_index(OP, &v, &i.as_view())?;
        check::separate_output(OP, "index", i, &[("x", *x), ("y", v)])?;
    }
    Ok(g)
}

/// Checks of [`PoolOps::max_pool_bwd`].
pub(crate) fn check_max_pool_bwd(
    windows: Pooling,
    dy: &View<'_>,
    index: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<PoolGeometry> {
    const OP: &str = "max_pool_bwd";
    let g = PoolGeometry::new(OP, windows, ("dx", &dx.out.as_view()), ("dy", dy))?;
    g.check_index(OP, dy, index)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy), ("index", *index)])?;
    Ok(g)
}

/// Checks of [`PoolOps::avg_pool`].
pub(crate) fn check_avg_pool(windows: Pooling, x: &View<'_>, y: &ViewMut<'_>) -> Result<PoolGeometry> {
    const OP: &str = "avg_pool";
    let g = PoolGeometry::new(OP, windows, ("x", x), ("y", &y.as_view()))?;
    g.check_average(OP)?;
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    Ok(g)
}

/// Checks of [`PoolOps::avg_pool_bwd`].
pub(crate) fn check_avg_pool_bwd(windows: Pooling, dy: &View<'_>, dx: &GradMut<'_>) -> Result<PoolGeometry> {
    const OP: &str = "avg_pool_bwd";
    let g = PoolGeometry::new(OP, windows, ("dx", &dx.out.as_view()), ("dy", dy))?;
    g.check_average(OP)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy)])?;
    Ok(g)
}

//! The checked shape of a convolution or of its transpose.

use crate::ops::conv::{Conv, per_axis};
use crate::error::{GpuError, Result};
use crate::layout::Dims;

/// A checked convolution. Spatial axes are depth, height, width; missing leading ones have size 1. For a transposed convolution it describes
/// the convolution whose adjoint it is: `input` is then the larger map, the transposed convolution's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvShape {
    pub(crate) n: usize,
    pub(crate) groups: usize,
    /// Channels of the convolution's input and output.
    pub(crate) ci: usize,
    pub(crate) co: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
}

impl ConvShape {
    /// Input channels per group.
    pub(crate) fn cig(&self) -> usize {
        self.ci / self.groups
    }
    /// Output channels per group.
    pub(crate) fn cog(&self) -> usize {
        self.co / self.groups
    }
    /// Elements of a window, of an input plane, of an output plane.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
    pub(crate) fn in_plane(&self) -> usize {
        self.input.iter().product()
    }
    pub(crate) fn out_plane(&self) -> usize {
        self.output.iter().product()
    }
}

/// The number of spatial axes, 1 to 3, of an input and a kernel.
pub(super) fn same_axes(op: &'static str, input: &[usize], kernel: &[usize]) -> Result<usize> {
    if (1..=3).contains(&input.len()) && input.len() == kernel.len() {
        return Ok(input.len());
    }
    let got = format!("sizes {input:?} and kernel {kernel:?}");
    Err(GpuError::invalid(op, "w", "one to three spatial axes in both operands", got))
}

pub(super) fn dims(v: &[usize]) -> Dims {
    Dims::new(v).unwrap_or_else(|| unreachable!("at most three axes"))
}

/// Spatial axes as depth, height, width.
fn volume(v: &[usize], fill: usize) -> [usize; 3] {
    let mut all = [fill; 3];
    let first = 3usize.saturating_sub(v.len());
    all[first..].iter_mut().zip(v).for_each(|(a, &x)| *a = x);
    all
}

/// Windows of a convolution over `input` (spatial axes only), and the number of them on each axis.
pub(crate) struct Windows {
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pad_end: [usize; 3],
}

/// Parameters for `axes` spatial axes, checked; entries are in the order of the axes.
pub(super) fn windows(op: &'static str, p: &Conv, axes: usize) -> Result<Windows> {
    let pad = per_axis(op, "pad", p.pad, axes, 0)?;
    Ok(Windows {
        stride: per_axis(op, "stride", p.stride, axes, 1)?,
        pad,
        dilation: per_axis(op, "dilation", p.dilation, axes, 1)?,
        pad_end: p.pad_end.map_or(Ok(pad), |e| per_axis(op, "pad_end", e, axes, 0))?,
    })
}

impl Windows {
    /// Extent of a window of `k` elements on an axis.
    fn span(&self, axis: usize, k: usize) -> usize {
        self.dilation[axis].saturating_mul(k.saturating_sub(1)).saturating_add(1)
    }

    /// Number of windows on each axis.
    pub(super) fn count(
        &self,
        op: &'static str,
        arg: &'static str,
        input: &[usize],
        kernel: &[usize],
    ) -> Result<Vec<usize>> {
        let one = |(a, (&i, &k)): (usize, (&usize, &usize))| {
            let (padded, span) = (i.saturating_add(self.pad[a] + self.pad_end[a]), self.span(a, k));
            if k == 0 || span > padded {
                let want = format!("windows of 1 to {padded} elements on axis {a}");
                return Err(GpuError::invalid(op, arg, want, format!("{k} elements that span {span}")));
            }
            Ok((padded - span) / self.stride[a] + 1)
        };
        input.iter().zip(kernel).enumerate().map(one).collect()
    }

    /// Elements on each axis of the output of the transposed convolution.
    pub(super) fn spread(&self, op: &'static str, p: &Conv, input: &[usize], kernel: &[usize]) -> Result<Vec<usize>> {
        let extra = per_axis(op, "out_pad", p.out_pad, input.len(), 0)?;
        let one = |(a, (&i, &k)): (usize, (&usize, &usize))| {
            if extra[a] >= self.stride[a].max(self.dilation[a]) {
                let want = format!("less than stride or dilation on axis {a}");
                return Err(GpuError::invalid(op, "out_pad", want, format!("{}", extra[a])));
            }
            let full = i
                .saturating_sub(1)
                .saturating_mul(self.stride[a])
                .saturating_add(self.span(a, k))
                .saturating_add(extra[a]);
            let pads = self.pad[a] + self.pad_end[a];
            if i == 0 || k == 0 || full <= pads {
                let got = format!("{full} elements less {pads} of padding on axis {a}");
                return Err(GpuError::invalid(op, "pad", "an output of at least one element", got));
            }
            Ok(full - pads)
        };
        input.iter().zip(kernel).enumerate().map(one).collect()
    }
}

pub(super) fn rank(op: &'static str, arg: &'static str, shape: &[usize]) -> Result<usize> {
    if (3..=5).contains(&shape.len()) {
        return Ok(shape.len() - 2);
    }
    Err(GpuError::invalid(op, arg, "rank 3 to 5", format!("shape {shape:?}")))
}

fn divide(op: &'static str, what: &'static str, channels: usize, groups: usize) -> Result<usize> {
    if groups > 0 && channels.is_multiple_of(groups) {
        return Ok(channels / groups);
    }
    Err(GpuError::invalid(op, "groups", format!("a divisor of the {channels} {what}"), format!("{groups}")))
}

/// What does not fit is named as `expected`.
fn same(op: &'static str, arg: &'static str, got: &[usize], want: &[usize]) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("shape {want:?}"), format!("{got:?}")))
}

/// A convolution of `x` (named `xs`) with `w` into `y`, by their shapes.
pub(crate) fn conv_shape(
    op: &'static str,
    p: &Conv,
    (xs, x): (&'static str, &[usize]),
    w: &[usize],
    (ys, y): (&'static str, &[usize]),
) -> Result<ConvShape> {
    let axes = rank(op, xs, x)?;
    if w.len() != x.len() {
        return Err(GpuError::invalid(op, "w", format!("rank {}", x.len()), format!("shape {w:?}")));
    }
    let (n, ci, co) = (x[0], x[1], w[0]);
    let cig = divide(op, "input channels", ci, p.groups)?;
    divide(op, "output channels", co, p.groups)?;
    if w[1] != cig {
        return Err(GpuError::invalid(
            op,
            "w",
            format!("{cig} channels per group on axis 1"),
            format!("shape {w:?}"),
        ));
    }
    let win = windows(op, p, axes)?;
    let out = win.count(op, "w", &x[2..], &w[2..])?;
    same(op, ys, y, &[&[n, co], out.as_slice()].concat())?;
    Ok(shape_of(n, p.groups, ci, co, axes, &win, [&x[2..], &out, &w[2..]]))
}

/// The convolution whose adjoint the transposed convolution of `x` with `w` into `y` is.
pub(crate) fn transpose_shape(
    op: &'static str,
    p: &Conv,
    (xs, x): (&'static str, &[usize]),
    w: &[usize],
    (ys, y): (&'static str, &[usize]),
) -> Result<ConvShape> {
    let axes = rank(op, xs, x)?;
    if w.len() != x.len() {
        return Err(GpuError::invalid(op, "w", format!("rank {}", x.len()), format!("shape {w:?}")));
    }
    let (n, ci) = (x[0], x[1]);
    divide(op, "input channels", ci, p.groups)?;
    if w[0] != ci {
        return Err(GpuError::invalid(op, "w", format!("{ci} channels on axis 0"), format!("shape {w:?}")));
    }
    let co = w[1].saturating_mul(p.groups);
    let win = windows(op, p, axes)?;
    let out = win.spread(op, p, &x[2..], &w[2..])?;
    same(op, ys, y, &[&[n, co], out.as_slice()].concat())?;
    Ok(shape_of(n, p.groups, co, ci, axes, &win, [&out, &x[2..], &w[2..]]))
}

pub(super) fn shape_of(
    n: usize,
    groups: usize,
    ci: usize,
    co: usize,
    axes: usize,
    win: &Windows,
    [input, output, kernel]: [&[usize]; 3],
) -> ConvShape {
    ConvShape {
        n,
        groups,
        ci,
        co,
        input: volume(input, 1),
        output: volume(output, 1),
        kernel: volume(kernel, 1),
        stride: volume(&win.stride[..axes], 1),
        pad: volume(&win.pad[..axes], 0),
        dilation: volume(&win.dilation[..axes], 1),
    }
}

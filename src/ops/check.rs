//! Checks that both the engine and the CPU backend make before they touch anything.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::{Dims, Layout, LayoutError, broadcast_shapes};

/// `v` has exactly this shape.
pub(crate) fn shape(op: &'static str, arg: &'static str, v: &View<'_>, want: &[usize]) -> Result<()> {
    if v.shape() == want {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("shape {want:?}"), format!("{:?}", v.shape())))
}

/// `v` has this dtype.
pub(crate) fn dtype(op: &'static str, arg: &'static str, v: &View<'_>, want: DType) -> Result<()> {
    one_of(op, arg, v, &[want])
}

/// `v` has one of these dtypes.
pub(crate) fn one_of(op: &'static str, arg: &'static str, v: &View<'_>, want: &[DType]) -> Result<()> {
    if want.contains(&v.dtype()) {
        return Ok(());
    }
    let names: Vec<_> = want.iter().map(|d| d.name()).collect();
    Err(GpuError::invalid(op, arg, format!("dtype {}", names.join(" or ")), v.dtype().name()))
}

/// `v` holds floating-point numbers.
pub(crate) fn float(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    one_of(op, arg, v, &[DType::F32, DType::F16, DType::Bf16, DType::F64])
}

/// `v` lies row-major without gaps.
pub(crate) fn contiguous(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    if v.is_contiguous() {
        return Ok(());
    }
    let got = format!("shape {:?} strides {:?}", v.shape(), v.layout().strides());
    Err(GpuError::invalid(op, arg, "a contiguous view", got))
}

/// `v` lies row-major without gaps, or with its channels last: [N, C, S..] in the order [N, S.., C].
pub(crate) fn dense_channels(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    if v.is_contiguous() || v.layout().is_channels_last() {
        return Ok(());
    }
    let got = format!("shape {:?} strides {:?}", v.shape(), v.layout().strides());
    Err(GpuError::invalid(op, arg, "a contiguous or channels-last view", got))
}

/// A layout that was asked for through `arg`; `Invalid` with the reason where there is none.
pub(crate) fn layout(
    op: &'static str,
    arg: &'static str,
    made: std::result::Result<Layout, LayoutError>,
) -> Result<Layout> {
    made.map_err(|why| GpuError::invalid(op, arg, "sizes that a layout can have", why.to_string()))
}

/// `axis` exists in `v`.
pub(crate) fn axis(op: &'static str, v: &View<'_>, axis: usize) -> Result<()> {
    if axis < v.shape().len() {
        return Ok(());
    }
    Err(GpuError::invalid(op, "axis", format!("an axis below {}", v.shape().len()), format!("{axis}")))
}

/// Shape that two operands broadcast to.
pub(crate) fn broadcast(op: &'static str, arg: &'static str, a: &[usize], b: &[usize]) -> Result<Dims> {
    broadcast_shapes(a, b).map_err(|at| {
        GpuError::invalid(
            op,
            arg,
            format!("a shape that broadcasts with {a:?}"),
            format!("{b:?} (axis {at} from the right)"),
        )
    })
}

/// An output whose elements are all different and that shares no memory with the inputs, except that it may be exactly one of them.
pub(crate) fn elementwise_output(
    op: &'static str,
    arg: &'static str,
    out: &ViewMut<'_>,
    inputs: &[(&'static str, View<'_>)],
) -> Result<()> {
    output(op, arg, out, inputs, true)
}

/// An output whose elements are all different and that shares no memory with the inputs.
pub(crate) fn separate_output(
    op: &'static str,
    arg: &'static str,
    out: &ViewMut<'_>,
    inputs: &[(&'static str, View<'_>)],
) -> Result<()> {
    output(op, arg, out, inputs, false)
}

fn output(
    op: &'static str,
    arg: &'static str,
    out: &ViewMut<'_>,
    inputs: &[(&'static str, View<'_>)],
    same_allowed: bool,
) -> Result<()> {
    if out.layout().may_overlap() {
        let got = format!("shape {:?} strides {:?}", out.shape(), out.layout().strides());
        return Err(GpuError::invalid(op, arg, "an output whose elements are distinct", got));
    }
    let y = out.as_view();
    for (name, v) in inputs {
        if overlap(&y, v) && !(same_allowed && out.layout() == v.layout() && out.dtype() == v.dtype()) {
            let expected = format!("memory apart from `{name}`");
            return Err(GpuError::invalid(op, arg, expected, "overlapping ranges of one buffer"));
        }
    }
    Ok(())
}

/// Whether two views can share a byte. Views of one array that interleave (the parts of a packed projection, say) do not.
pub(crate) fn overlap(a: &View<'_>, b: &View<'_>) -> bool {
    if a.block().id() != b.block().id() {
        return false;
    }
    let span = |v: &View<'_>| {
        let r = v.layout().span();
        (r.start * v.dtype().size(), r.end * v.dtype().size())
    };
    let ((a0, a1), (b0, b1)) = (span(a), span(b));
    a0 < b1 && b0 < a1 && !interleave(a, b)
}

/// Whether two views of equal shape and strides are known to have no element in common.
fn interleave(a: &View<'_>, b: &View<'_>) -> bool {
    let (la, lb) = (a.layout(), b.layout());
    let alike = a.dtype() == b.dtype() && la.shape() == lb.shape() && la.strides() == lb.strides();
    // Where a view meets itself, the search below has too many ways to go.
    if !alike || la.may_overlap() {
        return false;
    }
    let mut axes: Vec<(usize, usize)> =
        la.strides().iter().copied().zip(la.shape().iter().copied()).filter(|&(_, n)| n > 1).collect();
    axes.sort_unstable();
    !reaches(&axes, la.offset().abs_diff(lb.offset()) as isize)
}

/// Whether `distance` is a sum of up to n - 1 steps forwards or backwards along each axis (stride, n), which ascend by strides.
fn reaches(axes: &[(usize, usize)], distance: isize) -> bool {
    let Some((&(stride, n), inner)) = axes.split_last() else { return distance == 0 };
    let inside: usize = inner.iter().map(|&(s, n)| s * (n - 1)).sum();
    let (stride, most, inside) = (stride as isize, n as isize - 1, inside as isize);
    if stride == 0 {
        return reaches(inner, distance);
    }
    // The other axes must cover what these steps leave.
    let (low, high) = ((distance - inside).div_euclid(stride), (distance + inside).div_euclid(stride));
    (low.max(-most)..=high.min(most)).any(|k| reaches(inner, distance - k * stride))
}

/// Arguments of [`CoreOps::copy`](crate::ops::core::CoreOps::copy).
pub(crate) fn copy(src: &View<'_>, dst: &ViewMut<'_>) -> Result<()> {
    let d = dst.as_view();
    contiguous("copy", "src", src)?;
    contiguous("copy", "dst", &d)?;
    dtype("copy", "dst", &d, src.dtype())?;
    if src.numel() != d.numel() {
        let (want, got) = (format!("{} elements", src.numel()), format!("{}", d.numel()));
        return Err(GpuError::invalid("copy", "dst", want, got));
    }
    separate_output("copy", "dst", dst, &[("src", *src)])
}

pub(crate) fn matrix(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 2]> {
    contiguous(op, arg, v)?;
    <[usize; 2]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "a matrix", format!("shape {:?}", v.shape())))
}

/// A contiguous operand of this shape and dtype.
pub(crate) fn exact(
    op: &'static str,
    arg: &'static str,
    v: &View<'_>,
    want: &[usize],
    d: DType,
) -> Result<()> {
    shape(op, arg, v, want)?;
    dtype(op, arg, v, d)?;
    contiguous(op, arg, v)
}

/// The same for an output with memory of its own, which is then added to `seen`.
pub(crate) fn exact_output<'a>(
    op: &'static str,
    arg: &'static str,
    v: &ViewMut<'a>,
    shape: &[usize],
    dtype: DType,
    seen: &mut Vec<(&'static str, View<'a>)>,
) -> Result<()> {
    exact(op, arg, &v.as_view(), shape, dtype)?;
    separate_output(op, arg, v, seen)?;
    seen.push((arg, v.as_view()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::reaches;

    /// Axes of up to three sizes, with every combination of strides: the sum of steps against all pairs of elements.
    #[test]
    fn views_meet_exactly_where_two_of_their_elements_do() {
        for strides in [[1, 2, 6], [1, 3, 12], [2, 6, 8], [1, 1, 5], [3, 4, 4], [0, 2, 9], [5, 7, 11]] {
            for sizes in [[2, 2, 2], [3, 2, 4], [2, 4, 3], [4, 3, 2]] {
                let axes: Vec<(usize, usize)> = strides.into_iter().zip(sizes).collect();
                let mut places = vec![0usize];
                for &(s, n) in &axes {
                    places = places.iter().flat_map(|p| (0..n).map(move |i| p + i * s)).collect();
                }
                for distance in 0..100 {
                    let met = places.iter().any(|p| places.contains(&(p + distance)));
                    assert_eq!(reaches(&axes, distance as isize), met, "{axes:?} at {distance}");
                }
            }
        }
    }
}

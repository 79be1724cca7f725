//! Convolutions of small maps as smaller ones: without the taps that lie outside the map wherever the window stands (eight of nine, of 3 x 3 over a
//! single place), and those whose window is the whole map as one tap of more channels, a matrix product.

use super::Gathered;
use crate::buffer::{GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::error::Result;
use crate::layout::{Layout, LayoutError};
use crate::ops::conv::ConvShape;
use crate::ops::shape::ShapeOps;

/// A convolution without what does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reduced {
    pub(super) s: ConvShape,
    /// The first tap that is kept along each axis and how many are, if some are not.
    taps: Option<[[usize; 3]; 2]>,
    /// Whether places and taps are counted as channels of a single place and tap.
    flat: bool,
}

/// Whether tap `t` of an axis lies inside the map for at least one window.
fn meets(s: &ConvShape, a: usize, t: usize) -> bool {
    let (at, stride) = (t.saturating_mul(s.dilation[a]), s.stride[a].max(1));
    // The first window in which it does not lie before the map.
    let window = s.pad[a].saturating_sub(at).div_ceil(stride);
    window < s.output[a]
        && window.saturating_mul(stride).saturating_add(at) < s.input[a].saturating_add(s.pad[a])
}

/// The taps of an axis that are kept, the first and the last; none where no tap counts.
fn kept(s: &ConvShape, a: usize) -> Option<[usize; 2]> {
    let last = (0..s.kernel[a]).rev().find(|&t| meets(s, a, t))?;
    // The map may not begin before the window.
    let first = (0..last).take_while(|&t| !meets(s, a, t)).count().min(s.pad[a] / s.dilation[a].max(1));
    Some([first, last])
}

impl Reduced {
    /// `packed`: operands are contiguous, so that their axes can be joined.
    pub(super) fn of(s: &ConvShape, packed: bool) -> Reduced {
        let mut r = Reduced { s: *s, taps: None, flat: false };
        if [s.n, s.ci, s.co].contains(&0) {
            return r;
        }
        if let (Some(d), Some(h), Some(w)) = (kept(s, 0), kept(s, 1), kept(s, 2)) {
            let first = [d[0], h[0], w[0]];
            r.s.kernel = [d[1] + 1 - d[0], h[1] + 1 - h[0], w[1] + 1 - w[0]];
            r.taps = (r.s.kernel != s.kernel).then_some([first, r.s.kernel]);
            for (a, first) in first.into_iter().enumerate() {
                r.s.pad[a] -= first * s.dilation[a];
            }
        }
        let t = &r.s;
        let whole = t.output == [1; 3] && t.kernel == t.input && t.pad == [0; 3];
        let dense = (0..3).all(|a| t.kernel[a] == 1 || t.dilation[a] == 1);
        if packed && whole && dense && t.groups == 1 {
            let (ci, one) = (t.ci * t.taps(), [1; 3]);
            r.s = ConvShape { ci, input: one, kernel: one, stride: one, dilation: one, ..*t };
            r.flat = true;
        }
        r
    }

    /// The taps that are kept, of weights [rows, channels, taps].
    fn narrow(&self, l: &Layout) -> std::result::Result<Layout, LayoutError> {
        let Some([first, count]) = self.taps else { return Ok(*l) };
        let (mut l, axes) = (*l, l.rank() - 2);
        for i in 0..axes {
            let a = 3 - axes + i;
            l = l.narrow(2 + i, first[a], count[a])?;
        }
        Ok(l)
    }
}

impl Engine {
    /// Runs a product without what does not count of it.
    pub(super) fn reduced(
        &self,
        q: Gathered<'_>,
        run: impl FnOnce(Gathered<'_>) -> Result<()>,
    ) -> Result<()> {
        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let maps = [Some(&q.x), q.residual.as_ref(), Some(&y), z.as_ref()];
        // Joined places have one number per channel no more.
        let per_channel = q.p.back && (q.bias.is_some() || q.scale.is_some());
        let r = Reduced::of(&q.p.s, !per_channel && maps.into_iter().flatten().all(View::is_contiguous));
        if r.taps.is_none() && !r.flat {
            return run(q);
        }
        let w = q.w.map("w", |l| r.narrow(l))?;
        let mut home = None;
        let w = self.packed(&w, &mut home)?;
        let p = super::ConvProblem { s: r.s, ..q.p };
        if !r.flat {
            return run(Gathered { p, w, ..q });
        }
        let (s, (m, k)) = (&r.s, p.channels());
        run(Gathered {
            p,
            x: q.x.reshape(&[s.n, k])?,
            w: w.reshape(&[s.co, s.ci])?,
            residual: q.residual.map(|v| v.reshape(&[s.n, m])).transpose()?,
            y: q.y.reshape(&[s.n, m])?,
            z: q.z.map(|z| z.reshape(&[s.n, m])).transpose()?,
            ..q
        })
    }

    /// Runs a weight gradient without what does not count of it: taps outside the map have 0.
    pub(super) fn reduced_weight(
        &self,
        r: &Reduced,
        [x, dy]: [View<'_>; 2],
        mut g: GradMut<'_>,
        run: impl FnOnce([View<'_>; 2], GradMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let joined = [r.s.co, r.s.ci];
        let read = match r.flat {
            true => [x.reshape(&[r.s.n, r.s.ci])?, dy.reshape(&[r.s.n, r.s.co])?],
            false => [x, dy],
        };
        if r.taps.is_none() {
            let out = if r.flat { g.out.reshape(&joined)? } else { g.out };
            return run(read, out.grad(g.accumulate));
        }
        let shape = g.out.as_view().map("dw", |l| r.narrow(l))?;
        let room = self.scratch(shape.dtype(), shape.numel())?;
        let to = room.alias_mut().reshape(if r.flat { &joined } else { shape.shape() })?;
        run(read, to.into())?;
        if !g.accumulate {
            self.fill(0.0, g.out.reborrow())?;
        }
        let out = g.out.map("dw", |l| r.narrow(l))?;
        self.strided_copy(room.shaped(out.shape())?, out.grad(g.accumulate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(side: usize, kernel: usize, [stride, pad, out]: [usize; 3]) -> ConvShape {
        ConvShape {
            n: 2,
            groups: 1,
            ci: 3,
            co: 5,
            input: [1, side, side],
            output: [1, out, out],
            kernel: [1, kernel, kernel],
            stride: [1, stride, stride],
            pad: [0, pad, pad],
            dilation: [1; 3],
        }
    }

    #[test]
    fn taps_outside_the_map_are_left_out() {
        // 3 x 3 over a single place: the middle one, a product.
        let r = Reduced::of(&shape(1, 3, [1, 1, 1]), false);
        assert_eq!((r.s.kernel, r.s.pad, r.flat), ([1; 3], [0; 3], false));
        assert_eq!(r.taps, Some([[0, 1, 1], [1; 3]]));
        assert!(Reduced::of(&shape(1, 3, [1, 1, 1]), true).flat);
        // With a stride of two over two places: the lower right four, which are the whole map.
        let s = shape(2, 3, [2, 1, 1]);
        let r = Reduced::of(&s, false);
        assert_eq!((r.s.kernel, r.s.pad, r.s.input, r.s.ci), ([1, 2, 2], [0; 3], s.input, 3));
        let r = Reduced::of(&s, true);
        assert_eq!((r.s.kernel, r.s.input, r.s.stride, r.s.ci, r.s.co), ([1; 3], [1; 3], [1; 3], 12, 5));
        // Every tap counts, with one window or another; two groups are no product.
        for s in
            [shape(2, 3, [1, 1, 2]), shape(8, 3, [2, 1, 4]), ConvShape { n: 0, ..shape(1, 3, [1, 1, 1]) }]
        {
            assert_eq!(Reduced::of(&s, true), Reduced { s, taps: None, flat: false });
        }
        assert!(!Reduced::of(&ConvShape { groups: 3, co: 6, ..shape(1, 3, [1, 1, 1]) }, true).flat);
        // A window that lies in the padding alone is left as it is.
        let beside = ConvShape { pad: [0, 5, 5], ..shape(1, 3, [1, 5, 1]) };
        assert_eq!(Reduced::of(&beside, true).s, beside);
    }

    #[test]
    fn reduced_windows_meet_the_same_places() {
        for (side, kernel, stride, pad, dilation) in
            (0..2000usize).map(|i| (1 + i % 4, 1 + i / 4 % 5, 1 + i / 20 % 4, i / 80 % 5, 1 + i / 400 % 5))
        {
            let Some(room) = (side + 2 * pad).checked_sub(dilation * (kernel - 1) + 1) else { continue };
            let mut s = shape(side, kernel, [stride, pad, room / stride + 1]);
            s.dilation = [1, dilation, dilation];
            let r = Reduced::of(&s, false);
            let met = |s: &ConvShape, first: usize| {
                let places = (0..s.output[1]).flat_map(|q| (0..s.kernel[1]).map(move |t| (q, t)));
                let at = |q: usize, t: usize| (q * s.stride[1] + t * s.dilation[1]).checked_sub(s.pad[1]);
                let inside = |&(q, t): &(usize, usize)| at(q, t).is_some_and(|i| i < s.input[1]);
                places.filter(inside).map(|(q, t)| (q, t + first, at(q, t))).collect::<Vec<_>>()
            };
            let first = r.taps.map_or(0, |[first, _]| first[1]);
            assert_eq!(met(&s, 0), met(&r.s, first), "{s:?}");
        }
    }
}

//! Memory formats of a convolution's operands: which one a product runs in, and copies of what lies in the other.

use super::Gathered;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::error::Result;
use crate::layout::{Layout, LayoutError};
use crate::ops::conv::ConvShape;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps, Precision};
use crate::ops::shape::ShapeOps;

/// Whether a product that reads these runs channels last: if all of them are. A tensor that is contiguous as well goes with the others.
pub(super) fn channels_last<'v, 'a: 'v>(read: impl Iterator<Item = &'v View<'a>> + Clone) -> bool {
    read.clone().all(|v| v.layout().is_channels_last()) && read.into_iter().any(|v| !v.is_contiguous())
}

/// Whether a view is channels last, or (not `last`) contiguous.
fn is_of(v: &View<'_>, last: bool) -> bool {
    if last { v.layout().is_channels_last() } else { v.is_contiguous() }
}

/// The layout of that many elements from the start of `l` on, in the order of `like`, which is contiguous or channels last.
pub(super) fn laid_out(l: &Layout, like: &Layout) -> std::result::Result<Layout, LayoutError> {
    let packed = match like.is_contiguous() {
        true => Layout::contiguous(like.shape()),
        false => Layout::channels_last(like.shape()),
    };
    packed?.shifted(l.offset())
}

/// The elements of `room` as a tensor that lies as another one does.
pub(super) fn like<'a>(room: &View<'a>, other: &View<'_>) -> Result<View<'a>> {
    room.map("room", |l| laid_out(l, other.layout()))
}

/// [N, C, S..] that is channels last, as the matrix [N * S, C].
fn rows<'a>(v: &View<'a>) -> Result<View<'a>> {
    let c = v.shape()[1];
    v.map("x", |l| l.channels_as_columns()?.reshape(&[l.numel() / c.max(1), c]))
}

/// [`rows`] of an output.
fn rows_mut(v: ViewMut<'_>) -> Result<ViewMut<'_>> {
    let c = v.shape()[1];
    v.map("y", |l| l.channels_as_columns()?.reshape(&[l.numel() / c.max(1), c]))
}

/// Memory for a tensor in another format, where one is needed.
struct Room(Option<Buffer>);

impl Room {
    /// The tensor in its room, or as it is.
    fn view<'a>(&'a self, v: &View<'a>, last: bool) -> Result<View<'a>> {
        let Some(room) = &self.0 else { return Ok(*v) };
        room.view().map("room", |_| {
            if last { Layout::channels_last(v.shape()) } else { Layout::contiguous(v.shape()) }
        })
    }

    /// [`view`](Room::view), to be written.
    fn view_mut<'a>(&'a self, shape: &[usize], last: bool) -> Option<Result<ViewMut<'a>>> {
        let room = self.0.as_ref()?;
        let layout = |_: &Layout| if last { Layout::channels_last(shape) } else { Layout::contiguous(shape) };
        Some(room.alias_mut().map("room", layout))
    }
}

impl<'a> Gathered<'a> {
    /// What is read.
    pub(super) fn read(&self) -> impl Iterator<Item = &View<'a>> + Clone {
        [Some(&self.x), Some(&self.w), self.residual.as_ref()].into_iter().flatten()
    }

    /// The same product of operands that are channels last, or all contiguous.
    pub(super) fn of_format(mut self, last: bool) -> Self {
        self.p.last = last;
        self
    }
}

impl Engine {
    /// Runs a product with all operands channels last, or all contiguous; what lies otherwise is copied.
    pub(super) fn in_format(
        &self,
        mut q: Gathered<'_>,
        last: bool,
        run: impl FnOnce(Gathered<'_>) -> Result<()>,
    ) -> Result<()> {
        q.p.last = last;
        let y_view = q.y.as_view();
        let z_view = q.z.as_ref().map(ViewMut::as_view);
        let written = [Some(&y_view), z_view.as_ref()];
        if q.read().chain(written.into_iter().flatten()).all(|v| is_of(v, last)) {
            return run(q);
        }
        let room = |v: &View<'_>| -> Result<Room> {
            let apart = !is_of(v, last);
            Ok(Room(apart.then(|| self.scratch(v.dtype(), v.numel())).transpose()?))
        };
        let copied = |v: &View<'_>| -> Result<Room> {
            let to = room(v)?;
            if let Some(target) = to.view_mut(v.shape(), last) {
                self.strided_copy(*v, target?.into())?;
            }
            Ok(to)
        };
        let (x, w, residual) = (copied(&q.x)?, copied(&q.w)?, q.residual.as_ref().map(copied).transpose()?);
        let (y, z) = (room(&y_view)?, z_view.as_ref().map(room).transpose()?);
        let y_room = y.view_mut(y_view.shape(), last).transpose()?;
        let z_room = z.as_ref().and_then(|z| z.view_mut(y_view.shape(), last)).transpose()?;
        // What has no room of its own is written in place.
        let (y_to, y_back) = match y_room {
            Some(room) => (room, Some(q.y.grad(q.accumulate))),
            None => (q.y, None),
        };
        let (z_to, z_back) = match z_room {
            Some(room) => (Some(room), q.z),
            None => (q.z, None),
        };
        run(Gathered {
            x: x.view(&q.x, last)?,
            w: w.view(&q.w, last)?,
            residual: match (&residual, &q.residual) {
                (Some(room), Some(v)) => Some(room.view(v, last)?),
                _ => None,
            },
            y: y_to,
            z: z_to,
            accumulate: q.accumulate && y_back.is_none(),
            ..q
        })?;
        if let Some(to) = y_back {
            self.strided_copy(y.view(&y_view, last)?, to)?;
        }
        match (z, z_view, z_back) {
            (Some(z), Some(v), Some(to)) => self.strided_copy(z.view(&v, last)?, to.into()),
            _ => Ok(()),
        }
    }

    /// Runs a weight gradient with all operands channels last, or all contiguous; what lies otherwise is copied.
    pub(super) fn weight_in_format(
        &self,
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
        last: bool,
        run: impl FnOnce([View<'_>; 2], GradMut<'_>) -> Result<()>,
    ) -> Result<()> {
        let copied = |v: &View<'_>| -> Result<Room> {
            if is_of(v, last) {
                return Ok(Room(None));
            }
            let to = Room(Some(self.scratch(v.dtype(), v.numel())?));
            if let Some(target) = to.view_mut(v.shape(), last) {
                self.strided_copy(*v, target?.into())?;
            }
            Ok(to)
        };
        let (xs, dys) = (copied(&x)?, copied(&dy)?);
        let (read, dw) = ([xs.view(&x, last)?, dys.view(&dy, last)?], g.out.as_view());
        if is_of(&dw, last) {
            return run(read, g);
        }
        let room = Room(Some(self.scratch(dw.dtype(), dw.numel())?));
        if let Some(to) = room.view_mut(dw.shape(), last) {
            run(read, to?.into())?;
        }
        self.strided_copy(room.view(&dw, last)?, g)
    }

    /// A convolution of one tap whose operands are channels last: the product of [N * S, C] with the weights.
    pub(super) fn pointwise_channels_last(&self, q: Gathered<'_>) -> Result<()> {
        let s = &q.p.s;
        let p = Gemm::new()
            .trans(false, !q.p.back)
            .scaled(1.0, if q.accumulate { 1.0 } else { 0.0 })
            .act(q.act)
            .precision(q.precision);
        let y = rows_mut(q.y)?;
        let io = GemmIo {
            a: rows(&q.x)?,
            b: q.w.reshape(&[s.co, s.ci])?,
            c: q.accumulate.then(|| y.as_view()),
            bias: q.bias,
            residual: q.residual.as_ref().map(rows).transpose()?,
            scale: q.scale,
            z: q.z.map(rows_mut).transpose()?,
            y,
            colsum: None,
        };
        self.gemm(&p, io)
    }

    /// dw (+)= dy^T x of matrices [N * S, C].
    pub(super) fn pointwise_weight(
        &self,
        s: &ConvShape,
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
        precision: Precision,
    ) -> Result<()> {
        let p = Gemm::new()
            .trans(true, false)
            .scaled(1.0, if g.accumulate { 1.0 } else { 0.0 })
            .precision(precision);
        let dw = g.out.reshape(&[s.co, s.ci])?;
        let mut io = GemmIo::new(rows(&dy)?, rows(&x)?, dw);
        io.c = g.accumulate.then(|| io.y.as_view());
        self.gemm(&p, io)
    }
}

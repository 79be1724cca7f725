//! Gathers and scatters, and indices out of range.

use super::*;
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::optimizer::{OptimRule, RowSlot, Step};

pub(super) fn index(t: &mut Bed<'_>) {
    let (x, y, s) = (t.f32(12), t.f32(8), t.f32(8));
    let ids = t.ids(&[0, 1]);
    let (m, count) = (t.buf(DType::U8, 12), t.buf(DType::I64, 1));
    let x34 = sh(&x, &[3, 4]);
    t.refuse("index_select with float indices", &[&y], |g| {
        g.index_select(0, x34, s.view().range(0, 2)?, out(&y, &[2, 4]).into())
    });
    t.refuse("index_select along axis 2", &[&y], |g| {
        g.index_select(2, x34, ids.view(), out(&y, &[2, 4]).into())
    });
    t.refuse("index_select into another shape", &[&y], |g| {
        g.index_select(0, x34, ids.view(), out(&y, &[4, 2]).into())
    });
    t.refuse("index_select with indices of rank 2", &[&y], |g| {
        g.index_select(0, x34, sh(&ids, &[1, 2]), out(&y, &[2, 4]).into())
    });
    t.refuse("index_add of another shape", &[&y], |g| {
        g.index_add(0, 1.0, ids.view(), sh(&s, &[4, 2]), out(&y, &[2, 4]))
    });
    t.refuse("gather with an index of another rank", &[&y], |g| {
        g.gather(0, x34, ids.view(), out(&y, &[8]).range(0, 2)?.into())
    });
    t.refuse("scatter of another shape", &[&y], |g| {
        g.scatter(0, sh(&ids, &[1, 2]), sh(&s, &[4, 2]), out(&y, &[2, 4]))
    });
    t.refuse("scatter_reduce along axis 5", &[&y], |g| {
        g.scatter_reduce(
            ScatterReduce::Sum,
            5,
            true,
            sh(&ids, &[1, 2]),
            s.view().range(0, 2)?.reshape(&[1, 2])?,
            out(&y, &[2, 4]),
        )
    });
    t.refuse("index_put without indices", &[&y], |g| g.index_put(false, &[], s.view(), y.alias_mut()));
    t.refuse("masked_select with a float mask", &[&y], |g| {
        g.masked_select(x.view(), x.view(), y.alias_mut(), count.alias_mut())
    });
    t.refuse("masked_select of another shape", &[&y], |g| {
        g.masked_select(m.view(), s.view(), y.alias_mut(), count.alias_mut())
    });
    t.refuse("masked_select with a float count", &[&y], |g| {
        g.masked_select(m.view(), x.view(), y.alias_mut(), s.alias_mut().range(0, 1)?)
    });
    t.refuse("nonzero into floats", &[&y], |g| g.nonzero(x34, out(&y, &[4, 2]), count.alias_mut()));
    t.refuse("one_hot of floats", &[&y], |g| g.one_hot(s.view().range(0, 2)?, out(&y, &[2, 4])));
    t.refuse("one_hot into another shape", &[&y], |g| g.one_hot(ids.view(), out(&y, &[4, 2])));
}

/// Indices out of range on the device: reads give 0, writes are dropped, one report; the results are refused, but can be looked at in a copy.
pub(super) fn out_of_range(t: &mut Bed<'_>) {
    let g = t.gpu;
    let look = |b: &Buffer| {
        if !matches!(g.download::<f32>(b.view()), Err(GpuError::IndexOutOfRange { .. })) {
            return Err(GpuError::Config("results of an index out of range were read as good".into()));
        }
        let mut copy = g.alloc(b.dtype(), b.len())?;
        g.copy(b.view(), copy.view_mut())?;
        g.download::<f32>(copy.view())
    };
    let run = || -> Result<Vec<String>> {
        let mut wrong = vec![];
        let x = g.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
        let ids = g.upload(&[1i64, 9, -1, 3])?;
        let mut y = g.alloc(DType::F32, 4)?;
        g.index_select(0, x.view(), ids.view(), y.view_mut().into())?;
        match g.synchronize() {
            Err(GpuError::IndexOutOfRange { op: "index_select" }) => {}
            other => wrong.push(format!("index_select: {other:?}")),
        }
        if let Err(e) = g.synchronize() {
            wrong.push(format!("the error was reported twice: {e}"));
        }
        let got = look(&y)?;
        if got != [2.0, 0.0, 0.0, 4.0] {
            wrong.push(format!("index_select read {got:?}"));
        }
        let mut y = g.upload(&[0.5f32; 4])?;
        g.index_add(0, 1.0, ids.view(), x.view(), y.view_mut())?;
        match g.download::<f32>(y.view()) {
            Err(GpuError::IndexOutOfRange { .. }) => {}
            other => wrong.push(format!("index_add: {other:?}")),
        }
        let got = look(&y)?;
        if got != [0.5, 1.5, 0.5, 4.5] {
            wrong.push(format!("index_add wrote {got:?}"));
        }
        let mut w = g.upload(&[1.0f32; 4])?;
        let state = [None, None, None, None];
        let param = RowSlot::new(w.view_mut(), ids.view(), x.view()).state(state);
        g.optimizer_step_rows(&OptimRule::Sgd { wd: 0.0 }, &Step::host(0.5, 1), param)?;
        match g.synchronize() {
            Err(GpuError::IndexOutOfRange { op: "optimizer_step_rows" }) => {}
            other => wrong.push(format!("optimizer_step_rows: {other:?}")),
        }
        let got = look(&w)?;
        if got != [1.0, 0.5, 1.0, -1.0] {
            wrong.push(format!("optimizer_step_rows wrote {got:?}"));
        }
        Ok(wrong)
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(w)) => t.wrong.extend(w),
        Ok(Err(e)) => t.wrong.push(e.to_string()),
        Err(_) => t.wrong.push("panicked".into()),
    }
}

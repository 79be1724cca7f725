//! Memory: copies, transfers, allocation.

use std::sync::Arc;

use trefoil::ops::elementwise::Binary;
use trefoil::{Buffer, DType, GpuError, Result};

use crate::case::{Operation, forward};
use crate::{Context, F32, Prepared, Problem, bytes, prepared, problem};

/// A copy of `n` elements.
pub(crate) fn copy(cx: &Context<'_>, dt: DType, n: usize) -> Result<Prepared> {
    let moved = 2 * n * dt.size();
    let (x, mut y) = (cx.normal_sets(dt, n, cx.sets(moved))?, cx.empty(dt, n)?);
    prepared(moved, 0, move |g, i| g.copy(x.at(i).view(), y.view_mut()))
}

/// `launches` additions of vectors of `n` elements, one after the other: replayed as a graph, or (where `recorded` is not set, and on backends that
/// record nothing) called.
fn additions(cx: &Context<'_>, n: usize, launches: usize, recorded: bool) -> Result<Prepared> {
    let x = cx.normal(DType::F32, n)?;
    let [a, b]: [Arc<Buffer>; 2] = [Arc::new(cx.empty(DType::F32, n)?), Arc::new(cx.normal(DType::F32, n)?)];
    let calls = move |g: &dyn trefoil::IGpuBackend| -> Result<()> {
        for i in 0..launches {
            let (from, to) = if i % 2 == 0 { (&b, &a) } else { (&a, &b) };
            g.binary(Binary::Add { alpha: 1e-3 }, from.view(), x.view(), to.alias_mut())?;
        }
        Ok(())
    };
    let moved = 3 * 4 * n * launches;
    let gpu = cx.device();
    // As many launches as are asked for: other variants make one kernel of them.
    gpu.pin_variant("capture_calls", Some("plain"))?;
    let made = gpu.capture_calls(&mut || if recorded { calls(gpu) } else { Ok(()) });
    gpu.pin_variant("capture_calls", None)?;
    match made {
        Ok(graph) if recorded => prepared(moved, 0, move |_, _| graph.replay()),
        Err(GpuError::Unsupported { .. }) | Ok(_) => prepared(moved, 0, move |g, _| calls(g)),
        Err(e) => Err(e),
    }
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("copy", "flat", F32, |cx, dt| copy(cx, dt, cx.n())),
    problem("write_bytes", "16MiB", F32, |cx, dt| {
        let n = cx.n().min(1 << 22);
        let (data, mut y) = (vec![1u8; n * dt.size()], cx.empty(dt, n)?);
        bytes(n * dt.size(), move |g| g.write_bytes(y.view_mut(), &data))
    }),
    problem("read_bytes", "16MiB", F32, |cx, dt| {
        let n = cx.n().min(1 << 22);
        let (mut data, x) = (vec![0u8; n * dt.size()], cx.normal(dt, n)?);
        bytes(n * dt.size(), move |g| g.read_bytes(x.view(), &mut data))
    }),
    problem("alloc", "pooled", F32, |cx, dt| {
        let n = cx.n();
        bytes(n * dt.size(), move |g| g.alloc(dt, n).map(drop))
    }),
    problem("capture_calls", "replay of 200 launches", F32, |cx, _| additions(cx, 1024, 200, true)),
];

pub(super) const OPERATIONS: &[Operation] = &[
    forward("copy", |cx, c| Ok(copy(cx, c.dtype()?, c.size("n")?)?)),
    forward("additions", |cx, c| Ok(additions(cx, c.size("n")?, c.size("launches")?, c.flag("capture"))?)),
];

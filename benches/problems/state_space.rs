//! State-space models and linear attention.

use trefoil::ops::state_space::{
    AssociativeScanBwd, GatedDeltaScan, GatedDeltaScanBwd, GlaScan, GlaScanBwd, SelectiveScan,
    SelectiveScanBwd, SsdScan, SsdScanBwd,
};

use crate::{Context, F32, F32_BF16, Problem, bytes, problem};

/// Batch, steps, channels and states per channel of a selective model.
fn channels(cx: &Context<'_>) -> [usize; 4] {
    [cx.pick(1, 2, 8), cx.pick(70, 128, 2048), cx.pick(32, 64, 2048), 16]
}

/// Batch, steps, heads and width of linear attention.
fn heads(cx: &Context<'_>) -> [usize; 4] {
    [cx.pick(1, 2, 8), cx.pick(70, 128, 2048), cx.pick(2, 4, 16), cx.pick(16, 32, 64)]
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("associative_scan", "channels", F32_BF16, |cx, dt| {
        let [b, t, e, _] = channels(cx);
        let (n, s) = (b * t * e, [b, t, e]);
        let (a, x, mut y) = (cx.positive(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        bytes(3 * n * dt.size(), move |g| {
            g.associative_scan(false, a.shaped(&s)?, x.shaped(&s)?, y.shaped_mut(&s)?)
        })
    }),
    problem("associative_scan_bwd", "channels", F32_BF16, |cx, dt| {
        let [b, t, e, _] = channels(cx);
        let (n, s) = (b * t * e, [b, t, e]);
        let (a, y, dy) = (cx.positive(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (mut da, mut db) = (cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(5 * n * dt.size(), move |g| {
            let io = AssociativeScanBwd::new(dy.shaped(&s)?, a.shaped(&s)?).y(y.shaped(&s)?);
            g.associative_scan_bwd(
                false,
                io.da(da.shaped_mut(&s)?.grad(false)).db(db.shaped_mut(&s)?.grad(false)),
            )
        })
    }),
    problem("selective_scan", "mamba", F32_BF16, |cx, dt| {
        let [b, t, e, n] = channels(cx);
        let (all, s, sn) = (b * t * e, [b, t, e], [b, t, n]);
        let (x, step, z, mut y) =
            (cx.normal(dt, all)?, cx.normal(dt, all)?, cx.normal(dt, all)?, cx.empty(dt, all)?);
        let (a, bs, cs) = (cx.normal(dt, e * n)?, cx.normal(dt, b * t * n)?, cx.normal(dt, b * t * n)?);
        bytes(4 * all * dt.size(), move |g| {
            let (bs, cs) = (bs.shaped(&sn)?, cs.shaped(&sn)?);
            let (x, step, a) = (x.shaped(&s)?, step.shaped(&s)?, a.shaped(&[e, n])?);
            g.selective_scan(true, SelectiveScan::new(x, step, a, bs, cs, y.shaped_mut(&s)?).z(z.shaped(&s)?))
        })
    }),
    problem("selective_scan_bwd", "mamba", F32_BF16, |cx, dt| {
        let [b, t, e, n] = channels(cx);
        let (all, s, sn) = (b * t * e, [b, t, e], [b, t, n]);
        let (x, step, z, dy) =
            (cx.normal(dt, all)?, cx.normal(dt, all)?, cx.normal(dt, all)?, cx.normal(dt, all)?);
        let (a, bs, cs) = (cx.normal(dt, e * n)?, cx.normal(dt, b * t * n)?, cx.normal(dt, b * t * n)?);
        let (mut dx, mut dstep, mut dz) = (cx.empty(dt, all)?, cx.empty(dt, all)?, cx.empty(dt, all)?);
        let (mut da, mut dbs, mut dcs) =
            (cx.empty(dt, e * n)?, cx.empty(dt, b * t * n)?, cx.empty(dt, b * t * n)?);
        bytes(7 * all * dt.size(), move |g| {
            let (bs, cs) = (bs.shaped(&sn)?, cs.shaped(&sn)?);
            let io = SelectiveScanBwd::new(
                dy.shaped(&s)?,
                x.shaped(&s)?,
                step.shaped(&s)?,
                a.shaped(&[e, n])?,
                bs,
                cs,
            )
            .z(z.shaped(&s)?)
            .dx(dx.shaped_mut(&s)?.grad(false))
            .ddt(dstep.shaped_mut(&s)?.grad(false))
            .da(da.shaped_mut(&[e, n])?.grad(false))
            .db(dbs.shaped_mut(&sn)?.grad(false))
            .dc(dcs.shaped_mut(&sn)?.grad(false))
            .dz(dz.shaped_mut(&s)?.grad(false));
            g.selective_scan_bwd(true, io)
        })
    }),
    problem("gla_scan", "per_key", F32_BF16, |cx, dt| {
        let s = heads(cx);
        let n = s.iter().product::<usize>();
        let (q, k, v, gate) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.positive(dt, n)?);
        let mut y = cx.empty(dt, n)?;
        bytes(5 * n * dt.size(), move |g| {
            let (q, k, v, gate) = (q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?, gate.shaped(&s)?);
            g.gla_scan(GlaScan::new(q, k, v, gate, y.shaped_mut(&s)?))
        })
    }),
    problem("gla_scan_bwd", "per_key", F32, |cx, dt| {
        let s = heads(cx);
        let n = s.iter().product::<usize>();
        let (q, k, v, gate) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.positive(dt, n)?);
        let dy = cx.normal(dt, n)?;
        let (mut dq, mut dk, mut dv, mut dg) =
            (cx.empty(dt, n)?, cx.empty(dt, n)?, cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(9 * n * dt.size(), move |g| {
            let (q, k, v, gate) = (q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?, gate.shaped(&s)?);
            let io = GlaScanBwd::new(dy.shaped(&s)?, q, k, v, gate)
                .dq(dq.shaped_mut(&s)?.grad(false))
                .dk(dk.shaped_mut(&s)?.grad(false))
                .dv(dv.shaped_mut(&s)?.grad(false))
                .dg(dg.shaped_mut(&s)?.grad(false));
            g.gla_scan_bwd(io)
        })
    }),
    problem("gated_delta_scan", "heads", F32_BF16, |cx, dt| {
        let s = heads(cx);
        let (n, m) = (s.iter().product::<usize>(), s[0] * s[1] * s[2]);
        // Keys of length 1, about: with longer ones the rule diverges within a few steps, and all that is timed is NaN.
        let k = cx.normal_std(dt, n, 1.0 / (s[3] as f64).sqrt())?;
        let (q, v, mut y) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, n)?);
        let (a, b) = (cx.unit(dt, m)?, cx.unit(dt, m)?);
        bytes(4 * n * dt.size(), move |g| {
            let (q, k, v) = (q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?);
            let (a, b) = (a.shaped(&s[..3])?, b.shaped(&s[..3])?);
            g.gated_delta_scan(GatedDeltaScan::new(q, k, v, a, b, y.shaped_mut(&s)?))
        })
    }),
    problem("gated_delta_scan_bwd", "heads", F32, |cx, dt| {
        let s = heads(cx);
        let (n, m) = (s.iter().product::<usize>(), s[0] * s[1] * s[2]);
        let k = cx.normal_std(dt, n, 1.0 / (s[3] as f64).sqrt())?;
        let (q, v, dy) = (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.normal(dt, n)?);
        let (a, b) = (cx.unit(dt, m)?, cx.unit(dt, m)?);
        let (mut dq, mut dk, mut dv) = (cx.empty(dt, n)?, cx.empty(dt, n)?, cx.empty(dt, n)?);
        bytes(7 * n * dt.size(), move |g| {
            let (q, k, v) = (q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?);
            let (a, b) = (a.shaped(&s[..3])?, b.shaped(&s[..3])?);
            let io = GatedDeltaScanBwd::new(dy.shaped(&s)?, q, k, v, a, b)
                .dq(dq.shaped_mut(&s)?.grad(false))
                .dk(dk.shaped_mut(&s)?.grad(false))
                .dv(dv.shaped_mut(&s)?.grad(false));
            g.gated_delta_scan_bwd(io)
        })
    }),
    problem("ssd_scan", "mamba2", F32_BF16, |cx, dt| {
        let s = heads(cx);
        let (n, m, sn) = (s.iter().product::<usize>(), s[0] * s[1] * s[2], [s[0], s[1], 1, s[3]]);
        let (x, mut y, step, a) =
            (cx.normal(dt, n)?, cx.empty(dt, n)?, cx.positive(dt, m)?, cx.negative(dt, s[2])?);
        let (b, c) = (cx.normal(dt, n / s[2])?, cx.normal(dt, n / s[2])?);
        bytes(2 * n * dt.size(), move |g| {
            let (step, b, c) = (step.shaped(&s[..3])?, b.shaped(&sn)?, c.shaped(&sn)?);
            g.ssd_scan(SsdScan::new(x.shaped(&s)?, step, a.view(), b, c, y.shaped_mut(&s)?))
        })
    }),
    problem("ssd_scan_bwd", "mamba2", F32, |cx, dt| {
        let s = heads(cx);
        let (n, m, sn) = (s.iter().product::<usize>(), s[0] * s[1] * s[2], [s[0], s[1], 1, s[3]]);
        let (x, dy, step, a) =
            (cx.normal(dt, n)?, cx.normal(dt, n)?, cx.positive(dt, m)?, cx.negative(dt, s[2])?);
        let (b, c) = (cx.normal(dt, n / s[2])?, cx.normal(dt, n / s[2])?);
        let (mut dx, mut db, mut dc) = (cx.empty(dt, n)?, cx.empty(dt, n / s[2])?, cx.empty(dt, n / s[2])?);
        bytes(3 * n * dt.size(), move |g| {
            let (step, b, c) = (step.shaped(&s[..3])?, b.shaped(&sn)?, c.shaped(&sn)?);
            let io = SsdScanBwd::new(dy.shaped(&s)?, x.shaped(&s)?, step, a.view(), b, c)
                .dx(dx.shaped_mut(&s)?.grad(false))
                .db(db.shaped_mut(&sn)?.grad(false))
                .dc(dc.shaped_mut(&sn)?.grad(false));
            g.ssd_scan_bwd(io)
        })
    }),
];

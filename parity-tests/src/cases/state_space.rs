//! State-space models, linear attention and linear recurrences.

use std::rc::Rc;

use trefoil::ops::state_space::{
    AssociativeScanBwd, GatedDeltaScan, GatedDeltaScanBwd, GlaScan, GlaScanBwd, SelectiveScan,
    SelectiveScanBwd, SsdScan, SsdScanBwd,
};

use super::Bound::Derived;
use super::{Kernel, k};
use crate::device::{Cx, R, Tensor};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

/// An output of the shape of an input, if that is given and the output asked for.
fn grad(cx: &Cx<'_>, name: &str, of: &str) -> R<Option<Rc<Tensor>>> {
    cx.opt(of).filter(|_| cx.wants(name)).map(|x| cx.like(name, &x)).transpose()
}

/// The last state.
fn state(cx: &Cx<'_>, shape: &[usize]) -> R<Option<Rc<Tensor>>> {
    cx.wants("state").then(|| cx.out("state", cx.dtype.accumulator(), shape)).transpose()
}

fn associative(cx: &Cx<'_>) -> R {
    let b = cx.x("b")?;
    let y = cx.like("y", &b)?;
    Ok(cx.gpu.associative_scan(cx.b("reverse")?, cx.x("a")?, b, y.m())?)
}

fn associative_backward(cx: &Cx<'_>) -> R {
    let (a, b, reverse) = (cx.x("a")?, cx.x("b")?, cx.b("reverse")?);
    let mut y = cx.gpu.alloc(b.dtype(), b.numel())?;
    cx.gpu.associative_scan(reverse, a, b, y.view_mut().reshape(b.shape())?)?;
    let (da, db) = (grad(cx, "da", "a")?, grad(cx, "db", "b")?);
    let io = AssociativeScanBwd::new(cx.x("dy")?, a)
        .y(y.shaped(b.shape())?)
        .da(da.as_ref().map(|t| t.g()))
        .db(db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.associative_scan_bwd(reverse, io)?)
}

/// [B, H, V, D] of the state of linear attention.
fn attention_state(cx: &Cx<'_>) -> R<Option<Rc<Tensor>>> {
    let (q, v) = (cx.x("q")?, cx.x("v")?);
    let (&[b, _, h, d], &[.., rows]) = (q.shape(), v.shape()) else { return Ok(None) };
    state(cx, &[b, h, rows, d])
}

fn gla(cx: &Cx<'_>) -> R {
    let v = cx.x("v")?;
    let (y, s) = (cx.like("y", &v)?, attention_state(cx)?);
    let io = GlaScan::new(cx.x("q")?, cx.x("k")?, v, cx.x("g")?, y.m()).state(s.as_ref().map(|t| t.m()));
    Ok(cx.gpu.gla_scan(io)?)
}

fn gla_backward(cx: &Cx<'_>) -> R {
    let (dq, dk, dv, dg) =
        (grad(cx, "dq", "q")?, grad(cx, "dk", "k")?, grad(cx, "dv", "v")?, grad(cx, "dg", "g")?);
    let io = GlaScanBwd::new(cx.x("dy")?, cx.x("q")?, cx.x("k")?, cx.x("v")?, cx.x("g")?)
        .dq(dq.as_ref().map(|t| t.g()))
        .dk(dk.as_ref().map(|t| t.g()))
        .dv(dv.as_ref().map(|t| t.g()))
        .dg(dg.as_ref().map(|t| t.g()));
    Ok(cx.gpu.gla_scan_bwd(io)?)
}

fn delta(cx: &Cx<'_>) -> R {
    let v = cx.x("v")?;
    let (y, s) = (cx.like("y", &v)?, attention_state(cx)?);
    let io = GatedDeltaScan::new(cx.x("q")?, cx.x("k")?, v, cx.x("a")?, cx.x("b")?, y.m());
    Ok(cx.gpu.gated_delta_scan(io.state(s.as_ref().map(|t| t.m())))?)
}

fn delta_backward(cx: &Cx<'_>) -> R {
    let (dq, dk, dv) = (grad(cx, "dq", "q")?, grad(cx, "dk", "k")?, grad(cx, "dv", "v")?);
    let (da, db) = (grad(cx, "da", "a")?, grad(cx, "db", "b")?);
    let io = GatedDeltaScanBwd::new(cx.x("dy")?, cx.x("q")?, cx.x("k")?, cx.x("v")?, cx.x("a")?, cx.x("b")?)
        .dq(dq.as_ref().map(|t| t.g()))
        .dk(dk.as_ref().map(|t| t.g()))
        .dv(dv.as_ref().map(|t| t.g()))
        .da(da.as_ref().map(|t| t.g()))
        .db(db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.gated_delta_scan_bwd(io)?)
}

fn selective(cx: &Cx<'_>) -> R {
    let (x, a) = (cx.x("x")?, cx.x("A")?);
    let y = cx.like("y", &x)?;
    let (&[b, _, e], &[_, n]) = (x.shape(), a.shape()) else { return Ok(()) };
    let s = state(cx, &[b, e, n])?;
    let io = SelectiveScan::new(x, cx.x("dt")?, a, cx.x("B")?, cx.x("C")?, y.m());
    let io = io.d(cx.opt("D")).z(cx.opt("z")).state(s.as_ref().map(|t| t.m()));
    Ok(cx.gpu.selective_scan(cx.b("softplus")?, io)?)
}

fn selective_backward(cx: &Cx<'_>) -> R {
    let (dx, ddt, da) = (grad(cx, "dx", "x")?, grad(cx, "ddt", "dt")?, grad(cx, "dA", "A")?);
    let (db, dc) = (grad(cx, "dB", "B")?, grad(cx, "dC", "C")?);
    let (dd, dz) = (grad(cx, "dD", "D")?, grad(cx, "dz", "z")?);
    let io = SelectiveScanBwd::new(cx.x("dy")?, cx.x("x")?, cx.x("dt")?, cx.x("A")?, cx.x("B")?, cx.x("C")?)
        .d(cx.opt("D"))
        .z(cx.opt("z"))
        .dx(dx.as_ref().map(|t| t.g()))
        .ddt(ddt.as_ref().map(|t| t.g()))
        .da(da.as_ref().map(|t| t.g()))
        .db(db.as_ref().map(|t| t.g()))
        .dc(dc.as_ref().map(|t| t.g()))
        .dd(dd.as_ref().map(|t| t.g()))
        .dz(dz.as_ref().map(|t| t.g()));
    Ok(cx.gpu.selective_scan_bwd(cx.b("softplus")?, io)?)
}

fn ssd(cx: &Cx<'_>) -> R {
    let (x, c) = (cx.x("x")?, cx.x("C")?);
    let y = cx.like("y", &x)?;
    let (&[b, _, h, p], &[.., n]) = (x.shape(), c.shape()) else { return Ok(()) };
    let s = state(cx, &[b, h, p, n])?;
    let io = SsdScan::new(x, cx.x("dt")?, cx.x("A")?, cx.x("B")?, c, y.m());
    Ok(cx.gpu.ssd_scan(io.d(cx.opt("D")).state(s.as_ref().map(|t| t.m())))?)
}

fn ssd_backward(cx: &Cx<'_>) -> R {
    let (dx, ddt, da) = (grad(cx, "dx", "x")?, grad(cx, "ddt", "dt")?, grad(cx, "dA", "A")?);
    let (db, dc, dd) = (grad(cx, "dB", "B")?, grad(cx, "dC", "C")?, grad(cx, "dD", "D")?);
    let io = SsdScanBwd::new(cx.x("dy")?, cx.x("x")?, cx.x("dt")?, cx.x("A")?, cx.x("B")?, cx.x("C")?)
        .d(cx.opt("D"))
        .dx(dx.as_ref().map(|t| t.g()))
        .ddt(ddt.as_ref().map(|t| t.g()))
        .da(da.as_ref().map(|t| t.g()))
        .db(db.as_ref().map(|t| t.g()))
        .dc(dc.as_ref().map(|t| t.g()))
        .dd(dd.as_ref().map(|t| t.g()));
    Ok(cx.gpu.ssd_scan_bwd(io)?)
}

// ---- samples -------------------------------------------------------------------------------------------------------------------

/// Steps: within a segment, over several, and enough for several runs.
fn steps(s: &mut Sample) -> usize {
    if s.small { 3 } else { [1, 9, 67, 150, 0][s.below(5)] }
}

fn associative_sample(s: &mut Sample) {
    let t = if s.small { 4 } else { [1, 33, 300, 1000, 0][s.below(5)] };
    let shape = [1 + s.below(2), t, 1 + s.below(if s.small { 2 } else { 9 })];
    s.put("a", &shape, Range(0.3, 1.0));
    s.put("b", &shape, Any);
    let reverse = s.coin();
    s.arg("reverse", reverse);
}

/// Rows and width of a state.
fn state_size(s: &mut Sample) -> [usize; 2] {
    if s.small {
        return [2, 3];
    }
    [[1, 3, 20, 40][s.below(4)], [1, 4, 16, 33, 64][s.below(5)]]
}

/// q, k and v; the sizes [B, T, H, D].
fn attention_sample(s: &mut Sample) -> [usize; 4] {
    let ([rows, d], t) = (state_size(s), steps(s));
    let (b, h) = (1 + s.below(2), 1 + s.below(2));
    let bound = 1.0 / (d as f64).sqrt();
    s.put("q", &[b, t, h, d], Any);
    s.put("k", &[b, t, h, d], Range(-bound, bound));
    s.put("v", &[b, t, h, rows], Any);
    [b, t, h, d]
}

fn gla_sample(s: &mut Sample) {
    let [b, t, h, d] = attention_sample(s);
    let rank = if s.coin() { 4 } else { 3 };
    s.put("g", &[b, t, h, d][..rank], Range(0.5, 1.0));
}

fn delta_sample(s: &mut Sample) {
    let [b, t, h, _] = attention_sample(s);
    s.put("a", &[b, t, h], Range(0.6, 1.0));
    s.put("b", &[b, t, h], Range(0.0, 1.0));
}

fn selective_sample(s: &mut Sample) {
    let ([e, n], t, b) = (state_size(s), steps(s), 1 + s.below(2));
    let softplus = s.coin();
    s.put("x", &[b, t, e], Any);
    s.put("dt", &[b, t, e], if softplus { Range(-3.0, 1.0) } else { Range(0.05, 1.0) });
    s.put("A", &[e, n], Range(-2.0, -0.2));
    s.put("B", &[b, t, n], Any);
    s.put("C", &[b, t, n], Any);
    if s.coin() {
        s.put("D", &[e], Any);
    }
    if s.coin() {
        s.put("z", &[b, t, e], Any);
    }
    s.arg("softplus", softplus);
}

fn ssd_sample(s: &mut Sample) {
    let ([p, n], t, b) = (state_size(s), steps(s), 1 + s.below(2));
    let (groups, each) = (1 + s.below(2), 1 + s.below(2));
    let h = groups * each;
    s.put("x", &[b, t, h, p], Any);
    s.put("dt", &[b, t, h], Range(0.05, 1.0));
    s.put("A", &[h], Range(-2.0, -0.2));
    s.put("B", &[b, t, groups, n], Any);
    s.put("C", &[b, t, groups, n], Any);
    if s.coin() {
        s.put("D", &[h], Any);
    }
}

/// A row and its gradient's.
macro_rules! scan {
    ($name:literal, $row:literal, $inputs:literal, $args:literal, $grads:literal, $op:literal, [$($back_op:literal),+], $run:expr, $back:expr, $sample:expr) => {
        &[
            k($name, $row, $inputs, $args, "y, [state]", &[$op], $run).bound(Derived).sample($sample),
            k(
                concat!($name, "_backward"),
                $row,
                concat!("dy, ", $inputs),
                $args,
                $grads,
                &[$($back_op),+],
                $back,
            )
            .bound(Derived)
            .grad_of($name),
        ]
    };
}

pub(super) const ROWS: &[&[Kernel]] = &[
    scan!(
        "gla_scan",
        "B8.1",
        "q, k, v, g",
        "-",
        "[dq], [dk], [dv], [dg]",
        "gla_scan",
        ["gla_scan_bwd"],
        gla,
        gla_backward,
        gla_sample
    ),
    scan!(
        "gated_delta_scan",
        "B8.2",
        "q, k, v, a, b",
        "-",
        "[dq], [dk], [dv], [da], [db]",
        "gated_delta_scan",
        ["gated_delta_scan_bwd"],
        delta,
        delta_backward,
        delta_sample
    ),
    scan!(
        "mamba_selective_scan",
        "B8.6",
        "x, dt, A, B, C, [D], [z]",
        "softplus=false",
        "[dx], [ddt], [dA], [dB], [dC], [dD], [dz]",
        "selective_scan",
        ["selective_scan_bwd"],
        selective,
        selective_backward,
        selective_sample
    ),
    scan!(
        "mamba2_ssd_scan",
        "B8.7",
        "x, dt, A, B, C, [D]",
        "-",
        "[dx], [ddt], [dA], [dB], [dC], [dD]",
        "ssd_scan",
        ["ssd_scan_bwd"],
        ssd,
        ssd_backward,
        ssd_sample
    ),
    scan!(
        "associative_scan",
        "B8.9",
        "a, b",
        "reverse=false",
        "[da], [db]",
        "associative_scan",
        ["associative_scan", "associative_scan_bwd"],
        associative,
        associative_backward,
        associative_sample
    ),
];

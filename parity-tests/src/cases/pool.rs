//! Pooling.

use trefoil::DType;
use trefoil::ops::pool::{Pooling, Window};

use super::Bound::Sum;
use super::{Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Coarse};
use crate::sampler::Sample;

/// A list of sizes, or null.
fn opt_dims(cx: &Cx<'_>, name: &str) -> R<Option<Vec<usize>>> {
    match cx.opt_n(name) {
        Ok(None) => Ok(None),
        _ => cx.dims(name).map(Some),
    }
}

/// The windows that the arguments name.
fn sliding(cx: &Cx<'_>) -> R<Window> {
    let kernel = cx.dims("k")?;
    let stride = opt_dims(cx, "s")?.unwrap_or_else(|| kernel.clone());
    let mut w = Window::new(&kernel).stride(&stride).padding(&cx.dims("p")?).ceil_mode(cx.b("ceil_mode")?);
    if cx.has("d") {
        w = w.dilation(&cx.dims("d")?);
    }
    if cx.has("count_include_pad") {
        w = w.count_include_pad(cx.b("count_include_pad")?);
    }
    if cx.has("divisor_override")
        && let Some(by) = cx.opt_f("divisor_override")?
    {
        w = w.divisor(by as i64);
    }
    Ok(w)
}

/// Windows of a forward call and the shape of its output. Where they do not fit the library gets to refuse them.
fn forward(cx: &Cx<'_>, x: &[usize]) -> R<(Pooling, Vec<usize>)> {
    let (batch, spatial) = x.split_at(2.min(x.len()));
    let (windows, output) = if cx.has("k") {
        let w = sliding(cx)?;
        (w.into(), w.output_size(spatial).map_or_else(|_| vec![1; spatial.len()], |d| d.to_vec()))
    } else if cx.has("output_size") {
        (Pooling::Adaptive, cx.dims("output_size")?)
    } else {
        (Pooling::Adaptive, vec![1; spatial.len()])
    };
    Ok((windows, [batch, &output].concat()))
}

fn max_pool(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (windows, shape) = forward(cx, x.shape())?;
    let y = cx.out("y", x.dtype(), &shape)?;
    let idx = if cx.wants("idx") { Some(cx.out("idx", DType::I32, &shape)?) } else { None };
    Ok(cx.gpu.max_pool(windows, x, y.m(), idx.as_ref().map(|i| i.m()))?)
}

fn avg_pool(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (windows, shape) = forward(cx, x.shape())?;
    let y = cx.out("y", x.dtype(), &shape)?;
    Ok(cx.gpu.avg_pool(windows, x, y.m())?)
}

fn windows(cx: &Cx<'_>) -> R<Pooling> {
    if cx.has("k") { sliding(cx).map(Pooling::from) } else { Ok(Pooling::Adaptive) }
}

fn max_pool_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    Ok(cx.gpu.max_pool_bwd(windows(cx)?, dy, cx.x("idx")?, dx.g())?)
}

fn avg_pool_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.out("dx", dy.dtype(), &cx.dims("input_size")?)?;
    Ok(cx.gpu.avg_pool_bwd(windows(cx)?, dy, dx.g())?)
}

/// A list argument; a single number where all entries agree.
fn list_arg(s: &mut Sample, name: &str, v: &[usize]) {
    if v.iter().all(|&n| n == v[0]) { s.arg(name, v[0]) } else { s.arg(name, v.to_vec()) }
}

/// Batch and channels: a few, many, or none.
fn batch(s: &mut Sample) -> Vec<usize> {
    let most = if s.small { 2 } else { 5 };
    let n = if !s.small && s.below(8) == 0 { 0 } else { 1 + s.below(2) };
    vec![n, 1 + s.below(most)]
}

/// Windows of 2 x 2, or 3 x 3 and padding, by steps of 2 over rows of whole 16-byte items, which have kernels of their own.
fn draw_halving(s: &mut Sample, dilated: bool) {
    let shape = [2, 3, 2 * (1 + s.below(9)), 2 * s.vector() * (1 + s.below(5))];
    s.put("x", &shape, if dilated { Coarse } else { Any });
    let side = 2 + s.below(2);
    s.arg("k", side);
    s.arg("s", 2);
    s.arg("p", side - 2);
}

/// Windows of 3 x 3 or 5 x 5 around every cell over rows of whole 16-byte items, which have kernels of their own.
fn draw_sliding(s: &mut Sample, dilated: bool) {
    let shape = [2, 3, 1 + s.below(18), s.vector() * (1 + s.below(5))];
    let side = if shape[2].min(shape[3]) < 4 { 3 } else { 3 + 2 * s.below(2) };
    s.put("x", &shape, if dilated { Coarse } else { Any });
    s.arg("k", side);
    s.arg("s", 1);
    s.arg("p", side / 2);
    if !dilated {
        let include = s.coin();
        s.arg("count_include_pad", include);
    }
}

/// x and windows over `nd` axes.
fn draw(s: &mut Sample, nd: usize, dilated: bool) {
    match s.aligned().filter(|_| nd == 2) {
        Some(1) => return draw_halving(s, dilated),
        Some(2) => return draw_sliding(s, dilated),
        Some(3) => {
            draw_halving(s, dilated);
            // What is inside alone counts.
            if !dilated {
                s.arg("count_include_pad", false);
            }
            return;
        }
        _ => {}
    }
    let mut shape = batch(s);
    let (mut kernel, mut stride, mut padding, mut dilation) = (vec![], vec![], vec![], vec![]);
    // Patches of 2 and 3, runs of a row, and windows that several threads share.
    let style = s.below(4);
    for a in 0..nd {
        let long = style == 3 && a + 1 == nd && !s.small;
        let k = match style {
            0 => 2,
            1 => 3,
            _ if long => 33 + s.below(60),
            _ => 1 + s.below(if s.small { 3 } else { 5 }),
        };
        let d = if dilated && s.below(3) == 0 { 1 + s.below(3) } else { 1 };
        let p = if s.coin() { s.below(k / 2 + 1) } else { 0 };
        let reach = d * (k - 1) + 1;
        let spare = s.below(if s.small { 3 } else { 12 });
        let mut n = reach + spare;
        if !s.small && a + 1 == nd && s.coin() {
            n = (reach + 40 * s.below(3)).next_multiple_of(8);
        }
        shape.push(n);
        kernel.push(k);
        stride.push(1 + s.below(3));
        padding.push(p);
        dilation.push(d);
    }
    let ties = dilated && s.coin();
    s.put("x", &shape, if ties { Coarse } else { Any });
    list_arg(s, "k", &kernel);
    if s.coin() {
        list_arg(s, "s", &stride);
    }
    list_arg(s, "p", &padding);
    if dilated {
        list_arg(s, "d", &dilation);
    } else {
        let on = s.coin();
        s.arg("count_include_pad", on);
        if nd > 1 && s.below(4) == 0 {
            let by = 1 + s.below(9);
            s.arg("divisor_override", by);
        }
    }
    let on = s.coin();
    s.arg("ceil_mode", on);
}

fn draw_adaptive(s: &mut Sample, nd: usize) {
    let mut shape = batch(s);
    let mut output = vec![];
    for a in 0..nd {
        let n = if s.small {
            1 + s.below(5)
        } else {
            [1, 2, 7, 16, 33, 100][s.below(if nd == 3 { 4 } else { 6 })]
        };
        shape.push(n);
        output.push(match s.below(4) {
            0 => 1,
            1 => n,
            _ => 1 + s.below(if s.small { 4 } else { 9 }),
        });
        if a == 1 && s.below(4) == 0 {
            output.iter_mut().for_each(|m| *m = 1);
        }
    }
    s.put("x", &shape, Any);
    s.arg("output_size", output);
}

/// Planes of 1 to a few thousand cells.
fn draw_global(s: &mut Sample) {
    let mut shape = batch(s);
    let most = if s.small { 4 } else { 70 };
    let (h, w) = (1 + s.below(most), 1 + s.below(most));
    shape.extend([h, w]);
    s.put("x", &shape, Coarse);
}

macro_rules! max {
    ($nd:literal, $row:literal, $grad_row:literal, $name:literal, $grad:literal) => {
        [
            k(
                $name,
                $row,
                "x",
                "k, s=null, p=0, d=1, ceil_mode=false",
                "y, idx:i32",
                &["max_pool"],
                max_pool,
            )
            .sample(|s| draw(s, $nd, true)),
            k(
                $grad,
                $grad_row,
                "dy, idx:i32",
                "input_size, k, s=null, p=0, d=1, ceil_mode=false",
                "dx",
                &["max_pool_bwd"],
                max_pool_backward,
            )
            .bound(Sum)
            .grad_of($name),
        ]
    };
}

macro_rules! avg {
    ($nd:literal, $row:literal, $grad_row:literal, $name:literal, $grad:literal, $args:literal) => {
        [
            k($name, $row, "x", $args, "y", &["avg_pool"], avg_pool)
                .bound(Sum)
                .sample(|s| draw(s, $nd, false)),
            k(
                $grad,
                $grad_row,
                "dy",
                concat!("input_size, ", $args),
                "dx",
                &["avg_pool_bwd"],
                avg_pool_backward,
            )
            .bound(Sum)
            .grad_of($name),
        ]
    };
}

macro_rules! adaptive_max {
    ($nd:literal, $name:literal, $grad:literal) => {
        [
            k($name, "B5.2", "x", "output_size", "y, idx:i32", &["max_pool"], max_pool)
                .sample(|s| draw_adaptive(s, $nd)),
            k($grad, "B5.2", "dy, idx:i32", "input_size", "dx", &["max_pool_bwd"], max_pool_backward)
                .bound(Sum)
                .grad_of($name),
        ]
    };
}

macro_rules! adaptive_avg {
    ($nd:literal, $row:literal, $grad_row:literal, $name:literal, $grad:literal) => {
        [
            k($name, $row, "x", "output_size", "y", &["avg_pool"], avg_pool)
                .bound(Sum)
                .sample(|s| draw_adaptive(s, $nd)),
            k($grad, $grad_row, "dy", "input_size", "dx", &["avg_pool_bwd"], avg_pool_backward)
                .bound(Sum)
                .grad_of($name),
        ]
    };
}

const AVG: [[Kernel; 2]; 3] = [
    avg!(
        1,
        "B5.1",
        "B5.1",
        "avgpool1d",
        "avgpool1d_backward",
        "k, s=null, p=0, ceil_mode=false, count_include_pad=true"
    ),
    avg!(
        2,
        "S5.2",
        "S5.7",
        "avgpool2d",
        "avgpool2d_backward",
        "k, s=null, p=0, ceil_mode=false, count_include_pad=true, divisor_override=null"
    ),
    avg!(
        3,
        "S5.12",
        "S5.12",
        "avgpool3d",
        "avgpool3d_backward",
        "k, s=null, p=0, ceil_mode=false, count_include_pad=true, divisor_override=null"
    ),
];

pub(super) const ROWS: &[&[Kernel]] = &[
    &max!(1, "B5.1", "B5.1", "maxpool1d", "maxpool1d_backward"),
    &max!(2, "S5.1", "S5.6", "maxpool2d", "maxpool2d_backward"),
    &max!(3, "S5.11", "S5.11", "maxpool3d", "maxpool3d_backward"),
    &AVG[0],
    &AVG[1],
    &AVG[2],
    &adaptive_max!(1, "adaptive_maxpool1d", "adaptive_maxpool1d_backward"),
    &adaptive_max!(2, "adaptive_maxpool2d", "adaptive_maxpool2d_backward"),
    &adaptive_max!(3, "adaptive_maxpool3d", "adaptive_maxpool3d_backward"),
    &adaptive_avg!(1, "B5.2", "B5.2", "adaptive_avgpool1d", "adaptive_avgpool1d_backward"),
    &adaptive_avg!(2, "S5.5", "S5.10", "adaptive_avgpool2d", "adaptive_avgpool2d_backward"),
    &adaptive_avg!(3, "B5.2", "B5.2", "adaptive_avgpool3d", "adaptive_avgpool3d_backward"),
    &[
        k("global_avgpool2d", "S5.3", "x", "-", "y", &["avg_pool"], avg_pool).bound(Sum).sample(draw_global),
        k("global_maxpool2d", "S5.4", "x", "-", "y, idx:i32", &["max_pool"], max_pool).sample(draw_global),
        k(
            "global_avgpool2d_backward",
            "S5.8",
            "dy",
            "input_size",
            "dx",
            &["avg_pool_bwd"],
            avg_pool_backward,
        )
        .bound(Sum)
        .grad_of("global_avgpool2d"),
        k(
            "global_maxpool2d_backward",
            "S5.9",
            "dy, idx:i32",
            "input_size",
            "dx",
            &["max_pool_bwd"],
            max_pool_backward,
        )
        .bound(Sum)
        .grad_of("global_maxpool2d"),
    ],
];

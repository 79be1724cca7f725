//! Movement and creation. What a layout expresses is a view plus a strided copy.

mod calls;
mod gradient;
mod sample;

use trefoil::DType;
use trefoil::ops::shape::Triangle;

use super::Bound::Function;
use super::{ANY, F32, Kernel, k};
use crate::sampler::Dom::Any;

use calls::*;
use sample::*;

macro_rules! row {
    ($name:literal, $row:literal, $args:literal, $ops:expr, $run:expr, $sample:expr) => {
        k($name, $row, "x", $args, "y", $ops, $run).dtypes(ANY).sample($sample)
    };
}

const COPY: &[&str] = &["strided_copy"];

pub(super) const TABLES: &[&[&[Kernel]]] = &[ROWS, gradient::ROWS];

const ROWS: &[&[Kernel]] = &[
    &[
        row!("reshape", "T4.1", "shape", COPY, reshape, |s| {
            draw(s, 3);
            let n = s.shape_of("x");
            s.arg("shape", vec![n[1] * n[0], n[2]]);
        }),
        row!("expand", "T4.1", "shape", COPY, expand, |s| {
            let mut n = s.ranked(3);
            let to = n.clone();
            let axis = s.below(3);
            n[axis] = 1;
            s.put("x", &n, Any);
            s.arg("shape", to);
        }),
        row!("squeeze", "T4.1", "axes", COPY, squeeze, |s| {
            let n = s.size();
            s.put("x", &[1, n, 1], Any);
            s.arg("axes", vec![0, 2]);
        }),
        row!("slice", "T4.2", "axis, start=0, end=null, step=1", COPY, slice, |s| {
            let axis = draw_axis(s);
            let n = s.shape_of("x")[axis];
            let start = s.below(n + 1);
            let step = 1 + s.below(3);
            s.arg("start", start);
            s.arg("step", step);
        }),
    ],
    &[k("set_slice", "T4.3", "y, v", "axis, start=0, step=1", "y", COPY, set_slice).dtypes(ANY).sample(
        |s| {
            let mut n = s.ranked(2);
            n[1] += 4;
            s.put("y", &n, Any);
            let m = 1 + s.below(2);
            s.put("v", &[n[0], m], Any);
            s.arg("axis", 1);
            s.arg("start", 1);
            s.arg("step", 2);
        },
    )],
    &[
        k("concat", "T4.4", "x0, x1, ...", "axis", "y", &["concat"], concat).dtypes(ANY).sample(|s| {
            let n = s.ranked(3);
            let axis = s.below(3);
            for i in 0..1 + s.below(4) {
                let mut m = n.clone();
                m[axis] = s.below(9);
                s.put(&format!("x{i}"), &m, Any);
            }
            s.arg("axis", axis);
        }),
        k("split", "T4.5", "x", "axis, sizes", "y0, y1, ...", COPY, |cx| split_into(cx, cx.x("x")?, "y"))
            .dtypes(ANY)
            .sample(|s| {
                let axis = draw_axis(s);
                let n = s.shape_of("x")[axis];
                let first = s.below(n + 1);
                s.arg("sizes", vec![first, 0, n - first]);
            }),
        k("stack", "T4.5", "x0, x1, ...", "axis=0", "y", &["concat"], stack).dtypes(ANY).sample(|s| {
            let n = s.ranked(2);
            for i in 0..3 {
                s.put(&format!("x{i}"), &n, Any);
            }
            let axis = s.below(3);
            s.arg("axis", axis);
        }),
        k("unstack", "T4.5", "x", "axis=0", "y0, y1, ...", COPY, unstack).dtypes(ANY).sample(|s| {
            let n = s.size();
            s.put("x", &[3, n], Any);
        }),
    ],
    &[
        row!("repeat", "T4.6", "repeats", COPY, repeat, |s| {
            draw(s, 2);
            let r = [1 + s.below(3), 1 + s.below(3)];
            s.arg("repeats", r.to_vec());
        }),
        k(
            "repeat_interleave",
            "T4.6",
            "x, [counts:i32]",
            "axis, repeats=null",
            "y",
            &["repeat_interleave"],
            repeat_interleave,
        )
        .dtypes(ANY)
        .sample(|s| {
            // Counts that several blocks add up.
            let long = s.aligned() == Some(0);
            let axis = if long { draw_row(s, 4_500) } else { draw_axis(s) };
            if !long && s.coin() {
                let r = s.below(4);
                s.arg("repeats", r);
            } else {
                let n = s.shape_of("x")[axis];
                s.typed("counts", DType::I32, &[n], crate::sampler::Dom::Count);
            }
        }),
        row!("flip", "T4.7", "axes", &["flip"], flip, |s| {
            draw(s, 3);
            let axes = if s.coin() { vec![0, 2] } else { vec![1] };
            s.arg("axes", axes);
        }),
        row!("roll", "T4.7", "shifts, axes", &["roll"], roll, |s| {
            draw(s, 3);
            let shift = s.below(40) as i64 - 20;
            s.arg("shifts", vec![shift, 1]);
            s.arg("axes", vec![2, 0]);
        }),
        row!("pad", "T4.8", "pad, mode=\"constant\", value=0.0", &["pad"], pad, draw_pad),
        row!("unfold_windows", "T4.9", "axis, size, step=1", COPY, unfold, |s| {
            let mut n = s.ranked(2);
            n[1] += 3;
            s.put("x", &n, Any);
            s.arg("axis", 1);
            let size = 1 + s.below(3);
            s.arg("size", size);
            let step = 1 + s.below(3);
            s.arg("step", step);
        }),
    ],
    &[
        row!("tril", "T4.10", "k=0", &["triangle"], |cx| triangle(cx, Triangle::Lower), |s| {
            draw(s, 3);
            let d = s.below(7) as i64 - 3;
            s.arg("k", d);
        }),
        row!("triu", "T4.10", "k=0", &["triangle"], |cx| triangle(cx, Triangle::Upper), |s| {
            draw(s, 3);
            let d = s.below(7) as i64 - 3;
            s.arg("k", d);
        }),
        row!("diag", "T4.10", "k=0", &["strided_copy", "fill"], diag, |s| {
            let rank = 1 + s.below(2);
            let n: Vec<usize> = (0..rank).map(|_| 3 + s.below(40)).collect();
            s.put("x", &n, Any);
            let d = s.below(5) as i64 - 2;
            s.arg("k", d);
        }),
        row!(
            "diag_embed",
            "T4.10",
            "k=0",
            &["strided_copy", "fill"],
            |cx| embed(cx, cx.x("x")?, cx.i("k")? as isize, "y"),
            |s| {
                let n = [1 + s.below(4), 1 + s.below(40)];
                s.put("x", &n, Any);
                let d = s.below(5) as i64 - 2;
                s.arg("k", d);
            }
        ),
        row!("diagonal", "T4.10", "k=0, axis1=0, axis2=1", COPY, diagonal, |s| {
            draw(s, 3);
            let d = s.below(5) as i64 - 2;
            s.arg("k", d);
            s.arg("axis1", 2);
            s.arg("axis2", 0);
        }),
        k("eye", "T4.10", "-", "n, m=null", "y", &["fill"], eye).dtypes(ANY).sample(|s| {
            let n = s.size();
            s.arg("n", n);
            s.arg("m", 37);
        }),
    ],
    &[
        row!("pixel_shuffle", "T4.11", "r", COPY, pixel_shuffle, |s| {
            let n = [1 + s.below(3), 4 * (1 + s.below(3)), s.below(9), 1 + s.below(40)];
            s.put("x", &n, Any);
            s.arg("r", 2);
        }),
        row!("pixel_unshuffle", "T4.11", "r", COPY, pixel_unshuffle, |s| {
            let n = [1 + s.below(3), 1 + s.below(3), 3 * s.below(5), 3 * (1 + s.below(20))];
            s.put("x", &n, Any);
            s.arg("r", 3);
        }),
        row!(
            "channel_shuffle",
            "T4.11",
            "groups",
            COPY,
            |cx| channels(cx, cx.x("x")?, cx.n("groups")?, "y"),
            |s| {
                let n = [1 + s.below(3), 3 * (1 + s.below(4)), 1 + s.below(40)];
                s.put("x", &n, Any);
                s.arg("groups", 3);
            }
        ),
        k("meshgrid", "T4.12", "x0, x1, ...", "indexing=\"ij\"", "y0, y1, ...", COPY, meshgrid)
            .dtypes(ANY)
            .sample(draw_list)
            .composite(),
        k("cartesian_prod", "T4.12", "x0, x1, ...", "-", "y", COPY, cartesian)
            .dtypes(ANY)
            .sample(draw_list)
            .composite(),
    ],
    &[
        row!("transpose_2d", "S11.1", "-", COPY, transpose, |s| draw(s, 2)),
        row!("batched_transpose", "S11.2", "-", COPY, transpose, |s| draw(s, 3)),
        row!("permute_general", "S11.3", "perm", COPY, permute, |s| {
            draw(s, 4);
            let perm = [[3, 1, 2, 0], [1, 0, 3, 2], [0, 2, 1, 3]][s.below(3)];
            s.arg("perm", perm.to_vec());
        }),
        row!("strided_copy", "T5.10 T6.2", "-", COPY, strided_copy, draw_any),
        row!("copy_strided", "T5.10 T6.2", "-", COPY, strided_copy, draw_any),
    ],
    &[
        k("fill_buffer", "S11.5", "-", "shape, value", "y", &["fill_bytes"], fill_buffer).dtypes(ANY).sample(
            |s| {
                let n = s.shape();
                s.arg("shape", n);
                s.arg("value", 7);
            },
        ),
        k("full", "T6.1", "-", "shape, value", "y", &["fill"], |cx| fill(cx, cx.f("value")?))
            .dtypes(ANY)
            .sample(|s| {
                let n = s.shape();
                s.arg("shape", n);
                s.arg("value", 3);
            }),
        k("zeros", "T6.1", "-", "shape", "y", &["fill"], |cx| fill(cx, 0.0)).dtypes(ANY).sample(|s| {
            let n = s.shape();
            s.arg("shape", n);
        }),
        k("arange", "T6.1", "-", "start=0, end, step=1", "y", &["arange"], arange)
            .bound(Function { ulps: 2.0, units: 17.0 })
            .sample(|s| {
                let n = s.size();
                s.arg("start", -1.5);
                s.arg("end", n as f64 * 0.25 - 1.5);
                s.arg("step", 0.25);
            }),
        k("linspace", "T6.1", "-", "start, end, n", "y", &["linspace"], linspace)
            .dtypes(F32)
            .bound(Function { ulps: 1.0, units: 17.0 })
            .sample(|s| {
                let n = s.size();
                s.arg("start", -2.0);
                s.arg("end", 3.5);
                s.arg("n", n);
            }),
    ],
];

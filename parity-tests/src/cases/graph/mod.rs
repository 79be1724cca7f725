//! Graphs: products, messages and groups. Edge operations stand in `gnn_edges.rs`.

mod calls;
mod edges;
mod sample;

use trefoil::ops::graph::GroupReduce;

use super::Bound::{Derived, Stored, Sum};
use super::{Kernel, k};
use crate::sampler::Dom::Any;

use calls::*;
use sample::*;

const MESSAGES: &str = "src:idx, dst:idx, [x], [e]";
const MESSAGES_BWD: &str = "dy, src:idx, dst:idx, [x], [e], [arg:idx], [degree:idx]";
const SUMS: super::Bound = Stored;

pub(super) const TABLES: &[&[&[Kernel]]] = &[ROWS, edges::ROWS];

const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "sparse_mm_forward",
            "S13.1",
            "rowptr:idx, col:idx, [values], X, [bias]",
            "act=\"none\"",
            "Y",
            &["spmm"],
            spmm,
        )
        .bound(Sum)
        .sample(|s| {
            draw_spmm(s);
            if s.small || s.coin() {
                let f = s.shape_of("X").last().copied().unwrap_or(1);
                s.put("bias", &[f], Any);
            }
        }),
        k(
            "sparse_mm_backward",
            "S13.2",
            "dY, rowptr:idx, col:idx, [values], X",
            "-",
            "dX, [dvalues], [dbias]",
            &["spmm_bwd"],
            |cx| spmm_backward(cx, false),
        )
        .bound(Sum)
        .grad_of("sparse_mm_forward"),
        k(
            "sparse_mm_planned_backward",
            "S13.2",
            "dY, rowptr:idx, col:idx, [values], X",
            "-",
            "dX, [dvalues], [dbias]",
            &["spmm_bwd", "csr"],
            |cx| spmm_backward(cx, true),
        )
        .bound(Sum)
        .grad_of("sparse_mm_forward"),
    ],
    &[
        k(
            "message_passing_forward",
            "S13.3",
            MESSAGES,
            "msg, red=\"sum\", V",
            "y, [arg:idx], [degree:idx]",
            &["message_passing"],
            |cx| messages(cx, false),
        )
        .bound(Derived)
        .sample(draw_messages),
        k(
            "message_passing_backward",
            "S13.4",
            MESSAGES_BWD,
            "msg, red=\"sum\"",
            "[dx], [de]",
            &["message_passing_bwd"],
            |cx| messages_backward(cx, false),
        )
        .bound(SUMS)
        .units(64.0, "gradients of u - v cancel where both ends are one node, after sums of up to 4000 edges one after the other")
        .grad_of("message_passing_forward"),
        k(
            "message_passing_planned",
            "S13.3",
            MESSAGES,
            "msg, red=\"sum\", V",
            "y, [arg:idx], [degree:idx]",
            &["message_passing", "csr"],
            |cx| messages(cx, true),
        )
        .bound(Derived)
        .sample(draw_messages),
        k(
            "message_passing_planned_backward",
            "S13.4",
            MESSAGES_BWD,
            "msg, red=\"sum\"",
            "[dx], [de]",
            &["message_passing_bwd", "csr"],
            |cx| messages_backward(cx, true),
        )
        .bound(SUMS)
        .units(64.0, "gradients of u - v cancel where both ends are one node, after sums of up to 4000 edges one after the other")
        .grad_of("message_passing_planned"),
    ],
    &[
        k(
            "scatter_add",
            "S13.5",
            "src, idx:idx, [y]",
            "R",
            "y",
            &["group_reduce", "scatter_reduce", "fill"],
            scatter_add,
        )
        .bound(Sum)
        .sample(|s| {
            draw_groups(s);
            if !s.small && s.coin() {
                let mut shape = s.shape_of("src");
                let n = s.shape_of("idx")[0];
                shape[1] = 3;
                s.drop("idx");
                s.ids("idx", &[n], 3);
                s.put("y", &shape, Any);
                s.arg("R", 3);
            }
        }),
        k(
            "scatter_add_backward",
            "S13.5",
            "dy, idx:idx",
            "-",
            "dsrc",
            &["group_reduce_bwd", "gather", "csr"],
            scatter_add_backward,
        )
        .grad_of("scatter_add"),
        k(
            "scatter_max",
            "S13.6",
            "src, idx:idx",
            "R, empty_value=0.0",
            "y, arg:idx",
            &["group_reduce", "csr"],
            |cx| group(cx, GroupReduce::Max { empty: cx.f("empty_value")? }, Some("arg")),
        )
        .sample(|s| {
            draw_groups(s);
            s.arg("empty_value", -2.5);
        }),
        k("scatter_max_backward", "S13.6", "dy, arg:idx", "n", "dsrc", &["group_reduce_bwd"], |cx| {
            group_backward(cx, GroupReduce::Max { empty: 0.0 })
        })
        .grad_of("scatter_max"),
        k(
            "scatter_min",
            "B12.2",
            "src, idx:idx",
            "R, empty_value=0.0",
            "y, arg:idx",
            &["group_reduce", "csr"],
            |cx| group(cx, GroupReduce::Min { empty: cx.f("empty_value")? }, Some("arg")),
        )
        .sample(draw_groups),
        k(
            "scatter_min_backward",
            "B12.2",
            "dy, idx:idx, arg:idx",
            "-",
            "dsrc",
            &["group_reduce_bwd", "csr"],
            |cx| group_backward(cx, GroupReduce::Min { empty: 0.0 }),
        )
        .grad_of("scatter_min"),
        k("scatter_mean", "S13.7", "src, idx:idx", "R", "y, counts:i32", &["group_reduce", "csr"], |cx| {
            group(cx, GroupReduce::Mean, Some("counts"))
        })
        .bound(Sum)
        .sample(draw_groups),
        k(
            "scatter_mean_backward",
            "S13.7",
            "dy, idx:idx, counts:i32",
            "-",
            "dsrc",
            &["group_reduce_bwd", "csr"],
            |cx| group_backward(cx, GroupReduce::Mean),
        )
        .bound(super::ULP)
        .grad_of("scatter_mean"),
        k("scatter_mul", "B12.2", "src, idx:idx", "R", "y", &["group_reduce", "csr"], |cx| {
            group(cx, GroupReduce::Prod, None)
        })
        .bound(Derived)
        .sample(draw_products),
        k(
            "scatter_mul_backward",
            "B12.2",
            "dy, src, idx:idx",
            "-",
            "dsrc",
            &["group_reduce_bwd", "csr"],
            |cx| group_backward(cx, GroupReduce::Prod),
        )
        .bound(Derived)
        .grad_of("scatter_mul"),
        k(
            "scatter_std",
            "B12.2",
            "src, idx:idx",
            "R, correction=0, eps=0.01",
            "y",
            &["group_reduce", "csr"],
            |cx| group(cx, std_options(cx)?, None),
        )
        .bound(Derived)
        .sample(|s| {
            draw_groups(s);
            let correction = s.below(2);
            s.arg("correction", correction);
        }),
        k(
            "scatter_std_backward",
            "B12.2",
            "dy, src, idx:idx, y",
            "correction=0, eps=0.01",
            "dsrc",
            &["group_reduce_bwd", "csr"],
            |cx| group_backward(cx, std_options(cx)?),
        )
        .bound(Derived)
        .grad_of("scatter_std"),
    ],
];

//! Graphs: products, messages and groups. Edge operations stand in `gnn_edges.rs`.

use trefoil::DType;
use trefoil::ops::*;

use super::Bound::{Close, Stored, Sum};
use super::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::random_cases::Dom::{Any, NearOne, Nonzero};
use crate::random_cases::Sample;

pub(super) fn act(cx: &Cx<'_>) -> R<Activation> {
    Ok(match cx.s("act")?.as_str() {
        "none" => Activation::Identity,
        "relu" => Activation::Relu,
        "leaky_relu" => Activation::LeakyRelu { slope: 0.01 },
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "swish" => Activation::Swish { beta: 1.0 },
        "hardswish" => Activation::Hardswish,
        a => return Err(Fail::Case(format!("act {a} is unknown"))),
    })
}

/// The lists of a plan, made by the library.
pub(super) struct Plan {
    rowptr: trefoil::Buffer,
    col: Option<trefoil::Buffer>,
    perm: trefoil::Buffer,
}

impl Plan {
    pub(super) fn groups(&self) -> EdgeGroups<'_> {
        let g = EdgeGroups::new(self.rowptr.view()).perm(self.perm.view());
        match &self.col {
            Some(c) => g.col(c.view()),
            None => g,
        }
    }
}

/// The edges by the nodes of `key`, `other` being their other ends; every second time without these, which the library has to find then.
pub(super) fn plan(
    cx: &Cx<'_>,
    key: trefoil::View<'_>,
    other: Option<trefoil::View<'_>>,
    nodes: usize,
) -> R<Plan> {
    let (dt, n) = (key.dtype(), key.numel());
    let mut p = Plan { rowptr: cx.scratch(dt, nodes + 1)?, col: None, perm: cx.scratch(dt, n)? };
    let mut col = other.filter(|_| n % 2 == 0).map(|_| cx.scratch(dt, n)).transpose()?;
    let io = CsrIo {
        col: other.filter(|_| n % 2 == 0),
        rowptr: Some(p.rowptr.view_mut()),
        out_col: col.as_mut().map(|c| c.view_mut()),
        perm: Some(p.perm.view_mut()),
        ..CsrIo::new(key)
    };
    cx.gpu.csr(Csr::FromCoo, io)?;
    p.col = col;
    Ok(p)
}

fn spmm(cx: &Cx<'_>) -> R {
    let (rowptr, x) = (cx.x("rowptr")?, cx.x("X")?);
    let mut shape = x.shape().to_vec();
    shape[0] = rowptr.numel().saturating_sub(1);
    let y = cx.out("Y", x.dtype(), &shape)?;
    let io = Spmm {
        rowptr,
        col: cx.x("col")?,
        values: cx.opt("values"),
        x,
        bias: cx.opt("bias"),
        act: act(cx)?,
        y: y.m(),
    };
    Ok(cx.gpu.spmm(io)?)
}

fn spmm_backward(cx: &Cx<'_>, planned: bool) -> R {
    let (dy, rowptr, col, x) = (cx.x("dY")?, cx.x("rowptr")?, cx.x("col")?, cx.x("X")?);
    let values = cx.opt("values");
    let dt = col.dtype();
    let lists = [x.shape()[0] + 1, col.numel(), col.numel()];
    let mut made = lists.map(|n| cx.scratch(dt, n)).into_iter().collect::<R<Vec<_>>>()?;
    if planned {
        let [r, c, p] = &mut made[..] else { return Err(Fail::Case("three lists".into())) };
        let io = CsrIo {
            col: Some(col),
            rowptr: Some(r.view_mut()),
            out_col: Some(c.view_mut()),
            perm: Some(p.view_mut()),
            ..CsrIo::new(rowptr)
        };
        cx.gpu.csr(Csr::Transpose, io)?;
    }
    let transpose = planned.then(|| EdgeGroups::new(made[0].view()).col(made[1].view()).perm(made[2].view()));
    let dx = cx.like("dX", &x)?;
    let dvalues = match &values {
        Some(v) if cx.wants("dvalues") => Some(cx.like("dvalues", v)?),
        _ => None,
    };
    let dbias = if cx.wants("dbias") {
        Some(cx.out("dbias", x.dtype(), &x.shape()[x.shape().len() - 1..])?)
    } else {
        None
    };
    Ok(cx.gpu.spmm_bwd(SpmmBwd {
        dy,
        rowptr,
        col,
        values,
        x,
        transpose,
        dx: Some(dx.g()),
        dvalues: dvalues.as_ref().map(|v| v.g()),
        dbias: dbias.as_ref().map(|v| v.g()),
    })?)
}

fn message(cx: &Cx<'_>) -> R<Message> {
    Ok(match cx.s("msg")?.as_str() {
        "copy_u" => Message::CopyU,
        "copy_e" => Message::CopyE,
        "u_mul_e" => Message::UMulE,
        "u_add_e" => Message::UAddE,
        "u_add_v" => Message::UAddV,
        "u_sub_v" => Message::USubV,
        "u_mul_v" => Message::UMulV,
        "u_dot_v" => Message::UDotV,
        m => return Err(Fail::Case(format!("msg {m} is unknown"))),
    })
}

fn reduce(cx: &Cx<'_>) -> R<MessageReduce> {
    Ok(match cx.s("red")?.as_str() {
        "sum" => MessageReduce::Sum,
        "mean" => MessageReduce::Mean,
        "max" => MessageReduce::Max,
        "min" => MessageReduce::Min,
        r => return Err(Fail::Case(format!("red {r} is unknown"))),
    })
}

fn messages(cx: &Cx<'_>, planned: bool) -> R {
    let (m, r, nodes) = (message(cx)?, reduce(cx)?, cx.n("V")?);
    let (src, dst, x, e) = (cx.x("src")?, cx.x("dst")?, cx.opt("x"), cx.opt("e"));
    let rows = if m == Message::CopyE { e } else { x };
    let rows = rows.ok_or_else(|| Fail::Case("neither x nor e".into()))?;
    let mut shape = rows.shape().to_vec();
    shape[0] = nodes;
    if m == Message::UDotV {
        shape[0] = src.numel();
        shape.pop();
    }
    let y = cx.out("y", rows.dtype(), &shape)?;
    let extreme = matches!(r, MessageReduce::Max | MessageReduce::Min) && m != Message::UDotV;
    let arg = if extreme && cx.wants("arg") { Some(cx.out("arg", src.dtype(), &shape)?) } else { None };
    let mean = r == MessageReduce::Mean && m != Message::UDotV;
    let degree =
        if mean && cx.wants("degree") { Some(cx.out("degree", src.dtype(), &[nodes])?) } else { None };
    let made = if planned { Some(plan(cx, dst, Some(src), nodes)?) } else { None };
    let io = Messages {
        src,
        dst,
        x,
        e,
        by_dst: made.as_ref().map(Plan::groups),
        y: y.m(),
        arg: arg.as_ref().map(|v| v.m()),
        degree: degree.as_ref().map(|v| v.m()),
    };
    Ok(cx.gpu.message_passing(m, r, io)?)
}

fn messages_backward(cx: &Cx<'_>, planned: bool) -> R {
    let (m, r) = (message(cx)?, reduce(cx)?);
    let (dy, src, dst, x, e) = (cx.x("dy")?, cx.x("src")?, cx.x("dst")?, cx.opt("x"), cx.opt("e"));
    let nodes = match (m, x) {
        (Message::UDotV, Some(x)) => x.shape()[0],
        _ => dy.shape()[0],
    };
    let made = match (planned, x) {
        (true, Some(x)) => {
            (Some(plan(cx, src, Some(dst), x.shape()[0])?), Some(plan(cx, dst, Some(src), nodes)?))
        }
        _ => (None, None),
    };
    let dx = match x {
        Some(x) if m != Message::CopyE && cx.wants("dx") => Some(cx.like("dx", &x)?),
        _ => None,
    };
    let de = match e {
        Some(e) if cx.wants("de") => Some(cx.like("de", &e)?),
        _ => None,
    };
    let io = MessagesBwd {
        dy,
        src,
        dst,
        x,
        e,
        arg: cx.opt("arg"),
        degree: cx.opt("degree"),
        by_src: made.0.as_ref().map(Plan::groups),
        by_dst: made.1.as_ref().map(Plan::groups),
        dx: dx.as_ref().map(|v| v.g()),
        de: de.as_ref().map(|v| v.g()),
    };
    Ok(cx.gpu.message_passing_bwd(m, r, io)?)
}

/// A reduction of groups; with the reduction's own outputs.
fn group(cx: &Cx<'_>, how: GroupReduce, side: Option<&str>) -> R {
    let (src, index, r) = (cx.x("src")?, cx.x("idx")?, cx.n("R")?);
    let shape = [src.shape()[0], r, src.shape()[2]];
    let y = cx.out("y", src.dtype(), &shape)?;
    let arg = match side {
        Some("arg") => Some(cx.out("arg", index.dtype(), &shape)?),
        _ => None,
    };
    let counts = match side {
        Some("counts") => Some(cx.out("counts", DType::I32, &[r])?),
        _ => None,
    };
    let made = if src.shape()[1] % 2 == 1 { Some(plan(cx, index, None, r)?) } else { None };
    let io = GroupIo {
        src,
        index,
        groups: made.as_ref().map(Plan::groups),
        y: y.m().into(),
        arg: arg.as_ref().map(|v| v.m()),
        counts: counts.as_ref().map(|v| v.m()),
    };
    Ok(cx.gpu.group_reduce(how, io)?)
}

fn group_backward(cx: &Cx<'_>, how: GroupReduce) -> R {
    let (dy, index, arg) = (cx.x("dy")?, cx.opt("idx"), cx.opt("arg"));
    let n = match (index, cx.has("n")) {
        (_, true) => cx.n("n")?,
        (Some(i), _) => i.numel(),
        _ => return Err(Fail::Case("neither idx nor n".into())),
    };
    let dsrc = cx.out("dsrc", dy.dtype(), &[dy.shape()[0], n, dy.shape()[2]])?;
    // With the edges of each node, as in forward, two times of three.
    let made = match index {
        Some(i) if n % 3 != 0 => Some(plan(cx, i, None, dy.shape()[1])?),
        _ => None,
    };
    let io = GroupBwd {
        dy,
        index,
        src: cx.opt("src"),
        y: cx.opt("y"),
        arg,
        counts: cx.opt("counts"),
        groups: made.as_ref().map(Plan::groups),
        dsrc: dsrc.g(),
    };
    Ok(cx.gpu.group_reduce_bwd(how, io)?)
}

fn scatter_add(cx: &Cx<'_>) -> R {
    let (src, index) = (cx.x("src")?, cx.x("idx")?);
    let shape = [src.shape()[0], cx.n("R")?, src.shape()[2]];
    let y = match cx.opt("y") {
        Some(_) => cx.inout("y", "y")?,
        None => cx.out("y", src.dtype(), &shape)?,
    };
    if index.shape().len() != 1 {
        if cx.opt("y").is_none() {
            cx.gpu.fill(0.0, y.m())?;
        }
        return Ok(cx.gpu.scatter_reduce(ScatterReduce::Sum, 1, true, index, src, y.m())?);
    }
    let io =
        GroupIo { src, index, groups: None, y: y.m().grad(cx.opt("y").is_some()), arg: None, counts: None };
    Ok(cx.gpu.group_reduce(GroupReduce::Sum, io)?)
}

fn scatter_add_backward(cx: &Cx<'_>) -> R {
    let (dy, index) = (cx.x("dy")?, cx.x("idx")?);
    if index.shape().len() == 1 {
        return group_backward(cx, GroupReduce::Sum);
    }
    let dsrc = cx.out("dsrc", dy.dtype(), index.shape())?;
    Ok(cx.gpu.gather(1, dy, index, dsrc.g())?)
}

fn std_options(cx: &Cx<'_>) -> R<GroupReduce> {
    Ok(GroupReduce::Std { correction: cx.n("correction")? as u32, eps: cx.f("eps")? })
}

/// Nodes, edges and features: few of each, a hub that is cut in parts, many nodes without edges, or nothing at all.
pub(super) fn sizes(s: &mut Sample) -> [usize; 3] {
    if s.small {
        return [3 + s.below(3), 5 + s.below(5), 1 + s.below(4)];
    }
    let features = [1, 3, 8, 16, 33, 128, 64, 7][s.below(8)];
    match s.below(5) {
        0 => [1 + s.below(3), 4000, features.min(33)],
        1 => [400, 60, features],
        2 => [5, 0, features],
        _ => [1 + s.below(40), s.below(300), features],
    }
}

/// A rowptr over `edges` entries: half of them in one row, some rows empty.
pub(super) fn draw_rowptr(s: &mut Sample, rows: usize, edges: usize) {
    let mut count = vec![0i64; rows];
    let hub = s.below(rows);
    for e in 0..edges {
        let r = if e % 2 == 0 { hub } else { s.below(rows) };
        count[r] += 1;
    }
    let mut at = vec![0i64];
    count.iter().for_each(|n| at.push(at[at.len() - 1] + n));
    s.ids_of("rowptr", &[rows + 1], &at);
}

fn draw_spmm(s: &mut Sample) {
    let [rows, edges, f] = sizes(s);
    let cols = 1 + s.below(50);
    draw_rowptr(s, rows, edges);
    s.ids("col", &[edges], cols);
    let heads = if s.coin() { vec![] } else { vec![1 + s.below(3)] };
    let tail = [&heads[..], &[f]].concat();
    if s.small || s.coin() {
        let parts = if s.coin() { heads } else { vec![] };
        s.put("values", &[&[edges], &parts[..]].concat(), Any);
    }
    s.put("X", &[&[cols], &tail[..]].concat(), Any);
}

fn draw_messages(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let all = ["copy_u", "copy_e", "u_mul_e", "u_add_e", "u_add_v", "u_sub_v", "u_mul_v", "u_dot_v"];
    let msg = all[s.below(8)];
    let red = ["sum", "mean", "max", "min"][s.below(4)];
    s.arg("msg", msg);
    s.arg("red", red);
    s.arg("V", nodes);
    s.ids("src", &[edges], nodes);
    s.ids("dst", &[edges], nodes.div_ceil(2));
    let heads = if s.coin() { vec![] } else { vec![1 + s.below(3)] };
    let tail = [&heads[..], &[f]].concat();
    if msg != "copy_e" {
        s.put("x", &[&[nodes], &tail[..]].concat(), Nonzero);
    }
    if ["copy_e", "u_mul_e", "u_add_e"].contains(&msg) {
        let axes = if msg == "copy_e" { tail.len() } else { s.below(tail.len() + 1) };
        s.put("e", &[&[edges], &tail[..axes]].concat(), Nonzero);
    }
}

fn draw_groups(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let outer = [1, 1, 1, 3][s.below(4)];
    s.put("src", &[outer, edges, f.min(40)], Any);
    s.ids("idx", &[edges], nodes);
    s.arg("R", nodes + 1);
}

/// Values that keep products of the samples' lengths in range.
fn draw_products(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let f = f.min(8);
    let outer = 1 + s.below(2);
    s.put("src", &[outer, edges, f], NearOne);
    s.ids("idx", &[edges], nodes);
    s.arg("R", nodes);
}

const MESSAGES: &str = "src:idx, dst:idx, [x], [e]";
const MESSAGES_BWD: &str = "dy, src:idx, dst:idx, [x], [e], [arg:idx], [degree:idx]";
pub(super) const SUMS: super::Bound = Stored(4e-5, 3e-5);

pub(super) const ROWS: &[&[Kernel]] = &[
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
        .bound(Close(2e-5, 2e-5))
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
        .bound(Close(2e-5, 2e-5))
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
        .bound(Close(1e-4, 1e-30))
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
        .bound(Close(2e-4, 1e-30))
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
        .bound(Close(1e-5, 1e-5))
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
        .bound(Close(2e-5, 2e-5))
        .grad_of("scatter_std"),
    ],
];

//! Graphs.

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::*;

use super::Bound::{Close, Product, Stored, Sum};
use super::{F32, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::random_cases::Dom::{Any, NearOne, Nonzero, Positive, Range};
use crate::random_cases::Sample;

fn act(cx: &Cx<'_>) -> R<Activation> {
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
struct Plan {
    rowptr: trefoil::Buffer,
    col: Option<trefoil::Buffer>,
    perm: trefoil::Buffer,
}

impl Plan {
    fn groups(&self) -> EdgeGroups<'_> {
        let g = EdgeGroups::new(self.rowptr.view()).perm(self.perm.view());
        match &self.col {
            Some(c) => g.col(c.view()),
            None => g,
        }
    }
}

/// The edges by the nodes of `key`, `other` being their other ends; every second time without these, which the library has to find then.
fn plan(cx: &Cx<'_>, key: trefoil::View<'_>, other: Option<trefoil::View<'_>>, nodes: usize) -> R<Plan> {
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
    let io = GroupBwd {
        dy,
        index,
        src: cx.opt("src"),
        y: cx.opt("y"),
        arg,
        counts: cx.opt("counts"),
        groups: None,
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

fn softmax(cx: &Cx<'_>, x: &str, index: &str, nodes: &str, y: &str, planned: bool) -> R {
    let (logits, dst, nodes) = (cx.x(x)?, cx.x(index)?, cx.n(nodes)?);
    let a = cx.like(y, &logits)?;
    let made = if planned { Some(plan(cx, dst, None, nodes)?) } else { None };
    Ok(cx.gpu.edge_softmax(nodes, dst, made.as_ref().map(Plan::groups), logits, a.m())?)
}

fn softmax_backward(cx: &Cx<'_>, [da, a, index, nodes, dl]: [&str; 5], planned: bool) -> R {
    let (da, a, dst, nodes) = (cx.x(da)?, cx.x(a)?, cx.x(index)?, cx.n(nodes)?);
    let dl = cx.like(dl, &a)?;
    let made = if planned { Some(plan(cx, dst, None, nodes)?) } else { None };
    Ok(cx.gpu.edge_softmax_bwd(nodes, dst, made.as_ref().map(Plan::groups), da, a, dl.g())?)
}

fn heat<'a>(cx: &'a Cx<'_>) -> R<Heat<'a>> {
    Ok(match cx.s("mode")?.as_str() {
        "eigen" => Heat::Eigen { phi: cx.x("Phi")?, lam: cx.x("lam")?, mass: cx.opt("m") },
        "direct" => Heat::Direct { laplacian: cx.x("L")? },
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    })
}

fn diffusion(cx: &Cx<'_>) -> R {
    let (x, w, heat) = (cx.x("x")?, cx.x("W")?, heat(cx)?);
    let mut shape = x.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = w.shape()[0];
    let y = cx.out("y", x.dtype(), &shape)?;
    let s_hat = match heat {
        Heat::Eigen { phi, .. } if cx.wants("S_hat") => {
            let mut s = x.shape().to_vec();
            s[last - 1] = phi.shape()[1];
            Some(cx.out("S_hat", x.dtype(), &s)?)
        }
        _ => None,
    };
    let s_hat = s_hat.as_ref().map(|v| v.m());
    Ok(cx.gpu.diffusion_conv(Diffusion { x, heat, t: cx.x("t")?, w, b: cx.opt("b"), y: y.m(), s_hat })?)
}

fn diffusion_backward(cx: &Cx<'_>) -> R {
    let (dy, x, t, w) = (cx.x("dy")?, cx.x("x")?, cx.x("t")?, cx.x("W")?);
    let (dx, dt, dw) = (cx.like("dx", &x)?, cx.like("dt", &t)?, cx.like("dW", &w)?);
    let db = cx.out("db", dy.dtype(), &w.shape()[..1])?;
    let grads = (Some(dx.g()), Some(dt.g()), Some(dw.g()), Some(db.g()));
    let (dx, dt, dw, db) = grads;
    let heat = heat(cx)?;
    Ok(cx.gpu.diffusion_conv_bwd(DiffusionBwd {
        dy,
        x,
        heat,
        t,
        w,
        s_hat: cx.opt("S_hat"),
        dx,
        dt,
        dw,
        db,
    })?)
}

fn edge_op(cx: &Cx<'_>) -> R<EdgeOp> {
    if !cx.has("op") {
        return Ok(EdgeOp::Dot);
    }
    Ok(match cx.s("op")?.as_str() {
        "dot" => EdgeOp::Dot,
        "add" => EdgeOp::Add,
        "sub" => EdgeOp::Sub,
        "mul" => EdgeOp::Mul,
        o => return Err(Fail::Case(format!("op {o} is unknown"))),
    })
}

fn sddmm(cx: &Cx<'_>) -> R {
    let (op, src, dst, x, y) = (edge_op(cx)?, cx.x("src")?, cx.x("dst")?, cx.x("x")?, cx.x("y")?);
    let mut shape = x.shape().to_vec();
    shape[0] = src.numel();
    if op == EdgeOp::Dot {
        shape.pop();
    }
    let out = cx.out("out", x.dtype(), &shape)?;
    Ok(cx.gpu.sddmm(op, src, dst, x, y, out.m())?)
}

fn sddmm_backward(cx: &Cx<'_>, dout: &str, planned: bool) -> R {
    let (src, dst, x, y) = (cx.x("src")?, cx.x("dst")?, cx.x("x")?, cx.x("y")?);
    let (dx, dy) = (cx.like("dx", &x)?, cx.like("dy", &y)?);
    let made = if planned {
        (Some(plan(cx, src, Some(dst), x.shape()[0])?), Some(plan(cx, dst, Some(src), y.shape()[0])?))
    } else {
        (None, None)
    };
    let io = SddmmBwd {
        dout: cx.x(dout)?,
        src,
        dst,
        x,
        y,
        by_src: made.0.as_ref().map(Plan::groups),
        by_dst: made.1.as_ref().map(Plan::groups),
        dx: Some(dx.g()),
        dy: Some(dy.g()),
    };
    Ok(cx.gpu.sddmm_bwd(edge_op(cx)?, io)?)
}

fn csr(cx: &Cx<'_>, op: Csr, rows: &str, nodes: Option<&str>) -> R {
    let (rows, col, values) = (cx.x(rows)?, cx.x("col")?, cx.opt("values"));
    let dt = rows.dtype();
    let rowptr = match nodes {
        Some(n) => Some(cx.out("rowptr", dt, &[cx.n(n)? + 1])?),
        None => None,
    };
    let (out_col, perm) = (cx.out("col", dt, col.shape())?, cx.out("perm", dt, col.shape())?);
    let out_values = values.as_ref().map(|v| cx.like("values", v)).transpose()?;
    Ok(cx.gpu.csr(
        op,
        CsrIo {
            rows,
            col: Some(col),
            values,
            rowptr: rowptr.as_ref().map(|v| v.m()),
            out_col: Some(out_col.m()),
            perm: Some(perm.m()),
            out_values: out_values.as_ref().map(|v| v.m()),
        },
    )?)
}

fn gat(cx: &Cx<'_>) -> R {
    let (src, dst, x, su, sv) =
        (cx.x("src")?, cx.x("dst")?, cx.x("x")?, cx.x("score_src")?, cx.x("score_dst")?);
    let s = sv.shape();
    let y = cx.out("y", x.dtype(), &[s[0], s[1], x.shape()[2]])?;
    let stat = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let lse = cx.out("lse", stat, s)?;
    let made = if cx.b("planned")? { Some(plan(cx, dst, Some(src), s[0])?) } else { None };
    let io = Gat {
        src,
        dst,
        by_dst: made.as_ref().map(Plan::groups),
        x,
        score_src: su,
        score_dst: sv,
        y: y.m(),
        lse: Some(lse.m()),
    };
    Ok(cx.gpu.gat(cx.f("slope")?, io)?)
}

fn gat_backward(cx: &Cx<'_>) -> R {
    let (src, dst, x, su, sv) =
        (cx.x("src")?, cx.x("dst")?, cx.x("x")?, cx.x("score_src")?, cx.x("score_dst")?);
    let (dx, du, dv) = (cx.like("dx", &x)?, cx.like("dscore_src", &su)?, cx.like("dscore_dst", &sv)?);
    let made = if cx.b("planned")? {
        (Some(plan(cx, src, Some(dst), x.shape()[0])?), Some(plan(cx, dst, Some(src), sv.shape()[0])?))
    } else {
        (None, None)
    };
    let io = GatBwd {
        dy: cx.x("dy")?,
        src,
        dst,
        by_src: made.0.as_ref().map(Plan::groups),
        by_dst: made.1.as_ref().map(Plan::groups),
        x,
        score_src: su,
        score_dst: sv,
        lse: cx.x("lse")?,
        dx: Some(dx.g()),
        dscore_src: Some(du.g()),
        dscore_dst: Some(dv.g()),
    };
    Ok(cx.gpu.gat_bwd(cx.f("slope")?, io)?)
}

/// Nodes, edges and features: few of each, a hub that is cut in parts, many nodes without edges, or nothing at all.
fn sizes(s: &mut Sample) -> [usize; 3] {
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
fn draw_rowptr(s: &mut Sample, rows: usize, edges: usize) {
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

fn draw_pairs(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let targets = 1 + s.below(20);
    s.ids("src", &[edges], nodes);
    s.ids("dst", &[edges], targets);
    s.put("x", &[nodes, f], Any);
    s.put("y", &[targets, f], Any);
}

fn draw_gat(s: &mut Sample) {
    let [nodes, edges, f] = sizes(s);
    let (sources, heads) = (1 + s.below(30), 1 + s.below(4));
    s.ids("src", &[edges], sources);
    s.ids("dst", &[edges], nodes);
    s.put("x", &[sources, heads, f], Any);
    s.put("score_src", &[sources, heads], Any);
    s.put("score_dst", &[nodes, heads], Nonzero);
    let planned = s.coin();
    s.arg("planned", planned);
}

fn draw_heat(s: &mut Sample) {
    let direct = s.coin();
    let (v, c, scales, o) =
        (2 + s.below(if s.small { 4 } else { 40 }), 1 + s.below(6), 1 + s.below(3), 1 + s.below(5));
    let batch = if s.coin() { vec![] } else { vec![1 + s.below(3)] };
    s.put("x", &[&batch[..], &[v, c]].concat(), Any);
    if direct {
        let n = v as f64;
        s.put("L", &[v, v], Range(-1.5 / n, 1.5 / n));
        s.arg("mode", "direct");
    } else {
        let comps = 1 + s.below(v);
        let scale = 1.0 / (v as f64).sqrt();
        s.put("Phi", &[v, comps], Range(-scale, scale));
        s.put("lam", &[comps], Positive);
        if s.coin() {
            s.put("m", &[v], Positive);
        }
        s.arg("mode", "eigen");
    }
    let t = if s.coin() { vec![scales] } else { vec![scales, c] };
    s.put("t", &t, Range(0.1, 1.5));
    s.put("W", &[o, scales * c], Any);
    s.put("b", &[o], Any);
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

fn name_edge_op(s: &mut Sample) {
    let op = ["dot", "add", "sub", "mul"][s.below(4)];
    s.arg("op", op);
}

fn draw_logits(s: &mut Sample, x: &str, index: &str, nodes: &str) {
    let [n, edges, f] = sizes(s);
    s.put(x, &[edges, f.min(9)], Any);
    s.ids(index, &[edges], n);
    s.arg(nodes, Value::from(n));
}

const MESSAGES: &str = "src:idx, dst:idx, [x], [e]";
const MESSAGES_BWD: &str = "dy, src:idx, dst:idx, [x], [e], [arg:idx], [degree:idx]";
const SUMS: super::Bound = Stored(4e-5, 3e-5);
const SOFT: super::Bound = Close(4e-6, 2e-6);

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
            &["group_reduce_bwd", "gather"],
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
            &["group_reduce_bwd"],
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
            &["group_reduce_bwd"],
            |cx| group_backward(cx, GroupReduce::Mean),
        )
        .bound(super::ULP)
        .grad_of("scatter_mean"),
        k("scatter_mul", "B12.2", "src, idx:idx", "R", "y", &["group_reduce", "csr"], |cx| {
            group(cx, GroupReduce::Prod, None)
        })
        .bound(Close(1e-4, 1e-30))
        .sample(draw_products),
        k("scatter_mul_backward", "B12.2", "dy, src, idx:idx", "-", "dsrc", &["group_reduce_bwd"], |cx| {
            group_backward(cx, GroupReduce::Prod)
        })
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
            &["group_reduce_bwd"],
            |cx| group_backward(cx, std_options(cx)?),
        )
        .bound(Close(2e-5, 2e-5))
        .grad_of("scatter_std"),
    ],
    &[
        k("edge_softmax", "S13.8", "logits, dst:idx", "V", "a", &["edge_softmax"], |cx| {
            softmax(cx, "logits", "dst", "V", "a", false)
        })
        .bound(SOFT)
        .sample(|s| draw_logits(s, "logits", "dst", "V")),
        k("edge_softmax_backward", "S13.8", "da, a, dst:idx", "V", "dl", &["edge_softmax_bwd"], |cx| {
            softmax_backward(cx, ["da", "a", "dst", "V", "dl"], false)
        })
        .bound(SUMS)
        .grad_of("edge_softmax"),
        k("scatter_softmax", "B12.2", "x, idx:idx", "R", "y", &["edge_softmax", "csr"], |cx| {
            softmax(cx, "x", "idx", "R", "y", true)
        })
        .bound(SOFT)
        .sample(|s| draw_logits(s, "x", "idx", "R")),
        k(
            "scatter_softmax_backward",
            "B12.2",
            "dy, y, idx:idx",
            "R",
            "dx",
            &["edge_softmax_bwd", "csr"],
            |cx| softmax_backward(cx, ["dy", "y", "idx", "R", "dx"], true),
        )
        .bound(SUMS)
        .grad_of("scatter_softmax"),
        k(
            "gat_fused",
            "B12.5",
            "src:idx, dst:idx, x, score_src, score_dst",
            "slope=0.2, planned=false",
            "y, lse:f32",
            &["gat", "csr"],
            gat,
        )
        .bound(Close(1e-5, 1e-5))
        .sample(draw_gat),
        k(
            "gat_fused_backward",
            "B12.5",
            "dy, src:idx, dst:idx, x, score_src, score_dst, lse:f32",
            "slope=0.2, planned=false",
            "dx, dscore_src, dscore_dst",
            &["gat_bwd", "csr"],
            gat_backward,
        )
        .bound(Stored(1e-4, 1e-4))
        .grad_of("gat_fused"),
    ],
    &[
        k(
            "diffusion_conv_forward",
            "S13.9",
            "x, [Phi], [lam], [m], [L], t, W, [b]",
            "mode=\"eigen\"",
            "y, [S_hat]",
            &["diffusion_conv"],
            diffusion,
        )
        .bound(Close(1e-5, 2e-5))
        .sample(draw_heat),
        k(
            "diffusion_conv_backward",
            "S13.10",
            "dy, x, [Phi], [lam], [m], [L], t, W, [S_hat]",
            "mode=\"eigen\"",
            "dx, dt, dW, db",
            &["diffusion_conv_bwd"],
            diffusion_backward,
        )
        .bound(Stored(2e-5, 1e-4))
        .grad_of("diffusion_conv_forward"),
    ],
    &[
        k("sddmm", "B12.1", "src:idx, dst:idx, x, y", "-", "out", &["sddmm"], sddmm)
            .bound(Product)
            .sample(draw_pairs),
        k("sddmm_backward", "B12.1", "dout, src:idx, dst:idx, x, y", "-", "dx, dy", &["sddmm_bwd"], |cx| {
            sddmm_backward(cx, "dout", false)
        })
        .bound(Sum)
        .grad_of("sddmm"),
        k("edge_pairs", "B12.1", "src:idx, dst:idx, x, y", "op", "out", &["sddmm"], sddmm)
            .bound(Product)
            .sample(|s| {
                draw_pairs(s);
                name_edge_op(s);
            }),
        k(
            "edge_pairs_backward",
            "B12.1",
            "dout, src:idx, dst:idx, x, y",
            "op",
            "dx, dy",
            &["sddmm_bwd", "csr"],
            |cx| sddmm_backward(cx, "dout", true),
        )
        .bound(Sum)
        .grad_of("edge_pairs"),
        k("degree", "B12.3", "dst:idx", "V", "deg:i64", &["degree"], |cx| {
            let deg = cx.out("deg", DType::I64, &[cx.n("V")?])?;
            Ok(cx.gpu.degree(cx.x("dst")?, deg.m())?)
        })
        .dtypes(F32)
        .sample(|s| {
            let [nodes, edges, _] = sizes(s);
            s.ids("dst", &[edges], nodes);
            s.arg("V", nodes);
        }),
        k(
            "sym_normalize",
            "B12.3",
            "rowptr:idx, col:idx, [values]",
            "-",
            "values",
            &["sym_normalize"],
            |cx| {
                let col = cx.x("col")?;
                let v = cx.opt("values");
                let y = cx.out("values", v.map_or(cx.dtype, |v| v.dtype()), col.shape())?;
                Ok(cx.gpu.sym_normalize(cx.x("rowptr")?, col, v, y.m())?)
            },
        )
        .bound(Close(4e-6, 1e-9))
        .sample(|s| {
            let [nodes, edges, _] = sizes(s);
            draw_rowptr(s, nodes, edges);
            s.ids("col", &[edges], nodes);
            s.put("values", &[edges], Positive);
        }),
        k(
            "coo_to_csr",
            "B12.4",
            "row:idx, col:idx, [values]",
            "M",
            "rowptr:idx, col:idx, perm:idx, [values]",
            &["csr"],
            |cx| csr(cx, Csr::FromCoo, "row", Some("M")),
        )
        .sample(|s| {
            let [nodes, edges, _] = sizes(s);
            s.ids("row", &[edges], nodes);
            s.ids("col", &[edges], 1000);
            s.put("values", &[edges], Any);
            s.arg("M", nodes);
        }),
        k(
            "csr_transpose",
            "B12.4",
            "rowptr:idx, col:idx, [values]",
            "K",
            "rowptr:idx, col:idx, perm:idx, [values]",
            &["csr"],
            |cx| csr(cx, Csr::Transpose, "rowptr", Some("K")),
        )
        .sample(|s| {
            let [nodes, edges, _] = sizes(s);
            draw_rowptr(s, nodes, edges);
            s.ids("col", &[edges], 40);
            s.put("values", &[edges], Any);
            s.arg("K", 40);
        }),
        k(
            "csr_sort",
            "B12.4",
            "rowptr:idx, col:idx, [values]",
            "-",
            "col:idx, perm:idx, [values]",
            &["csr"],
            |cx| csr(cx, Csr::Sort, "rowptr", None),
        )
        .sample(|s| {
            let [nodes, edges, _] = sizes(s);
            draw_rowptr(s, nodes, edges);
            s.ids("col", &[edges], 100_000);
            s.put("values", &[edges], Any);
        }),
    ],
];

//! Graphs: operations on edges, lists of edges, diffusion and attention.

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::graph::{Csr, CsrIo, EdgeOp, Gat, GatBwd, SddmmBwd};
use trefoil::ops::mesh::{Diffusion, DiffusionBwd, DiffusionOperator};

use super::{Plan, SUMS, draw_rowptr, plan, sizes};
use crate::cases::Bound::{Derived, Product, Stored, Sum};
use crate::cases::{F32, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::oracle;
use crate::sampler::Dom::{Any, Nonzero, Positive, Range};
use crate::sampler::Sample;

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

fn operator<'a>(cx: &'a Cx<'_>) -> R<DiffusionOperator<'a>> {
    Ok(match cx.s("mode")?.as_str() {
        "eigen" => DiffusionOperator::Eigen { phi: cx.x("Phi")?, lam: cx.x("lam")?, mass: cx.opt("m") },
        "direct" => DiffusionOperator::Direct { laplacian: cx.x("L")? },
        m => return Err(Fail::Case(format!("mode {m} is unknown"))),
    })
}

fn diffusion(cx: &Cx<'_>) -> R {
    let (x, w, operator) = (cx.x("x")?, cx.x("W")?, operator(cx)?);
    let mut shape = x.shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = w.shape()[0];
    let y = cx.out("y", x.dtype(), &shape)?;
    let s_hat = match operator {
        DiffusionOperator::Eigen { phi, .. } if cx.wants("S_hat") => {
            let mut s = x.shape().to_vec();
            s[last - 1] = phi.shape()[1];
            Some(cx.out("S_hat", x.dtype(), &s)?)
        }
        _ => None,
    };
    let s_hat = s_hat.as_ref().map(|v| v.m());
    Ok(cx
        .gpu
        .diffusion_conv(Diffusion::new(x, operator, cx.x("t")?, w, y.m()).b(cx.opt("b")).s_hat(s_hat))?)
}

fn diffusion_backward(cx: &Cx<'_>) -> R {
    let (dy, x, t, w) = (cx.x("dy")?, cx.x("x")?, cx.x("t")?, cx.x("W")?);
    let (dx, dt, dw) = (cx.like("dx", &x)?, cx.like("dt", &t)?, cx.like("dW", &w)?);
    let db = cx.out("db", dy.dtype(), &w.shape()[..1])?;
    let grads = (Some(dx.g()), Some(dt.g()), Some(dw.g()), Some(db.g()));
    let (dx, dt, dw, db) = grads;
    let operator = operator(cx)?;
    Ok(cx.gpu.diffusion_conv_bwd(
        DiffusionBwd::new(dy, x, operator, t, w).s_hat(cx.opt("S_hat")).dx(dx).dt(dt).dw(dw).db(db),
    )?)
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
    let io = SddmmBwd::new(cx.x(dout)?, src, dst, x, y)
        .by_src(made.0.as_ref().map(Plan::groups))
        .by_dst(made.1.as_ref().map(Plan::groups))
        .dx(dx.g())
        .dy(dy.g());
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
        CsrIo::new(rows)
            .col(col)
            .values(values)
            .rowptr(rowptr.as_ref().map(|v| v.m()))
            .out_col(out_col.m())
            .perm(perm.m())
            .out_values(out_values.as_ref().map(|v| v.m())),
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
    let io = Gat::new(src, dst, x, su, sv, y.m()).by_dst(made.as_ref().map(Plan::groups)).lse(lse.m());
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
    let io = GatBwd::new(cx.x("dy")?, src, dst, x, su, sv, cx.x("lse")?)
        .by_src(made.0.as_ref().map(Plan::groups))
        .by_dst(made.1.as_ref().map(Plan::groups))
        .dx(dx.g())
        .dscore_src(du.g())
        .dscore_dst(dv.g());
    Ok(cx.gpu.gat_bwd(cx.f("slope")?, io)?)
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

fn draw_operator(s: &mut Sample) {
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

const SOFT: crate::cases::Bound = Derived;

pub(super) const ROWS: &[&[Kernel]] = &[
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
        .bound(Derived)
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
        .bound(Stored)
        .units(
            1680.0,
            "p (dp - D) is 0 where a node has one edge; its terms, dot products over the width, are not",
        )
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
        .bound(Derived)
        .sample(draw_operator),
        k(
            "diffusion_conv_backward",
            "S13.10",
            "dy, x, [Phi], [lam], [m], [L], t, W, [S_hat]",
            "mode=\"eigen\"",
            "dx, dt, dW, db",
            &["diffusion_conv_bwd"],
            diffusion_backward,
        )
        .bound(Stored)
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
        .by(oracle::degree)
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
        .bound(Derived)
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

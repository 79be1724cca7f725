//! The calls that the rows of the table stand for.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::graph::{
    Csr, CsrIo, EdgeGroups, GroupBwd, GroupIo, GroupReduce, Message, MessageReduce, Messages, MessagesBwd,
    Spmm, SpmmBwd,
};
use trefoil::ops::index::ScatterReduce;

use crate::device::{Cx, Fail, R};

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
    let io = CsrIo::new(key)
        .col(other.filter(|_| n % 2 == 0))
        .rowptr(p.rowptr.view_mut())
        .out_col(col.as_mut().map(|c| c.view_mut()))
        .perm(p.perm.view_mut());
    cx.gpu.csr(Csr::FromCoo, io)?;
    p.col = col;
    Ok(p)
}

pub(super) fn spmm(cx: &Cx<'_>) -> R {
    let (rowptr, x) = (cx.x("rowptr")?, cx.x("X")?);
    let mut shape = x.shape().to_vec();
    shape[0] = rowptr.numel().saturating_sub(1);
    let y = cx.out("Y", x.dtype(), &shape)?;
    let io =
        Spmm::new(rowptr, cx.x("col")?, x, y.m()).values(cx.opt("values")).bias(cx.opt("bias")).act(act(cx)?);
    Ok(cx.gpu.spmm(io)?)
}

pub(super) fn spmm_backward(cx: &Cx<'_>, planned: bool) -> R {
    let (dy, rowptr, col, x) = (cx.x("dY")?, cx.x("rowptr")?, cx.x("col")?, cx.x("X")?);
    let values = cx.opt("values");
    let dt = col.dtype();
    let lists = [x.shape()[0] + 1, col.numel(), col.numel()];
    let mut made = lists.map(|n| cx.scratch(dt, n)).into_iter().collect::<R<Vec<_>>>()?;
    if planned {
        let [r, c, p] = &mut made[..] else { return Err(Fail::Case("three lists".into())) };
        let io = CsrIo::new(rowptr).col(col).rowptr(r.view_mut()).out_col(c.view_mut()).perm(p.view_mut());
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
    Ok(cx.gpu.spmm_bwd(
        SpmmBwd::new(dy, rowptr, col, x)
            .values(values)
            .transpose(transpose)
            .dx(dx.g())
            .dvalues(dvalues.as_ref().map(|v| v.g()))
            .dbias(dbias.as_ref().map(|v| v.g())),
    )?)
}

pub(super) fn message(cx: &Cx<'_>) -> R<Message> {
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

pub(super) fn reduce(cx: &Cx<'_>) -> R<MessageReduce> {
    Ok(match cx.s("red")?.as_str() {
        "sum" => MessageReduce::Sum,
        "mean" => MessageReduce::Mean,
        "max" => MessageReduce::Max,
        "min" => MessageReduce::Min,
        r => return Err(Fail::Case(format!("red {r} is unknown"))),
    })
}

pub(super) fn messages(cx: &Cx<'_>, planned: bool) -> R {
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
    let io = Messages::new(src, dst, y.m())
        .x(x)
        .e(e)
        .by_dst(made.as_ref().map(Plan::groups))
        .arg(arg.as_ref().map(|v| v.m()))
        .degree(degree.as_ref().map(|v| v.m()));
    Ok(cx.gpu.message_passing(m, r, io)?)
}

pub(super) fn messages_backward(cx: &Cx<'_>, planned: bool) -> R {
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
    let io = MessagesBwd::new(dy, src, dst)
        .x(x)
        .e(e)
        .arg(cx.opt("arg"))
        .degree(cx.opt("degree"))
        .by_src(made.0.as_ref().map(Plan::groups))
        .by_dst(made.1.as_ref().map(Plan::groups))
        .dx(dx.as_ref().map(|v| v.g()))
        .de(de.as_ref().map(|v| v.g()));
    Ok(cx.gpu.message_passing_bwd(m, r, io)?)
}

/// A reduction of groups; with the reduction's own outputs.
pub(super) fn group(cx: &Cx<'_>, how: GroupReduce, side: Option<&str>) -> R {
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
    let io = GroupIo::new(src, index, y.m().into())
        .groups(made.as_ref().map(Plan::groups))
        .arg(arg.as_ref().map(|v| v.m()))
        .counts(counts.as_ref().map(|v| v.m()));
    Ok(cx.gpu.group_reduce(how, io)?)
}

pub(super) fn group_backward(cx: &Cx<'_>, how: GroupReduce) -> R {
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
    let io = GroupBwd::new(dy, dsrc.g())
        .index(index)
        .src(cx.opt("src"))
        .y(cx.opt("y"))
        .arg(arg)
        .counts(cx.opt("counts"))
        .groups(made.as_ref().map(Plan::groups));
    Ok(cx.gpu.group_reduce_bwd(how, io)?)
}

pub(super) fn scatter_add(cx: &Cx<'_>) -> R {
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
    let io = GroupIo::new(src, index, y.m().grad(cx.opt("y").is_some()));
    Ok(cx.gpu.group_reduce(GroupReduce::Sum, io)?)
}

pub(super) fn scatter_add_backward(cx: &Cx<'_>) -> R {
    let (dy, index) = (cx.x("dy")?, cx.x("idx")?);
    if index.shape().len() == 1 {
        return group_backward(cx, GroupReduce::Sum);
    }
    let dsrc = cx.out("dsrc", dy.dtype(), index.shape())?;
    Ok(cx.gpu.gather(1, dy, index, dsrc.g())?)
}

pub(super) fn std_options(cx: &Cx<'_>) -> R<GroupReduce> {
    Ok(GroupReduce::Std { correction: cx.n("correction")? as u32, eps: cx.f("eps")? })
}

//! Graphs.

use super::*;
use trefoil::ops::activation::Activation;
use trefoil::ops::graph::{
    Csr, CsrIo, EdgeGroups, EdgeOp, Gat, GroupBwd, GroupIo, GroupReduce, Message, MessageReduce, Messages,
    MessagesBwd, Spmm, SpmmBwd,
};
use trefoil::ops::mesh::{Diffusion, DiffusionOperator};

pub(super) fn gnn(t: &mut Bed<'_>) {
    let (x, y, e) = (t.f32(12), t.f32(12), t.f32(6));
    let (src, dst) = (t.ids(&[0, 1, 2]), t.ids(&[1, 2, 0]));
    let narrow = t.buf(DType::I32, 3);
    let half = t.buf(DType::F16, 12);
    let rowptr = t.ids(&[0, 1, 2, 3]);
    lists(t, &src, &rowptr, &narrow);
    matrices(t, [&x, &y, &e], &dst, &rowptr, &half);
    messages(t, [&x, &y, &e], &src, &dst, &narrow);
    groups(t, [&x, &y], &src);
    attention(t, [&x, &y], &src, &dst);
    operator(t);
}

fn lists(t: &mut Bed<'_>, ids: &Buffer, rowptr: &Buffer, narrow: &Buffer) {
    let (r, p, c) = (t.buf(DType::I64, 4), t.buf(DType::I64, 3), t.buf(DType::I64, 3));
    let io = || CsrIo::new(ids.view()).rowptr(out(&r, &[4])).perm(out(&p, &[3]));
    t.accept("csr without columns", |g| g.csr(Csr::FromCoo, io()));
    let (r, p) = (t.buf(DType::I64, 4), t.buf(DType::I64, 3));
    let io = || CsrIo::new(ids.view()).rowptr(out(&r, &[4])).perm(out(&p, &[3]));
    t.refuse("csr without a rowptr", &[&p], |g| g.csr(Csr::FromCoo, io().rowptr(None)));
    t.refuse("csr columns of another dtype", &[&p], |g| g.csr(Csr::FromCoo, io().col(narrow.view())));
    t.refuse("csr columns out without columns in", &[&p, &c], |g| {
        g.csr(Csr::FromCoo, io().out_col(out(&c, &[3])))
    });
    t.refuse("csr transpose without columns", &[&p], |g| {
        g.csr(Csr::Transpose, with!(io(), rows = rowptr.view()))
    });
    t.refuse("csr sort with a rowptr out", &[&p, &r], |g| {
        g.csr(Csr::Sort, with!(io(), rows = rowptr.view(), col = Some(ids.view())))
    });
    t.refuse("csr into its input", &[&r], |g| g.csr(Csr::FromCoo, io().perm(out(ids, &[3]))));
    let short = t.buf(DType::I64, 2);
    t.refuse("csr perm of another length", &[&short], |g| g.csr(Csr::FromCoo, io().perm(out(&short, &[2]))));
    t.refuse("degree into i32", &[narrow], |g| g.degree(ids.view(), out(narrow, &[3])));
    t.refuse("degree into a matrix", &[&r], |g| g.degree(ids.view(), out(&r, &[2, 2])));
    let v = t.f32(2);
    t.refuse("sym_normalize of another length", &[&v], |g| {
        g.sym_normalize(rowptr.view(), ids.view(), None, out(&v, &[2]))
    });
}

fn matrices(t: &mut Bed<'_>, [x, y, e]: [&Buffer; 3], col: &Buffer, rowptr: &Buffer, half: &Buffer) {
    let io = |y| Spmm::new(rowptr.view(), col.view(), sh(x, &[3, 4]), y);
    t.refuse("spmm into other rows", &[y], |g| g.spmm(io(out(y, &[4, 3]))));
    t.refuse("spmm into another dtype", &[half], |g| g.spmm(io(out(half, &[3, 4]))));
    t.refuse("spmm values of another length", &[y], |g| g.spmm(io(out(y, &[3, 4])).values(e.view())));
    t.refuse("spmm bias of another length", &[y], |g| g.spmm(io(out(y, &[3, 4])).bias(e.view())));
    t.refuse("spmm with an activation that is not fused", &[y], |g| {
        g.spmm(io(out(y, &[3, 4])).act(Activation::Mish))
    });
    t.refuse("spmm onto X", &[x], |g| g.spmm(io(out(x, &[3, 4]))));
    let none = t.buf(DType::I64, 0);
    t.refuse("spmm without rows", &[y], |g| g.spmm(with!(io(out(y, &[3, 4])), rowptr = none.view())));
    let grads = |dx| SpmmBwd::new(sh(half, &[3, 4]), rowptr.view(), col.view(), sh(x, &[3, 4])).dx(dx);
    t.refuse("spmm_bwd of another dtype", &[y], |g| g.spmm_bwd(grads(Some(out(y, &[3, 4]).into()))));
    let dy = t.f32(12);
    t.refuse("spmm_bwd of values that are not there", &[e], |g| {
        let dvalues = Some(out(e, &[6]).into());
        g.spmm_bwd(with!(grads(None), dy = sh(&dy, &[3, 4]), dvalues = dvalues))
    });
    t.refuse("spmm_bwd with half a plan", &[y], |g| {
        let transpose = Some(EdgeGroups::new(rowptr.view()));
        g.spmm_bwd(with!(grads(Some(out(y, &[3, 4]).into())), dy = sh(&dy, &[3, 4]), transpose = transpose))
    });
    let o = t.f32(3);
    t.refuse("sddmm of different widths", &[&o], |g| {
        g.sddmm(EdgeOp::Dot, col.view(), col.view(), sh(x, &[3, 4]), sh(&dy, &[4, 3]), out(&o, &[3]))
    });
    t.refuse("sddmm of sums into one number per edge", &[&o], |g| {
        g.sddmm(EdgeOp::Add, col.view(), col.view(), sh(x, &[3, 4]), sh(&dy, &[3, 4]), out(&o, &[3]))
    });
}

fn messages(t: &mut Bed<'_>, [x, y, e]: [&Buffer; 3], src: &Buffer, dst: &Buffer, narrow: &Buffer) {
    let arg = t.buf(DType::I64, 12);
    let io = |y| Messages::new(src.view(), dst.view(), y).x(sh(x, &[3, 4]));
    let sum = MessageReduce::Sum;
    t.refuse("message without x", &[y], |g| {
        g.message_passing(Message::CopyU, sum, io(out(y, &[3, 4])).x(None))
    });
    t.refuse("message without e", &[y], |g| g.message_passing(Message::UMulE, sum, io(out(y, &[3, 4]))));
    t.refuse("message into another width", &[y], |g| {
        g.message_passing(Message::CopyU, sum, io(out(y, &[4, 3])))
    });
    t.refuse("message of ends of two dtypes", &[y], |g| {
        g.message_passing(Message::CopyU, sum, with!(io(out(y, &[3, 4])), dst = narrow.view()))
    });
    t.refuse("message with an edge feature that does not fit", &[y], |g| {
        let e = Some(sh(e, &[3, 2]));
        g.message_passing(Message::UMulE, sum, io(out(y, &[3, 4])).e(e))
    });
    let two = t.f32(8);
    t.refuse("message of x_v between two sets of nodes", &[&two], |g| {
        g.message_passing(Message::UAddV, sum, io(out(&two, &[2, 4])))
    });
    t.refuse("chosen edges of a sum", &[y, &arg], |g| {
        g.message_passing(Message::CopyU, sum, io(out(y, &[3, 4])).arg(out(&arg, &[3, 4])))
    });
    t.refuse("message with a plan of other nodes", &[y], |g| {
        let by_dst = Some(EdgeGroups::new(src.view()));
        g.message_passing(Message::CopyU, sum, io(out(y, &[3, 4])).by_dst(by_dst))
    });
    let dy = t.f32(12);
    let grads =
        |dx, de| MessagesBwd::new(sh(&dy, &[3, 4]), src.view(), dst.view()).x(sh(x, &[3, 4])).dx(dx).de(de);
    t.refuse("message_passing_bwd of max without the edges", &[y], |g| {
        let dx = Some(out(y, &[3, 4]).into());
        g.message_passing_bwd(Message::CopyU, MessageReduce::Max, grads(dx, None))
    });
    t.refuse("message_passing_bwd by e that takes no part", &[e], |g| {
        let de = Some(out(e, &[6]).into());
        g.message_passing_bwd(Message::CopyU, sum, grads(None, de))
    });
    t.refuse("message_passing_bwd of a product without e", &[y], |g| {
        let dx = Some(out(y, &[3, 4]).into());
        g.message_passing_bwd(Message::UMulE, sum, grads(dx, None))
    });
}

fn groups(t: &mut Bed<'_>, [x, y]: [&Buffer; 2], index: &Buffer) {
    let arg = t.buf(DType::I64, 12);
    fn group<'a>(x: View<'a>, index: &'a Buffer, y: trefoil::GradMut<'a>) -> GroupIo<'a> {
        GroupIo::new(x, index.view(), y)
    }
    let src = || sh(x, &[1, 3, 4]);
    t.refuse("group_reduce of another inner size", &[y], |g| {
        g.group_reduce(GroupReduce::Sum, group(src(), index, out(y, &[1, 4, 3]).into()))
    });
    t.refuse("group_reduce of a matrix", &[y], |g| {
        g.group_reduce(GroupReduce::Sum, group(sh(x, &[3, 4]), index, out(y, &[3, 4]).into()))
    });
    t.refuse("group_reduce that accumulates a mean", &[y], |g| {
        g.group_reduce(GroupReduce::Mean, group(src(), index, out(y, &[1, 3, 4]).accumulate()))
    });
    t.refuse("group_reduce of sums with chosen sources", &[y, &arg], |g| {
        let io = group(src(), index, out(y, &[1, 3, 4]).into());
        g.group_reduce(GroupReduce::Sum, io.arg(out(&arg, &[1, 3, 4])))
    });
    t.refuse("group_reduce with a negative eps", &[y], |g| {
        let how = GroupReduce::Std { correction: 0, eps: -1.0 };
        g.group_reduce(how, group(src(), index, out(y, &[1, 3, 4]).into()))
    });
    let dy = t.f32(12);
    let bwd = |dsrc| GroupBwd::new(sh(&dy, &[1, 3, 4]), dsrc).index(index.view());
    for (what, how) in [
        ("group_reduce_bwd of a mean without counts", GroupReduce::Mean),
        ("group_reduce_bwd of max without the choices", GroupReduce::Max { empty: 0.0 }),
        ("group_reduce_bwd of a product without sources", GroupReduce::Prod),
    ] {
        t.refuse(what, &[y], |g| g.group_reduce_bwd(how, bwd(out(y, &[1, 3, 4]).into())));
    }
}

fn attention(t: &mut Bed<'_>, [x, y]: [&Buffer; 2], src: &Buffer, dst: &Buffer) {
    t.refuse("edge_softmax of other edges", &[y], |g| {
        g.edge_softmax(3, dst.view(), None, sh(x, &[4, 3]), out(y, &[4, 3]))
    });
    t.refuse("edge_softmax into another shape", &[y], |g| {
        g.edge_softmax(3, dst.view(), None, sh(x, &[3, 4]), out(y, &[3, 2, 2]))
    });
    t.refuse("edge_softmax_bwd onto its input", &[x], |g| {
        g.edge_softmax_bwd(3, dst.view(), None, sh(x, &[3, 4]), sh(y, &[3, 4]), out(x, &[3, 4]).into())
    });
    let scores = t.f32(6);
    let io = |y| {
        Gat::new(src.view(), dst.view(), sh(x, &[3, 2, 2]), sh(&scores, &[3, 2]), sh(&scores, &[3, 2]), y)
    };
    t.refuse("gat into another shape", &[y], |g| g.gat(0.2, io(out(y, &[3, 4]))));
    t.refuse("gat with a slope that is no number", &[y], |g| g.gat(f64::NAN, io(out(y, &[3, 2, 2]))));
    t.refuse("gat with scores of other heads", &[y], |g| {
        g.gat(0.2, with!(io(out(y, &[3, 2, 2])), score_src = sh(&scores, &[2, 3])))
    });
}

fn operator(t: &mut Bed<'_>) {
    let (x, y, l, w, one) = (t.f32(6), t.f32(6), t.f32(9), t.f32(4), t.f32(1));
    let io = |y| {
        Diffusion::new(
            sh(&x, &[3, 2]),
            DiffusionOperator::Direct { laplacian: sh(&l, &[3, 3]) },
            one.view(),
            sh(&w, &[2, 2]),
            y,
        )
    };
    let two = t.f32(2);
    t.refuse("diffusion with weights of other scales", &[&y], |g| {
        g.diffusion_conv(with!(io(out(&y, &[3, 2])), t = two.view()))
    });
    t.refuse("diffusion with another operator", &[&y], |g| {
        let operator = DiffusionOperator::Direct { laplacian: sh(&w, &[2, 2]) };
        g.diffusion_conv(with!(io(out(&y, &[3, 2])), operator = operator))
    });
    let saved = t.f32(6);
    t.refuse("diffusion that saves coefficients it has not", &[&y, &saved], |g| {
        g.diffusion_conv(io(out(&y, &[3, 2])).s_hat(out(&saved, &[3, 2])))
    });
    t.refuse("diffusion into another shape", &[&y], |g| g.diffusion_conv(io(out(&y, &[2, 3]))));
}

//! Language models.

use super::*;
use trefoil::ops::attention::Rope;
use trefoil::ops::language_model::{LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd};
use trefoil::ops::loss::Reduction;
use trefoil::ops::moe::{MoePermuteBwd, MoeRouter, MoeRouterIo, MoeUnpermute, MoeUnpermuteBwd};

pub(super) fn lm(t: &mut Bed<'_>) {
    rope(t);
    linear(t);
    experts(t);
}

fn rope(t: &mut Bed<'_>) {
    let (x, y, h) = (t.f32(48), t.f32(48), t.buf(DType::F16, 48));
    let (at, ids) = (t.buf(DType::I32, 3), t.ids(&[1, 2, 3]));
    let s = [2, 3, 2, 4];
    let p = Rope::new();
    t.refuse("positions beyond 64 bits", &[&y], |g| {
        g.rope(&p.offset(i64::MAX), sh(&x, &s), None, out(&y, &s))
    });
    t.refuse("an odd rotary size", &[&y], |g| g.rope(&p.rotary_dim(3), sh(&x, &s), None, out(&y, &s)));
    t.refuse("a rotary size beyond the head", &[&y], |g| {
        g.rope(&p.rotary_dim(6), sh(&x, &s), None, out(&y, &s))
    });
    t.refuse("a head of odd size", &[&y], |g| {
        g.rope(&p, sh(&x, &[2, 4, 2, 3]), None, out(&y, &[2, 4, 2, 3]))
    });
    t.refuse("base 0", &[&y], |g| g.rope(&p.base(0.0), sh(&x, &s), None, out(&y, &s)));
    t.refuse("rotation of rank 3", &[&y], |g| g.rope(&p, sh(&x, &[6, 2, 4]), None, out(&y, &[6, 2, 4])));
    t.refuse("rotation into another shape", &[&y], |g| g.rope(&p, sh(&x, &s), None, out(&y, &[3, 2, 2, 4])));
    t.refuse("rotation into another dtype", &[&h], |g| g.rope(&p, sh(&x, &s), None, out(&h, &s)));
    t.refuse("64-bit positions", &[&y], |g| g.rope(&p, sh(&x, &s), Some(ids.view()), out(&y, &s)));
    t.refuse("positions of another length", &[&y], |g| {
        g.rope(&p, sh(&x, &[2, 2, 3, 4]), Some(at.view()), out(&y, &[2, 2, 3, 4]))
    });
    t.refuse("gradient over half of its input", &[&x], |g| {
        let dx = x.alias_mut().range(24, 24)?.reshape(&[1, 3, 2, 4])?;
        g.rope_bwd(&p, x.view().range(12, 24)?.reshape(&[1, 3, 2, 4])?, None, dx.into())
    });
}

fn linear(t: &mut Bed<'_>) {
    let (h, w, b) = (t.f32(12), t.f32(20), t.f32(5));
    let (loss, lse, dh) = (t.f32(3), t.f32(3), t.f32(12));
    let ids = t.ids(&[0, 4, 2]);
    let p = LinearCrossEntropy::new();
    let io = || {
        LinearCrossEntropyFwd::new(
            sh(&h, &[3, 4]),
            sh(&w, &[5, 4]),
            ids.view(),
            loss.alias_mut().range(0, 1).expect("one element"),
        )
        .b(b.view())
        .lse(lse.alias_mut())
    };
    let all = [&loss, &lse];
    t.refuse("smoothing of 1", &all, |g| g.fused_linear_cross_entropy(&p.label_smoothing(1.0), io()));
    t.refuse("softcap below 0", &all, |g| g.fused_linear_cross_entropy(&p.softcap(-1.0), io()));
    t.refuse("z-loss that is no number", &all, |g| g.fused_linear_cross_entropy(&p.z_loss(f64::NAN), io()));
    t.refuse("chunks of no rows", &all, |g| g.fused_linear_cross_entropy(&p.chunk(0), io()));
    t.refuse("weights of another hidden size", &all, |g| {
        g.fused_linear_cross_entropy(&p, with!(io(), w = sh(&w, &[4, 5])))
    });
    t.refuse("a bias of another size", &all, |g| {
        let b = Some(b.view().range(0, 4)?);
        g.fused_linear_cross_entropy(&p, io().b(b))
    });
    t.refuse("a target per hidden state", &all, |g| {
        g.fused_linear_cross_entropy(&p, with!(io(), target = sh(&h, &[3, 4])))
    });
    t.refuse("a scalar loss per row", &all, |g| {
        g.fused_linear_cross_entropy(&p, with!(io(), loss = loss.alias_mut()))
    });
    t.refuse("one loss for all rows", &all, |g| {
        g.fused_linear_cross_entropy(&p.reduction(Reduction::None), io())
    });
    t.refuse("loss and logarithms in one place", &all, |g| {
        let loss = lse.alias_mut().range(0, 1)?;
        g.fused_linear_cross_entropy(&p, with!(io(), loss = loss))
    });
    let bwd = || {
        LinearCrossEntropyBwd::new(
            loss.view().range(0, 1).expect("one element"),
            sh(&h, &[3, 4]),
            sh(&w, &[5, 4]),
            ids.view(),
        )
        .dh(out(&dh, &[3, 4]))
    };
    t.refuse("an upstream gradient per row for a mean", &[&dh], |g| {
        g.fused_linear_cross_entropy_bwd(&p, with!(bwd(), gy = lse.view()))
    });
    t.refuse("gradient of another shape", &[&dh], |g| {
        let dh = Some(out(&dh, &[4, 3]).into());
        g.fused_linear_cross_entropy_bwd(&p, bwd().dh(dh))
    });
    t.refuse("gradient over the weights", &[&w], |g| {
        let dw = Some(out(&w, &[5, 4]).into());
        g.fused_linear_cross_entropy_bwd(&p, bwd().dw(dw))
    });
}

fn experts(t: &mut Bed<'_>) {
    let (x, w) = (t.f32(12), t.f32(15));
    let (ids, counts, offsets, perm) =
        (t.buf(DType::I32, 15), t.buf(DType::I32, 4), t.buf(DType::I32, 5), t.buf(DType::I32, 15));
    let p = MoeRouter::new();
    let all = [&w, &ids, &counts, &offsets, &perm];
    let io = |k: usize| {
        MoeRouterIo::new(
            sh(&x, &[3, 4]),
            w.alias_mut().range(0, 3 * k).and_then(|v| v.reshape(&[3, k])).expect("in range"),
            ids.alias_mut().range(0, 3 * k).and_then(|v| v.reshape(&[3, k])).expect("in range"),
            counts.alias_mut(),
            offsets.alias_mut(),
            perm.alias_mut().range(0, 3 * k).expect("in range"),
        )
    };
    t.refuse("more choices than experts", &all, |g| g.moe_router(&p, io(5)));
    t.refuse("no choices", &all, |g| g.moe_router(&p, io(0)));
    t.refuse("offsets without an end", &all, |g| {
        g.moe_router(&p, with!(io(2), offsets = offsets.alias_mut().range(0, 4)?))
    });
    t.refuse("ids of another shape", &all, |g| {
        g.moe_router(&p, with!(io(2), ids = ids.alias_mut().range(0, 6)?.reshape(&[2, 3])?))
    });
    t.refuse("ids and order in one place", &all, |g| {
        g.moe_router(&p, with!(io(2), perm = ids.alias_mut().range(0, 6)?))
    });
    let long = t.ids(&[0; 6]);
    t.refuse("gradient with 64-bit ids", &[&x], |g| {
        let y = out(&x, &[3, 4]).into();
        g.moe_router_bwd(&p, sh(&w, &[3, 5]), sh(&x, &[3, 4]), sh(&long, &[3, 2]), y)
    });
    let (rows, y) = (t.f32(24), t.f32(24));
    let order = t.gpu.upload(&[0i32, 1, 2, 3, 4, 5]).expect("a small upload");
    t.refuse("rows that are no multiple of the tokens", &[&y], |g| {
        g.moe_permute(sh(&x, &[4, 3]), order.view(), y.alias_mut().range(0, 18)?.reshape(&[6, 3])?)
    });
    t.refuse("an order of another length", &[&y], |g| {
        g.moe_permute(sh(&x, &[3, 4]), order.view().range(0, 5)?, out(&y, &[6, 4]))
    });
    t.refuse("rows of another length", &[&y], |g| {
        let dx = y.alias_mut().range(0, 9)?.reshape(&[3, 3])?.grad(false);
        g.moe_permute_bwd(MoePermuteBwd::new(sh(&rows, &[6, 4]), order.view(), dx))
    });
    t.refuse("an inverse of another length", &[&y], |g| {
        let dx = y.alias_mut().range(0, 12)?.reshape(&[3, 4])?.grad(false);
        let io = MoePermuteBwd::new(sh(&rows, &[6, 4]), order.view(), dx);
        g.moe_permute_bwd(io.inverse(order.view().range(0, 5)?))
    });
    t.refuse("weights of another shape", &[&y], |g| {
        let y = y.alias_mut().range(0, 12)?.reshape(&[3, 4])?;
        let w = w.view().range(0, 6)?.reshape(&[2, 3])?;
        g.moe_unpermute(MoeUnpermute::new(sh(&rows, &[6, 4]), order.view(), w, y))
    });
    t.refuse("gradient over the rows", &[&rows], |g| {
        g.moe_unpermute_bwd(
            MoeUnpermuteBwd::new(
                sh(&x, &[3, 4]),
                sh(&rows, &[6, 4]),
                order.view(),
                w.view().range(0, 6)?.reshape(&[3, 2])?,
            )
            .dx(out(&rows, &[6, 4])),
        )
    });
    let bad = t.gpu.upload(&[0i32, 1, 6, 3, 4, 5]).expect("a small upload");
    let result =
        t.gpu.moe_permute(sh(&x, &[3, 4]), bad.view(), out(&y, &[6, 4])).and_then(|()| t.gpu.synchronize());
    if !matches!(result, Err(GpuError::IndexOutOfRange { .. })) {
        t.wrong.push(format!("an assignment out of range: {result:?}"));
    }
}

//! Matrix products.

use super::*;
use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo, GemmRagged, GemmRaggedBwd};

pub(super) fn gemm(t: &mut Bed<'_>) {
    let (a, b, y) = (t.f32(12), t.f32(20), t.f32(15));
    let h = t.buf(DType::F16, 20);
    let p = Gemm::new();
    let (a34, b45) = (sh(&a, &[3, 4]), sh(&b, &[4, 5]));
    t.refuse("inner sizes that differ", &[&y], |g| {
        g.gemm(&p, GemmIo::new(a34, sh(&b, &[5, 4]), out(&y, &[3, 5])))
    });
    t.refuse("another output shape", &[&y], |g| g.gemm(&p, GemmIo::new(a34, b45, out(&y, &[5, 3]))));
    t.refuse("two dtypes", &[&y], |g| g.gemm(&p, GemmIo::new(a34, sh(&h, &[4, 5]), out(&y, &[3, 5]))));
    t.refuse("vectors", &[&y], |g| g.gemm(&p, GemmIo::new(a.view(), b.view(), y.alias_mut())));
    t.refuse("beta without C", &[&y], |g| {
        g.gemm(&p.scaled(1.0, 1.0), GemmIo::new(a34, b45, out(&y, &[3, 5])))
    });
    t.refuse("a bias of another size", &[&y], |g| {
        let mut io = GemmIo::new(a34, b45, out(&y, &[3, 5]));
        io.bias = Some(a.view().range(0, 3)?);
        g.gemm(&p, io)
    });
    t.refuse("an activation without fused form", &[&y], |g| {
        g.gemm(&p.act(Activation::Mish), GemmIo::new(a34, b45, out(&y, &[3, 5])))
    });
    let w = t.f32(16);
    t.refuse("output over an operand", &[&w], |g| {
        let a = w.view().range(0, 4)?.reshape(&[2, 2])?;
        g.gemm(&p, GemmIo::new(a, a, w.alias_mut().range(2, 4)?.reshape(&[2, 2])?))
    });
    t.refuse("grouped lists of two lengths", &[&y], |g| {
        g.gemm_grouped(&p, &[a34], &[b45, b45], &mut [out(&y, &[3, 5])])
    });
    let off = t.ids(&[0, 3]);
    t.refuse("ragged offsets of i64", &[&y], |g| {
        g.gemm_ragged(&p, GemmRagged::new(a34, sh(&b, &[1, 4, 5]), off.view(), out(&y, &[3, 5])))
    });
    let groups = t.gpu.upload(&[0i32, 3]).expect("a small upload");
    t.refuse("a ragged bias of another size", &[&y], |g| {
        let mut io = GemmRagged::new(a34, sh(&b, &[1, 4, 5]), groups.view(), out(&y, &[3, 5]));
        io.bias = Some(sh(&a, &[3, 4]));
        g.gemm_ragged(&p, io)
    });
    t.refuse("a ragged activation without fused form", &[&y], |g| {
        let io = GemmRagged::new(a34, sh(&b, &[1, 4, 5]), groups.view(), out(&y, &[3, 5]));
        g.gemm_ragged(&p.act(Activation::Mish), io)
    });
    t.refuse("a ragged gradient with other rows", &[&b], |g| {
        let db = out(&b, &[1, 4, 5]).grad(false);
        g.gemm_ragged_bwd(&p, GemmRaggedBwd::new(sh(&y, &[5, 3]), a34, groups.view(), db))
    });
    t.refuse("a ragged gradient of another shape", &[&b], |g| {
        let db = out(&b, &[1, 5, 4]).grad(false);
        g.gemm_ragged_bwd(&p, GemmRaggedBwd::new(sh(&y, &[3, 5]), a34, groups.view(), db))
    });
    t.refuse("a ragged bias gradient of another shape", &[&b, &w], |g| {
        let db = out(&b, &[1, 4, 5]).grad(false);
        let mut io = GemmRaggedBwd::new(sh(&y, &[3, 5]), a34, groups.view(), db);
        io.dbias = Some(w.alias_mut().range(0, 4)?.reshape(&[1, 4])?.grad(false));
        g.gemm_ragged_bwd(&p, io)
    });
    t.refuse("a ragged bias gradient over the upstream one", &[&b, &y], |g| {
        let db = out(&b, &[1, 4, 5]).grad(false);
        let mut io = GemmRaggedBwd::new(sh(&y, &[3, 5]), a34, groups.view(), db);
        io.dbias = Some(out(&y, &[1, 15]).range(0, 5)?.reshape(&[1, 5])?.grad(false));
        g.gemm_ragged_bwd(&p, io)
    });
    t.refuse("gradient of gelu without its saved tensor", &[&a], |g| {
        let io = GemmBwd::new(sh(&y, &[3, 5]), a34, b45).dbias(out(&a, &[12]).range(0, 5)?);
        g.gemm_bwd(&p.act(Activation::Gelu), io)
    });
}

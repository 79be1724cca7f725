//! Attention.

use super::*;
use trefoil::ops::attention::{Attention, AttentionBwd, AttentionIo, AttentionMask};
use trefoil::ops::random::Rng;

struct Operands {
    q: Buffer,
    k: Buffer,
    v: Buffer,
    o: Buffer,
    lse: Buffer,
}

const Q: [usize; 4] = [2, 4, 3, 8];
const K: [usize; 4] = [2, 2, 5, 8];
const V: [usize; 4] = [2, 2, 5, 6];
const O: [usize; 4] = [2, 4, 3, 6];

pub(super) fn attention(t: &mut Bed<'_>) {
    let x = Operands { q: t.f32(192), k: t.f32(160), v: t.f32(120), o: t.f32(144), lse: t.f32(24) };
    let (odd, half, wide) = (t.f32(240), t.buf(DType::F16, 160), t.f32(384));
    let plain = Attention::new();
    let io = || AttentionIo::new(sh(&x.q, &Q), sh(&x.k, &K), sh(&x.v, &V), out(&x.o, &O));
    let mut case = |what: &str, p: &Attention<'_>, change: &dyn Fn(&mut AttentionIo<'_>)| {
        t.refuse(what, &[&x.o, &x.lse], |g| {
            let mut io = io();
            io.lse = Some(out(&x.lse, &Q[..3]));
            change(&mut io);
            g.attention(p, io)
        });
    };
    case("softcap below 0", &plain.softcap(-1.0), &|_| {});
    case("softcap that is no number", &plain.softcap(f64::NAN), &|_| {});
    case("dropout above 1", &plain.dropout(1.5, Rng::new(1)), &|_| {});
    t.refuse("key heads that do not divide the query heads", &[&x.o], |g| {
        let io =
            AttentionIo::new(sh(&x.q, &Q), sh(&odd, &[2, 3, 5, 8]), sh(&odd, &[2, 3, 5, 8]), out(&x.o, &O));
        g.attention(&plain, io)
    });
    t.refuse("keys of another head size", &[&x.o], |g| {
        g.attention(&plain, AttentionIo::new(sh(&x.q, &Q), sh(&x.v, &V), sh(&x.v, &V), out(&x.o, &O)))
    });
    t.refuse("keys of another batch", &[&x.o], |g| {
        g.attention(
            &plain,
            AttentionIo::new(sh(&x.q, &Q), sh(&x.k, &[1, 4, 5, 8]), sh(&x.v, &V), out(&x.o, &O)),
        )
    });
    t.refuse("values of another length", &[&x.o], |g| {
        g.attention(
            &plain,
            AttentionIo::new(sh(&x.q, &Q), sh(&x.k, &K), sh(&x.v, &[2, 2, 6, 5]), out(&x.o, &[2, 4, 3, 6])),
        )
    });
    t.refuse("queries of rank 3", &[&x.o], |g| {
        g.attention(&plain, AttentionIo::new(sh(&x.q, &[8, 3, 8]), sh(&x.k, &K), sh(&x.v, &V), out(&x.o, &O)))
    });
    t.refuse("keys of another dtype", &[&x.o], |g| {
        g.attention(&plain, AttentionIo::new(sh(&x.q, &Q), sh(&half, &K), sh(&x.v, &V), out(&x.o, &O)))
    });
    t.refuse("another output shape", &[&x.o], |g| {
        g.attention(
            &plain,
            AttentionIo::new(sh(&x.q, &Q), sh(&x.k, &K), sh(&x.v, &V), out(&x.o, &[2, 4, 6, 3])),
        )
    });
    t.refuse("queries with a step along the last axis", &[&x.o], |g| {
        let l = Layout::strided(&Q, &[192, 48, 16, 2], 0).expect("rank 4");
        let q = wide.view().with_layout(l)?;
        g.attention(&plain, AttentionIo::new(q, sh(&x.k, &K), sh(&x.v, &V), out(&x.o, &O)))
    });
    t.refuse("output over the queries", &[&x.q], |g| {
        g.attention(&plain, AttentionIo::new(sh(&x.q, &Q), sh(&x.k, &K), sh(&x.k, &K), out(&x.q, &Q)))
    });
    let (bias, mask) = (t.f32(30), t.buf(DType::U8, 15));
    let (lengths, cu, ids) = (t.buf(DType::I32, 2), t.buf(DType::I32, 3), t.ids(&[1, 2]));
    t.refuse("a bias that does not broadcast", &[&x.o], |g| {
        let mut io = io();
        io.mask = AttentionMask::new().bias(sh(&bias, &[3, 2, 5]));
        g.attention(&plain, io)
    });
    t.refuse("a mask of floats", &[&x.o], |g| {
        let mut io = io();
        io.mask = AttentionMask::new().mask(bias.view().range(0, 15)?.reshape(&[3, 5])?);
        g.attention(&plain, io)
    });
    t.refuse("key lengths of another batch", &[&x.o], |g| {
        let mut io = io();
        io.mask = AttentionMask::new().key_lengths(cu.view());
        g.attention(&plain, io)
    });
    t.refuse("64-bit key lengths", &[&x.o], |g| {
        let mut io = io();
        io.mask = AttentionMask::new().key_lengths(ids.view());
        g.attention(&plain, io)
    });
    t.refuse("packed sequences in a batch", &[&x.o], |g| {
        let mut io = io();
        io.mask = AttentionMask::new().sequences(cu.view(), cu.view());
        g.attention(&plain, io)
    });
    let packed = || {
        let (q, k, v) = (sh(&x.q, &[1, 8, 3, 8]), sh(&x.k, &[1, 4, 5, 8]), sh(&x.v, &[1, 4, 5, 6]));
        AttentionIo::new(q, k, v, out(&x.o, &[1, 8, 3, 6]))
    };
    t.refuse("offsets of two lengths", &[&x.o], |g| {
        let mut io = packed();
        io.mask = AttentionMask::new().sequences(cu.view(), lengths.view());
        g.attention(&plain, io)
    });
    t.refuse("packed sequences with a mask", &[&x.o], |g| {
        let mut io = packed();
        io.mask = AttentionMask::new().sequences(cu.view(), cu.view()).mask(sh(&mask, &[3, 5]));
        g.attention(&plain, io)
    });
    let p = t.f32(120);
    t.refuse("P of packed sequences", &[&x.o, &p], |g| {
        let mut io = packed();
        io.mask = AttentionMask::new().sequences(cu.view(), cu.view());
        io.p = Some(out(&p, &[1, 8, 3, 5]));
        g.attention(&plain, io)
    });
    t.refuse("logarithms in 16 bits", &[&x.o, &half], |g| {
        let mut io = io();
        io.lse = Some(half.alias_mut().range(0, 24)?.reshape(&Q[..3])?);
        g.attention(&plain, io)
    });
    backward(t, &x, &bias);
}

fn backward(t: &mut Bed<'_>, x: &Operands, bias: &Buffer) {
    let plain = Attention::new();
    let (up, dq, dk, db) = (t.f32(144), t.f32(192), t.f32(160), t.f32(30));
    let bwd = || {
        AttentionBwd::new(
            sh(&up, &O),
            sh(&x.q, &Q),
            sh(&x.k, &K),
            sh(&x.v, &V),
            sh(&x.o, &O),
            sh(&x.lse, &Q[..3]),
        )
        .dq(out(&dq, &Q))
        .dk(out(&dk, &K))
    };
    t.refuse("upstream gradient of another shape", &[&dq, &dk], |g| {
        let io = with!(bwd(), dout = sh(&up, &[2, 4, 6, 3]));
        g.attention_bwd(&plain, io)
    });
    t.refuse("logarithms of another shape", &[&dq, &dk], |g| {
        let io = with!(bwd(), lse = sh(&x.lse, &[2, 3, 4]));
        g.attention_bwd(&plain, io)
    });
    t.refuse("gradient of the keys in the queries' shape", &[&dq], |g| {
        let io = bwd().dq(None).dk(out(&dq, &Q));
        g.attention_bwd(&plain, io)
    });
    t.refuse("two gradients in one place", &[&dk], |g| {
        let dv = dk.alias_mut().range(0, 120)?.reshape(&V)?;
        let io = bwd().dv(dv);
        g.attention_bwd(&plain, io)
    });
    t.refuse("gradient over the upstream gradient", &[&up], |g| {
        let io = bwd().dv(up.alias_mut().range(0, 120)?.reshape(&V)?);
        g.attention_bwd(&plain, io)
    });
    t.refuse("gradient of a bias that is not there", &[&dq, &dk, &db], |g| {
        let io = bwd().dbias(out(&db, &[2, 1, 3, 5]));
        g.attention_bwd(&plain, io)
    });
    t.refuse("gradient of a bias in another shape", &[&dq, &dk, &db], |g| {
        let mask = AttentionMask::new().bias(sh(bias, &[2, 1, 3, 5]));
        let io = bwd().mask(mask).dbias(out(&db, &[1, 2, 3, 5]));
        g.attention_bwd(&plain, io)
    });
    let cu = t.gpu.upload(&[0i32, 9]).expect("a small upload");
    let (q, o) = (t.f32(8), t.f32(8));
    let one = [1, 1, 4, 2];
    // Offsets live on the device: they are found there, and reported by the next call that waits.
    let mut io = AttentionIo::new(sh(&q, &one), sh(&q, &one), sh(&q, &one), out(&o, &one));
    io.mask = AttentionMask::new().sequences(cu.view(), cu.view());
    let result = t.gpu.attention(&plain, io).and_then(|()| t.gpu.synchronize());
    if !matches!(result, Err(GpuError::IndexOutOfRange { .. })) {
        t.wrong.push(format!("offsets beyond the tokens: {result:?}"));
    }
}

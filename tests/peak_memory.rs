//! Memory that operations need beside their operands: what must never exist as a whole does not.
#![allow(missing_docs)]

use std::sync::Arc;
use trefoil::prelude::*;

use trefoil::ops::attention::{Attention, AttentionBwd, AttentionIo};
use trefoil::ops::language_model::{LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd};
use trefoil::testing::MockDriver;
use trefoil::{BackendKind, Buffer, Caps, DType, DeviceId, Engine, Result};

fn engine() -> Engine {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    (caps.f64, caps.compute_units) = (true, 132);
    Engine::new(Arc::new(MockDriver::new(caps))).unwrap()
}

fn new(g: &Engine, dtype: DType, n: usize) -> Buffer {
    g.alloc(dtype, n).unwrap()
}

/// Bytes beyond the operands at the worst moment of `call`, which neither waits nor reads back.
fn scratch(g: &Engine, call: impl FnOnce() -> Result<()>) -> usize {
    let (before, counters) = (g.memory(), g.counters());
    assert_eq!(before.peak, before.in_use, "nothing larger was there before");
    call().unwrap();
    let after = g.counters();
    assert_eq!(
        (after.uploads, after.downloads, after.syncs),
        (counters.uploads, counters.downloads, counters.syncs)
    );
    assert_eq!(g.memory().in_use, before.in_use);
    g.memory().peak - before.in_use
}

/// Rows, hidden size, classes, rows per chunk.
const SIZE: [usize; 4] = [4096, 8, 5000, 64];
/// Size classes of the pool round up.
const ROUNDING: (usize, usize) = (5, 4);

fn rounded(bytes: usize) -> usize {
    bytes * ROUNDING.0 / ROUNDING.1
}

#[test]
fn logits_of_the_vocabulary_loss_exist_a_chunk_at_a_time() {
    let [n, d, v, rows] = SIZE;
    for dtype in [DType::F32, DType::Bf16] {
        let g = engine();
        let (h, w, b) = (new(&g, dtype, n * d), new(&g, dtype, v * d), new(&g, dtype, v));
        let (ids, loss) = (new(&g, DType::I64, n), new(&g, DType::F32, 1));
        let used = scratch(&g, || {
            let io = LinearCrossEntropyFwd::new(
                h.shaped(&[n, d])?,
                w.shaped(&[v, d])?,
                ids.view(),
                loss.alias_mut(),
            )
            .b(b.view());
            g.fused_linear_cross_entropy(&LinearCrossEntropy::new().chunk(rows), io)
        });
        // One chunk, and a few numbers per row.
        let limit = rounded(rows * v * 4) + n * 64;
        assert!(used < limit && limit < n * v, "{dtype}: {used} bytes, at most {limit}");
    }
}

#[test]
fn gradients_of_the_vocabulary_loss_need_two_chunks() {
    let [n, d, v, rows] = SIZE;
    for dtype in [DType::F32, DType::Bf16] {
        let g = engine();
        let (h, w, b) = (new(&g, dtype, n * d), new(&g, dtype, v * d), new(&g, dtype, v));
        let (dh, dw, db) = (new(&g, dtype, n * d), new(&g, dtype, v * d), new(&g, dtype, v));
        let (ids, gy) = (new(&g, DType::I64, n), new(&g, DType::F32, 1));
        let used = scratch(&g, || {
            let io =
                LinearCrossEntropyBwd::new(gy.view(), h.shaped(&[n, d])?, w.shaped(&[v, d])?, ids.view())
                    .b(b.view())
                    .dh(dh.alias_mut().reshape(&[n, d])?)
                    .dw(dw.alias_mut().reshape(&[v, d])?)
                    .db(db.alias_mut());
            g.fused_linear_cross_entropy_bwd(&LinearCrossEntropy::new().chunk(rows), io)
        });
        // Logits, their gradient, the gradients of 16-bit parameters in f32, and what products that are cut along k need for the bias.
        let limit = rounded(2 * rows * v * 4 + v * (d + 1) * 4) + 64 * v + n * 64;
        assert!(used < limit && limit < n * v, "{dtype}: {used} bytes, at most {limit}");
    }
}

#[test]
fn attention_needs_a_number_per_query() {
    let (s, lse) = ([1, 2, 4096, 16], [1, 2, 4096]);
    let (n, rows) = (s.iter().product(), lse.iter().product::<usize>());
    let g = engine();
    let (q, k, v, o) =
        (new(&g, DType::F32, n), new(&g, DType::F32, n), new(&g, DType::F32, n), new(&g, DType::F32, n));
    let (l, up) = (new(&g, DType::F32, rows), new(&g, DType::F32, n));
    let (dq, dk, dv) = (new(&g, DType::F32, n), new(&g, DType::F32, n), new(&g, DType::F32, n));
    let used = scratch(&g, || {
        let mut io =
            AttentionIo::new(q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?, o.alias_mut().reshape(&s)?);
        io.lse = Some(l.alias_mut().reshape(&lse)?);
        g.attention(&Attention::new(), io)?;
        let io = AttentionBwd::new(
            up.shaped(&s)?,
            q.shaped(&s)?,
            k.shaped(&s)?,
            v.shaped(&s)?,
            o.shaped(&s)?,
            l.shaped(&lse)?,
        )
        .dq(dq.alias_mut().reshape(&s)?)
        .dk(dk.alias_mut().reshape(&s)?)
        .dv(dv.alias_mut().reshape(&s)?);
        g.attention_bwd(&Attention::new(), io)
    });
    assert!(used <= rounded(rows * 4) + 4096, "{used} bytes for {rows} queries");
}

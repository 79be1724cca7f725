//! Recordings of the CPU backend: calls that are left out, shared memory, variants.

use std::sync::Arc;

use crate::bytes;
use trefoil::ops::elementwise::Unary;
use trefoil::ops::softmax::Softmax;
use trefoil::prelude::*;
use trefoil::{BackendExt, CpuBackend, DType, IGpuBackend};

#[test]
fn on_the_cpu_unread_calls_are_left_out_and_dropped_buffers_share_memory() {
    const N: usize = 1000;
    let g: Arc<dyn IGpuBackend> = Arc::new(CpuBackend::new());
    let (x, y) = (g.upload(&[0.5f32; N]).unwrap(), g.zeros(DType::F32, N).unwrap());
    let chain = |g: &Arc<dyn IGpuBackend>| {
        let mut last = g.alloc(DType::F32, N)?;
        g.unary(Unary::Neg, x.view(), last.alias_mut())?;
        for _ in 0..10 {
            let next = g.alloc(DType::F32, N)?;
            g.unary(Unary::Neg, last.view(), next.alias_mut())?;
            // Two calls whose results nobody reads.
            let unread = g.alloc(DType::F32, N)?;
            g.fill(1.0, unread.alias_mut())?;
            g.unary(Unary::Exp, next.view(), unread.alias_mut())?;
            last = next;
        }
        g.copy(last.view(), y.alias_mut())
    };
    let base = g.memory().in_use;
    let (graph, ()) = g.capture(chain).unwrap();
    let info = graph.info();
    assert_eq!((info.recorded, info.unread, info.launches, info.copies), (32, 20, 11, 1));
    assert_eq!((info.fused, info.calls.len()), (0, 12));
    // Two blocks of 4000 bytes, in steps of 512, take turns.
    assert_eq!(info.bytes, 2 * 4096);
    assert_eq!(g.memory().in_use, base + info.bytes);
    graph.replay().unwrap();
    assert_eq!(g.download::<f32>(y.view()).unwrap(), [-0.5; N]);
    drop(graph);
    assert_eq!(g.memory().in_use, base);
    g.pin_variant("capture_calls", Some("plain")).unwrap();
    let (plain, ()) = g.capture(chain).unwrap();
    assert_eq!((plain.info().unread, plain.info().calls.len(), plain.info().bytes), (0, 32, 21 * 4096));
    // A buffer that is there at the end is written, and stays where it is.
    g.pin_variant("capture_calls", None).unwrap();
    let kept = g.capture(|g| {
        let kept = g.alloc(DType::F32, N)?;
        g.fill(2.0, kept.alias_mut())?;
        chain(g)?;
        Ok(kept)
    });
    let (graph, kept) = kept.unwrap();
    graph.replay().unwrap();
    assert_eq!(g.download::<f32>(kept.view()).unwrap(), [2.0; N]);
}

#[test]
fn a_replay_on_the_cpu_runs_the_variants_of_its_recording() {
    const N: usize = 4096;
    let g: Arc<dyn IGpuBackend> = Arc::new(CpuBackend::new());
    let wave: Vec<f32> = (0..N).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let (x, y) = (g.upload(&wave).unwrap(), g.zeros(DType::F32, N).unwrap());
    let softmax = || g.softmax(Softmax::Softmax, 0, x.view(), y.alias_mut());
    let results: Vec<_> = ["reference", "vectorized"]
        .map(|variant| {
            g.pin_variant("softmax", Some(variant)).unwrap();
            softmax().unwrap();
            let want = bytes(&g, &y);
            let (graph, ()) = g.capture(|_| softmax()).unwrap();
            g.pin_variant("softmax", None).unwrap();
            graph.replay().unwrap();
            assert!(bytes(&g, &y) == want, "{variant}");
            want
        })
        .to_vec();
    assert!(results[0] != results[1], "the variants differ, so that the comparison means something");
}

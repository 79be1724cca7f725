//! Memory, streams and the choice of variants shared with other libraries, on every backend that is there.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::backends;
use trefoil::ops::elementwise::Unary;
use trefoil::ops::softmax::Softmax;
use trefoil::{BackendExt, DType, GpuError, IGpuBackend};

/// Counts how often it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn exported_memory_is_imported_without_a_copy() {
    for gpu in backends() {
        let mut x = gpu.upload(&[1f32, 2.0, 3.0, 4.0]).unwrap();
        let raw = gpu.export(x.view().range(1, 3).unwrap()).unwrap();
        assert_eq!(raw.offset, 4, "{}", gpu.id());
        if gpu.caps().is_cpu && gpu.raw_stream().is_err() {
            // SAFETY: refused, so that the memory is not used.
            let refused = unsafe { gpu.import(raw.memory, DType::F32, 4, None) };
            assert!(matches!(refused, Err(GpuError::Unsupported { .. })), "{refused:?}");
            continue;
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let owner = Box::new(Counted(drops.clone()));
        // SAFETY: the memory is that of `x`, which outlives the buffer, on the same stream.
        let mut same = unsafe { gpu.import(raw.memory, DType::F32, 4, Some(owner)) }.unwrap();
        gpu.write(same.view_mut(), &[5f32, 6.0, 7.0, 8.0]).unwrap();
        assert_eq!(gpu.download::<f32>(x.view()).unwrap(), [5.0, 6.0, 7.0, 8.0]);
        drop(same);
        assert_eq!(drops.load(Ordering::Relaxed), 0, "queued work may still use the memory");
        gpu.synchronize().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        gpu.write(x.view_mut(), &[0f32; 4]).unwrap();
        // SAFETY: refused for its length.
        let refused = unsafe { gpu.import(raw.memory, DType::F32, 1 << 60, None) };
        assert!(matches!(refused, Err(GpuError::Invalid(_))), "{refused:?}");
    }
}

#[test]
fn a_handle_works_on_a_stream_of_somebody_else() {
    for gpu in backends() {
        let other = gpu.fork_stream().unwrap();
        let Ok(stream) = other.raw_stream() else {
            assert!(gpu.caps().is_cpu);
            continue;
        };
        // SAFETY: `other` keeps the stream alive beyond the handle and its buffers.
        let guest = unsafe { gpu.adopt_stream(stream) }.unwrap();
        let x = guest.upload(&vec![2f32; 1000]).unwrap();
        let mut y = guest.alloc(DType::F32, 1000).unwrap();
        guest.unary(Unary::Exp, x.view(), y.view_mut()).unwrap();
        // Work of both handles is in one order; the buffers belong to the guest.
        let want = 2f32.exp();
        assert!(guest.download::<f32>(y.view()).unwrap().iter().all(|v| (v - want).abs() < 1e-5 * want));
        drop((x, y, guest));
        let z = other.upload(&[1f32]).unwrap();
        assert_eq!(other.download::<f32>(z.view()).unwrap(), [1.0], "the stream outlives the guest");
    }
}

/// Softmax of rows, through the variant that is pinned or best; the names of those that ran.
fn softmax(gpu: &dyn IGpuBackend, rows: usize, cols: usize) -> trefoil::Result<(Vec<f32>, Vec<String>)> {
    let data: Vec<f32> = (0..rows * cols).map(|i| (i * 37 % 101) as f32 * 0.1).collect();
    let x = gpu.upload(&data)?;
    let mut y = gpu.alloc(DType::F32, rows * cols)?;
    let shape = [rows, cols];
    let choices = gpu
        .explain_calls(&mut || gpu.softmax(Softmax::Softmax, 1, x.shaped(&shape)?, y.shaped_mut(&shape)?))?;
    let names = choices.into_iter().filter(|c| c.op == "softmax").map(|c| c.chosen).collect();
    Ok((gpu.download(y.view())?, names))
}

#[test]
fn every_variant_of_softmax_can_be_pinned_and_says_what_it_is() {
    for gpu in backends() {
        let gpu = &*gpu;
        let (want, best) = softmax(gpu, 3, 5000).unwrap();
        let known = gpu.explain("softmax").unwrap();
        let names = || std::iter::once(&known.chosen).chain(known.rejected.iter().map(|(n, _)| n));
        let mut ran = 0;
        for name in names() {
            gpu.pin_variant("softmax", Some(name)).unwrap();
            match softmax(gpu, 3, 5000) {
                Ok((got, chosen)) => {
                    assert!(chosen.iter().all(|c| c == name), "{chosen:?} instead of {name}");
                    let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() + 1e-9);
                    assert!(near, "{}: {name}", gpu.id());
                    ran += 1;
                }
                Err(GpuError::Unsupported { why, .. }) => assert!(why.contains(name.as_str()), "{why}"),
                Err(e) => panic!("{}: {name}: {e}", gpu.id()),
            }
        }
        gpu.pin_variant("softmax", None).unwrap();
        assert_eq!(softmax(gpu, 3, 5000).unwrap().1, best);
        assert!(ran > usize::from(!best.is_empty()), "{}: {ran} variants ran", gpu.id());
        let e = gpu.pin_variant("softmax", Some("none")).unwrap_err().to_string();
        assert!(e.contains("none") && e.contains("softmax"), "{e}");
        assert!(gpu.pin_variant("nothing", None).is_err());
    }
}

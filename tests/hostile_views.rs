//! Layouts and views whose numbers would wrap around: they are refused with a reason, on every backend, and nothing outside the storage is touched.

mod common;

use common::backends;
use trefoil::ops::core::CoreOps;
use trefoil::ops::shape::ShapeOps;
use trefoil::{BackendExt, DType, GpuError, Layout, LayoutError, MAX_ELEMENTS};

const HUGE: [usize; 8] =
    [1 << 31, 1 << 32, MAX_ELEMENTS - 1, MAX_ELEMENTS, 1 << 61, 1 << 63, usize::MAX - 63, usize::MAX];

fn refused<T>(r: Result<T, LayoutError>) -> bool {
    matches!(r, Err(LayoutError::TooLarge))
}

#[test]
fn layouts_that_would_wrap_are_refused() {
    assert!(refused(Layout::strided(&[9], &[1 << 61], 0)));
    assert!(refused(Layout::strided(&[3], &[1 << 63], 0)));
    assert!(refused(Layout::strided(&[1], &[usize::MAX], 0)));
    assert!(refused(Layout::strided(&[2, 2], &[MAX_ELEMENTS - 1, 1], 0)));
    assert!(refused(Layout::contiguous(&[1 << 30, 0, 1 << 30])));
    let one = Layout::contiguous(&[1]).unwrap();
    assert!(refused(one.broadcast_to(&[1 << 32, 1 << 32])));
    assert!(refused(one.broadcast_to(&[1 << 32, 1 << 32, 0])));
    for n in HUGE {
        assert_eq!(one.shifted(n).is_err(), n >= MAX_ELEMENTS, "{n}");
        assert_eq!(Layout::contiguous(&[n]).is_err(), n >= MAX_ELEMENTS, "{n}");
        assert!(
            one.narrow(0, n, n).is_err() && one.slice(0, n, 1, n).is_err() && one.unfold(0, n, n).is_err()
        );
        assert!(
            one.slice(0, 0, 1, n).is_ok_and(|l| l.numel() == 1),
            "a step beyond the axis takes its first element"
        );
        assert!(one.unfold(0, 1, n).is_ok_and(|l| l.shape() == [1, 1]));
        assert!(one.select(n, 0).is_err() && one.unsqueeze(n).is_err() && one.squeeze(n).is_err());
    }
    assert!(refused(one.shifted(MAX_ELEMENTS - 1).unwrap().shifted(1)));
    // Strides of axes that have one element are of no effect, also after more transformations.
    let far = Layout::strided(&[2, 1], &[1, MAX_ELEMENTS - 1], 0).unwrap();
    let stepped = far.slice(1, 0, 1, usize::MAX).and_then(|l| l.unsqueeze(1)).unwrap();
    assert_eq!((stepped.shape(), stepped.span()), (&[2, 1, 1][..], 0..2));
    assert!(one.diagonal(isize::MIN, 0, 0).is_err());
    // What matters of a repeated element is its own place.
    let last = Layout::strided(&[2, 3], &[0, 0], MAX_ELEMENTS - 1).unwrap();
    assert_eq!(last.reshape(&[3, 1, 2]).map(|l| l.span()), Ok(MAX_ELEMENTS - 1..MAX_ELEMENTS));
    let m = Layout::contiguous(&[3, 4]).unwrap();
    for k in [isize::MIN, isize::MAX, -3, 4] {
        assert_eq!(m.diagonal(k, 0, 1).map(|l| l.span()), Ok(0..0), "{k}");
    }
}

#[test]
fn no_view_leaves_its_storage() {
    for gpu in backends() {
        let b = gpu.upload(&[1.0f32; 64]).unwrap();
        for start in HUGE.into_iter().chain([0, 1, 63, 64, 65]) {
            for len in HUGE.into_iter().chain([0, 1, 64, 65]) {
                let inside = start <= 64 && len <= 64 && start + len <= 64;
                match b.view().range(start, len) {
                    Ok(v) => assert!(inside && v.layout().span().end <= 64, "{}: {start} {len}", gpu.id()),
                    Err(e) => assert!(!inside && matches!(e, GpuError::Invalid(_)), "{}: {e}", gpu.id()),
                }
            }
        }
        let outside = Layout::strided(&[9], &[8], 0).unwrap();
        let e = b.view().with_layout(outside).unwrap_err();
        assert!(e.to_string().contains("64 elements") && e.to_string().contains("65"), "{e}");
        let e = b.view().range(1, 1).and_then(|v| v.broadcast_to(&[1 << 32, 1 << 32])).unwrap_err();
        assert!(e.to_string().contains("2^59"), "{e}");
    }
}

#[test]
fn a_fill_stays_inside_its_view() {
    for gpu in backends() {
        let mut b = gpu.upload(&[1.0f32; 64]).unwrap();
        assert!(b.view_mut().range(usize::MAX - 63, 65).is_err());
        gpu.fill(7.0, b.view_mut().range(60, 4).unwrap()).unwrap();
        let (head, tail) = b.view_mut().range(8, 8).unwrap().split_at(8).unwrap();
        assert_eq!((head.numel(), tail.numel()), (8, 0));
        assert!(b.view_mut().split_at(usize::MAX).is_err());
        let values = gpu.download::<f32>(b.view()).unwrap();
        assert!(values[..60].iter().all(|&x| x == 1.0) && values[60..] == [7.0; 4], "{}", gpu.id());
    }
}

#[test]
fn requests_beyond_the_memory_are_errors_with_the_amount() {
    for gpu in backends() {
        for len in HUGE {
            match gpu.alloc(DType::F64, len) {
                Err(GpuError::OutOfMemory { requested, .. }) => {
                    assert!(len < MAX_ELEMENTS && requested >= len * 8, "{}: {len}", gpu.id());
                }
                Err(GpuError::Invalid(e)) => {
                    assert!(len >= MAX_ELEMENTS && e.arg == "len", "{}: {e}", gpu.id())
                }
                // A large device has room for the smallest.
                Ok(b) => assert!(len <= 1 << 32 && gpu.caps().memory_bytes >= 8 * b.len() as u64),
                Err(e) => panic!("{}: {len}: {e}", gpu.id()),
            }
        }
        assert!(
            gpu.alloc(DType::F32, 16).is_ok(),
            "{}: a refused request leaves the handle as it was",
            gpu.id()
        );
    }
}

#[test]
fn views_that_meet_themselves_are_compared_in_bounded_time() {
    for gpu in backends() {
        let b = gpu.upload(&[0.0f32; 9000]).unwrap();
        let steps = Layout::strided(&[1000; 4], &[2; 4], 0).unwrap();
        let x = b.view().with_layout(steps).unwrap();
        let out = b.alias_mut().with_layout(steps.shifted(1).unwrap()).unwrap();
        let e = gpu.strided_copy(x, out.into()).unwrap_err();
        assert!(matches!(e, GpuError::Invalid(_)), "{}: {e}", gpu.id());
    }
}

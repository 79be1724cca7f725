//! Operands that lie across the result, on an OpenCL device: copies in its order give the bits that reads of single elements give.

use crate::buffer::{Buffer, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::core::*;
use crate::ops::elementwise::*;
use crate::test_devices::present;

const SHAPE: [usize; 2] = [70, 33];
const COUNT: usize = SHAPE[0] * SHAPE[1];

fn filled(gpu: &Engine, n: usize, seed: u64) -> Buffer {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 8388608.0 - 1.0
    };
    let bytes: Vec<u8> = (0..n).flat_map(|_| next().to_le_bytes()).collect();
    let mut buffer = gpu.alloc(DType::F32, n).unwrap();
    gpu.write_bytes(buffer.view_mut(), &bytes).unwrap();
    buffer
}

/// The numbers as columns of the shape, one column after the other.
fn across(b: &Buffer) -> View<'_> {
    b.view().with_layout(Layout::strided(&SHAPE, &[1, SHAPE[0]], 0).unwrap()).unwrap()
}

/// What a call writes with a variant of an operation.
fn written(
    gpu: &Engine,
    op: &str,
    variant: &str,
    call: &dyn Fn(&Engine, &mut Buffer) -> Result<()>,
) -> Vec<u8> {
    let mut y = filled(gpu, COUNT, 7);
    gpu.pin_variant(op, Some(variant)).unwrap();
    call(gpu, &mut y).unwrap();
    gpu.pin_variant(op, None).unwrap();
    let mut bytes = vec![0; COUNT * 4];
    gpu.read_bytes(y.view(), &mut bytes).unwrap();
    bytes
}

#[test]
fn packed_operands_give_the_same_bits() {
    let opened = crate::driver::opencl_open(0).and_then(Engine::new);
    let Some(gpu) = present("opencl", opened) else { return };
    let (a, b, row) = (filled(&gpu, COUNT, 1), filled(&gpu, COUNT, 2), filled(&gpu, SHAPE[1], 3));
    let same = |op: &str, call: &dyn Fn(&Engine, &mut Buffer) -> Result<()>| {
        let [packed, strided] = ["packed", "strided"].map(|variant| written(&gpu, op, variant, call));
        assert!(packed == strided, "{op}");
    };
    let add = Binary::Add { alpha: 1.0 };
    same("unary", &|g, y| g.unary(Unary::Neg, across(&a), y.shaped_mut(&SHAPE)?));
    same("unary_bwd", &|g, y| {
        g.unary_bwd(Unary::Square, across(&a), b.shaped(&SHAPE)?, y.shaped_mut(&SHAPE)?.accumulate())
    });
    same("unary_bwd", &|g, y| {
        g.unary_bwd(Unary::Square, across(&a), across(&b), y.shaped_mut(&SHAPE)?.into())
    });
    same("binary", &|g, y| g.binary(add, across(&a), across(&b), y.shaped_mut(&SHAPE)?));
    // An operand that is repeated along rows stays as it is.
    same("binary", &|g, y| g.binary(add, row.view(), across(&b), y.shaped_mut(&SHAPE)?));
    // A result that lies like the operand has nothing to pack.
    let mut y = filled(&gpu, COUNT, 7);
    gpu.pin_variant("unary", Some("packed")).unwrap();
    let layout = Layout::strided(&SHAPE, &[1, SHAPE[0]], 0).unwrap();
    let result = gpu.unary(Unary::Neg, across(&a), y.view_mut().with_layout(layout).unwrap());
    assert!(result.is_err_and(|e| e.to_string().contains("lies across")));
}

//! Plans of problems on devices of several kinds.

use super::conv::{ConvPlan, ConvProblem};
use super::few::{FewTile, Span};
use super::matrix::{Fold, MatrixTile};
use super::weight::{WeightPlan, WeightProblem};
use super::*;
use crate::device::MatrixCores;
use crate::dtype::DType;
use crate::engine::geometry::tests::{chosen, cpu, gpu};
use crate::engine::plan::Problem;

/// 3 x 3 taps over images of that side, the size kept.
fn shape(n: usize, [ci, co, groups]: [usize; 3], side: usize) -> ConvShape {
    ConvShape {
        n,
        groups,
        ci,
        co,
        input: [1, side, side],
        output: [1, side, side],
        kernel: [1, 3, 3],
        stride: [1; 3],
        pad: [0, 1, 1],
        dilation: [1; 3],
    }
}

const NONE: Library<'static> = Library::unasked("no vendor library was found");

const TAKEN: Library<'static> = Library { variant: MIOPEN, answer: Ok(()) };

fn conv(s: ConvShape) -> ConvProblem<'static> {
    ConvProblem { s, back: false, dtype: DType::F32, last: false, tf32: false, vendor: NONE }
}

fn weight(s: ConvShape) -> WeightProblem<'static> {
    WeightProblem { s, dtype: DType::F32, last: false, tf32: false, vendor: NONE }
}

fn hopper() -> Caps {
    let matrix_cores = Some(MatrixCores::Ptx);
    Caps { matrix_cores, warp_groups: true, compute_units: 132, shared_bytes: 227 << 10, ..gpu() }
}

#[test]
fn tiles_fill_the_device() {
    let (gpu, cpu) = (gpu(), cpu());
    let tiles = |tile, parts| Ok(ConvPlan::Tiles { tile, parts });
    let p = conv(shape(32, [128, 128, 1], 56));
    assert_eq!(p.plan(AUTO, &gpu), tiles(Tile::Square128, 1));
    assert_eq!(p.plan(AUTO, &cpu), tiles(Tile::Square64, 1));
    assert_eq!(conv(shape(32, [64, 64, 1], 56)).plan(AUTO, &gpu), tiles(Tile::Wide64, 1));
    assert_eq!(conv(shape(32, [64, 16, 1], 56)).plan(AUTO, &gpu), tiles(Tile::Wide16, 1));
    // Few blocks and long sums: k is split.
    assert_eq!(conv(shape(1, [512, 512, 1], 7)).plan(AUTO, &gpu), tiles(Tile::Square64, 32));
    let double = ConvProblem { dtype: DType::F64, ..p };
    assert_eq!(double.plan(AUTO, &gpu), tiles(Tile::Square64, 1));
    assert!(double.plan(TILE_128, &gpu).is_err_and(|e| e.contains("f64")));
}

#[test]
fn strided_adjoints_run_on_matrix_cores_unless_their_phases_are_many() {
    let hopper = hopper();
    let half = |s| ConvProblem { dtype: DType::Bf16, back: true, ..conv(s) };
    // Images of three channels: few rows, but long sums.
    let images =
        ConvShape { kernel: [1, 7, 7], stride: [1, 2, 2], output: [1, 28, 28], ..shape(8, [3, 64, 1], 56) };
    assert!(half(images).prefers(MATRIX, &hopper));
    assert!(!half(ConvShape { stride: [1; 3], ..images }).prefers(MATRIX, &hopper));
    assert!(half(images).plan(MATRIX, &hopper).is_ok());
    let far = ConvShape { stride: [1, 65, 65], output: [1, 1, 1], ..images };
    assert!(half(far).plan(MATRIX, &hopper).is_err_and(|e| e.contains("phases")));
}

#[test]
fn full_tiles_of_f32_are_six_products_in_bf16_unless_tf32_will_do() {
    let hopper = hopper();
    let cudnn = Library { variant: CUDNN, answer: Ok(()) };
    let p = ConvProblem { vendor: cudnn, ..conv(shape(64, [64, 64, 1], 56)) };
    let parts = Ok(ConvPlan::Matrix { tile: MatrixTile::Bf16x6, runs: [1, 0] });
    assert_eq!((chosen(&p, &hopper), p.plan(BF16X6, &hopper)), ("bf16x6", parts.clone()));
    assert_eq!(p.own(&hopper), Some(FASTER_ON_MATRIX_CORES));
    // 24 tiles of 64 rows and 128 columns in all: a run for each five or so multiprocessors.
    let w = WeightProblem { vendor: cudnn, ..weight(p.s) };
    let tile = MatrixTile::Bf16x6;
    assert_eq!(w.plan(BF16X6, &hopper), Ok(WeightPlan::Matrix { tile, splits: 26, per: 7744 }));
    assert_eq!((chosen(&w, &hopper), w.own(&hopper)), ("bf16x6", Some(FASTER_ON_MATRIX_CORES)));
    // TF32 by the library is faster, where it may be.
    let rounded = ConvProblem { tf32: true, ..p };
    assert_eq!((chosen(&rounded, &hopper), rounded.own(&hopper)), ("cudnn", None));
    assert_eq!(chosen(&ConvProblem { vendor: NONE, ..rounded }, &hopper), "bf16x6");
    // Three channels of images fill three of eight, and the taps of seven by seven not all of their stages.
    let images = ConvShape { kernel: [1, 7, 7], pad: [0, 3, 3], ..shape(64, [3, 64, 1], 112) };
    assert_eq!(chosen(&ConvProblem { s: images, ..p }, &hopper), "cudnn");
    assert_eq!(chosen(&conv(images), &hopper), "bf16x6");
    // With a stride of two their places are folded: 28 taps of eight channels in place of 49. The gradient of their weights is worth it anyhow.
    let strided = ConvShape { stride: [1, 2, 2], output: [1, 56, 56], ..images };
    assert_eq!(chosen(&ConvProblem { s: strided, ..p }, &hopper), "bf16x6");
    let folded = Fold::of(&strided).unwrap();
    assert_eq!((folded.code, folded.s.kernel, folded.s.pad), (2, [1, 7, 4], [0, 3, 2]));
    assert_eq!((folded.s.input, folded.s.stride, folded.s.ci), ([1, 112, 56], [1, 2, 1], 8));
    assert_eq!(Fold::of(&ConvShape { input: [1, 112, 111], ..strided }), None);
    assert_eq!(chosen(&WeightProblem { s: strided, ..w }, &hopper), "bf16x6");
    // Their gradient has three rows.
    let adjoint = ConvProblem { s: strided, back: true, ..p };
    assert_eq!((chosen(&adjoint, &hopper), chosen(&adjoint, &gpu())), ("few_channels", "few_channels"));
    assert_eq!(chosen(&ConvProblem { tf32: true, ..adjoint }, &hopper), "cudnn");
    let more = ConvProblem { s: ConvShape { ci: 5, ..strided }, ..adjoint };
    assert_eq!((chosen(&more, &hopper), more.own(&hopper)), ("columns", Some(FEW_ROWS)));
    let half = ConvProblem { dtype: DType::F16, ..adjoint };
    assert!(half.plan(COLUMNS, &hopper).is_err_and(|why| why.contains("rounded")));
    assert!(p.plan(COLUMNS, &hopper).is_err_and(|why| why.contains("no adjoint")));
    let refused = |p: ConvProblem<'_>, caps: &Caps| p.plan(BF16X6, caps).unwrap_err().to_string();
    assert!(refused(ConvProblem { dtype: DType::F16, ..p }, &hopper).contains("not f32"));
    assert!(refused(conv(shape(8, [64, 64, 4], 56)), &hopper).contains("groups"));
    assert!(refused(p, &gpu()).contains("groups of warps"));
    assert!(refused(p, &Caps { shared_bytes: 163 << 10, ..hopper }).contains("221184 bytes"));
}

#[test]
fn sums_of_small_maps_are_split_so_that_all_units_have_a_run() {
    let hopper = hopper();
    let cudnn = Library { variant: CUDNN, answer: Ok(()) };
    let tile = MatrixTile::Bf16x6;
    // 32 tiles of 36 stages.
    let p = ConvProblem { vendor: cudnn, ..conv(shape(256, [256, 256, 1], 2)) };
    let runs = |runs| Ok(ConvPlan::Matrix { tile, runs });
    assert_eq!((chosen(&p, &hopper), p.plan(BF16X6, &hopper)), ("bf16x6", runs([4, 9])));
    let adjoint = ConvProblem { back: true, ..p };
    assert_eq!((chosen(&adjoint, &hopper), adjoint.plan(BF16X6, &hopper)), ("bf16x6", runs([4, 9])));
    // Four phases of eight tiles, of which one has four of the nine taps, 16 stages.
    let strided = ConvShape { stride: [1, 2, 2], input: [1, 4, 4], ..p.s };
    let strided = ConvProblem { s: ConvShape { n: 64, ..strided }, ..adjoint };
    assert_eq!(strided.plan(BF16X6, &hopper), runs([4, 4]));
    // One tap: sums of eight stages in two runs leave most units idle.
    let one = ConvShape { kernel: [1; 3], pad: [0; 3], stride: [1, 2, 2], ..shape(256, [512, 512, 1], 2) };
    let one = ConvProblem { s: ConvShape { output: [1; 3], ..one }, ..p };
    assert_eq!((chosen(&one, &hopper), one.plan(BF16X6, &hopper)), ("cudnn", runs([2, 4])));
    // The gradient of few weights over some thousand places; TF32 by the library is as fast.
    let s = ConvShape { kernel: [1; 3], pad: [0; 3], stride: [1, 2, 2], ..shape(256, [64, 128, 1], 8) };
    let w = WeightProblem { vendor: cudnn, ..weight(ConvShape { output: [1, 4, 4], ..s }) };
    let plan = WeightPlan::Matrix { tile, splits: 16, per: 256 };
    assert_eq!((chosen(&w, &hopper), w.plan(BF16X6, &hopper)), ("bf16x6", Ok(plan)));
    assert_eq!(chosen(&WeightProblem { tf32: true, ..w }, &hopper), "cudnn");
}

#[test]
fn images_of_one_place_are_the_rows_of_a_matrix() {
    let gpu = gpu();
    let one = ConvShape { kernel: [1; 3], pad: [0; 3], ..shape(8, [64, 32, 1], 1) };
    assert_eq!((conv(one).plan(AUTO, &gpu), conv(one).own(&gpu)), (Ok(ConvPlan::Pointwise), Some(POINTWISE)));
    let w = weight(one);
    assert_eq!((w.plan(AUTO, &gpu), w.own(&gpu)), (Ok(WeightPlan::Pointwise), Some(POINTWISE)));
    assert!(matches!(w.convolution(&gpu), WeightPlan::Tiles { .. }));
}

#[test]
fn adjoints_of_few_channels_have_tiles_of_places() {
    let gpu = gpu();
    let images = ConvShape {
        kernel: [1, 7, 7],
        pad: [0, 3, 3],
        stride: [1, 2, 2],
        output: [1, 112, 112],
        ..shape(64, [3, 64, 1], 224)
    };
    let p = ConvProblem { back: true, ..conv(images) };
    let span = Span { count: 4, ahead: 2 };
    let tile = FewTile { quads: 28, rows: 9, across: 1, down: 13, high: span, wide: span, keep: 3 };
    assert_eq!((p.plan(FEW, &gpu), tile.weights()), (Ok(ConvPlan::Few(tile)), 192));
    // The last row of a window has no tap for the first of two rows of outputs.
    assert_eq!(tile.taps(&images), 0b1011_1111);
    let refused = |s: ConvShape| ConvProblem { s, ..p }.plan(FEW, &gpu).unwrap_err().to_string();
    assert!(refused(ConvShape { ci: 5, ..images }).contains("more than 4 channels"));
    assert!(refused(ConvShape { stride: [1, 2, 1], ..images }).contains("strides"));
    assert!(refused(ConvShape { dilation: [1, 2, 1], ..images }).contains("dilated"));
    assert!(refused(ConvShape { kernel: [1, 7, 9], ..images }).contains("windows are too large"));
    assert!(refused(ConvShape { n: 0, ..images }).contains("extent"));
    assert!(ConvProblem { dtype: DType::F64, ..p }.plan(FEW, &gpu).is_err_and(|e| e.contains("f64")));
    assert!(conv(images).plan(FEW, &gpu).is_err_and(|e| e.contains("no adjoint")));
    // Wide maps have several tiles on a row, all within local memory.
    for (side, taps) in [(16, 3), (1000, 7), (4001, 15), (7, 2)] {
        let s = ConvShape { input: [1, 9, side], kernel: [1, taps, 3], pad: [0, 1, 1], ..images };
        let t = FewTile::of(&s).unwrap();
        assert!((t.quads + 2) * (t.rows + t.high.count - 1) <= 512 && t.quads * t.rows <= 256, "{t:?}");
        assert!(t.quads * t.across * 8 >= side && t.rows * t.down * 2 >= 9, "{t:?}");
    }
}

#[test]
fn special_shapes_have_kernels_of_their_own() {
    let gpu = gpu();
    let s = shape(8, [64, 64, 64], 56);
    assert_eq!(
        conv(s).plan(AUTO, &gpu),
        Ok(ConvPlan::Depthwise(Depthwise { side: 3, stride: 1, quads: 14, strips: 28 }))
    );
    let large = ConvShape { kernel: [1, 5, 5], pad: [0, 2, 2], ..s };
    assert_eq!(
        conv(large).plan(AUTO, &gpu),
        Ok(ConvPlan::Depthwise(Depthwise { side: 5, stride: 1, quads: 14, strips: 14 }))
    );
    let wide = ConvShape { kernel: [1, 3, 5], pad: [0, 1, 2], ..s };
    assert_eq!(conv(wide).plan(AUTO, &gpu), Ok(ConvPlan::Strips));
    let stepped = ConvShape { stride: [1, 3, 3], output: [1, 19, 19], ..s };
    assert_eq!(conv(stepped).plan(AUTO, &gpu), Ok(ConvPlan::Direct));
    let one = ConvShape { kernel: [1; 3], pad: [0; 3], ..shape(8, [64, 64, 1], 56) };
    assert_eq!(conv(one).plan(AUTO, &gpu), Ok(ConvPlan::Pointwise));
    let none = shape(8, [0, 64, 1], 56);
    assert_eq!(conv(none).plan(TILE_64, &gpu), Ok(ConvPlan::Direct));
}

#[test]
fn depthwise_convolutions_that_halve_maps_have_kernels_of_their_own() {
    let gpu = gpu();
    let s = ConvShape { stride: [1, 2, 2], output: [1, 28, 28], ..shape(8, [64, 64, 64], 56) };
    let items = |side, quads, strips| Depthwise { side, stride: 2, quads, strips };
    let plan = |s: ConvShape| [false, true].map(|back| ConvProblem { back, ..conv(s) }.plan(AUTO, &gpu));
    let both = |d| [Ok(ConvPlan::Depthwise(d)), Ok(ConvPlan::Depthwise(d))];
    assert_eq!(plan(s), both(items(3, 14, 7)));
    let large = ConvShape { kernel: [1, 5, 5], pad: [0, 2, 2], ..s };
    assert_eq!(plan(large), both(items(5, 14, 7)));
    assert_eq!(conv(large).plan(VARIANTS.len() - 1, &gpu), Ok(ConvPlan::Depthwise(items(5, 14, 7))));
    // Of two columns or rows the smaller map has the one with an even number.
    let odd = ConvShape { input: [1, 57, 55], output: [1, 29, 28], ..s };
    assert_eq!(plan(odd), both(items(3, 14, 8)));
    // Two channels per group: of a gradient two maps are added up.
    let two = ConvShape { co: 128, ..s };
    assert_eq!(plan(two), [Ok(ConvPlan::Depthwise(items(3, 14, 7))), Ok(ConvPlan::Direct)]);
    let direct = [Ok(ConvPlan::Direct), Ok(ConvPlan::Direct)];
    for other in [
        ConvShape { pad: [0, 2, 2], output: [1, 29, 29], ..s },
        ConvShape { dilation: [1, 2, 2], ..s },
        ConvShape { kernel: [1, 7, 7], pad: [0, 3, 3], ..s },
        ConvShape { stride: [1, 2, 1], output: [1, 28, 56], ..s },
        // More items than 32 bits count.
        ConvShape { n: 1 << 20, ..s },
    ] {
        assert_eq!(plan(other), direct, "{other:?}");
    }
    // 8 images with 98 items for each channel; the 64 channels alone leave most of the units idle.
    let depthwise = |s| weight(s).plan(AUTO, &gpu).unwrap();
    let WeightPlan::Depthwise { items: found, splits, per } = depthwise(s) else { panic!("no depthwise") };
    assert_eq!((found, splits, per), (items(3, 14, 7), 2, 512));
    assert!(matches!(depthwise(two), WeightPlan::Depthwise { .. }));
    assert!(matches!(depthwise(ConvShape { dilation: [1, 2, 2], ..s }), WeightPlan::Direct { .. }));
}

#[test]
fn the_vendor_library_comes_first_but_for_few_channels_and_single_taps() {
    let gpu = gpu();
    let p = conv(shape(32, [64, 64, 1], 56));
    assert!(p.plan(CUDNN, &gpu).is_err_and(|why| why.contains("no vendor library was found")));
    for (own, other, name) in [(CUDNN, MIOPEN, "cudnn"), (MIOPEN, CUDNN, "miopen")] {
        let taken = ConvProblem { vendor: Library { variant: own, answer: Ok(()) }, ..p };
        assert_eq!((chosen(&taken, &gpu), taken.plan(own, &gpu)), (name, Ok(ConvPlan::Vendor)));
        assert!(taken.plan(other, &gpu).is_err_and(|why| why.contains("has another")));
    }
    assert_eq!(p.own(&gpu), None);
    let one = ConvShape { kernel: [1; 3], pad: [0; 3], ..shape(8, [64, 64, 1], 56) };
    assert_eq!(conv(one).own(&gpu), Some(POINTWISE));
    assert_eq!(conv(shape(8, [64, 64, 64], 56)).own(&gpu), Some(FEW_CHANNELS));
    assert_eq!(conv(shape(8, [64, 64, 4], 56)).own(&gpu), None);
    let weight = |s| WeightProblem { vendor: TAKEN, ..weight(s) };
    assert_eq!(weight(one).plan(MIOPEN, &gpu), Ok(WeightPlan::Vendor));
    assert!(weight(one).plan(CUDNN, &gpu).is_err_and(|why| why.contains("has another")));
    assert_eq!(weight(one).own(&gpu), None);
    assert_eq!(weight(shape(8, [64, 64, 64], 56)).own(&gpu), Some(FEW_CHANNELS));
}

#[test]
fn far_taps_take_the_direct_kernels() {
    let gpu = gpu();
    let far = ConvShape { dilation: [1, 1 << 27, 1], ..shape(1, [8, 8, 1], 16) };
    assert_eq!(conv(far).plan(AUTO, &gpu), Ok(ConvPlan::Direct));
    for v in TILE_128..=SPLIT_K {
        assert!(conv(far).plan(v, &gpu).is_err_and(|e| e.contains("64-bit")));
    }
    let w = weight(far);
    assert!(matches!(w.plan(AUTO, &gpu), Ok(WeightPlan::Direct { .. })));
    assert!(w.plan(TILE_64, &gpu).is_err());
}

#[test]
fn sums_of_weight_gradients_are_split() {
    let (gpu, cpu) = (gpu(), cpu());
    let p = weight(shape(32, [128, 128, 1], 56));
    // 9 tiles of 128 x 128, 264 resident blocks.
    let per = (32 * 56 * 56usize).div_ceil(29).next_multiple_of(8);
    assert_eq!(p.plan(AUTO, &gpu), Ok(WeightPlan::Tiles { side: 128, splits: 29, per }));
    assert!(matches!(p.plan(AUTO, &cpu), Ok(WeightPlan::Tiles { side: 64, .. })));
    let depthwise = WeightProblem { s: shape(8, [64, 64, 64], 56), ..p };
    assert!(matches!(depthwise.plan(AUTO, &gpu), Ok(WeightPlan::Depthwise { .. })));
    // Nothing to sum, and nothing to write.
    for s in [shape(0, [8, 8, 1], 16), shape(2, [0, 8, 1], 16), shape(2, [8, 0, 1], 16)] {
        let empty = WeightProblem { s, ..p };
        assert!(matches!(empty.plan(AUTO, &gpu), Ok(WeightPlan::Tiles { .. })));
        assert!(empty.plan(VARIANTS.len() - 1, &gpu).is_ok());
    }
}

//! Convolution and batch norm of channels-last tensors against the same of contiguous ones, on every backend.

mod common;
#[path = "common/values.rs"]
mod values;

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{Conv, ConvBwd, ConvIo};
use trefoil::ops::norm::{BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, Momentum, Running};
use trefoil::{BackendExt, BackendKind, Buffer, DType, GpuError, IGpuBackend, Layout, View, ViewMut};

use self::values::values;

/// A tensor in a memory format.
struct Tensor {
    buffer: Buffer,
    layout: Layout,
}

impl Tensor {
    /// The elements of `seed`, in whichever format they lie.
    fn new(b: &dyn IGpuBackend, shape: &[usize], dtype: DType, seed: u32, last: bool) -> Self {
        let n: usize = shape.iter().product();
        let buffer = b.alloc(dtype, n).unwrap();
        let layout = if last { Layout::channels_last(shape) } else { Layout::contiguous(shape) }.unwrap();
        let t = Tensor { buffer, layout };
        let plain = b.upload(&values(n, seed)).unwrap();
        let narrow = b.alloc(dtype, n).unwrap();
        b.cast(plain.view(), narrow.alias_mut()).unwrap();
        b.strided_copy(narrow.shaped(shape).unwrap(), t.view_mut().into()).unwrap();
        t
    }

    fn view(&self) -> View<'_> {
        self.buffer.view().map("test", |_| Ok(self.layout)).unwrap()
    }

    fn view_mut(&self) -> ViewMut<'_> {
        self.buffer.alias_mut().map("test", |_| Ok(self.layout)).unwrap()
    }

    /// The elements in row-major order.
    fn read(&self, b: &dyn IGpuBackend) -> Vec<f64> {
        let n = self.layout.numel();
        let flat = b.alloc(self.buffer.dtype(), n).unwrap();
        b.strided_copy(self.view(), flat.alias_mut().reshape(self.layout.shape()).unwrap().into()).unwrap();
        let wide = b.alloc(DType::F64, n).unwrap();
        b.cast(flat.view(), wide.alias_mut()).unwrap();
        b.download(wide.view()).unwrap()
    }
}

/// Differences beyond what sums in another order explain.
fn close(what: &str, dtype: DType, terms: usize, got: &[f64], want: &[f64]) {
    let unit = match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    let scale = (terms as f64).sqrt();
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= unit * (scale + w.abs()), "{what}: element {i}: {g}, wanted {w}");
    }
}

/// The storage types of a backend's cases: all on the CPU and on GPUs, one where kernels take long to compile.
fn dtypes(b: &dyn IGpuBackend) -> &'static [DType] {
    let all = &[DType::F32, DType::F64, DType::Bf16];
    if b.caps().is_cpu && b.id().kind != BackendKind::Cpu { &all[..1] } else { all }
}

/// A convolution: x, w and its parameters; transposed.
type Problem = (&'static [usize], &'static [usize], Conv, bool);

fn problems() -> Vec<Problem> {
    let c = Conv::new;
    vec![
        (&[2, 16, 9, 7], &[24, 16, 3, 3], c().pad(1), false),
        (&[2, 16, 9, 8], &[8, 16, 1, 1], c().act(Activation::Relu), false),
        (&[2, 16, 9, 8], &[24, 16, 1, 1], c().stride(2), false),
        (&[3, 3, 13, 11], &[16, 3, 7, 7], c().stride(2).pad(3), false),
        (&[2, 8, 6, 6], &[8, 1, 3, 3], c().pad(1).groups(8), false),
        (&[2, 8, 10], &[12, 4, 3], c().groups(2).dilation(2), false),
        (&[1, 8, 4, 5, 6], &[8, 8, 2, 3, 2], c().act(Activation::Sigmoid), false),
        (&[2, 16, 5, 4], &[16, 8, 3, 3], c().stride(2).pad(1).out_pad(1), true),
        (&[2, 1, 6, 6], &[8, 1, 3, 3], c(), false),
    ]
}

/// y, dx (added to what is there), dw and dbias of a problem whose x, w and dy lie in those formats.
fn convolve(
    b: &dyn IGpuBackend,
    &(xs, ws, p, back): &Problem,
    dtype: DType,
    last: [bool; 3],
) -> Vec<Vec<f64>> {
    let spatial = |s: &[usize]| s[2..].to_vec();
    let (co, size) = match back {
        false => (ws[0], p.output_size(&spatial(xs), &spatial(ws)).unwrap()),
        true => (ws[1] * p.groups, p.transpose_output_size(&spatial(xs), &spatial(ws)).unwrap()),
    };
    let ys = [&[xs[0], co], &*size].concat();
    let t = |shape: &[usize], seed, last| Tensor::new(b, shape, dtype, seed, last);
    let (x, w, bias) = (t(xs, 1, last[0]), t(ws, 2, last[1]), t(&[co, 1], 3, false));
    let (y, residual) = (t(&ys, 4, last[0]), t(&ys, 5, last[0]));
    let bias = bias.buffer.shaped(&[co]).unwrap();
    let mut io = ConvIo::new(x.view(), w.view(), y.view_mut());
    (io.bias, io.residual) = (Some(bias), Some(residual.view()));
    if back { b.conv_transpose(&p, io) } else { b.conv(&p, io) }.unwrap();

    let (dy, dx, dw) = (t(&ys, 6, last[2]), t(xs, 7, last[0]), t(ws, 8, last[1]));
    let dbias = b.alloc(dtype, co).unwrap();
    let mut io = ConvBwd::new(dy.view());
    (io.x, io.w, io.saved) = (Some(x.view()), Some(w.view()), Some(y.view()));
    io.dx = Some(dx.view_mut().grad(true));
    (io.dw, io.dbias) = (Some(dw.view_mut().into()), Some(dbias.alias_mut().into()));
    if back { b.conv_transpose_bwd(&p, io) } else { b.conv_bwd(&p, io) }.unwrap();
    let dbias = Tensor { buffer: dbias, layout: Layout::contiguous(&[co]).unwrap() };
    [y, dx, dw, dbias].iter().map(|t| t.read(b)).collect()
}

#[test]
fn convolutions_do_not_depend_on_the_format() {
    for b in common::backends() {
        for &dtype in dtypes(&*b) {
            for (i, problem) in problems().iter().enumerate() {
                // Sums are rounded often in 16 bits where dx is added up; the references are those of the same dtype.
                let want = convolve(&*b, problem, dtype, [false; 3]);
                for last in [[true; 3], [true, false, true], [false, true, true]] {
                    let got = convolve(&*b, problem, dtype, last);
                    for ((g, w), name) in got.iter().zip(&want).zip(["y", "dx", "dw", "dbias"]) {
                        let what = format!("{}, {dtype}, problem {i}, {last:?}, {name}", b.id());
                        close(&what, dtype, 64, g, w);
                    }
                }
            }
        }
    }
}

#[test]
fn named_variants_of_convolutions_take_channels_last_tensors() {
    for b in common::backends() {
        let known = b.explain("conv").unwrap();
        for &dtype in dtypes(&*b).iter().filter(|d| **d != DType::F64) {
            let problem = &problems()[0];
            let want = convolve(&*b, problem, dtype, [false; 3]);
            for variant in ["bf16x6", "columns", "cudnn", "miopen", "matrix_cores", "tile_64", "direct"] {
                if known.chosen != variant && known.rejected.iter().all(|(name, _)| *name != variant) {
                    continue;
                }
                let ops = ["conv", "conv_bwd"];
                ops.iter().for_each(|op| b.pin_variant(op, Some(variant)).unwrap());
                let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    convolve(&*b, problem, dtype, [true; 3])
                }));
                ops.iter().for_each(|op| b.pin_variant(op, None).unwrap());
                let Ok(got) = refused else {
                    println!("skipped on {}: {variant} does not take {dtype}", b.id());
                    continue;
                };
                got.iter().zip(&want).for_each(|(g, w)| close(variant, dtype, 64, g, w));
            }
        }
    }
}

/// Where a stride is beyond the map of an adjoint, some of its phases have no places.
#[test]
fn adjoints_with_strides_beyond_the_map_are_those_of_direct_sums() {
    let problem: Problem = (&[2, 16, 9, 1], &[24, 16, 3, 1], Conv::new().stride(2).pad(1), false);
    for b in common::backends() {
        let pinned = |variant, dtype| {
            b.pin_variant("conv_bwd", Some(variant)).ok()?;
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                convolve(&*b, &problem, dtype, [true; 3])
            }));
            b.pin_variant("conv_bwd", None).unwrap();
            made.ok()
        };
        for (variant, dtype) in [("matrix_cores", DType::Bf16), ("bf16x6", DType::F32)] {
            let Some(got) = pinned(variant, dtype) else {
                println!("skipped on {}: {variant} does not take {dtype}", b.id());
                continue;
            };
            let want = pinned("direct", dtype).unwrap();
            got.iter().zip(&want).for_each(|(g, w)| close(variant, dtype, 64, g, w));
        }
    }
}

/// y, mean, running mean, dx (added), dresidual, dgamma and dbeta of batch norm.
fn normalize(
    b: &dyn IGpuBackend,
    shape: &[usize],
    dtype: DType,
    act: Activation,
    last: bool,
) -> Vec<Vec<f64>> {
    let c = shape[1];
    let t = |seed| Tensor::new(b, shape, dtype, seed, last);
    let channel = |seed, dtype| Tensor::new(b, &[c, 1], dtype, seed, false);
    fn flat(t: &Tensor) -> View<'_> {
        t.buffer.view()
    }
    fn out(t: &Tensor) -> ViewMut<'_> {
        t.buffer.alias_mut()
    }
    let (x, residual, y) = (t(1), t(2), t(3));
    let (gamma, beta) = (channel(4, dtype), channel(5, dtype));
    let stat = dtype.accumulator();
    let (mean, rstd, running) = (channel(6, stat), channel(7, stat), [channel(8, stat), channel(9, stat)]);
    let p = BatchNorm::new().act(act);
    let kept = Running::new(out(&running[0]), out(&running[1]), Momentum::Factor(0.1));
    let mut io = BatchNormFwd::new(x.view(), BatchStats::Batch(Some(kept)), y.view_mut());
    (io.residual, io.gamma, io.beta) = (Some(residual.view()), Some(flat(&gamma)), Some(flat(&beta)));
    (io.mean, io.rstd) = (Some(out(&mean)), Some(out(&rstd)));
    b.batch_norm(&p, io).unwrap();

    let (dy, dx, dr) = (t(10), t(11), t(12));
    let (dgamma, dbeta) = (channel(13, dtype), channel(14, dtype));
    let mut io = BatchNormBwd::new(dy.view(), x.view(), flat(&mean), flat(&rstd));
    (io.residual, io.gamma, io.beta) = (Some(residual.view()), Some(flat(&gamma)), Some(flat(&beta)));
    io.y = act.reads_output().then(|| y.view());
    (io.dx, io.dresidual) = (Some(dx.view_mut().grad(true)), Some(dr.view_mut().into()));
    (io.dgamma, io.dbeta) = (Some(out(&dgamma).into()), Some(out(&dbeta).into()));
    b.batch_norm_bwd(&p, io).unwrap();
    [y, mean, running.into_iter().next().unwrap(), dx, dr, dgamma, dbeta].iter().map(|t| t.read(b)).collect()
}

#[test]
fn batch_norm_does_not_depend_on_the_format() {
    // The first has no whole items of 16 bytes.
    let shapes: [&[usize]; 4] = [&[2, 3, 5, 7], &[4, 16, 6, 5], &[2, 64, 33], &[70, 72, 3, 3]];
    for b in common::backends() {
        for &dtype in dtypes(&*b) {
            for act in [Activation::Identity, Activation::Relu, Activation::Swish { beta: 1.0 }] {
                for shape in shapes {
                    let want = normalize(&*b, shape, dtype, act, false);
                    let got = normalize(&*b, shape, dtype, act, true);
                    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                        let what = format!("{}, {dtype}, {shape:?}, {act:?}, result {i}", b.id());
                        close(&what, dtype, shape[0] * shape[2..].iter().product::<usize>(), g, w);
                    }
                }
            }
        }
    }
}

#[test]
fn operands_of_other_layouts_are_refused_by_name() {
    for b in common::backends() {
        let t = |last| Tensor::new(&*b, &[2, 4, 3, 3], DType::F32, 1, last);
        let (x, residual, y) = (t(true), t(false), t(true));
        let before = y.read(&*b);
        let mut io = BatchNormFwd::new(x.view(), BatchStats::Batch(None), y.view_mut());
        io.residual = Some(residual.view());
        let e = b.batch_norm(&BatchNorm::new(), io).unwrap_err();
        assert!(matches!(&e, GpuError::Invalid { .. }) && e.to_string().contains("residual"), "{e}");
        let turned = x.view().map("test", |l| l.transpose(2, 3)).unwrap();
        let w = Tensor::new(&*b, &[4, 4, 1, 1], DType::F32, 2, false);
        let e = b.conv(&Conv::new(), ConvIo::new(turned, w.view(), y.view_mut())).unwrap_err();
        assert!(e.to_string().contains("channels-last"), "{e}");
        assert_eq!(y.read(&*b), before);
    }
}

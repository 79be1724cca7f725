//! Calls that must be refused: typed errors, nothing launched, outputs untouched, on every backend that is there.

/// The same operands with others in some fields.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+) => {{
        let mut io = $base;
        $(io.$field = $value;)+
        io
    }};
}

mod attention;
mod conv;
mod distance;
mod embedding;
mod field;
mod fourier;
mod graph;
mod language_model;
mod linalg;
mod loss;
mod mesh;
mod norm;
mod optimizer;
mod pool;
mod resample;
mod rnn;
mod scan;
mod sort;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parity_tests::backends;
use trefoil::ops::activation::{Activation, Saved};
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo, GemmRagged, GemmRaggedBwd};
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::loss::{CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Loss, LossFwd, Reduction};
use trefoil::ops::optimizer::{
    ClipAdaptive, ClipNorm, GradFactor, LossScale, LossScaleState, OptimRule, ParamSlot, RowSlot, Step,
};
use trefoil::ops::random::{Distribution, DropoutMask, Rng, Weights};
use trefoil::ops::reduce::{ArgReduce, Reduce};
use trefoil::ops::shape::{PadMode, Triangle};
use trefoil::ops::softmax::Softmax;
use trefoil::{
    BackendExt, BackendKind, Buffer, CpuBackend, DType, GpuError, IGpuBackend, Layout, Result, View, ViewMut,
};

/// A device, and what went wrong on it.
struct Bed<'a> {
    gpu: &'a dyn IGpuBackend,
    wrong: Vec<String>,
}

const FILL: u8 = 0x3c;

impl Bed<'_> {
    fn buf(&self, dtype: DType, n: usize) -> Buffer {
        let mut b = self.gpu.alloc(dtype, n).expect("a small buffer");
        self.gpu.write_bytes(b.view_mut(), &vec![FILL; n * dtype.size()]).expect("a small upload");
        b
    }

    fn f32(&self, n: usize) -> Buffer {
        self.buf(DType::F32, n)
    }

    fn ids(&self, v: &[i64]) -> Buffer {
        self.gpu.upload(v).expect("a small upload")
    }

    fn bytes(&self, b: &Buffer) -> Vec<u8> {
        let mut now = vec![0; b.len() * b.dtype().size()];
        self.gpu.read_bytes(b.view(), &mut now).expect("a small download");
        now
    }

    /// `call` must answer `Invalid`, launch nothing and leave `outs` as they are.
    fn refuse(&mut self, what: &str, outs: &[&Buffer], call: impl FnOnce(&dyn IGpuBackend) -> Result<()>) {
        let gpu = self.gpu;
        let before = gpu.counters().launches;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call(gpu)));
        match result {
            Ok(Err(GpuError::Invalid(_))) => {}
            Ok(Ok(())) => self.wrong.push(format!("{what}: accepted")),
            Ok(Err(e)) => self.wrong.push(format!("{what}: refused with another error: {e}")),
            Err(_) => self.wrong.push(format!("{what}: panicked")),
        }
        if gpu.counters().launches != before {
            self.wrong.push(format!("{what}: something was launched"));
        }
        let waited = gpu.synchronize();
        if let Err(e) = waited {
            self.wrong.push(format!("{what}: left an error behind: {e}"));
        }
        for b in outs {
            if self.bytes(b).iter().any(|&x| x != FILL) {
                self.wrong.push(format!("{what}: an output was written"));
            }
        }
    }

    fn accept(&mut self, what: &str, call: impl FnOnce(&dyn IGpuBackend) -> Result<()>) {
        let gpu = self.gpu;
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            call(gpu).and_then(|()| gpu.synchronize())
        })) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => self.wrong.push(format!("{what}: {e}")),
            Err(_) => self.wrong.push(format!("{what}: panicked")),
        }
    }
}

fn sh<'a>(b: &'a Buffer, shape: &[usize]) -> View<'a> {
    b.shaped(shape).expect("the buffer was made for this shape")
}

fn out<'a>(b: &'a Buffer, shape: &[usize]) -> ViewMut<'a> {
    b.alias_mut().reshape(shape).expect("the buffer was made for this shape")
}

/// Every second element of a buffer.
fn every_second(b: &Buffer, n: usize) -> View<'_> {
    b.view().with_layout(Layout::strided(&[n], &[2], 0).expect("rank 1")).expect("the buffer is long enough")
}

fn elementwise(t: &mut Bed<'_>) {
    let (a, b, y) = (t.f32(12), t.f32(12), t.f32(12));
    let (h, m, i) = (t.buf(DType::F16, 12), t.buf(DType::U8, 12), t.buf(DType::I32, 12));
    let short = t.f32(11);
    t.refuse("unary into another shape", &[&short], |g| g.unary(Unary::Exp, a.view(), out(&short, &[11])));
    t.refuse("unary into another rank", &[&y], |g| g.unary(Unary::Exp, sh(&a, &[3, 4]), out(&y, &[12])));
    t.refuse("unary into another dtype", &[&h], |g| g.unary(Unary::Exp, a.view(), out(&h, &[12])));
    t.refuse("unary of integers", &[&i], |g| g.unary(Unary::Exp, i.view(), out(&i, &[12])));
    t.refuse("predicate into floats", &[&y], |g| g.unary(Unary::IsNan, a.view(), out(&y, &[12])));
    t.refuse("bit operation on floats", &[&y], |g| g.unary(Unary::BitwiseNot, a.view(), out(&y, &[12])));
    t.refuse("gradient of a predicate", &[&y], |g| {
        g.unary_bwd(Unary::IsNan, a.view(), b.view(), out(&y, &[12]).into())
    });
    t.refuse("binary of shapes that do not broadcast", &[&y], |g| {
        g.binary(Binary::Sub, sh(&a, &[3, 4]), sh(&b, &[4, 3]), out(&y, &[3, 4]))
    });
    t.refuse("binary of two dtypes", &[&y], |g| g.binary(Binary::Sub, a.view(), h.view(), out(&y, &[12])));
    t.refuse("binary into a smaller output", &[&short], |g| {
        g.binary(Binary::Mul, a.view(), b.view(), out(&short, &[11]))
    });
    t.refuse("comparison into floats", &[&y], |g| g.binary(Binary::Lt, a.view(), b.view(), out(&y, &[12])));
    t.refuse("logic on floats", &[&m], |g| g.binary(Binary::LogicalAnd, a.view(), b.view(), out(&m, &[12])));
    t.refuse("true division of integers", &[&i], |g| {
        g.binary(Binary::Div, i.view(), i.view(), out(&i, &[12]))
    });
    t.refuse("where with a float mask", &[&y], |g| {
        g.ternary(Ternary::Where, a.view(), a.view(), b.view(), out(&y, &[12]))
    });
    t.refuse("cast into another shape", &[&h], |g| g.cast(short.view(), out(&h, &[12])));
    let w = t.f32(16);
    t.refuse("overlapping input and output", &[&w], |g| {
        g.unary(Unary::Neg, w.view().range(0, 12)?, w.alias_mut().range(4, 12)?)
    });
    t.refuse("output that repeats elements", &[&w], |g| {
        let y = w.alias_mut().with_layout(Layout::strided(&[3, 4], &[0, 1], 0).expect("rank 2"))?;
        g.unary(Unary::Neg, sh(&a, &[3, 4]), y)
    });
    t.accept("output exactly on the input", |g| g.unary(Unary::Neg, w.view(), w.alias_mut()));
}

fn activation(t: &mut Bed<'_>) {
    let (x, y, d) = (t.f32(12), t.f32(12), t.f32(12));
    let i = t.buf(DType::I64, 12);
    t.refuse("softmax along axis 2 of rank 2", &[&y], |g| {
        g.softmax(Softmax::Softmax, 2, sh(&x, &[3, 4]), out(&y, &[3, 4]))
    });
    t.refuse("softmax into another shape", &[&y], |g| {
        g.softmax(Softmax::Softmax, 1, sh(&x, &[3, 4]), out(&y, &[4, 3]))
    });
    t.refuse("activation of integers", &[&i], |g| g.activation(Activation::Relu, i.view(), out(&i, &[12])));
    t.refuse("gelu gradient from the output", &[&d], |g| {
        g.activation_bwd(Activation::Gelu, x.view(), Saved::Output(y.view()), out(&d, &[12]).into())
    });
    t.refuse("sigmoid gradient from the input", &[&d], |g| {
        g.activation_bwd(Activation::Sigmoid, x.view(), Saved::Input(y.view()), out(&d, &[12]).into())
    });
    t.refuse("elu gradient from the output with negative alpha", &[&d], |g| {
        g.activation_bwd(
            Activation::Elu { alpha: -1.0 },
            x.view(),
            Saved::Output(y.view()),
            out(&d, &[12]).into(),
        )
    });
    t.refuse("softmax gradient of another shape", &[&d], |g| {
        g.softmax_bwd(Softmax::LogSoftmax, 0, sh(&x, &[3, 4]), sh(&y, &[4, 3]), out(&d, &[4, 3]).into())
    });
}

fn reduce(t: &mut Bed<'_>) {
    let (x, y, z) = (t.f32(12), t.f32(3), t.f32(4));
    let (m, i, empty) = (t.buf(DType::U8, 3), t.buf(DType::I64, 3), t.f32(0));
    let x34 = sh(&x, &[3, 4]);
    t.refuse("axis 2 of rank 2", &[&y], |g| g.reduce(Reduce::Sum, &[2], x34, y.alias_mut()));
    t.refuse("an axis twice", &[&y], |g| g.reduce(Reduce::Sum, &[1, 1], x34, y.alias_mut()));
    t.refuse("another output shape", &[&z], |g| g.reduce(Reduce::Sum, &[1], x34, z.alias_mut()));
    t.refuse("another output dtype", &[&i], |g| g.reduce(Reduce::Mean, &[1], x34, i.alias_mut()));
    t.refuse("any of floats", &[&m], |g| g.reduce(Reduce::Any, &[1], x34, m.alias_mut()));
    t.refuse("max over an empty axis", &[&y], |g| {
        g.reduce(Reduce::Max, &[1], sh(&empty, &[3, 0]), y.alias_mut())
    });
    t.refuse("argmax over an empty axis", &[&i], |g| {
        g.arg_reduce(ArgReduce::Max, 1, sh(&empty, &[3, 0]), i.alias_mut(), None)
    });
    t.refuse("argmax into floats", &[&y], |g| g.arg_reduce(ArgReduce::Max, 1, x34, y.alias_mut(), None));
    t.refuse("argmax along axis 2", &[&i], |g| g.arg_reduce(ArgReduce::Max, 2, x34, i.alias_mut(), None));
    t.refuse("min_max over an empty axis", &[&y], |g| {
        g.min_max(&[1], sh(&empty, &[3, 0]), y.alias_mut(), out(&z, &[4]).range(0, 3)?)
    });
    t.refuse("mean_var with two shapes", &[&y, &z], |g| {
        g.mean_var(&[1], 1.0, x34, y.alias_mut(), z.alias_mut())
    });
    t.refuse("dot of two shapes", &[&y], |g| g.dot(x34, sh(&x, &[4, 3]), y.alias_mut()));
    t.refuse("sum to a shape that does not broadcast", &[&y], |g| {
        g.sum_to_shape(sh(&x, &[3, 4]), y.alias_mut().into())
    });
    let dx = t.f32(12);
    t.refuse("gradient with dy of another shape", &[&dx], |g| {
        g.reduce_bwd(Reduce::Sum, &[1], z.view(), None, None, out(&dx, &[3, 4]).into())
    });
    t.refuse("gradient without x", &[&dx], |g| {
        g.reduce_bwd(Reduce::SumSq, &[1], y.view(), None, None, out(&dx, &[3, 4]).into())
    });
}

fn shape(t: &mut Bed<'_>) {
    let (x, y, z) = (t.f32(12), t.f32(12), t.f32(24));
    let i = t.buf(DType::I32, 12);
    let x34 = sh(&x, &[3, 4]);
    t.refuse("copy into another shape", &[&y], |g| g.strided_copy(x34, out(&y, &[4, 3]).into()));
    t.refuse("copy into another dtype", &[&i], |g| g.strided_copy(x34, out(&i, &[3, 4]).into()));
    t.refuse("accumulating integers", &[&i], |g| g.strided_copy(i.view(), i.alias_mut().accumulate()));
    t.refuse("concat of shapes that disagree", &[&z], |g| {
        g.concat(0, &[x34, sh(&y, &[4, 3])], out(&z, &[6, 4]))
    });
    t.refuse("concat of nothing", &[&z], |g| g.concat(0, &[], out(&z, &[24])));
    t.refuse("concat along axis 2", &[&z], |g| g.concat(2, &[x34, x34], out(&z, &[6, 4])));
    t.refuse("concat into another size", &[&z], |g| g.concat(0, &[x34], out(&z, &[6, 4])));
    t.refuse("a pattern of 3 bytes", &[&y], |g| g.fill_bytes(&[1, 2, 3], y.alias_mut()));
    t.refuse("arange of rank 2", &[&y], |g| g.arange(0.0, 1.0, out(&y, &[3, 4])));
    t.refuse("reflect padding of the size", &[&z], |g| {
        g.pad(PadMode::Reflect, &[(0, 0), (4, 0)], x34, out(&z, &[3, 8]))
    });
    t.refuse("circular padding above the size", &[&z], |g| {
        g.pad(PadMode::Circular, &[(0, 0), (0, 5)], x34, out(&z, &[24]).range(0, 21)?.reshape(&[3, 7])?)
    });
    t.refuse("pads for one axis of two", &[&z], |g| {
        g.pad(PadMode::Constant(0.0), &[(0, 4)], x34, out(&z, &[3, 8]))
    });
    t.refuse("padding into another shape", &[&z], |g| {
        g.pad(PadMode::Constant(0.0), &[(0, 0), (1, 1)], x34, out(&z, &[3, 8]))
    });
    t.refuse("flip along axis 2", &[&y], |g| g.flip(&[2], x34, out(&y, &[3, 4]).into()));
    t.refuse("flip along an axis twice", &[&y], |g| g.flip(&[0, 0], x34, out(&y, &[3, 4]).into()));
    t.refuse("roll with one shift for two axes", &[&y], |g| {
        g.roll(&[1], &[0, 1], x34, out(&y, &[3, 4]).into())
    });
    t.refuse("triangle of a vector", &[&y], |g| {
        g.triangle(Triangle::Lower, 0, x.view(), y.alias_mut().into())
    });
    t.refuse("repeat_interleave into another size", &[&z], |g| {
        g.repeat_interleave(0, 3, None, x34, out(&z, &[6, 4]))
    });
    t.refuse("unfold gradient with windows that do not fit", &[&y], |g| {
        g.unfold_bwd(0, 5, 1, sh(&z, &[24]).reshape(&[6, 4])?, y.alias_mut().into())
    });
    let w = t.f32(16);
    t.refuse("overlapping copy", &[&w], |g| g.copy(w.view().range(0, 8)?, w.alias_mut().range(4, 8)?));
    t.refuse("copy of two sizes", &[&w], |g| g.copy(x.view(), w.alias_mut()));
    t.refuse("copy of two dtypes", &[&y], |g| g.copy(i.view(), y.alias_mut()));
    t.refuse("write of another size", &[&y], |g| g.write_bytes(y.alias_mut(), &[0; 7]));
    t.refuse("read of another size", &[], |g| g.read_bytes(y.view(), &mut [0; 7]));
    t.refuse("read of a strided view", &[], |g| g.read_bytes(every_second(&z, 12), &mut [0; 48]));
}

fn index(t: &mut Bed<'_>) {
    let (x, y, s) = (t.f32(12), t.f32(8), t.f32(8));
    let ids = t.ids(&[0, 1]);
    let (m, count) = (t.buf(DType::U8, 12), t.buf(DType::I64, 1));
    let x34 = sh(&x, &[3, 4]);
    t.refuse("index_select with float indices", &[&y], |g| {
        g.index_select(0, x34, s.view().range(0, 2)?, out(&y, &[2, 4]).into())
    });
    t.refuse("index_select along axis 2", &[&y], |g| {
        g.index_select(2, x34, ids.view(), out(&y, &[2, 4]).into())
    });
    t.refuse("index_select into another shape", &[&y], |g| {
        g.index_select(0, x34, ids.view(), out(&y, &[4, 2]).into())
    });
    t.refuse("index_select with indices of rank 2", &[&y], |g| {
        g.index_select(0, x34, sh(&ids, &[1, 2]), out(&y, &[2, 4]).into())
    });
    t.refuse("index_add of another shape", &[&y], |g| {
        g.index_add(0, 1.0, ids.view(), sh(&s, &[4, 2]), out(&y, &[2, 4]))
    });
    t.refuse("gather with an index of another rank", &[&y], |g| {
        g.gather(0, x34, ids.view(), out(&y, &[8]).range(0, 2)?.into())
    });
    t.refuse("scatter of another shape", &[&y], |g| {
        g.scatter(0, sh(&ids, &[1, 2]), sh(&s, &[4, 2]), out(&y, &[2, 4]))
    });
    t.refuse("scatter_reduce along axis 5", &[&y], |g| {
        g.scatter_reduce(
            ScatterReduce::Sum,
            5,
            true,
            sh(&ids, &[1, 2]),
            s.view().range(0, 2)?.reshape(&[1, 2])?,
            out(&y, &[2, 4]),
        )
    });
    t.refuse("index_put without indices", &[&y], |g| g.index_put(false, &[], s.view(), y.alias_mut()));
    t.refuse("masked_select with a float mask", &[&y], |g| {
        g.masked_select(x.view(), x.view(), y.alias_mut(), count.alias_mut())
    });
    t.refuse("masked_select of another shape", &[&y], |g| {
        g.masked_select(m.view(), s.view(), y.alias_mut(), count.alias_mut())
    });
    t.refuse("masked_select with a float count", &[&y], |g| {
        g.masked_select(m.view(), x.view(), y.alias_mut(), s.alias_mut().range(0, 1)?)
    });
    t.refuse("nonzero into floats", &[&y], |g| g.nonzero(x34, out(&y, &[4, 2]), count.alias_mut()));
    t.refuse("one_hot of floats", &[&y], |g| g.one_hot(s.view().range(0, 2)?, out(&y, &[2, 4])));
    t.refuse("one_hot into another shape", &[&y], |g| g.one_hot(ids.view(), out(&y, &[4, 2])));
}

fn gemm(t: &mut Bed<'_>) {
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
    t.refuse("gradient of gelu without its saved tensor", &[&a], |g| {
        let io = GemmBwd::new(sh(&y, &[3, 5]), a34, b45).dbias(out(&a, &[12]).range(0, 5)?);
        g.gemm_bwd(&p.act(Activation::Gelu), io)
    });
}

fn loss(t: &mut Bed<'_>) {
    let (p, q, l, l2) = (t.f32(12), t.f32(8), t.f32(1), t.f32(2));
    let (m, ids) = (t.buf(DType::U8, 8), t.ids(&[0, 1, 2]));
    let fwd = |p, t, mask, loss| LossFwd::new(p, t, loss).mask(mask);
    t.refuse("mse of two shapes", &[&l], |g| {
        g.loss(Loss::Mse, Reduction::Mean, fwd(p.view(), q.view(), None, l.alias_mut()))
    });
    t.refuse("mse into two elements", &[&l2], |g| {
        g.loss(Loss::Mse, Reduction::Mean, fwd(p.view(), p.view(), None, l2.alias_mut()))
    });
    t.refuse("a mask of another shape", &[&l], |g| {
        g.loss(Loss::Mse, Reduction::Sum, fwd(p.view(), p.view(), Some(m.view()), l.alias_mut()))
    });
    let x = sh(&p, &[3, 4]);
    let ce = |target, weight, loss| CrossEntropyFwd::new(x, target, loss).weight(weight);
    let plain = CrossEntropy::new();
    t.refuse("cross entropy with two ids for three rows", &[&l], |g| {
        g.cross_entropy(&plain, ce(ids.view().range(0, 2)?, None, l.alias_mut()))
    });
    t.refuse("cross entropy with weights of another size", &[&l], |g| {
        g.cross_entropy(&plain, ce(ids.view(), Some(q.view()), l.alias_mut()))
    });
    t.refuse("label smoothing of 1.5", &[&l], |g| {
        g.cross_entropy(&plain.label_smoothing(1.5), ce(ids.view(), None, l.alias_mut()))
    });
    let dx = t.f32(12);
    t.refuse("cross entropy gradient of the mean without denominator", &[&dx], |g| {
        let io =
            CrossEntropyBwd::new(l.view(), x, ids.view(), q.view().range(0, 3)?, out(&dx, &[3, 4]).into());
        g.cross_entropy_bwd(&plain, io)
    });
}

fn optimizer(t: &mut Bed<'_>) {
    let (w, g0, v) = (t.f32(8), t.f32(8), t.f32(8));
    let short = t.f32(7);
    let total = t.f32(1);
    let rule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    fn slot<'a>(w: &'a Buffer, g: &'a Buffer, m: Option<&'a Buffer>, v: Option<&'a Buffer>) -> ParamSlot<'a> {
        ParamSlot::new(w.alias_mut(), g.view()).state([
            m.map(Buffer::alias_mut),
            v.map(Buffer::alias_mut),
            None,
            None,
        ])
    }
    let m = t.f32(8);
    t.refuse("step 0", &[&w, &m, &v], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 0), &mut [slot(&w, &g0, Some(&m), Some(&v))])
    });
    t.refuse("missing state", &[&w, &m], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &g0, Some(&m), None)])
    });
    t.refuse("a gradient of another size", &[&w, &m, &v], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &short, Some(&m), Some(&v))])
    });
    t.refuse("one state buffer twice", &[&w, &m], |g| {
        g.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(&w, &g0, Some(&m), Some(&m))])
    });
    t.refuse("a total of two elements", &[&g0], |g| {
        g.clip_grad_norm(&ClipNorm::new(1.0), &mut [g0.alias_mut()], v.alias_mut().range(0, 2)?)
    });
    t.refuse("a negative norm", &[&g0, &total], |g| {
        g.clip_grad_norm(&ClipNorm::new(-1.0), &mut [g0.alias_mut()], total.alias_mut())
    });
    t.refuse("a factor among the gradients", &[&g0], |g| {
        g.grad_factor(&ClipNorm::new(1.0), &[g0.view()], GradFactor::new(g0.alias_mut().range(0, 1)?))
    });
    t.refuse("a factor that is the total", &[&total], |g| {
        let io = GradFactor::new(total.alias_mut()).total(total.alias_mut());
        g.grad_factor(&ClipNorm::new(1.0), &[g0.view()], io)
    });
    t.refuse("a negative bound", &[&g0], |g| g.clip_grad_value(-1.0, &mut [g0.alias_mut()]));
    let i = t.buf(DType::I32, 8);
    t.refuse("adaptive clipping without weights", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(0.01), &[], &mut [g0.alias_mut()])
    });
    t.refuse("weights of another shape", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(0.01), &[short.view()], &mut [g0.alias_mut()])
    });
    t.refuse("a negative ratio", &[&g0], |g| {
        g.clip_grad_adaptive(&ClipAdaptive::new(-0.01), &[w.view()], &mut [g0.alias_mut()])
    });
    let (scale, good) = (t.f32(1), t.ids(&[3]));
    t.refuse("two flags for one", &[&g0], |g| {
        g.unscale_grads(None, &mut [g0.alias_mut()], v.alias_mut().range(0, 2)?)
    });
    t.refuse("a scale of integers", &[&g0, &total], |g| {
        g.unscale_grads(Some(good.view()), &mut [g0.alias_mut()], total.alias_mut())
    });
    t.refuse("a flag among the gradients", &[&g0], |g| {
        g.unscale_grads(None, &mut [g0.alias_mut()], g0.alias_mut().range(0, 1)?)
    });
    let state = |found_inf| LossScaleState::new(scale.alias_mut(), good.alias_mut(), found_inf);
    t.refuse("a loss scale that grows by 0", &[&scale, &total], |g| {
        g.update_loss_scale(&LossScale::new().factors(0.0, 0.5), state(total.alias_mut()))
    });
    t.refuse("a scale that is its own flag", &[&scale], |g| {
        g.update_loss_scale(&LossScale::new(), state(scale.alias_mut()))
    });
    t.refuse("a flag of integers", &[&scale], |g| {
        g.update_loss_scale(&LossScale::new(), state(i.alias_mut().range(0, 1)?))
    });
    t.refuse("clipping integers", &[&i], |g| g.clip_grad_value(1.0, &mut [i.alias_mut()]));
}

fn random(t: &mut Bed<'_>) {
    let (x, y, i) = (t.f32(8), t.f32(8), t.buf(DType::I32, 8));
    let r = Rng::new(1);
    t.refuse("uniform integers", &[&i], |g| {
        g.random(Distribution::Uniform { lo: 0.0, hi: 1.0 }, r, i.alias_mut())
    });
    t.refuse("integers into floats", &[&y], |g| {
        g.random(Distribution::Int { lo: 0, hi: 3 }, r, y.alias_mut())
    });
    t.refuse("an empty range", &[&i], |g| g.random(Distribution::Int { lo: 3, hi: 3 }, r, i.alias_mut()));
    t.refuse("a rate of 0", &[&y], |g| g.random(Distribution::Exponential { rate: 0.0 }, r, y.alias_mut()));
    t.refuse("a permutation of rank 2", &[&i], |g| g.permutation(r, out(&i, &[2, 4])));
    t.refuse("categorical with rows that disagree", &[&i], |g| {
        g.categorical(Weights::Probs(sh(&x, &[2, 4])), r, out(&i, &[4, 2]))
    });
    t.refuse("dropout with p = 1.5", &[&y], |g| g.dropout(1.5, r, x.view(), y.alias_mut(), None));
    t.refuse("dropout with p = NaN", &[&y], |g| g.dropout(f64::NAN, r, x.view(), y.alias_mut(), None));
    t.refuse("a float mask", &[&y], |g| {
        g.dropout_bwd(0.5, DropoutMask::Saved(x.view()), x.view(), y.alias_mut().into())
    });
    t.refuse("a mask of another size", &[&y], |g| {
        let m = g.alloc(DType::U8, 7)?;
        g.dropout_bwd(0.5, DropoutMask::Saved(m.view()), x.view(), y.alias_mut().into())
    });
}

/// Indices out of range on the device: reads give 0, writes are dropped, one report; the results are refused, but can be looked at in a copy.
fn out_of_range(t: &mut Bed<'_>) {
    let g = t.gpu;
    let look = |b: &Buffer| {
        if !matches!(g.download::<f32>(b.view()), Err(GpuError::IndexOutOfRange { .. })) {
            return Err(GpuError::Config("results of an index out of range were read as good".into()));
        }
        let mut copy = g.alloc(b.dtype(), b.len())?;
        g.copy(b.view(), copy.view_mut())?;
        g.download::<f32>(copy.view())
    };
    let run = || -> Result<Vec<String>> {
        let mut wrong = vec![];
        let x = g.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
        let ids = g.upload(&[1i64, 9, -1, 3])?;
        let mut y = g.alloc(DType::F32, 4)?;
        g.index_select(0, x.view(), ids.view(), y.view_mut().into())?;
        match g.synchronize() {
            Err(GpuError::IndexOutOfRange { op: "index_select" }) => {}
            other => wrong.push(format!("index_select: {other:?}")),
        }
        if let Err(e) = g.synchronize() {
            wrong.push(format!("the error was reported twice: {e}"));
        }
        let got = look(&y)?;
        if got != [2.0, 0.0, 0.0, 4.0] {
            wrong.push(format!("index_select read {got:?}"));
        }
        let mut y = g.upload(&[0.5f32; 4])?;
        g.index_add(0, 1.0, ids.view(), x.view(), y.view_mut())?;
        match g.download::<f32>(y.view()) {
            Err(GpuError::IndexOutOfRange { .. }) => {}
            other => wrong.push(format!("index_add: {other:?}")),
        }
        let got = look(&y)?;
        if got != [0.5, 1.5, 0.5, 4.5] {
            wrong.push(format!("index_add wrote {got:?}"));
        }
        let mut w = g.upload(&[1.0f32; 4])?;
        let state = [None, None, None, None];
        let param = RowSlot::new(w.view_mut(), ids.view(), x.view()).state(state);
        g.optimizer_step_rows(&OptimRule::Sgd { wd: 0.0 }, &Step::host(0.5, 1), param)?;
        match g.synchronize() {
            Err(GpuError::IndexOutOfRange { op: "optimizer_step_rows" }) => {}
            other => wrong.push(format!("optimizer_step_rows: {other:?}")),
        }
        let got = look(&w)?;
        if got != [1.0, 0.5, 1.0, -1.0] {
            wrong.push(format!("optimizer_step_rows wrote {got:?}"));
        }
        Ok(wrong)
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(w)) => t.wrong.extend(w),
        Ok(Err(e)) => t.wrong.push(e.to_string()),
        Err(_) => t.wrong.push("panicked".into()),
    }
}

/// Tensors without elements launch nothing and are no error.
fn empty(t: &mut Bed<'_>) {
    let (x, m) = (t.f32(0), t.buf(DType::U8, 0));
    let ids = t.ids(&[]);
    let gpu = t.gpu;
    let before = gpu.counters().launches;
    t.accept("empty unary", |g| g.unary(Unary::Exp, x.view(), x.alias_mut()));
    t.accept("empty binary", |g| g.binary(Binary::Mul, sh(&x, &[0, 3]), sh(&x, &[0, 1]), out(&x, &[0, 3])));
    t.accept("empty cast", |g| g.cast(x.view(), m.alias_mut()));
    t.accept("empty softmax", |g| g.softmax(Softmax::Softmax, 1, sh(&x, &[3, 0]), out(&x, &[3, 0])));
    t.accept("empty copy", |g| g.strided_copy(sh(&x, &[0, 3]), out(&x, &[0, 3]).into()));
    t.accept("empty select", |g| g.index_select(0, sh(&x, &[0, 3]), ids.view(), out(&x, &[0, 3]).into()));
    t.accept("empty product", |g| {
        g.gemm(&Gemm::new(), GemmIo::new(sh(&x, &[0, 3]), sh(&x, &[3, 0]), out(&x, &[0, 0])))
    });
    t.accept("empty random", |g| g.random(Distribution::Gumbel, Rng::new(1), x.alias_mut()));
    t.accept("empty permutation", |g| g.permutation(Rng::new(1), ids.alias_mut()));
    t.accept("empty list of gradients", |g| g.clip_grad_value(1.0, &mut []));
    if gpu.id().kind != BackendKind::Cpu && gpu.counters().launches != before {
        t.wrong.push("an empty tensor was launched".into());
    }
}

/// Buffers of another backend are refused.
fn foreign(t: &mut Bed<'_>) {
    if t.gpu.id().kind == BackendKind::Cpu {
        return;
    }
    let cpu = CpuBackend::new();
    let x = cpu.upload(&[1.0f32; 8]).expect("memory");
    let y = t.f32(8);
    t.refuse("an input of the CPU", &[&y], |g| g.unary(Unary::Exp, x.view(), y.alias_mut()));
    t.refuse("an output of the CPU", &[], |g| g.unary(Unary::Exp, y.view(), x.alias_mut()));
    t.refuse("a download from the CPU's buffer", &[], |g| g.read_bytes(x.view(), &mut [0; 32]));
}

type Test = (&'static str, fn(&mut Bed<'_>));

const TESTS: &[Test] = &[
    ("elementwise", elementwise),
    ("activation", activation),
    ("reduce", reduce),
    ("shape", shape),
    ("index", index),
    ("gemm", gemm),
    ("loss", loss),
    ("row_loss", loss::rows),
    ("margin_loss", loss::margins),
    ("batch_loss", loss::batch),
    ("seq_loss", loss::sequence),
    ("stft_loss", loss::spectrogram),
    ("optimizer", optimizer),
    ("adaptive_step", optimizer::adaptive),
    ("optimizer_step_rows", optimizer::rows),
    ("optimizer_step_packed", optimizer::packed),
    ("random", random),
    ("conv", conv::conv),
    ("norm", norm::norm),
    ("pool", pool::pool),
    ("resample", resample::resample),
    ("attention", attention::attention),
    ("lm", language_model::lm),
    ("field", field::field),
    ("fourier", fourier::fourier),
    ("linalg", linalg::linalg),
    ("embedding", embedding::embedding),
    ("rnn", rnn::rnn),
    ("gnn", graph::gnn),
    ("mesh", mesh::mesh),
    ("mesh_pool", mesh::pooling),
    ("scan", scan::scan),
    ("sort", sort::sort),
    ("distance", distance::distance),
    ("index_out_of_range", out_of_range),
    ("empty", empty),
    ("foreign", foreign),
];

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Tests of one device share its counter of launches.
    args.test_threads = Some(1);
    let mut trials = Vec::new();
    for backend in backends::all(&[]) {
        let name = backend.name;
        match backend.handle {
            Err(e) => {
                let required = backend.required;
                if !args.list {
                    println!(
                        "bad_input: {name} is absent: {e} ({} tests {})",
                        TESTS.len(),
                        if required { "FAIL" } else { "skipped" }
                    );
                }
                let trial = Trial::test(format!("{name}::present"), move || {
                    if required {
                        Err(Failed::from(format!("TREFOIL_REQUIRE names {name}, but: {e}")))
                    } else {
                        Ok(())
                    }
                });
                trials.push(trial.with_ignored_flag(!required));
            }
            Ok(gpu) => {
                for &(test, f) in TESTS {
                    let gpu = gpu.clone();
                    trials.push(Trial::test(format!("{name}::{test}"), move || {
                        let gpu = backends::private(&gpu).map_err(|e| e.to_string())?;
                        let mut bed = Bed { gpu: &*gpu, wrong: vec![] };
                        f(&mut bed);
                        if bed.wrong.is_empty() { Ok(()) } else { Err(Failed::from(bed.wrong.join("\n"))) }
                    }));
                }
            }
        }
    }
    libtest_mimic::run(&args, trials).exit_code()
}

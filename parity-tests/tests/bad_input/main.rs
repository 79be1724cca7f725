//! Calls that must be refused: typed errors, nothing launched, outputs untouched, on every backend that is there.

/// The same operands with others in some fields.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+) => {{
        let mut io = $base;
        $(io.$field = $value;)+
        io
    }};
}

mod activation;
mod attention;
mod conv;
mod distance;
mod elementwise;
mod embedding;
mod field;
mod fourier;
mod gemm;
mod graph;
mod index;
mod language_model;
mod linalg;
mod loss;
mod mesh;
mod norm;
mod optimizer;
mod pool;
mod random;
mod reduce;
mod resample;
mod rnn;
mod scan;
mod shape;
mod sort;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use parity_tests::backends;
use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::random::{Distribution, Rng};
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
    ("elementwise", elementwise::elementwise),
    ("activation", activation::activation),
    ("reduce", reduce::reduce),
    ("shape", shape::shape),
    ("index", index::index),
    ("gemm", gemm::gemm),
    ("loss", loss::loss),
    ("row_loss", loss::rows),
    ("margin_loss", loss::margins),
    ("batch_loss", loss::batch),
    ("seq_loss", loss::sequence),
    ("stft_loss", loss::spectrogram),
    ("optimizer", optimizer::optimizer),
    ("adaptive_step", optimizer::adaptive),
    ("optimizer_step_rows", optimizer::rows),
    ("optimizer_step_packed", optimizer::packed),
    ("random", random::random),
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
    ("index_out_of_range", index::out_of_range),
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

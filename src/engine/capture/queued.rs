//! What a recording holds of the calls of a driver.

use crate::driver::{
    Arg, BlasProblem, Driver, LaunchConfig, RawFunction, RawMem, RawStream, VendorAttentionProblem,
    VendorConvProblem, VendorFftProblem,
};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::spec::{KernelSpec, Role};

/// Memory and an offset in bytes.
pub(super) type Place = (RawMem, u64);

/// A [`BlasProblem`] with its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedBlas {
    pub(crate) problem: BlasProblem,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    /// A, B, C and D.
    pub(crate) matrices: [Place; 4],
    pub(crate) bias: Option<Place>,
    pub(crate) workspace: Option<(RawMem, u64, usize)>,
}

/// A [`VendorConvProblem`] with its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedConv {
    pub(crate) problem: VendorConvProblem,
    /// x, w and y.
    pub(crate) tensors: [Place; 3],
    pub(crate) workspace: Option<(RawMem, u64, usize)>,
}

/// A [`VendorAttentionProblem`] with its operands.
#[derive(Debug, Clone)]
pub(crate) struct QueuedAttention {
    pub(crate) problem: VendorAttentionProblem,
    pub(crate) scale: f32,
    /// In the order of [`VendorAttention::run`](crate::driver::VendorAttention::run).
    pub(crate) tensors: Vec<Place>,
    pub(crate) workspace: Option<(RawMem, u64, usize)>,
}

/// A [`VendorFftProblem`] with its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedFft {
    pub(crate) problem: VendorFftProblem,
    pub(crate) x: Place,
    pub(crate) y: Place,
    pub(crate) workspace: Option<(RawMem, u64, usize)>,
}

/// An [`Arg`] that owns its bytes.
#[derive(Debug)]
pub(super) enum Value {
    Plain(Arg<'static>),
    Struct(Box<[u8]>),
}

impl Value {
    pub(super) fn of(arg: &Arg<'_>) -> Value {
        Value::Plain(match *arg {
            Arg::Struct(bytes) => return Value::Struct(bytes.into()),
            Arg::Mem(m) => Arg::Mem(m),
            Arg::I32(x) => Arg::I32(x),
            Arg::U32(x) => Arg::U32(x),
            Arg::I64(x) => Arg::I64(x),
            Arg::F32(x) => Arg::F32(x),
            Arg::F64(x) => Arg::F64(x),
            Arg::Map(map) => Arg::Map(map),
        })
    }

    pub(super) fn arg(&self) -> Arg<'_> {
        match self {
            Value::Plain(arg) => *arg,
            Value::Struct(bytes) => Arg::Struct(bytes),
        }
    }
}

/// A kernel of the table, as it was compiled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) spec: &'static KernelSpec,
    pub(crate) dtype: DType,
    /// Its function (`GK_OP`); empty without.
    pub(crate) op: &'static str,
}

/// What is known of a kernel beside its arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About {
    /// `None` for a user's.
    pub(crate) known: Option<Known>,
    /// Bit k: argument k is a pointer that is written.
    pub(crate) outputs: u64,
}

impl About {
    /// A kernel of the table.
    pub(crate) fn known(spec: &'static KernelSpec, dtype: DType, op: &'static str) -> Self {
        let outputs = output_bits(spec.args.iter().map(|a| matches!(a.role, Role::Out(_))));
        About { known: Some(Known { spec, dtype, op }), outputs }
    }
}

/// Bits of the arguments that are written.
pub(crate) fn output_bits(written: impl Iterator<Item = bool>) -> u64 {
    written.enumerate().fold(0, |bits, (i, w)| bits | u64::from(w) << i.min(63))
}

/// A call of the driver, with everything that it takes.
#[derive(Debug)]
pub(super) enum Queued {
    Launch { f: RawFunction, name: Box<str>, config: LaunchConfig, args: Vec<Value>, about: About },
    Copy { from: Place, to: Place, bytes: usize },
    Blas(Box<QueuedBlas>),
    Conv(Box<QueuedConv>),
    Attention(Box<QueuedAttention>),
    Fft(Box<QueuedFft>),
}

impl Queued {
    /// What failed, for messages.
    pub(super) fn name(&self) -> &str {
        match self {
            Queued::Launch { name, .. } => name,
            Queued::Copy { .. } => "copy",
            Queued::Blas(_) => "a product of the vendor's library",
            Queued::Conv(_) => "a convolution of the vendor's library",
            Queued::Attention(_) => "attention of the vendor's library",
            Queued::Fft(_) => "a Fourier transform of the vendor's library",
        }
    }

    /// Shows all places in memory that it uses.
    pub(super) fn places(&mut self, see: &mut dyn FnMut(&mut Place)) {
        let with_bytes = |w: &mut Option<(RawMem, u64, usize)>, see: &mut dyn FnMut(&mut Place)| {
            if let Some((memory, at, _)) = w {
                let mut place = (*memory, *at);
                see(&mut place);
                (*memory, *at) = place;
            }
        };
        match self {
            Queued::Launch { args, .. } => {
                for arg in args {
                    match arg {
                        Value::Plain(Arg::Mem(Some(place))) => see(place),
                        Value::Plain(Arg::Map(map)) => see(&mut map.place),
                        _ => {}
                    }
                }
            }
            Queued::Copy { from, to, .. } => [from, to].into_iter().for_each(see),
            Queued::Blas(q) => {
                q.matrices.iter_mut().chain(&mut q.bias).for_each(&mut *see);
                with_bytes(&mut q.workspace, see);
            }
            Queued::Conv(q) => {
                q.tensors.iter_mut().for_each(&mut *see);
                with_bytes(&mut q.workspace, see);
            }
            Queued::Attention(q) => {
                q.tensors.iter_mut().for_each(&mut *see);
                with_bytes(&mut q.workspace, see);
            }
            Queued::Fft(q) => {
                [&mut q.x, &mut q.y].into_iter().for_each(&mut *see);
                with_bytes(&mut q.workspace, see);
            }
        }
    }

    /// Makes the call on a stream. `list` is room for the arguments.
    ///
    /// # Safety
    /// The stream is of this driver and alive, and so is the memory that the call uses, of the sizes that the call was recorded with.
    pub(super) unsafe fn make<'a>(
        &'a self,
        driver: &dyn Driver,
        s: RawStream,
        list: &mut Vec<Arg<'a>>,
    ) -> Result<()> {
        match self {
            Queued::Launch { f, config, args, .. } => {
                list.clear();
                list.extend(args.iter().map(Value::arg));
                // SAFETY: the arguments were those of the kernel when the launch was recorded; the rest is the caller's promise.
                unsafe { driver.launch(s, *f, config, list) }
            }
            Queued::Copy { from, to, bytes } => {
                // SAFETY: the ranges were shown to be apart; the rest is the caller's promise.
                unsafe { driver.copy(s, *from, *to, *bytes) }
            }
            Queued::Blas(q) => {
                let lib = driver.vendor_blas().map_err(|_| gone("gemm"))?;
                let [a, b, c, d] = q.matrices;
                // SAFETY: the operands fitted the problem when the call was recorded, the workspace has the size that the library asked for.
                unsafe { lib.gemm(s, &q.problem, q.alpha, q.beta, a, b, c, d, q.bias, q.workspace) }
            }
            Queued::Conv(q) => {
                let lib = driver.vendor_conv().map_err(|_| gone("conv"))?;
                // SAFETY: as above.
                unsafe { lib.run(s, &q.problem, q.tensors, q.workspace) }
            }
            Queued::Attention(q) => {
                let lib = driver.vendor_attention().map_err(|_| gone("attention"))?;
                // SAFETY: as above.
                unsafe { lib.run(s, &q.problem, q.scale, &q.tensors, q.workspace) }
            }
            Queued::Fft(q) => {
                let lib = driver.vendor_fft().map_err(|_| gone("fft"))?;
                // SAFETY: as above.
                unsafe { lib.run(s, &q.problem, q.x, q.y, q.workspace) }
            }
        }
    }
}

fn gone(call: &'static str) -> GpuError {
    GpuError::driver(call, 0, "the library that was recorded is not there any more")
}

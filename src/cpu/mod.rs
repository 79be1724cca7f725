//! The CPU backend: plain Rust loops, independent of the kernel text.
//!
//! Scalar functions and sums are evaluated in f64 whatever the storage type and rounded once: this is the variant `reference`, the oracle of the
//! kernels. What training spends its time in has a variant `vectorized` beside it, in f32 for f32 and 16-bit data ([`vector`]), which is taken
//! where it applies. Work is done before a call returns; errors of indices are still reported by the next waiting call, as on a device.
#![deny(unsafe_code)]
#![warn(clippy::disallowed_macros, clippy::disallowed_methods)]

mod activation;
mod attention;
mod conv;
mod core;
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
mod matmul;
mod mesh;
mod moe;
mod norm;
mod optimizer;
mod pool;
mod quantized;
mod random;
mod reduce;
mod resample;
mod rnn;
mod scan;
mod scratch;
mod shape;
mod softmax;
mod sort;
mod special;
mod state_space;
mod tape;
mod values;
mod vector;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use half::{bf16, f16};

use self::core::{Capture, Timed};
pub(crate) use self::core::{recorded_call, recorded_ops};
use self::scratch::*;
use crate::buffer::{GradMut, HostData, View, ViewMut};
use crate::device::{BackendKind, Caps, DeviceId, physical_memory};
use crate::dtype::{DType, Element, bf16_from_f64, f16_from_f64};
use crate::engine::next_stream_id;
use crate::engine::plan::Choices;
use crate::error::{GpuError, Result};
use crate::index_error::{self, IndexErrors, Write};
use crate::layout::Layout;

/// The CPU implementation of [`IGpuBackend`](crate::IGpuBackend).
#[derive(Clone)]
pub struct CpuBackend {
    kernels: Kernels,
    capture: Arc<Capture>,
}

/// The operations of all families but `Core`, on behalf of a handle.
#[derive(Clone)]
pub(crate) struct Kernels {
    shared: Arc<Shared>,
    pool: Arc<self::core::HostPool>,
    choices: Arc<Choices>,
    stream: u64,
}

struct Shared {
    caps: Caps,
    launches: AtomicU64,
    uploads: AtomicU64,
    downloads: AtomicU64,
    allocations: AtomicU64,
    syncs: AtomicU64,
}

/// Indices out of range that operations met; the CPU is one device of the process.
fn index_errors() -> &'static IndexErrors {
    static ERRORS: LazyLock<IndexErrors> = LazyLock::new(IndexErrors::default);
    &ERRORS
}

thread_local! {
    /// Stream of the operation that this thread runs, and the number of its first write.
    static RUNNING: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl CpuBackend {
    /// The CPU as a device.
    pub fn new() -> Self {
        self::core::include_main_thread();
        let mut caps = Caps::new(DeviceId::new(BackendKind::Cpu, 0), "CPU", std::env::consts::ARCH);
        caps.compute_units = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        caps.f64 = true;
        caps.is_cpu = true;
        caps.driver_version = env!("CARGO_PKG_VERSION").into();
        caps.memory_bytes = physical_memory().unwrap_or(0);
        CpuBackend::of(Arc::new(Shared::new(caps)), vector::pins_of_environment())
    }

    /// Another handle of the device.
    fn of(shared: Arc<Shared>, choices: Choices) -> Self {
        let (choices, stream) = (Arc::new(choices), next_stream_id());
        let kernels = Kernels { shared, pool: Arc::default(), choices, stream };
        CpuBackend { kernels, capture: Arc::default() }
    }
}

impl Shared {
    /// Of a device that was asked for nothing yet.
    fn new(caps: Caps) -> Self {
        Shared {
            caps,
            launches: AtomicU64::new(0),
            uploads: AtomicU64::new(0),
            downloads: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }
    }
}

impl Kernels {
    /// Begins and counts one operation, whose time is taken until the value is dropped, should times be taken.
    fn count(&self, op: &'static str) -> Timed {
        self.enter();
        self::core::keep_awake();
        self.shared.launches.fetch_add(1, Ordering::Relaxed);
        Timed::begin(op, self.stream)
    }

    /// Begins work of this handle on the calling thread.
    fn enter(&self) {
        RUNNING.set((self.stream, index_error::now()));
    }

    /// Remembers that `op` met an index out of range, for the next waiting call.
    fn flag_index_error(&self, op: &'static str) {
        let (_, from) = RUNNING.get();
        index_errors().found(self.stream, op, from);
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuBackend({})", self.kernels.shared.caps.id)
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        CpuBackend::new()
    }
}

/// An element type with its variant of [`HostData`].
pub(crate) trait HostElement: Element + Copy + Default + Send + Sync {
    fn slice(d: &HostData) -> Option<&[Self]>;
    fn slice_mut(d: &mut HostData) -> Option<&mut [Self]>;
    fn to_f64(self) -> f64;
    /// Rounds to nearest even (floats); truncates and saturates with NaN giving 0 (integers).
    fn from_f64(x: f64) -> Self;
}

macro_rules! host_element {
    ($($t:ty, $v:ident, $to:expr, $from:expr;)*) => {$(
        impl HostElement for $t {
            fn slice(d: &HostData) -> Option<&[Self]> {
                match d { HostData::$v(x) => Some(x), _ => None }
            }
            fn slice_mut(d: &mut HostData) -> Option<&mut [Self]> {
                match d { HostData::$v(x) => Some(x), _ => None }
            }
            #[inline]
            fn to_f64(self) -> f64 { ($to)(self) }
            #[inline]
            fn from_f64(x: f64) -> Self { ($from)(x) }
        }
    )*};
}
host_element! {
    f32, F32, |x: f32| x as f64, |x: f64| x as f32;
    f64, F64, |x: f64| x, |x: f64| x;
    f16, F16, |x: f16| x.to_f64(), f16_from_f64;
    bf16, Bf16, |x: bf16| x.to_f64(), bf16_from_f64;
    i32, I32, |x: i32| x as f64, |x: f64| x as i32;
    i64, I64, |x: i64| x as f64, |x: f64| x as i64;
    u8, U8, |x: u8| x as f64, |x: f64| x as u8;
}

/// Runs `$body` with the type alias `$t` bound to the Rust type of a dtype.
macro_rules! with_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            $crate::DType::Bf16 => {
                type $t = half::bf16;
                $body
            }
            $crate::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::DType::U8 => {
                type $t = u8;
                $body
            }
        }
    };
}
pub(crate) use with_dtype;

/// Read access to a block of this backend.
fn read<'a>(op: &'static str, v: &View<'a>) -> Result<RwLockReadGuard<'a, HostData>> {
    match v.block().host() {
        Some(h) => Ok(h.data.read().unwrap_or_else(PoisonError::into_inner)),
        None => Err(foreign(op, v.device())),
    }
}

/// Write access to a block of this backend.
fn write<'a>(op: &'static str, v: &ViewMut<'a>) -> Result<RwLockWriteGuard<'a, HostData>> {
    match v.block().host() {
        Some(h) => {
            let (stream, _) = RUNNING.get();
            *h.write.lock().unwrap_or_else(PoisonError::into_inner) = Write::new(stream);
            Ok(h.data.write().unwrap_or_else(PoisonError::into_inner))
        }
        None => Err(foreign(op, v.device())),
    }
}

fn foreign(op: &'static str, device: DeviceId) -> GpuError {
    GpuError::invalid(op, "buffer", "a buffer of the CPU backend", format!("one of {device}"))
}

fn wrong_storage(op: &'static str, dtype: DType) -> GpuError {
    GpuError::invalid(op, "buffer", "storage of the view's dtype", dtype.name())
}

/// Offsets of a layout's elements in row-major order.
pub(crate) fn offsets(l: &Layout) -> impl Iterator<Item = usize> + '_ {
    places(l.shape(), l.strides(), l.offset(), l.numel())
}

/// The first `count` offsets of axes from `at` on, in row-major order.
fn places<'a>(
    shape: &'a [usize],
    strides: &'a [usize],
    mut at: usize,
    count: usize,
) -> impl Iterator<Item = usize> + 'a {
    let mut ix = [0usize; crate::layout::MAX_RANK];
    let mut left = count;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        left -= 1;
        let here = at;
        for a in (0..shape.len()).rev() {
            if ix[a] + 1 < shape[a] {
                ix[a] += 1;
                at += strides[a];
                break;
            }
            at -= strides[a] * ix[a];
            ix[a] = 0;
        }
        Some(here)
    })
}

/// The view's elements in row-major order.
pub(crate) fn gather<T: HostElement>(op: &'static str, v: View<'_>) -> Result<Vec<T>> {
    let guard = read(op, &v)?;
    let s = T::slice(&guard).ok_or_else(|| wrong_storage(op, v.dtype()))?;
    let l = v.layout();
    if l.is_contiguous() {
        return s[l.offset()..l.offset() + l.numel()].try_to_vec();
    }
    let mut out = with_capacity(l.numel())?;
    let (Some((&n, outer)), Some((&stride, steps))) = (l.shape().split_last(), l.strides().split_last())
    else {
        return Ok(out);
    };
    for at in places(outer, steps, l.offset(), l.numel().checked_div(n).unwrap_or(0)) {
        match stride {
            1 => out.try_extend(s[at..at + n].iter().copied())?,
            0 => out.try_extend(std::iter::repeat_n(s[at], n))?,
            _ => out.try_extend((0..n).map(|i| s[at + i * stride]))?,
        }
    }
    Ok(out)
}

/// The view's elements in row-major order, widened to f64 (i64 beyond 2^53 loses digits: integer operations use [`gather`]).
pub(crate) fn gather_f64(op: &'static str, v: View<'_>) -> Result<Vec<f64>> {
    with_dtype!(v.dtype(), T => values::widened::<T>(op, v))
}

/// Index values (i32 or i64), `None` where negative.
pub(crate) fn gather_index(op: &'static str, v: View<'_>) -> Result<Vec<Option<usize>>> {
    Ok(match v.dtype() {
        DType::I32 => gather::<i32>(op, v)?.into_iter().map(|i| usize::try_from(i).ok()).try_vec()?,
        DType::I64 => gather::<i64>(op, v)?.into_iter().map(|i| usize::try_from(i).ok()).try_vec()?,
        d => return Err(GpuError::invalid(op, "index", "i32 or i64", d.name())),
    })
}

/// Stores row-major values into a view.
pub(crate) fn store<T: HostElement>(op: &'static str, v: &ViewMut<'_>, data: &[T]) -> Result<()> {
    let l = v.layout();
    if l.is_contiguous() {
        return values::change::<T>(op, v, |at, y| y.copy_from_slice(&data[at..at + y.len()]));
    }
    let mut guard = write(op, v)?;
    let s = T::slice_mut(&mut guard).ok_or_else(|| wrong_storage(op, v.dtype()))?;
    if l.strides().last() != Some(&1) {
        offsets(l).zip(data).for_each(|(at, x)| s[at] = *x);
        return Ok(());
    }
    values::store_rows(&mut s[l.offset()..], l.shape(), l.strides(), &data[..l.numel()]);
    Ok(())
}

/// Calls `f(i, element)` for each element of a view in row-major order.
pub(crate) fn update<T: HostElement>(
    op: &'static str,
    v: &ViewMut<'_>,
    mut f: impl FnMut(usize, &mut T),
) -> Result<()> {
    let mut guard = write(op, v)?;
    let s = T::slice_mut(&mut guard).ok_or_else(|| wrong_storage(op, v.dtype()))?;
    let l = v.layout();
    if l.is_contiguous() {
        let o = l.offset();
        s[o..o + l.numel()].iter_mut().enumerate().for_each(|(i, x)| f(i, x));
    } else {
        each_apart(s, l, &mut f);
    }
    Ok(())
}

/// The same where elements lie apart. A reference: the walk is compiled once for a type.
fn each_apart<T>(s: &mut [T], l: &Layout, f: &mut dyn FnMut(usize, &mut T)) {
    offsets(l).enumerate().for_each(|(i, at)| f(i, &mut s[at]));
}

/// Stores f64 values, rounded to the view's dtype.
pub(crate) fn store_f64(op: &'static str, v: &ViewMut<'_>, data: &[f64]) -> Result<()> {
    with_dtype!(v.dtype(), T => values::change::<T>(op, v, |at, y| {
        y.iter_mut().zip(&data[at..]).for_each(|(y, &x)| *y = HostElement::from_f64(x));
    }))
}

/// Stores f64 values into a gradient, overwriting or adding.
pub(crate) fn store_grad(op: &'static str, g: &GradMut<'_>, data: &[f64]) -> Result<()> {
    if !g.accumulate {
        return store_f64(op, &g.out, data);
    }
    with_dtype!(g.out.dtype(), T => values::change::<T>(op, &g.out, |at, y| {
        y.iter_mut().zip(&data[at..]).for_each(|(y, &x)| *y = HostElement::from_f64(HostElement::to_f64(*y) + x));
    }))
}

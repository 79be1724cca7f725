//! Arithmetic in f32 beside the reference in f64: what f32, f16 and bf16 data are computed with where an operation has a variant `vectorized`.
//!
//! Loops over slices of f32 that the compiler turns into vector instructions. [`vectorized`] compiles its closure for several instruction sets and
//! takes that of the processor, so what a closure calls must be inlined into it: functions of elements here are `#[inline(always)]`, functions of
//! slices choose the instructions themselves. Work is cut into parts of a fixed size, so no result depends on the number of threads.

pub(in crate::cpu) mod activation;
pub(in crate::cpu) mod math;
pub(in crate::cpu) mod product;
pub(in crate::cpu) mod row;

use std::ops::{Add, Deref, DerefMut, Mul, Range};
use std::sync::RwLockWriteGuard;

use half::{bf16, f16};

use crate::buffer::{GradMut, HostData, View, ViewMut};
use crate::cpu::core::REPLAYS;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, change, change_all, collected, each_chunk};
use crate::cpu::{HostElement, Kernels, store, write, wrong_storage};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Choices, Problem, Reason, Variant};
use crate::error::Result;

/// Runs `f` with the widest vector instructions of the processor, for loops that wait for arithmetic.
#[inline]
pub(in crate::cpu) fn widest<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// Runs `f` with the vector instructions of the processor: those of AVX2 where there is AVX-512, too. Most loops wait for memory.
#[inline]
pub(in crate::cpu) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    match pulp::Arch::new() {
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V4(s) => (*s).vectorize(f),
        #[cfg(target_arch = "x86_64")]
        pulp::Arch::V3(s) => s.vectorize(f),
        #[cfg(target_arch = "x86_64")]
        _ => f(),
        #[cfg(not(target_arch = "x86_64"))]
        arch => arch.dispatch(f),
    }
}

/// As [`vectorized`], for an expression that is inlined whatever its size: long closures stay functions without these instructions.
macro_rules! simd {
    ($body:expr) => {
        $crate::cpu::vector::vectorized(
            #[inline(always)]
            || $body,
        )
    };
}
pub(in crate::cpu) use simd;

/// As [`simd`], by [`widest`].
macro_rules! simd_widest {
    ($body:expr) => {
        $crate::cpu::vector::widest(
            #[inline(always)]
            || $body,
        )
    };
}
pub(in crate::cpu) use simd_widest;

/// Arithmetic of f32 and f64.
pub(in crate::cpu) trait Float: HostElement + Add<Output = Self> + Mul<Output = Self> {}
impl Float for f32 {}
impl Float for f64 {}

/// A storage type whose arithmetic is f32.
pub(in crate::cpu) trait Narrow: HostElement {
    fn widen(self) -> f32;
    fn narrow(x: f32) -> Self;

    /// The elements as f32: in place, or in `room`.
    fn widened<'a>(x: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        let room = &mut room[..x.len()];
        room.iter_mut().zip(x).for_each(|(r, x)| *r = x.widen());
        room
    }

    /// Lets `f` change elements as f32: in place, or in `room`.
    fn change(y: &mut [Self], room: &mut [f32], f: impl FnOnce(&mut [f32])) {
        let room = &mut room[..y.len()];
        room.iter_mut().zip(&*y).for_each(|(r, y)| *r = y.widen());
        f(room);
        y.iter_mut().zip(room).for_each(|(y, r)| *y = Self::narrow(*r));
    }
}

impl Narrow for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
    fn widened<'a>(x: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        x
    }
    fn change(y: &mut [f32], _: &mut [f32], f: impl FnOnce(&mut [f32])) {
        f(y);
    }
}

impl Narrow for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Narrow for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}

/// Runs `$body` with the type alias `$t` bound to the storage type of f32, f16 or bf16 data; other types are f64, which no vectorized variant takes.
macro_rules! with_narrow {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F16 => {
                type $t = half::f16;
                $body
            }
            $crate::DType::Bf16 => {
                type $t = half::bf16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(in crate::cpu) use with_narrow;

/// The operations that have a variant `vectorized`.
pub(in crate::cpu) const OPERATIONS: &[&str] = &[
    "activation",
    "activation_bwd",
    "attention",
    "attention_bwd",
    "avg_pool",
    "avg_pool_bwd",
    "batch_norm",
    "batch_norm_bwd",
    "binary",
    "binary_bwd",
    "conv",
    "conv_bwd",
    "conv_transpose",
    "conv_transpose_bwd",
    "cross_entropy",
    "cross_entropy_bwd",
    "embedding_bwd",
    "group_norm",
    "group_norm_bwd",
    "gru_cell",
    "gru_cell_bwd",
    "instance_norm",
    "lstm_cell",
    "lstm_cell_bwd",
    "masked_softmax",
    "masked_softmax_bwd",
    "max_pool",
    "max_pool_bwd",
    "min_max",
    "optimizer_step",
    "reduce",
    "rnn",
    "rnn_bwd",
    "rnn_gates",
    "row_norm",
    "row_norm_bwd",
    "softmax",
    "softmax_bwd",
    "sum_to_shape",
    "unary",
];

/// Names of the variants: loops over f32, and what the kernels are compared with.
const VECTORIZED: &str = "vectorized";
pub(in crate::cpu) const REFERENCE: &str = "reference";

/// In which arithmetic an operation is computed.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Arithmetic {
    dtype: DType,
    /// Why the operation has no variant in f32 for its other arguments.
    without: Option<&'static str>,
    /// Whether there are so few elements that f64 costs nothing.
    few: bool,
}

impl Arithmetic {
    /// Of f32 data and arguments that any variant takes.
    pub(in crate::cpu) const F32: Self = Arithmetic { dtype: DType::F32, without: None, few: false };
}

impl Problem for Arithmetic {
    /// Whether it is f32.
    type Plan = bool;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: VECTORIZED, source: "src/cpu/vector" },
        Variant { name: REFERENCE, source: "src/cpu" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> std::result::Result<bool, Reason> {
        match (variant, self.without) {
            (0, Some(why)) => Err(why.into()),
            (0, None) if ![DType::F32, DType::F16, DType::Bf16].contains(&self.dtype) => {
                Err(format!("{} data is computed in f64", self.dtype.name()).into())
            }
            _ => Ok(variant == 0),
        }
    }

    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        variant != 0 || !self.few
    }
}

/// The pins of `TREFOIL_VARIANT` that name a variant of this backend; others are meant for other devices.
pub(in crate::cpu) fn pins_of_environment() -> Choices {
    let choices = Choices::from_env().unwrap_or_default();
    choices.retain(|pin| [VECTORIZED, REFERENCE].contains(&pin) || REPLAYS.contains(&pin));
    choices
}

/// What is said of functions that only the reference has.
pub(in crate::cpu) const NO_F32: &str = "this function is computed in f64";

impl Kernels {
    /// Whether `op` is computed in f32 for data of this type; `without`: why it has no such variant for its other arguments. Errors: a pinned
    /// variant that does not apply.
    pub(in crate::cpu) fn in_f32(
        &self,
        op: &'static str,
        dtype: DType,
        without: Option<&'static str>,
    ) -> Result<bool> {
        self.choices.plan(op, &self.shared.caps, &Arithmetic { dtype, without, few: false })
    }

    /// As [`Kernels::in_f32`] for `elements` of them: few are computed in f64, which costs nothing there, unless a pin says otherwise.
    pub(in crate::cpu) fn in_f32_unless_few(
        &self,
        op: &'static str,
        dtype: DType,
        without: Option<&'static str>,
        elements: usize,
    ) -> Result<bool> {
        let few = elements < FEW;
        self.choices.plan(op, &self.shared.caps, &Arithmetic { dtype, without, few })
    }
}

/// Elements below which f64 is preferred.
pub(in crate::cpu) const FEW: usize = 1024;

/// Elements of 16 bits that are widened at a time.
pub(in crate::cpu) const ROOM: usize = 1024;

/// y = f(x), or y += f(x), of one dtype and shape: `f` writes its second argument, a part of y, from the same part of x.
pub(in crate::cpu) fn map1(
    op: &'static str,
    x: View<'_>,
    out: &GradMut<'_>,
    f: impl Fn(&[f32], &mut [f32]) + Sync,
) -> Result<()> {
    let block = out.out.block().id();
    with_narrow!(out.out.dtype(), T => {
        let x = Values::<T>::new(op, x, &[block])?;
        change_in_f32::<T>(op, out, |at, y| {
            let mut room = [0.0; ROOM];
            f(T::widened(&x[at..at + y.len()], &mut room), y);
        })
    })
}

/// y = f(a, b), or y += f(a, b), as [`map1`].
pub(in crate::cpu) fn map2(
    op: &'static str,
    [a, b]: [View<'_>; 2],
    out: &GradMut<'_>,
    f: impl Fn(&[f32], &[f32], &mut [f32]) + Sync,
) -> Result<()> {
    let [block, of_a, of_b] = [out.out.block().id(), a.block().id(), b.block().id()];
    with_narrow!(out.out.dtype(), T => {
        let (a, b) = (Values::<T>::new(op, a, &[block, of_b])?, Values::<T>::new(op, b, &[block, of_a])?);
        change_in_f32::<T>(op, out, |at, y| {
            let [mut of_a, mut of_b] = [[0.0; ROOM]; 2];
            let part = at..at + y.len();
            f(T::widened(&a[part.clone()], &mut of_a), T::widened(&b[part], &mut of_b), y);
        })
    })
}

/// Lets `f` write parts of at most [`ROOM`] elements, of which it gets the number of the first; they are stored or added.
pub(in crate::cpu) fn change_in_f32<T: Narrow>(
    op: &'static str,
    out: &GradMut<'_>,
    f: impl Fn(usize, &mut [f32]) + Sync,
) -> Result<()> {
    change::<T>(op, &out.out, |at, y| {
        for (i, y) in y.chunks_mut(ROOM).enumerate() {
            let at = at + i * ROOM;
            let mut room = [0.0; ROOM];
            if !out.accumulate {
                T::change(y, &mut room, |y| f(at, y));
                continue;
            }
            let mut more = [0.0; ROOM];
            let more = &mut more[..y.len()];
            f(at, more);
            T::change(y, &mut room, |y| add(y, more));
        }
    })
}

/// A view's elements in row-major order as f32: in place where they lie so, else a copy. `others` as for [`Values::new`].
pub(in crate::cpu) fn values<'a>(op: &'static str, v: View<'a>, others: &[u64]) -> Result<Values<'a, f32>> {
    if v.dtype() == DType::F32 {
        return Values::new(op, v, others);
    }
    with_narrow!(v.dtype(), T => {
        let x = Values::<T>::new(op, v, others)?;
        Ok(Values::Copied(match x.len() < 2 * CHUNK {
            true => TryVec::try_vec(x.iter().map(|x| x.widen()))?,
            false => {
                let mut wide = filled(x.len(), 0.0)?;
                each_chunk(&mut wide, CHUNK, Share::ANY, &|i, wide| {
                    wide.iter_mut().zip(&x[i * CHUNK..]).for_each(|(y, x)| *y = x.widen());
                });
                wide
            }
        }))
    })
}

/// Lets `f` write every element of a result, or what is added to it, as f32 in row-major order: in place where they lie so.
pub(in crate::cpu) fn fill(
    op: &'static str,
    out: &GradMut<'_>,
    f: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let (v, l) = (&out.out, out.out.layout());
    if v.dtype() == DType::F32 && !out.accumulate && l.is_contiguous() {
        let mut guard = write(op, v)?;
        let all = f32::slice_mut(&mut guard).and_then(|s| s.get_mut(l.offset()..l.offset() + l.numel()));
        return f(all.ok_or_else(|| wrong_storage(op, DType::F32))?);
    }
    let mut all = filled(l.numel(), 0.0)?;
    f(&mut all)?;
    put(op, out, &all)
}

/// Lets `f` write a result in row-major order, or add to it, as f32: it gets the memory and the factor of what is there, 0 or 1.
pub(in crate::cpu) fn write_or_add(
    op: &'static str,
    out: &GradMut<'_>,
    f: impl FnOnce(&mut [f32], f32) -> Result<()>,
) -> Result<()> {
    if out.out.dtype() == DType::F32 && out.out.layout().is_contiguous() {
        return change_all::<f32>(op, &out.out, |y| f(y, if out.accumulate { 1.0 } else { 0.0 }));
    }
    let mut all = filled(out.out.numel(), 0.0)?;
    f(&mut all, 0.0)?;
    put(op, out, &all)
}

/// Blocks of the operands of a call, as often as it names them.
pub(in crate::cpu) struct Blocks(pub(in crate::cpu) Vec<u64>);

impl Blocks {
    /// The `others` of [`values`]: all of them where another operand lies in the block of this one.
    pub(in crate::cpu) fn of_others(&self, v: &View<'_>) -> &[u64] {
        let id = v.block().id();
        if self.0.iter().filter(|b| **b == id).count() > 1 { &self.0 } else { &[] }
    }
}

/// Memory for a result in row-major order as f32: where it lies, if it lies so and no other operand is in its block. It holds anything at first.
pub(in crate::cpu) enum Written<'a> {
    Held(RwLockWriteGuard<'a, HostData>, Range<usize>),
    Own(Vec<f32>),
}

impl<'a> Written<'a> {
    /// For a result, or `len` elements that nobody wants to keep.
    pub(in crate::cpu) fn new(
        op: &'static str,
        v: Option<&ViewMut<'a>>,
        len: usize,
        blocks: &Blocks,
    ) -> Result<Self> {
        let fits = |v: &&ViewMut<'_>| v.dtype() == DType::F32 && v.is_contiguous();
        match v.filter(fits).filter(|v| blocks.of_others(&v.as_view()).is_empty()) {
            Some(v) => {
                let at = v.layout().offset();
                Ok(Written::Held(write(op, v)?, at..at + v.numel()))
            }
            None => filled(len, 0.0).map(Written::Own),
        }
    }

    /// Stores what does not lie in its place.
    pub(in crate::cpu) fn store(self, op: &'static str, v: Option<ViewMut<'_>>) -> Result<()> {
        match (self, v) {
            (Written::Own(data), Some(v)) => put(op, &v.grad(false), &data),
            _ => Ok(()),
        }
    }
}

impl Deref for Written<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match self {
            Written::Held(guard, range) => f32::slice(guard).map_or(&[], |s| &s[range.clone()]),
            Written::Own(data) => data,
        }
    }
}

impl DerefMut for Written<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Written::Held(guard, range) => f32::slice_mut(guard).map_or(&mut [], |s| &mut s[range.clone()]),
            Written::Own(data) => data,
        }
    }
}

/// Stores or adds row-major values.
pub(in crate::cpu) fn put(op: &'static str, out: &GradMut<'_>, data: &[f32]) -> Result<()> {
    if out.out.dtype() == DType::F32 && !out.accumulate {
        return store(op, &out.out, data);
    }
    with_narrow!(out.out.dtype(), T => change::<T>(op, &out.out, |at, y| {
        let both = y.iter_mut().zip(&data[at..]);
        match out.accumulate {
            false => both.for_each(|(y, x)| *y = T::narrow(*x)),
            true => both.for_each(|(y, x)| *y = T::narrow(y.widen() + x)),
        }
    }))
}

/// Calls `f` with parts of whole rows of `cols` elements and the number of their first element.
pub(in crate::cpu) fn row_parts(y: &mut [f32], cols: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let cols = cols.max(1);
    let part = (CHUNK / cols).max(1) * cols;
    each_chunk(y, part, Share::ANY, &|i, y| f(i * part, y));
}

/// Rows whose sums are taken in the arithmetic's type before they are added in f64.
const SUMMED: usize = 64;

/// Sums of columns: `f` adds row `q` to its second argument, of which there are `cols`.
pub(in crate::cpu) fn column_sums<T: Float>(
    rows: usize,
    cols: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) -> Result<Vec<f64>> {
    let block = |i: usize| -> Result<Vec<T>> {
        let mut sums = filled(cols, T::default())?;
        simd!({
            for q in i * SUMMED..rows.min((i + 1) * SUMMED) {
                f(q, &mut sums);
            }
        });
        Ok(sums)
    };
    let blocks = collected(rows.div_ceil(SUMMED), (CHUNK / (SUMMED * cols.max(1))).max(1), &block)?;
    let mut all = filled(cols, 0.0)?;
    for sums in blocks {
        all.iter_mut().zip(sums?).for_each(|(a, s)| *a += s.to_f64());
    }
    Ok(all)
}

/// Sums of the columns of a row-major matrix; those of few elements in f64.
pub(in crate::cpu) fn matrix_column_sums<T: Float>(x: &[T], cols: usize) -> Result<Vec<f64>> {
    let rows = x.len() / cols.max(1);
    let row = |q: usize| &x[q * cols..][..cols];
    if x.len() < FEW {
        let mut sums = filled(cols, 0.0)?;
        (0..rows).for_each(|q| sums.iter_mut().zip(row(q)).for_each(|(s, x)| *s += x.to_f64()));
        return Ok(sums);
    }
    column_sums::<T>(rows, cols, |q, sums| sums.iter_mut().zip(row(q)).for_each(|(s, x)| *s = *s + *x))
}

/// y += x
pub(in crate::cpu) fn add(y: &mut [f32], x: &[f32]) {
    simd!(y.iter_mut().zip(x).for_each(|(y, x)| *y += x));
}

//! Arithmetic in f32 beside the reference in f64: what f32, f16 and bf16 data are computed with where an operation has a variant `vectorized`.
//!
//! Loops over slices of f32 that the compiler turns into vector instructions. [`vectorized`] compiles its closure for several instruction sets and
//! takes that of the processor, so what a closure calls must be inlined into it: functions of elements here are `#[inline(always)]`, functions of
//! slices choose the instructions themselves. Work is cut into parts of a fixed size, so no result depends on the number of threads.

pub(in crate::cpu) mod activation;
pub(in crate::cpu) mod math;
pub(in crate::cpu) mod product;

use std::ops::{Add, Mul};

use half::{bf16, f16};

use crate::buffer::{GradMut, View};
use crate::cpu::values::{Values, change};
use crate::cpu::{CpuBackend, HostElement};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Choices, Problem, Reason, Variant};
use crate::error::Result;

/// Runs `f` with the vector instructions of the processor.
#[inline]
pub(in crate::cpu) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

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
    "avg_pool",
    "avg_pool_bwd",
    "binary",
    "conv",
    "conv_bwd",
    "conv_transpose",
    "conv_transpose_bwd",
    "gru_cell",
    "gru_cell_bwd",
    "lstm_cell",
    "lstm_cell_bwd",
    "max_pool",
    "max_pool_bwd",
    "rnn",
    "rnn_bwd",
    "rnn_gates",
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
}

impl Arithmetic {
    /// Of f32 data and arguments that any variant takes.
    pub(in crate::cpu) const F32: Self = Arithmetic { dtype: DType::F32, without: None };
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
}

/// The pins of `TREFOIL_VARIANT` that name a variant of this backend; others are meant for other devices.
pub(in crate::cpu) fn pins_of_environment() -> Choices {
    let choices = Choices::from_env().unwrap_or_default();
    choices.retain(|pin| [VECTORIZED, REFERENCE].contains(&pin));
    choices
}

/// What is said of functions that only the reference has.
pub(in crate::cpu) const NO_F32: &str = "this function is computed in f64";

impl CpuBackend {
    /// Whether `op` is computed in f32 for data of this type; `without`: why it has no such variant for its other arguments. Errors: a pinned
    /// variant that does not apply.
    pub(in crate::cpu) fn in_f32(
        &self,
        op: &'static str,
        dtype: DType,
        without: Option<&'static str>,
    ) -> Result<bool> {
        self.choices.plan(op, &self.shared.caps, &Arithmetic { dtype, without })
    }
}

/// Elements of 16 bits that are widened at a time.
const ROOM: usize = 1024;

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

/// y = x, or y += x; x are row-major values.
pub(in crate::cpu) fn put<T: Narrow>(op: &'static str, y: &GradMut<'_>, x: &[f32]) -> Result<()> {
    change_in_f32::<T>(op, y, |at, y| y.copy_from_slice(&x[at..at + y.len()]))
}

/// y += x
pub(in crate::cpu) fn add(y: &mut [f32], x: &[f32]) {
    vectorized(|| y.iter_mut().zip(x).for_each(|(y, x)| *y += x));
}

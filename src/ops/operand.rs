//! Arguments of operations that outlive their call: what a recording keeps of them, and how a replay gives them again.
//!
//! `io_struct!` implements [`Operand`] for the structs it declares; the enums of operands, and the types of plain values, are listed below. An operation
//! with an argument of a type that is missing here does not compile, so that every operation can be recorded.

use super::activation::{Activation, GatedGrad, GatedInput, Saved};
use super::attention::{Attention, AttentionMask, Causal, Rope};
use super::conv::Conv;
use super::distance::{Metric, Similarity};
use super::embedding::EmbeddingGrad;
use super::field::{HashGrid, Projection};
use super::fourier::Fft;
use super::gemm::{Gemm, Precision};
use super::graph::{Csr, EdgeOp, GroupReduce, Message, MessageReduce};
use super::index::ScatterReduce;
use super::language_model::{LinearCrossEntropy, LogitProcessors};
use super::linalg::Triangular;
use super::loss::{BatchLoss, CrossEntropy, Loss, Reduction, RowLoss, SeqLoss, StftResolution};
use super::mesh::{DiffusionOperator, MeshConv};
use super::moe::MoeRouter;
use super::norm::{BatchNorm, BatchStats, GroupNorm, InstanceNorm, Momentum, RowNorm, Running};
use super::optimizer::{AdaptiveRule, ClipAdaptive, ClipNorm, LossScale, OptimRule, Scalar};
use super::pool::Pooling;
use super::quantized::{Fp8, QuantFormat, QuantWeight};
use super::random::{Distribution, DropoutMask, Rng, Weights};
use super::reduce::{ArgReduce, Reduce};
use super::resample::{GridSample, Interpolate, RoiAlign};
use super::rnn::{Recurrence, RnnCell};
use super::scan::{CumSum, SegmentReduce};
use super::shape::{PadMode, Triangle};
use super::softmax::Softmax;
use crate::buffer::{Access, GradMut, OwnedView, View, ViewMut};
use crate::dtype::DType;
use crate::ops::elementwise::{Binary, Ternary, Unary};

/// What is done with each view of some operands.
pub(crate) type Visit<'f> = &'f mut dyn FnMut(&mut OwnedView);

/// A value that operations take: a view, a plain value, or what is made of them.
pub(crate) trait Operand {
    /// The same without lifetimes.
    type Owned: Send + Sync + 'static;
    /// The same with the lifetime of what is kept.
    type Lent<'b>: 'b;

    fn own(&self) -> Self::Owned;
    fn lend(owned: &Self::Owned) -> Self::Lent<'_>;
    fn each(owned: &mut Self::Owned, visit: Visit<'_>);
}

/// An argument of an operation: an [`Operand`], or a reference to one or several.
pub(crate) trait Argument {
    /// What a recording keeps.
    type Owned: Send + Sync + 'static;
    /// What a replay holds while it makes the call.
    type Lent<'b>;
    /// What it passes.
    type Arg<'b, 'c>
    where
        'b: 'c;

    fn own(&self) -> Self::Owned;
    fn each(owned: &mut Self::Owned, visit: Visit<'_>);
    fn lend(owned: &Self::Owned) -> Self::Lent<'_>;
    fn arg<'b: 'c, 'c>(lent: &'c mut Self::Lent<'b>) -> Self::Arg<'b, 'c>;
}

/// Makes an operand an argument that is passed by value.
macro_rules! by_value {
    ([$($g:tt)*] $t:ty) => {
        impl<$($g)*> $crate::ops::operand::Argument for $t {
            type Owned = <$t as $crate::ops::operand::Operand>::Owned;
            type Lent<'b> = &'b Self::Owned;
            type Arg<'b, 'c> = <$t as $crate::ops::operand::Operand>::Lent<'b> where 'b: 'c;

            fn own(&self) -> Self::Owned {
                $crate::ops::operand::Operand::own(self)
            }

            fn each(owned: &mut Self::Owned, visit: $crate::ops::operand::Visit<'_>) {
                <$t as $crate::ops::operand::Operand>::each(owned, visit);
            }

            fn lend(owned: &Self::Owned) -> Self::Lent<'_> {
                owned
            }

            fn arg<'b: 'c, 'c>(lent: &'c mut Self::Lent<'b>) -> Self::Arg<'b, 'c> {
                <$t as $crate::ops::operand::Operand>::lend(lent)
            }
        }
    };
}

impl<T: Operand> Argument for &T {
    type Owned = T::Owned;
    type Lent<'b> = T::Lent<'b>;
    type Arg<'b, 'c>
        = &'c T::Lent<'b>
    where
        'b: 'c;

    fn own(&self) -> T::Owned {
        T::own(self)
    }

    fn each(owned: &mut T::Owned, visit: Visit<'_>) {
        T::each(owned, visit);
    }

    fn lend(owned: &T::Owned) -> T::Lent<'_> {
        T::lend(owned)
    }

    fn arg<'b: 'c, 'c>(lent: &'c mut T::Lent<'b>) -> &'c T::Lent<'b> {
        lent
    }
}

impl<T: Operand> Argument for &[T] {
    type Owned = Vec<T::Owned>;
    type Lent<'b> = Vec<T::Lent<'b>>;
    type Arg<'b, 'c>
        = &'c [T::Lent<'b>]
    where
        'b: 'c;

    fn own(&self) -> Vec<T::Owned> {
        self.iter().map(T::own).collect()
    }

    fn each(owned: &mut Vec<T::Owned>, visit: Visit<'_>) {
        owned.iter_mut().for_each(|o| T::each(o, visit));
    }

    fn lend(owned: &Vec<T::Owned>) -> Vec<T::Lent<'_>> {
        owned.iter().map(T::lend).collect()
    }

    fn arg<'b: 'c, 'c>(lent: &'c mut Vec<T::Lent<'b>>) -> &'c [T::Lent<'b>] {
        lent
    }
}

impl<T: Operand> Argument for &mut [T] {
    type Owned = Vec<T::Owned>;
    type Lent<'b> = Vec<T::Lent<'b>>;
    type Arg<'b, 'c>
        = &'c mut [T::Lent<'b>]
    where
        'b: 'c;

    fn own(&self) -> Vec<T::Owned> {
        self.iter().map(T::own).collect()
    }

    fn each(owned: &mut Vec<T::Owned>, visit: Visit<'_>) {
        owned.iter_mut().for_each(|o| T::each(o, visit));
    }

    fn lend(owned: &Vec<T::Owned>) -> Vec<T::Lent<'_>> {
        owned.iter().map(T::lend).collect()
    }

    fn arg<'b: 'c, 'c>(lent: &'c mut Vec<T::Lent<'b>>) -> &'c mut [T::Lent<'b>] {
        lent
    }
}

impl Operand for View<'_> {
    type Owned = OwnedView;
    type Lent<'b> = View<'b>;

    fn own(&self) -> OwnedView {
        OwnedView::new(self, Access::Read)
    }

    fn lend(owned: &OwnedView) -> View<'_> {
        owned.view()
    }

    fn each(owned: &mut OwnedView, visit: Visit<'_>) {
        visit(owned);
    }
}
by_value!(['a] View<'a>);

impl Operand for ViewMut<'_> {
    type Owned = OwnedView;
    type Lent<'b> = ViewMut<'b>;

    fn own(&self) -> OwnedView {
        OwnedView::new(&self.as_view(), Access::Change)
    }

    fn lend(owned: &OwnedView) -> ViewMut<'_> {
        owned.view_mut()
    }

    fn each(owned: &mut OwnedView, visit: Visit<'_>) {
        visit(owned);
    }
}
by_value!(['a] ViewMut<'a>);

impl Operand for GradMut<'_> {
    type Owned = OwnedView;
    type Lent<'b> = GradMut<'b>;

    fn own(&self) -> OwnedView {
        let access = if self.accumulate { Access::Add } else { Access::Overwrite };
        OwnedView::new(&self.out.as_view(), access)
    }

    fn lend(owned: &OwnedView) -> GradMut<'_> {
        owned.view_mut().grad(owned.access == Access::Add)
    }

    fn each(owned: &mut OwnedView, visit: Visit<'_>) {
        visit(owned);
    }
}
by_value!(['a] GradMut<'a>);

impl<T: Operand> Operand for Option<T> {
    type Owned = Option<T::Owned>;
    type Lent<'b> = Option<T::Lent<'b>>;

    fn own(&self) -> Self::Owned {
        self.as_ref().map(T::own)
    }

    fn lend(owned: &Self::Owned) -> Self::Lent<'_> {
        owned.as_ref().map(T::lend)
    }

    fn each(owned: &mut Self::Owned, visit: Visit<'_>) {
        owned.iter_mut().for_each(|o| T::each(o, visit));
    }
}
by_value!([T: Operand] Option<T>);

impl<T: Operand, const N: usize> Operand for [T; N] {
    type Owned = [T::Owned; N];
    type Lent<'b> = [T::Lent<'b>; N];

    fn own(&self) -> Self::Owned {
        std::array::from_fn(|i| self[i].own())
    }

    fn lend(owned: &Self::Owned) -> Self::Lent<'_> {
        std::array::from_fn(|i| T::lend(&owned[i]))
    }

    fn each(owned: &mut Self::Owned, visit: Visit<'_>) {
        owned.iter_mut().for_each(|o| T::each(o, visit));
    }
}

/// Operands that are copied as they are.
macro_rules! plain {
    ($($t:ty),* $(,)?) => {$(
        impl Operand for $t {
            type Owned = $t;
            type Lent<'b> = $t;

            fn own(&self) -> $t {
                *self
            }

            fn lend(owned: &$t) -> $t {
                *owned
            }

            fn each(_: &mut $t, _: Visit<'_>) {}
        }
        by_value!([] $t);
    )*};
}

plain! {
    bool, u8, usize, isize, u64, i64, f64, (isize, isize), DType,
    Activation, AdaptiveRule, ArgReduce, BatchLoss, BatchNorm, Binary, Causal, ClipAdaptive, ClipNorm, Conv, CrossEntropy, Csr, CumSum,
    Distribution, EdgeOp, EmbeddingGrad, Fft, Fp8, Gemm, GridSample, GroupNorm, GroupReduce, HashGrid, InstanceNorm,
    Interpolate, LinearCrossEntropy, LogitProcessors, Loss, LossScale, MeshConv, Message, MessageReduce, Metric, MoeRouter, Projection,
    OptimRule, PadMode, Pooling, Precision, QuantFormat, Recurrence, Reduce, Reduction, RnnCell, RoiAlign, Rope, RowLoss,
    RowNorm, ScatterReduce, SegmentReduce, SeqLoss, Similarity, Softmax, StftResolution, Ternary, Triangle, Triangular, Unary,
}

/// Operands of fields, each an operand; without parameters it is none.
macro_rules! operand_struct {
    ($name:ident () $($rest:tt)*) => {};
    ($name:ident ($a:lifetime) $($f:ident : $t:ty,)*) => {
        operand_struct! { @impl [$a] ($name<$a>) ($name) [$name<'b>] $($f : $t,)* }
    };
    ($name:ident ($v:ident) $($f:ident : $t:ty,)*) => {
        operand_struct! { @impl [$v: $crate::ops::operand::Operand] ($name<$v>) ($name) [$name<$v::Lent<'b>>] $($f : $t,)* }
    };
    (@impl [$($g:tt)*] ($of:ty) ($name:ident) [$lent:ty] $($f:ident : $t:ty,)*) => {
        impl<$($g)*> $crate::ops::operand::Operand for $of {
            type Owned = ($(<$t as $crate::ops::operand::Operand>::Owned,)*);
            type Lent<'b> = $lent;

            fn own(&self) -> Self::Owned {
                ($($crate::ops::operand::Operand::own(&self.$f),)*)
            }

            fn lend(owned: &Self::Owned) -> Self::Lent<'_> {
                let ($($f,)*) = owned;
                $name { $($f: <$t as $crate::ops::operand::Operand>::lend($f),)* }
            }

            fn each(owned: &mut Self::Owned, visit: $crate::ops::operand::Visit<'_>) {
                let ($($f,)*) = owned;
                $(<$t as $crate::ops::operand::Operand>::each($f, visit);)*
            }
        }
        by_value!([$($g)*] $of);
    };
}

operand_struct! {
    Attention ('a)
    scale: Option<f64>, causal: Option<Causal>, window: [Option<usize>; 2], softcap: f64, dropout: f64, rng: Rng<'a>,
}
operand_struct! {
    AttentionMask ('a)
    bias: Option<View<'a>>, mask: Option<View<'a>>, key_lengths: Option<View<'a>>, sequences: Option<[View<'a>; 2]>,
}

/// Operands of one form or another; the second name is what is kept of them.
macro_rules! operand_enum {
    ($name:ident => $owned:ident $($v:ident { $($f:tt = $x:ident : $t:ty),* })*) => {
        #[allow(clippy::large_enum_variant, reason = "few are kept at a time")]
        pub(crate) enum $owned {
            $($v($(<$t as Operand>::Owned),*),)*
        }

        impl Operand for $name<'_> {
            type Owned = $owned;
            type Lent<'b> = $name<'b>;

            fn own(&self) -> $owned {
                match self { $($name::$v { $($f: $x),* } => $owned::$v($(Operand::own($x)),*),)* }
            }

            fn lend(owned: &$owned) -> $name<'_> {
                match owned { $($owned::$v($($x),*) => $name::$v { $($f: <$t as Operand>::lend($x)),* },)* }
            }

            fn each(owned: &mut $owned, visit: Visit<'_>) {
                match owned { $($owned::$v($($x),*) => { $(<$t as Operand>::each($x, visit);)* })* }
            }
        }
        by_value!(['a] $name<'a>);
    };
}

operand_enum! { BatchStats => OwnedBatchStats
    Batch { 0 = running: Option<Running<'static>> }
    Given { mean = mean: View<'static>, var = var: View<'static> }
}
operand_enum! { DiffusionOperator => OwnedDiffusionOperator
    Eigen { phi = phi: View<'static>, lam = lam: View<'static>, mass = mass: Option<View<'static>> }
    Direct { laplacian = laplacian: View<'static> }
}
operand_enum! { DropoutMask => OwnedDropoutMask
    Saved { 0 = mask: View<'static> }
    Regenerate { 0 = rng: Rng<'static> }
}
operand_enum! { GatedGrad => OwnedGatedGrad
    Halves { 0 = dx: GradMut<'static> }
    Two { gate = gate: Option<GradMut<'static>>, up = up: Option<GradMut<'static>> }
}
operand_enum! { GatedInput => OwnedGatedInput
    Halves { x = x: View<'static>, axis = axis: usize, gate_first = gate_first: bool }
    Two { gate = gate: View<'static>, up = up: View<'static> }
}
operand_enum! { Momentum => OwnedMomentum
    Factor { 0 = factor: f64 }
    Cumulative { 0 = count: ViewMut<'static> }
}
operand_enum! { QuantWeight => OwnedQuantWeight
    Int8 { q = q: View<'static>, scale = scale: View<'static> }
    Int4 { q = q: View<'static>, scale = scale: View<'static>, zero = zero: Option<View<'static>> }
}
operand_enum! { Saved => OwnedSaved
    Input { 0 = x: View<'static> }
    Output { 0 = y: View<'static> }
}
operand_enum! { Scalar => OwnedScalar
    Host { 0 = value: f64 }
    Device { 0 = value: View<'static> }
}
operand_enum! { Weights => OwnedWeights
    Probs { 0 = probs: View<'static> }
    Logits { 0 = logits: View<'static> }
}

//! `+ - * /` and unary minus. Operators return [`Result`], since shapes, dtypes and devices may not fit. A result may stand on either side of a
//! tensor, so that one `?` is enough for `(&a + &b * &c)?`; between two results, and between a result and a number, one of them needs its own
//! (no crate may define operators of `Result` and types of others).

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// The four forms of an operator between tensors, and those with a result on one side. `$method` names the operation of [`Tensor`].
macro_rules! between_tensors {
    ($($op:ident $f:ident;)*) => {$(
        impl $op<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: &Tensor) -> Result<Tensor> {
                Tensor::$f(self, b)
            }
        }
        impl $op<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: Tensor) -> Result<Tensor> {
                Tensor::$f(self, &b)
            }
        }
        impl $op<&Tensor> for Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: &Tensor) -> Result<Tensor> {
                Tensor::$f(&self, b)
            }
        }
        impl $op<Tensor> for Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: Tensor) -> Result<Tensor> {
                Tensor::$f(&self, &b)
            }
        }
        impl $op<Result<Tensor>> for &Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: Result<Tensor>) -> Result<Tensor> {
                Tensor::$f(self, &b?)
            }
        }
        impl $op<Result<Tensor>> for Tensor {
            type Output = Result<Tensor>;
            fn $f(self, b: Result<Tensor>) -> Result<Tensor> {
                Tensor::$f(&self, &b?)
            }
        }
        impl $op<&Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;
            fn $f(self, b: &Tensor) -> Result<Tensor> {
                Tensor::$f(&self?, b)
            }
        }
        impl $op<Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;
            fn $f(self, b: Tensor) -> Result<Tensor> {
                Tensor::$f(&self?, &b)
            }
        }
    )*};
}
between_tensors! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

/// A number on one side: which method of [`Tensor`] takes it on the right, and which on the left. Integers are converted to the tensor's
/// dtype; those beyond 2^53 lose their last digits on the way.
macro_rules! with_numbers {
    ($($number:ident: $op:ident $f:ident $right:ident $left:ident;)*) => {$(
        impl $op<$number> for &Tensor {
            type Output = Result<Tensor>;
            fn $f(self, c: $number) -> Result<Tensor> {
                self.$right(c as f64)
            }
        }
        impl $op<$number> for Tensor {
            type Output = Result<Tensor>;
            fn $f(self, c: $number) -> Result<Tensor> {
                self.$right(c as f64)
            }
        }
        impl $op<&Tensor> for $number {
            type Output = Result<Tensor>;
            fn $f(self, x: &Tensor) -> Result<Tensor> {
                x.$left(self as f64)
            }
        }
        impl $op<Tensor> for $number {
            type Output = Result<Tensor>;
            fn $f(self, x: Tensor) -> Result<Tensor> {
                x.$left(self as f64)
            }
        }
    )*};
}
with_numbers! {
    f64: Add add add_scalar add_scalar;
    f64: Sub sub sub_scalar rsub_scalar;
    f64: Mul mul mul_scalar mul_scalar;
    f64: Div div div_scalar rdiv_scalar;
    i64: Add add add_scalar add_scalar;
    i64: Sub sub sub_scalar rsub_scalar;
    i64: Mul mul mul_scalar mul_scalar;
    i64: Div div div_scalar rdiv_scalar;
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}

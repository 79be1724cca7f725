//! Layers of several inputs: sum, product, concatenation.

use trefoil::ops::activation::Activation;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Layer;

/// Two or more tensors of one shape.
fn alike(op: &'static str, inputs: &[Tensor]) -> Result<()> {
    let Some((first, rest)) = inputs.split_first() else {
        return Err(invalid(op, "inputs", "at least 2 tensors", "none"));
    };
    if rest.is_empty() {
        return Err(invalid(op, "inputs", "at least 2 tensors", "1"));
    }
    match rest.iter().find(|t| t.shape() != first.shape()) {
        Some(t) => {
            Err(invalid(op, "inputs", format!("shape {:?}", first.shape()), format!("{:?}", t.shape())))
        }
        None => Ok(()),
    }
}

fn fold(inputs: &[Tensor], f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Option<Tensor>> {
    let Some((first, rest)) = inputs.split_first() else { return Ok(None) };
    rest.iter().try_fold(first.clone(), |y, t| f(&y, t)).map(Some)
}

fn single(op: &'static str) -> NnError {
    invalid(op, "inputs", "at least 2 tensors, by forward_all", "1")
}

/// act(x0 + x1 + ..) of two or more tensors of one shape, from left to right; Keras' `Add`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Add {
    act: Activation,
}

impl Add {
    /// Without activation.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// The sum. Errors: fewer than 2 inputs, shapes that differ.
    pub fn merge(&self, inputs: &[Tensor]) -> Result<Tensor> {
        alike("Add", inputs)?;
        fold(inputs, Tensor::add)?.ok_or_else(|| single("Add"))?.activation(self.act)
    }
}

/// act(x0 x1 ..) of two or more tensors of one shape; Keras' `Multiply`. Gradients are products of the other factors, so that zeros do no
/// harm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Multiply {
    act: Activation,
}

impl Multiply {
    /// Without activation.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// The product. Errors: fewer than 2 inputs, shapes that differ.
    pub fn merge(&self, inputs: &[Tensor]) -> Result<Tensor> {
        alike("Multiply", inputs)?;
        fold(inputs, Tensor::mul)?.ok_or_else(|| single("Multiply"))?.activation(self.act)
    }
}

/// act of one or more tensors joined along an axis, `torch.cat`; all other sizes are equal.
#[derive(Debug, Clone, Copy)]
pub struct Concatenate {
    dim: isize,
    act: Activation,
}

impl Concatenate {
    /// Along axis `dim`, negative from the end; without activation.
    pub fn new(dim: isize) -> Self {
        Concatenate { dim, act: Activation::Identity }
    }

    setters! {
        /// Sets the activation.
        activation: Activation => act;
    }

    /// The joined tensor. Errors: no inputs, an axis that does not exist, other sizes that differ.
    pub fn merge(&self, inputs: &[Tensor]) -> Result<Tensor> {
        const OP: &str = "Concatenate";
        let Some(first) = inputs.first() else {
            return Err(invalid(OP, "inputs", "at least 1 tensor", "none"));
        };
        let at = crate::core::tensor::axis(OP, self.dim, first.rank())?;
        let others = |t: &Tensor| -> Vec<usize> {
            t.shape().iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &n)| n).collect()
        };
        if let Some(t) = inputs.iter().find(|t| t.rank() != first.rank() || others(t) != others(first)) {
            let want = format!("shape {:?} but for axis {at}", first.shape());
            return Err(invalid(OP, "inputs", want, format!("{:?}", t.shape())));
        }
        Tensor::concat(self.dim, &inputs.iter().collect::<Vec<_>>())?.activation(self.act)
    }
}

impl Default for Concatenate {
    fn default() -> Self {
        Concatenate::new(1)
    }
}

macro_rules! merging {
    ($($name:ident),*) => {$(
        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.merge(std::slice::from_ref(x))
            }

            fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
                Ok(vec![self.merge(inputs)?])
            }
        }
    )*};
}
merging!(Add, Multiply, Concatenate);

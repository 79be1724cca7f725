//! Branches side by side.

use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::Binary;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::{Add, Concatenate, Multiply, Sequential};
use crate::module::hooks;
use crate::module::{Layer, Visitor};

/// How the outputs of branches become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParallelMerge {
    /// Joined along an axis, negative from the end; other sizes are equal.
    Concat(isize),
    /// Sum.
    Add,
    /// Product.
    Multiply,
    /// Mean.
    Average,
    /// Largest of each element.
    Maximum,
}

/// Branches that read the same input; their outputs are merged into one. A branch without layers passes the input on.
///
/// State: that of branch i under `i.`, as in [`Sequential`].
#[derive(Debug)]
pub struct Parallel {
    branches: Vec<(String, Sequential)>,
    merge: ParallelMerge,
    act: Activation,
}

impl Parallel {
    /// These branches, without activation. Errors: fewer than 2 branches (1 for [`ParallelMerge::Concat`]).
    pub fn new(branches: Vec<Sequential>, merge: ParallelMerge) -> Result<Self> {
        let least = if matches!(merge, ParallelMerge::Concat(_)) { 1 } else { 2 };
        if branches.len() < least {
            let got = format!("{}", branches.len());
            return Err(invalid("Parallel", "branches", format!("at least {least}"), got));
        }
        let branches = branches.into_iter().enumerate().map(|(i, b)| (i.to_string(), b)).collect();
        Ok(Parallel { branches, merge, act: Activation::Identity })
    }

    setters! {
        /// Sets the activation of the merged output.
        activation: Activation => act;
    }
}

impl Layer for Parallel {
    /// Errors beside those of the branches: shapes that differ.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let run = |(name, branch): &(String, Sequential)| hooks::layer(name, branch, x);
        let all: Vec<Tensor> = self.branches.iter().map(run).collect::<Result<_>>()?;
        if let (false, Some(t)) =
            (matches!(self.merge, ParallelMerge::Concat(_)), all.iter().find(|t| t.shape() != all[0].shape()))
        {
            let want = format!("outputs of shape {:?} like the first", all[0].shape());
            return Err(invalid("Parallel", "branches", want, format!("{:?}", t.shape())));
        }
        let y = match self.merge {
            ParallelMerge::Concat(dim) => Concatenate::new(dim).merge(&all)?,
            ParallelMerge::Add => Add::new().merge(&all)?,
            ParallelMerge::Multiply => Multiply::new().merge(&all)?,
            ParallelMerge::Average => Add::new().merge(&all)?.mul_scalar(1.0 / all.len() as f64)?,
            ParallelMerge::Maximum => {
                let first = all[0].clone();
                all[1..].iter().try_fold(first, |y, t| y.binary(Binary::Maximum, t))?
            }
        };
        y.activation(self.act)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, branch) in &self.branches {
            v.child(name, branch);
        }
    }
}

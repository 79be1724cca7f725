//! Gradients of rows to which a bias and an activation were applied.

use super::gradient_function;
use super::plan::{BiasPlan, BiasProblem};
use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::error::Result;
use crate::ops::activation::*;
use crate::ops::core::Choice;
use crate::ops::reduce::ReduceOps;
use crate::spec::kernels::activation::*;

impl Engine {
    /// What serves 8192 rows of 4096 elements in bf16.
    pub(crate) fn explain_bias_gradient(&self, op: &'static str) -> Result<Choice> {
        self.explain_problem(op, &BiasProblem::typical())
    }

    pub(super) fn bias_gradient(&self, act: Activation, io: ActivationBiasBwd<'_>) -> Result<()> {
        let op = "activation_bias_bwd";
        let [rows, cols, groups] = check_activation_bias_bwd(act, &io)?;
        let (saved, ..) = gradient_function(act, io.saved);
        let (dx, dbias) = (io.dx.as_view(), io.dbias.out.as_view());
        self.check_owner_all(op, &[("dy", io.dy), ("saved", saved), ("dx", dx), ("dbias", dbias)])?;
        self.check_owner_all(op, &[("offsets", io.offsets)])?;
        let operands = [io.dy, saved, dx];
        let problem = BiasProblem {
            rows,
            cols,
            groups,
            by_offsets: io.offsets.is_some(),
            operands: Alignment::of(dx.dtype(), &operands),
            contiguous: operands.iter().chain([&dbias]).all(|v| v.is_contiguous()),
        };
        match self.plan(op, &problem)? {
            BiasPlan::OnePass { parts, blocks } => self.bias_pass(act, io, &problem, [parts, blocks]),
            BiasPlan::Apart => self.bias_sums(act, io),
        }
    }

    /// The activation's gradient, and the sums of its rows from what was stored.
    fn bias_sums(&self, act: Activation, io: ActivationBiasBwd<'_>) -> Result<()> {
        let dx = io.dx.as_view();
        self.activation_bwd(act, io.dy, io.saved, io.dx.into())?;
        match io.offsets {
            Some(offsets) => self.ragged_bias_gradient("activation_bias_bwd", &dx, &offsets, &io.dbias),
            None => self.sum_to_shape(dx, io.dbias),
        }
    }

    /// Both by a pass over the rows.
    fn bias_pass(
        &self,
        act: Activation,
        io: ActivationBiasBwd<'_>,
        &BiasProblem { rows, cols, groups, operands, .. }: &BiasProblem,
        [parts, blocks]: [usize; 2],
    ) -> Result<()> {
        let dt = operands.dtype;
        let (saved, function, [p, q]) = gradient_function(act, io.saved);
        let sums = || self.scratch(dt.accumulator(), parts * groups * cols);
        let part = (parts > 1).then(sums).transpose()?;
        let part = part.as_ref().map(Buffer::view);
        let args = ActivationBiasBwdArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_in(&saved),
            offsets: self.arg_opt(io.offsets.as_ref()),
            dx: self.arg_out(&io.dx),
            dbias: self.arg_out(&io.dbias.out),
            part: self.arg_opt(part.as_ref()),
            err: self.arg_error(),
            size: dims([rows, cols, groups, parts]),
            accumulate: i32::from(io.dbias.accumulate),
            p,
            q,
            s: 0.0,
            code: code_of_op("activation_bias_bwd"),
        };
        self.launch(&ACTIVATION_BIAS_BWD, dt, function, Grid::Blocks([blocks, 1, 1]), &args)?;
        match part {
            Some(part) => self.combine_parts(&part, &io.dbias, [parts, groups * cols, 1]),
            None => Ok(()),
        }
    }
}

//! Steps of optimizers that evaluate the loss themselves.

use super::{Objective, TrainOptions, Trainer};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::module::{Layer, LayerExt, auxiliary};
use crate::train::optim::{ClosureOptimizer, Method, Optimizer, Stop};

impl<'a> Trainer<'a> {
    /// A trainer whose steps are minimizations of a batch's loss by a [`ClosureOptimizer`], each until `stop`; made for batches of all items.
    /// The host reads a few numbers per evaluation. What the method has learned is not part of a checkpoint: a run that is resumed starts
    /// with the steepest descent. The learning-rate schedule has no effect. [`Method::LevenbergMarquardt`] takes the residuals of the loss
    /// ([`Criterion::residuals`](crate::Criterion::residuals)).
    ///
    /// Errors: as [`Trainer::new`]; accumulation, clipping, or anomaly mode; a loss without residuals for a method of least squares.
    pub fn with_closure(
        model: &'a dyn Layer,
        optimizer: ClosureOptimizer,
        stop: Stop,
        objective: Objective,
        device: &Device,
        options: TrainOptions,
    ) -> Result<Self> {
        let refused = [
            ("accumulate", options.accumulate != 1),
            ("clip", options.clip.is_some()),
            ("anomaly", options.anomaly.is_some()),
        ];
        if let Some((arg, _)) = refused.into_iter().find(|(_, on)| *on) {
            let expected =
                format!("the default with `{}`, which evaluates the loss itself", optimizer.method().name());
            return Err(invalid("Trainer", arg, expected, "another value"));
        }
        let mut trainer = Trainer::new(model, Optimizer::idle(1.0), objective, device, options)?;
        trainer.closure = Some((optimizer, stop));
        trainer.describe();
        Ok(trainer)
    }

    /// The method of a run by closures with what ends its iterations on a batch, as text.
    pub(super) fn closure_settings(&self) -> Option<String> {
        self.closure.as_ref().map(|(o, stop)| format!("{:?}, {stop:?}", o.method()))
    }

    /// Minimizes the loss of a batch. Returns loss and output before.
    pub(super) fn minimize(
        &mut self,
        optimizer: &mut ClosureOptimizer,
        stop: &Stop,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let squares = matches!(optimizer.method(), Method::LevenbergMarquardt { .. });
        let mut first: Option<(Tensor, Tensor)> = None;
        let outcome = optimizer.minimize(stop, || {
            let (out, terms) = auxiliary::collect(|| self.model.forward(x))?;
            if first.is_none() {
                let loss = self.loss(&out.detach(), y)?;
                first = Some((loss, out.detach()));
            }
            match squares {
                true => self.residuals(&out, y),
                false => auxiliary::added_to(self.loss(&out, y)?, &terms),
            }
        });
        outcome?;
        if self.learns_locally {
            self.model.learn()?;
        }
        first.ok_or_else(|| invalid("Trainer", "closure", "an evaluation", "none"))
    }

    fn residuals(&self, out: &Tensor, y: &Tensor) -> Result<Tensor> {
        match self.objective.criterion().residuals(out, y) {
            Some(r) => r,
            None => {
                let expected =
                    "a loss that is a sum of squares (MseLoss with its mean, without weights and mask)";
                Err::<Tensor, NnError>(invalid("levenberg_marquardt", "loss", expected, "another one"))
            }
        }
    }
}

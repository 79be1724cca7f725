//! Whole training steps of trefoil-nn: clear gradients, forward, loss, backward, update.
//!
//! The models are those that PyTorch's baseline trains, layer for layer. With a 16-bit dtype parameters, activations and gradients have
//! 16 bits and the optimizer keeps f32 masters. With `"capture": true` the whole step is recorded on the device and replayed, with
//! `"capture": "plain"`, `"fused"` or `"parallel"` by that variant of `capture_calls`.

mod cnn;
mod gcn;
mod gpt;
mod lstm_lm;
mod mlp;
mod resnet;

use serde_json::Value;
use trefoil::DType;
use trefoil::ops::optimizer::OptimRule;
use trefoil::ops::random::{Distribution, Rng};
use trefoil_bench::Case;
use trefoil_nn::{CrossEntropyLoss, Device, Layer, LayerExt, Optimizer, Result, Tensor};

use super::timing::Work;
use crate::error::{CliError, Result as CliResult};

/// The operations of this module.
pub(super) const OPERATIONS: [&str; 6] =
    ["train_mlp", "train_cnn", "train_gpt", "train_resnet", "train_lstm_lm", "train_gcn"];

/// A model, its optimizer and the batch that it is trained on.
struct Training<M> {
    model: M,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    /// Arithmetic operations of the matrix products of a step.
    flops: f64,
}

impl<M: Layer + 'static> Training<M> {
    fn new(c: &Case, model: M, rule: OptimRule, lr: f64, [x, y]: [Tensor; 2], flops: f64) -> CliResult<Self> {
        let optimizer = Optimizer::new(&model, rule, lr)?;
        let optimizer = if c.dtype()?.is_half() { optimizer.master_weights()? } else { optimizer };
        Ok(Training { model, optimizer, x, y, flops })
    }

    /// A step; its loss, on the device.
    fn step(&mut self) -> Result<Tensor> {
        self.optimizer.zero_grad()?;
        let loss = CrossEntropyLoss::default().forward(&self.model.forward(&self.x)?, &self.y)?;
        self.optimizer.backward(&loss)?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Runs of the step; recorded on the device and replayed where the case asks for it.
    fn work(mut self, c: &Case, d: &Device) -> CliResult<Work> {
        // Weights are read by both passes; an optimizer with two states reads and writes four arrays of their size, less the gradient's
        // write. Activations are not counted.
        let (bytes, flops) = ((self.model.num_parameters() * 4 * 9) as f64, self.flops);
        match c.field("capture") {
            None | Some(Value::Bool(false)) => Ok(Work::new(bytes, flops, move |_| {
                self.step()?;
                Ok(())
            })),
            Some(Value::Bool(true)) => self.captured(d, bytes),
            Some(Value::String(variant)) => {
                d.pin_variant("capture_calls", Some(variant))?;
                let work = self.captured(d, bytes);
                d.pin_variant("capture_calls", None)?;
                work
            }
            Some(_) => Err(c.unexpected("capture", "true, false or a variant of `capture_calls`").into()),
        }
    }

    /// The step as a graph, from the clearing of gradients to the update. Errors: steps that cannot be recorded.
    fn captured(mut self, d: &Device, bytes: f64) -> CliResult<Work> {
        let flops = self.flops;
        let mut steps = trefoil_nn::capture(d, move |_: &[Tensor]| Ok(vec![self.step()?]));
        let mut step = move || -> CliResult<Option<String>> {
            steps.run(&[])?;
            Ok(steps.status().plain.clone())
        };
        // The third is recorded.
        let mut plain = None;
        for _ in 0..4 {
            plain = step()?;
        }
        match plain {
            Some(why) => Err(CliError::Input(format!("the step is not recorded: {why}"))),
            None => Ok(Work::new(bytes, flops, move |_| step().map(drop))),
        }
    }
}

const ADAM: OptimRule = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
const ADAMW: OptimRule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };
const MOMENTUM: OptimRule = OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false };

/// A training step ready to run. Errors: an operation that is none of [`OPERATIONS`].
pub(super) fn prepare(c: &Case, d: &Device) -> CliResult<Work> {
    Ok(match c.op() {
        "train_mlp" => mlp::mlp(c, d)?.work(c, d)?,
        "train_cnn" => cnn::cnn(c, d)?.work(c, d)?,
        "train_gpt" => gpt::gpt(c, d)?.work(c, d)?,
        "train_resnet" => resnet::resnet(c, d)?.work(c, d)?,
        "train_lstm_lm" => lstm_lm::lstm_lm(c, d)?.work(c, d)?,
        "train_gcn" => gcn::gcn(c, d)?.work(c, d)?,
        _ => return Err(super::unknown(c)),
    })
}

/// Normal numbers.
pub(super) fn random(d: &Device, dtype: DType, shape: &[usize]) -> CliResult<Tensor> {
    Ok(Tensor::random(d, dtype, shape, Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(1))?)
}

/// Ids in [0, below).
pub(super) fn ids(d: &Device, shape: &[usize], below: usize) -> CliResult<Tensor> {
    let uniform = Distribution::Int { lo: 0, hi: below as i64 };
    Ok(Tensor::random(d, DType::I64, shape, uniform, Rng::new(2))?)
}

/// Sequences `[B, T]` of random ids, and what follows each of them `[B T]`.
fn sequences(d: &Device, batch: usize, steps: usize, vocab: usize) -> CliResult<[Tensor; 2]> {
    let all = ids(d, &[batch, steps + 1], vocab)?;
    let next = all.narrow(1, 1, steps)?.contiguous()?.reshape(&[batch * steps])?;
    Ok([all.narrow(1, 0, steps)?.contiguous()?, next])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use trefoil::CpuBackend;

    use super::*;

    /// Steps on one batch must lower its loss to `share` of what it was.
    fn learns<M: Layer + 'static>(
        case: Value,
        make: fn(&Case, &Device) -> CliResult<Training<M>>,
        steps: usize,
        share: f32,
    ) {
        learns_at(None, case, make, steps, share);
    }

    fn learns_at<M: Layer + 'static>(
        lr: Option<f64>,
        case: Value,
        make: fn(&Case, &Device) -> CliResult<Training<M>>,
        steps: usize,
        share: f32,
    ) {
        let d: Device = Arc::new(CpuBackend::new());
        let c = Case::new(case).unwrap();
        let mut t = make(&c, &d).unwrap();
        if let Some(lr) = lr {
            t.optimizer.set_lr(lr).unwrap();
        }
        let losses: Vec<f32> = (0..=steps).map(|_| t.step().unwrap().item().unwrap()).collect();
        assert!(losses.iter().all(|l| l.is_finite()), "{}: {losses:?}", c.id());
        assert!(losses[steps] < share * losses[0], "{}: {losses:?}", c.id());
        assert!(t.flops > 0.0);
    }

    #[test]
    fn every_model_learns_a_batch() {
        let mlp_case =
            json!({"id": "mlp", "op": "train_mlp", "batch": 8, "in": 6, "hidden": [32, 32], "out": 3});
        learns(mlp_case, mlp::mlp, 100, 0.7);
        let cnn_case = json!({"id": "cnn", "op": "train_cnn", "b": 8, "in": 2, "h": 8, "channels": [4, 8], "classes": 3});
        learns(cnn_case, cnn::cnn, 100, 0.7);
        let digits = json!({"id": "digits", "op": "train_cnn", "b": 8, "in": 1, "h": 8, "channels": [4, 8], "classes": 3,
            "batch_norm": true, "pool_last": true, "dropout": 0.25, "hidden": [16], "adamw": true});
        learns(digits, cnn::cnn, 100, 0.7);
        for dtype in ["f32", "bf16"] {
            let case = json!({"id": dtype, "op": "train_gpt", "vocab": 16, "t": 8, "d": 32, "h": 2, "layers": 2, "b": 2,
                "dtype": dtype});
            learns(case, gpt::gpt, 100, 0.9);
        }
        let case =
            json!({"id": "lstm", "op": "train_lstm_lm", "vocab": 12, "d": 16, "layers": 2, "b": 2, "t": 6});
        learns(case, lstm_lm::lstm_lm, 60, 0.9);
        let case = json!({"id": "gcn", "op": "train_gcn", "hidden": [16, 16], "classes": 4, "in": 8, "nodes": 40, "edges": 60});
        learns(case, gcn::gcn, 60, 0.7);
    }

    #[test]
    fn residual_networks_learn_a_batch() {
        // Several values per channel everywhere: of two, a normalization leaves nothing but signs. The rate of the benchmark is one for
        // large batches; fifty layers on so few pixels bear only a short step.
        for (net, h, b, lr, steps) in [("resnet18", 32, 4, 0.002, 3), ("resnet50", 8, 8, 1e-5, 1)] {
            let case = json!({"id": net, "op": "train_resnet", "net": net, "classes": 3, "h": h, "b": b});
            learns_at(Some(lr), case, resnet::resnet, steps, 1.0);
        }
    }

    #[test]
    fn a_network_that_does_not_exist_is_named() {
        let d: Device = Arc::new(CpuBackend::new());
        let c = json!({"id": "net", "op": "train_resnet", "net": "resnet1", "classes": 3, "h": 8, "b": 2});
        let e = prepare(&Case::new(c).unwrap(), &d).err().map(|e| e.to_string());
        assert!(e.is_some_and(|e| e.contains("`net`") && e.contains("resnet18 or resnet50")));
    }
}

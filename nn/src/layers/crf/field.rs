//! The linear-chain conditional random field.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::loss::Reduction;

use super::constraints::{Constraints, TagScheme};
use super::lattice::{log_partition, path_score, viterbi};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::index_check::{self, Range};
use crate::core::tensor::{Tensor, same_device};
use crate::layers::attention::scores::{batched, check_width};
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "ConditionalRandomField";

/// Linear-chain conditional random field of Lafferty et al. (2001), `torchcrf.CRF(batch_first=True)`: scores of tags along a sequence, of
/// which the transitions from one tag to the next are learned. Emissions `[B, T, K]` (or `[T, K]`) are the scores of the tags at each step.
///
/// In training the layer passes its emissions on; in evaluation it gives the best path as one-hot rows `[B, T, K]`, by the algorithm of
/// Viterbi, without a gradient. The loss is [`neg_log_likelihood`](ConditionalRandomField::neg_log_likelihood). Sums are made in f32 (f64
/// for f64).
///
/// Masks are u8 `[B, T]`, on for the first steps of each sequence, at least one. A mask that has its first step off or on behind one that is
/// off, and tags outside of 0..K, are reported by the next call that waits for the device.
///
/// State: `start_transitions [K]`, `end_transitions [K]`, `transitions [K, K]` (from a row's tag to a column's), from U(-0.1, 0.1).
#[derive(Debug)]
pub struct ConditionalRandomField {
    tags: usize,
    start: Param,
    end: Param,
    transitions: Param,
    act: Activation,
    reduction: Reduction,
    constraints: Option<Constraints>,
    training: AtomicBool,
    /// What the last mask was checked by, for the error about it.
    holes: Mutex<Option<Tensor>>,
}

/// Emissions as a batch in the dtype of sums, the mask, the last step of each sequence, and whether there was no batch axis.
struct Sequences {
    emissions: Tensor,
    mask: Option<Tensor>,
    last: Tensor,
    single: bool,
}

impl ConditionalRandomField {
    /// A field over `num_tags` tags. Errors: no tags.
    pub fn new(cx: &InitContext, num_tags: usize) -> Result<Self> {
        if num_tags == 0 {
            return Err(invalid(OP, "num_tags", "at least 1", "0"));
        }
        let scores =
            |shape: &[usize]| Init::Uniform { lo: -0.1, hi: 0.1 }.param(cx, shape, num_tags, num_tags);
        Ok(ConditionalRandomField {
            tags: num_tags,
            start: scores(&[num_tags])?,
            end: scores(&[num_tags])?,
            transitions: scores(&[num_tags, num_tags])?,
            act: Activation::Identity,
            reduction: Reduction::Mean,
            constraints: None,
            training: AtomicBool::new(true),
            holes: Mutex::default(),
        })
    }

    setters! {
        /// Sets the activation of the emissions.
        emission_activation: Activation => act;
        /// Sets how the losses of the sequences are combined (default: their mean).
        reduction: Reduction => reduction;
    }

    /// Forbids paths that the names of the tags do not allow, in decoding. Errors: a number of names other than that of the tags; names
    /// that the scheme does not have.
    pub fn constraints(mut self, scheme: TagScheme, names: &[&str]) -> Result<Self> {
        self.constraints = Some(Constraints::new(OP, self.tags, scheme, names)?);
        Ok(self)
    }

    /// -ln P(tags | emissions) of sequences with the tags i32 or i64 `[B, T]`: its mean over the batch, a scalar, unless another
    /// [reduction](ConditionalRandomField::reduction) is set. Tags of steps that the mask leaves out do not matter. Gradients flow to
    /// emissions and parameters. Errors: `Invalid` for shapes and dtypes that do not fit, and for no sequences.
    pub fn neg_log_likelihood(
        &self,
        emissions: &Tensor,
        tags: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let s = self.sequences(emissions, mask)?;
        same_device(OP, emissions, tags)?;
        if tags.shape() != &emissions.shape()[..emissions.rank() - 1] || !tags.dtype().is_index() {
            let want = format!("i32 or i64 of shape {:?}", &emissions.shape()[..emissions.rank() - 1]);
            return Err(invalid(OP, "tags", want, format!("{} of shape {:?}", tags.dtype(), tags.shape())));
        }
        if s.emissions.shape()[0] == 0 {
            return Err(invalid(OP, "emissions", "at least one sequence", "none"));
        }
        let tags = tags.to_dtype(DType::I64)?.reshape(&s.emissions.shape()[..2])?;
        let tags = match &s.mask {
            Some(mask) => tags.masked_fill(&mask.logical_not()?, 0.0)?,
            None => tags,
        };
        index_check::note(&tags, Range { op: OP, limit: self.tags, ignore: None, labels: false });
        let (e, mask) = (&s.emissions, s.mask.as_ref());
        let score = path_score(e, self.scores(e.dtype())?, &tags, mask, &s.last)?;
        let losses = log_partition(e, self.scores(e.dtype())?, mask)?.sub(&score)?;
        match self.reduction {
            Reduction::Mean => losses.mean(),
            Reduction::Sum => losses.sum(),
            _ if s.single => losses.squeeze(0),
            _ => Ok(losses),
        }
    }

    /// The best path of each sequence, i64 `[B, T]`; of equal scores the lower tag wins. Steps that the mask leaves out have the tag -1.
    /// Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn decode(&self, emissions: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        no_grad(|| {
            let s = self.sequences(emissions, mask)?;
            let scores = self.scores(s.emissions.dtype())?;
            let scores = match &self.constraints {
                Some(constraints) => constraints.apply(scores)?,
                None => scores,
            };
            let path = viterbi(&s.emissions, scores, s.mask.as_ref())?;
            if s.single { path.squeeze(0) } else { Ok(path) }
        })
    }

    /// Scores of starts, ends and transitions.
    fn scores(&self, dtype: DType) -> Result<[Tensor; 3]> {
        let [start, end, transitions] =
            [&self.start, &self.end, &self.transitions].map(|p| p.get().to_dtype(dtype));
        Ok([start?, end?, transitions?])
    }

    fn sequences(&self, emissions: &Tensor, mask: Option<&Tensor>) -> Result<Sequences> {
        let (x, single) = batched(OP, "emissions", emissions)?;
        check_width(OP, "emissions", &x, self.tags)?;
        let x = x.activation(self.act)?.to_dtype(x.dtype().accumulator())?;
        let (batch, steps) = (x.shape()[0], x.shape()[1]);
        let Some(mask) = mask else {
            let last = Tensor::full(x.device(), DType::I64, &[batch], (steps - 1) as f64)?;
            return Ok(Sequences { emissions: x, mask: None, last, single });
        };
        same_device(OP, emissions, mask)?;
        let lead = &emissions.shape()[..emissions.rank() - 1];
        if mask.shape() != lead || mask.dtype() != DType::U8 {
            let got = format!("{} of shape {:?}", mask.dtype(), mask.shape());
            return Err(invalid(OP, "mask", format!("u8 of shape {lead:?}"), got));
        }
        let mask = mask.ne_scalar(0.0)?.reshape(&[batch, steps])?;
        let last = self.check_mask(&mask)?;
        Ok(Sequences { emissions: x, mask: Some(mask), last, single })
    }

    /// The last step of each sequence, i64 `[B]`. Steps that are off before it are counted on the device, which reports a number that is not
    /// 0 as an index out of range.
    fn check_mask(&self, mask: &Tensor) -> Result<Tensor> {
        let (device, steps) = (mask.device(), mask.shape()[1]);
        let number = Tensor::arange(device, DType::I64, 1.0, 1.0, steps)?;
        let end = number.mul(&mask.to_dtype(DType::I64)?)?.amax(&[1], false)?;
        let last = end.maximum(&Tensor::ones(device, DType::I64, &[])?)?.sub(&Tensor::ones(
            device,
            DType::I64,
            &[],
        )?)?;
        let holes = last.sub(&mask.sum_axes(&[1], false)?)?.add(&Tensor::ones(device, DType::I64, &[])?)?;
        let op = "ConditionalRandomField (steps of the mask that are off before its last one)";
        index_check::note(&holes, Range { op, limit: 1, ignore: None, labels: false });
        Tensor::zeros(device, DType::I64, &[1])?.index_select(0, &holes)?;
        *self.holes.lock().unwrap_or_else(|p| p.into_inner()) = Some(holes);
        Ok(last)
    }

    /// The layer's output for emissions without tags.
    fn output(&self, emissions: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        if self.training.load(Ordering::Relaxed) {
            let s = self.sequences(emissions, mask)?;
            let y = s.emissions.to_dtype(emissions.dtype())?;
            return if s.single { y.squeeze(0) } else { Ok(y) };
        }
        let path = self.decode(emissions, mask)?.unsqueeze(-1)?;
        let tags = Tensor::arange(path.device(), DType::I64, 0.0, 1.0, self.tags)?;
        path.eq(&tags)?.to_dtype(emissions.dtype())
    }
}

impl Layer for ConditionalRandomField {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.output(x, None)
    }

    /// `[emissions]` or `[emissions, mask]` as `forward`; `[emissions, tags]` or `[emissions, tags, mask]` to the loss.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![match inputs {
            [x] => self.output(x, None)?,
            [x, mask] if mask.dtype() == DType::U8 => self.output(x, Some(mask))?,
            [x, tags] => self.neg_log_likelihood(x, tags, None)?,
            [x, tags, mask] => self.neg_log_likelihood(x, tags, Some(mask))?,
            _ => {
                let got = format!("{} tensors", inputs.len());
                return Err(invalid(OP, "inputs", "emissions, and tags and a mask", got));
            }
        }])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("start_transitions", &self.start);
        v.param("end_transitions", &self.end);
        v.param("transitions", &self.transitions);
        v.training(&self.training);
    }
}

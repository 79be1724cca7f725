//! Weights: where Loom's arrays lie in the parameters, and what fills them.

use trefoil::DType;

use super::LoomLayer;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::interop::loom::plan::{Heads, Node, Op, SoftmaxPlan, Window, times};
use crate::layers::SoftmaxVariant;
use crate::module::{Init, InitContext, Layer, Param};

/// Where one of Loom's weight arrays is stored in a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// The whole, in the same order.
    Whole,
    /// The whole, with both axes exchanged: Loom's `[in][out]` against `[out, in]`.
    Transposed,
    /// A quarter of the rows: one gate of an LSTM.
    Gate(usize),
}

/// One of Loom's weight arrays.
#[derive(Debug)]
pub(in crate::interop::loom) struct Slot {
    /// Its key in a bundle.
    pub(in crate::interop::loom) key: &'static str,
    /// Position in [`LoomLayer::params`].
    param: usize,
    part: Part,
    /// What the constructor of Loom's layer draws.
    construct: Init,
    /// What `InitializeWeights` draws; none if it leaves the layer alone.
    initialise: Option<Init>,
    /// Whether a bundle may leave it out.
    pub(in crate::interop::loom) optional: bool,
}

/// Which of Loom's two ways of filling weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::interop::loom) enum Stage {
    Construct,
    Initialise,
}

const ZEROS: Init = Init::Zeros;
const TENTH: Init = Init::Uniform { lo: -0.1, hi: 0.1 };

/// Collects parameters and slots.
struct Parts<'a> {
    cx: &'a InitContext,
    params: Vec<(String, Param)>,
    slots: Vec<Slot>,
}

impl Parts<'_> {
    fn add(&mut self, name: impl Into<String>, shape: &[usize], fill: f64) -> Result<usize> {
        let t = Tensor::full(self.cx.device(), self.cx.param_dtype(), shape, fill)?;
        self.params.push((name.into(), Param::new(t)));
        Ok(self.params.len() - 1)
    }

    fn slot(
        &mut self,
        key: &'static str,
        param: usize,
        part: Part,
        construct: Init,
        initialise: Option<Init>,
    ) {
        self.slots.push(Slot { key, param, part, construct, initialise, optional: false });
    }

    fn bias(&mut self, key: &'static str, param: usize, part: Part, initialise: Option<Init>) {
        self.slots.push(Slot { key, param, part, construct: ZEROS, initialise, optional: true });
    }

    /// Weight and bias of a projection that `InitializeWeights` fills with tenths.
    fn projection(
        &mut self,
        name: &str,
        keys: [&'static str; 2],
        inputs: usize,
        outputs: usize,
    ) -> Result<()> {
        let w = self.add(format!("{name}.weight"), &[outputs, inputs], 0.0)?;
        let b = self.add(format!("{name}.bias"), &[outputs], 0.0)?;
        self.slot(keys[0], w, Part::Transposed, ZEROS, Some(TENTH));
        self.bias(keys[1], b, Part::Whole, Some(ZEROS));
        Ok(())
    }

    fn conv(&mut self, w: &Window, he: bool) -> Result<()> {
        let shape = [&[w.filters, w.channels][..], &vec![w.kernel; w.size.len().max(1)]].concat();
        let fan = times(1, &shape[1..]);
        let weight = self.add("weight", &shape, 0.0)?;
        let bias = self.add("bias", &[w.filters], 0.0)?;
        if he {
            let normal = Init::Normal { mean: 0.0, std: (2.0 / fan as f64).sqrt() };
            self.slot("kernel", weight, Part::Whole, normal, None);
            self.bias("conv_bias", bias, Part::Whole, None);
        } else {
            self.slot("kernel", weight, Part::Whole, ZEROS, Some(within(fan)));
            self.bias("conv_bias", bias, Part::Whole, Some(HUNDREDTH));
        }
        Ok(())
    }
}

const HUNDREDTH: Init = Init::Uniform { lo: 0.0, hi: 0.01 };

fn within(fan: usize) -> Init {
    let a = 1.0 / fan as f64;
    Init::Uniform { lo: -a, hi: a }
}

fn xavier(a: usize, b: usize) -> Init {
    Init::Normal { mean: 0.0, std: (2.0 / (a + b) as f64).sqrt() }
}

impl LoomLayer {
    pub(in crate::interop::loom) fn new(cx: &InitContext, node: &Node) -> Result<Self> {
        let mut p = Parts { cx, params: vec![], slots: vec![] };
        let (mut softmax, mut children) = (None, vec![]);
        match &node.op {
            Op::Dense { inputs, outputs, .. } => {
                let w = p.add("weight", &[*outputs, *inputs], 0.0)?;
                let b = p.add("bias", &[*outputs], 0.0)?;
                p.slot("kernel", w, Part::Transposed, ZEROS, Some(within(*inputs)));
                p.bias("biases", b, Part::Whole, Some(HUNDREDTH));
            }
            Op::Conv1d { window, .. } => p.conv(window, true)?,
            Op::Conv2d { window, .. } => p.conv(window, false)?,
            Op::Rnn { input, hidden, .. } => {
                let ih = p.add("weight_ih", &[*hidden, *input], 0.0)?;
                let hh = p.add("weight_hh", &[*hidden, *hidden], 0.0)?;
                let b = p.add("bias", &[*hidden], 0.0)?;
                p.slot("weight_ih", ih, Part::Whole, xavier(*input, *hidden), Some(TENTH));
                p.slot("weight_hh", hh, Part::Whole, xavier(*hidden, *hidden), Some(TENTH));
                p.bias("bias_h", b, Part::Whole, Some(ZEROS));
            }
            Op::Lstm { input, hidden, .. } => {
                let ih = p.add("weight_ih", &[4 * hidden, *input], 0.0)?;
                let hh = p.add("weight_hh", &[4 * hidden, *hidden], 0.0)?;
                let b = p.add("bias", &[4 * hidden], 0.0)?;
                let keys = [
                    ["weight_ii", "weight_hi", "bias_i"],
                    ["weight_if", "weight_hf", "bias_f"],
                    ["weight_ig", "weight_hg", "bias_g"],
                    ["weight_io", "weight_ho", "bias_o"],
                ];
                for (gate, [i, h, bias]) in keys.into_iter().enumerate() {
                    p.slot(i, ih, Part::Gate(gate), xavier(*input, *hidden), Some(TENTH));
                    p.slot(h, hh, Part::Gate(gate), xavier(*hidden, *hidden), Some(TENTH));
                    p.bias(bias, b, Part::Gate(gate), Some(ZEROS));
                }
            }
            Op::Mha(Heads { d, kv_heads, head_dim, .. }) => {
                let kv = kv_heads * head_dim;
                p.projection("q_proj", ["q_weights", "q_bias"], *d, *d)?;
                p.projection("k_proj", ["k_weights", "k_bias"], *d, kv)?;
                p.projection("v_proj", ["v_weights", "v_bias"], *d, kv)?;
                p.projection("out_proj", ["output_weight", "output_bias"], *d, *d)?;
            }
            Op::Softmax { plan: SoftmaxPlan::Kind(kind), .. } => {
                let at = |e| NnError::Config {
                    file: "Loom network".into(),
                    key: node.path.clone(),
                    what: format!("{e}"),
                };
                softmax = Some(SoftmaxVariant::new(cx, kind.clone()).map_err(at)?);
            }
            Op::LayerNorm { n, .. } => {
                let (w, b) = (p.add("weight", &[*n], 1.0)?, p.add("bias", &[*n], 0.0)?);
                p.slot("gamma", w, Part::Whole, Init::Constant(1.0), Some(Init::Constant(1.0)));
                p.bias("beta", b, Part::Whole, Some(ZEROS));
            }
            Op::RmsNorm { n, .. } => {
                let w = p.add("weight", &[*n], 1.0)?;
                p.slot("gamma", w, Part::Whole, Init::Constant(1.0), Some(Init::Constant(1.0)));
            }
            Op::SwiGlu { inputs, inner } => {
                p.projection("gate_proj", ["gate_weights", "gate_bias"], *inputs, *inner)?;
                p.projection("up_proj", ["up_weights", "up_bias"], *inputs, *inner)?;
                p.projection("down_proj", ["down_weights", "down_bias"], *inner, *inputs)?;
            }
            Op::Embedding { vocab, dim } => {
                let w = p.add("weight", &[*vocab, *dim], 0.0)?;
                let a = 1.0 / (*dim as f64).sqrt();
                p.slot("embedding_weights", w, Part::Whole, Init::Uniform { lo: -a, hi: a }, None);
            }
            Op::Parallel { branches: nodes, .. } | Op::Sequential { children: nodes, .. } => {
                children = nodes.iter().map(|n| LoomLayer::new(cx, n)).collect::<Result<_>>()?;
            }
            Op::Softmax { .. } | Op::Residual | Op::Activate(_) | Op::Pass | Op::Vanish => {}
        }
        let Parts { params, slots, .. } = p;
        let (op, path) = (node.op.clone(), node.path.clone());
        Ok(LoomLayer { op, path, params, slots, softmax, children })
    }

    pub(in crate::interop::loom) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The elements of a slot in Loom's order: a view of the parameter.
    pub(in crate::interop::loom) fn view(&self, slot: &Slot) -> Result<Tensor> {
        let t = self.params[slot.param].1.get().detach();
        match slot.part {
            Part::Whole => Ok(t),
            Part::Transposed => t.transpose(0, 1),
            Part::Gate(g) => {
                let rows = t.shape()[0] / 4;
                t.narrow(0, g * rows, rows)
            }
        }
    }

    /// Keys of its weight arrays in a bundle.
    pub fn weight_keys(&self) -> Vec<&'static str> {
        self.slots.iter().map(|s| s.key).collect()
    }

    fn slot(&self, key: &str) -> Result<&Slot> {
        let found = self.slots.iter().find(|s| s.key == key);
        found.ok_or_else(|| invalid(self.kind(), "key", format!("one of {:?}", self.weight_keys()), key))
    }

    /// One of its weight arrays in Loom's order, as 32-bit floats on the host. Waits for the device. Errors: `Invalid` for a key that it
    /// does not have.
    pub fn weight(&self, key: &str) -> Result<Vec<f32>> {
        self.view(self.slot(key)?)?.to_dtype(DType::F32)?.to_vec()
    }

    /// Overwrites one of its weight arrays, in Loom's order. Errors: `Invalid` for a key that it does not have or another length.
    pub fn set_weight(&self, key: &str, data: &[f32]) -> Result<()> {
        let to = self.view(self.slot(key)?)?;
        if data.len() != to.numel() {
            let got = format!("{} for `{key}`", data.len());
            return Err(invalid(self.kind(), "data", format!("{} numbers", to.numel()), got));
        }
        to.assign(&Tensor::from_slice(to.device(), data, to.shape())?.to_dtype(to.dtype())?)
    }

    /// Draws weights anew.
    pub(in crate::interop::loom) fn fill(&self, cx: &InitContext, stage: Stage) -> Result<()> {
        for slot in &self.slots {
            let init = match stage {
                Stage::Construct => Some(slot.construct),
                Stage::Initialise => slot.initialise,
            };
            if let Some(init) = init {
                let to = self.view(slot)?;
                // These rules know their bounds; fans do not matter.
                let new = init.tensor(cx, to.shape(), 1, 1)?.to_device(to.device())?;
                to.assign(&new.to_dtype(to.dtype())?)?;
            }
        }
        let alone = stage == Stage::Initialise && matches!(self.op, Op::Sequential { untouched: true, .. });
        if !alone {
            self.children.iter().try_for_each(|c| c.fill(cx, stage))?;
        }
        Ok(())
    }
}

//! One layer of a network: its parameters, where Loom's weights lie in them, and what it computes.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal, Rope};
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;
use trefoil::ops::norm::RowNorm;
use trefoil::ops::rnn::{Recurrence, RnnCell};

use super::plan::{Act, Combine, Heads, Node, Op, SoftmaxPlan, Window, times};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{RnnParams, ScaledDotProductAttention, sparsemax_support};
use crate::layers::SoftmaxVariant;
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

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
pub(super) struct Slot {
    /// Its key in a bundle.
    pub(super) key: &'static str,
    /// Position in [`LoomLayer::params`].
    param: usize,
    part: Part,
    /// What the constructor of Loom's layer draws.
    construct: Init,
    /// What `InitializeWeights` draws; none if it leaves the layer alone.
    initialise: Option<Init>,
    /// Whether a bundle may leave it out.
    pub(super) optional: bool,
}

/// Which of Loom's two ways of filling weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Construct,
    Initialise,
}

/// A layer of a [`LoomNetwork`](super::LoomNetwork): `[batch, n]` to `[batch, m]`, flat samples as Loom has them.
///
/// State names follow PyTorch: `weight [out, in]` and `bias` of dense and convolutions, `weight_ih`, `weight_hh`, `bias` of rnn and lstm (gates
/// i, f, g, o), `q_proj.weight` to `out_proj.bias` of mha, `gate_proj`, `up_proj`, `down_proj` of swiglu, `weight` (and `bias`) of norms,
/// `weight [V, D]` of embedding, `branches.0.` and so on of parallel and sequential.
#[derive(Debug)]
pub struct LoomLayer {
    op: Op,
    path: String,
    params: Vec<(String, Param)>,
    slots: Vec<Slot>,
    softmax: Option<SoftmaxVariant>,
    children: Vec<LoomLayer>,
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
    pub(super) fn new(cx: &InitContext, node: &Node) -> Result<Self> {
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

    pub(super) fn op(&self) -> &Op {
        &self.op
    }

    /// Place in the file.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Layers inside of a parallel or sequential one.
    pub fn branches(&self) -> &[LoomLayer] {
        &self.children
    }

    /// The elements of a slot in Loom's order: a view of the parameter.
    pub(super) fn view(&self, slot: &Slot) -> Result<Tensor> {
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
    pub(super) fn fill(&self, cx: &InitContext, stage: Stage) -> Result<()> {
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

    fn param(&self, i: usize) -> Tensor {
        self.params[i].1.get()
    }

    /// A projection whose weight is parameter `i` and whose bias is the next.
    fn project(&self, x: &Tensor, i: usize, act: Activation) -> Result<Tensor> {
        x.linear(&self.param(i), Some(&self.param(i + 1)), act, Precision::Ieee)
    }

    fn conv(&self, x: &Tensor, w: &Window, act: &Act) -> Result<Tensor> {
        let batch = x.shape()[0];
        // A sequence whose length the file does not determine.
        let free = [x.shape()[1] / w.channels];
        let size = if w.size.is_empty() { &free[..] } else { &w.size };
        let x = x.reshape(&[&[batch, w.channels][..], size].concat())?;
        let mut p = Conv::new().pad(w.padding).act(act.act);
        // One window for all places: the next one would start behind the input.
        let only = w.size.iter().max().copied().unwrap_or(1) + 2 * w.padding;
        p = p.stride(if w.fixed { only } else { w.stride });
        let mut y = x.conv(&self.param(0), Some(&self.param(1)), &p)?;
        if w.fixed {
            y = y.expand(&[&[batch, w.filters][..], &w.out].concat())?.contiguous()?;
        }
        flat(&scaled(y, act.scale)?, batch)
    }

    fn recurrence(&self, cell: RnnCell, x: &Tensor, [input, steps]: [usize; 2]) -> Result<Tensor> {
        let batch = x.shape()[0];
        let weights =
            RnnParams { w_ih: self.param(0), w_hh: self.param(1), b_ih: Some(self.param(2)), b_hh: None };
        let how = Recurrence::new().batch_first(true);
        let (y, _) = x.reshape(&[batch, steps, input])?.rnn(cell, &how, &weights, None, None)?;
        flat(&y, batch)
    }

    fn attention(&self, x: &Tensor, h: &Heads) -> Result<Tensor> {
        let batch = x.shape()[0];
        let joined = if h.empty {
            Tensor::zeros(x.device(), x.dtype(), &[x.numel() / h.d, h.d])?
        } else {
            let sequences = if h.one_sequence { 1 } else { batch };
            let len = x.numel() / h.d / sequences.max(1);
            let x = x.reshape(&[sequences, len, h.d])?;
            let heads = |i: usize, n: usize| {
                self.project(&x, i, Activation::Identity)?.reshape(&[sequences, len, n, h.head_dim])
            };
            let rope = |t: Tensor| match h.head_dim {
                1 => t.transpose(1, 2),
                _ => t.rope(&Rope::new().base(h.base), None)?.transpose(1, 2),
            };
            let (q, k) = (rope(heads(0, h.heads)?)?, rope(heads(2, h.kv_heads)?)?);
            let v = heads(4, h.kv_heads)?.transpose(1, 2)?;
            let how = Attention::new().causal(Causal::TopLeft);
            ScaledDotProductAttention::with(how).forward(&q, &k, &v)?.merge_heads()?
        };
        let y = if h.projected { self.project(&joined, 6, Activation::Identity)? } else { joined };
        flat(&y, batch)
    }

    fn norm(&self, x: &Tensor, n: usize, p: &RowNorm, rows: Option<usize>) -> Result<Tensor> {
        let (batch, all) = (x.shape()[0], x.numel() / n);
        let bias = if p.rms { None } else { Some(self.param(1)) };
        let x = x.reshape(&[all, n])?;
        let y = match rows.filter(|r| *r < all) {
            None => x.row_norm(p, Some(&self.param(0)), bias.as_ref())?,
            Some(rows) => {
                let y = x.narrow(0, 0, rows)?.row_norm(p, Some(&self.param(0)), bias.as_ref())?;
                let rest = Tensor::zeros(x.device(), x.dtype(), &[all - rows, n])?;
                Tensor::concat(0, &[&y, &rest])?
            }
        };
        flat(&y, batch)
    }

    fn softmax(&self, x: &Tensor, plan: &SoftmaxPlan) -> Result<Tensor> {
        match plan {
            SoftmaxPlan::Kind(_) => match &self.softmax {
                Some(s) => s.forward(x),
                None => x.softmax(-1),
            },
            SoftmaxPlan::CutGrid { rows, cols, temperature } => {
                let (batch, n, used) = (x.shape()[0], x.shape()[1], times(*rows, &[*cols]));
                if used > n {
                    let want = format!("at least {used} elements of a sample");
                    return Err(invalid("Softmax", "x", want, format!("{n}")));
                }
                let y = x.narrow(1, 0, used)?.mul_scalar(1.0 / temperature)?;
                let y = y.reshape(&[batch, *rows, *cols])?.softmax(-1)?.reshape(&[batch, used])?;
                let rest = Tensor::zeros(x.device(), x.dtype(), &[batch, n - used])?;
                Tensor::concat(1, &[&y, &rest])
            }
            SoftmaxPlan::SparseBug => sparse_bug(x),
            SoftmaxPlan::Blend { weight, bug } => {
                let sparse = if *bug { sparse_bug(x)? } else { x.sparsemax(-1)? };
                let y = x.softmax(-1)?.mul_scalar(1.0 - weight)?.add(&sparse.mul_scalar(*weight)?)?;
                y.div(&y.sum_axes(&[-1], true)?)
            }
        }
    }

    fn embedding(&self, ids: &Tensor, vocab: usize) -> Result<Tensor> {
        let batch = ids.shape()[0];
        let table = self.param(0);
        if ids.dtype().is_index() {
            return flat(&table.embedding(ids, &Default::default())?, batch);
        }
        // Numbers truncated towards zero; a row of zeros for what the table does not have.
        let (at, inside) = no_grad(|| {
            let at = ids.detach().unary(trefoil::ops::elementwise::Unary::Trunc)?;
            let bound = |v: f64| Tensor::full(ids.device(), ids.dtype(), &[], v);
            let limited = at.clamp(Some(0.0), Some(vocab as f64 - 1.0))?;
            let inside = at.eq(&limited)?.to_dtype(table.dtype())?;
            // NaN is in no row.
            let safe = limited.where_(&limited.ge(&bound(0.0)?)?, &bound(0.0)?)?;
            Ok::<_, NnError>((safe.to_dtype(DType::I32)?, inside))
        })?;
        let rows = table.embedding(&at, &Default::default())?;
        flat(&rows.mul(&inside.unsqueeze(-1)?)?, batch)
    }

    fn combine(&self, x: &Tensor, combine: &Combine) -> Result<Tensor> {
        let batch = x.shape()[0];
        let run = |(i, c): (usize, &LoomLayer)| hooks::layer(&format!("branches.{i}"), c, x);
        let ys = self.children.iter().enumerate().map(run).collect::<Result<Vec<_>>>()?;
        match combine {
            Combine::Concat { batch_major: false } => Tensor::concat(1, &ys.iter().collect::<Vec<_>>()),
            Combine::Concat { batch_major: true } => {
                let flat = ys.iter().map(|y| y.reshape(&[y.numel()])).collect::<Result<Vec<_>>>()?;
                let all = Tensor::concat(0, &flat.iter().collect::<Vec<_>>())?;
                all.reshape(&[batch, all.numel() / batch.max(1)])
            }
            Combine::Add => self.sum(ys),
            Combine::Mean => {
                let n = ys.len() as f64;
                self.sum(ys)?.mul_scalar(1.0 / n)
            }
            Combine::Grid(order) => {
                let cells: Vec<&Tensor> = order.iter().filter_map(|&i| ys.get(i)).collect();
                Tensor::concat(1, &cells)
            }
            Combine::Filter => {
                let wide = ys.iter().map(|y| y.shape()[1]).max().unwrap_or(0);
                let n = ys.len() as f64;
                let padded = ys.into_iter().map(|y| {
                    let rest = wide - y.shape()[1];
                    if rest == 0 {
                        return Ok(y);
                    }
                    let zeros = Tensor::zeros(y.device(), y.dtype(), &[batch, rest])?;
                    Tensor::concat(1, &[&y, &zeros])
                });
                self.sum(padded.collect::<Result<_>>()?)?.mul_scalar(1.0 / n)
            }
        }
    }

    fn sum(&self, ys: Vec<Tensor>) -> Result<Tensor> {
        let mut all = ys.into_iter();
        let Some(first) = all.next() else {
            return Err(invalid("parallel", "branches", "at least one", "none"));
        };
        all.try_fold(first, |sum, y| {
            if sum.shape() != y.shape() {
                let (want, got) =
                    (format!("branches of shape {:?}", sum.shape()), format!("{:?}", y.shape()));
                return Err(invalid("parallel", "branches", want, got));
            }
            sum.add(&y)
        })
    }
}

/// `[batch, everything else]`.
fn flat(t: &Tensor, batch: usize) -> Result<Tensor> {
    t.reshape(&[batch, t.numel() / batch.max(1)])
}

fn scaled(t: Tensor, by: f64) -> Result<Tensor> {
    if by == 1.0 { Ok(t) } else { t.mul_scalar(by) }
}

/// Sparsemax whose threshold counts each of the k kept values twice: max(x - (2 (x_1 + .. + x_k) - 1) / k, 0). Which values are kept is not
/// differentiated, as in sparsemax.
fn sparse_bug(x: &Tensor) -> Result<Tensor> {
    let (k, kept) = no_grad(|| {
        let (k, sum) = sparsemax_support(x, x.rank() - 1)?;
        let tau = sum.add_scalar(-1.0)?.div(&k)?;
        Ok::<_, NnError>((k, x.detach().gt(&tau)?.to_dtype(x.dtype())?))
    })?;
    let sum = x.mul(&kept)?.sum_axes(&[-1], true)?;
    x.sub(&sum.mul_scalar(2.0)?.add_scalar(-1.0)?.div(&k)?)?.relu()
}

impl Layer for LoomLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[batch, n] = x.shape() else {
            return Err(invalid(self.kind(), "x", "shape [batch, n]", format!("{:?}", x.shape())));
        };
        let wants = |want: usize| match n == want {
            true => Ok(()),
            false => {
                Err(invalid(self.kind(), "x", format!("shape [batch, {want}]"), format!("{:?}", x.shape())))
            }
        };
        let rows_of = |want: usize| match x.numel().is_multiple_of(want) {
            true => Ok(()),
            false => Err(invalid(self.kind(), "x", format!("rows of {want}"), format!("{:?}", x.shape()))),
        };
        match &self.op {
            Op::Dense { inputs, act, .. } => {
                // What a convolution without filters passes on counts as zeros.
                let zeros = if n == 0 {
                    Some(Tensor::zeros(x.device(), x.dtype(), &[batch, *inputs])?)
                } else {
                    None
                };
                let x = zeros.as_ref().unwrap_or(x);
                if zeros.is_none() {
                    wants(*inputs)?;
                }
                scaled(self.project(x, 0, act.act)?, act.scale)
            }
            Op::Conv1d { window, act } | Op::Conv2d { window, act } => {
                match window.size.is_empty() {
                    true if n.is_multiple_of(window.channels) => {}
                    true => wants(n / window.channels * window.channels)?,
                    false => wants(times(window.channels, &window.size))?,
                }
                self.conv(x, window, act)
            }
            Op::Rnn { input, steps, .. } => {
                wants(times(*input, &[*steps]))?;
                self.recurrence(RnnCell::Tanh, x, [*input, *steps])
            }
            Op::Lstm { input, steps, .. } => {
                wants(times(*input, &[*steps]))?;
                self.recurrence(RnnCell::Lstm, x, [*input, *steps])
            }
            Op::Mha(h) => {
                match h.one_sequence {
                    true => rows_of(h.d)?,
                    false if n.is_multiple_of(h.d) => {}
                    false => rows_of(usize::MAX)?,
                }
                self.attention(x, h)
            }
            Op::Softmax { plan, whole: false } => self.softmax(x, plan),
            Op::Softmax { plan, whole: true } => {
                self.softmax(&x.reshape(&[1, x.numel()])?, plan)?.reshape(&[batch, n])
            }
            Op::LayerNorm { n: width, eps, batch_rows } => {
                rows_of(*width)?;
                self.norm(x, *width, &RowNorm::layer().eps(*eps), batch_rows.then_some(batch))
            }
            Op::RmsNorm { n: width, eps } => {
                rows_of(*width)?;
                self.norm(x, *width, &RowNorm::rms().eps(*eps), None)
            }
            Op::SwiGlu { inputs, .. } => {
                rows_of(*inputs)?;
                let x = x.reshape(&[x.numel() / inputs, *inputs])?;
                let gate = self.project(&x, 0, Activation::Identity)?;
                let up = self.project(&x, 2, Activation::Identity)?;
                let h = up.gated_by(&gate, Activation::Swish { beta: 1.0 })?;
                flat(&self.project(&h, 4, Activation::Identity)?, batch)
            }
            Op::Embedding { vocab, .. } => self.embedding(x, *vocab),
            Op::Parallel { combine, .. } => self.combine(x, combine),
            Op::Sequential { .. } => {
                let each =
                    |x: Tensor, (i, c): (usize, &LoomLayer)| hooks::layer(&format!("branches.{i}"), c, &x);
                self.children.iter().enumerate().try_fold(x.clone(), each)
            }
            Op::Activate(act) => scaled(x.activation(act.act)?, act.scale),
            // A residual layer adds what the network remembers; alone it has nothing to add.
            Op::Residual | Op::Pass => Ok(x.clone()),
            Op::Vanish => Tensor::zeros(x.device(), x.dtype(), &[batch, 0]),
        }
    }

    fn kind(&self) -> &'static str {
        match self.op {
            Op::Dense { .. } => "Dense",
            Op::Conv1d { .. } | Op::Vanish => "Conv1d",
            Op::Conv2d { .. } => "Conv2d",
            Op::Rnn { .. } => "Rnn",
            Op::Lstm { .. } => "Lstm",
            Op::Mha(_) => "Mha",
            Op::Softmax { .. } => "Softmax",
            Op::LayerNorm { .. } => "LayerNorm",
            Op::RmsNorm { .. } => "RmsNorm",
            Op::SwiGlu { .. } => "SwiGlu",
            Op::Embedding { .. } => "Embedding",
            Op::Parallel { .. } => "Parallel",
            Op::Sequential { .. } => "Sequential",
            Op::Residual => "Residual",
            Op::Activate(_) => "Activation",
            Op::Pass => "Identity",
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (name, p) in &self.params {
            v.param(name, p);
        }
        if let Some(s) = &self.softmax {
            s.visit(v);
        }
        for (i, c) in self.children.iter().enumerate() {
            v.child(&format!("branches.{i}"), c);
        }
    }
}

/// Whether a layer carries the residual of [`Flags::implicit_residual`](super::Flags::implicit_residual) along, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    /// Sets it to its input.
    Set,
    /// Adds it to its input, and sets it to its output where there was one.
    Before,
    /// Adds it to its output, and sets it to the sum.
    After,
    None,
}

impl LoomLayer {
    pub(super) fn skip(&self) -> Skip {
        match self.op {
            Op::RmsNorm { .. } => Skip::Set,
            Op::LayerNorm { .. } => Skip::Before,
            Op::Mha(_) | Op::SwiGlu { .. } => Skip::After,
            _ => Skip::None,
        }
    }
}

//! From what a file says to what is computed: sizes, activations and variants are settled and checked before anything is allocated.

use trefoil::ops::Activation;

use super::definition::{LayerDefinition, LoomConfig, Origin};
use super::flags::{Flag, Flags};
use super::keys::{KEYS, canonical};
use crate::error::{NnError, Result};
use crate::layers::SoftmaxKind;

/// An activation followed by a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Act {
    pub(super) act: Activation,
    pub(super) scale: f64,
}

impl Act {
    fn plain(act: Activation) -> Self {
        Act { act, scale: 1.0 }
    }
}

/// Axes of a convolution: channels, filters, window, stride, padding, input and output sizes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    pub(super) channels: usize,
    pub(super) filters: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) size: Vec<usize>,
    pub(super) out: Vec<usize>,
    /// Every place reads the first window.
    pub(super) fixed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heads {
    pub(super) d: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) base: f64,
    /// Heads of size 0.
    pub(super) empty: bool,
    pub(super) projected: bool,
    pub(super) one_sequence: bool,
}

/// How a softmax reads its rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SoftmaxPlan {
    Kind(SoftmaxKind),
    /// A grid over the first elements, zeros behind it.
    CutGrid {
        rows: usize,
        cols: usize,
        temperature: f64,
    },
    /// Loom's sparsemax.
    SparseBug,
    /// Softmax and sparsemax mixed; the sparse part may be Loom's.
    Blend {
        weight: f64,
        bug: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Combine {
    Concat {
        batch_major: bool,
    },
    Add,
    Mean,
    /// Branches in the order of their cells.
    Grid(Vec<usize>),
    Filter,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    Dense {
        inputs: usize,
        outputs: usize,
        act: Act,
    },
    Conv1d {
        window: Window,
        act: Act,
    },
    Conv2d {
        window: Window,
        act: Act,
    },
    Rnn {
        input: usize,
        hidden: usize,
        steps: usize,
    },
    Lstm {
        input: usize,
        hidden: usize,
        steps: usize,
    },
    Mha(Heads),
    Softmax {
        plan: SoftmaxPlan,
        whole: bool,
    },
    LayerNorm {
        n: usize,
        eps: f64,
        batch_rows: bool,
    },
    RmsNorm {
        n: usize,
        eps: f64,
    },
    SwiGlu {
        inputs: usize,
        inner: usize,
    },
    Embedding {
        vocab: usize,
        dim: usize,
    },
    Parallel {
        combine: Combine,
        branches: Vec<Node>,
    },
    Sequential {
        children: Vec<Node>,
        untouched: bool,
    },
    /// Adds the previous layer's input.
    Residual,
    Activate(Act),
    /// The input.
    Pass,
    /// Nothing comes out.
    Vanish,
}

/// A settled layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) path: String,
    pub(super) op: Op,
    /// Elements per sample, where the file tells.
    pub(super) outputs: Option<usize>,
}

/// What [`check`](super::check) finds out about a network.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Flags on which this network depends, with the place that makes it so.
    pub mattered: Vec<(Flag, String)>,
    /// Keys that Loom knows but that this type of layer does not read, by path.
    pub unused: Vec<String>,
    /// Elements of a sample at the input, where the file tells.
    pub inputs: Option<usize>,
    /// Elements of a sample at the output, where the file tells.
    pub outputs: Option<usize>,
}

impl Report {
    /// The flags that mattered, each once.
    pub fn flags(&self) -> Vec<Flag> {
        let mut all: Vec<Flag> = self.mattered.iter().map(|(f, _)| *f).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Where a layer stands.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) branch: bool,
    pub(super) origin: Origin,
}

pub(super) struct Planner<'a> {
    pub(super) flags: &'a Flags,
    pub(super) report: Report,
}

/// Largest number of a file. Larger tensors have several axes.
const LARGEST: usize = i32::MAX as usize;

pub(super) fn fail<T>(key: impl Into<String>, what: impl Into<String>) -> Result<T> {
    Err(NnError::Config { file: "Loom network".into(), key: key.into(), what: what.into() })
}

/// Product; what no tensor can have stays out of reach.
pub(super) fn times(a: usize, others: &[usize]) -> usize {
    others.iter().fold(a, |n, &b| n.saturating_mul(b))
}

fn plus<'a>(all: impl Iterator<Item = &'a usize>) -> usize {
    all.fold(0, |n, &b| n.saturating_add(b))
}

/// The first that is there and not 0.
pub(super) fn first<const N: usize>(all: [Option<usize>; N]) -> Option<usize> {
    all.into_iter().flatten().find(|&n| n > 0)
}

/// Settles a whole configuration.
pub(super) fn plan(config: &LoomConfig, flags: &Flags) -> Result<(Vec<Node>, Report)> {
    let mut p = Planner { flags, report: Report::default() };
    p.grid(config)?;
    let place = Place { branch: false, origin: config.origin };
    let mut size = None;
    let mut nodes = vec![];
    for (i, d) in config.layers.iter().enumerate() {
        let node = p.node(format!("layers[{i}]"), d, size, place, config.batch())?;
        if i == 0 {
            p.report.inputs = inputs_of(&node.op);
        }
        size = node.outputs;
        nodes.push(node);
    }
    p.report.outputs = size;
    Ok((nodes, p.report))
}

/// Elements per sample that an operation wants, where it wants a number of its own.
fn inputs_of(op: &Op) -> Option<usize> {
    match op {
        Op::Dense { inputs, .. } => Some(*inputs),
        Op::Conv1d { window, .. } | Op::Conv2d { window, .. } => {
            (!window.size.is_empty()).then(|| times(window.channels, &window.size))
        }
        Op::Rnn { input, steps, .. } | Op::Lstm { input, steps, .. } => Some(times(*input, &[*steps])),
        Op::Softmax { plan: SoftmaxPlan::Kind(kind), whole: false } => match kind {
            SoftmaxKind::Grid { rows, cols, .. } => Some(times(*rows, &[*cols])),
            SoftmaxKind::Hierarchical { levels, .. } => Some(times(1, levels)),
            SoftmaxKind::Masked { mask, .. } => Some(mask.len()),
            SoftmaxKind::Adaptive { clusters } => Some(clusters.iter().map(Vec::len).sum()),
            _ => None,
        },
        Op::Parallel { branches, .. } => branches.iter().find_map(|b| inputs_of(&b.op)),
        Op::Sequential { children, .. } => children.first().and_then(|c| inputs_of(&c.op)),
        _ => None,
    }
}

impl Planner<'_> {
    pub(super) fn mattered(&mut self, flag: Flag, path: &str) {
        self.report.mattered.push((flag, path.to_string()));
    }

    /// A flag that this place depends on.
    pub(super) fn ask(&mut self, flag: Flag, path: &str, value: bool) -> bool {
        self.mattered(flag, path);
        value
    }

    fn grid(&mut self, config: &LoomConfig) -> Result<()> {
        let [r, c, l] = [config.grid_rows, config.grid_cols, config.layers_per_cell];
        if [r, c, l] == [0; 3] && !config.layers.is_empty() {
            if self.ask(Flag::GridKeysRequired, "layers", self.flags.grid_keys_required) {
                return fail("grid_rows", "grid_rows, grid_cols and layers_per_cell are missing");
            }
            return Ok(());
        }
        let n = config.layers.len();
        if r.checked_mul(c).and_then(|n| n.checked_mul(l)) != Some(n) {
            return fail("layers", format!("expected {r} x {c} x {l} layers, found {n}"));
        }
        Ok(())
    }

    /// Settles a layer of `d` after `size` elements per sample.
    fn node(
        &mut self,
        path: String,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Node> {
        let kind = canonical(&d.kind);
        let Some((_, known)) = KEYS.iter().find(|(k, _)| *k == kind) else {
            let names: Vec<&str> = KEYS.iter().map(|(k, _)| *k).collect();
            let what = format!("unknown type `{}`, expected one of {}", d.kind, names.join(", "));
            return fail(format!("{path}.type"), what);
        };
        if let Some(key) = d.beyond(LARGEST) {
            return fail(format!("{path}.{key}"), format!("must be at most {LARGEST}"));
        }
        // A bundle has an activation everywhere, and 1 x 1 beside the sizes of a dense layer.
        let everywhere = |k: &str| k == "activation" && at.origin == Origin::Bundle;
        let unread = |k: &&str| !known.contains(k) && !everywhere(k);
        self.report.unused.extend(d.keys().into_iter().filter(unread).map(|k| format!("{path}.{k}")));
        let op = match kind {
            "dense" => self.dense(&path, d, at)?,
            "conv1d" => self.conv1d(&path, d, size)?,
            "conv2d" => self.conv2d(&path, d)?,
            "rnn" | "lstm" => {
                let input = need(&path, "input_size", d.input_size)?;
                let hidden = first([d.hidden_size]).unwrap_or(input);
                let steps = first([d.seq_length]).unwrap_or(1);
                match kind {
                    "rnn" => Op::Rnn { input, hidden, steps },
                    _ => Op::Lstm { input, hidden, steps },
                }
            }
            "mha" => self.mha(&path, d, at)?,
            "softmax" => self.softmax(&path, d, size, at, batch)?,
            "layer_norm" => {
                let batch_rows = self.ask(Flag::LayerNormRows, &path, self.flags.layer_norm_rows);
                self.mattered(Flag::ImplicitResidual, &path);
                Op::LayerNorm {
                    n: need(&path, "norm_size", d.norm_size)?,
                    eps: eps(&path, d, 1e-5)?,
                    batch_rows,
                }
            }
            "rms_norm" => {
                self.mattered(Flag::ImplicitResidual, &path);
                Op::RmsNorm { n: need(&path, "norm_size", d.norm_size)?, eps: eps(&path, d, 1e-5)? }
            }
            "swiglu" => self.swiglu(&path, d, at)?,
            "embedding" => Op::Embedding {
                vocab: need(&path, "vocab_size", d.vocab_size)?,
                dim: need(&path, "embedding_dim", d.embedding_dim)?,
            },
            "parallel" => self.parallel(&path, d, size, at, batch)?,
            "sequential" => self.sequential(&path, d, size, at, batch)?,
            _ => match self.ask(
                Flag::ResidualLayerIsActivation,
                &path,
                self.flags.residual_layer_is_activation,
            ) {
                true => Op::Activate(self.activation(&path, d)?),
                false => Op::Residual,
            },
        };
        if matches!(op, Op::Dense { .. } | Op::Conv2d { .. }) && at.origin != Origin::Bundle {
            self.mattered(Flag::BuildUninitialised, &path);
        }
        let outputs = self.chain(&path, &op, size, batch)?;
        Ok(Node { path, op, outputs })
    }

    /// Elements per sample after an operation. Errors: it does not take what comes in.
    fn chain(&self, path: &str, op: &Op, size: Option<usize>, batch: usize) -> Result<Option<usize>> {
        // Behind a convolution that gives nothing, Loom's dense layers see zeros.
        let nothing = size == Some(0) && self.flags.conv1d_guide_keys;
        let exact = |want: usize| match size {
            Some(n) if n != want && !nothing => {
                fail(path, format!("takes {want} elements of a sample, the layer before gives {n}"))
            }
            _ => Ok(()),
        };
        let multiple = |of: usize, rows: &str| match size {
            Some(n) if !n.is_multiple_of(of) => {
                fail(path, format!("takes {rows} of {of} elements, the layer before gives {n}"))
            }
            _ => Ok(size),
        };
        match op {
            Op::Dense { outputs, .. } => {
                exact(inputs_of(op).unwrap_or(0))?;
                Ok(Some(*outputs))
            }
            Op::Conv1d { window, .. } | Op::Conv2d { window, .. } => {
                let Some(want) = inputs_of(op) else { return Ok(None) };
                exact(want)?;
                Ok(Some(times(window.filters, &window.out)))
            }
            Op::Rnn { hidden, steps, .. } | Op::Lstm { hidden, steps, .. } => {
                exact(inputs_of(op).unwrap_or(0))?;
                Ok(Some(times(*hidden, &[*steps])))
            }
            Op::Mha(h) if h.one_sequence => match size {
                Some(n) if !times(n, &[batch]).is_multiple_of(h.d) => {
                    let (d, all) = (h.d, times(n, &[batch]));
                    fail(path, format!("takes tokens of {d} elements, the layer before gives {all} in all"))
                }
                _ => Ok(size),
            },
            Op::Mha(h) => multiple(h.d, "tokens"),
            Op::LayerNorm { n, .. } | Op::RmsNorm { n, .. } => multiple(*n, "rows"),
            Op::SwiGlu { inputs, .. } => multiple(*inputs, "rows"),
            Op::Softmax { plan, .. } => {
                if let Some(want) = inputs_of(op) {
                    exact(want)?;
                }
                match plan {
                    SoftmaxPlan::Kind(SoftmaxKind::Mixture { weights }) => {
                        multiple(weights.len(), "as many rows as weights, each")?;
                        Ok(size.map(|n| n / weights.len()))
                    }
                    _ => Ok(size.or(inputs_of(op))),
                }
            }
            Op::Embedding { dim, .. } => Ok(size.map(|n| times(n, &[*dim]))),
            Op::Sequential { children, .. } => Ok(children.last().map_or(size, |c| c.outputs)),
            Op::Parallel { combine, branches } => {
                let sizes: Option<Vec<usize>> = branches.iter().map(|b| b.outputs).collect();
                let Some(sizes) = sizes else { return Ok(None) };
                match combine {
                    Combine::Concat { .. } => Ok(Some(plus(sizes.iter()))),
                    Combine::Grid(order) => Ok(Some(plus(order.iter().filter_map(|&i| sizes.get(i))))),
                    Combine::Filter => Ok(sizes.iter().max().copied()),
                    Combine::Add | Combine::Mean => {
                        if sizes.iter().any(|n| Some(n) != sizes.first()) {
                            return fail(
                                path,
                                format!("branches of different sizes {sizes:?} cannot be added"),
                            );
                        }
                        Ok(sizes.first().copied())
                    }
                }
            }
            Op::Residual | Op::Activate(_) | Op::Pass => Ok(size),
            Op::Vanish => Ok(Some(0)),
        }
    }

    fn activation(&mut self, path: &str, d: &LayerDefinition) -> Result<Act> {
        let key = format!("{path}.activation");
        let relu = Act { act: Activation::Relu, scale: self.flags.relu_scale };
        let act = match d.activation.as_deref().unwrap_or("") {
            "relu" => relu,
            "sigmoid" => Act::plain(Activation::Sigmoid),
            "tanh" => Act::plain(Activation::Tanh),
            "softplus" => Act::plain(Activation::Softplus { beta: 1.0, threshold: 20.0 }),
            "leaky_relu" => {
                self.mattered(Flag::LeakySlope, &key);
                Act::plain(Activation::LeakyRelu { slope: self.flags.leaky_slope })
            }
            "identity" => Act::plain(Activation::Identity),
            "" | "linear" => match self.ask(Flag::LinearIsRelu, &key, self.flags.linear_is_relu) {
                true => relu,
                false => Act::plain(Activation::Identity),
            },
            other => match self.ask(Flag::UnknownActivation, &key, self.flags.unknown_activation) {
                true => relu,
                false => {
                    let names = "relu, sigmoid, tanh, softplus, leaky_relu, linear";
                    return fail(key, format!("unknown activation `{other}`, expected one of {names}"));
                }
            },
        };
        if act.act == Activation::Relu {
            self.mattered(Flag::ReluScale, &key);
        }
        Ok(act)
    }

    fn dense(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let real = first([d.input_height]).is_some() && first([d.output_height]).is_some();
        let trap = d.width == Some(1) && d.height == Some(1) && real;
        let skip = match (trap, at.origin) {
            (false, _) => false,
            (true, Origin::Json) => !self.ask(Flag::WidthHeightOne, path, self.flags.width_height_one),
            (true, _) => true,
        };
        let [w, h] = if skip { [None, None] } else { [d.width, d.height] };
        let Some(inputs) = first([w, d.input_size, d.input_height]) else {
            return fail(path, "needs one of width, input_size, input_height");
        };
        let Some(outputs) = first([h, d.output_size, d.output_height]) else {
            return fail(path, "needs one of height, output_size, output_height");
        };
        Ok(Op::Dense { inputs, outputs, act: self.activation(path, d)? })
    }

    fn conv1d(&mut self, path: &str, d: &LayerDefinition, size: Option<usize>) -> Result<Op> {
        let guide =
            [d.conv1d_in_channels, d.conv1d_filters, d.conv1d_kernel_size, d.conv1d_stride, d.conv1d_padding];
        let mut keys = [d.input_channels, d.filters, d.kernel_size, d.stride, d.padding];
        if guide.iter().any(Option::is_some)
            && !self.ask(Flag::Conv1dGuideKeys, path, self.flags.conv1d_guide_keys)
        {
            for (i, (own, other)) in keys.iter_mut().zip(guide).enumerate() {
                if let (Some(a), Some(b)) = (*own, other)
                    && a != b
                {
                    let name = ["in_channels", "filters", "kernel_size", "stride", "padding"][i];
                    return fail(
                        format!("{path}.conv1d_{name}"),
                        format!("is {b}, the key without conv1d_ is {a}"),
                    );
                }
                *own = own.or(other);
            }
        }
        let act = self.activation(path, d)?;
        let [channels, filters, kernel, stride, padding] = keys;
        if self.flags.conv1d_guide_keys && (first([filters]).is_none() || first([kernel]).is_none()) {
            return Ok(Op::Vanish);
        }
        let channels = first([channels]).unwrap_or(1);
        let lengths = match (first([d.input_length, d.input_height]), size) {
            (Some(n), _) => vec![n],
            (None, Some(n)) if n.is_multiple_of(channels) => vec![n / channels],
            (None, Some(n)) => {
                return fail(
                    path,
                    format!("{n} elements of a sample do not divide into {channels} channels"),
                );
            }
            // The first layer of a file may leave the length to the input.
            (None, None) => vec![],
        };
        let stride = first([stride]).unwrap_or(1);
        let window = window(path, channels, [filters, kernel], stride, padding, lengths)?;
        if let Some(&n) = window.out.first() {
            agrees(path, "output_height", d.output_height, n)?;
        }
        Ok(Op::Conv1d { window, act })
    }

    fn conv2d(&mut self, path: &str, d: &LayerDefinition) -> Result<Op> {
        let size =
            vec![need(path, "input_height", d.input_height)?, need(path, "input_width", d.input_width)?];
        let channels = need(path, "input_channels", d.input_channels)?;
        let fixed = first([d.stride]).is_none()
            && self.ask(Flag::Conv2dStrideZero, path, self.flags.conv2d_stride_zero);
        let stride = first([d.stride]).unwrap_or(1);
        let mut window = window(path, channels, [d.filters, d.kernel_size], stride, d.padding, size)?;
        window.fixed = fixed;
        agrees(path, "output_height", d.output_height, window.out[0])?;
        agrees(path, "output_width", d.output_width, window.out[1])?;
        Ok(Op::Conv2d { window, act: self.activation(path, d)? })
    }

    fn mha(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let dim = need(path, "d_model", d.d_model)?;
        let heads = first([d.num_heads]).unwrap_or(8);
        let kv_heads = first([d.num_kv_heads]).unwrap_or(heads);
        if !dim.is_multiple_of(heads) || !heads.is_multiple_of(kv_heads) {
            let what = format!(
                "d_model {dim}, num_heads {heads}, num_kv_heads {kv_heads}: each must divide the one before"
            );
            return fail(format!("{path}.num_heads"), what);
        }
        let head_dim = dim / heads;
        if head_dim > 1 && !head_dim.is_multiple_of(2) {
            return fail(
                format!("{path}.num_heads"),
                format!("heads of odd size {head_dim} cannot be rotated"),
            );
        }
        let base = f64::from(d.rope_freq_base.filter(|b| *b != 0.0).unwrap_or(10_000.0));
        if !(base > 0.0 && base.is_finite()) {
            return fail(format!("{path}.rope_freq_base"), "must be above 0");
        }
        let sized = match at.origin {
            Origin::Json => false,
            Origin::Bundle => !at.branch,
            Origin::Code => true,
        };
        let empty = !sized && self.ask(Flag::MhaZeroHeadDim, path, self.flags.mha_zero_head_dim);
        let projected = !self.ask(Flag::MhaUnprojected, path, self.flags.mha_unprojected);
        let one_sequence = self.ask(Flag::MhaOneSequence, path, self.flags.mha_one_sequence);
        self.mattered(Flag::ImplicitResidual, path);
        Ok(Op::Mha(Heads { d: dim, heads, kv_heads, head_dim, base, empty, projected, one_sequence }))
    }

    fn swiglu(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let Some(inputs) = first([d.input_size, d.input_height]) else {
            return fail(path, "needs input_size or input_height");
        };
        let Some(inner) = first([d.output_size, d.output_height]) else {
            return fail(path, "needs output_size or output_height");
        };
        if at.origin == Origin::Json
            && self.ask(Flag::SwigluJsonIsDense, path, self.flags.swiglu_json_is_dense)
        {
            self.mattered(Flag::LeakySlope, path);
            let act = Act::plain(Activation::LeakyRelu { slope: self.flags.leaky_slope });
            return Ok(Op::Dense { inputs, outputs: inner, act });
        }
        self.mattered(Flag::ImplicitResidual, path);
        Ok(Op::SwiGlu { inputs, inner })
    }

    fn sequential(
        &mut self,
        path: &str,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Op> {
        let (mut children, mut size) = (vec![], size);
        for (i, b) in d.branches.iter().flatten().enumerate() {
            let path = format!("{path}.branches[{i}]");
            if !matches!(canonical(&b.kind), "dense" | "softmax")
                && self.ask(Flag::SequentialSkips, &path, self.flags.sequential_skips)
            {
                children.push(Node { path, op: Op::Pass, outputs: size });
                continue;
            }
            let node = self.node(path, b, size, Place { branch: true, ..at }, batch)?;
            size = node.outputs;
            children.push(node);
        }
        let untouched = self.ask(Flag::SequentialUninitialised, path, self.flags.sequential_uninitialised);
        Ok(Op::Sequential { children, untouched })
    }

    fn parallel(
        &mut self,
        path: &str,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Op> {
        let mode = d.combine_mode.as_deref().unwrap_or("");
        let key = format!("{path}.combine_mode");
        let known = ["", "concat", "add", "avg", "average", "grid_scatter", "filter"];
        if !known.contains(&mode) {
            if self.ask(Flag::UnknownCombineMode, &key, self.flags.unknown_combine_mode) {
                return Ok(Op::Pass);
            }
            return fail(key, format!("unknown mode `{mode}`, expected one of {}", known[1..].join(", ")));
        }
        let definitions = d.branches.as_deref().unwrap_or(&[]);
        if definitions.is_empty() {
            return fail(format!("{path}.branches"), "at least one branch is needed");
        }
        let mut branches = vec![];
        for (i, b) in definitions.iter().enumerate() {
            let at = Place { branch: true, ..at };
            branches.push(self.node(format!("{path}.branches[{i}]"), b, size, at, batch)?);
        }
        let combine = match mode {
            "" | "concat" => {
                let flag = self.flags.parallel_concat_batch_major;
                Combine::Concat { batch_major: self.ask(Flag::ParallelConcatBatchMajor, path, flag) }
            }
            "add" => Combine::Add,
            "avg" | "average" => Combine::Mean,
            "filter" => Combine::Filter,
            _ => Combine::Grid(self.cells(path, d, branches.len())?),
        };
        Ok(Op::Parallel { combine, branches })
    }

    /// Branches in the order of their cells.
    fn cells(&mut self, path: &str, d: &LayerDefinition, n: usize) -> Result<Vec<usize>> {
        let [rows, cols, layers] = [
            need(path, "grid_output_rows", d.grid_output_rows)?,
            need(path, "grid_output_cols", d.grid_output_cols)?,
            need(path, "grid_output_layers", d.grid_output_layers)?,
        ];
        let positions = d.grid_positions.as_deref().unwrap_or(&[]);
        let key = format!("{path}.grid_positions");
        if positions.len() != n {
            return fail(key, format!("{n} branches need {n} positions, found {}", positions.len()));
        }
        let mut cells: Vec<([usize; 3], usize)> = vec![];
        for (i, p) in positions.iter().enumerate() {
            let key = format!("{key}[{i}]");
            if p.branch_index >= n {
                return fail(format!("{key}.branch_index"), format!("there are {n} branches"));
            }
            if p.target_row >= rows || p.target_col >= cols || p.target_layer >= layers {
                return fail(key, format!("outside of the grid of {rows} x {cols} x {layers}"));
            }
            let cell = [p.target_row, p.target_col, p.target_layer];
            match cells.iter_mut().find(|(c, _)| *c == cell) {
                None => cells.push((cell, p.branch_index)),
                Some(taken) => {
                    match self.ask(Flag::GridCellOverwrite, &key, self.flags.grid_cell_overwrite) {
                        true => taken.1 = p.branch_index,
                        false => return fail(key, "another branch has this cell"),
                    }
                }
            }
        }
        cells.sort_unstable();
        Ok(cells.into_iter().map(|(_, branch)| branch).collect())
    }
}

fn need(path: &str, key: &str, value: Option<usize>) -> Result<usize> {
    match first([value]) {
        Some(n) => Ok(n),
        None => fail(format!("{path}.{key}"), "is missing or 0"),
    }
}

fn agrees(path: &str, key: &str, given: Option<usize>, derived: usize) -> Result<()> {
    match first([given]) {
        Some(n) if n != derived => {
            fail(format!("{path}.{key}"), format!("is {n}, the other sizes give {derived}"))
        }
        _ => Ok(()),
    }
}

fn eps(path: &str, d: &LayerDefinition, default: f64) -> Result<f64> {
    match d.epsilon {
        None | Some(0.0) => Ok(default),
        Some(e) if e > 0.0 && e.is_finite() => Ok(e.into()),
        Some(e) => fail(format!("{path}.epsilon"), format!("must be above 0, not {e}")),
    }
}

fn window(
    path: &str,
    channels: usize,
    [filters, kernel]: [Option<usize>; 2],
    stride: usize,
    padding: Option<usize>,
    size: Vec<usize>,
) -> Result<Window> {
    let (filters, kernel) = (need(path, "filters", filters)?, need(path, "kernel_size", kernel)?);
    let padding = padding.unwrap_or(0);
    let mut out = vec![];
    for &n in &size {
        let wide = padding.checked_mul(2).and_then(|p| p.checked_add(n));
        match wide.and_then(|w| w.checked_sub(kernel)) {
            Some(room) => out.push(room / stride + 1),
            None => {
                let what = format!("windows of {kernel} do not fit {n} elements padded by {padding}");
                return fail(format!("{path}.kernel_size"), what);
            }
        }
    }
    Ok(Window { channels, filters, kernel, stride, padding, size, out, fixed: false })
}

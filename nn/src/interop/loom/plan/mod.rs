//! The plan of a network: sizes, activations and variants are determined and checked before anything is allocated.

mod containers;
mod layers;
mod ops;
mod softmax;

pub(super) use self::ops::{Act, Combine, Heads, Node, Op, SoftmaxPlan, Window};
use super::definition::{LayerDefinition, LoomConfig, Origin, TYPES, canonical};
use super::flags::{Flag, Flags};
use crate::core::error::{NnError, Result};
use crate::core::options::known;
use crate::layers::SoftmaxKind;

/// What [`check`](super::check) finds out about a network.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Flags on which this network depends, with the place that makes it so.
    pub mattered: Vec<(Flag, String)>,
    /// Keys that Loom knows but that this type of layer does not read, by path.
    pub unused: Vec<String>,
    /// Elements of a sample at the input, where the file determines them.
    pub inputs: Option<usize>,
    /// Elements of a sample at the output, where the file determines them.
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

/// Plans a whole configuration.
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

    /// Plans a layer of `d` after `size` elements per sample.
    fn node(
        &mut self,
        path: String,
        d: &LayerDefinition,
        size: Option<usize>,
        at: Place,
        batch: usize,
    ) -> Result<Node> {
        let kind = canonical(&d.kind);
        let mut types = TYPES.iter().map(|(name, _)| *name);
        if !types.any(|name| name == kind) {
            let known = known(kind, TYPES.iter().map(|(name, _)| *name));
            return fail(format!("{path}.type"), format!("unknown type `{}`; {known}", d.kind));
        }
        if let Some(key) = d.beyond(LARGEST) {
            return fail(format!("{path}.{key}"), format!("must be at most {LARGEST}"));
        }
        // A bundle has an activation everywhere, and 1 x 1 beside the sizes of a dense layer.
        let everywhere = |k: &str| k == "activation" && at.origin == Origin::Bundle;
        let unread = d.unread(kind).filter(|k| !everywhere(k));
        self.report.unused.extend(unread.map(|k| format!("{path}.{k}")));
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
}

fn need(path: &str, key: &str, value: Option<usize>) -> Result<usize> {
    match first([value]) {
        Some(n) => Ok(n),
        None => fail(format!("{path}.{key}"), "is missing or 0"),
    }
}

fn eps(path: &str, d: &LayerDefinition, default: f64) -> Result<f64> {
    match d.epsilon {
        None | Some(0.0) => Ok(default),
        Some(e) if e > 0.0 && e.is_finite() => Ok(e.into()),
        Some(e) => fail(format!("{path}.epsilon"), format!("must be above 0, not {e}")),
    }
}

//! The network as a layer.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::definition::LoomConfig;
use super::flags::Flags;
use super::layer::weights::Stage;
use super::layer::{LoomLayer, Skip};
use super::plan::{Op, Report, plan};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_handle};
use crate::module::hooks;
use crate::module::{InitContext, Layer, LayerExt, Visitor};

/// What a network would be: flags on which it depends, keys it does not read, sizes. Nothing is allocated. Errors:
/// [`Config`](crate::NnError::Config) with the path of the layer or key for unknown types and words, missing or contradicting sizes, and
/// sizes that do not chain.
pub fn check(config: &LoomConfig, flags: &Flags) -> Result<Report> {
    Ok(plan(config, flags)?.1)
}

/// A network of Loom as a [`Layer`].
///
/// The layers run one after the other in the order of the file; rows and columns of the grid are addresses only. An input of rank 1 is Loom's
/// flat array of [`batch_size`](LoomNetwork::batch_size) samples; one of a higher rank has its samples along the first axis. The output is
/// `[batch, m]`. Ids of a leading `embedding` may be floats, as in Loom, or integers.
///
/// State names are the position of the layer followed by its own names (see [`LoomLayer`]): `0.weight`, `3.q_proj.bias`.
#[derive(Debug)]
pub struct LoomNetwork {
    config: LoomConfig,
    flags: Flags,
    report: Report,
    layers: Vec<LoomLayer>,
    disabled: Vec<AtomicBool>,
    batch_size: AtomicUsize,
}

impl LoomNetwork {
    /// Builds the network and draws its weights from `cx` by the rules of Loom's constructors and of `InitializeWeights`, see
    /// [`initialize_weights`](LoomNetwork::initialize_weights). Errors: as [`check`], and those of the device.
    pub fn new(cx: &InitContext, config: &LoomConfig, flags: &Flags) -> Result<Self> {
        let (nodes, report) = plan(config, flags)?;
        let layers = nodes.iter().map(|n| LoomLayer::new(cx, n)).collect::<Result<Vec<_>>>()?;
        let disabled = layers.iter().map(|_| AtomicBool::new(false)).collect();
        let batch_size = AtomicUsize::new(config.batch());
        let network =
            LoomNetwork { config: config.clone(), flags: *flags, report, layers, disabled, batch_size };
        network.layers.iter().try_for_each(|l| l.fill(cx, Stage::Construct))?;
        if !flags.build_uninitialised {
            network.initialize_weights(cx)?;
        }
        Ok(network)
    }

    /// Draws weights anew, in place: dense and conv2d U(-1/fan_in, 1/fan_in) with biases U(0, 0.01); rnn, lstm, mha and swiglu U(-0.1, 0.1)
    /// with biases 0; norms 1 and 0; conv1d (normal, He) and embedding (U(-1/sqrt(D), 1/sqrt(D))) keep what their constructors drew.
    /// Equal builders give equal weights on every backend.
    pub fn initialize_weights(&self, cx: &InitContext) -> Result<()> {
        self.layers.iter().try_for_each(|l| l.fill(cx, Stage::Initialise))
    }

    /// What the file left open, see [`check`].
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &LoomConfig {
        &self.config
    }

    /// The flags it was built with.
    pub fn flags(&self) -> &Flags {
        &self.flags
    }

    /// All layers in the order of execution.
    pub fn layers(&self) -> &[LoomLayer] {
        &self.layers
    }

    /// The layer in a place of the grid.
    pub fn get_layer(&self, row: usize, col: usize, layer: usize) -> Option<&LoomLayer> {
        self.layers.get(self.index(row, col, layer)?)
    }

    fn index(&self, row: usize, col: usize, layer: usize) -> Option<usize> {
        if self.config.grid_rows == 0 {
            // A file without grid keys is one cell.
            return (row == 0 && col == 0).then_some(layer);
        }
        self.config.flat_index(row, col, layer)
    }

    /// Lets a layer pass its input on, or work again. Errors: `Invalid` for a place that the grid does not have.
    pub fn set_disabled(&self, row: usize, col: usize, layer: usize, on: bool) -> Result<()> {
        let at = self.index(row, col, layer).and_then(|i| self.disabled.get(i));
        let got = || format!("({row}, {col}, {layer})");
        let at = at.ok_or_else(|| invalid("set_disabled", "layer", "a place of the grid", got()))?;
        at.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Samples in a flat input.
    pub fn batch_size(&self) -> usize {
        self.batch_size.load(Ordering::Relaxed)
    }

    /// Sets the samples in a flat input (at least 1).
    pub fn set_batch_size(&self, n: usize) {
        self.batch_size.store(n.max(1), Ordering::Relaxed);
    }

    /// Whether all parameters are on a device. [`to_device`](LayerExt::to_device) brings them there, and does nothing if they are; the
    /// network then works there, and nothing is lost on the way back.
    pub fn is_mounted_on(&self, device: &Device) -> bool {
        self.named_state().iter().all(|(_, p)| same_handle(p.get().device(), device))
    }

    /// The order of execution with every residual (added where sizes agree) drawn in, one line per layer.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut carried: Option<String> = None;
        for (i, l) in self.layers.iter().enumerate() {
            let before = if i == 0 { "input".to_string() } else { (i - 1).to_string() };
            let mut line = format!("{i}: {}({before}", l.kind());
            let skip = if self.flags.implicit_residual { l.skip() } else { Skip::None };
            let own = i.to_string();
            match (skip, carried.take()) {
                (Skip::Set, _) => {
                    line.push(')');
                    carried = Some(before);
                }
                (Skip::Before, Some(r)) => {
                    let _ = write!(line, " + {r})");
                    carried = Some(own);
                }
                (Skip::After, r) => {
                    line.push(')');
                    if let Some(r) = r {
                        let _ = write!(line, " + {r}");
                    }
                    carried = Some(own);
                }
                (_, r) => {
                    line.push(')');
                    if matches!(l.op(), Op::Residual) && i > 0 {
                        let source = if i == 1 { "input".to_string() } else { (i - 2).to_string() };
                        let _ = write!(line, " + {source}");
                    }
                    carried = r;
                }
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn batched(&self, x: &Tensor) -> Result<Tensor> {
        let batch = match x.shape() {
            [] => return Err(invalid("LoomNetwork", "x", "an array or a batch", "a scalar")),
            [_] => self.batch_size(),
            [n, ..] => *n,
        };
        if batch == 0 || !x.numel().is_multiple_of(batch) {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid("LoomNetwork", "x", format!("{batch} samples of one size"), got));
        }
        let n = x.numel() / batch;
        if let Some(want) = self.report.inputs.filter(|w| *w != n) {
            let got = format!("{n} from shape {:?}", x.shape());
            return Err(invalid(
                "LoomNetwork",
                "x",
                format!("{want} elements in each of {batch} samples"),
                got,
            ));
        }
        x.reshape(&[batch, n])
    }
}

/// Sum of tensors that have equally many elements, in the shape of the first.
fn added(x: &Tensor, r: &Tensor) -> Result<Option<Tensor>> {
    if x.numel() != r.numel() {
        return Ok(None);
    }
    x.add(&r.reshape(x.shape())?).map(Some)
}

impl Layer for LoomNetwork {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.batched(x)?;
        // What the chain carries along, and the input of the layer before.
        let (mut carried, mut previous): (Option<Tensor>, Option<Tensor>) = (None, None);
        for (i, l) in self.layers.iter().enumerate() {
            if self.disabled[i].load(Ordering::Relaxed) {
                continue;
            }
            let input = x.clone();
            let name = i.to_string();
            let skip = if self.flags.implicit_residual { l.skip() } else { Skip::None };
            x = match (skip, &carried) {
                (Skip::Before, Some(r)) => match added(&input, r)? {
                    Some(sum) => {
                        let y = hooks::layer(&name, l, &sum)?;
                        carried = Some(y.clone());
                        y
                    }
                    None => hooks::layer(&name, l, &input)?,
                },
                (Skip::After, r) => {
                    let y = hooks::layer(&name, l, &input)?;
                    let sum = match r {
                        Some(r) => added(&y, r)?,
                        None => None,
                    };
                    let y = sum.unwrap_or(y);
                    carried = Some(y.clone());
                    y
                }
                _ => hooks::layer(&name, l, &input)?,
            };
            if skip == Skip::Set {
                carried = Some(input.clone());
            }
            if let (Op::Residual, Some(p)) = (l.op(), &previous) {
                x = added(&x, p)?.unwrap_or(x);
            }
            previous = Some(input);
        }
        Ok(x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, l) in self.layers.iter().enumerate() {
            v.child(&i.to_string(), l);
        }
    }
}

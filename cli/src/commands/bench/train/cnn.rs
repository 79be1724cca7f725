//! A small convolutional network.

use trefoil::ops::activation::Activation;
use trefoil_bench::Case;
use trefoil_nn::layers::{
    Activate, BatchNormalization, Convolutional, Dense, Dropout, Flatten, MaxPooling, Sequential,
};
use trefoil_nn::{Device, InitContext};

use super::{ADAM, ADAMW, Training, ids, random};
use crate::error::Result as CliResult;

/// Convolutions of 3 x 3 with relu, max pooling of 2 x 2, and dense layers of which all but the last have relu.
///
/// Pooling follows each convolution. With `"batch_norm": true` convolutions are normalized, with `"pool_last": true` only the last is pooled, and
/// what is pooled last is dropped with the probability `dropout`; `hidden` are the widths of dense layers between. `"adamw": true` decays weights.
pub(super) fn cnn(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (batch, side, classes) = (c.size("b")?, c.size("h")?, c.size("classes")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let (mut model, mut flops) = (Sequential::new(), 0.0);
    let (mut inputs, mut at) = (c.size("in")?, side);
    let channels = c.list("channels")?;
    let last = channels.len().saturating_sub(1);
    for (i, outputs) in channels.into_iter().enumerate() {
        model = convolution(c, &cx, model, [inputs, outputs])?;
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (batch * at * at * outputs) as f64 * (9 * inputs) as f64;
        inputs = outputs;
        if i == last || !c.flag("pool_last") {
            (model, at) = (model.push(MaxPooling::new(2)?), at / 2);
        }
    }
    if let Some(p) = c.field("dropout") {
        let p = p.as_f64().ok_or_else(|| c.unexpected("dropout", "a number"))?;
        model = model.push(Dropout::new(&cx, p)?);
    }
    let mut features = inputs * at * at;
    let hidden = if c.field("hidden").is_some() { c.list("hidden")? } else { Vec::new() };
    model = model.push(Flatten::default());
    for width in hidden {
        let dense = Dense::new(&cx, features, width)?.precision(c.precision());
        model = model.push(dense.activation(Activation::Relu));
        flops += 6.0 * (batch * features * width) as f64;
        features = width;
    }
    model = model.push(Dense::new(&cx, features, classes)?.precision(c.precision()));
    flops += 6.0 * (batch * features * classes) as f64;
    let data = [random(d, c.dtype()?, &[batch, c.size("in")?, side, side])?, ids(d, &[batch], classes)?];
    let rule = if c.flag("adamw") { ADAMW } else { ADAM };
    Training::new(c, model, rule, 1e-3, data, flops)
}

/// A convolution with relu, normalized where the case asks for it.
fn convolution(
    c: &Case,
    cx: &InitContext,
    model: Sequential,
    [inputs, outputs]: [usize; 2],
) -> CliResult<Sequential> {
    let conv = Convolutional::new(cx, inputs, outputs, 3)?.same_padding().precision(c.precision());
    if !c.flag("batch_norm") {
        return Ok(model.push(conv.activation(Activation::Relu)));
    }
    Ok(model.push(conv).push(BatchNormalization::new(cx, outputs)?).push(Activate(Activation::Relu)))
}

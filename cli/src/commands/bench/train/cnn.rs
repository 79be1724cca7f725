//! A small convolutional network.

use trefoil::ops::activation::Activation;
use trefoil_bench::Case;
use trefoil_nn::layers::{Convolutional, Dense, Flatten, MaxPooling, Sequential};
use trefoil_nn::{Device, InitContext};

use super::{ADAM, Training, ids, random};
use crate::error::Result as CliResult;

/// Convolutions of 3 x 3 with relu, each followed by max pooling of 2 x 2, and a dense layer.
pub(super) fn cnn(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (batch, side, classes) = (c.size("b")?, c.size("h")?, c.size("classes")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let (mut model, mut flops) = (Sequential::new(), 0.0);
    let (mut inputs, mut at) = (c.size("in")?, side);
    for (i, outputs) in c.list("channels")?.into_iter().enumerate() {
        let conv = Convolutional::new(&cx, inputs, outputs, 3)?.same_padding();
        model = model.push(conv.activation(Activation::Relu).precision(c.precision()));
        model = model.push(MaxPooling::new(2)?);
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (batch * at * at * outputs) as f64 * (9 * inputs) as f64;
        (inputs, at) = (outputs, at / 2);
    }
    let features = inputs * at * at;
    model = model.push(Flatten::default()).push(Dense::new(&cx, features, classes)?.precision(c.precision()));
    flops += 6.0 * (batch * features * classes) as f64;
    let data = [random(d, c.dtype()?, &[batch, c.size("in")?, side, side])?, ids(d, &[batch], classes)?];
    Training::new(c, model, ADAM, 1e-3, data, flops)
}

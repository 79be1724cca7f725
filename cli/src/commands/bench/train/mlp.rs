//! A multilayer perceptron.

use trefoil::ops::activation::Activation;
use trefoil_bench::Case;
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::{Device, InitContext};

use super::{ADAM, Training, ids, random};
use crate::error::Result as CliResult;

pub(super) fn mlp(c: &Case, d: &Device) -> CliResult<Training<Sequential>> {
    let (batch, inputs, outputs, hidden) =
        (c.size("batch")?, c.size("in")?, c.size("out")?, c.list("hidden")?);
    let sizes = [&[inputs], hidden.as_slice(), &[outputs]].concat();
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let mut model = Sequential::new();
    let mut flops = 0.0;
    for (i, pair) in sizes.windows(2).enumerate() {
        let a = if i + 2 < sizes.len() { Activation::Relu } else { Activation::Identity };
        model = model.push(Dense::new(&cx, pair[0], pair[1])?.activation(a).precision(c.precision()));
        // Forward, weight gradient, and the input's gradient in all layers but the first.
        let products = if i == 0 { 2.0 } else { 3.0 };
        flops += products * 2.0 * (batch * pair[0]) as f64 * pair[1] as f64;
    }
    let data = [random(d, c.dtype()?, &[batch, inputs])?, ids(d, &[batch], outputs)?];
    Training::new(c, model, ADAM, 1e-3, data, flops)
}

//! Handwritten digits by spiking neurons.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example spiking
//!
//! The pixels are currents that flow into leaky integrate-and-fire neurons for eight steps. What goes from one layer to the next is spikes, 0
//! or 1; the digit is the neuron of the last layer whose potential is the highest on average. The gradient of a spike is that of an
//! arctangent in its place.

mod common;

use common::{Outcome, Steady, data, device, learned, options, show};
use trefoil::DType;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::data::{CsvOptions, ResidentSource, Source, read_csv};
use trefoil_nn::layers::{Neuron, SpikeReset, Spiking};
use trefoil_nn::trainer::Objective;
use trefoil_nn::{CrossEntropyLoss, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, Trainer};

const STEPS: usize = 8;

/// Two layers of neurons, of which the last one never resets.
#[derive(Debug, Layer)]
struct Classifier {
    hidden: Spiking,
    output: Spiking,
}

impl Classifier {
    /// The spikes of the hidden layer `[STEPS, B, hidden]` for pixels `[B, 64]`.
    fn spikes(&self, x: &Tensor) -> Result<Tensor> {
        let currents = x.unsqueeze(0)?.expand(&[STEPS, x.shape()[0], x.shape()[1]])?;
        self.hidden.forward(&currents)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.output.run(&self.spikes(x)?, None)?.membrane.mean_axes(&[0], false)
    }
}

fn main() -> Outcome {
    let device = device()?;
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let train = ResidentSource::new(&rows.slice(0, 1437)?, &device, DType::F32)?;
    let test = ResidentSource::new(&rows.slice(1437, 360)?, &device, DType::F32)?;

    let cx = InitContext::new(&device, 1);
    let model = Classifier {
        hidden: Spiking::new(&cx, 64, 100, Neuron::leaky(5.0)?)?.threshold(0.5)?,
        output: Spiking::new(&cx, 100, 10, Neuron::leaky(10.0)?)?.reset(SpikeReset::None)?,
    };
    let optimizer = Optimizer::adam(&model, 5e-3)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let (epochs, batch) = (8, 128);
    let steady = Steady::of_epochs(&device, 1437_u64.div_ceil(batch as u64));
    let mut trainer =
        Trainer::new(&model, optimizer, objective, &device, options(epochs, batch))?.callback(&steady);
    let report = trainer.fit(&train, Some(&test), &mut |s| !s.epoch.is_multiple_of(2) || show(s))?;
    steady.finish();

    model.eval();
    let mut rate = 0.0;
    for b in test.epoch(None, 360)? {
        rate = no_grad(|| model.spikes(&b?.x)?.mean())?.item::<f32>()?;
    }
    println!("a hidden neuron spikes in {:.1} % of the steps", 100.0 * rate);
    let accuracy = report.history.last().and_then(|s| s.test_accuracy).ok_or("no epochs")?;
    learned(format!("test accuracy {accuracy:.4}, at least 0.88 wanted"), accuracy >= 0.88)
}

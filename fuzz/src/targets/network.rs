//! Networks in JSON.

use trefoil_nn::network::{InputConfig, Network, NetworkConfig};
use trefoil_nn::summary::summary;
use trefoil_nn::{DType, Device, InitContext, Layer, Optimizer, Result, Tensor};

use super::{Generate, Run, Target, Verdict, model};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "network",
    about: "networks in JSON: parsed, summarised, and trained for two steps",
    generate: Generate::Mutations,
    open: || Ok(Box::new(run) as Run),
};

/// Largest size of an axis of the inputs: the networks are what is hostile here.
const LARGEST: isize = 16;

fn run(input: &Input) -> Verdict {
    let text = String::from_utf8_lossy(&input.bytes);
    let Ok(config) = NetworkConfig::parse(&text) else { return Verdict::Rejected };
    model::everywhere(|device| steps(&config, device))
}

/// Two items of an input, random ids where it has integers.
fn sample(device: &Device, input: &InputConfig) -> Result<Tensor> {
    let sizes = input.shape.iter().map(|&n| if n < 0 { 5 } else { n.min(LARGEST) as usize });
    let shape: Vec<usize> = std::iter::once(2).chain(sizes).collect();
    let n = shape.iter().product();
    let dtype = input.dtype.unwrap_or(DType::F32);
    let values: Vec<f32> = (0..n).map(|i| (i * 7 % 5) as f32).collect();
    Tensor::from_slice(device, &values, &shape)?.to_dtype(dtype)
}

fn steps(config: &NetworkConfig, device: &Device) -> Result<()> {
    let network = Network::new(&InitContext::new(device, 1), config)?;
    let any = InputConfig { shape: vec![4], dtype: None };
    let declared = |name| config.inputs.get(name).unwrap_or(&any);
    let inputs =
        network.input_names().map(|name| sample(device, declared(name))).collect::<Result<Vec<_>>>()?;
    summary(&network, &inputs)?;
    let mut optimizer = Optimizer::adam(&network, 0.01)?;
    for _ in 0..2 {
        optimizer.zero_grad()?;
        let outputs = network.forward_all(&inputs)?;
        let Some(y) = outputs.iter().find(|y| y.dtype().is_float() && y.requires_grad()) else {
            return Ok(());
        };
        y.mul(y)?.mean()?.backward()?;
        optimizer.step()?;
    }
    device.synchronize()?;
    Ok(())
}

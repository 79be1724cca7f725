//! Networks and bundles of Loom.

use trefoil_nn::loom::{Bundle, Flags, LoomConfig, LoomNetwork, check};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Optimizer, Result, Tensor};

use super::{Generate, Run, Target, Verdict, model};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "loom",
    about: "Loom's networks and bundles: read, checked under both profiles, trained for two steps, saved and read back",
    generate: Generate::Mutations,
    open: || Ok(Box::new(run) as Run),
};

fn run(input: &Input) -> Verdict {
    let text = String::from_utf8_lossy(&input.bytes);
    if let Ok(bundle) = Bundle::from_json(&text) {
        return bundled(&bundle);
    }
    let Ok(config) = LoomConfig::from_json(&text) else { return Verdict::Rejected };
    let verdicts = [Flags::corrected(), Flags::faithful()].map(|flags| match check(&config, &flags) {
        Ok(_) => model::everywhere(|device| steps(&config, &flags, device)),
        Err(_) => Verdict::Rejected,
    });
    if verdicts.contains(&Verdict::Accepted) { Verdict::Accepted } else { Verdict::Rejected }
}

/// Builds every model of a file.
fn bundled(bundle: &Bundle) -> Verdict {
    model::everywhere(|device| {
        for id in bundle.ids() {
            bundle.network(id, &InitContext::new(device, 1), &Flags::corrected())?;
        }
        Ok(())
    })
}

fn steps(config: &LoomConfig, flags: &Flags, device: &Device) -> Result<()> {
    let network = LoomNetwork::new(&config.init_context(device), config, flags)?;
    let n = network.report().inputs.unwrap_or(6).min(1 << 16);
    let values: Vec<f32> = (0..2 * n).map(|i| (i * 7 % 5) as f32 - 1.0).collect();
    let x = Tensor::from_slice(device, &values, &[2, n])?;
    let mut optimizer = Optimizer::sgd(&network, 0.1)?;
    for _ in 0..2 {
        optimizer.zero_grad()?;
        let y = network.forward(&x)?;
        if y.requires_grad() {
            y.mul(&y)?.mean()?.backward()?;
            optimizer.step()?;
        }
    }
    if network.num_parameters() < 1 << 16 {
        let mut bundle = Bundle::default();
        bundle.insert("x", &network)?;
        let text = bundle.to_json()?;
        assert!(Bundle::from_json(&text).is_ok(), "a bundle reads what it wrote");
    }
    device.synchronize()?;
    Ok(())
}

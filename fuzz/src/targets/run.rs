//! Training runs in JSON.

use serde_json::Value;
use trefoil_nn::config::Config;
use trefoil_nn::{Device, Result};

use super::{Generate, Run, Target, Verdict, model};
use crate::input::{self, Input};

pub(crate) const TARGET: Target = Target {
    name: "run",
    about: "training runs in JSON: parsed, data opened, model, loss, optimizer and metrics built, trained for an epoch of a few steps",
    generate: Generate::Mutations,
    open: || Ok(Box::new(run) as Run),
};

fn run(input: &Input) -> Verdict {
    let text = String::from_utf8_lossy(&input.bytes);
    let Ok(mut config) = Config::parse(&text) else { return Verdict::Rejected };
    if !serde_json::from_str(&text).is_ok_and(|v| modest(&v)) {
        return Verdict::Accepted;
    }
    if config.data.rebase(input::folder(TARGET.name).join("files")).is_err() {
        return Verdict::Rejected;
    }
    // Nothing is written, and an epoch of a dozen items is enough.
    config.train.run = None;
    config.train.epochs = config.train.epochs.min(1);
    model::everywhere(|device| train(&config, device))
}

/// Numbers that ask for honest work on the host: draws of an epoch and the size of images. More than this is not for a test.
fn modest(v: &Value) -> bool {
    let small = |v: &Value| v.as_u64().is_none_or(|n| n <= 256);
    match v {
        Value::Array(list) => list.iter().all(modest),
        Value::Object(map) => map.iter().all(|(key, v)| match key.as_str() {
            "draws" => small(v),
            "size" => v.as_array().is_none_or(|sizes| sizes.iter().all(small)),
            _ => modest(v),
        }),
        _ => true,
    }
}

fn train(config: &Config, device: &Device) -> Result<()> {
    let data = config.data.open()?;
    let sources = config.sources(&data, device)?;
    let model = config.model(device, &sources)?;
    let mut trainer = config.trainer(&model, &data, &sources, device)?;
    trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true)?;
    Ok(())
}

//! However many steps are made, they take no more memory than the first ten, on every device.
#![allow(missing_docs)]

mod common;
use common::{devices, id, steps_on, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::{Device, InitContext, Layer, Optimizer, Result, Tensor};

/// Steps of each network, few enough for a debug build on two cores. `TREFOIL_MEMORY_STEPS` sets another number.
const STEPS: usize = 250;

/// Steps after which nothing is allocated any more.
const WARM: usize = 10;

fn images(d: &Device) -> Tensor {
    tensor(d, &[4, 2, 8, 8], 1).to_dtype(DType::F32).unwrap()
}

fn sequences(d: &Device) -> Tensor {
    tensor(d, &[3, 5, 8], 2).to_dtype(DType::F32).unwrap()
}

fn convolutional(cx: &InitContext) -> Result<Box<dyn Layer>> {
    Ok(Box::new(
        Sequential::new()
            .push(Convolutional::new(cx, 2, 4, 3)?.padding(1))
            .push(BatchNormalization::new(cx, 4)?)
            .push(MaxPooling::new(2)?)
            .push(DepthwiseSeparableConvolutional::new(cx, 4, 4, 3)?.padding(1).activation(Activation::Relu))
            .push(Deconvolutional::new(cx, 4, 3, 2)?.stride(2))
            .push(GroupNormalization::new(cx, 3, 3)?)
            .push(Dropout::new(cx, 0.2)?)
            .push(GlobalPooling::avg().keepdim(false))
            .push(Dense::new(cx, 3, 2)?),
    ))
}

fn transformer(cx: &InitContext) -> Result<Box<dyn Layer>> {
    let config = TransformerConfig::new(8, 2).d_ff(12).dropout(0.1).activation(Activation::Gelu);
    Ok(Box::new(
        Sequential::new()
            .push(PositionalEncoding::new(cx, 8, 5)?)
            .push(TransformerEncoder::new(cx, &config)?)
            .push(RmsNorm::new(cx, &[8])?)
            .push(Attention::new(cx, 8, 6)?)
            .push(Mean::new(&[1])),
    ))
}

fn recurrent(cx: &InitContext) -> Result<Box<dyn Layer>> {
    Ok(Box::new(
        Sequential::new()
            .push(Lstm::new(cx, 8, 6)?.num_layers(2)?.dropout(0.1)?.bidirectional()?)
            .push(LayerNormalization::new(cx, &[12])?)
            .push(Gru::new(cx, 12, 4)?.return_last())
            .push(GatedLinearUnit::swiglu(cx, 4, 3)?),
    ))
}

fn unusual(cx: &InitContext) -> Result<Box<dyn Layer>> {
    Ok(Box::new(
        Sequential::new()
            .push(SpectralNormalization::new(cx, Dense::new(cx, 8, 8)?)?)
            .push(GaussianNoise::new(cx, 0.1)?)
            .push(OctonionLinear::new(cx, 1, 2)?)
            .push(TimeDistributed::new(HyperbolicLinear::new(cx, 16, 4)?.tangent_input()))
            .push(SequenceLast),
    ))
}

#[test]
fn memory_is_constant() {
    type Network = fn(&InitContext) -> Result<Box<dyn Layer>>;
    type Data = fn(&Device) -> Tensor;
    let networks: [(&str, Network, Data); 4] = [
        ("convolutional", convolutional, images),
        ("transformer", transformer, sequences),
        ("recurrent", recurrent, sequences),
        ("unusual", unusual, sequences),
    ];
    let asked = std::env::var("TREFOIL_MEMORY_STEPS").ok().map(|s| s.parse().unwrap());
    for d in devices() {
        let steps = asked.unwrap_or_else(|| steps_on(&d, STEPS, 30));
        for (what, network, data) in networks {
            let model = network(&InitContext::new(&d, 3)).unwrap();
            let x = data(&d).with_grad();
            let mut optimizer = Optimizer::adamw(&*model, 1e-3, 1e-2).unwrap();
            let mut warm = None;
            let used = |d: &Device| {
                (d.memory(), d.counters().allocations, d.counters().uploads, d.counters().downloads)
            };
            for step in 0..steps.max(WARM + 1) {
                optimizer.zero_grad().unwrap();
                x.zero_grad().unwrap();
                let y = model.forward(&x).unwrap();
                y.mul(&y).unwrap().mean().unwrap().backward().unwrap();
                drop(y);
                optimizer.step().unwrap();
                if step + 1 == WARM {
                    warm = Some(used(&d));
                }
                if step + 1 > WARM {
                    // The pool's bytes, its peak, and what the driver was asked for.
                    assert_eq!(Some(used(&d)), warm, "{what} on {}, step {step}", id(&d));
                }
            }
        }
    }
}

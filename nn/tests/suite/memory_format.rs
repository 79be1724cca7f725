//! Channels-last tensors: results and gradients equal those of contiguous ones, and layers keep the format.

use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{
    BasicBlock, BatchNormalization, BottleneckBlock, Convolutional, Dense, GlobalPooling, MaxPooling,
    Sequential,
};
use trefoil_nn::{
    CrossEntropyLoss, DType, Device, InitContext, Layer, LayerExt, MemoryFormat, Result, Tensor,
};

use crate::common::everywhere::values;
use crate::common::{close, devices, noise};

const LAST: MemoryFormat = MemoryFormat::ChannelsLast;

fn images(d: &Device, shape: &[usize]) -> Result<Tensor> {
    let n: usize = shape.iter().product();
    let elements: Vec<f32> = noise(5, n).into_iter().map(|x| 1.5 * x as f32).collect();
    Tensor::from_slice(d, &elements, shape)
}

/// A residual network in small, with all that such networks are made of.
fn network(d: &Device) -> Result<Sequential> {
    let cx = InitContext::new(d, 3);
    let stem = Convolutional::new(&cx, 3, 8, 3)?.stride(2).padding(1);
    Ok(Sequential::new()
        .push(stem)
        .push(BatchNormalization::new(&cx, 8)?.activation(Activation::Relu))
        .push(MaxPooling::new(3)?.stride(2).padding(1))
        .push(BasicBlock::new(&cx, 8, 8, 1)?)
        .push(BottleneckBlock::new(&cx, 8, 8, 2)?)
        .push(GlobalPooling::avg().keepdim(false))
        .push(Dense::new(&cx, 32, 4)?))
}

/// The loss, the gradient of the images and those of all parameters.
fn step(net: &Sequential, x: &Tensor) -> Result<Vec<Vec<f64>>> {
    net.zero_grad()?;
    let x = x.with_grad();
    let target = Tensor::from_slice(x.device(), &[0i64, 1, 2], &[3])?;
    let loss = CrossEntropyLoss::default().forward(&net.forward(&x)?, &target)?;
    loss.backward()?;
    let mut all = vec![values(&loss), values(&x.grad().unwrap())];
    all.extend(net.parameters().iter().map(|p| values(&p.get().grad().unwrap())));
    Ok(all)
}

#[test]
fn a_network_gives_the_same_results_in_both_formats() -> Result<()> {
    for d in devices() {
        let net = network(&d)?;
        let x = images(&d, &[3, 3, 16, 12])?;
        let want = step(&net, &x)?;
        let got = step(&net, &x.to_memory_format(LAST)?)?;
        for (g, w) in got.iter().zip(&want) {
            close(g, w, 2e-4, "results of a network");
        }
    }
    Ok(())
}

#[test]
fn operations_keep_the_format() -> Result<()> {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let plain = images(&d, &[2, 8, 6, 5])?;
        let x = plain.to_memory_format(LAST)?;
        assert_eq!(x.memory_format(), LAST);
        assert_eq!(values(&x), values(&plain));
        let conv = Convolutional::new(&cx, 8, 4, 3)?.padding(1);
        let norm = BatchNormalization::new(&cx, 8)?;
        let pool = MaxPooling::new(2)?;
        let bias = images(&d, &[8, 1, 1])?;
        type Map<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
        let kept: [(&str, Map<'_>); 8] = [
            ("conv", &|x| conv.forward(x)),
            ("batch_norm", &|x| norm.forward(x)),
            ("max_pool", &|x| pool.forward(x)),
            ("relu", &|x| x.relu()),
            ("add", &|x| x.add(&x.tanh()?)),
            ("broadcast", &|x| x.mul(&bias)),
            ("concat", &|x| Tensor::concat(1, &[x, &x.neg()?])),
            ("clamp", &|x| x.clamp(Some(-0.5), Some(0.5))),
        ];
        for (name, f) in kept {
            let (x, plain) = (x.with_grad(), plain.with_grad());
            let (got, want) = (f(&x)?, f(&plain)?);
            assert_eq!(
                (got.memory_format(), want.memory_format()),
                (LAST, MemoryFormat::Contiguous),
                "{name}"
            );
            close(&values(&got), &values(&want), 1e-5, name);
            got.square()?.sum()?.backward()?;
            want.square()?.sum()?.backward()?;
            close(&values(&x.grad().unwrap()), &values(&plain.grad().unwrap()), 1e-4, name);
        }
        // Other operations read either format.
        let sums = x.sum_axes(&[1], false)?;
        close(&values(&sums), &values(&plain.sum_axes(&[1], false)?), 1e-5, "sums");
    }
    Ok(())
}

#[test]
fn weights_may_decide_the_format() -> Result<()> {
    for d in devices() {
        let x = images(&d, &[1, 4, 5, 5])?;
        let w = images(&d, &[6, 4, 3, 3])?.to_memory_format(LAST)?.with_grad();
        let y = x.conv2d(&w, None, &trefoil::ops::conv::Conv::new())?;
        assert_eq!(y.memory_format(), LAST);
        y.sum()?.backward()?;
        assert_eq!(w.grad().unwrap().shape(), [6, 4, 3, 3]);
    }
    Ok(())
}

#[test]
fn channels_last_needs_channels_and_an_axis_behind_them() -> Result<()> {
    for d in devices() {
        let e = Tensor::zeros(&d, DType::F32, &[2, 3])?.to_memory_format(LAST).unwrap_err().to_string();
        assert!(e.contains("to_memory_format") && e.contains("[2, 3]"), "{e}");
    }
    Ok(())
}

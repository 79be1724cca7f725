//! What is said about unknown types and about inputs of another dtype.

use serde_json::json;
use trefoil_nn::network::{LAYERS, NetworkConfig, layer};
use trefoil_nn::{DType, InitContext, Layer, Tensor};

use super::beside;
use super::cases::every_type;
use crate::common::{cpu, tensor};

#[test]
fn unknown_types_are_met_with_what_pytorchs_name_means() {
    for (name, meant) in [
        ("linear", "`dense`"),
        ("nn.Linear", "`dense`"),
        ("Dense", "`dense`"),
        ("conv2d", "`convolutional`"),
        ("Conv2d", "`convolutional`"),
        ("conv_transpose2d", "`deconvolutional`"),
        ("batch_norm", "`batch_normalization`"),
        ("batch_norm2d", "`batch_normalization`"),
        ("BatchNorm1d", "`batch_normalization`"),
        ("layer_norm", "`layer_normalization`"),
        ("group_norm", "`group_normalization`"),
        ("max_pool2d", "`max_pooling`"),
        ("adaptive_avg_pool2d", "`adaptive_average_pooling`"),
        ("rnn", "`recurrent`"),
        ("upsample", "`upsampling`"),
        ("cat", "`concatenate`"),
        ("gcn_conv", "`graph_convolutional`"),
        ("relu", "`activation` with `kind` `relu`"),
        ("nn.GELU", "`activation` with `kind` `gelu`"),
        ("prelu", "`activation` with `kind` `prelu`"),
        ("convolutonal", "`convolutional`"),
    ] {
        let text = json!({ "layers": [{ "type": name }] }).to_string();
        let e = NetworkConfig::parse(&text).unwrap_err().to_string();
        let what =
            format!("unknown layer type `{name}`; did you mean {meant}? docs/NETWORKS.md lists the types");
        assert!(e.contains(&what) && !e.contains("fully_connected"), "{e}");
    }
    for name in ["teleport", "", "nn."] {
        let text = json!({ "layers": [{ "type": name }] }).to_string();
        let e = NetworkConfig::parse(&text).unwrap_err().to_string();
        let what = format!("unknown layer type `{name}`; docs/NETWORKS.md lists the types");
        assert!(e.contains(&what), "{e}");
    }
}

/// f64 features, whose dtype the operations would otherwise ask of the weights.
#[test]
fn inputs_of_another_dtype_than_the_layers_are_named() {
    let device = cpu();
    let (mut named, mut wrong) = (0, vec![]);
    for (shape, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        // Ids, and the layer that checks dtypes alone.
        if ["embedding", "input"].contains(&name) {
            continue;
        }
        let l = layer(&InitContext::new(&device, 1), &json).unwrap();
        let x = tensor(&device, shape, 7);
        let x = match name {
            "rbm" | "spatial_pooler" | "anomaly_detector" | "temporal_memory" => {
                x.gt_scalar(0.0).unwrap().to_dtype(DType::F64).unwrap()
            }
            _ => x,
        };
        let wide = |t: Tensor| if t.dtype().is_float() { t.to_dtype(DType::F64).unwrap() } else { t };
        let beside: Vec<Tensor> = beside(&device, name).into_iter().map(wide).collect();
        let inputs = match LAYERS.iter().find(|l| l.name == name).unwrap().inputs.0 {
            _ if !beside.is_empty() => [vec![x], beside].concat(),
            2 => vec![x.clone(), x],
            _ => vec![x],
        };
        if let Err(e) = l.forward_all(&inputs) {
            let (e, blamed) =
                (e.to_string(), "argument `x`: expected dtype f32, as the layer's parameters have");
            let way = "(convert the input with `to_dtype(DType::F32)`), got f64";
            match e.contains(blamed) && e.ends_with(way) {
                true => named += 1,
                false => wrong.push(format!("{name}: {e}")),
            }
        }
    }
    assert!(wrong.is_empty() && named > 80, "{named}, but {wrong:#?}");
}

//! What holds for every type of layer: all parameters train, a saved state brings the same output back, parts have names.

use std::collections::BTreeSet;

use crate::common::{cpu, devices, id, noise};
use serde_json::{Value, json};
use trefoil::DType;
use trefoil_nn::network::{Family, LAYERS, layer};
use trefoil_nn::state_file::{LoadOptions, SaveOptions, save};
use trefoil_nn::summary::summary;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Optimizer, StateFile, Tensor};

/// A layer and the shapes of its inputs. Integers where the layer is an embedding.
struct Case {
    json: Value,
    inputs: Vec<Vec<usize>>,
}

/// One case for each type. A type that is missing here fails the tests.
fn cases() -> Vec<Case> {
    let image: &[usize] = &[2, 4, 6, 6];
    let volume: &[usize] = &[2, 2, 4, 4, 4];
    let sequence: &[usize] = &[2, 5, 4];
    let flat: &[usize] = &[6, 4];
    let dense = json!({"type": "dense", "out_features": 3});
    let all: Vec<(Value, Vec<&[usize]>)> = vec![
        (json!({"type": "dense", "out_features": 3, "activation": "tanh"}), vec![sequence]),
        (json!({"type": "fully_connected", "out_features": 3}), vec![flat]),
        (json!({"type": "convolutional", "out_channels": 3, "kernel_size": 3, "groups": 1}), vec![image]),
        (json!({"type": "batch_normalization", "num_features": 4}), vec![image]),
        (json!({"type": "layer_normalization", "normalized_shape": 4}), vec![sequence]),
        (json!({"type": "embedding", "num_embeddings": 3, "embedding_dim": 4}), vec![&[4, 5]]),
        (json!({"type": "attention", "embed_dim": 4, "attention_size": 3}), vec![sequence]),
        (
            json!({"type": "multi_head_attention", "embed_dim": 4, "num_heads": 2, "dropout": 0.2}),
            vec![sequence],
        ),
        (json!({"type": "self_attention", "embed_dim": 4, "num_heads": 2}), vec![sequence]),
        (
            json!({"type": "cross_attention", "query_dim": 4, "context_dim": 3, "num_heads": 2}),
            vec![sequence, &[2, 4, 3]],
        ),
        (json!({"type": "lstm", "hidden_size": 3, "num_layers": 2, "dropout": 0.2}), vec![sequence]),
        (json!({"type": "gru", "hidden_size": 3}), vec![sequence]),
        (
            json!({"type": "conv_lstm", "filters": 3, "kernel_size": 3, "peephole": true}),
            vec![&[2, 3, 4, 5, 5]],
        ),
        (json!({"type": "recurrent", "hidden_size": 3}), vec![sequence]),
        (json!({"type": "bidirectional", "inner": {"type": "lstm", "hidden_size": 3}}), vec![sequence]),
        (json!({"type": "average_pooling", "kernel_size": 2}), vec![image]),
        (json!({"type": "max_pooling", "kernel_size": 2}), vec![image]),
        (json!({"type": "max_pool3d", "kernel_size": 2}), vec![volume]),
        (json!({"type": "global_pooling", "mode": "avg"}), vec![image]),
        (json!({"type": "adaptive_average_pooling", "output_size": 3}), vec![image]),
        (json!({"type": "instance_normalization", "num_features": 4, "affine": true}), vec![image]),
        (json!({"type": "group_normalization", "num_groups": 2, "num_channels": 4}), vec![image]),
        (json!({"type": "spectral_normalization", "inner": dense}), vec![flat]),
        (json!({"type": "rms_norm", "normalized_shape": 4}), vec![sequence]),
        (
            json!({"type": "transformer_encoder", "d_model": 4, "nhead": 2, "dim_feedforward": 8, "norm_first": true}),
            vec![sequence],
        ),
        (
            json!({"type": "transformer_decoder", "d_model": 4, "nhead": 2, "dim_feedforward": 8}),
            vec![sequence, &[2, 3, 4]],
        ),
        (
            json!({"type": "decoder", "d_model": 4, "attention_size": 3, "dim_feedforward": 8}),
            vec![sequence, &[2, 3, 4]],
        ),
        (json!({"type": "feed_forward", "d_ff": 8, "dropout": 0.1, "activation": "gelu"}), vec![sequence]),
        (json!({"type": "swiglu", "d_ff": 8}), vec![sequence]),
        (json!({"type": "positional_embedding", "d_model": 4, "max_len": 9}), vec![sequence]),
        (json!({"type": "conv1d", "out_channels": 3, "kernel_size": 2}), vec![sequence]),
        (json!({"type": "avg_pool1d", "kernel_size": 2}), vec![sequence]),
        (json!({"type": "max_pool1d", "kernel_size": 2}), vec![sequence]),
        (json!({"type": "adaptive_avg_pool1d", "output_size": 2}), vec![sequence]),
        (json!({"type": "positional_encoding", "d_model": 4, "max_len": 9, "dropout": 0.1}), vec![sequence]),
        (json!({"type": "patch_embedding", "patch_size": 3, "embed_dim": 5}), vec![image]),
        (json!({"type": "conv3d", "out_channels": 3, "kernel_size": 2}), vec![volume]),
        (json!({"type": "deconvolutional", "out_channels": 3, "kernel_size": 2, "stride": 2}), vec![image]),
        (json!({"type": "deformable_convolutional", "out_channels": 3}), vec![image]),
        (
            json!({"type": "depthwise_separable_convolutional", "out_channels": 3, "kernel_size": 3}),
            vec![image],
        ),
        (
            json!({"type": "dilated_convolutional", "out_channels": 3, "kernel_size": 2, "dilation": 2}),
            vec![image],
        ),
        (json!({"type": "locally_connected", "out_channels": 3, "kernel_size": 3}), vec![image]),
        (json!({"type": "separable_convolutional", "out_channels": 3, "kernel_size": 3}), vec![image]),
        (json!({"type": "upsample3d", "scale_factor": 2}), vec![volume]),
        (json!({"type": "upsampling", "scale_factor": 2}), vec![image]),
        (
            json!({"type": "subpixel_convolutional", "out_channels": 2, "upscale_factor": 2, "kernel_size": 3}),
            vec![image],
        ),
        (json!({"type": "pixel_shuffle", "upscale_factor": 2}), vec![image]),
        (json!({"type": "pixel_unshuffle", "downscale_factor": 2}), vec![image]),
        (json!({"type": "channel_shuffle", "groups": 2}), vec![image]),
        (json!({"type": "activation", "kind": "prelu"}), vec![sequence]),
        (json!({"type": "softmax"}), vec![flat]),
        (json!({"type": "log_softmax"}), vec![flat]),
        (json!({"type": "softmax_variant", "kind": "entmax"}), vec![flat]),
        (json!({"type": "add"}), vec![flat, flat]),
        (json!({"type": "concatenate"}), vec![flat, &[6, 2]]),
        (json!({"type": "cropping", "cropping": [[1, 0], [0, 2]]}), vec![image]),
        (json!({"type": "dropout"}), vec![flat]),
        (json!({"type": "flatten"}), vec![image]),
        (json!({"type": "gaussian_noise"}), vec![flat]),
        (json!({"type": "input", "shape": [4]}), vec![flat]),
        (json!({"type": "masking"}), vec![sequence]),
        (json!({"type": "multiply"}), vec![flat, flat]),
        (json!({"type": "padding", "padding": [[1, 2]]}), vec![flat]),
        (json!({"type": "reshape", "target_shape": [2, 2]}), vec![flat]),
        (json!({"type": "sequence_last"}), vec![sequence]),
        (json!({"type": "split", "num_splits": 2}), vec![flat]),
        (json!({"type": "time_distributed", "inner": dense}), vec![sequence]),
        (json!({"type": "mean", "dim": 1}), vec![sequence]),
        (json!({"type": "log_variance", "dim": 1}), vec![sequence]),
        (json!({"type": "hyperbolic_linear", "in_features": 4, "out_features": 3}), vec![flat]),
        (json!({"type": "octonion_linear", "in_features": 2, "out_features": 1}), vec![&[6, 16]]),
        (json!({"type": "gated_linear_unit", "out_features": 3}), vec![sequence]),
        (json!({"type": "graph_convolutional", "in_features": 4, "out_features": 3}), vec![flat, &[2, 9]]),
        (
            json!({"type": "graph_attention", "in_features": 4, "out_features": 3, "heads": 2}),
            vec![flat, &[2, 9]],
        ),
        (
            json!({"type": "graph_sage", "in_features": 4, "out_features": 3, "project": true}),
            vec![flat, &[2, 9]],
        ),
        (
            json!({"type": "graph_isomorphism", "in_features": 4, "out_features": 3, "batch_norm": true}),
            vec![flat, &[2, 9]],
        ),
        (json!({"type": "rbm", "visible": 4, "hidden": 3}), vec![flat]),
        (json!({"type": "synaptic_plasticity", "n_pre": 4, "n_post": 3}), vec![flat]),
        (
            json!({"type": "spatial_pooler", "input_size": 4, "column_count": 6, "local_area_density": 0.4}),
            vec![flat],
        ),
        (json!({"type": "anomaly_detector", "input_size": 4, "anomaly_threshold": 0.5}), vec![flat]),
        (json!({"type": "continuum_memory_system", "in_features": 4, "hidden_dim": 3}), vec![flat]),
        (
            json!({"type": "temporal_memory", "column_count": 4, "cells_per_column": 2, "capacity": 8}),
            vec![flat],
        ),
        (
            json!({"type": "readout", "in_features": 4, "out_features": 3, "mode": "max", "num_graphs": 6}),
            vec![flat, &[6]],
        ),
        (
            json!({"type": "directional_graph", "in_features": 4, "out_features": 3, "mode": "concat", "gating": true}),
            vec![flat, &[2, 9]],
        ),
        (
            json!({"type": "edge_conditional_convolutional", "in_features": 4, "out_features": 3, "edge_features": 2}),
            vec![flat, &[2, 9], &[9, 2]],
        ),
        (
            json!({"type": "principal_neighbourhood_aggregation", "in_features": 4, "out_features": 3,
                   "deg_histogram": [1, 2, 3], "edge_features": 2, "pre_layers": 2}),
            vec![flat, &[2, 9], &[9, 2]],
        ),
        (
            json!({"type": "heterogeneous_graph", "in_features": 4, "out_features": 3, "node_types": ["n"],
                   "edge_types": [["n", "r", "n"]]}),
            vec![flat, &[2, 9], &[6], &[9]],
        ),
        (
            json!({"type": "capsule", "in_capsules": 5, "in_dim": 4, "num_capsules": 3, "capsule_dim": 2}),
            vec![sequence],
        ),
        (
            json!({"type": "primary_capsule", "in_channels": 4, "capsule_channels": 2, "capsule_dim": 3, "kernel_size": 3}),
            vec![image],
        ),
        (
            json!({"type": "digit_capsule", "in_capsules": 5, "in_dim": 4, "num_classes": 3, "out_dim": 2}),
            vec![sequence],
        ),
        (
            json!({"type": "reconstruction", "in_features": 4, "hidden1": 5, "hidden2": 6, "out_features": 3}),
            vec![flat],
        ),
        (json!({"type": "time_embedding", "embedding_dim": 5, "output_dim": 3}), vec![&[6]]),
        (json!({"type": "rep_parameterization"}), vec![flat]),
        // The default localization network begins with weights of 0, behind which nothing learns in the first step.
        (
            json!({"type": "spatial_transformer", "out_height": 3, "out_width": 4, "in_channels": 4, "in_height": 6,
                   "in_width": 6, "localization": {"type": "sequential", "layers": [
                       {"type": "flatten"}, {"type": "dense", "out_features": 6}]}}),
            vec![image],
        ),
        (json!({"type": "spynet", "num_levels": 2, "in_channels": 2, "mode": "single_conv"}), vec![image]),
        (json!({"type": "rbf", "in_features": 4, "out_features": 3}), vec![flat]),
        (json!({"type": "measurement", "size": 4}), vec![flat]),
        (json!({"type": "quantum", "num_qubits": 2, "num_layers": 2, "entangle": "ring"}), vec![flat]),
        (json!({"type": "geglu", "d_ff": 8, "out_features": 3}), vec![sequence]),
        (json!({"type": "reglu", "d_ff": 8, "bias": true}), vec![sequence]),
        (json!({"type": "bilinear_glu", "d_ff": 8, "down_proj": false}), vec![sequence]),
        (json!({"type": "expert", "layers": [dense, dense]}), vec![sequence]),
        (
            json!({"type": "mixture_of_experts", "in_features": 4, "top_k": 2, "noise": "learned",
                   "experts": {"num_experts": 3, "hidden_features": 5, "out_features": 2}}),
            vec![sequence],
        ),
        (json!({"type": "conditional_random_field", "num_tags": 4}), vec![sequence, &[2, 5]]),
        (
            json!({"type": "memory_read", "in_features": 4, "memory_dim": 3, "out_features": 2}),
            vec![flat, &[5, 3]],
        ),
        (
            json!({"type": "memory_write", "in_features": 4, "memory_dim": 3, "addressing": "cosine"}),
            vec![flat, &[6, 5, 3]],
        ),
        (
            json!({"type": "spiking", "in_features": 4, "out_features": 3, "threshold": 0.3, "refractory_steps": 1}),
            vec![sequence],
        ),
        (json!({"type": "mamba", "d_model": 4, "d_state": 3}), vec![sequence]),
        (json!({"type": "gated_delta_net", "d_model": 4, "num_heads": 2, "head_dim": 3}), vec![sequence]),
        (
            json!({"type": "gated_linear_attention", "d_model": 4, "num_heads": 2, "gate_low_rank_dim": 3}),
            vec![sequence],
        ),
        (json!({"type": "rglru", "lru_width": 4, "num_heads": 2}), vec![sequence]),
        (json!({"type": "recurrent_block", "d_model": 4, "num_heads": 2}), vec![sequence]),
        (
            json!({"type": "reservoir", "input_size": 4, "reservoir_size": 6, "connection_probability": 0.5}),
            vec![sequence],
        ),
        (json!({"type": "message_passing", "in_features": 4, "out_features": 3}), vec![flat, &[2, 9]]),
        (
            json!({"type": "graph_transformer", "in_features": 4, "out_features": 6, "heads": 2, "attend": "all",
                   "max_distance": 1}),
            vec![flat, &[2, 9]],
        ),
        (
            json!({"type": "spiral_conv", "in_channels": 4, "out_channels": 3, "spiral_length": 3}),
            vec![flat, &[6, 3]],
        ),
        (json!({"type": "mesh_edge_conv", "in_channels": 4, "out_channels": 3}), vec![flat, &[6, 4]]),
        (
            json!({"type": "diffusion_conv", "kind": "random_walk", "in_channels": 4, "out_channels": 3}),
            vec![flat, &[2, 9]],
        ),
        (json!({"type": "sparse_linear", "in_features": 4, "out_features": 3, "sparsity": 0.5}), vec![flat]),
        (
            json!({"type": "mesh_pool", "target_edges": 4, "mode": "topk", "in_channels": 4}),
            vec![flat, &[6, 4]],
        ),
        (json!({"type": "highway", "dim": 4}), vec![sequence]),
        (
            json!({"type": "dense_block_layer", "in_channels": 4, "growth_rate": 2, "drop_rate": 0.2}),
            vec![image],
        ),
        (json!({"type": "residual_dense_block", "num_feat": 4, "num_grow_ch": 2}), vec![image]),
        (json!({"type": "rrdb", "num_feat": 4, "num_grow_ch": 2}), vec![image]),
        (json!({"type": "transition", "in_channels": 4}), vec![image]),
        (json!({"type": "basic_block", "in_channels": 4, "out_channels": 3, "stride": 2}), vec![image]),
        (json!({"type": "bottleneck_block", "in_channels": 4, "base_channels": 2}), vec![image]),
        (json!({"type": "squeeze_and_excitation", "channels": 4, "reduction": 2}), vec![image]),
        (json!({"type": "dense_block", "num_layers": 2, "in_channels": 4, "growth_rate": 2}), vec![image]),
        (
            json!({"type": "inverted_residual_block", "in_channels": 4, "out_channels": 4, "use_se": true}),
            vec![image],
        ),
        (json!({"type": "pooling", "pool_size": 2, "mode": "average"}), vec![image]),
        (
            json!({"type": "rrdbnet_generator", "in_channels": 4, "num_feat": 3, "num_grow_ch": 2, "num_block": 1}),
            vec![image],
        ),
        (
            json!({"type": "unet_discriminator", "in_channels": 4, "num_feat": 2, "num_blocks": 1}),
            vec![image],
        ),
        (json!({"type": "unet_conv_block", "in_channels": 4, "out_channels": 3}), vec![image]),
        (
            json!({"type": "unet_up_block", "in_channels": 3, "skip_channels": 4, "out_channels": 2}),
            vec![&[2, 3, 3, 3], image],
        ),
        (
            json!({"type": "sequential", "layers": [dense, {"type": "dropout", "name": "drop"}, dense]}),
            vec![flat],
        ),
        (json!({"type": "residual", "layers": [dense], "shortcut": [dense]}), vec![flat]),
        (json!({"type": "parallel", "branches": [[dense], [dense]]}), vec![flat]),
        (json!({"type": "checkpointed", "inner": {"type": "sequential", "layers": [dense]}}), vec![flat]),
    ];
    let all: Vec<Case> = all
        .into_iter()
        .map(|(json, inputs)| Case { json, inputs: inputs.into_iter().map(<[usize]>::to_vec).collect() })
        .collect();
    let covered: BTreeSet<&str> = all.iter().map(Case::name).collect();
    let known: BTreeSet<&str> = LAYERS.iter().map(|l| l.name).collect();
    assert_eq!(covered, known, "each type of layer has one case");
    all
}

/// The family of a type.
fn family(name: &str) -> Family {
    LAYERS.iter().find(|l| l.name == name).unwrap().family
}

impl Case {
    fn name(&self) -> &str {
        self.json["type"].as_str().unwrap()
    }

    fn make(&self, d: &Device, seed: u64) -> Box<dyn Layer> {
        layer(&InitContext::new(d, seed), &self.json).unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }

    fn inputs(&self, d: &Device) -> Vec<Tensor> {
        let one = |(i, shape): (usize, &Vec<usize>)| {
            let v = noise(3 + i as u64, shape.iter().product());
            match self.name() {
                name if i == 1 && (family(name) == Family::Graph || name == "spiral_conv") => {
                    let ends: Vec<i64> = v.iter().map(|x| ((0.5 + 0.5 * x) * 6.0) as i64).collect();
                    Tensor::from_slice(d, &ends, shape).unwrap()
                }
                "heterogeneous_graph" if i > 1 => Tensor::zeros(d, DType::I64, shape).unwrap(),
                "conditional_random_field" if i == 1 => {
                    let tags: Vec<i64> = v.iter().map(|x| ((0.5 + 0.5 * x) * 4.0) as i64).collect();
                    Tensor::from_slice(d, &tags, shape).unwrap()
                }
                "mesh_edge_conv" | "mesh_pool" if i == 1 => {
                    // Faces 0, 1, 2 and 2, 3, 4, and an edge of none.
                    let gemm = [
                        1, 2, -1, -1, 2, 0, -1, -1, 0, 1, 3, 4, 4, 2, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1i64,
                    ];
                    Tensor::from_slice(d, &gemm, shape).unwrap()
                }
                "embedding" => {
                    let ids: Vec<i64> = v.iter().map(|x| ((0.5 + 0.5 * x) * 3.0) as i64).collect();
                    Tensor::from_slice(d, &ids, shape).unwrap()
                }
                "rbm" | "spatial_pooler" | "anomaly_detector" | "temporal_memory" => {
                    let v: Vec<f32> = v.iter().map(|&x| f32::from(x > 0.0)).collect();
                    Tensor::from_slice(d, &v, shape).unwrap()
                }
                _ => {
                    let v: Vec<f32> = v.iter().map(|&x| 0.7 * x as f32).collect();
                    Tensor::from_slice(d, &v, shape).unwrap()
                }
            }
        };
        self.inputs.iter().enumerate().map(one).collect()
    }

    fn run(&self, l: &dyn Layer, x: &[Tensor]) -> Vec<Tensor> {
        l.forward_all(x).unwrap_or_else(|e| panic!("{}: {e}", self.name()))
    }
}

/// Values of all parameters by name.
fn parameters(l: &dyn Layer) -> Vec<(String, Vec<f32>)> {
    l.named_parameters().into_iter().map(|(n, p)| (n, p.get().to_vec::<f32>().unwrap())).collect()
}

/// A sum of all outputs with weights that no symmetry cancels.
fn contracted(y: &[Tensor]) -> Option<Tensor> {
    let mut total: Option<Tensor> = None;
    for (i, y) in y.iter().enumerate().filter(|(_, y)| y.requires_grad()) {
        let w: Vec<f32> = noise(40 + i as u64, y.numel()).iter().map(|&v| v as f32).collect();
        let w = Tensor::from_slice(y.device(), &w, y.shape()).unwrap();
        let part = y.mul(&w).unwrap().sum().unwrap();
        total = Some(match total {
            Some(t) => t.add(&part).unwrap(),
            None => part,
        });
    }
    total
}

#[test]
fn all_parameters_train() {
    let mut trained = 0;
    for d in devices() {
        for case in cases() {
            let (name, l) = (case.name(), case.make(&d, 3));
            let x = case.inputs(&d);
            let y = case.run(&*l, &x);
            let before = parameters(&*l);
            let Some(loss) = contracted(&y) else {
                assert!(before.is_empty(), "{name}: no gradient reaches the parameters");
                continue;
            };
            if before.is_empty() {
                // The gradients of a learning rule.
                continue;
            }
            // The first forward has made the parameters of lazy layers.
            let mut optimizer = Optimizer::sgd(&*l, 0.5).unwrap();
            loss.backward().unwrap_or_else(|e| panic!("{name}: {e}"));
            optimizer.step().unwrap();
            for ((n, old), (_, new)) in before.iter().zip(parameters(&*l)) {
                assert!(new.iter().all(|v| v.is_finite()), "{name} on {}: {n}", id(&d));
                assert_ne!(*old, new, "{name} on {}: a step does not change {n}", id(&d));
                trained += 1;
            }
        }
    }
    assert!(trained > 100, "{trained}");
}

#[test]
fn saved_states_bring_the_same_output_back() {
    let folder = std::env::temp_dir().join(format!("trefoil-every-layer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for d in devices() {
        for case in cases() {
            let (name, x) = (case.name(), case.inputs(&d));
            let (first, second) = (case.make(&d, 3), case.make(&d, 4));
            // Buffers move in training; lazy layers get their parameters.
            case.run(&*first, &x);
            case.run(&*second, &x);
            let path = folder.join(format!("{name}.safetensors"));
            save(&first.state_dict().unwrap(), &path, &SaveOptions::new()).unwrap();
            let file = StateFile::open(&path).unwrap();
            file.load(&*second, &LoadOptions::new()).unwrap_or_else(|e| panic!("{name}: {e}"));
            first.eval();
            second.eval();
            let (a, b) = (case.run(&*first, &x), case.run(&*second, &x));
            assert_eq!(a.len(), b.len(), "{name}");
            for (a, b) in a.iter().zip(&b) {
                assert_eq!(a.shape(), b.shape(), "{name}");
                assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap(), "{name} on {}", id(&d));
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn parts_with_parameters_have_rows_in_summaries() {
    let d = cpu();
    for case in cases() {
        let (name, l) = (case.name(), case.make(&d, 3));
        let rows = summary(&*l, &case.inputs(&d)).unwrap_or_else(|e| panic!("{name}: {e}")).rows;
        let rows: BTreeSet<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        let state = l.named_parameters().into_iter().map(|(n, _)| n).chain(l.counters().into_keys());
        for state in state.map(|n| n.replace("parametrizations.weight.", "")) {
            let part = state.rsplit_once('.').map_or("", |(part, _)| part);
            assert!(rows.contains(part), "{name}: no row for `{part}` of `{state}`, only {rows:?}");
        }
    }
}

#[test]
fn errors_name_the_innermost_part() {
    let d = cpu();
    let model = layer(
        &InitContext::new(&d, 3),
        &json!({"type": "sequential", "layers": [
            {"type": "dense", "out_features": 6},
            {"type": "transformer_encoder", "name": "encoder", "d_model": 8, "nhead": 2, "dim_feedforward": 4}
        ]}),
    )
    .unwrap();
    let x = Tensor::zeros(&d, DType::F32, &[2, 3, 5]).unwrap();
    let e = model.forward(&x).unwrap_err();
    let trefoil_nn::NnError::Layer { name, kind, inputs, .. } = &e else { panic!("{e:?}") };
    assert_eq!((name.as_str(), *kind), ("encoder.self_attn", "MultiHeadAttention"));
    assert_eq!(*inputs, [vec![2, 3, 6]]);
    assert!(matches!(e.root(), trefoil_nn::NnError::Gpu(_)), "{e:?}");
    let text = e.to_string();
    assert!(text.contains("encoder.self_attn") && text.contains("[2, 3, 6]") && text.contains('8'), "{text}");
}

#[test]
fn out_of_memory_names_the_layer_and_the_bytes() {
    for d in devices() {
        let wide: u64 = 1 << 50;
        let model = layer(
            &InitContext::new(&d, 3),
            &json!({"type": "sequential", "layers": [
                {"type": "dense", "out_features": 2},
                {"type": "sequential", "name": "body", "layers": [{"type": "dense", "name": "wide", "out_features": wide}]}
            ]}),
        )
        .unwrap();
        let e = model.forward(&Tensor::zeros(&d, DType::F32, &[2, 3]).unwrap()).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("layer `body.wide` (Dense)"), "{text}");
        let bytes = (2 * 4 * wide).to_string();
        assert!(text.contains("memory") && text.contains(&bytes), "on {}: {text}", id(&d));
    }
}

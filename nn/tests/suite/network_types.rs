//! Layer types of networks in JSON.

use std::collections::BTreeSet;

use crate::common::{cpu, tensor};
use serde_json::{Value, json};
use trefoil_nn::autograd::no_grad;
use trefoil_nn::network::{Key, LAYERS, Network, NetworkConfig, layer};
use trefoil_nn::{DType, Device, InitContext, Layer, NnError, Tensor};

/// For each layer type: an input, the layer with every option, the shape of its (first) output.
fn every_type() -> Vec<(&'static [usize], Value, &'static [usize])> {
    let dense = json!({"type": "dense", "out_features": 4});
    let lstm = json!({"type": "lstm", "hidden_size": 3});
    vec![
        (
            &[2, 3, 6],
            json!({"type": "dense", "in_features": 6, "out_features": 4, "bias": false,
                   "activation": {"kind": "leaky_relu", "negative_slope": 0.2}, "weight_init": "he", "bias_init": null}),
            &[2, 3, 4],
        ),
        (
            &[2, 6],
            json!({"type": "fully_connected", "in_features": 6, "out_features": 4, "bias": true, "activation": "relu",
                   "weight_init": {"normal": {"std": 0.1}}, "bias_init": "zeros"}),
            &[2, 4],
        ),
        (
            &[2, 4, 7, 8],
            json!({"type": "convolutional", "in_channels": 4, "out_channels": 6, "kernel_size": [3, 2], "stride": [2, 1],
                   "padding": [1, 0], "dilation": 1, "groups": 2, "bias": false, "padding_mode": "reflect",
                   "activation": "silu", "weight_init": null, "bias_init": null}),
            &[2, 6, 4, 7],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "batch_normalization", "num_features": 3, "eps": 1e-3, "momentum": null, "affine": false,
                   "track_running_stats": true}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 3, 4],
            json!({"type": "layer_normalization", "normalized_shape": [3, 4], "eps": 1e-6, "elementwise_affine": true,
                   "bias": false}),
            &[2, 3, 4],
        ),
        (
            &[2, 3],
            json!({"type": "embedding", "num_embeddings": 5, "embedding_dim": 4, "padding_idx": -1,
                   "scale_by_sqrt_dim": true, "max_norm": 1.5, "norm_type": 1, "scale_grad_by_freq": true,
                   "weight_init": {"constant": 0.5}}),
            &[2, 3, 4],
        ),
        (
            &[2, 5, 8],
            json!({"type": "attention", "embed_dim": 8, "attention_size": 6, "context_dim": 8, "bias": true,
                   "dropout": 0.1, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "multi_head_attention", "embed_dim": 8, "num_heads": 2, "dropout": 0.1, "bias": false,
                   "kdim": 8, "vdim": 8, "rope": {"base": 500.0, "layout": "half", "scaling": {"factor": 2.0,
                   "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}, "alibi": true, "is_causal": true,
                   "num_kv_heads": 1}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "self_attention", "embed_dim": 8, "num_heads": 4, "dropout": 0.1, "bias": true,
                   "out_proj": false, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "cross_attention", "query_dim": 8, "context_dim": 8, "num_heads": 2, "qkv_bias": true,
                   "out_bias": false, "dropout": 0.1, "zero_init_out": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 4],
            json!({"type": "lstm", "input_size": 4, "hidden_size": 3, "bias": false, "return_sequences": false,
                   "stateful": true, "num_layers": 2, "dropout": 0.1, "weight_init": "glorot", "bias_init": null}),
            &[2, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "gru", "input_size": 4, "hidden_size": 3, "bias": true, "return_sequences": true,
                   "stateful": false, "num_layers": 1, "dropout": 0, "weight_init": null, "bias_init": "zeros"}),
            &[2, 5, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "recurrent", "input_size": 4, "hidden_size": 3, "nonlinearity": "relu", "bias": true,
                   "return_sequences": true, "stateful": false, "num_layers": 1, "dropout": 0,
                   "weight_init": {"uniform": {"lo": -0.1, "hi": 0.1}}, "bias_init": "zeros"}),
            &[2, 5, 3],
        ),
        (
            &[2, 3, 2, 6, 6],
            json!({"type": "conv_lstm", "in_channels": 2, "filters": 3, "kernel_size": 3, "stride": 2, "padding": [1, 1],
                   "dilation": 1, "bias": true, "peephole": true, "return_sequences": false}),
            &[2, 3, 3, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "bidirectional", "inner": lstm, "merge_mode": "ave",
                   "backward_inner": {"type": "gru", "hidden_size": 3}}),
            &[2, 5, 3],
        ),
        (
            &[2, 3, 7, 7],
            json!({"type": "average_pooling", "kernel_size": 3, "stride": [2, 2], "padding": 1, "ceil_mode": true,
                   "count_include_pad": false, "divisor_override": 4}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 3, 7],
            json!({"type": "avg_pool1d", "kernel_size": 3, "stride": 2, "padding": [1], "ceil_mode": true,
                   "count_include_pad": false, "divisor_override": 4}),
            &[2, 3, 4],
        ),
        (
            &[2, 3, 7],
            json!({"type": "max_pool1d", "kernel_size": [2], "stride": 2, "padding": 0, "dilation": 1,
                   "ceil_mode": false, "return_indices": true}),
            &[2, 3, 3],
        ),
        (&[2, 3, 7], json!({"type": "adaptive_avg_pool1d", "output_size": [4]}), &[2, 3, 4]),
        (
            &[2, 3, 7, 7],
            json!({"type": "max_pooling", "kernel_size": [2, 3], "stride": 2, "padding": [0, 1], "dilation": 1,
                   "ceil_mode": false, "return_indices": true}),
            &[2, 3, 3, 4],
        ),
        (
            &[2, 3, 4, 6, 6],
            json!({"type": "max_pool3d", "kernel_size": 2, "stride": [2, 3, 3], "padding": 0, "dilation": 1,
                   "ceil_mode": false, "return_indices": false}),
            &[2, 3, 2, 2, 2],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "global_pooling", "mode": "max", "keepdim": false, "activation": "tanh"}),
            &[2, 3],
        ),
        (&[2, 3, 4, 6], json!({"type": "adaptive_average_pooling", "output_size": [2, null]}), &[2, 3, 2, 6]),
        (
            &[2, 3, 4, 4],
            json!({"type": "instance_normalization", "num_features": 3, "eps": 1e-3, "momentum": 0.2, "affine": true,
                   "track_running_stats": true}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 4, 3],
            json!({"type": "group_normalization", "num_groups": 2, "num_channels": 4, "eps": 1e-3, "affine": false}),
            &[2, 4, 3],
        ),
        (
            &[2, 4, 3],
            json!({"type": "rms_norm", "normalized_shape": 3, "eps": null, "elementwise_affine": true}),
            &[2, 4, 3],
        ),
        (
            &[2, 5, 8],
            json!({"type": "transformer_encoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0,
                   "attention_dropout": 0.1, "activation_dropout": 0.2, "activation": "gelu", "layer_norm_eps": 1e-4, "norm_first": true, "bias": false, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "transformer_decoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0,
                   "attention_dropout": null, "activation_dropout": null, "activation": "relu", "layer_norm_eps": 1e-4, "norm_first": false, "bias": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "feed_forward", "d_model": 8, "d_ff": 16, "activation": "gelu", "dropout": 0.1, "bias": false}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "positional_embedding", "d_model": 8, "max_len": 10, "weight_init": "zeros"}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "positional_encoding", "d_model": 8, "max_len": 10, "base": 100.0, "dropout": 0.1}),
            &[2, 5, 8],
        ),
        (
            &[2, 3, 8, 8],
            json!({"type": "patch_embedding", "in_channels": 3, "patch_size": 4, "embed_dim": 5, "bias": true,
                   "flatten": false, "weight_init": "lecun", "bias_init": "zeros"}),
            &[2, 5, 2, 2],
        ),
        (
            &[2, 4, 9],
            json!({"type": "conv1d", "in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": [2],
                   "padding": "valid", "dilation": 2, "groups": 2, "bias": false, "padding_mode": "circular",
                   "activation": "relu", "weight_init": "he", "bias_init": null}),
            &[2, 6, 3],
        ),
        (
            &[2, 2, 4, 5, 6],
            json!({"type": "conv3d", "in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 1,
                   "padding": "same", "dilation": [1, 1, 1], "groups": 2, "bias": true, "padding_mode": "zeros",
                   "activation": "identity", "weight_init": null, "bias_init": null}),
            &[2, 4, 4, 5, 6],
        ),
        (
            &[2, 4, 3, 3],
            json!({"type": "deconvolutional", "in_channels": 4, "out_channels": 2, "kernel_size": 3, "stride": 2,
                   "padding": 1, "output_padding": [1, 1], "groups": 2, "bias": true, "dilation": 1,
                   "activation": "relu", "weight_init": null, "bias_init": null}),
            &[2, 2, 6, 6],
        ),
        (
            &[2, 4, 5, 5],
            json!({"type": "deformable_convolutional", "in_channels": 4, "out_channels": 6, "kernel_size": [3, 3],
                   "stride": 1, "padding": 1, "dilation": 1, "groups": 2, "deform_groups": 2, "modulation": false,
                   "bias": true, "weight_init": null, "bias_init": "zeros"}),
            &[2, 6, 5, 5],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "depthwise_separable_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3,
                   "stride": 1, "padding": 1, "dilation": 1, "depth_multiplier": 2, "bias": true,
                   "mid_activation": "relu", "activation": "relu6", "weight_init": null, "bias_init": null}),
            &[2, 4, 5, 5],
        ),
        (
            &[2, 3, 6, 6],
            json!({"type": "dilated_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 1,
                   "padding": "valid", "dilation": 2, "groups": 1, "bias": true, "padding_mode": "zeros",
                   "activation": "relu", "weight_init": "he", "bias_init": "zeros"}),
            &[2, 4, 2, 2],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "locally_connected", "in_channels": 3, "out_channels": 2, "kernel_size": 3, "stride": 2,
                   "bias": true, "activation": "relu", "weight_init": null, "bias_init": null}),
            &[2, 2, 2, 2],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "separable_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 2,
                   "padding": 1, "dilation": 1, "depth_multiplier": 1, "bias": false, "activation": "relu",
                   "weight_init": null, "bias_init": null}),
            &[2, 4, 3, 3],
        ),
        (
            &[2, 3, 2, 3, 4],
            json!({"type": "upsample3d", "scale_factor": [2, 1, 1.5], "size": null, "mode": "trilinear",
                   "align_corners": false}),
            &[2, 3, 4, 3, 6],
        ),
        (
            &[2, 3, 4, 5],
            json!({"type": "upsampling", "scale_factor": null, "size": [6, 7], "mode": "bilinear", "align_corners": true}),
            &[2, 3, 6, 7],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "subpixel_convolutional", "in_channels": 3, "out_channels": 2, "upscale_factor": 2,
                   "kernel_size": 3, "bias": true, "activation": "tanh", "icnr_init": true, "weight_init": null,
                   "bias_init": null}),
            &[2, 2, 8, 8],
        ),
        (&[2, 8, 3, 3], json!({"type": "pixel_shuffle", "upscale_factor": 2}), &[2, 2, 6, 6]),
        (&[2, 2, 6, 6], json!({"type": "pixel_unshuffle", "downscale_factor": 2}), &[2, 8, 3, 3]),
        (&[2, 6, 3, 3], json!({"type": "channel_shuffle", "groups": 3}), &[2, 6, 3, 3]),
        (
            &[2, 3],
            json!({"type": "activation", "kind": "softplus", "dim": null, "negative_slope": null, "alpha": null,
                   "beta": 2.0, "threshold": 10, "min_val": null, "max_val": null, "theta": null,
                   "num_parameters": null, "init": null}),
            &[2, 3],
        ),
        (&[2, 3], json!({"type": "softmax", "dim": 0}), &[2, 3]),
        (&[2, 3], json!({"type": "log_softmax", "dim": 1}), &[2, 3]),
        (
            &[2, 6],
            json!({"type": "softmax_variant", "kind": "grid", "temperature": 0.5, "rows": 2, "cols": 3, "levels": null,
                   "tree": false, "hard": false, "mask": null, "alpha": 1.5, "clusters": null, "weights": null}),
            &[2, 6],
        ),
        (&[2, 3], json!({"type": "add", "activation": "relu"}), &[2, 3]),
        (&[2, 3], json!({"type": "concatenate", "dim": -1, "activation": "relu"}), &[2, 6]),
        (&[2, 3, 4, 5], json!({"type": "cropping", "cropping": [[1, 0], [2, 1]]}), &[2, 3, 3, 2]),
        (&[2, 3], json!({"type": "dropout", "p": 0.25}), &[2, 3]),
        (&[2, 3, 4, 5], json!({"type": "flatten", "start_dim": 2, "end_dim": -1}), &[2, 3, 20]),
        (&[2, 3], json!({"type": "gaussian_noise", "stddev": 0.2, "mean": 1}), &[2, 3]),
        (&[2, 3, 4], json!({"type": "input", "shape": [-1, 4], "dtype": "f32"}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "masking", "mask_value": -1}), &[2, 3, 4]),
        (&[2, 3], json!({"type": "multiply", "activation": "sigmoid"}), &[2, 3]),
        (
            &[2, 3, 4],
            json!({"type": "padding", "padding": [[1, 2]], "mode": "constant", "value": 0.5}),
            &[2, 3, 7],
        ),
        (&[2, 12], json!({"type": "reshape", "target_shape": [3, -1]}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "sequence_last"}), &[2, 4]),
        (&[2, 6], json!({"type": "split", "num_splits": 2, "sizes": null, "dim": 1}), &[2, 3]),
        (&[2, 3, 5], json!({"type": "time_distributed", "inner": dense, "activation": "relu"}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "mean", "dim": [1, -1], "keepdim": true}), &[2, 1, 1]),
        (&[2, 3, 4], json!({"type": "log_variance", "dim": 1, "keepdim": false, "eps": 1e-4}), &[2, 4]),
        (
            &[2, 6],
            json!({"type": "gated_linear_unit", "in_features": 6, "out_features": 4, "bias": true,
                   "gate_activation": "silu", "weight_init": null, "bias_init": null}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "spectral_normalization", "inner": dense, "parameter": "weight", "n_power_iterations": 2,
                   "eps": 1e-10, "dim": 0}),
            &[2, 4],
        ),
        (
            &[2, 5, 8],
            json!({"type": "decoder", "d_model": 8, "attention_size": 6, "dim_feedforward": 16, "activation": "gelu",
                   "dropout": 0.1, "layer_norm_eps": 1e-4, "norm_first": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 6],
            json!({"type": "hyperbolic_linear", "in_features": 6, "out_features": 4, "c": 0.5, "bias": true,
                   "hyperbolic_input": false, "nonlin": "relu", "output": "tangent", "weight_init": null,
                   "bias_init": "zeros"}),
            &[2, 4],
        ),
        (
            &[2, 16],
            json!({"type": "octonion_linear", "in_features": 2, "out_features": 3, "bias": true, "activation": "relu"}),
            &[2, 24],
        ),
        (
            &[2, 6],
            json!({"type": "graph_convolutional", "in_features": 6, "out_features": 4, "bias": false, "normalize": true,
                   "add_self_loops": false, "improved": true, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "graph_attention", "in_features": 6, "out_features": 4, "heads": 3, "concat": false,
                   "negative_slope": 0.1, "dropout": 0.5, "add_self_loops": true, "bias": true, "residual": true,
                   "activation": "elu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "graph_sage", "in_features": 6, "out_features": 4, "aggregator": "max", "project": true,
                   "normalize": true, "root_weight": false, "bias": false, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "graph_isomorphism", "in_features": 6, "out_features": 4, "mlp_hidden": 5,
                   "learn_epsilon": false, "epsilon": 0.5, "batch_norm": true, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "readout", "in_features": 6, "out_features": 4, "mode": "attention", "num_graphs": 3,
                   "bias": false, "activation": "relu"}),
            &[3, 4],
        ),
        (
            &[2, 6],
            json!({"type": "directional_graph", "in_features": 6, "out_features": 4, "alpha": 0.25, "aggregator": "max",
                   "root_weight": false, "mode": "sum", "gating": false, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "edge_conditional_convolutional", "in_features": 6, "out_features": 4, "edge_features": 3,
                   "edge_hidden": 5, "aggregator": "sum", "root_weight": false, "bias": false, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "principal_neighbourhood_aggregation", "in_features": 6, "out_features": 4,
                   "aggregators": ["sum", "std"], "scalers": ["attenuation"], "deg_histogram": [0, 2],
                   "edge_features": 3, "pre_layers": 2, "post_layers": 3, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "heterogeneous_graph", "in_features": 6, "out_features": 4, "node_types": ["a", "b"],
                   "edge_types": [["a", "to", "a"], ["a", "to", "b"]], "num_bases": 2, "aggregator": "max",
                   "root_weight": false, "bias": false, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "rbm", "visible": 6, "hidden": 4, "k": 2, "persistent_chains": 3, "learning_rate": 0.1,
                   "trainable": true}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "synaptic_plasticity", "n_pre": 6, "n_post": 4, "ltp_rate": 0.01, "ltd_rate": 0.02,
                   "homeostasis_rate": 0.0, "w_target": 0.1, "w_min": -1, "w_max": 1, "trace_decay": 0.5, "mu": 0.5,
                   "recurrent": false, "mode": "synapse", "spike_threshold": 0.2, "pairing": "nearest",
                   "learning_rate": 0.5}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "spatial_pooler", "input_size": 6, "column_count": 50, "local_area_density": 0.1,
                   "potential_pct": 0.8, "syn_perm_connected": 0.2, "syn_perm_active_inc": 0.1,
                   "syn_perm_inactive_dec": 0.01, "stimulus_threshold": 1, "boost_strength": 2, "duty_cycle_period": 10,
                   "min_pct_overlap_duty_cycle": 0.1, "update_period": 5, "init_connected_pct": 0.6,
                   "straight_through": true}),
            &[2, 50],
        ),
        (
            &[2, 6],
            json!({"type": "anomaly_detector", "input_size": 6, "anomaly_threshold": 0.5, "history_capacity": 10,
                   "smoothing_factor": 0.2, "score": "jaccard", "likelihood": true}),
            &[1],
        ),
        (
            &[2, 6],
            json!({"type": "continuum_memory_system", "in_features": 6, "hidden_dim": 4, "num_levels": 2,
                   "chunk_sizes": [1, 3], "level_lr": [0.1, 0.2], "activation": "tanh"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "temporal_memory", "column_count": 6, "cells_per_column": 2, "activation_threshold": 3,
                   "min_threshold": 2, "initial_permanence": 0.3, "connected_permanence": 0.4,
                   "permanence_increment": 0.2, "permanence_decrement": 0.05, "predicted_segment_decrement": 0.01,
                   "max_new_synapse_count": 5, "max_segments_per_cell": 4, "max_synapses_per_segment": 6,
                   "capacity": 10}),
            &[2, 12],
        ),
        (
            &[2, 3, 4],
            json!({"type": "capsule", "in_capsules": 3, "in_dim": 4, "num_capsules": 5, "capsule_dim": 6,
                   "routing_iterations": 2, "bias": false, "detach_routing": true, "aux_weight": 0.005}),
            &[2, 5, 6],
        ),
        (
            &[2, 3, 6, 7],
            json!({"type": "primary_capsule", "in_channels": 3, "capsule_channels": 4, "capsule_dim": 5,
                   "kernel_size": [3, 2], "stride": [1, 2]}),
            &[2, 4, 3, 4, 5],
        ),
        (
            &[2, 3, 4],
            json!({"type": "digit_capsule", "in_capsules": 3, "in_dim": 4, "num_classes": 5, "out_dim": 6,
                   "routing_iterations": 2, "detach_routing": true, "aux_weight": 0.1, "flatten": true}),
            &[2, 30],
        ),
        (
            &[2, 3, 4],
            json!({"type": "reconstruction", "in_features": 12, "hidden1": 5, "hidden2": 6, "out_features": 7,
                   "hidden_activation": "gelu", "output_activation": "identity"}),
            &[2, 7],
        ),
        (
            &[2, 1],
            json!({"type": "time_embedding", "embedding_dim": 5, "output_dim": 4, "max_period": 100,
                   "flip_sin_to_cos": true, "downscale_freq_shift": 1, "activation": "relu"}),
            &[2, 4],
        ),
        (&[2, 3, 6], json!({"type": "rep_parameterization"}), &[2, 3, 3]),
        (
            &[2, 3, 4, 5],
            json!({"type": "spatial_transformer", "out_height": 6, "out_width": 2, "in_channels": 3, "in_height": 4,
                   "in_width": 5, "hidden": 8, "localization": null, "align_corners": true, "padding": "reflection",
                   "identity_reg": 0.01}),
            &[2, 3, 6, 2],
        ),
        (
            &[2, 6, 5, 7],
            json!({"type": "spynet", "num_levels": 3, "in_channels": 3, "normalize_imagenet": true,
                   "mode": "single_conv"}),
            &[2, 2, 5, 7],
        ),
        (
            &[2, 3],
            json!({"type": "rbf", "in_features": 3, "out_features": 4, "width_init": 2, "width_floor": 0.1}),
            &[2, 4],
        ),
        (&[2, 3, 2], json!({"type": "measurement", "size": 3, "complex": true}), &[2, 3]),
        (
            &[2, 7],
            json!({"type": "quantum", "num_qubits": 3, "num_layers": 2, "entangle": "ring", "measure": "expval_z"}),
            &[2, 3],
        ),
        (
            &[2, 5, 8],
            json!({"type": "swiglu", "d_model": 8, "d_ff": 12, "out_features": null, "down_proj": true, "bias": true,
                   "weight_init": "glorot", "bias_init": null}),
            &[2, 5, 8],
        ),
        (
            &[2, 8],
            json!({"type": "geglu", "d_model": 8, "d_ff": 12, "out_features": 3, "down_proj": true, "bias": false,
                   "weight_init": null, "bias_init": null}),
            &[2, 3],
        ),
        (
            &[2, 8],
            json!({"type": "reglu", "d_model": 8, "d_ff": 12, "out_features": 3, "down_proj": true, "bias": true,
                   "weight_init": null, "bias_init": "zeros"}),
            &[2, 3],
        ),
        (
            &[2, 8],
            json!({"type": "bilinear_glu", "d_model": 8, "d_ff": 12, "out_features": null, "down_proj": false,
                   "bias": false, "weight_init": null, "bias_init": null}),
            &[2, 12],
        ),
        (&[2, 6], json!({"type": "expert", "layers": [dense, dense], "activation": "relu"}), &[2, 4]),
        (
            &[2, 3, 6],
            json!({"type": "mixture_of_experts", "in_features": 6, "top_k": 1, "noise": "learned",
                   "experts": [dense, {"type": "expert", "layers": [dense]}], "router": {"type": "dense", "out_features": 2},
                   "capacity_factor": 1.25, "load_balance_weight": 0.01, "z_loss_weight": 1e-3, "activation": "tanh"}),
            &[2, 3, 4],
        ),
        (
            &[2, 5, 3],
            json!({"type": "conditional_random_field", "num_tags": 3, "emission_activation": "tanh", "reduction": "sum",
                   "constraints": {"scheme": "bio", "labels": ["O", "B-x", "I-x"]}}),
            &[2, 5, 3],
        ),
        (
            &[2, 6],
            json!({"type": "memory_read", "in_features": 6, "memory_dim": 6, "out_features": 4, "scale": 1,
                   "activation": "relu", "entropy_weight": 0.005}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "memory_write", "in_features": 6, "memory_dim": 4, "addressing": "cosine", "erase": false,
                   "activation": "tanh", "entropy_weight": 0.005}),
            &[2, 4],
        ),
        (
            &[2, 5, 6],
            json!({"type": "spiking", "in_features": 6, "out_features": 4, "neuron": "lif", "beta": null, "tau": 5,
                   "threshold": 0.5, "reset": "zero", "refractory_steps": 2, "detach_reset": false, "dt": null,
                   "surrogate": {"kind": "fast_sigmoid", "slope": 10}, "batch_first": true, "stateful": true}),
            &[2, 5, 4],
        ),
        (
            &[2, 5, 6],
            json!({"type": "reservoir", "input_size": 6, "reservoir_size": 8, "connection_probability": 0.5,
                   "spectral_radius": 1.1, "input_scaling": 0.5, "leaking_rate": 0.3, "detach_input": true,
                   "stateful": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 6],
            json!({"type": "message_passing", "in_features": 6, "out_features": 4, "message_features": 5, "edge_features": 0,
                   "aggregator": "max", "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "graph_transformer", "in_features": 6, "out_features": 8, "heads": 3, "head_dim": 2,
                   "ffn_hidden": 5, "ffn_activation": "relu", "dropout": 0.2, "norm": "none", "attend": "all",
                   "max_distance": 3, "bias": false, "activation": "tanh"}),
            &[2, 8],
        ),
        (
            &[2, 6],
            json!({"type": "spiral_conv", "in_channels": 6, "out_channels": 4, "spiral_length": 3, "bias": false,
                   "activation": "elu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "mesh_edge_conv", "in_channels": 6, "out_channels": 4, "bias": false, "symmetric": false,
                   "activation": "elu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "diffusion_conv", "kind": "random_walk", "in_channels": 6, "out_channels": 4,
                   "num_time_scales": null, "per_channel_time": null, "num_eigenvectors": null, "method": null,
                   "min_time": null, "max_iterations": null, "max_diffusion_step": 3, "bidirectional": false,
                   "recurrence": "chebyshev", "bias": false, "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "sparse_linear", "in_features": 6, "out_features": 4, "sparsity": 0.5, "activation": "gelu",
                   "bias": false, "seed": 7}),
            &[2, 4],
        ),
        (&[2, 6], json!({"type": "mesh_pool", "target_edges": 2, "mode": "topk", "in_channels": 6}), &[2, 6]),
        (
            &[2, 6],
            json!({"type": "highway", "dim": 6, "transform_activation": "relu", "gate_activation": "hard_sigmoid",
                   "gate_bias_init": -3, "aux_weight": 0.01}),
            &[2, 6],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "dense_block_layer", "in_channels": 4, "growth_rate": 3, "bn_size": 2, "drop_rate": 0.5}),
            &[2, 3, 5, 6],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "residual_dense_block", "num_feat": 4, "num_grow_ch": 2, "residual_scale": 1,
                   "negative_slope": 0}),
            &[2, 4, 5, 6],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "rrdb", "num_feat": 4, "num_grow_ch": 2, "residual_scale": 0.5}),
            &[2, 4, 5, 6],
        ),
        (&[2, 8, 5, 6], json!({"type": "transition", "in_channels": 8, "compression": 0.25}), &[2, 2, 2, 3]),
        (
            &[2, 4, 5, 6],
            json!({"type": "basic_block", "in_channels": 4, "out_channels": 6, "stride": 2, "zero_init_residual": true}),
            &[2, 6, 3, 3],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "bottleneck_block", "in_channels": 4, "base_channels": 2, "stride": 3, "groups": 2,
                   "base_width": 128, "zero_init_residual": true}),
            &[2, 8, 2, 2],
        ),
        (
            &[2, 5, 6, 4],
            json!({"type": "squeeze_and_excitation", "channels": 4, "reduction": 4, "squeeze": 3, "activation": "silu",
                   "gate": "hard_sigmoid", "layout": "nhwc", "aux_weight": 0.1}),
            &[2, 5, 6, 4],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "dense_block", "num_layers": 3, "in_channels": 4, "growth_rate": 2, "bn_size": 1,
                   "drop_rate": 0.1}),
            &[2, 10, 5, 6],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "inverted_residual_block", "in_channels": 4, "out_channels": 6, "stride": 2,
                   "expand_ratio": 3, "use_se": true, "se_ratio": 2, "activation": "hard_swish"}),
            &[2, 6, 3, 3],
        ),
        (
            &[2, 4, 7, 6],
            json!({"type": "pooling", "pool_size": [3, 2], "stride": 2, "mode": "average"}),
            &[2, 4, 3, 3],
        ),
        (
            &[2, 2, 3, 4],
            json!({"type": "rrdbnet_generator", "in_channels": 2, "out_channels": 1, "num_feat": 2, "num_grow_ch": 1,
                   "num_block": 2, "scale": 8, "residual_scale": 0.1, "upsampler": "pixel_shuffle", "checkpoint": true}),
            &[2, 1, 24, 32],
        ),
        (
            &[2, 2, 8, 4],
            json!({"type": "unet_discriminator", "in_channels": 2, "num_feat": 2, "num_blocks": 2, "mode": "plain"}),
            &[2, 1, 8, 4],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "unet_conv_block", "in_channels": 4, "out_channels": 3, "downsample": false}),
            &[2, 3, 5, 6],
        ),
        (
            &[2, 4, 5, 6],
            json!({"type": "unet_up_block", "in_channels": 4, "skip_channels": 3, "out_channels": 2}),
            &[2, 2, 10, 12],
        ),
        (&[2, 6], json!({"type": "sequential", "layers": [dense, {"type": "dropout"}]}), &[2, 4]),
        (
            &[2, 6],
            json!({"type": "residual", "layers": [dense], "shortcut": [dense], "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "parallel", "branches": [[dense], []], "merge": "concat", "dim": 1, "activation": "relu"}),
            &[2, 10],
        ),
        (&[2, 6], json!({"type": "checkpointed", "inner": dense}), &[2, 4]),
    ]
}

/// What a layer reads beside its features: ends, features and types of edges, types of nodes, neighbours on a mesh, a memory, what skips layers.
fn beside(d: &Device, name: &str) -> Vec<Tensor> {
    let edges = Tensor::from_slice(d, &[0i64, 1, 1, 0], &[2, 2]).unwrap();
    let ids = Tensor::zeros(d, DType::I64, &[2]).unwrap();
    let ones = |shape: &[usize]| Tensor::ones(d, DType::F32, shape).unwrap();
    match name {
        "readout" => vec![ids],
        "edge_conditional_convolutional" | "principal_neighbourhood_aggregation" => {
            vec![edges, ones(&[2, 3])]
        }
        "heterogeneous_graph" => vec![edges, ids.clone(), ids],
        "directional_graph" | "message_passing" | "diffusion_conv" => vec![edges],
        _ if name.starts_with("graph_") => vec![edges],
        "spiral_conv" => vec![Tensor::from_slice(d, &[0i64, 1, -1, 1, 0, -1], &[2, 3]).unwrap()],
        "mesh_edge_conv" | "mesh_pool" => {
            vec![Tensor::from_slice(d, &[1i64, -1, -1, -1, 0, -1, -1, -1], &[2, 4]).unwrap()]
        }
        "memory_write" => vec![ones(&[2, 3, 4])],
        "unet_up_block" => vec![ones(&[2, 3, 10, 12])],
        _ => vec![],
    }
}

#[test]
fn every_type_takes_every_key() {
    let device = cpu();
    let types = every_type();
    let covered: BTreeSet<&str> = types.iter().map(|(_, j, _)| j["type"].as_str().unwrap()).collect();
    let known: BTreeSet<&str> = LAYERS.iter().map(|l| l.name).collect();
    assert_eq!(covered, known);
    assert_eq!(LAYERS.len(), known.len(), "a name stands twice in the table");
    for (shape, json, out) in types {
        let name = json["type"].as_str().unwrap();
        let info = LAYERS.iter().find(|l| l.name == name).unwrap();
        let given: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let keys: BTreeSet<&str> = info.keys.iter().map(|k| k.name).chain(["type"]).collect();
        assert_eq!(given, keys, "{name}");
        let cx = InitContext::new(&device, 1);
        let l = layer(&cx, &json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let x = match name {
            "embedding" => Tensor::from_slice(&device, &[0i32, 1, 4, 2, 2, 3], shape).unwrap(),
            "rbm" | "spatial_pooler" | "anomaly_detector" | "temporal_memory" => {
                tensor(&device, shape, 7).gt_scalar(0.0).unwrap().to_dtype(DType::F32).unwrap()
            }
            _ => tensor(&device, shape, 7).to_dtype(DType::F32).unwrap(),
        };
        let beside = beside(&device, name);
        let inputs = match info.inputs.0 {
            _ if !beside.is_empty() => [vec![x], beside.clone()].concat(),
            2 => vec![x.clone(), x],
            _ if name == "concatenate" => vec![x.clone(), x],
            _ => vec![x],
        };
        let y = l.forward_all(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y[0].shape(), out, "{name}");

        // The same without a device.
        let mut part = json.clone();
        part["inputs"] = json!(vec!["input"; inputs.len()]);
        // Two nodes, two edges, two rows of ends: all are batches of two.
        let mut declared = json!({"input": shape[1..]});
        for (i, t) in beside.iter().enumerate() {
            let key = format!("input{i}");
            declared[&key] = json!({"shape": t.shape()[1..], "dtype": t.dtype().name()});
            part["inputs"][i + 1] = json!(key);
        }
        let mut config = NetworkConfig::sequential(vec![part]);
        config.outputs = vec!["0.0".into()];
        let mut items = vec![(&shape[1..], inputs[0].dtype())];
        if !beside.is_empty() {
            let text =
                json!({"inputs": declared, "layers": config.layers, "outputs": config.outputs}).to_string();
            config = NetworkConfig::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            items.extend(beside.iter().map(|t| (&t.shape()[1..], t.dtype())));
        }
        let shapes = config.output_shapes("", &items).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shapes, [out], "{name}");
    }
}

#[test]
fn required_keys_alone_are_enough_and_each_is_required() {
    let device = cpu();
    for (_, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        let info = LAYERS.iter().find(|l| l.name == name).unwrap();
        let mut least = json.as_object().unwrap().clone();
        least.retain(|k, _| k == "type" || info.keys.iter().any(|i| i.name == k && i.default.is_none()));
        // One of two keys is required.
        match name {
            "upsample3d" => drop(least.insert("scale_factor".into(), json!(2))),
            "upsampling" => drop(least.insert("scale_factor".into(), json!(2))),
            "split" => drop(least.insert("num_splits".into(), json!(2))),
            "activation" => drop(least.insert("kind".into(), json!("relu"))),
            _ => {}
        }
        layer(&InitContext::new(&device, 1), &Value::Object(least.clone()))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        for key in least.keys().filter(|k| *k != "type") {
            let mut less = least.clone();
            less.remove(key);
            let e = layer(&InitContext::new(&device, 1), &Value::Object(less)).unwrap_err();
            assert_eq!(&key_of(&e), key, "{name}: {e}");
        }
        let mut more = least.clone();
        more.insert("colour".into(), json!(1));
        let e = layer(&InitContext::new(&device, 1), &Value::Object(more)).unwrap_err();
        assert_eq!(key_of(&e), "colour", "{name}: {e}");
    }
}

#[test]
fn sizes_of_zero_are_named() {
    let sizes = [
        "attention_size",
        "base_channels",
        "base_width",
        "bn_size",
        "channels",
        "cols",
        "context_dim",
        "d_ff",
        "d_model",
        "dilation",
        "dim_feedforward",
        "downscale_factor",
        "embed_dim",
        "embedding_dim",
        "expand_ratio",
        "filters",
        "growth_rate",
        "hidden_size",
        "in_channels",
        "in_features",
        "input_size",
        "kdim",
        "kernel_size",
        "max_len",
        "nhead",
        "normalized_shape",
        "num_block",
        "num_blocks",
        "num_channels",
        "num_embeddings",
        "num_feat",
        "num_features",
        "num_groups",
        "num_grow_ch",
        "num_heads",
        "num_layers",
        "num_parameters",
        "num_splits",
        "out_channels",
        "out_features",
        "output_size",
        "patch_size",
        "pool_size",
        "query_dim",
        "rows",
        "scale",
        "scale_factor",
        "se_ratio",
        "skip_channels",
        "squeeze",
        "temperature",
        "upscale_factor",
        "eps",
        "layer_norm_eps",
        "groups",
        "deform_groups",
        "depth_multiplier",
        "ffn_hidden",
        "head_dim",
        "message_features",
        "spiral_length",
        "target_edges",
        "capsule_channels",
        "capsule_dim",
        "hidden",
        "hidden1",
        "hidden2",
        "in_capsules",
        "in_dim",
        "in_height",
        "in_width",
        "num_capsules",
        "num_classes",
        "num_levels",
        "num_qubits",
        "out_dim",
        "out_height",
        "out_width",
        "output_dim",
        "routing_iterations",
        "size",
    ];
    let mut wrong = vec![];
    for (shape, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        let known = |k: &&&str| json.get(**k).is_some_and(|v| !v.is_null());
        for key in sizes.iter().filter(known) {
            let mut json = json.clone();
            json[*key] = json!(0);
            json["inputs"] = json!(vec!["input"; LAYERS.iter().find(|l| l.name == name).unwrap().inputs.0]);
            let dtype = if name == "embedding" { DType::I32 } else { DType::F32 };
            match NetworkConfig::sequential(vec![json]).output_shapes("", &[(&shape[1..], dtype)]) {
                Err(NnError::Config { key: k, .. }) if k == format!("layers[0].{key}") => {}
                // Found in the forward.
                Err(NnError::Config { key: k, what, .. }) if k == "layers[0]" && what.contains(key) => {}
                other => wrong.push(format!("{name}.{key}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn key_of(e: &NnError) -> String {
    match e {
        NnError::Config { key, .. } => key.clone(),
        e => panic!("not an error of the configuration: {e}"),
    }
}

/// Options with their defaults, required ones bold.
fn options(keys: &[Key]) -> String {
    let key = |k: &Key| match k.default {
        Some(d) => format!("`{}` = `{d}`", k.name),
        None => format!("**`{}`**", k.name),
    };
    keys.iter().map(key).collect::<Vec<_>>().join(", ")
}

/// The types of layers.
fn table_of_types() -> String {
    let mut text = String::from("| `type` | options | inputs | PyTorch |\n|---|---|---|---|\n");
    for l in LAYERS {
        let inputs = match l.inputs {
            (a, b) if a == b => format!("{a}"),
            (a, usize::MAX) => format!("{a} or more"),
            (a, b) => format!("{a} to {b}"),
        };
        let torch = if l.torch.contains('`') || l.torch.contains(' ') || l.torch == "none" {
            l.torch.to_string()
        } else {
            format!("`{}`", l.torch)
        };
        text += &format!("| `{}` | {} | {inputs} | {torch} |\n", l.name, options(l.keys));
    }
    text
}

/// The types in the sections of a run.
fn table_of_runs() -> String {
    let mut text = String::from("| section | `type` | options |\n|---|---|---|\n");
    for section in trefoil_nn::config::sections() {
        for (name, keys) in section.types {
            text += &format!("| `{}` | `{name}` | {} |\n", section.path, options(keys));
        }
    }
    text
}

/// The types of Loom.
fn table_of_loom() -> String {
    let mut text = String::from("| Loom's `type` | here | keys |\n|---|---|---|\n");
    for t in trefoil_nn::loom::types() {
        text += &format!("| `{}` | `{}` | `{}` |\n", t.name, t.network, t.keys.join("`, `"));
    }
    text
}

#[test]
fn the_documented_tables_are_those_of_the_library() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/NETWORKS.md");
    let written = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    let mut text = written.clone();
    for (of, table) in [("types", table_of_types()), ("runs", table_of_runs()), ("Loom", table_of_loom())] {
        let (begin, end) =
            (format!("<!-- table of {of}: begin -->\n"), format!("<!-- table of {of}: end -->"));
        let start = text.find(&begin).unwrap() + begin.len();
        let stop = start + text[start..].find(&end).unwrap();
        text.replace_range(start..stop, &table);
    }
    if text != written && std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(text == written, "docs/NETWORKS.md: run this test with TREFOIL_UPDATE_DOCS=1");
    for t in trefoil_nn::loom::types() {
        assert!(LAYERS.iter().any(|l| l.name == t.network), "{t:?}");
    }
    // Its examples are networks.
    let mut examples = 0;
    for block in text.split("```json\n").skip(1) {
        let json = block.split("```").next().unwrap();
        NetworkConfig::parse(json).unwrap_or_else(|e| panic!("{e}\n{json}"));
        examples += 1;
    }
    assert!(examples > 1);
}

#[test]
fn softmax_kinds_ask_for_their_own_options() {
    let cx = InitContext::new(&cpu(), 1);
    let make = |options: Value| {
        let mut json = options;
        json["type"] = json!("softmax_variant");
        layer(&cx, &json)
    };
    let x = tensor(cx.device(), &[2, 6], 3).to_dtype(DType::F32).unwrap();
    for (options, columns) in [
        (json!({}), 6),
        (json!({"kind": "hierarchical", "levels": [2, 3], "tree": true}), 6),
        (json!({"kind": "gumbel", "temperature": 2, "hard": true}), 6),
        (json!({"kind": "masked", "mask": [true, false, true, true, false, true]}), 6),
        (json!({"kind": "sparse"}), 6),
        (json!({"kind": "entmax", "alpha": 1.3}), 6),
        (json!({"kind": "adaptive", "clusters": [[0, 1], [2, 3, 4, 5]]}), 6),
        (json!({"kind": "mixture", "weights": [1, 3]}), 3),
    ] {
        let y = make(options.clone()).unwrap().forward(&x).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert_eq!(y.shape(), [2, columns], "{options}");
    }
    for (options, key) in [
        (json!({"kind": "grid", "rows": 2}), "cols"),
        (json!({"kind": "mixture"}), "weights"),
        (json!({"kind": "sparse", "mask": [true]}), "mask"),
        (json!({"kind": "soft"}), "kind"),
        (json!({"kind": "entmax", "alpha": 0.5}), "alpha"),
    ] {
        assert_eq!(key_of(&make(options).unwrap_err()), key);
    }
}

#[test]
fn a_missing_spatial_axis_names_the_type_for_it() {
    let with = |items: &[usize], layer: Value| {
        NetworkConfig::sequential(vec![layer]).output_shapes("", &[(items, DType::F32)])
    };
    for (name, other) in [
        ("convolutional", "`conv1d`"),
        ("dilated_convolutional", "`conv1d`"),
        ("max_pooling", "`max_pool1d`"),
        ("average_pooling", "`avg_pool1d`"),
        ("adaptive_average_pooling", "`adaptive_avg_pool1d`"),
    ] {
        let mut json = json!({"type": name});
        let convolution = name.ends_with("convolutional");
        if convolution {
            (json["out_channels"], json["dilation"]) = (json!(4), json!(1));
        }
        if name != "adaptive_average_pooling" {
            json["kernel_size"] = json!(3);
        }
        for json in
            [json.clone(), json!({"type": "residual", "layers": [json], "shortcut": [{"type": "softmax"}]})]
        {
            let e = with(&[3, 16], json).unwrap_err().to_string();
            assert!(e.contains(other) && e.contains("[2, 3, 16]"), "{name}: {e}");
        }
    }
    let e = with(&[3, 8, 8], json!({"type": "conv3d", "out_channels": 4, "kernel_size": 3})).unwrap_err();
    assert!(e.to_string().contains("`convolutional`"), "{e}");
    // A layer alone takes an item without the batch axis, as in PyTorch.
    let alone = json!({"type": "convolutional", "out_channels": 4, "kernel_size": 3});
    let alone = layer(&InitContext::new(&cpu(), 1), &alone).unwrap();
    let x = tensor(&cpu(), &[3, 8, 8], 1).to_dtype(DType::F32).unwrap();
    assert_eq!(alone.forward(&x).unwrap().shape(), [4, 6, 6]);
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn branches_are_merged() {
    let device = cpu();
    let x = Tensor::from_slice(&device, &[-1f32, 2., 3., -4.], &[2, 2]).unwrap();
    for (merge, want) in [
        ("concat", &[-1f32, 2., 0., 2., 3., -4., 3., 0.] as &[f32]),
        ("add", &[-1., 4., 6., -4.]),
        ("multiply", &[0., 4., 9., 0.]),
        ("average", &[-0.5, 2., 3., -2.]),
        ("maximum", &[0., 2., 3., 0.]),
    ] {
        let json = json!({"type": "parallel", "merge": merge, "branches": [[], [{"type": "activation", "kind": "relu"}]]});
        let y = layer(&InitContext::new(&device, 1), &json).unwrap().forward(&x).unwrap();
        assert!(floats(&y).iter().zip(want).all(|(a, b)| a == b), "{merge}: {:?}", floats(&y));
        assert_eq!(y.numel(), want.len());
    }
    for json in [
        json!({"type": "parallel", "merge": "add", "branches": [[]]}),
        json!({"type": "parallel", "merge": "add", "dim": 1, "branches": [[], []]}),
        json!({"type": "residual", "layers": [{"type": "dropout", "name": "shortcut"}]}),
    ] {
        assert!(matches!(layer(&InitContext::new(&device, 1), &json), Err(NnError::Config { .. })), "{json}");
    }
}

#[test]
fn causal_layers_do_not_see_later_steps() {
    let device = cpu();
    let x = tensor(&device, &[1, 4, 8], 1).to_dtype(DType::F32).unwrap();
    let tail = tensor(&device, &[1, 1, 8], 2).to_dtype(DType::F32).unwrap();
    let other = Tensor::concat(1, &[&x.narrow(1, 0, 3).unwrap(), &tail]).unwrap();
    for json in [
        json!({"type": "attention", "embed_dim": 8, "attention_size": 6}),
        json!({"type": "multi_head_attention", "embed_dim": 8, "num_heads": 2}),
        json!({"type": "self_attention", "embed_dim": 8, "num_heads": 2}),
        json!({"type": "transformer_encoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0}),
    ] {
        for causal in [false, true] {
            let mut json = json.clone();
            json["is_causal"] = json!(causal);
            let l = layer(&InitContext::new(&device, 1), &json).unwrap();
            let head =
                |x: &Tensor| floats(&l.forward(x).unwrap().narrow(1, 0, 3).unwrap().contiguous().unwrap());
            assert_eq!(head(&x) == head(&other), causal, "{json}");
        }
    }
}

#[test]
fn states_are_carried_until_they_are_reset() {
    let device = cpu();
    let lstm = json!({"type": "lstm", "hidden_size": 3, "stateful": true});
    let x = tensor(&device, &[2, 4, 5], 1).to_dtype(DType::F32).unwrap();
    for json in [
        json!({"type": "sequential", "layers": [lstm]}),
        json!({"type": "residual", "layers": [lstm], "shortcut": [{"type": "dense", "out_features": 3}]}),
        json!({"type": "parallel", "branches": [[lstm], []], "dim": -1}),
        json!({"type": "bidirectional", "inner": lstm}),
    ] {
        let net = Network::new(&InitContext::new(&device, 1), &NetworkConfig::sequential(vec![json.clone()]))
            .unwrap();
        let run = || floats(&net.forward(&x).unwrap());
        let first = run();
        assert_ne!(run(), first, "{json}");
        net.reset_state();
        assert_eq!(run(), first, "{json}");
    }
    // A forward that is made twice would carry its states on twice.
    let segment = json!({"type": "checkpointed", "inner": lstm});
    let net = Network::new(&InitContext::new(&device, 1), &NetworkConfig::sequential(vec![segment])).unwrap();
    let e = net.forward(&x).unwrap_err().to_string();
    assert!(e.contains("stateful") && e.contains("checkpointed"), "{e}");
    assert!(no_grad(|| net.forward(&x)).is_ok());
}

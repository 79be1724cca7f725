//! Which keys the types of layers read.

/// Keys that each type reads beside `type`.
pub(super) const KEYS: &[(&str, &[&str])] = &[
    (
        "dense",
        &["activation", "width", "height", "input_size", "output_size", "input_height", "output_height"],
    ),
    (
        "conv1d",
        &[
            "activation",
            "input_channels",
            "filters",
            "kernel_size",
            "stride",
            "padding",
            "input_length",
            "input_height",
            "output_height",
            "conv1d_in_channels",
            "conv1d_filters",
            "conv1d_kernel_size",
            "conv1d_stride",
            "conv1d_padding",
        ],
    ),
    (
        "conv2d",
        &[
            "activation",
            "input_channels",
            "filters",
            "kernel_size",
            "stride",
            "padding",
            "input_height",
            "input_width",
            "output_height",
            "output_width",
        ],
    ),
    ("rnn", &["input_size", "hidden_size", "seq_length"]),
    ("lstm", &["input_size", "hidden_size", "seq_length"]),
    ("mha", &["d_model", "num_heads", "num_kv_heads", "seq_length", "rope_freq_base"]),
    (
        "softmax",
        &[
            "softmax_variant",
            "softmax_rows",
            "softmax_cols",
            "temperature",
            "mask",
            "hierarchy_levels",
            "adaptive_clusters",
            "mixture_weights",
            "entmax_alpha",
        ],
    ),
    ("layer_norm", &["norm_size", "epsilon"]),
    ("rms_norm", &["norm_size", "epsilon"]),
    ("swiglu", &["input_size", "output_size", "input_height", "output_height"]),
    ("embedding", &["vocab_size", "embedding_dim"]),
    (
        "parallel",
        &[
            "branches",
            "combine_mode",
            "grid_positions",
            "grid_output_rows",
            "grid_output_cols",
            "grid_output_layers",
        ],
    ),
    ("sequential", &["branches"]),
    ("residual", &["activation"]),
];

/// The name under which a type is known here.
pub(super) fn canonical(kind: &str) -> &str {
    match kind {
        "multi_head_attention" => "mha",
        "layernorm" => "layer_norm",
        "rmsnorm" => "rms_norm",
        other => other,
    }
}

//! What is said about unknown types.

use serde_json::json;
use trefoil_nn::network::NetworkConfig;

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

//! Capsules.

use crate::layers::{Capsule, DigitCapsule, PrimaryCapsule, Reconstruction};
use crate::network::options::{Act, Axes, layer_type};

layer_type! {
    CAPSULE: 86, "Capsule", "capsule", Specialized, "none", (1, 1);
    {
        in_capsules: usize;
        in_dim: usize;
        num_capsules: usize;
        capsule_dim: usize;
        routing_iterations: usize = 3;
        bias: bool = true;
        detach_routing: bool = false;
        aux_weight: f64 = 0;
    }
    |o, site| {
        let l = Capsule::new(site.cx, o.in_capsules, o.in_dim, o.num_capsules, o.capsule_dim)?
            .routing_iterations(o.routing_iterations)?
            .detach_routing(o.detach_routing)
            .aux_weight(o.aux_weight)?;
        if o.bias { l } else { l.no_bias() }
    }
}

layer_type! {
    PRIMARY_CAPSULE: 108, "PrimaryCapsule", "primary_capsule", Specialized, "none", (1, 1), spatial 2;
    {
        in_channels: usize;
        capsule_channels: usize;
        capsule_dim: usize;
        kernel_size: Axes<usize, 2> = 9;
        stride: Axes<usize, 2> = 2;
    }
    |o, site| {
        let (p, d) = (o.capsule_channels, o.capsule_dim);
        PrimaryCapsule::with_kernel(site.cx, o.in_channels, p, d, o.kernel_size)?.stride(o.stride)
    }
}

layer_type! {
    DIGIT_CAPSULE: 109, "DigitCapsule", "digit_capsule", Specialized, "none", (1, 1);
    {
        in_capsules: usize;
        in_dim: usize;
        num_classes: usize;
        out_dim: usize;
        routing_iterations: usize = 3;
        detach_routing: bool = false;
        aux_weight: f64 = 0;
        flatten: bool = false;
    }
    |o, site| {
        DigitCapsule::new(site.cx, o.in_capsules, o.in_dim, o.num_classes, o.out_dim)?
            .routing_iterations(o.routing_iterations)?
            .detach_routing(o.detach_routing)
            .aux_weight(o.aux_weight)?
            .flatten(o.flatten)
    }
}

layer_type! {
    RECONSTRUCTION: 97, "Reconstruction", "reconstruction", Specialized, "none (nn.Linear, three times)", (1, 1);
    {
        in_features: usize;
        hidden1: usize = 512;
        hidden2: usize = 1024;
        out_features: usize;
        hidden_activation: Act = "relu";
        output_activation: Act = "sigmoid";
    }
    |o, site| {
        Reconstruction::with_hidden(site.cx, o.in_features, o.hidden1, o.hidden2, o.out_features)?
            .hidden_activation(o.hidden_activation.0)
            .output_activation(o.output_activation.0)
    }
}

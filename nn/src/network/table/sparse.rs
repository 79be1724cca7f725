//! Sparse relatives of the linear layer.

use crate::layers::SparseLinear;
use crate::network::options::{Act, layer_type};

layer_type! {
    SPARSE_LINEAR: 114, "SparseLinear", "sparse_linear", DenseLike, "none (`torch.sparse.mm`)", (1, 1);
    {
        in_features: usize;
        out_features: usize;
        sparsity: f64 = 0.9;
        activation: Act = "relu";
        bias: bool = true;
        seed: u64 = 42;
    }
    |o, site| {
        let l = SparseLinear::with_seed(site.cx, o.in_features, o.out_features, o.sparsity, o.seed)?
            .activation(o.activation.0);
        if o.bias { l } else { l.no_bias() }
    }
}

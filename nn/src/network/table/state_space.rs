//! Sequence layers with a state of fixed size.

use crate::layers::{GatedDeltaNet, Mamba};
use crate::network::options::layer_type;

layer_type! {
    MAMBA: 121, "Mamba", "mamba", Specialized, "none (mamba_ssm Mamba)", (1, 1);
    {
        d_model: usize;
        d_state: usize = 16;
        d_conv: usize = 4;
        expand: usize = 2;
        dt_rank: Option<usize> = null;
    }
    |o, site| {
        let l = Mamba::new(site.cx, o.d_model)?.d_state(o.d_state)?.d_conv(o.d_conv)?.expand(o.expand)?;
        match o.dt_rank {
            Some(rank) => l.dt_rank(rank)?,
            None => l,
        }
    }
}

layer_type! {
    GATED_DELTA_NET: 122, "GatedDeltaNet", "gated_delta_net", Specialized, "none (fla GatedDeltaNet)", (1, 1);
    {
        d_model: usize;
        num_heads: usize;
        head_dim: usize;
        head_v_dim: Option<usize> = null;
        conv_size: usize = 4;
    }
    |o, site| {
        let l = GatedDeltaNet::new(site.cx, o.d_model, o.num_heads, o.head_dim)?.conv_size(o.conv_size)?;
        match o.head_v_dim {
            Some(n) => l.head_v_dim(n)?,
            None => l,
        }
    }
}

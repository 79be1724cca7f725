//! Sequence layers with a state of fixed size.

use crate::layers::{GatedDeltaNet, GatedLinearAttention, Mamba, RecurrentBlock, Rglru};
use crate::network::options::{Act, layer_type};

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

layer_type! {
    GATED_LINEAR_ATTENTION: 123, "GatedLinearAttention", "gated_linear_attention", Specialized, "none (fla GatedLinearAttention)", (1, 1);
    {
        d_model: usize;
        num_heads: usize = 4;
        num_kv_heads: Option<usize> = null;
        expand_k: f64 = 0.5;
        expand_v: f64 = 1;
        gate_low_rank_dim: usize = 16;
        gate_logit_normalizer: f64 = 16;
        clamp_min: Option<f64> = null;
        use_short_conv: bool = false;
        conv_size: usize = 4;
        use_output_gate: bool = true;
    }
    |o, site| {
        let expand = [o.expand_k, o.expand_v];
        let l = GatedLinearAttention::with_expansion(site.cx, o.d_model, o.num_heads, expand)?;
        let l = l.gate_low_rank_dim(o.gate_low_rank_dim)?.gate_logit_normalizer(o.gate_logit_normalizer)?;
        let l = if let Some(n) = o.num_kv_heads { l.num_kv_heads(n)? } else { l };
        let l = if let Some(lowest) = o.clamp_min { l.clamp_min(lowest)? } else { l };
        let l = if o.use_short_conv { l.short_conv(o.conv_size)? } else { l };
        if o.use_output_gate { l } else { l.no_output_gate()? }
    }
}

layer_type! {
    RGLRU: 124, "Rglru", "rglru", Specialized, "none (transformers RecurrentGemmaRglru)", (1, 1);
    {
        lru_width: usize;
        num_heads: usize;
        first_as_is: bool = false;
    }
    |o, site| {
        let l = Rglru::new(site.cx, o.lru_width, o.num_heads)?;
        if o.first_as_is { l.first_as_is() } else { l }
    }
}

layer_type! {
    RECURRENT_BLOCK: 125, "RecurrentBlock", "recurrent_block", Specialized, "none (transformers RecurrentGemmaRecurrentBlock)", (1, 1);
    {
        d_model: usize;
        num_heads: usize;
        lru_width: Option<usize> = null;
        conv1d_width: usize = 4;
        activation: Act = "gelu_tanh";
        first_as_is: bool = false;
    }
    |o, site| {
        let inner = o.lru_width.unwrap_or(o.d_model);
        let l = RecurrentBlock::with_width(site.cx, o.d_model, inner, o.num_heads)?;
        let l = l.conv1d_width(o.conv1d_width)?.activation(o.activation.0);
        if o.first_as_is { l.first_as_is() } else { l }
    }
}

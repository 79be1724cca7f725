//! Layers that learn by rules of their own.

use serde::Deserialize;

use crate::layers::{
    AnomalyDetector, ContinuumMemorySystem, Rbm, SpatialPooler, SpatialPoolerOptions, StdpOptions,
    SynapticPlasticity, TemporalMemory, TemporalMemoryOptions,
};
use crate::network::options::{Act, List, layer_type};

layer_type! {
    RBM: 96, "Rbm", "rbm", Specialized, "none (scikit-learn BernoulliRBM)", (1, 1);
    {
        visible: usize;
        hidden: usize;
        k: usize = 1;
        persistent_chains: Option<usize> = null;
        learning_rate: f64 = 0.01;
        trainable: bool = false;
    }
    |o, site| {
        let mut l =
            Rbm::new(site.cx, o.visible, o.hidden)?.steps(o.k)?.learning_rate(o.learning_rate)?;
        if let Some(chains) = o.persistent_chains {
            l = l.persistent(chains)?;
        }
        if o.trainable { l.trainable() } else { l }
    }
}

/// What synapses give.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Gives {
    Synapse,
    Identity,
}

/// Which pairs of spikes count.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Pairing {
    All,
    Nearest,
}

layer_type! {
    SYNAPTIC_PLASTICITY: 105, "SynapticPlasticity", "synaptic_plasticity", Specialized, "none", (1, 1);
    {
        n_pre: usize;
        n_post: Option<usize> = null;
        ltp_rate: f64 = 0.005;
        ltd_rate: f64 = 0.0025;
        homeostasis_rate: f64 = 1e-4;
        w_target: f64 = 0.5;
        w_min: f64 = 0;
        w_max: f64 = 1;
        trace_decay: f64 = 0.95;
        mu: f64 = 1;
        recurrent: bool = false;
        mode: Gives = "synapse";
        spike_threshold: f64 = 0.5;
        pairing: Pairing = "all";
        learning_rate: f64 = 1;
    }
    |o, site| {
        let options = StdpOptions {
            ltp_rate: o.ltp_rate,
            ltd_rate: o.ltd_rate,
            homeostasis_rate: o.homeostasis_rate,
            w_target: o.w_target,
            w_min: o.w_min,
            w_max: o.w_max,
            trace_decay: o.trace_decay,
            mu: o.mu,
            recurrent: o.recurrent,
            identity: o.mode == Gives::Identity,
            spike_threshold: o.spike_threshold,
            nearest: o.pairing == Pairing::Nearest,
            learning_rate: o.learning_rate,
        };
        SynapticPlasticity::new(site.cx, o.n_pre, o.n_post.unwrap_or(o.n_pre), options)?
    }
}

layer_type! {
    SPATIAL_POOLER: 100, "SpatialPooler", "spatial_pooler", Specialized, "none (NuPIC SpatialPooler)", (1, 1);
    {
        input_size: usize;
        column_count: usize;
        local_area_density: f64 = 0.02;
        potential_pct: f64 = 0.5;
        syn_perm_connected: f64 = 0.1;
        syn_perm_active_inc: f64 = 0.05;
        syn_perm_inactive_dec: f64 = 0.008;
        stimulus_threshold: usize = 0;
        boost_strength: f64 = 0;
        duty_cycle_period: usize = 1000;
        min_pct_overlap_duty_cycle: f64 = 0.001;
        update_period: usize = 50;
        init_connected_pct: f64 = 0.5;
        straight_through: bool = false;
    }
    |o, site| {
        let options = SpatialPoolerOptions {
            local_area_density: o.local_area_density,
            potential_pct: o.potential_pct,
            syn_perm_connected: o.syn_perm_connected,
            syn_perm_active_inc: o.syn_perm_active_inc,
            syn_perm_inactive_dec: o.syn_perm_inactive_dec,
            stimulus_threshold: o.stimulus_threshold,
            boost_strength: o.boost_strength,
            duty_cycle_period: o.duty_cycle_period,
            min_pct_overlap_duty_cycle: o.min_pct_overlap_duty_cycle,
            update_period: o.update_period,
            init_connected_pct: o.init_connected_pct,
            straight_through: o.straight_through,
        };
        SpatialPooler::new(site.cx, o.input_size, o.column_count, options)?
    }
}

/// What a score is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Score {
    Raw,
    Jaccard,
}

layer_type! {
    ANOMALY_DETECTOR: 85, "AnomalyDetector", "anomaly_detector", Specialized, "none (NuPIC Anomaly)", (1, 1);
    {
        input_size: usize;
        anomaly_threshold: f64;
        history_capacity: usize = 100;
        smoothing_factor: f64 = 0.1;
        score: Score = "raw";
        likelihood: bool = false;
    }
    |o, site| {
        let mut l = AnomalyDetector::new(site.cx, o.input_size, o.anomaly_threshold)?
            .history_capacity(o.history_capacity)?
            .smoothing_factor(o.smoothing_factor)?;
        if o.score == Score::Jaccard {
            l = l.jaccard();
        }
        if o.likelihood { l.likelihood()? } else { l }
    }
}

layer_type! {
    CONTINUUM_MEMORY_SYSTEM: 88, "ContinuumMemorySystem", "continuum_memory_system", Specialized, "none", (1, 1);
    {
        in_features: usize;
        hidden_dim: usize;
        num_levels: usize = 3;
        chunk_sizes: Option<List<usize>> = null;
        level_lr: Option<Vec<f64>> = null;
        activation: Act = "relu";
    }
    |o, site| {
        let mut l = ContinuumMemorySystem::new(site.cx, o.in_features, o.hidden_dim, o.num_levels)?
            .activation(o.activation.0);
        if let Some(chunks) = &o.chunk_sizes {
            l = l.chunk_sizes(&chunks.0)?;
        }
        if let Some(rates) = &o.level_lr {
            l = l.level_lr(rates)?;
        }
        l
    }
}

layer_type! {
    TEMPORAL_MEMORY: 106, "TemporalMemory", "temporal_memory", Specialized, "none (NuPIC TemporalMemory)", (1, 1);
    {
        column_count: usize;
        cells_per_column: usize = 32;
        activation_threshold: usize = 13;
        min_threshold: usize = 10;
        initial_permanence: f64 = 0.21;
        connected_permanence: f64 = 0.5;
        permanence_increment: f64 = 0.1;
        permanence_decrement: f64 = 0.1;
        predicted_segment_decrement: f64 = 0;
        max_new_synapse_count: usize = 20;
        max_segments_per_cell: usize = 255;
        max_synapses_per_segment: usize = 255;
        capacity: usize = 4096;
    }
    |o, site| {
        let options = TemporalMemoryOptions {
            cells_per_column: o.cells_per_column,
            activation_threshold: o.activation_threshold,
            min_threshold: o.min_threshold,
            initial_permanence: o.initial_permanence,
            connected_permanence: o.connected_permanence,
            permanence_increment: o.permanence_increment,
            permanence_decrement: o.permanence_decrement,
            predicted_segment_decrement: o.predicted_segment_decrement,
            max_new_synapse_count: o.max_new_synapse_count,
            max_segments_per_cell: o.max_segments_per_cell,
            max_synapses_per_segment: o.max_synapses_per_segment,
            capacity: o.capacity,
        };
        TemporalMemory::new(site.cx, o.column_count, options)?
    }
}

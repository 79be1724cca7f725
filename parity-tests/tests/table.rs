//! The kernel table against the index of the suites, the suites themselves and the operations of the library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use parity_tests::cases::{KERNELS, find};
use parity_tests::device::{Pattern, Placement};
use parity_tests::sampler::draw;
use parity_tests::{runner, suite};
use trefoil::CpuBackend;
use trefoil::ops::{Family, all_ops};
use trefoil::testing::Recorder;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Kernel names that the table has beyond the index: operations without a row there.
const BEYOND: &[&str] = &[
    "activation_bias_backward",
    "bilinear_ragged",
    "bilinear_ragged_backward",
    "gemm_grouped_ragged_backward",
    "gemm_ragged_bias",
    "gemm_ragged_bias_act",
    "gemm_ragged_bias_backward",
    "airy_ai",
    "igamma",
    "igamma_backward",
    "igammac",
    "igammac_backward",
    "project_gaussians",
    "project_gaussians_backward",
    "rasterize_gaussians",
    "rasterize_gaussians_backward",
    "ldl_factor",
    "ldl_solve",
    "ldl_solve_backward",
    "sinc",
    "sinc_backward",
    "integer_div",
    "add_relu",
    "add_sigmoid",
    "add_gelu",
    "max_abs",
    "max_abs_backward",
    "min_abs",
    "min_abs_backward",
    "log_var",
    "log_var_backward",
    "adadelta_update",
    "adamax_update",
    "amsgrad_update",
    "nadam_update",
    "radam_update",
    "asgd_update",
    "rprop_update",
    "adaptive_clip",
    "unscale_grads",
    "grad_factor",
    "update_loss_scale",
    "lion_update",
    "ftrl_update",
    "proximal_gradient_update",
    "circle_loss",
    "circle_loss_backward",
    "kto_loss",
    "kto_loss_backward",
    "adan_update",
    "sophia_update",
    "sophia_curvature",
    "hypergradient_sgd_update",
    "schedule_free_sgd_update",
    "schedule_free_adamw_update",
    "dadapt_sgd_update",
    "dadapt_adam_update",
    "prodigy_update",
    "sparse_adam_step",
    "sparse_step",
    "adam_bf16_step",
    "adam8bit_step",
    "adam8bit_codes",
    "embedding_renorm",
    "embedding_mean_backward",
    "lstm_states",
    "gru_states",
    "gru_cell_states",
    "convlstm_states",
    "rnn_sequence",
    "rnn_sequence_backward",
    "causal_conv1d_step",
    "conv_scale_act",
    "conv_scale_act_backward",
    "conv1d_asymmetric",
    "conv1d_asymmetric_backward",
    "deform_conv2d",
    "deform_conv2d_backward",
    "cross_attention",
    "sparse_mm_planned_backward",
    "message_passing_planned",
    "message_passing_planned_backward",
    "edge_pairs",
    "edge_pairs_backward",
    "scatter_min",
    "scatter_min_backward",
    "scatter_mul",
    "scatter_mul_backward",
    "scatter_std",
    "scatter_std_backward",
    "scatter_softmax",
    "scatter_softmax_backward",
    "gat_fused",
    "gat_fused_backward",
    "spiral_conv_planned_backward",
    "mesh_conv_planned_backward",
    "pdist_backward",
    "pairwise_distance_backward",
    "sparse_2to4_compress",
    "sparse_2to4_prune",
    "gemm_2to4",
    "residual_batchnorm_relu",
    "residual_batchnorm_relu_backward",
    "eigh",
    "svd",
    "svdvals",
    "erfcx",
    "erfcx_backward",
    "log_ndtr",
    "log_ndtr_backward",
    "ndtri",
    "ndtri_backward",
    "bessel_j0",
    "bessel_j0_backward",
    "bessel_j1",
    "bessel_j1_backward",
    "bessel_y0",
    "bessel_y0_backward",
    "bessel_y1",
    "bessel_y1_backward",
    "modified_bessel_k0",
    "modified_bessel_k0_backward",
    "modified_bessel_k1",
    "modified_bessel_k1_backward",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k0_backward",
    "scaled_modified_bessel_k1",
    "scaled_modified_bessel_k1_backward",
    "distance_matrix",
    "nearest",
    "ivf_assign",
    "kmeans_step",
    "pq_tables",
    "pq_scan",
    "qr",
    "hash_grid_encode",
    "hash_grid_encode_backward",
    "trilinear_interpolate",
    "trilinear_interpolate_backward",
    "spherical_harmonics",
    "spherical_harmonics_backward",
    "ray_sampling",
    "importance_sampling",
    "volume_render",
    "volume_render_backward",
    "gaussian_covariance",
    "gaussian_covariance_backward",
    "mesh_pool",
    "mesh_pool_backward",
];

/// Kernels of the table without a golden case, in any folder: what they do is proven by random parity against a reference alone, and by their gradients.
const WITHOUT_GOLDEN: &[&str] = &[
    "activation_bias_backward",
    "bilinear_ragged",
    "bilinear_ragged_backward",
    "gemm_grouped_ragged_backward",
    "gemm_ragged_bias",
    "gemm_ragged_bias_act",
    "gemm_ragged_bias_backward",
    "sinc",
    "sinc_backward",
    "integer_div",
    "adaptive_clip",
    "causal_conv1d_step",
    "conv1d_asymmetric",
    "conv1d_asymmetric_backward",
    "conv_scale_act",
    "conv_scale_act_backward",
    "convlstm_states",
    "cross_attention",
    "deform_conv2d",
    "deform_conv2d_backward",
    "edge_pairs",
    "edge_pairs_backward",
    "erfcx",
    "erfcx_backward",
    "log_ndtr",
    "log_ndtr_backward",
    "ndtri",
    "ndtri_backward",
    "bessel_j0",
    "bessel_j0_backward",
    "bessel_j1",
    "bessel_j1_backward",
    "bessel_y0",
    "bessel_y0_backward",
    "bessel_y1",
    "bessel_y1_backward",
    "modified_bessel_k0",
    "modified_bessel_k0_backward",
    "modified_bessel_k1",
    "modified_bessel_k1_backward",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k0_backward",
    "scaled_modified_bessel_k1",
    "scaled_modified_bessel_k1_backward",
    "distance_matrix",
    "nearest",
    "ivf_assign",
    "kmeans_step",
    "pq_tables",
    "pq_scan",
    "eigh",
    "svd",
    "svdvals",
    "embedding_mean_backward",
    "embedding_renorm",
    "gat_fused",
    "gat_fused_backward",
    "grad_factor",
    "gru_cell_states",
    "gru_states",
    "lstm_states",
    "mesh_conv_planned_backward",
    "message_passing_planned",
    "message_passing_planned_backward",
    "qr",
    "residual_batchnorm_relu",
    "residual_batchnorm_relu_backward",
    "rnn_sequence",
    "rnn_sequence_backward",
    "scatter_min",
    "scatter_min_backward",
    "scatter_softmax",
    "scatter_softmax_backward",
    "scatter_std",
    "scatter_std_backward",
    "sparse_mm_planned_backward",
    "spiral_conv_planned_backward",
];

#[test]
fn kernels_without_golden_cases_are_listed() {
    let mut seen = BTreeSet::new();
    for folder in ["suites", "own", "opinfo"] {
        for entry in std::fs::read_dir(golden().join(folder)).expect("a folder of golden/").flatten() {
            if entry.path().extension().is_some_and(|e| e == "json") {
                for case in suite::load(&entry.path()).expect("suite") {
                    seen.insert(case.map_or_else(|e| e.kernel, |c| c.kernel));
                }
            }
        }
    }
    let without: BTreeSet<&str> = KERNELS.iter().map(|k| k.name).filter(|n| !seen.contains(*n)).collect();
    let listed: BTreeSet<&str> = WITHOUT_GOLDEN.iter().copied().collect();
    assert_eq!(without, listed, "kernels without a golden case, and those listed");
}

#[test]
fn rows_agree_with_the_index() {
    let text = std::fs::read_to_string(golden().join("INDEX.md")).expect("INDEX.md");
    let mut index = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with("| ") && l.contains('`')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        index.insert(
            cells[2].trim_matches('`').to_string(),
            [cells[1], cells[3], cells[4], cells[5]].map(str::to_string),
        );
    }
    assert!(index.len() > 500, "the index was not understood");
    let mut wrong = Vec::new();
    for k in KERNELS.iter() {
        match index.get(k.name) {
            Some(row) => {
                let ours = [k.row, k.inputs, k.args, k.outputs].map(str::to_string);
                if *row != ours {
                    wrong.push(format!("{}:\n  index {row:?}\n  table {ours:?}", k.name));
                }
            }
            None if BEYOND.contains(&k.name) => {}
            None => wrong.push(format!("{} is not in the index", k.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_suite_kernel_is_served() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(golden().join("suites")).expect("golden/suites").flatten() {
        if entry.path().extension().is_some_and(|e| e == "json") {
            for case in suite::load(&entry.path()).expect("suite") {
                seen.insert(case.map_or_else(|e| e.kernel, |c| c.kernel));
            }
        }
    }
    for name in &seen {
        assert!(find(name).is_some(), "{name} is not served");
    }
    for k in KERNELS.iter().filter(|k| !BEYOND.contains(&k.name)) {
        assert!(seen.contains(k.name), "{} has no golden case", k.name);
    }
}

#[test]
fn every_operation_is_exercised_and_every_row_names_real_operations() {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for k in KERNELS.iter() {
        for op in k.ops {
            assert!(all_ops().any(|o| o.name == *op), "{}: no operation {op}", k.name);
            used.insert(op);
        }
    }
    for op in all_ops().filter(|o| o.family != Family::Core) {
        assert!(used.contains(op.name), "no row exercises {}", op.name);
    }
    for op in ["alloc", "write_bytes", "read_bytes", "copy"] {
        assert!(used.contains(op), "no row exercises {op}");
    }
}

#[test]
fn rows_call_the_operations_that_they_name() {
    let recorder = Recorder::new(CpuBackend::new());
    let mut called = BTreeSet::new();
    let mut wrong = Vec::new();
    for k in KERNELS.iter() {
        let mut own = BTreeSet::new();
        for index in 0..6 {
            let (case, _) =
                draw(k, k.dtypes[0], index, 3, true).unwrap_or_else(|e| panic!("{}: {e}", k.name));
            recorder.take();
            let run = runner::execute(&recorder, k, &case, Pattern::Nan, Placement::Aligned);
            own.append(&mut recorder.take());
            if let Err(e) = run.result {
                wrong.push(format!("{} #{index}: {e:?}", k.name));
            }
        }
        for op in
            all_ops().filter(|o| o.family != Family::Core && own.contains(o.name) && !k.ops.contains(&o.name))
        {
            wrong.push(format!("{} calls {} without naming it", k.name, op.name));
        }
        if !k.ops.iter().any(|o| own.contains(o)) {
            wrong.push(format!("{} calls none of {:?}", k.name, k.ops));
        }
        called.append(&mut own);
    }
    for op in all_ops().filter(|o| o.family != Family::Core && !called.contains(o.name)) {
        wrong.push(format!("{} is never called", op.name));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Which kernels and variants the random cases reach, on drivers that compute nothing.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parity_tests::cases::KERNELS;
use parity_tests::device::{Pattern, Placement};
use parity_tests::runner::execute;
use parity_tests::sampler::draw;
use parity_tests::suite::Case;
use parity_tests::variants;
use trefoil::ops::core::CoreOps;
use trefoil::spec::all_kernels;
use trefoil::testing::MockDriver;
use trefoil::{BackendKind, Caps, DeviceId, Engine, MatrixCores};

/// Random cases per kernel of the table, as the parity suite draws them.
const SHAPES: usize = 20;
/// Cases that each kernel and each variant must meet.
const ENOUGH: usize = 3;

/// Variants of a plan that several operations share which do not exist for this one, and what no recording driver has.
const ABSENT: &[&str] = &[
    // What is recorded are calls, not cases: `tests/capture` and `tests/fusion.rs`.
    "capture_calls:parallel",
    "capture_calls:fused",
    "capture_calls:plain",
    // Statistics of rows have parameters per column, those of groups and instances per channel.
    "row_norm:aligned_groups",
    "row_norm:aligned_split",
    "group_norm:aligned_rows",
    "group_norm:aligned_rows_looped",
    "instance_norm:aligned_rows",
    "instance_norm:aligned_rows_looped",
    // Sums alone have a kernel of their own for columns of few rows.
    "arg_reduce:column_sums",
    "dot:column_sums",
    "mean_var:column_sums",
    "min_max:column_sums",
    "reduce_bwd:column_sums",
    // Statistics of channels are sums of columns, those of groups sums of planes.
    "group_norm_bwd:channels_last",
    "group_norm_bwd:columns",
    "group_norm_bwd:columns_aligned",
    "batch_norm_bwd:aligned_groups",
    // A step of the delta rule is no factor per column, so that runs of steps cannot be joined.
    "gated_delta_scan:steps_split",
    "gated_delta_scan_bwd:steps_split",
    // Gradients alone have other kernels: selective scans one, the others another.
    "selective_scan:chunks",
    "selective_scan:linear_chunks",
    "selective_scan_bwd:linear_chunks",
    // Those whose factors are per head alone, forward, are products of matrices.
    "selective_scan:matrix_chunks",
    "selective_scan_bwd:matrix_chunks",
    "gla_scan:chunks",
    "gla_scan:linear_chunks",
    "gla_scan_bwd:chunks",
    "gla_scan_bwd:matrix_chunks",
    "gated_delta_scan:chunks",
    "gated_delta_scan:linear_chunks",
    "gated_delta_scan_bwd:chunks",
    "gated_delta_scan_bwd:matrix_chunks",
    "ssd_scan:chunks",
    "ssd_scan:linear_chunks",
    "ssd_scan_bwd:chunks",
    "ssd_scan_bwd:matrix_chunks",
    // Selective scans alone, forward, keep the states of channels in registers.
    "selective_scan_bwd:channels",
    "gla_scan:channels",
    "gla_scan_bwd:channels",
    "gated_delta_scan:channels",
    "gated_delta_scan_bwd:channels",
    "ssd_scan:channels",
    "ssd_scan_bwd:channels",
    // A sort wants all elements, not the first few.
    "sort:select",
    // Adjoints alone can be columns of windows, or sums of few channels without them.
    "conv:columns",
    "conv_transpose_bwd:columns",
    "conv:few_channels",
    "conv_transpose_bwd:few_channels",
    // Vendors' libraries.
    "gemm:hipblaslt",
    "gemm_bwd:hipblaslt",
    "gemm_grouped:hipblaslt",
    "gemm:clblast",
    "gemm_bwd:clblast",
    "gemm_grouped:clblast",
    "attention:cudnn",
    "attention_bwd:cudnn",
    "conv:cudnn",
    "conv_bwd:cudnn",
    "conv_transpose:cudnn",
    "conv_transpose_bwd:cudnn",
    "conv:miopen",
    "conv_bwd:miopen",
    "conv_transpose:miopen",
    "conv_transpose_bwd:miopen",
    "fft:cufft",
    "rfft:cufft",
    "irfft:cufft",
    "gemm:cublaslt",
    "gemm_bwd:cublaslt",
    "gemm_grouped:cublaslt",
    "gemm:cublaslt_tf32x3",
    "gemm_bwd:cublaslt_tf32x3",
    "gemm_grouped:cublaslt_tf32x3",
];

/// Kernels that prepare operands of a vendor's library alone. A test of the engine has them.
const BESIDE_LIBRARIES: &[&str] = &["gemm_repitch", "gemm_parts"];

/// A device that records what is launched.
struct Device {
    driver: Arc<MockDriver>,
    engine: Engine,
}

impl Device {
    fn new(units: u32, cluster: u32, is_cpu: bool) -> Self {
        let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "recorder", "recorder");
        (caps.f64, caps.compute_units, caps.cluster, caps.is_cpu) = (true, units, cluster, is_cpu);
        caps.device_addresses = !is_cpu;
        // As on Hopper.
        if !is_cpu {
            (caps.matrix_cores, caps.warp_groups, caps.tensor_maps, caps.lane_exchange) =
                (Some(MatrixCores::Ptx), true, true, true);
            (caps.max_block, caps.shared_bytes, caps.cooperative) = (1024, 227 << 10, true);
        }
        let driver = Arc::new(MockDriver::new(caps));
        let engine = Engine::new(driver.clone()).unwrap();
        Device { driver, engine }
    }

    /// Launches of a case, and of what its other variants make of it.
    fn launches(&self, kernel: &parity_tests::cases::Kernel, case: &Case, place: Placement) -> Reached {
        let run = || drop(execute(&self.engine, kernel, case, Pattern::Nan, place));
        self.driver.clear();
        let ((), used) = variants::of(&self.engine, run);
        let mut variants = used.chosen.clone();
        for other in used.others_of(kernel.ops) {
            // A variant that takes one call of several refuses the case, which the parity suite skips.
            let pinned = || execute(&self.engine, kernel, case, Pattern::Nan, place).result.is_ok();
            if variants::pinned(&self.engine, other, pinned).unwrap() {
                variants.insert(other.clone());
            }
        }
        Reached { kernels: self.driver.launches().into_iter().collect(), variants }
    }
}

/// Kernels and variants that a case reaches.
struct Reached {
    kernels: BTreeSet<String>,
    variants: BTreeSet<variants::Name>,
}

/// Names with fewer than enough cases.
fn rare(all: impl IntoIterator<Item = String>, met: &BTreeMap<String, usize>) -> Vec<String> {
    let count = |name: String| (met.get(&name).copied().unwrap_or(0), name);
    all.into_iter().map(count).filter(|(n, _)| *n < ENOUGH).map(|(n, name)| format!("{name} ({n})")).collect()
}

#[test]
fn random_cases_reach_every_kernel_and_every_variant() {
    // A large GPU, and the CPU of an OpenCL platform.
    let devices = [Device::new(132, 8, false), Device::new(2, 1, true)];
    let (mut kernels, mut by_variant) = (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new());
    for kernel in KERNELS.iter() {
        for &dtype in kernel.dtypes {
            for index in 0..SHAPES.div_ceil(kernel.dtypes.len()) {
                let (case, _) = draw(kernel, dtype, index, 1, false).unwrap();
                let place = if index % 2 == 0 { Placement::Aligned } else { Placement::Unaligned };
                let reached = devices.each_ref().map(|d| d.launches(kernel, &case, place));
                let launched: BTreeSet<_> = reached.iter().flat_map(|r| &r.kernels).collect();
                launched.into_iter().for_each(|k| *kernels.entry(k.clone()).or_default() += 1);
                let used: BTreeSet<_> = reached.iter().flat_map(|r| &r.variants).collect();
                used.into_iter().for_each(|(op, v)| *by_variant.entry(format!("{op}:{v}")).or_default() += 1);
            }
        }
    }
    let expected = all_kernels().filter(|k| !BESIDE_LIBRARIES.contains(&k.entry));
    let missing = rare(expected.map(|k| k.entry.to_string()), &kernels);
    assert!(missing.is_empty(), "kernels that fewer than {ENOUGH} random cases launch: {missing:?}");
    let known = devices.iter().flat_map(|d| {
        let choices = trefoil::ops::all_ops().map(|op| d.engine.explain(op.name).unwrap());
        choices.flat_map(|c| {
            let names = std::iter::once(c.chosen).chain(c.rejected.into_iter().map(|(name, _)| name));
            names.map(move |v| format!("{}:{v}", c.op)).collect::<Vec<_>>()
        })
    });
    let known: BTreeSet<String> = known.filter(|v| !v.ends_with(":portable")).collect();
    let (absent, known): (BTreeSet<_>, BTreeSet<_>) =
        known.into_iter().partition(|v| ABSENT.contains(&v.as_str()));
    assert_eq!(absent.len(), ABSENT.len(), "the list names variants that no operation has: {absent:?}");
    let run = absent.iter().filter(|v| by_variant.contains_key(*v)).collect::<Vec<_>>();
    assert!(run.is_empty(), "listed as absent, but random cases run {run:?}");
    let missing = rare(known, &by_variant);
    assert!(missing.is_empty(), "variants that fewer than {ENOUGH} random cases run: {missing:?}");
}

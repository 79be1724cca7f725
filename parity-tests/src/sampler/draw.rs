//! Cases of the kernel table: forwards from their samplers, gradients from a run of their forward.

use serde_json::Value;
use trefoil::DType;

use super::{Dom, Draw, Sample};
use crate::cases::{Field, Kernel, arguments, fields, find};
use crate::reference::reference;
use crate::suite::{Case, HostTensor, Named, Strided};

/// A forward case with its results in f64, from which a gradient's inputs are taken.
#[derive(Debug)]
pub struct Forward {
    /// The case, in the storage type.
    pub case: Case,
    /// Results of the CPU in f64.
    pub outputs: Named,
}

/// Draws a case of `kernel`. For a gradient the forward case comes with it.
pub fn draw(
    kernel: &Kernel,
    dtype: DType,
    index: usize,
    seed: u64,
    small: bool,
) -> Result<(Case, Option<Forward>), String> {
    if let Some(case) = draw_forward(kernel, dtype, index, seed, small) {
        let mut case = case;
        if !small && index % 4 == 3 && !PLAIN.contains(&kernel.name) {
            splice(&mut case, seed);
        }
        if !small && index % 4 == 1 {
            expand(kernel, &mut case);
            transpose(kernel, &mut case);
        }
        return Ok((case, None));
    }
    let forward = kernel.forward.and_then(find).ok_or("no forward kernel")?;
    let case = draw_forward(forward, dtype, index, seed, small).ok_or("the forward kernel has no sampler")?;
    let outputs = reference(forward, &case)?;
    let forward = Forward { case, outputs };
    let mut case = derive(kernel, &forward, index, seed)?;
    if !small && index % 4 == 1 {
        expand(kernel, &mut case);
        transpose(kernel, &mut case);
    }
    Ok((case, Some(forward)))
}

fn draw_forward(kernel: &Kernel, dtype: DType, index: usize, seed: u64, small: bool) -> Option<Case> {
    let mut s = Sample::new(kernel, dtype, index, seed, small);
    kernel.sample?(&mut s);
    Some(s.into_case(kernel))
}

/// Kernels whose value at NaN or infinities is left open, and their compositions; searches, whose edges must stay sorted.
const PLAIN: &[&str] = &[
    "gelu",
    "searchsorted",
    "bucketize",
    "swish",
    "silu",
    "mish",
    "add_gelu",
    "gemm_epilogue",
    "gemm_bias_gelu",
    "gemm_bias_swish",
    "rand_categorical",
    "scatter_reduce",
    "cross_entropy_loss",
    "adamw_step",
    "lovasz_softmax_loss",
    "mean_var",
    // Weights times the zeros of the padding.
    "convlstm_forward",
    "convlstm_states",
    // Whether a weight that is not finite meets the zeros of the padding.
    "conv1d",
    "conv2d_direct",
    "conv3d_direct",
    "conv2d_half",
    "depthwise_conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_bias_act",
    "conv_scale_act",
    "conv1d_asymmetric",
    "deform_conv2d",
    "scaled_dot_product_attention",
    "flash_attention_v2",
    "grouped_query_attention",
    "cross_attention",
    "attention_varlen",
    "multi_head_attention",
    "fused_linear_cross_entropy",
    "moe_router",
    // Whether an infinity meets its like or a zero.
    "qr",
    "eigh",
    "ldl_factor",
    "spherical_harmonics",
    "gaussian_covariance",
    "project_gaussians",
    "rasterize_gaussians",
    "fft",
    "ifft",
    "rfft",
    "irfft",
    "stft",
    "istft",
    // Whether a state that is not finite meets another one, or a zero: sums over time may be cut anywhere.
    "gated_delta_scan",
    "mamba_selective_scan",
    "mamba2_ssd_scan",
    // Whether a state that no alignment passes through meets a NaN.
    "ctc_loss",
];

/// Puts NaN, infinities and a negative zero into the larger floating inputs of every fourth case.
fn splice(case: &mut Case, seed: u64) {
    let mut draw = Draw(seed);
    for (_, t) in case.inputs.iter_mut().filter(|(_, t)| t.dtype.is_float() && t.numel() >= 8) {
        let mut v = t.to_f64();
        for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0] {
            let at = (draw.next() % v.len() as u64) as usize;
            v[at] = special;
        }
        *t = HostTensor::from_f64(t.dtype, &t.shape, &v);
    }
}

/// Operations whose operands broadcast against each other.
const BROADCASTING: &[&str] = &["binary", "binary_bwd", "ternary", "ternary_bwd"];

/// Repeats smaller operands by strides of 0, as callers do who broadcast them before the call: their gradients have the full shape then.
fn expand(kernel: &Kernel, case: &mut Case) {
    if !kernel.ops.iter().all(|op| BROADCASTING.contains(op)) {
        return;
    }
    let all = case.inputs.iter().try_fold(vec![1], |full, (_, t)| {
        trefoil::broadcast_shapes(&full, &t.shape).ok().map(|s| s.to_vec())
    });
    let Some(full) = all else { return };
    for (name, t) in case.inputs.iter().filter(|(_, t)| t.shape != full) {
        let lead = full.len() - t.shape.len();
        let mut strides = vec![0; full.len()];
        let mut step = 1;
        for (i, &n) in t.shape.iter().enumerate().rev() {
            strides[lead + i] = if n == 1 { 0 } else { step };
            step *= n;
        }
        case.strides.insert(name.clone(), Strided { shape: full.clone(), strides, offset: 0 });
    }
}

/// Operations on the elements of operands of one shape.
const ELEMENTWISE: &[&str] = &["unary", "unary_bwd", "activation", "activation_bwd"];

/// Takes the elements of all inputs with the first axis innermost, as those of a transposed tensor lie.
fn transpose(kernel: &Kernel, case: &mut Case) {
    let Some(shape) = case.inputs.first().map(|(_, t)| t.shape.clone()) else { return };
    let of_one_shape = case.inputs.iter().all(|(_, t)| t.shape == shape && t.numel() > 0);
    if !of_one_shape || !kernel.ops.iter().all(|op| ELEMENTWISE.contains(op)) {
        return;
    }
    let mut before = 1;
    let step = |&n: &usize| {
        before *= n;
        before / n
    };
    let strides: Vec<usize> = shape.iter().map(step).collect();
    for (name, _) in &case.inputs {
        let view = Strided { shape: shape.clone(), strides: strides.clone(), offset: 0 };
        case.strides.insert(name.clone(), view);
    }
}

/// Inputs that a gradient's runner would have to choose between: the one to leave out.
fn redundant(kernel: &Kernel, case: &Case, input: &str) -> bool {
    let saved_output =
        || matches!(case.args.get("act").and_then(Value::as_str), Some("none" | "relu" | "sigmoid" | "tanh"));
    match (kernel.name, input) {
        ("elu_backward", "y") => true,
        // Half of the cases save the mask, the others draw it again.
        ("dropout_backward", "mask") => {
            case.args.get("seed").and_then(Value::as_u64).is_some_and(|n| n % 2 == 0)
        }
        ("gemm_backward_epilogue", "Z") => saved_output(),
        ("gemm_backward_epilogue", "Y") => !saved_output(),
        _ => false,
    }
}

/// The statistic of residual RMS norm: its forward gives the sum s but, in the notation of the index, not 1 / rms(s), and calls its residual r.
fn inverse_rms(forward: &Forward) -> Option<HostTensor> {
    let s = forward.outputs.iter().find(|(n, _)| n == "s").map(|(_, t)| t)?;
    let k = *s.shape.last()?;
    let eps = forward.case.args.get("eps").and_then(Value::as_f64).unwrap_or(1e-6);
    let mean_square = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / k as f64;
    let r: Vec<f64> = s.to_f64().chunks(k.max(1)).map(|row| 1.0 / (mean_square(row) + eps).sqrt()).collect();
    Some(HostTensor::from_f64(DType::F64, &s.shape[..s.shape.len() - 1], &r))
}

/// Builds the case of a gradient from a forward case: upstream gradients are drawn, everything else is known.
fn derive(kernel: &Kernel, forward: &Forward, index: usize, seed: u64) -> Result<Case, String> {
    let dtype = forward.case.dtype;
    let mut s = Sample::new(kernel, dtype, index, seed, false);
    let known = |name: &str| {
        let of = |list: &[(String, HostTensor)]| list.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
        of(&forward.case.inputs).or_else(|| of(&forward.outputs))
    };
    let upstream = forward.outputs.first().ok_or("the forward has no output")?.1.shape.clone();
    let shape_of = |name: &str| known(name).map(|t| t.shape).ok_or(format!("shape of {name}"));
    let round = |f: &Field, t: HostTensor| match (t.dtype, f.kind) {
        (DType::F64, "f32") if dtype != DType::F64 => t.to_dtype(DType::F32),
        (DType::F64, _) => t.to_dtype(dtype),
        _ => t,
    };
    for f in fields(kernel.inputs) {
        // The upstream gradient is d followed by an output's name; gy is that of a loss.
        if matches!(f.name, "dy" | "dY" | "dC" | "gy" | "dgrid" | "dO" | "dweights" | "da" | "dout") {
            s.put(f.name, &upstream, Dom::Any);
            continue;
        }
        if f.optional && redundant(kernel, &forward.case, f.name) {
            continue;
        }
        if f.list {
            let all = forward.case.inputs.iter().filter(|(n, _)| f.matches(n));
            s.inputs.extend(all.map(|(n, t)| (n.clone(), round(&f, t.clone()))));
            continue;
        }
        let saved = (kernel.name, f.name) == ("residual_rmsnorm_backward", "r");
        match if saved { inverse_rms(forward) } else { known(f.name) } {
            Some(t) => s.inputs.push((f.name.to_string(), round(&f, t))),
            // A further upstream gradient is d followed by the output's name.
            None if f.name.strip_prefix('d').is_some_and(|n| forward.outputs.iter().any(|(o, _)| o == n)) => {
                s.put(f.name, &shape_of(&f.name[1..])?, Dom::Any);
            }
            None if f.optional => {}
            None => return Err(format!("{}: nothing known of input {}", kernel.name, f.name)),
        }
    }
    for (name, default) in arguments(kernel.args) {
        let value = match (forward.case.args.get(name), name) {
            (Some(v), _) => v.clone(),
            (None, "input_size") => shape_of("x")?.into(),
            (None, "frames") => shape_of("x")?[2].into(),
            (None, "a_shape") => shape_of("a")?.into(),
            (None, "b_shape") => shape_of("b")?.into(),
            (None, "n") => shape_of("v").or_else(|_| shape_of("src"))?[1].into(),
            (None, "k") => shape_of("w")?[2..].to_vec().into(),
            (None, "sizes") => {
                let axis = forward.case.args["axis"].as_u64().unwrap_or(0) as usize;
                let xs = forward.case.inputs.iter().map(|(_, t)| t.shape[axis]);
                xs.collect::<Vec<_>>().into()
            }
            (None, _) if default.is_some() => continue,
            (None, _) => return Err(format!("{}: nothing known of argument {name}", kernel.name)),
        };
        s.arg(name, value);
    }
    Ok(s.into_case(kernel))
}

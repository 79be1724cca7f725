//! Gradients against their own forward on a device: a directional derivative.
//!
//! For a direction v over the inputs, (L(x + h v) - L(x - h v)) / 2 with L the sum of the outputs times the upstream gradients must be the gradient
//! times h v. What the difference quotient leaves out is known from the same two points in f64, where the gradient is held against central
//! differences element by element; what rounding adds follows from the tolerances of forward and gradient.

use trefoil::{DType, IGpuBackend};

use crate::cases::{Kernel, find};
use crate::device::Placement;
use crate::reference::reference;
use crate::runner::{Verdict, twice};
use crate::sampler::{Draw, draw};
use crate::suite::{Case, HostTensor, Named};
use crate::tolerance::all_limits;

/// Gradients that are not the derivative of their forward, by definition: CIoU holds the weight of its aspect term fixed.
pub const FROZEN: &[&str] = &["ciou_loss_backward"];

/// Input of the forward that a gradient output belongs to.
pub fn target<'a>(kernel: &Kernel, output: &'a str) -> &'a str {
    match (kernel.name, output) {
        ("set_slice_backward", "dbase") => "y",
        ("embedding_backward", "dTable") => "table",
        (_, "dBias") => "bias",
        ("edge_softmax_backward", "dl") => "logits",
        // The gradient of a sum is that of either operand.
        ("residual_layernorm_backward" | "residual_rmsnorm_backward", "ds") => "x",
        _ => output.strip_prefix('d').unwrap_or(output),
    }
}

/// The upstream gradients, by output of the forward.
pub fn upstream(case: &Case, outputs: &[(String, HostTensor)]) -> Vec<(usize, Vec<f64>)> {
    let first = ["dy", "dY", "dC", "gy", "dgrid", "dO", "dweights", "da", "dout"]
        .iter()
        .find_map(|n| case.input(n))
        .map(|t| (0, t));
    let named = |(i, (name, _)): (usize, &(String, HostTensor))| Some((i, case.input(&format!("d{name}"))?));
    let named = outputs.iter().enumerate().filter_map(named).filter(|(i, _)| *i > 0 || first.is_none());
    let all: Vec<_> = first.into_iter().chain(named).map(|(i, t)| (i, t.to_f64())).collect();
    assert!(!all.is_empty(), "a gradient has an upstream gradient");
    all
}

/// Steps that are tried, relative to the inputs: large ones leave out more, small ones drown in rounding.
const STEPS: [f64; 4] = [0.125, 0.03125, 0.0078125, 0.001953125];
/// Cases and directions that are tried.
const TRIES: usize = 8;
/// A case is good enough if what is left out and rounding together are below this share of the derivative; a gradient that is wrong by more is found.
pub const RESOLVED: f64 = 0.02;

/// One directional derivative, prepared in f64.
#[derive(Debug)]
pub struct Plan {
    forward: &'static Kernel,
    /// The forward at x + h v and at x - h v.
    ends: [Case; 2],
    gradient: Case,
    /// h v as f32 has it, by output of the gradient.
    steps: Vec<(String, Vec<f64>)>,
    /// The derivative in f64.
    value: f64,
    /// How far that of a device may be off.
    allowed: f64,
}

impl Plan {
    /// Share of the derivative that an error must have to be found.
    pub fn resolution(&self) -> f64 {
        // Where the gradient is 0, one of size 1 has to be found.
        let whole = self.steps.iter().flat_map(|(_, d)| d).map(|d| d * d).sum::<f64>().sqrt();
        self.allowed / if self.value == 0.0 { whole } else { self.value.abs() }
    }
}

/// Sum of the outputs times the upstream gradients.
fn weighted(outputs: &Named, dy: &[(usize, Vec<f64>)]) -> f64 {
    dy.iter().map(|(i, g)| outputs[*i].1.to_f64().iter().zip(g).map(|(y, g)| y * g).sum::<f64>()).sum()
}

/// Sum over the gradient's outputs of gradient times step.
fn along(gradients: &Named, steps: &[(String, Vec<f64>)]) -> f64 {
    let of = |name: &str| gradients.iter().find(|(n, _)| n == name).map(|(_, t)| t.to_f64());
    steps.iter().map(|(n, d)| of(n).unwrap_or_default().iter().zip(d).map(|(g, d)| g * d).sum::<f64>()).sum()
}

/// Root of the sum of (factor limit)^2: the bounds are several standard deviations of roundings that have nothing to do with each other.
fn spread(limits: &[f64], factors: &[f64]) -> f64 {
    limits.iter().zip(factors).map(|(l, f)| (l * f).powi(2)).sum()
}

fn prepare(kernel: &'static Kernel, index: usize, seed: u64, step: f64) -> Result<Plan, String> {
    let forward = kernel.forward.and_then(find).ok_or("no forward")?;
    let (gradient, drawn) = draw(kernel, DType::F32, index, seed, true)?;
    let x = drawn.ok_or("no forward case")?.case;
    let slopes = reference(kernel, &gradient)?;
    let mut direction = Draw(seed ^ index as u64);
    let (mut ends, mut steps) = ([x.clone(), x.clone()], vec![]);
    for (output, _) in &slopes {
        let name = target(kernel, output);
        let at =
            x.inputs.iter().position(|(n, _)| n == name).ok_or(format!("{output} belongs to no input"))?;
        let values = x.inputs[at].1.to_f64();
        let mean = values.iter().map(|v| v.abs()).sum::<f64>() / values.len().max(1) as f64;
        let v: Vec<f64> = values
            .iter()
            .map(|x| {
                step * (x.abs() + 0.1 * mean) * (2.0 * (direction.next() >> 11) as f64 * 2f64.powi(-53) - 1.0)
            })
            .collect();
        let shifted = |sign: f64| -> Vec<f64> { values.iter().zip(&v).map(|(x, v)| x + sign * v).collect() };
        for (end, sign) in ends.iter_mut().zip([1.0, -1.0]) {
            end.inputs[at].1 = HostTensor::from_f64(DType::F32, &x.inputs[at].1.shape, &shifted(sign));
        }
        let [up, down] = [0, 1].map(|i: usize| ends[i].inputs[at].1.to_f64());
        steps.push((output.clone(), up.iter().zip(&down).map(|(u, d)| (u - d) / 2.0).collect::<Vec<f64>>()));
    }
    let [up, down] = [reference(forward, &ends[0])?, reference(forward, &ends[1])?];
    let dy = upstream(&gradient, &up);
    let value = along(&slopes, &steps);
    let left_out = ((weighted(&up, &dy) - weighted(&down, &dy)) / 2.0 - value).abs();
    // Of the two ends each has its own rounding, and half of each counts.
    let values = all_limits(forward, &ends[0], &up)?;
    let forward_error: f64 = dy.iter().map(|(i, g)| spread(&values[*i], g) / 2.0).sum();
    let each = all_limits(kernel, &gradient, &slopes)?;
    let gradient_error: f64 = each.iter().zip(&steps).map(|(l, (_, d))| spread(l, d)).sum();
    let allowed = left_out + (forward_error + gradient_error).sqrt();
    if !allowed.is_finite() || !value.is_finite() {
        return Err("not finite".into());
    }
    Ok(Plan { forward, ends, gradient, steps, value, allowed })
}

/// The directional derivative that tells most, of a few cases and steps.
pub fn plan(kernel: &'static Kernel, seed: u64) -> Result<Plan, String> {
    let mut best: Option<Plan> = None;
    let mut why = String::from("nothing was tried");
    for index in 0..TRIES {
        for step in STEPS {
            match prepare(kernel, index, seed, step) {
                Ok(p) if best.as_ref().is_none_or(|b| p.resolution() < b.resolution()) => best = Some(p),
                Ok(_) => {}
                Err(e) => why = e,
            }
        }
        if best.as_ref().is_some_and(|b| b.resolution() < RESOLVED) {
            break;
        }
    }
    best.ok_or(why)
}

/// Holds a gradient of a device against the device's own forward.
pub fn check(gpu: &dyn IGpuBackend, kernel: &'static Kernel, seed: u64) -> Verdict {
    let plan = match plan(kernel, seed) {
        Ok(p) if p.resolution() <= RESOLVED => p,
        Ok(p) => {
            return Verdict::Fail(format!(
                "no direction tells more than {:.1e} of its derivative",
                p.resolution()
            ));
        }
        Err(e) => return Verdict::Fail(e),
    };
    let run = |kernel: &Kernel, case: &Case| twice(gpu, kernel, case, Placement::Aligned);
    let results =
        [run(plan.forward, &plan.ends[0]), run(plan.forward, &plan.ends[1]), run(kernel, &plan.gradient)];
    let [up, down, slopes] = match results {
        [Ok(up), Ok(down), Ok(slopes)] => [up, down, slopes],
        [Err(v), ..] | [_, Err(v), _] | [.., Err(v)] => return v,
    };
    let dy = upstream(&plan.gradient, &up);
    let difference = (weighted(&up, &dy) - weighted(&down, &dy)) / 2.0;
    let derivative = along(&slopes, &plan.steps);
    if (difference - derivative).abs() <= plan.allowed {
        return Verdict::Pass;
    }
    Verdict::Fail(format!(
        "along a direction the forward changes by {difference:e}, its gradient says {derivative:e} (in f64 {:e}, allowed {:e}; {})",
        plan.value,
        plan.allowed,
        serde_json::Value::Object(plan.gradient.args)
    ))
}

//! Diffusion of heat on surfaces.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::implicit::ImplicitStep;
use super::surface::{Operator, Surface};
use crate::core::autograd::apply;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{Graph, HeatOperator};
use crate::layers::graph::cache::{Last, Seen};
use crate::layers::graph::convolutional::check_size;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "DiffusionConv";

/// How a [`DiffusionConv`] lets heat flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffusionMethod {
    /// By the eigenvectors of the Laplacian: D_s = Phi (exp(-lambda t_s) * (Phi^T (mass * x))).
    Spectral,
    /// By a step of the implicit Euler method: (diag(mass) + t_s L) D_s = mass * x, solved by conjugate gradients.
    Implicit,
}

/// Diffusion of Sharp et al. (2022, DiffusionNet): the features of the vertices of a surface after heat has flowed for each of S learned
/// times, then a linear map, act([D_1, .., D_S] W^T + b). Features `[V, in]`, or `[B, V, in]` of B samples on one surface, become `[.., out]`.
/// The layer of the paper has one time for each channel and is followed by a network of its own.
///
/// State: `times [S]`, from 0.01 to 1 at equal ratios (0.1 where S = 1), or `[S, in]` with times of each channel; `weight [out, S in]`, time
/// by time, from U(-sqrt(6 / (S in)), sqrt(6 / (S in))); `bias [out]` = 0. As in the paper's code, a forward pass in training raises times
/// below `min_time` to it; a time that is not finite gives results that are not.
#[derive(Debug)]
pub struct DiffusionConv {
    cx: InitContext,
    channels: [usize; 2],
    scales: usize,
    per_channel: bool,
    eigenvectors: usize,
    method: DiffusionMethod,
    min_time: f64,
    max_iterations: usize,
    act: Activation,
    times: Param,
    weight: Param,
    bias: Option<Param>,
    training: AtomicBool,
    surfaces: Last<Vec<Seen>, Surface>,
}

impl DiffusionConv {
    /// `in_channels -> out_channels` by four times and the 128 smallest eigenvalues, with bias and relu. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_channels: usize, out_channels: usize) -> Result<Self> {
        for (arg, n) in [("in_channels", in_channels), ("out_channels", out_channels)] {
            check_size(OP, arg, n)?;
        }
        let (channels, scales) = ([in_channels, out_channels], 4);
        let (times, weight) = parameters(cx, channels, scales, false)?;
        Ok(DiffusionConv {
            cx: cx.clone(),
            channels,
            scales,
            per_channel: false,
            eigenvectors: 128,
            method: DiffusionMethod::Spectral,
            min_time: 1e-8,
            max_iterations: 256,
            act: Activation::Relu,
            times,
            weight,
            bias: Some(Init::Zeros.param(cx, &[out_channels], in_channels, out_channels)?),
            training: AtomicBool::new(true),
            surfaces: Last::default(),
        })
    }

    setters! {
        /// Sets how heat flows.
        method: DiffusionMethod => method;
        /// Sets the activation.
        activation: Activation => act;
    }

    /// Sets the number of times and fills the parameters anew. Errors: 0.
    pub fn num_time_scales(mut self, scales: usize) -> Result<Self> {
        check_size(OP, "num_time_scales", scales)?;
        self.scales = scales;
        (self.times, self.weight) = parameters(&self.cx, self.channels, scales, self.per_channel)?;
        Ok(self)
    }

    /// Gives each channel times of its own and fills the parameters anew.
    pub fn per_channel_time(mut self) -> Result<Self> {
        self.per_channel = true;
        (self.times, self.weight) = parameters(&self.cx, self.channels, self.scales, true)?;
        Ok(self)
    }

    /// Sets how many of a surface's eigenvalues, from the first on, are used. Errors: 0.
    pub fn num_eigenvectors(mut self, pairs: usize) -> Result<Self> {
        check_size(OP, "num_eigenvectors", pairs)?;
        self.eigenvectors = pairs;
        Ok(self)
    }

    /// Sets the least time. Errors: negative, or not finite.
    pub fn min_time(mut self, least: f64) -> Result<Self> {
        if !(least >= 0.0 && least.is_finite()) {
            return Err(invalid(OP, "min_time", "a finite number of at least 0", format!("{least}")));
        }
        self.min_time = least;
        Ok(self)
    }

    /// Sets the largest number of steps of conjugate gradients. Of V vertices it takes 2 V at most; the error of k steps is below
    /// 2 ((r - 1) / (r + 1))^k with r^2 the condition of the matrix, which grows with time. Errors: 0.
    pub fn max_iterations(mut self, iterations: usize) -> Result<Self> {
        check_size(OP, "max_iterations", iterations)?;
        self.max_iterations = iterations;
        Ok(self)
    }

    /// Without bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The features of the vertices of a surface. Gradients flow to features and parameters; 16-bit data is diffused in f32. Errors:
    /// `Invalid` for a surface without what the method needs, shapes and dtypes that do not fit.
    pub fn forward_on(&self, surface: &Surface, x: &Tensor) -> Result<Tensor> {
        let (vertices, channels) = (surface.num_vertices(), self.channels[0]);
        match *x.shape() {
            [v, c] | [_, v, c] if v == vertices && c == channels => {}
            _ => {
                let expected = format!("shape [{vertices}, {channels}] or [B, {vertices}, {channels}]");
                return Err(invalid(OP, "x", expected, format!("shape {:?}", x.shape())));
            }
        }
        let (t, w, bias) = (self.times()?, self.weight.get(), self.bias.as_ref().map(Param::get));
        match (&surface.operator, self.method) {
            (Operator::Spectral { eigenvalues, eigenvectors }, DiffusionMethod::Spectral) => {
                let (available, k) = (eigenvalues.numel(), self.eigenvectors);
                if k > available {
                    let expected = format!("at most the {available} of the surface");
                    return Err(invalid(OP, "num_eigenvectors", expected, format!("{k}")));
                }
                let operator = HeatOperator::Spectral {
                    eigenvectors: eigenvectors.narrow(1, 0, k)?,
                    eigenvalues: eigenvalues.narrow(0, 0, k)?,
                    mass: Some(surface.mass.clone()),
                };
                x.diffusion_conv(&operator, &t, &w, bias.as_ref())?.activation(self.act)
            }
            (Operator::Laplacian { graph, weight, diagonal }, DiffusionMethod::Implicit) => {
                let dtype = x.dtype().accumulator();
                let column = |t: &Tensor| t.to_dtype(dtype)?.reshape(&[vertices, 1, 1, 1]);
                let step = ImplicitStep {
                    graph: graph.clone(),
                    weight: weight.to_dtype(dtype)?,
                    diagonal: column(diagonal)?,
                    mass: column(&surface.mass)?,
                    iterations: self.max_iterations.min(vertices.saturating_mul(2)),
                };
                let y = self.implicit(step, &x.to_dtype(dtype)?, &t.to_dtype(dtype)?)?.to_dtype(x.dtype())?;
                y.linear(&w, bias.as_ref(), self.act, Precision::Ieee)
            }
            (_, method) => {
                let expected = match method {
                    DiffusionMethod::Spectral => "eigenvalues and eigenvectors, which the method needs",
                    DiffusionMethod::Implicit => "a Laplacian, which the method needs",
                };
                Err(invalid(OP, "surface", expected, "none"))
            }
        }
    }

    /// The times, none below the least.
    fn times(&self) -> Result<Tensor> {
        let t = self.times.get();
        let bounded = t.clamp(Some(self.min_time), None)?;
        if !self.training.load(Ordering::Relaxed) {
            return Ok(bounded);
        }
        t.detach().assign(&bounded.detach())?;
        // The next call overwrites the parameter, not what this one keeps for its gradient.
        t.copy()
    }

    /// `[V, C]` or `[B, V, C]` after each time, `[.., S * C]`.
    fn implicit(&self, step: ImplicitStep, x: &Tensor, t: &Tensor) -> Result<Tensor> {
        let [scales, channels] = [self.scales, self.channels[0]];
        let batch = if x.rank() == 2 { x.unsqueeze(0)? } else { x.clone() };
        let (samples, vertices) = (batch.shape()[0], batch.shape()[1]);
        let heat = batch.transpose(0, 1)?.unsqueeze(1)?.mul(&step.mass)?;
        let heat = heat.expand(&[vertices, scales, samples, channels])?.contiguous()?;
        let tau = t.reshape(&[scales, 1, t.numel() / scales])?;
        let y = apply(step, &[heat, tau])?.remove(0);
        let lead = &x.shape()[..x.rank() - 1];
        y.permute(&[2, 0, 1, 3])?.reshape(&[lead, &[scales * channels]].concat())
    }

    /// The surface of the inputs behind the features.
    fn surface(&self, rest: &[Tensor]) -> Result<Surface> {
        let same = |k: &Vec<Seen>| k.len() == rest.len() && k.iter().zip(rest).all(|(s, t)| s.is(t));
        let make = || {
            let surface = match (rest, self.method) {
                ([mass, values, vectors], DiffusionMethod::Spectral) => {
                    Surface::spectral(mass, values, vectors)?
                }
                ([mass, laplacian], DiffusionMethod::Implicit) => {
                    let (graph, weight) = Graph::from_dense(&laplacian.detach())?;
                    Surface::laplacian(mass, &graph, &weight)?
                }
                (_, method) => {
                    let expected = match method {
                        DiffusionMethod::Spectral => "features, mass, eigenvalues and eigenvectors",
                        DiffusionMethod::Implicit => "features, mass and laplacian",
                    };
                    return Err(invalid(OP, "inputs", expected, format!("{} tensors", rest.len() + 1)));
                }
            };
            Ok((rest.iter().map(Seen::new).collect(), surface))
        };
        self.surfaces.get(same, make)
    }
}

impl Layer for DiffusionConv {
    fn forward(&self, _: &Tensor) -> Result<Tensor> {
        let expected = "features and a surface (`forward_all`, `forward_on`)";
        Err(invalid(OP, "inputs", expected, "features alone"))
    }

    /// `[x, mass, eigenvalues, eigenvectors]`, or with the implicit method `[x, mass, laplacian]`, that `[V, V]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x, rest @ ..] => Ok(vec![self.forward_on(&self.surface(rest)?, x)?]),
            [] => Err(invalid(OP, "inputs", "features and a surface", "none")),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("times", &self.times);
        v.param("weight", &self.weight);
        if let Some(b) = &self.bias {
            v.param("bias", b);
        }
        v.training(&self.training);
    }
}

/// Times and weight.
fn parameters(
    cx: &InitContext,
    [inputs, outputs]: [usize; 2],
    scales: usize,
    per_channel: bool,
) -> Result<(Param, Param)> {
    let Some(columns) = scales.checked_mul(inputs) else {
        let got = format!("{scales} times of {inputs} channels");
        return Err(invalid(OP, "num_time_scales", "a number of columns that fits", got));
    };
    let weight = Init::He.param(cx, &[outputs, columns], columns, outputs)?;
    let exponents = match scales {
        1 => Tensor::full(cx.device(), cx.param_dtype(), &[1], -1.0)?,
        _ => Tensor::linspace(cx.device(), cx.param_dtype(), -2.0, 0.0, scales)?,
    };
    let times = exponents.exp10()?;
    let times = match per_channel {
        true => times.unsqueeze(1)?.expand(&[scales, inputs])?.copy()?,
        false => times,
    };
    Ok((Param::new(times), weight))
}

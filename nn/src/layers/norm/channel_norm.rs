//! Normalization of channels: batch, instance and group norm.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::norm::{BatchNorm, GroupNorm, InstanceNorm};

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_handle};
use crate::functional::{BatchNormStats, RunningStats};
use crate::module::Init;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Scale and shift per channel.
#[derive(Debug)]
struct Affine([Param; 2]);

impl Affine {
    fn new(cx: &InitContext, channels: usize) -> Result<Self> {
        let one = Init::Constant(1.0).param(cx, &[channels], 1, 1)?;
        Ok(Affine([one, Init::Zeros.param(cx, &[channels], 1, 1)?]))
    }

    fn get(a: &Option<Affine>) -> (Option<Tensor>, Option<Tensor>) {
        match a {
            Some(Affine([w, b])) => (Some(w.get()), Some(b.get())),
            None => (None, None),
        }
    }

    fn visit(a: &Option<Affine>, v: &mut Visitor<'_>) {
        if let Some(Affine([w, b])) = a {
            v.param("weight", w);
            v.param("bias", b);
        }
    }
}

/// Running mean and variance, and the number of batches.
#[derive(Debug)]
struct Buffers {
    mean: Param,
    var: Param,
    count: Param,
    /// What is added to the count, on its device.
    one: Mutex<Option<Tensor>>,
}

impl Buffers {
    fn new(cx: &InitContext, channels: usize) -> Result<Self> {
        let (d, dtype) = (cx.device(), cx.param_dtype().accumulator());
        Ok(Buffers {
            mean: Param::buffer(Tensor::zeros(d, dtype, &[channels])?),
            var: Param::buffer(Tensor::ones(d, dtype, &[channels])?),
            count: Param::buffer(Tensor::zeros(d, DType::I64, &[])?),
            one: Mutex::default(),
        })
    }

    fn stats(&self, momentum: Option<f64>) -> RunningStats {
        RunningStats { mean: self.mean.get(), var: self.var.get(), momentum, count: self.count.get() }
    }

    /// Counts a batch that was weighted by a fixed momentum; a cumulative average counts for itself.
    fn counted(&self, momentum: Option<f64>) -> Result<()> {
        if momentum.is_none() {
            return Ok(());
        }
        let count = self.count.get();
        let mut kept = self.one.lock().unwrap_or_else(|p| p.into_inner());
        let one = match kept.take().filter(|one| same_handle(one.device(), count.device())) {
            Some(one) => one,
            None => Tensor::ones(count.device(), DType::I64, &[])?,
        };
        let (c, o) = (count.operand(), kept.insert(one).operand());
        count.device().binary(Binary::Add { alpha: 1.0 }, c.view()?, o.view()?, c.view_mut()?)?;
        count.storage().touch();
        Ok(())
    }

    fn visit(b: &Option<Buffers>, v: &mut Visitor<'_>) {
        if let Some(b) = b {
            v.buffer("running_mean", &b.mean);
            v.buffer("running_var", &b.var);
            v.buffer("num_batches_tracked", &b.count);
        }
    }
}

fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(invalid(op, "eps", "a finite number above 0", format!("{eps}")))
}

fn check_momentum(op: &'static str, momentum: Option<f64>) -> Result<()> {
    match momentum {
        Some(m) if !m.is_finite() => Err(invalid(op, "momentum", "a finite number or none", format!("{m}"))),
        _ => Ok(()),
    }
}

/// Rank from `ranks`, and channels on axis 1.
fn check_input(
    op: &'static str,
    x: &Tensor,
    channels: usize,
    ranks: std::ops::RangeInclusive<usize>,
) -> Result<()> {
    if !ranks.contains(&x.rank()) || x.shape()[1] != channels {
        let want = format!("rank {} to {} with {channels} channels on axis 1", ranks.start(), ranks.end());
        return Err(invalid(op, "x", want, format!("shape {:?}", x.shape())));
    }
    Ok(())
}

/// Normalization of each channel over batch and space, `torch.nn.BatchNorm1d`, `2d` and `3d` (Ioffe and Szegedy, 2015): `[B, C]` or `[B, C,
/// ..]` with up to three spatial axes.
///
/// Training uses the batch's statistics and updates the running ones, evaluation uses the running ones. State: `weight [C]` = 1, `bias [C]`
/// = 0; buffers `running_mean [C]` = 0, `running_var [C]` = 1 (f32; f64 for f64), `num_batches_tracked` (i64).
#[derive(Debug)]
pub struct BatchNormalization {
    channels: usize,
    eps: f64,
    momentum: Option<f64>,
    act: Activation,
    affine: Option<Affine>,
    buffers: Option<Buffers>,
    training: AtomicBool,
}

impl BatchNormalization {
    /// For this number of channels, eps 1e-5, momentum 0.1. Errors: no channels.
    pub fn new(cx: &InitContext, num_features: usize) -> Result<Self> {
        if num_features == 0 {
            return Err(invalid("BatchNormalization", "num_features", "at least 1", "0"));
        }
        Ok(BatchNormalization {
            channels: num_features,
            eps: 1e-5,
            momentum: Some(0.1),
            act: Activation::Identity,
            affine: Some(Affine::new(cx, num_features)?),
            buffers: Some(Buffers::new(cx, num_features)?),
            training: AtomicBool::new(true),
        })
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        check_eps("BatchNormalization", eps)?;
        self.eps = eps;
        Ok(self)
    }

    /// Sets the weight of a new batch in the running statistics; none counts all batches alike. Errors: not a finite number.
    pub fn momentum(mut self, momentum: Option<f64>) -> Result<Self> {
        check_momentum("BatchNormalization", momentum)?;
        self.momentum = momentum;
        Ok(self)
    }

    setters! {
        /// Sets the activation, which runs in the same kernel (default: none).
        activation: Activation => act;
    }

    /// Without weight and bias.
    pub fn no_affine(mut self) -> Self {
        self.affine = None;
        self
    }

    /// Without running statistics: evaluation uses the batch's too.
    pub fn no_running_stats(mut self) -> Self {
        self.buffers = None;
        self
    }

    /// The weight `[C]`, if there is one.
    pub fn weight(&self) -> Option<&Param> {
        self.affine.as_ref().map(|Affine([w, _])| w)
    }

    /// act(norm(x) + residual) in one pass, what a residual block ends with. Errors beside those of `forward`: shapes that differ.
    pub fn add_forward(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "BatchNormalization";
        check_input(OP, x, self.channels, 2..=5)?;
        if let Some(r) = residual.filter(|r| r.shape() != x.shape()) {
            let (want, got) = (format!("shape {:?}", x.shape()), format!("{:?}", r.shape()));
            return Err(invalid(OP, "residual", want, got));
        }
        let (w, b) = Affine::get(&self.affine);
        let p = BatchNorm::new().eps(self.eps).act(self.act);
        let training = self.training.load(Ordering::Relaxed);
        if let (Some(s), false) = (&self.buffers, training) {
            let (mean, var) = (s.mean.get(), s.var.get());
            return x.batch_norm_add(
                residual,
                &p,
                w.as_ref(),
                b.as_ref(),
                BatchNormStats::Given(&mean, &var),
            );
        }
        if x.numel() / self.channels < 2 {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid(
                OP,
                "x",
                "at least 2 values per channel where the batch's statistics count",
                got,
            ));
        }
        match &self.buffers {
            Some(s) => {
                let stats = s.stats(self.momentum);
                let y = x.batch_norm_add(
                    residual,
                    &p,
                    w.as_ref(),
                    b.as_ref(),
                    BatchNormStats::Batch(Some(&stats)),
                )?;
                s.counted(self.momentum)?;
                Ok(y)
            }
            None => x.batch_norm_add(residual, &p, w.as_ref(), b.as_ref(), BatchNormStats::Batch(None)),
        }
    }
}

impl Layer for BatchNormalization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        Affine::visit(&self.affine, v);
        Buffers::visit(&self.buffers, v);
        v.training(&self.training);
    }
}

/// Normalization of each channel of each sample over space, `torch.nn.InstanceNorm1d`, `2d` and `3d` (Ulyanov et al., 2016): `[B, C, ..]`
/// with one to three spatial axes.
///
/// State: none unless asked for: `weight [C]` = 1 and `bias [C]` = 0, buffers as in [`BatchNormalization`] (whose batches nothing counts, as
/// in PyTorch).
#[derive(Debug)]
pub struct InstanceNormalization {
    channels: usize,
    eps: f64,
    momentum: Option<f64>,
    affine: Option<Affine>,
    buffers: Option<Buffers>,
    training: AtomicBool,
}

impl InstanceNormalization {
    /// For this number of channels, eps 1e-5, without parameters and running statistics. Errors: no channels.
    pub fn new(num_features: usize) -> Result<Self> {
        if num_features == 0 {
            return Err(invalid("InstanceNormalization", "num_features", "at least 1", "0"));
        }
        Ok(InstanceNormalization {
            channels: num_features,
            eps: 1e-5,
            momentum: Some(0.1),
            affine: None,
            buffers: None,
            training: AtomicBool::new(true),
        })
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        check_eps("InstanceNormalization", eps)?;
        self.eps = eps;
        Ok(self)
    }

    /// With weight and bias.
    pub fn affine(mut self, cx: &InitContext) -> Result<Self> {
        self.affine = Some(Affine::new(cx, self.channels)?);
        Ok(self)
    }

    /// With running statistics, which evaluation uses; `momentum` (0.1 is usual) is the weight of a new batch, none is 0: unlike those of
    /// [`BatchNormalization`], the statistics then stay as they are, as PyTorch's do. Errors: not a finite number.
    pub fn running_stats(mut self, cx: &InitContext, momentum: Option<f64>) -> Result<Self> {
        check_momentum("InstanceNormalization", momentum)?;
        self.momentum = momentum;
        self.buffers = Some(Buffers::new(cx, self.channels)?);
        Ok(self)
    }
}

impl Layer for InstanceNormalization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        const OP: &str = "InstanceNormalization";
        check_input(OP, x, self.channels, 3..=5)?;
        let (w, b) = Affine::get(&self.affine);
        let training = self.training.load(Ordering::Relaxed);
        if let (Some(s), false) = (&self.buffers, training) {
            let (p, mean, var) = (BatchNorm::new().eps(self.eps), s.mean.get(), s.var.get());
            return x.batch_norm(&p, w.as_ref(), b.as_ref(), BatchNormStats::Given(&mean, &var));
        }
        if x.shape()[2..].iter().product::<usize>() < 2 {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid(OP, "x", "at least 2 values per instance", got));
        }
        let p = InstanceNorm::new().eps(self.eps);
        match &self.buffers {
            Some(s) => {
                // Unlike batch norm this one does not count its batches in PyTorch, so that there is no cumulative average.
                let stats = s.stats(Some(self.momentum.unwrap_or(0.0)));
                x.instance_norm(&p, w.as_ref(), b.as_ref(), Some(&stats))
            }
            None => x.instance_norm(&p, w.as_ref(), b.as_ref(), None),
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        Affine::visit(&self.affine, v);
        Buffers::visit(&self.buffers, v);
        v.training(&self.training);
    }
}

/// Normalization of groups of channels of each sample, `torch.nn.GroupNorm` (Wu and He, 2018): `[B, C, ..]`.
///
/// State: `weight [C]` = 1, `bias [C]` = 0.
#[derive(Debug)]
pub struct GroupNormalization {
    groups: usize,
    channels: usize,
    eps: f64,
    affine: Option<Affine>,
}

impl GroupNormalization {
    /// `num_groups` groups of `num_channels` channels, eps 1e-5. Errors: groups that do not divide the channels.
    pub fn new(cx: &InitContext, num_groups: usize, num_channels: usize) -> Result<Self> {
        if num_groups == 0 || num_channels == 0 || !num_channels.is_multiple_of(num_groups) {
            let got = format!("{num_groups} num_groups of {num_channels} channels");
            return Err(invalid("GroupNormalization", "num_groups", "a divisor of the channels", got));
        }
        Ok(GroupNormalization {
            groups: num_groups,
            channels: num_channels,
            eps: 1e-5,
            affine: Some(Affine::new(cx, num_channels)?),
        })
    }

    /// Sets eps. Errors: not a finite number above 0.
    pub fn eps(mut self, eps: f64) -> Result<Self> {
        check_eps("GroupNormalization", eps)?;
        self.eps = eps;
        Ok(self)
    }

    /// Without weight and bias.
    pub fn no_affine(mut self) -> Self {
        self.affine = None;
        self
    }
}

impl Layer for GroupNormalization {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_input("GroupNormalization", x, self.channels, 2..=8)?;
        let (w, b) = Affine::get(&self.affine);
        x.group_norm(&GroupNorm::new(self.groups).eps(self.eps), w.as_ref(), b.as_ref())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        Affine::visit(&self.affine, v);
    }
}

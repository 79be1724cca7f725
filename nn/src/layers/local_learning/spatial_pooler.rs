//! Spatial pooling of hierarchical temporal memory.

use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::Precision;

use super::{
    STEP_FUNCTION, Seen, check_binary, check_rate, check_share, check_size, check_vectors, constant_of, rows,
};
use crate::core::autograd::{BackwardCtx, Saved, no_grad};
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Init, InitContext, Layer, LocalLearning, Param, Visitor};

const OP: &str = "SpatialPooler";

/// Raises of a column until it is connected: the tenth reaches the threshold from 0, but for rounding.
const RAISES: usize = 11;

/// Options of [`SpatialPooler`], under NuPIC's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpatialPoolerOptions {
    /// Share of the columns that become active, at most 0.5.
    pub local_area_density: f64,
    /// Share of the inputs that a column can connect to.
    pub potential_pct: f64,
    /// Permanence from which a synapse is connected, between 0 and 1.
    pub syn_perm_connected: f64,
    /// Growth of the permanence of an active column's synapse with an input that is on.
    pub syn_perm_active_inc: f64,
    /// Loss of the permanence of an active column's synapse with an input that is off.
    pub syn_perm_inactive_dec: f64,
    /// Least overlap of an active column, and number of synapses that learning keeps connected.
    pub stimulus_threshold: usize,
    /// Strength of the preference for columns that are seldom active; 0 for none.
    pub boost_strength: f64,
    /// Iterations over which duty cycles are averaged.
    pub duty_cycle_period: usize,
    /// Least duty cycle of overlap, as a share of the largest one.
    pub min_pct_overlap_duty_cycle: f64,
    /// Iterations after which the least duty cycle is determined anew.
    pub update_period: usize,
    /// Share of the potential synapses that are connected at first.
    pub init_connected_pct: f64,
    /// Passes gradients straight through the active columns to the inputs that they are connected with, in place of 0.
    pub straight_through: bool,
}

impl Default for SpatialPoolerOptions {
    fn default() -> Self {
        SpatialPoolerOptions {
            local_area_density: 0.02,
            potential_pct: 0.5,
            syn_perm_connected: 0.1,
            syn_perm_active_inc: 0.05,
            syn_perm_inactive_dec: 0.008,
            stimulus_threshold: 0,
            boost_strength: 0.0,
            duty_cycle_period: 1000,
            min_pct_overlap_duty_cycle: 0.001,
            update_period: 50,
            init_connected_pct: 0.5,
            straight_through: false,
        }
    }
}

impl SpatialPoolerOptions {
    fn check(&self) -> Result<()> {
        if !(self.local_area_density > 0.0 && self.local_area_density <= 0.5) {
            let got = format!("{}", self.local_area_density);
            return Err(invalid(OP, "local_area_density", "a number above 0 and at most 0.5", got));
        }
        if !(self.syn_perm_connected > 0.0 && self.syn_perm_connected < 1.0) {
            let got = format!("{}", self.syn_perm_connected);
            return Err(invalid(OP, "syn_perm_connected", "a number between 0 and 1", got));
        }
        check_share(OP, "potential_pct", self.potential_pct)?;
        check_share(OP, "syn_perm_active_inc", self.syn_perm_active_inc)?;
        check_share(OP, "syn_perm_inactive_dec", self.syn_perm_inactive_dec)?;
        check_share(OP, "min_pct_overlap_duty_cycle", self.min_pct_overlap_duty_cycle)?;
        check_share(OP, "init_connected_pct", self.init_connected_pct)?;
        check_rate(OP, "boost_strength", self.boost_strength)?;
        check_size(OP, "duty_cycle_period", self.duty_cycle_period)?;
        check_size(OP, "update_period", self.update_period)
    }

    /// Active columns of `columns`. Errors: there is none.
    fn winners(&self, columns: usize) -> Result<usize> {
        // 0.29 * 100 is below 29.
        let k = (self.local_area_density * columns as f64 + 1e-9).floor() as usize;
        match k {
            0 => {
                let expected = format!("a share that makes at least one of {columns} columns active");
                Err(invalid(OP, "local_area_density", expected, format!("{}", self.local_area_density)))
            }
            k => Ok(k),
        }
    }

    /// Inputs of `inputs` that a column can connect to. Errors: there is none, or fewer than learning keeps connected.
    fn pool(&self, inputs: usize) -> Result<usize> {
        let pool = (self.potential_pct * inputs as f64).round() as usize;
        if pool == 0 {
            let expected = format!("a share that holds at least one of {inputs} inputs");
            return Err(invalid(OP, "potential_pct", expected, format!("{}", self.potential_pct)));
        }
        if self.stimulus_threshold > pool {
            let expected = format!("at most the {pool} inputs that a column can connect to");
            return Err(invalid(OP, "stimulus_threshold", expected, format!("{}", self.stimulus_threshold)));
        }
        Ok(pool)
    }
}

/// Spatial pooler of hierarchical temporal memory with global inhibition (Cui, Ahmad and Hawkins, 2017), NuPIC's `SpatialPooler`: binary
/// inputs `[I]` or `[B, I]` become sparse sets of active columns, `[C]` or `[B, C]` of 0 and 1. A column's overlap is the number of its
/// connected inputs that are on; the floor(density C) columns with the largest overlap, boosted in training, are active, of equal ones the
/// later. Inputs other than 0 and 1 are reported by the next call that waits for the device.
///
/// [The rule](Self::learn_from) takes the rows of a batch in their order; the forward before it sees all of them with the columns as they were
/// before the first. The gradient of the input is 0 unless the options say otherwise.
///
/// Buffers: `potential [C, I]` (u8, each column's random inputs), `permanence [C, I]`, `boost [C]` = 1, `active_duty_cycle`,
/// `overlap_duty_cycle` and `min_overlap_duty_cycle [C]` = 0 (f32), `iteration` = 0 (i64). A potential synapse is connected at first with
/// probability `init_connected_pct` and a permanence from U(connected, 1), otherwise from U(0, connected).
#[derive(Debug)]
pub struct SpatialPooler {
    inputs: usize,
    columns: usize,
    winners: usize,
    options: SpatialPoolerOptions,
    potential: Param,
    permanence: Param,
    boost: Param,
    active_duty: Param,
    overlap_duty: Param,
    min_overlap_duty: Param,
    iteration: Param,
    training: AtomicBool,
    seen: Seen<Tensor>,
}

impl SpatialPooler {
    /// `input_size` bits to `column_count` columns. Errors: a size of 0; options out of range; no active column, no potential input.
    pub fn new(
        cx: &InitContext,
        input_size: usize,
        column_count: usize,
        options: SpatialPoolerOptions,
    ) -> Result<Self> {
        check_size(OP, "input_size", input_size)?;
        check_size(OP, "column_count", column_count)?;
        options.check()?;
        let winners = options.winners(column_count)?;
        let pool = options.pool(input_size)?;
        let (d, shape) = (cx.device(), [column_count, input_size]);
        let cx = cx.clone().dtype(DType::F32);
        let uniform = || Init::Uniform { lo: 0.0, hi: 1.0 }.tensor(&cx, &shape, 1, 1);
        let (_, chosen) = uniform()?.topk(pool, -1, true)?;
        let ones = Tensor::ones(d, DType::U8, chosen.shape())?;
        let potential = Tensor::zeros(d, DType::U8, &shape)?.scatter(-1, &chosen, &ones)?;
        let (connected, u) = (options.syn_perm_connected, uniform()?);
        let above = u.mul_scalar(1.0 - connected)?.add_scalar(connected)?;
        let permanence =
            above.where_(&uniform()?.lt_scalar(options.init_connected_pct)?, &u.mul_scalar(connected)?)?;
        let permanence = trimmed(&permanence.mul(&potential.to_dtype(DType::F32)?)?, &options)?;
        let column = |value: f64| {
            Ok::<_, NnError>(Param::buffer(Tensor::full(d, DType::F32, &[column_count], value)?))
        };
        Ok(SpatialPooler {
            inputs: input_size,
            columns: column_count,
            winners,
            options,
            potential: Param::buffer(potential),
            permanence: Param::buffer(permanence),
            boost: column(1.0)?,
            active_duty: column(0.0)?,
            overlap_duty: column(0.0)?,
            min_overlap_duty: column(0.0)?,
            iteration: Param::buffer(Tensor::zeros(d, DType::I64, &[])?),
            training: AtomicBool::new(true),
            seen: Seen::default(),
        })
    }

    /// Which synapses are connected, `[C, I]` of 0 and 1.
    fn connected(&self) -> Result<Tensor> {
        self.permanence.get().ge_scalar(self.options.syn_perm_connected)?.to_dtype(DType::F32)
    }

    /// The columns with the largest scores of each row `[rows, C]`, as 0 and 1.
    fn inhibit(&self, scores: &Tensor) -> Result<Tensor> {
        // Of equal scores the first is chosen, and so from the end.
        let (_, best) = scores.flip(&[-1])?.topk(self.winners, -1, true)?;
        let ones = Tensor::ones(scores.device(), DType::F32, best.shape())?;
        let active = scores.zeros_like()?.scatter(-1, &best, &ones)?.flip(&[-1])?;
        match self.options.stimulus_threshold {
            0 => Ok(active),
            least => active.mul(&scores.ge_scalar(least as f64)?.to_dtype(DType::F32)?),
        }
    }

    /// One step of the rule for each input of `[I]` or `[B, I]`. The permanences of active columns grow by `syn_perm_active_inc` where an
    /// input is on and shrink by `syn_perm_inactive_dec` where it is off; columns left with too few connected synapses, and those whose duty
    /// cycle of overlap is too small, grow by a tenth of `syn_perm_connected`. Then the duty cycles, the boosts and, in every
    /// `update_period`-th iteration, the least duty cycles follow. Errors: another number of inputs.
    pub fn learn_from(&self, x: &Tensor) -> Result<()> {
        check_vectors(OP, "x", x, self.inputs)?;
        check_binary(OP, x)?;
        no_grad(|| self.adapt_all(x))
    }

    fn adapt_all(&self, x: &Tensor) -> Result<()> {
        let all = rows(&x.detach().to_dtype(DType::F32)?, self.inputs)?;
        (0..all.shape()[0]).try_for_each(|i| self.adapt(&all.narrow(0, i, 1)?))
    }

    /// Learns from one input `[1, I]`.
    fn adapt(&self, x: &Tensor) -> Result<()> {
        let o = &self.options;
        let overlap = overlap(x, &self.connected()?)?;
        let active = self.inhibit(&overlap.mul(&self.boost.get())?)?;
        let (overlap, active) = (overlap.select(0, 0)?, active.select(0, 0)?);

        let potential = self.potential.get().to_dtype(DType::F32)?;
        let (inc, dec) = (o.syn_perm_active_inc, o.syn_perm_inactive_dec);
        let change = x.mul_scalar(inc + dec)?.sub_scalar(dec)?;
        let winners = active.unsqueeze(1)?;
        let grown = self.permanence.get().add(&winners.mul(&change)?.mul(&potential)?)?;
        let raised = self.raised(grown, &winners, &potential)?;

        let iteration = self.iteration.get();
        iteration.assign(&iteration.add(&iteration.ones_like()?)?)?;
        let period = iteration.to_dtype(DType::F32)?.clamp(None, Some(o.duty_cycle_period as f64))?;
        let overlaps = overlap.gt_scalar(0.0)?.to_dtype(DType::F32)?;
        let overlap_duty = averaged(&self.overlap_duty, &overlaps, &period)?;
        let active_duty = averaged(&self.active_duty, &active, &period)?;

        let least = self.min_overlap_duty.get();
        let weak = overlap_duty.lt(&least)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let raise = o.syn_perm_connected / 10.0;
        let permanence = trimmed(&trimmed(&raised, o)?.addcmul(&weak, &potential, raise)?, o)?;
        self.permanence.get().assign(&permanence)?;

        let boost = active_duty.rsub_scalar(o.local_area_density)?.mul_scalar(o.boost_strength)?.exp()?;
        self.boost.get().assign(&boost)?;
        let every = iteration.full_like(o.update_period as f64)?;
        let due = iteration.div_floor(&every)?.mul(&every)?.eq(&iteration)?;
        let largest = overlap_duty.max()?.mul_scalar(o.min_pct_overlap_duty_cycle)?;
        least.assign(&largest.where_(&due, &least)?)
    }

    /// Raises the permanences of active columns until enough of their synapses are connected.
    fn raised(&self, permanence: Tensor, winners: &Tensor, potential: &Tensor) -> Result<Tensor> {
        let o = &self.options;
        if o.stimulus_threshold == 0 {
            return Ok(permanence);
        }
        let mut permanence = permanence.clamp(Some(0.0), Some(1.0))?;
        for _ in 0..RAISES {
            let connected = permanence.ge_scalar(o.syn_perm_connected)?.to_dtype(DType::F32)?;
            let short = connected.sum_axes(&[-1], true)?.lt_scalar(o.stimulus_threshold as f64)?;
            let short = short.to_dtype(DType::F32)?.mul(winners)?;
            permanence = permanence.addcmul(&short, potential, o.syn_perm_connected / 10.0)?;
        }
        Ok(permanence)
    }
}

/// Connected inputs that are on, `[rows, I]` and `[C, I] -> [rows, C]`.
fn overlap(x: &Tensor, connected: &Tensor) -> Result<Tensor> {
    x.linear(connected, None, Activation::Identity, Precision::Ieee)
}

/// Permanences without the smallest, in [0, 1].
fn trimmed(permanence: &Tensor, o: &SpatialPoolerOptions) -> Result<Tensor> {
    let small = permanence.lt_scalar(o.syn_perm_active_inc / 2.0)?;
    permanence.masked_fill(&small, 0.0)?.clamp(Some(0.0), Some(1.0))
}

/// Moves a duty cycle by one iteration: (duty (period - 1) + now) / period.
fn averaged(duty: &Param, now: &Tensor, period: &Tensor) -> Result<Tensor> {
    let duty = duty.get();
    let next = duty.mul(&period.sub_scalar(1.0)?)?.add(now)?.div(period)?;
    duty.assign(&next)?;
    Ok(next)
}

impl Layer for SpatialPooler {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_vectors(OP, "x", x, self.inputs)?;
        check_binary(OP, x)?;
        let training = self.training.load(Ordering::Relaxed);
        if training {
            self.seen.put(x.detach());
        }
        let shape = [&x.shape()[..x.rank() - 1], &[self.columns]].concat();
        let (y, connected) = no_grad(|| {
            let connected = self.connected()?;
            let overlap = overlap(&rows(&x.detach().to_dtype(DType::F32)?, self.inputs)?, &connected)?;
            let scores = if training { overlap.mul(&self.boost.get())? } else { overlap };
            Ok::<_, NnError>((self.inhibit(&scores)?.reshape(&shape)?.to_dtype(x.dtype())?, connected))
        })?;
        if !self.options.straight_through {
            return Ok(constant_of("spatial_pooler", y, x));
        }
        let active = y.clone();
        Ok(y.record("spatial_pooler", &[x], || {
            let (active, connected) = (Saved::new(&active), Saved::new(&connected));
            move |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                let dx = dy.mul(active.get(cx)?)?.matmul(&connected.get(cx)?.to_dtype(dy.dtype())?)?;
                cx.give(0, dx)
            }
        }))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("potential", &self.potential);
        v.buffer("permanence", &self.permanence);
        v.buffer("boost", &self.boost);
        v.buffer("active_duty_cycle", &self.active_duty);
        v.buffer("overlap_duty_cycle", &self.overlap_duty);
        v.buffer("min_overlap_duty_cycle", &self.min_overlap_duty);
        v.buffer("iteration", &self.iteration);
        v.training(&self.training);
    }

    fn no_gradient(&self) -> Option<String> {
        (!self.options.straight_through).then(|| STEP_FUNCTION.into())
    }

    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        Some(self)
    }
}

impl LocalLearning for SpatialPooler {
    fn learn(&self) -> Result<()> {
        match self.seen.take() {
            Some(x) => self.adapt_all(&x),
            None => Ok(()),
        }
    }
}

//! Sparse mixtures of experts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::moe::MoeRouter;

use super::mlp::{ExpertMlp, Mlps};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::MoeRouting;
use crate::layers::attention::scores::check_width;
use crate::layers::linear::dense::Dense;
use crate::layers::regularization::noise::RandomStream;
use crate::module::{Init, InitContext, Layer, Visitor, auxiliary, hooks};

const OP: &str = "MixtureOfExperts";

#[derive(Debug)]
enum Experts {
    /// Layers of any kind, with their names.
    List(Vec<(String, Box<dyn Layer>)>),
    Mlps(Mlps),
}

impl Experts {
    fn len(&self) -> usize {
        match self {
            Experts::List(all) => all.len(),
            Experts::Mlps(m) => m.count,
        }
    }
}

/// Noise of the router: its scale is a function of the input.
#[derive(Debug)]
struct Noise {
    scale: Dense,
    rng: RandomStream,
}

/// Sparse mixture of experts of Shazeer et al. (2017): a router scores the experts for each token, the k best of them see it, and their
/// results are added with the softmax over the k scores as weights. `[.., in] -> [.., out]`; leading axes are tokens.
///
/// Equal networks of one or two linear layers ([`ExpertMlp`]) run as one product over tokens sorted by expert, each on its own tokens.
/// Layers of any kind ([`new`](MixtureOfExperts::new)) run on all tokens, or with a [capacity](MixtureOfExperts::capacity_factor) on as
/// many as that allows, since only the device knows how many tokens go where and nothing waits for it. NaN in the scores goes into the
/// result, where [`TrainOptions::anomaly`](crate::trainer::TrainOptions) finds it.
///
/// In training, terms are [added to the loss](crate::auxiliary) where their weights are set: E sum_e f_e P_e for the balance of the load
/// (Fedus et al., 2021), f_e the share of assignments that expert e gets and P_e its mean probability, and the mean of
/// logsumexp(scores)^2 (Zoph et al., 2022).
///
/// State: `router.weight [E, in]` from U(-1/sqrt(in), 1/sqrt(in)); with noise `noise.weight [E, in]` = 0; `experts.0.*` and so on, or `w1
/// [E, hidden, in]`, `b1 [E, hidden]`, `w2 [E, out, hidden]`, `b2 [E, out]`, from U(-1/sqrt(n), 1/sqrt(n)) for n inputs.
#[derive(Debug)]
pub struct MixtureOfExperts {
    cx: InitContext,
    inputs: usize,
    experts: Experts,
    router: Box<dyn Layer>,
    noise: Option<Noise>,
    /// 0: all.
    top_k: usize,
    capacity: Option<f64>,
    load_balance: f64,
    z_loss: f64,
    act: Activation,
    training: AtomicBool,
    counts: Mutex<Option<Tensor>>,
}

impl MixtureOfExperts {
    /// These experts, all of them for each token, with a linear router without bias. Errors: no experts; 0 features.
    pub fn new(cx: &InitContext, in_features: usize, experts: Vec<Box<dyn Layer>>) -> Result<Self> {
        let named = experts.into_iter().enumerate().map(|(i, e)| (format!("experts.{i}"), e)).collect();
        Self::of(cx, in_features, Experts::List(named))
    }

    /// As [`new`](MixtureOfExperts::new) with equal networks. Errors: a size of 0.
    pub fn mlp(cx: &InitContext, in_features: usize, experts: &ExpertMlp) -> Result<Self> {
        if in_features == 0 {
            return Err(invalid(OP, "in_features", "at least 1", "0"));
        }
        Self::of(cx, in_features, Experts::Mlps(Mlps::new(OP, cx, in_features, experts)?))
    }

    fn of(cx: &InitContext, inputs: usize, experts: Experts) -> Result<Self> {
        if experts.len() == 0 {
            return Err(invalid(OP, "experts", "at least one expert", "none"));
        }
        Ok(MixtureOfExperts {
            cx: cx.clone(),
            inputs,
            router: Box::new(Dense::new(cx, inputs, experts.len())?.no_bias()),
            experts,
            noise: None,
            top_k: 0,
            capacity: None,
            load_balance: 0.0,
            z_loss: 0.0,
            act: Activation::Identity,
            training: AtomicBool::new(true),
            counts: Mutex::default(),
        })
    }

    setters! {
        /// Sets the activation of the result.
        activation: Activation => act;
    }

    /// Sets what scores the experts, `[tokens, in] -> [tokens, E]`.
    pub fn router(mut self, router: impl Layer + 'static) -> Self {
        self.router = Box::new(router);
        self
    }

    /// Sets how many experts see a token; 0 stands for all. Errors: more than there are.
    pub fn top_k(mut self, k: usize) -> Result<Self> {
        let experts = self.experts.len();
        if k > experts {
            return Err(invalid(OP, "top_k", format!("0 to {experts}, the experts"), format!("{k}")));
        }
        self.top_k = k;
        Ok(self)
    }

    /// In training adds to each score normal noise times softplus(W_n x), with a trained W_n.
    pub fn noise(mut self) -> Result<Self> {
        let scale = Dense::new(&self.cx, self.inputs, self.experts.len())?;
        let scale = scale.no_bias().init(Init::Zeros, Init::Zeros)?;
        self.noise = Some(Noise { scale, rng: RandomStream::new(&self.cx) });
        Ok(self)
    }

    /// Limits an expert to ceil(factor * tokens * k / E) tokens. Those that come later, in the order of the tokens, do without it. Errors:
    /// not a finite number above 0.
    pub fn capacity_factor(mut self, factor: f64) -> Result<Self> {
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(invalid(OP, "capacity_factor", "a finite number above 0", format!("{factor}")));
        }
        self.capacity = Some(factor);
        Ok(self)
    }

    /// Sets the weight of the balance of the load in the loss (default 0). Errors: negative or infinite.
    pub fn load_balance_weight(mut self, weight: f64) -> Result<Self> {
        self.load_balance = check_weight("load_balance_weight", weight)?;
        Ok(self)
    }

    /// Sets the weight of logsumexp(scores)^2 in the loss (default 0). Errors: negative or infinite.
    pub fn z_loss_weight(mut self, weight: f64) -> Result<Self> {
        self.z_loss = check_weight("z_loss_weight", weight)?;
        Ok(self)
    }

    /// How many assignments each expert had in the last forward, before its capacity: i32 `[E]` on the device.
    pub fn expert_counts(&self) -> Option<Tensor> {
        self.counts.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Experts that see a token.
    fn choices(&self) -> usize {
        if self.top_k == 0 { self.experts.len() } else { self.top_k }
    }

    /// Tokens that an expert takes, where there is a limit.
    fn slots(&self, tokens: usize) -> Option<usize> {
        let share = tokens as f64 * self.choices() as f64 / self.experts.len() as f64;
        self.capacity.map(|factor| ((factor * share).ceil() as usize).min(tokens))
    }

    /// Scores `[T, E]` of tokens `[T, in]`.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let logits = hooks::layer("router", &*self.router, x)?;
        let want = [x.shape()[0], self.experts.len()];
        if logits.shape() != want {
            let got = format!("{:?}", logits.shape());
            return Err(invalid(OP, "router", format!("scores of shape {want:?}"), got));
        }
        match &self.noise {
            Some(noise) if self.training.load(Ordering::Relaxed) => {
                let scale = hooks::layer("noise", &noise.scale, x)?.softplus()?;
                // A normal number takes up to two words of the generator.
                logits.add(&logits.randn_like(noise.rng.take(2 * logits.numel()))?.mul(&scale)?)
            }
            _ => Ok(logits),
        }
    }

    /// Adds the terms of the loss.
    fn add_terms(&self, logits: &Tensor, routing: &MoeRouting) -> Result<()> {
        let &[tokens, experts] = logits.shape() else { return Ok(()) };
        if tokens == 0 {
            return Ok(());
        }
        let dtype = logits.dtype().accumulator();
        if self.load_balance > 0.0 {
            auxiliary::add(|| {
                let mean = logits.to_dtype(dtype)?.softmax(-1)?.mean_axes(&[0], false)?;
                let scale = self.load_balance * experts as f64 / routing.perm.numel() as f64;
                routing.counts.to_dtype(dtype)?.mul(&mean)?.sum()?.mul_scalar(scale)
            })?;
        }
        if self.z_loss > 0.0 {
            auxiliary::add(|| {
                let z = logits.to_dtype(dtype)?.logsumexp(&[-1], false)?;
                z.square()?.mean()?.mul_scalar(self.z_loss)
            })?;
        }
        Ok(())
    }

    /// Equal experts on the tokens that each of them got.
    fn grouped(&self, experts: &Mlps, x: &Tensor, mut routing: MoeRouting) -> Result<Tensor> {
        if let Some(slots) = self.slots(x.shape()[0]) {
            // What stands beyond the slots of its expert counts 0.
            let rows = routing.perm.numel();
            let of = routing.ids.reshape(&[rows])?.index_select(0, &routing.perm)?;
            let place = Tensor::arange(x.device(), DType::I32, 0.0, 1.0, rows)?
                .sub(&routing.offsets.index_select(0, &of)?)?;
            let kept = place.lt_scalar(slots as f64)?.to_dtype(x.dtype())?;
            let kept = kept.zeros_like()?.index_copy(0, &routing.perm, &kept)?;
            routing.weights = routing.weights.mul(&kept.reshape(routing.weights.shape())?)?;
        }
        experts.apply(&x.moe_permute(&routing)?, &routing)?.moe_unpermute(&routing)
    }

    /// Layers of any kind on all tokens, with weights of 0 where they were not chosen.
    fn on_all(
        &self,
        experts: &[(String, Box<dyn Layer>)],
        x: &Tensor,
        routing: &MoeRouting,
    ) -> Result<Tensor> {
        let gates = Tensor::zeros(x.device(), x.dtype(), &[x.shape()[0], experts.len()])?;
        let gates = gates.scatter(1, &routing.ids, &routing.weights)?;
        let results = run(experts, |_| Ok(x.clone()))?;
        let mut sum: Option<Tensor> = None;
        for (e, y) in results.iter().enumerate() {
            let part = y.mul(&gates.narrow(1, e, 1)?)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        sum.ok_or_else(|| invalid(OP, "experts", "at least one expert", "none"))
    }

    /// Layers of any kind on `slots` tokens each. Slots that stay empty hold a token that is weighted with 0.
    fn in_slots(
        &self,
        experts: &[(String, Box<dyn Layer>)],
        x: &Tensor,
        routing: &MoeRouting,
        slots: usize,
    ) -> Result<Tensor> {
        let (all, device) = (experts.len().saturating_mul(slots), x.device());
        let slot = Tensor::arange(device, DType::I32, 0.0, 1.0, slots)?;
        let filled = slot.lt(&routing.counts.unsqueeze(1)?)?;
        let at = routing.offsets.narrow(0, 0, experts.len())?.unsqueeze(1)?.add(&slot)?;
        let at = at.masked_fill(&filled.logical_not()?, 0.0)?.reshape(&[all])?;
        let assignment = routing.perm.index_select(0, &at)?;
        let choices = Tensor::full(device, DType::I32, &[], self.choices() as f64)?;
        let token = assignment.div_floor(&choices)?;
        let rows = x.index_select(0, &token)?;
        let results = run(experts, |e| rows.narrow(0, e * slots, slots))?;
        let y = Tensor::concat(0, &results.iter().collect::<Vec<_>>())?;
        let gates = routing.weights.reshape(&[routing.perm.numel()])?.index_select(0, &assignment)?;
        let gates = gates.mul(&filled.reshape(&[all])?.to_dtype(x.dtype())?)?;
        let sum = Tensor::zeros(device, x.dtype(), &[x.shape()[0], y.shape()[1]])?;
        sum.index_add(0, &token, &y.mul(&gates.unsqueeze(1)?)?)
    }
}

fn check_weight(arg: &'static str, weight: f64) -> Result<f64> {
    if weight >= 0.0 && weight.is_finite() {
        return Ok(weight);
    }
    Err(invalid(OP, arg, "a finite number of at least 0", format!("{weight}")))
}

/// The results of all experts. Errors: those of the experts; results that are not `[rows, out]` of one width.
fn run(experts: &[(String, Box<dyn Layer>)], rows: impl Fn(usize) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let mut results: Vec<Tensor> = vec![];
    for (e, (name, expert)) in experts.iter().enumerate() {
        let x = rows(e)?;
        let y = hooks::layer(name, &**expert, &x)?;
        let like_first = results.first().is_none_or(|first| first.shape() == y.shape());
        if y.rank() != 2 || y.shape()[0] != x.shape()[0] || !like_first {
            let want = format!("results of shape [{}, out] of one width", x.shape()[0]);
            return Err(invalid(OP, "experts", want, format!("{:?} of `{name}`", y.shape())));
        }
        results.push(y);
    }
    Ok(results)
}

impl Layer for MixtureOfExperts {
    /// Errors beside those of router and experts: another width; scores that are not `[tokens, E]`; results of different widths.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        check_width(OP, "x", x, self.inputs)?;
        let lead = &x.shape()[..x.rank() - 1];
        let rows = x.reshape(&[x.numel() / self.inputs, self.inputs])?;
        let logits = self.logits(&rows)?;
        let routing = logits.moe_router(&MoeRouter::new(), self.choices())?;
        self.add_terms(&logits, &routing)?;
        *self.counts.lock().unwrap_or_else(|p| p.into_inner()) = Some(routing.counts.clone());
        let y = match (&self.experts, self.slots(rows.shape()[0])) {
            (Experts::Mlps(experts), _) => self.grouped(experts, &rows, routing)?,
            (Experts::List(experts), None) => self.on_all(experts, &rows, &routing)?,
            (Experts::List(experts), Some(slots)) => self.in_slots(experts, &rows, &routing, slots)?,
        };
        y.reshape(&[lead, &y.shape()[1..]].concat())?.activation(self.act)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("router", &*self.router);
        if let Some(noise) = &self.noise {
            v.child("noise", &noise.scale);
            noise.rng.visit(v);
        }
        match &self.experts {
            Experts::List(all) => all.iter().for_each(|(name, e)| v.child(name, &**e)),
            Experts::Mlps(mlps) => mlps.visit(v),
        }
        v.training(&self.training);
    }
}

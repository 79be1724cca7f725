//! Losses of several tensors, which a network gives as parts of its output, and losses that see an output through other networks.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;
use trefoil::ops::reduce::Reduce;

use super::kind::{Row, row};
use super::loss::{Made, Site, custom, fixed, vector};
use crate::core::error::{Result, invalid};
use crate::core::options::{FINITE, NOT_NEGATIVE, POSITIVE, SHARE, join, read};
use crate::core::tensor::Tensor;
use crate::io::state_file::{LoadOptions, StateFile};
use crate::module::{InitContext, LayerExt};
use crate::network::{Network, NetworkConfig};
use crate::train::losses::*;

/// A loss with the way in which output and target become its arguments.
#[derive(Clone)]
struct Adapted<L> {
    loss: L,
    run: fn(&L, &Tensor, &Tensor) -> Result<Tensor>,
}

impl<L: fmt::Debug> fmt::Debug for Adapted<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.loss.fmt(f)
    }
}

impl<L: fmt::Debug + Send + Sync> Criterion for Adapted<L> {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        (self.run)(&self.loss, output, target)
    }
    fn reduction(&self) -> Reduction {
        Reduction::Mean
    }
}

fn adapted<L: fmt::Debug + Clone + Send + Sync + 'static>(
    loss: L,
    run: fn(&L, &Tensor, &Tensor) -> Result<Tensor>,
) -> Made {
    fixed(Adapted { loss, run })
}

/// The K tensors `[N, ..]` of an output `[N, K, ..]`.
fn parts<const K: usize>(output: &Tensor) -> Result<[Tensor; K]> {
    if output.rank() < 2 || output.shape()[1] != K {
        let expected = format!("shape [N, {K}, ..] for a loss of {K} tensors");
        return Err(invalid("loss", "output", expected, format!("{:?}", output.shape())));
    }
    let all = (0..K).map(|i| output.select(1, i)?.contiguous()).collect::<Result<Vec<_>>>()?;
    all.try_into().map_err(|_| invalid("loss", "output", "as many parts as the loss has", "others"))
}

/// `[N]` of `[N]` or `[N, 1]`, in the dtype of `like` unless these are ids.
fn column(t: &Tensor, like: &Tensor) -> Result<Tensor> {
    let t = if t.rank() == 2 && t.shape()[1] == 1 { t.squeeze(1)? } else { t.clone() };
    if t.dtype() == like.dtype() { Ok(t) } else { t.to_dtype(like.dtype()) }
}

/// Labels `[B, S]`, and their numbers `[B]` before the blanks that fill them up.
fn labels(target: &Tensor, blank: usize) -> Result<(Tensor, Tensor)> {
    if target.rank() != 2 || !target.dtype().is_index() {
        let got = format!("{} {:?}", target.dtype(), target.shape());
        return Err(invalid("loss", "target", "labels [B, S] (i32, i64), filled up with blanks", got));
    }
    let filler = Tensor::full(target.device(), target.dtype(), &[1, 1], blank as f64)?;
    let lengths = target.ne(&filler)?.to_dtype(DType::I64)?.reduce(Reduce::Sum, &[1], false)?;
    Ok((target.clone(), lengths))
}

/// The same length for every sample.
fn lengths(x: &Tensor, axis: usize) -> Result<Tensor> {
    let n = x.shape().get(axis).copied().unwrap_or(0);
    Tensor::full(x.device(), DType::I64, &[x.shape().first().copied().unwrap_or(0)], n as f64)
}

/// A network that a loss looks through.
struct Frozen {
    config: NetworkConfig,
    state: Option<String>,
}

impl Frozen {
    /// The network that stands at `path`. Errors: its own.
    fn new(path: &str, network: Value, state: Option<String>) -> Result<Self> {
        let config: NetworkConfig = read(path, network)?;
        config.check(path)?;
        Ok(Frozen { config, state })
    }

    /// Evaluating and frozen, with the parameters of its file where there is one.
    fn network(&self, site: Site<'_>) -> Result<Network> {
        let network = Network::new(&InitContext::new(site.device, 0).dtype(site.dtype), &self.config)?;
        if let Some(path) = &self.state {
            StateFile::open(path)?.load(&network, &LoadOptions::new())?;
        }
        network.eval();
        network.parameters().iter().for_each(|p| p.set_requires_grad(false));
        Ok(network)
    }
}

fn perceptual(
    features: &Frozen,
    site: Site<'_>,
    weights: &Option<Vec<f64>>,
    l1: bool,
) -> Result<PerceptualLoss> {
    let loss = PerceptualLoss::new(features.network(site)?);
    let loss = if l1 { loss.l1() } else { loss };
    match weights {
        Some(weights) => loss.weights(weights),
        None => Ok(loss),
    }
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Vanilla,
    Hinge,
    LeastSquares,
}

pub(super) static PARTS: &[Row<Made>] = &[
    // Output [N, 3, E]: anchor, positive, negative.
    row!("triplet_margin" {
        margin: f64 = 1.0, FINITE;
        p: f64 = 2.0, POSITIVE;
        eps: f64 = 1e-6, NOT_NEGATIVE;
        swap: bool = false;
        squared: bool = false;
    } |_path| adapted(
        TripletMarginLoss { margin, p, eps, swap, squared, ..Default::default() },
        |l, out, _| {
            let [a, p, n] = parts(out)?;
            l.forward(&a, &p, &n)
        },
    )),
    // Output [N, 2, E]: two embeddings; target: 1 similar, 0 not.
    row!("contrastive" { margin: f64 = 1.0, FINITE; half: bool = false; } |_path| adapted(
        ContrastiveLoss { margin, half, ..Default::default() },
        |l, out, y| {
            let [u, v] = parts(out)?;
            l.forward(&u, &v, &column(y, out)?)
        },
    )),
    // Output [N, 2, E]: two embeddings; target: 1 or -1.
    row!("cosine_embedding" { margin: f64 = 0.0, FINITE; } |_path| adapted(
        CosineEmbeddingLoss { margin, ..Default::default() },
        |l, out, y| {
            let [u, v] = parts(out)?;
            l.forward(&u, &v, &column(y, out)?)
        },
    )),
    // Output [N, 2]: two scores; target: 1 or -1.
    row!("margin_ranking" { margin: f64 = 0.0, FINITE; } |_path| adapted(
        MarginRankingLoss { margin, ..Default::default() },
        |l, out, y| {
            let [u, v] = parts(out)?;
            l.forward(&u, &v, &column(y, out)?)
        },
    )),
    // Output [N, 2, ..]: means and variances; target: values.
    row!("gaussian_nll" { full: bool = false; eps: f64 = 1e-6, POSITIVE; } |_path| adapted(
        GaussianNllLoss { full, eps, ..Default::default() },
        |l, out, y| {
            let [mean, var] = parts(out)?;
            let y = y.to_dtype(out.dtype())?;
            l.forward(&mean, &y.reshape(mean.shape())?, &var)
        },
    )),
    // Output [N, 2, Z]: means and logarithms of variances.
    row!("gaussian_kl" {} |_path| adapted(GaussianKlLoss::default(), |l, out, _| {
        let [mu, log_var] = parts(out)?;
        l.forward(&mu, &log_var)
    })),
    // Output [N, 2, E]: two views.
    row!("nt_xent" { tau: f64 = 0.5, POSITIVE; } |_path| adapted(NtXentLoss { tau }, |l, out, _| {
        let [a, b] = parts(out)?;
        l.forward(&a, &b)
    })),
    row!("info_nce" { tau: f64 = 0.1, POSITIVE; } |_path| adapted(InfoNceLoss { tau }, |l, out, _| {
        let [q, k] = parts(out)?;
        l.forward(&q, &k, None)
    })),
    row!("barlow_twins" { lambda: f64 = 5e-3, NOT_NEGATIVE; } |_path| adapted(
        BarlowTwinsLoss { lambda },
        |l, out, _| {
            let [a, b] = parts(out)?;
            l.forward(&a, &b)
        },
    )),
    // Output [N] or [N, 1]: scores; target: relevances.
    row!("pairwise_ranking" {} |_path| adapted(PairwiseRankingLoss {}, |l, out, y| {
        let scores = column(out, out)?;
        l.forward(&scores, &column(y, out)?)
    })),
    // Output [B, L, P]: patches, all of which count.
    row!("masked_patch" { normalize: bool = true; } |_path| adapted(
        MaskedPatchLoss { normalize, ..Default::default() },
        |l, out, y| {
            let mask = Tensor::ones(out.device(), DType::U8, &out.shape()[..out.rank().min(2)])?;
            l.forward(out, y, &mask)
        },
    )),
    // Output [N, Q]: one prediction per level; target: values.
    row!("quantiles" { levels: Vec<f64>, SHARE; } |_path| custom(move |site| {
        let levels = vector(site, &Some(levels.clone()))?;
        let levels = levels.ok_or_else(|| invalid("quantiles", "levels", "a list", "none"))?;
        Ok(Adapted {
            loss: (QuantilesLoss::default(), levels),
            run: |(l, levels), out, y| l.forward(out, &column(y, out)?, levels),
        })
    })),
    // Output: the student's logits; target: the teacher's.
    row!("distillation" { temperature: f64 = 2.0, POSITIVE; alpha: f64 = 0.5, SHARE; } |_path| adapted(
        DistillationLoss { temperature, alpha, ..Default::default() },
        |l, out, teacher| l.forward(out, teacher, None),
    )),
    row!("dino" {
        student_temp: f64 = 0.1, POSITIVE;
        teacher_temp: f64 = 0.04, POSITIVE;
        center: Option<Vec<f64>> = null, FINITE;
    } |_path| custom(move |site| Ok(Adapted {
        loss: (DinoLoss { student_temp, teacher_temp, ..Default::default() }, vector(site, &center)?),
        run: |(l, center), out, teacher| {
            let center = match center {
                Some(c) => c.clone(),
                None => Tensor::zeros(out.device(), out.dtype(), &out.shape()[out.rank().saturating_sub(1)..])?,
            };
            l.forward(out, teacher, &center)
        },
    }))),
    // Output: logits.
    row!("z" { coef: f64 = 1e-3, NOT_NEGATIVE; } |_path| {
        adapted(ZLoss { coef, ..Default::default() }, |l, out, _| l.forward(out))
    }),
    // Output [B, 1 + K]: the score of the truth, then those of noise.
    row!("nce" {} |_path| adapted(NceLoss::default(), |l, out, _| {
        let width = out.shape().last().copied().unwrap_or(0);
        if out.rank() != 2 || width < 2 {
            return Err(invalid("nce", "output", "shape [B, 1 + K]", format!("{:?}", out.shape())));
        }
        l.forward(&out.select(1, 0)?.contiguous()?, &out.narrow(1, 1, width - 1)?.contiguous()?, None)
    })),
    // Output [B, K - 1]: logits of "class above j".
    row!("ordinal" {} |_path| adapted(OrdinalLoss::default(), |l, out, y| l.forward(out, None, y))),
    // Output [B, 2]: log-probabilities of preferred and rejected answers; target [B, 2]: the reference model's.
    row!("dpo" { beta: f64 = 0.1, POSITIVE; } |_path| adapted(
        DpoLoss { beta, ..Default::default() },
        |l, out, reference| {
            let ([a, b], [c, d]) = (parts(out)?, parts(reference)?);
            l.forward(&a, &b, &c, &d)
        },
    )),
    row!("ipo" { beta: f64 = 0.1, POSITIVE; } |_path| adapted(
        IpoLoss { beta, ..Default::default() },
        |l, out, reference| {
            let ([a, b], [c, d]) = (parts(out)?, parts(reference)?);
            l.forward(&a, &b, &c, &d)
        },
    )),
    row!("simpo" { beta: f64 = 2.0, POSITIVE; gamma: f64 = 0.5, FINITE; } |_path| adapted(
        SimPoLoss { beta, gamma, ..Default::default() },
        |l, out, _| {
            let [a, b] = parts(out)?;
            l.forward(&a, &b)
        },
    )),
    row!("orpo" {} |_path| adapted(OrpoLoss::default(), |l, out, _| {
        let [a, b] = parts(out)?;
        l.forward(&a, &b)
    })),
    // Output: scores of generated samples; with `discriminator` [N, 2, ..]: those of generated and of real ones.
    row!("adversarial" { mode: Mode = "vanilla"; discriminator: bool = false; } |_path| {
        let mode = match mode {
            Mode::Vanilla => Adversary::Vanilla,
            Mode::Hinge => Adversary::Hinge,
            Mode::LeastSquares => Adversary::LeastSquares,
        };
        adapted((AdversarialLoss { mode, ..Default::default() }, discriminator), |(l, both), out, _| {
            if !both {
                return l.forward(out, None);
            }
            let [fake, real] = parts(out)?;
            l.forward(&fake, Some(&real))
        })
    }),
    // Output [N, 4, 4]: of the four rotations of each image, the logits of the angles.
    row!("rotation_prediction" {} |_path| {
        adapted(RotationPredictionLoss::default(), |l, out, _| l.forward(out))
    }),
    // The features are the outputs of a network.
    row!("perceptual" {
        features: Value;
        features_state: Option<String> = null;
        weights: Option<Vec<f64>> = null, NOT_NEGATIVE;
        l1: bool = false;
    } |path| {
        let features = Frozen::new(&join(path, "features"), features, features_state)?;
        custom(move |site| perceptual(&features, site, &weights, l1))
    }),
    row!("real_esrgan" {
        features: Value;
        features_state: Option<String> = null;
        feature_weights: Option<Vec<f64>> = null, NOT_NEGATIVE;
        discriminator: Value;
        discriminator_state: Option<String> = null;
        pixel_weight: f64 = 1.0, NOT_NEGATIVE;
        perceptual_weight: f64 = 1.0, NOT_NEGATIVE;
        adversarial_weight: f64 = 0.1, NOT_NEGATIVE;
    } |path| {
        let features = Frozen::new(&join(path, "features"), features, features_state)?;
        let discriminator = Frozen::new(&join(path, "discriminator"), discriminator, discriminator_state)?;
        custom(move |site| {
            RealEsrganLoss::new(perceptual(&features, site, &feature_weights, true)?, discriminator.network(site)?)
                .weights(pixel_weight, perceptual_weight, adversarial_weight)
        })
    }),
    // Output [B, T, C]: log-probabilities; target [B, S]: labels, filled up with blanks.
    row!("ctc" { blank: usize = 0; zero_infinity: bool = false; } |_path| adapted(
        CtcLoss { blank, zero_infinity, batch_first: true, ..Default::default() },
        |l, out, y| {
            let (labels, count) = labels(y, l.blank)?;
            l.forward(out, &labels, &lengths(out, 1)?, &count)
        },
    )),
    // Output [B, T, U + 1, C]: logits; target [B, U]: labels, filled up with blanks.
    row!("rnnt" { blank: usize = 0; } |_path| adapted(
        RnntLoss { blank, ..Default::default() },
        |l, out, y| {
            let (labels, count) = labels(y, l.blank)?;
            l.forward(out, &labels, &lengths(out, 1)?, &count)
        },
    )),
];

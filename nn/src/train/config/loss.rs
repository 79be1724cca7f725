//! `loss`: what a run minimises.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use trefoil::DType;

use super::kind::{Row, kind, names, row};
use super::parts::PARTS;
use crate::core::error::{NnError, Result};
use crate::core::host_tensor::HostTensor;
use crate::core::options::{BELOW_ONE, COUNT, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, join, within};
use crate::core::tensor::{Device, Tensor};
use crate::train::losses::*;
use crate::train::trainer::Objective;

/// Where a loss is made: its device, and the dtype of the outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) device: &'a Device,
    pub(super) dtype: DType,
    /// Whether classes lie on the last axis of the output.
    pub(super) classes_last: bool,
}

/// Makes a loss.
pub(super) type Make = Arc<dyn Fn(Site<'_>) -> Result<Objective> + Send + Sync>;

/// A loss, chosen by its `type`: the names and options of [`losses`](crate::losses), see [`LossConfig::names`].
///
/// Losses take the network's output and the data's target. Those of several tensors take them from the output `[N, k, ..]`, whose second
/// axis counts them (anchor, positive and negative of `triplet_margin`; mean and variance of `gaussian_nll`).
#[derive(Clone)]
pub struct LossConfig {
    name: &'static str,
    /// As it was written.
    pub(super) json: Value,
    make: Make,
    /// Whether classes lie on the last axis of the output.
    pub(super) last: Option<bool>,
}

impl fmt::Debug for LossConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LossConfig({})", self.name)
    }
}

/// What a row of the table makes.
pub(super) struct Made {
    pub(super) make: Make,
    pub(super) last: Option<bool>,
}

/// A loss that does not depend on where it is made.
pub(super) fn fixed(loss: impl Criterion + Clone + 'static) -> Made {
    custom(move |_| Ok(loss.clone()))
}

/// A loss that does.
pub(super) fn custom<C: Criterion + 'static>(
    make: impl Fn(Site<'_>) -> Result<C> + Send + Sync + 'static,
) -> Made {
    Made { make: Arc::new(move |site| Ok(Objective::custom(make(site)?))), last: None }
}

/// Weights on the device.
pub(super) fn vector(site: Site<'_>, values: &Option<Vec<f64>>) -> Result<Option<Tensor>> {
    let put =
        |v: &Vec<f64>| HostTensor::from_slice(v, &[v.len()])?.to_dtype(site.dtype)?.to_device(site.device);
    values.as_ref().map(put).transpose()
}

/// Losses whose options are numbers: each an option of the struct of the same name.
macro_rules! plain {
    ($loss:ident $name:literal { $($key:ident : $t:ty = $default:expr $(, $limit:ident)?;)* }) => {
        row!($name { $($key: $t = $default $(, $limit)?;)* } |_path| {
            #[allow(clippy::needless_update)]
            fixed($loss { $($key,)* ..Default::default() })
        })
    };
}

/// Axis of the classes.
fn class_axis(path: &str, dim: Option<i64>) -> Result<Option<bool>> {
    match dim {
        None => Ok(None),
        Some(1) => Ok(Some(false)),
        Some(-1) => Ok(Some(true)),
        Some(d) => {
            Err(NnError::config(join(path, "dim"), format!("expected 1 or -1 (the last axis), got {d}")))
        }
    }
}

pub(super) static LOSSES: &[Row<Made>] = &[
    row!("cross_entropy" {
        label_smoothing: f64 = 0.0, BELOW_ONE;
        ignore_index: i64 = -100;
        weight: Option<Vec<f64>> = null, NOT_NEGATIVE;
        dim: Option<i64> = null;
    } |path| Made {
        last: class_axis(path, dim)?,
        make: Arc::new(move |site| {
            let options = CrossEntropy::new().label_smoothing(label_smoothing).ignore_index(ignore_index);
            Ok(Objective::Classify(CrossEntropyLoss { options, weight: vector(site, &weight)? }))
        }),
    }),
    row!("mse" {} |_path| Made {
        make: Arc::new(|_| Ok(Objective::Regress(MseLoss::default()))),
        last: None,
    }),
    plain!(L1Loss "l1" {}),
    plain!(SmoothL1Loss "smooth_l1" { beta: f64 = 1.0, NOT_NEGATIVE; }),
    plain!(HuberLoss "huber" { delta: f64 = 1.0, POSITIVE; }),
    plain!(LogCoshLoss "log_cosh" {}),
    plain!(QuantileLoss "quantile" { q: f64 = 0.5, SHARE; }),
    plain!(CharbonnierLoss "charbonnier" { eps: f64 = 1e-3, NOT_NEGATIVE; }),
    plain!(MeanBiasLoss "mean_bias" {}),
    plain!(HingeLoss "hinge" {}),
    plain!(SquaredHingeLoss "squared_hinge" {}),
    plain!(ModifiedHuberLoss "modified_huber" {}),
    plain!(ExponentialLoss "exponential" {}),
    plain!(SoftMarginLoss "soft_margin" {}),
    plain!(HingeEmbeddingLoss "hinge_embedding" { margin: f64 = 1.0, FINITE; }),
    plain!(WassersteinLoss "wasserstein" {}),
    plain!(PoissonNllLoss "poisson_nll" { log_input: bool = true; full: bool = false; eps: f64 = 1e-8, NOT_NEGATIVE; }),
    plain!(BornMseLoss "born_mse" {}),
    plain!(BceLoss "bce" {}),
    plain!(SigmoidFocalLoss "sigmoid_focal" { alpha: f64 = 0.25, FINITE; gamma: f64 = 2.0, NOT_NEGATIVE; }),
    plain!(BinaryFocalLoss "binary_focal" { alpha: f64 = 0.25, FINITE; gamma: f64 = 2.0, NOT_NEGATIVE; }),
    row!("bce_with_logits" { pos_weight: Option<Vec<f64>> = null, NOT_NEGATIVE; } |_path| custom(move |site| {
        Ok(BceWithLogitsLoss { pos_weight: vector(site, &pos_weight)?, ..Default::default() })
    })),
    plain!(KlDivLoss "kl_div" { batch_mean: bool = false; log_input: bool = true; log_target: bool = false; }),
    row!("nll" {
        weight: Option<Vec<f64>> = null, NOT_NEGATIVE;
        ignore_index: i64 = -100;
        floor: Option<f64> = null, POSITIVE;
        dim: Option<i64> = null;
    } |path| Made {
        last: class_axis(path, dim)?,
        make: Arc::new(move |site| {
            let loss = NllLoss { weight: vector(site, &weight)?, ignore_index, floor, ..Default::default() };
            Ok(if site.classes_last { Objective::custom(ClassesLast(loss)) } else { Objective::custom(loss) })
        }),
    }),
    row!("multiclass_focal" {
        gamma: f64 = 2.0, NOT_NEGATIVE;
        alpha: Option<Vec<f64>> = null, NOT_NEGATIVE;
    } |_path| custom(move |site| {
        Ok(MulticlassFocalLoss { gamma, alpha: vector(site, &alpha)?, ..Default::default() })
    })),
    plain!(ArcFaceLoss "arc_face" { scale: f64 = 64.0, POSITIVE; margin: f64 = 0.5, FINITE; }),
    row!("multi_margin" {
        squared: bool = false;
        margin: f64 = 1.0, FINITE;
        weight: Option<Vec<f64>> = null, NOT_NEGATIVE;
    } |_path| custom(move |site| {
        Ok(MultiMarginLoss { squared, margin, weight: vector(site, &weight)?, ..Default::default() })
    })),
    plain!(MultiLabelMarginLoss "multi_label_margin" {}),
    row!("multi_label_soft_margin" { weight: Option<Vec<f64>> = null, NOT_NEGATIVE; } |_path| {
        custom(move |site| Ok(MultiLabelSoftMarginLoss { weight: vector(site, &weight)?, ..Default::default() }))
    }),
    plain!(CategoricalCrossEntropyLoss "categorical_cross_entropy" { label_smoothing: f64 = 0.0, BELOW_ONE; }),
    plain!(CapsuleLoss "capsule" {
        plus: f64 = 0.9, FINITE; minus: f64 = 0.1, FINITE; lambda: f64 = 0.5, NOT_NEGATIVE;
    }),
    plain!(CosineLoss "cosine" { eps: f64 = 1e-8, NOT_NEGATIVE; scale: f64 = 1.0, FINITE; }),
    plain!(DiceLoss "dice" {
        smooth: f64 = 1.0, NOT_NEGATIVE; squared: bool = false; from_logits: bool = false; per_channel: bool = false;
    }),
    plain!(TverskyLoss "tversky" {
        a: f64 = 0.5, NOT_NEGATIVE;
        b: f64 = 0.5, NOT_NEGATIVE;
        smooth: f64 = 1.0, NOT_NEGATIVE;
        gamma: f64 = 1.0, POSITIVE;
    }),
    plain!(JaccardLoss "jaccard" { smooth: f64 = 1.0, NOT_NEGATIVE; }),
    row!("box_iou" { overlap: Overlap = "giou"; eps: f64 = 1e-7, NOT_NEGATIVE; } |_path| {
        let overlap = match overlap {
            Overlap::Iou => BoxOverlap::Iou,
            Overlap::Giou => BoxOverlap::Giou,
            Overlap::Diou => BoxOverlap::Diou,
            Overlap::Ciou => BoxOverlap::Ciou,
        };
        fixed(BoxIouLoss { overlap, eps, ..Default::default() })
    }),
    plain!(QuantumFidelityLoss "quantum_fidelity" {}),
    plain!(ScaleInvariantDepthLoss "scale_invariant_depth" { lambda: f64 = 0.5, SHARE; root: bool = false; }),
    plain!(RmseLoss "rmse" {}),
    plain!(ElasticNetLoss "elastic_net" { alpha: f64 = 1.0, NOT_NEGATIVE; l1_ratio: f64 = 0.5, SHARE; }),
    plain!(SupConLoss "sup_con" { tau: f64 = 0.1, POSITIVE; }),
    plain!(MoeBalanceLoss "moe_balance" {}),
    plain!(LovaszLoss "lovasz" {}),
    row!("stft" { resolutions: Option<Vec<Resolution>> = null; } |path| {
        let list = resolutions.unwrap_or_default();
        for (i, r) in list.iter().enumerate() {
            within(path, &format!("resolutions[{i}]"), &[r.fft, r.hop, r.window], &COUNT)?;
        }
        let list: Vec<_> = list.iter().map(|r| StftResolution::new(r.fft, r.hop, r.window)).collect();
        fixed(if list.is_empty() { StftLoss::default() } else { StftLoss { resolutions: list } })
    }),
];

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Overlap {
    Iou,
    Giou,
    Diou,
    Ciou,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolution {
    fft: usize,
    hop: usize,
    window: usize,
}

impl LossConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let of_parts = match &json {
            Value::String(name) => Some(name.as_str()),
            json => json["type"].as_str(),
        };
        let table = match of_parts {
            Some(name) if PARTS.iter().any(|r| r.name == name) => PARTS,
            _ => LOSSES,
        };
        let (name, Made { make, last }) = kind(path, "a loss", json.clone(), table)?;
        Ok(LossConfig { name, json, make, last })
    }

    /// Names of all losses.
    pub fn names() -> Vec<&'static str> {
        [names(LOSSES), names(PARTS)].concat()
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn objective(&self, site: Site<'_>) -> Result<Objective> {
        (self.make)(site)
    }
}

/// Classes on the last axis: outputs `[.., C]` and targets `[..]` as rows.
#[derive(Debug)]
pub(super) struct ClassesLast<C>(pub(super) C);

/// Output `[.., C]` as `[n, C]`, target `[..]` as `[n]`.
pub(super) fn rows(output: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor)> {
    let classes = output.shape().last().copied().unwrap_or(1).max(1);
    let n = output.numel() / classes;
    let probabilities = target.dtype().is_float();
    let shape: &[usize] = if probabilities { &[n, classes] } else { &[n] };
    Ok((output.reshape(&[n, classes])?, target.reshape(shape)?))
}

impl<C: Criterion> Criterion for ClassesLast<C> {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        let (x, y) = rows(output, target)?;
        self.0.loss(&x, &y)
    }
    fn reduction(&self) -> Reduction {
        self.0.reduction()
    }
}

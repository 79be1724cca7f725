//! Losses of sets: predictions are matched to objects first.

use trefoil::DType;

use super::{BoxIouLoss, CrossEntropy, CrossEntropyLoss, L1Loss, Reduction};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_device};

const OP: &str = "detr_loss";

/// The objects of one image.
#[derive(Debug, Clone, Default)]
pub struct ImageTargets {
    /// Class of each object.
    pub labels: Vec<usize>,
    /// Centre, width and height of each, relative to the image.
    pub boxes: Vec<[f32; 4]>,
}

/// The objects of a batch on a device, each image's in the first `counts` of T rows.
#[derive(Debug, Clone)]
pub struct DetrTargets {
    /// Class of each object, i64 `[B, T]`; 0 behind the last.
    pub labels: Tensor,
    /// Centre, width and height of each, f32 `[B, T, 4]`; behind the last the whole image.
    pub boxes: Tensor,
    /// Number of objects of each image, i64 `[B]`.
    pub counts: Tensor,
}

impl DetrTargets {
    /// Brings objects to a device. Errors: labels and boxes of different number; a label that is none of `classes`.
    pub fn new(device: &Device, classes: usize, targets: &[ImageTargets]) -> Result<DetrTargets> {
        for t in targets {
            if t.labels.len() != t.boxes.len() {
                let want = format!("{} boxes", t.labels.len());
                return Err(invalid(OP, "targets", want, format!("{}", t.boxes.len())));
            }
            if let Some(l) = t.labels.iter().find(|&&l| l >= classes) {
                return Err(invalid(OP, "labels", format!("classes below {classes}"), format!("{l}")));
            }
        }
        let (batch, rows) = (targets.len(), targets.iter().map(|t| t.labels.len()).max().unwrap_or(0));
        let (mut labels, mut boxes) = (vec![0i64; batch * rows], vec![[0.5f32, 0.5, 1.0, 1.0]; batch * rows]);
        for (b, t) in targets.iter().enumerate() {
            for (i, (&label, of)) in t.labels.iter().zip(&t.boxes).enumerate() {
                (labels[b * rows + i], boxes[b * rows + i]) = (label as i64, *of);
            }
        }
        let counts: Vec<i64> = targets.iter().map(|t| t.labels.len() as i64).collect();
        Ok(DetrTargets {
            labels: Tensor::from_slice(device, &labels, &[batch, rows])?,
            boxes: Tensor::from_slice(device, &boxes.concat(), &[batch, rows, 4])?,
            counts: Tensor::from_slice(device, &counts, &[batch])?,
        })
    }
}

/// Terms of [`DetrLoss`], scalars.
#[derive(Debug, Clone)]
pub struct DetrTerms {
    /// Cross entropy of all queries.
    pub class: Tensor,
    /// |p - t| of matched boxes over the number of boxes in the batch.
    pub l1: Tensor,
    /// 1 - GIoU of matched boxes over the number of boxes in the batch.
    pub giou: Tensor,
}

/// Set prediction (Carion et al., 2020): queries are matched to the objects of their image by the assignment of least cost
/// class * -softmax probability + l1 * |p - t| + giou * (1 - GIoU), then classes and boxes are compared pair by pair.
#[derive(Debug, Clone)]
pub struct DetrLoss {
    /// Weight of the class in the matching and in the total.
    pub class: f64,
    /// Weight of |p - t|.
    pub l1: f64,
    /// Weight of 1 - GIoU.
    pub giou: f64,
    /// Weight of queries without object in the cross entropy.
    pub no_object: f64,
}

impl Default for DetrLoss {
    fn default() -> Self {
        DetrLoss { class: 1.0, l1: 5.0, giou: 2.0, no_object: 0.1 }
    }
}

/// Corners of boxes given by centre, width and height.
fn corners(boxes: &Tensor) -> Result<Tensor> {
    let (centre, half) = (boxes.narrow(-1, 0, 2)?, boxes.narrow(-1, 2, 2)?.mul_scalar(0.5)?);
    Tensor::concat(-1, &[&centre.sub(&half)?, &centre.add(&half)?])
}

/// 1 - GIoU.
fn overlap(reduction: Reduction) -> BoxIouLoss {
    BoxIouLoss { reduction, eps: 1e-12, ..Default::default() }
}

/// Batch, queries and classes (with no object) of operands that fit each other.
fn check(logits: &Tensor, boxes: &Tensor, targets: &DetrTargets) -> Result<[usize; 3]> {
    for t in [boxes, &targets.labels, &targets.boxes, &targets.counts] {
        same_device(OP, logits, t)?;
    }
    let &[batch, queries, classes] = logits.shape() else {
        return Err(invalid(OP, "logits", "[batch, queries, classes + 1]", format!("{:?}", logits.shape())));
    };
    let &[images, rows] = targets.labels.shape() else {
        return Err(invalid(OP, "labels", "[batch, objects]", format!("{:?}", targets.labels.shape())));
    };
    if images != batch {
        return Err(invalid(OP, "targets", format!("{batch} images"), format!("{images}")));
    }
    let want: [(&'static str, &Tensor, &[usize]); 3] = [
        ("boxes", boxes, &[batch, queries, 4]),
        ("boxes of targets", &targets.boxes, &[batch, rows, 4]),
        ("counts", &targets.counts, &[batch]),
    ];
    match want.iter().find(|(_, t, shape)| t.shape() != *shape) {
        Some((arg, t, shape)) => Err(invalid(OP, arg, format!("{shape:?}"), format!("{:?}", t.shape()))),
        None => Ok([batch, queries, classes]),
    }
}

impl DetrLoss {
    /// Query of each object (i64 `[B, T]`), -1 for rows without one and for objects beyond the number of queries: the assignment of least
    /// cost, computed on the device. Logits `[B, Q, classes + 1]`, boxes `[B, Q, 4]`. A prediction that is not finite matches nothing.
    /// Errors: shapes that do not fit.
    pub fn matching(&self, logits: &Tensor, boxes: &Tensor, targets: &DetrTargets) -> Result<Tensor> {
        let [batch, queries, _] = check(logits, boxes, targets)?;
        let rows = targets.labels.shape()[1];
        let real = |t: &Tensor| {
            let dtype = if t.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            t.detach().to_dtype(dtype)
        };
        let (p, t) = (real(boxes)?, targets.boxes.to_dtype(real(boxes)?.dtype())?);
        let pairs = [batch, rows, queries];
        let chances = real(logits)?.softmax(-1)?.permute(&[0, 2, 1])?;
        let class = chances.gather(1, &targets.labels.unsqueeze(2)?.expand(&pairs)?)?;
        let distance = t.cdist(&p, 1.0)?;
        let all = [batch, rows, queries, 4];
        let (a, b) = (corners(&p)?.unsqueeze(1)?.expand(&all)?, corners(&t)?.unsqueeze(2)?.expand(&all)?);
        let apart = overlap(Reduction::None).forward(&a.contiguous()?, &b.contiguous()?)?.reshape(&pairs)?;
        let places = distance.mul_scalar(self.l1)?.add(&apart.mul_scalar(self.giou)?)?;
        let cost = places.sub(&class.to_dtype(places.dtype())?.mul_scalar(self.class)?)?;
        cost.linear_assignment(Some(&targets.counts))
    }

    /// The terms for logits `*` `[B, Q, classes + 1]` (the last class is no object) and boxes `*` `[B, Q, 4]` (centre, width, height),
    /// matched by [`matching`](DetrLoss::matching). Objects beyond the number of queries have no pair. Nothing waits for the device. Errors:
    /// shapes that do not fit.
    pub fn terms_of(&self, logits: &Tensor, boxes: &Tensor, targets: &DetrTargets) -> Result<DetrTerms> {
        let [batch, queries, classes] = check(logits, boxes, targets)?;
        let (device, rows) = (logits.device(), targets.labels.shape()[1]);
        let query = self.matching(logits, boxes, targets)?;
        let none = Tensor::zeros(device, DType::I64, &[])?;
        let paired = query.ge(&none)?;
        // Rows without a query write to a place behind the last one.
        let behind = Tensor::full(device, DType::I64, &[], queries as f64)?;
        let ids = Tensor::full(device, DType::I64, &[batch, queries + 1], classes as f64 - 1.0)?
            .scatter(1, &query.where_(&paired, &behind)?, &targets.labels)?
            .narrow(1, 0, queries)?;
        let objects = Tensor::full(device, logits.dtype(), &[classes.saturating_sub(1)], 1.0)?;
        let weight =
            Tensor::concat(0, &[&objects, &Tensor::full(device, logits.dtype(), &[1], self.no_object)?])?;
        let ce = CrossEntropyLoss { options: CrossEntropy::new(), weight: Some(weight) };
        let all = batch * queries;
        let class = ce.forward(&logits.reshape(&[all, classes])?, &ids.reshape(&[all])?)?;
        if rows == 0 || queries == 0 {
            let none = Tensor::zeros(device, boxes.dtype().accumulator(), &[])?;
            return Ok(DetrTerms { class, l1: none.clone(), giou: none });
        }
        let at = query.where_(&paired, &none)?.unsqueeze(2)?.expand(&[batch, rows, 4])?;
        let (p, t) = (boxes.gather(1, &at)?, targets.boxes.to_dtype(boxes.dtype())?);
        let l1 = L1Loss { reduction: Reduction::None, ..Default::default() }.forward(&p, &t)?;
        let giou = overlap(Reduction::None).forward(&corners(&p)?, &corners(&t)?)?;
        let objects = targets.counts.to_dtype(giou.dtype())?.sum()?.clamp(Some(1.0), None)?;
        let paired = paired.to_dtype(giou.dtype())?.div(&objects)?;
        Ok(DetrTerms {
            class,
            l1: l1.reshape(&[batch, rows, 4])?.mul(&paired.unsqueeze(2)?)?.sum()?,
            giou: giou.reshape(&[batch, rows])?.mul(&paired)?.sum()?,
        })
    }

    /// As [`terms_of`](DetrLoss::terms_of), with objects that are brought to the device. Errors: as there and of [`DetrTargets::new`].
    pub fn terms(&self, logits: &Tensor, boxes: &Tensor, targets: &[ImageTargets]) -> Result<DetrTerms> {
        let classes = logits.shape().last().copied().unwrap_or(0).saturating_sub(1);
        self.terms_of(logits, boxes, &DetrTargets::new(logits.device(), classes, targets)?)
    }

    /// The weighted sum of the [`terms`](DetrLoss::terms).
    pub fn forward(&self, logits: &Tensor, boxes: &Tensor, targets: &[ImageTargets]) -> Result<Tensor> {
        let DetrTerms { class, l1, giou } = self.terms(logits, boxes, targets)?;
        let boxes = l1.mul_scalar(self.l1)?.add(&giou.mul_scalar(self.giou)?)?;
        class.mul_scalar(self.class)?.add(&boxes)
    }
}

//! Losses of sets: predictions are matched to objects first.

use trefoil::DType;

use super::{BoxIouLoss, CrossEntropy, CrossEntropyLoss, L1Loss, Reduction};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Assignment of least cost, on the host: one column per row and one row per column, as many pairs as the smaller side has. `cost` is row-major.
/// Exact, by shortest augmenting paths (Jonker and Volgenant, 1987), in about n^2*m steps for sides n <= m. Oracle
/// `scipy.optimize.linear_sum_assignment`. Errors: a cost that is not finite; a length that is not rows * columns.
pub fn linear_assignment(cost: &[f64], rows: usize, columns: usize) -> Result<Vec<Option<usize>>> {
    const OP: &str = "linear_assignment";
    if cost.len() != rows * columns {
        let want = format!("{} numbers", rows * columns);
        return Err(invalid(OP, "cost", want, format!("{}", cost.len())));
    }
    if let Some(x) = cost.iter().find(|x| !x.is_finite()) {
        return Err(invalid(OP, "cost", "finite numbers", format!("{x}")));
    }
    if rows > columns {
        let turned: Vec<f64> =
            (0..columns).flat_map(|c| (0..rows).map(move |r| cost[r * columns + c])).collect();
        let mut found = vec![None; rows];
        for (c, r) in paths(&turned, columns, rows).into_iter().enumerate() {
            found[r] = Some(c);
        }
        return Ok(found);
    }
    Ok(paths(cost, rows, columns).into_iter().map(Some).collect())
}

/// Columns of the rows, n <= m. Rows and columns count from 1 here; 0 is the row that looks for a column.
fn paths(cost: &[f64], n: usize, m: usize) -> Vec<usize> {
    let (mut of_row, mut of_column) = (vec![0.0; n + 1], vec![0.0; m + 1]);
    let mut owner = vec![0usize; m + 1];
    for row in 1..=n {
        owner[0] = row;
        let (mut least, mut from, mut done) =
            (vec![f64::INFINITY; m + 1], vec![0; m + 1], vec![false; m + 1]);
        let mut at = 0;
        while at == 0 || owner[at] != 0 {
            done[at] = true;
            let r = owner[at];
            let (mut step, mut next) = (f64::INFINITY, 0);
            for c in (1..=m).filter(|&c| !done[c]) {
                let reduced = cost[(r - 1) * m + c - 1] - of_row[r] - of_column[c];
                if reduced < least[c] {
                    (least[c], from[c]) = (reduced, at);
                }
                if least[c] < step {
                    (step, next) = (least[c], c);
                }
            }
            for (c, &closed) in done.iter().enumerate() {
                if closed {
                    of_row[owner[c]] += step;
                    of_column[c] -= step;
                } else {
                    least[c] -= step;
                }
            }
            at = next;
        }
        while at != 0 {
            owner[at] = owner[from[at]];
            at = from[at];
        }
    }
    let mut found = vec![0; n];
    for (c, &row) in owner.iter().enumerate().skip(1) {
        if row > 0 {
            found[row - 1] = c - 1;
        }
    }
    found
}

/// The objects of one image.
#[derive(Debug, Clone, Default)]
pub struct ImageTargets {
    /// Class of each object.
    pub labels: Vec<usize>,
    /// Centre, width and height of each, relative to the image.
    pub boxes: Vec<[f32; 4]>,
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

fn corners([x, y, w, h]: [f64; 4]) -> [f64; 4] {
    [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
}

fn giou(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |b: [f64; 4]| (b[2] - b[0]).max(0.0) * (b[3] - b[1]).max(0.0);
    let side = |k: usize| (a[k + 2].min(b[k + 2]) - a[k].max(b[k])).max(0.0);
    let hull = |k: usize| a[k + 2].max(b[k + 2]) - a[k].min(b[k]);
    let inter = side(0) * side(1);
    let (union, outer) = (area(a) + area(b) - inter, hull(0) * hull(1));
    inter / union.max(1e-12) - (outer - union) / outer.max(1e-12)
}

impl DetrLoss {
    /// Query of each object, image by image. Downloads logits and boxes and solves the assignments on the host: the device waits.
    /// Errors: shapes that do not fit; a label that is no class; numbers that are not finite.
    pub fn match_on_host(
        &self,
        logits: &Tensor,
        boxes: &Tensor,
        targets: &[ImageTargets],
    ) -> Result<Vec<Vec<Option<usize>>>> {
        const OP: &str = "detr_loss";
        same_device(OP, logits, boxes)?;
        let &[batch, queries, classes] = logits.shape() else {
            return Err(invalid(
                OP,
                "logits",
                "[batch, queries, classes + 1]",
                format!("{:?}", logits.shape()),
            ));
        };
        if boxes.shape() != [batch, queries, 4] {
            let want = format!("[{batch}, {queries}, 4]");
            return Err(invalid(OP, "boxes", want, format!("{:?}", boxes.shape())));
        }
        if targets.len() != batch {
            return Err(invalid(OP, "targets", format!("{batch} images"), format!("{}", targets.len())));
        }
        for t in targets {
            if t.labels.len() != t.boxes.len() {
                let want = format!("{} boxes", t.labels.len());
                return Err(invalid(OP, "targets", want, format!("{}", t.boxes.len())));
            }
            if let Some(l) = t.labels.iter().find(|&&l| l + 1 >= classes) {
                return Err(invalid(
                    OP,
                    "labels",
                    format!("classes below {}", classes.max(1) - 1),
                    format!("{l}"),
                ));
            }
        }
        let scores = logits.detach().to_dtype(DType::F64)?.softmax(-1)?.to_vec::<f64>()?;
        let found = boxes.detach().to_dtype(DType::F64)?.to_vec::<f64>()?;
        let image = |(b, t): (usize, &ImageTargets)| {
            let mut cost = Vec::with_capacity(t.labels.len() * queries);
            for (&label, object) in t.labels.iter().zip(&t.boxes) {
                let object = object.map(f64::from);
                for q in b * queries..(b + 1) * queries {
                    let p: [f64; 4] = std::array::from_fn(|k| found[4 * q + k]);
                    let distance: f64 = p.iter().zip(object).map(|(p, t)| (p - t).abs()).sum();
                    let apart = 1.0 - giou(corners(p), corners(object));
                    cost.push(
                        -self.class * scores[q * classes + label] + self.l1 * distance + self.giou * apart,
                    );
                }
            }
            linear_assignment(&cost, t.labels.len(), queries)
        };
        targets.iter().enumerate().map(image).collect()
    }

    /// The terms for logits `*` `[B, Q, classes + 1]` (the last class is no object) and boxes `*` `[B, Q, 4]` (centre, width, height),
    /// matched by [`match_on_host`](DetrLoss::match_on_host). Objects beyond the number of queries have no pair. Errors: as there.
    pub fn terms(&self, logits: &Tensor, boxes: &Tensor, targets: &[ImageTargets]) -> Result<DetrTerms> {
        let matches = self.match_on_host(logits, boxes, targets)?;
        let (device, queries, classes) = (logits.device(), logits.shape()[1], logits.shape()[2]);
        let rows = logits.shape()[0] * queries;
        let mut ids = vec![classes as i64 - 1; rows];
        let (mut picked, mut wanted) = (vec![], vec![]);
        for (b, (found, t)) in matches.iter().zip(targets).enumerate() {
            for ((q, &label), object) in found.iter().zip(&t.labels).zip(&t.boxes) {
                let Some(q) = q else { continue };
                ids[b * queries + q] = label as i64;
                picked.push((b * queries + q) as i64);
                wanted.extend_from_slice(object);
            }
        }
        let mut weight = vec![1.0f32; classes];
        if let Some(w) = weight.last_mut() {
            *w = self.no_object as f32;
        }
        let weight = Tensor::from_slice(device, &weight, &[classes])?.to_dtype(logits.dtype())?;
        let ce = CrossEntropyLoss { options: CrossEntropy::new(), weight: Some(weight) };
        let class =
            ce.forward(&logits.reshape(&[rows, classes])?, &Tensor::from_slice(device, &ids, &[rows])?)?;
        let n = picked.len();
        if n == 0 {
            let none = Tensor::zeros(device, boxes.dtype().accumulator(), &[])?;
            return Ok(DetrTerms { class, l1: none.clone(), giou: none });
        }
        let share = 1.0 / targets.iter().map(|t| t.labels.len()).sum::<usize>() as f64;
        let p = boxes.reshape(&[rows, 4])?.index_select(0, &Tensor::from_slice(device, &picked, &[n])?)?;
        let t = Tensor::from_slice(device, &wanted, &[n, 4])?.to_dtype(boxes.dtype())?;
        // [cx, cy, w, h] times this are the corners.
        #[rustfmt::skip]
        let turn = [1.0f32, 0.0, 1.0, 0.0,  0.0, 1.0, 0.0, 1.0,  -0.5, 0.0, 0.5, 0.0,  0.0, -0.5, 0.0, 0.5];
        let turn = Tensor::from_slice(device, &turn, &[4, 4])?.to_dtype(boxes.dtype())?;
        let l1 = L1Loss { reduction: Reduction::Sum, ..Default::default() }.forward(&p, &t)?;
        let apart = BoxIouLoss { reduction: Reduction::Sum, eps: 1e-12, ..Default::default() };
        let giou = apart.forward(&p.matmul(&turn)?, &t.matmul(&turn)?)?;
        Ok(DetrTerms { class, l1: l1.mul_scalar(share)?, giou: giou.mul_scalar(share)? })
    }

    /// The weighted sum of the [`terms`](DetrLoss::terms).
    pub fn forward(&self, logits: &Tensor, boxes: &Tensor, targets: &[ImageTargets]) -> Result<Tensor> {
        let DetrTerms { class, l1, giou } = self.terms(logits, boxes, targets)?;
        let boxes = l1.mul_scalar(self.l1)?.add(&giou.mul_scalar(self.giou)?)?;
        class.mul_scalar(self.class)?.add(&boxes)
    }
}

//! Sums, means and maxima of rows of a table.

use trefoil::DType;
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::scan::SegmentReduce;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// How the rows of a bag are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    #[default]
    Mean,
    /// The maximum of each column.
    Max,
}

/// Options of [`Tensor::embedding_bag`].
#[derive(Debug, Clone, Copy, Default)]
pub struct EmbeddingBag {
    /// How the rows of a bag are combined.
    pub mode: BagMode,
    /// Row of the table that is left out of its bags, and gets no gradient; a negative number counts from the end.
    pub padding_idx: Option<i64>,
    /// Divide the gradient of a row by the number of ids that name it.
    pub scale_grad_by_freq: bool,
    /// Whether `offsets` end with the number of ids.
    pub include_last_offset: bool,
}

/// The ids of all bags as a vector, and where bags begin and end (i64).
fn bags(ids: &Tensor, offsets: Option<&Tensor>, include_last: bool) -> Result<[Tensor; 2]> {
    match (ids.shape(), offsets) {
        (&[count, size], None) => {
            let ends = Tensor::arange(ids.device(), DType::I64, 0.0, size as f64, count + 1)?;
            Ok([ids.reshape(&[ids.numel()])?, ends])
        }
        (&[n], Some(offsets)) => {
            same_device("embedding_bag", ids, offsets)?;
            let starts = offsets.detach().to_dtype(DType::I64)?;
            let end = Tensor::full(ids.device(), DType::I64, &[1], n as f64)?;
            let ends = if include_last { starts } else { Tensor::concat(0, &[&starts, &end])? };
            Ok([ids.clone(), ends])
        }
        (shape, _) => {
            let got = format!("ids {shape:?} with offsets {:?}", offsets.map(Tensor::shape));
            let expected = "bags of ids [B, n] without offsets, or a vector of ids with offsets";
            Err(invalid("embedding_bag", "ids", expected, got))
        }
    }
}

impl Tensor {
    /// Rows of this table `[V, D]` combined by bags of ids: bags `[B, n]`, or a vector of ids of which bag i begins at `offsets[i]` (i32 or i64
    /// `[B]`, rising from 0): `[B, D]`. A bag without rows gives 0. `weights`, of the shape of the ids, multiply the rows of sums and have a
    /// gradient. The gradient of a maximum is shared by equal rows; PyTorch gives it to the first. Nothing waits for the device. Source
    /// `torch.nn.functional.embedding_bag`. Errors: shapes that do not fit, weights with another mode; those of
    /// [`embedding`](Tensor::embedding) and [`segment_reduce`](Tensor::segment_reduce).
    pub fn embedding_bag(
        &self,
        ids: &Tensor,
        offsets: Option<&Tensor>,
        weights: Option<&Tensor>,
        options: &EmbeddingBag,
    ) -> Result<Tensor> {
        const OP: &str = "embedding_bag";
        if let Some(w) = weights.filter(|w| w.shape() != ids.shape() || options.mode != BagMode::Sum) {
            let expected = format!("weights {:?}, and BagMode::Sum", ids.shape());
            return Err(invalid(OP, "weights", expected, format!("{:?}, {:?}", w.shape(), options.mode)));
        }
        let [flat, ends] = bags(ids, offsets, options.include_last_offset)?;
        let mut of_table = EmbeddingGrad::new();
        of_table.padding_idx = options.padding_idx;
        of_table.scale_grad_by_freq = options.scale_grad_by_freq;
        let mut rows = self.embedding(&flat, &of_table)?;
        if let Some(w) = weights {
            rows = rows.mul(&w.reshape(&[flat.numel(), 1])?)?;
        }
        let Some(padding) = options.padding_idx else { return rows.in_bags(&ends, options.mode) };
        let padding = if padding < 0 { padding + self.shape()[0] as i64 } else { padding };
        let left_out = flat.eq_scalar(padding as f64)?.unsqueeze(1)?;
        match options.mode {
            BagMode::Sum => rows.masked_fill(&left_out, 0.0)?.in_bags(&ends, BagMode::Sum),
            BagMode::Mean => {
                let taken = left_out.logical_not()?.to_dtype(self.dtype())?.in_bags(&ends, BagMode::Sum)?;
                let sums = rows.masked_fill(&left_out, 0.0)?.in_bags(&ends, BagMode::Sum)?;
                sums.div(&taken.clamp(Some(1.0), None)?)
            }
            BagMode::Max => {
                let y = rows.masked_fill(&left_out, f64::NEG_INFINITY)?.in_bags(&ends, BagMode::Max)?;
                y.masked_fill(&y.detach().eq_scalar(f64::NEG_INFINITY)?, 0.0)
            }
        }
    }

    /// Rows combined between ends.
    fn in_bags(&self, ends: &Tensor, mode: BagMode) -> Result<Tensor> {
        let op = match mode {
            BagMode::Sum => SegmentReduce::Sum,
            BagMode::Mean => SegmentReduce::Mean,
            BagMode::Max => SegmentReduce::Max,
        };
        self.segment_reduce(op, ends)
    }
}

//! Positions, as sines or trained.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Tensor, is_trial, same_dtype};
use crate::layers::Dropout;
use crate::layers::spatial::positive;
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Layer, Param, Visitor};

/// Adds sines and cosines of the position to `[B, T, D]` or `[T, D]` (Vaswani et al., 2017): column 2i of position t gets sin(t
/// base^(-2i/D)), column 2i + 1 the cosine.
///
/// State: buffer `pe [max_len, D]`, computed in f64.
#[derive(Debug)]
pub struct PositionalEncoding {
    pe: Param,
    dropout: Option<Dropout>,
    cx: InitContext,
}

const OP: &str = "PositionalEncoding";

impl PositionalEncoding {
    /// Width `d_model`, positions below `max_len` (5000 is usual), base 10000, no dropout. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, max_len: usize) -> Result<Self> {
        Self::with_base(cx, d_model, max_len, 10_000.0)
    }

    /// As [`new`](Self::new) with another base. Errors: also a base that is not a finite number above 0; `OutOfMemory`.
    pub fn with_base(cx: &InitContext, d_model: usize, max_len: usize, base: f64) -> Result<Self> {
        if d_model == 0 || max_len == 0 || !(base > 0.0 && base.is_finite()) {
            let got = format!("d_model {d_model}, max_len {max_len}, base {base}");
            return Err(invalid(OP, "d_model", "sizes of at least 1 and a finite base above 0", got));
        }
        let value = |t: usize, j: usize| {
            let angle = t as f64 * base.powf(-((j - j % 2) as f64) / d_model as f64);
            if j.is_multiple_of(2) { angle.sin() } else { angle.cos() }
        };
        let cells = (0..max_len).flat_map(|t| (0..d_model).map(move |j| (t, j)));
        let shape = [max_len, d_model];
        let count = max_len.saturating_mul(d_model);
        let pe = match cx.param_dtype() {
            dtype if is_trial(cx.device()) => Tensor::empty(cx.device(), dtype, &shape)?,
            DType::F64 => {
                let mut table: Vec<f64> = vec![];
                limits::reserve(&mut table, count)?;
                table.extend(cells.map(|(t, j)| value(t, j)));
                Tensor::from_slice(cx.device(), &table, &shape)?
            }
            dtype => {
                let mut table: Vec<f32> = vec![];
                limits::reserve(&mut table, count)?;
                table.extend(cells.map(|(t, j)| value(t, j) as f32));
                Tensor::from_slice(cx.device(), &table, &shape)?.to_dtype(dtype)?
            }
        };
        Ok(PositionalEncoding { pe: Param::buffer(pe), dropout: None, cx: cx.clone() })
    }

    /// Drops elements of the sum in training. Errors: a probability outside of [0, 1].
    pub fn dropout(mut self, p: f64) -> Result<Self> {
        self.dropout = if p == 0.0 { None } else { Some(Dropout::part(&self.cx, p)?) };
        Ok(self)
    }

    /// As `forward` for a sequence whose first step has position `offset` (decoding step by step). Errors: positions beyond the table,
    /// another width.
    pub fn forward_at(&self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let pe = self.pe.get();
        let (max, d) = (pe.shape()[0], pe.shape()[1]);
        let (2 | 3, &[.., t, width]) = (x.rank(), x.shape()) else {
            let got = format!("shape {:?}", x.shape());
            return Err(invalid(OP, "x", "shape [B, T, D] or [T, D]", got));
        };
        if width != d {
            return Err(invalid(OP, "x", format!("a last axis of {d}"), format!("{width}")));
        }
        if offset.checked_add(t).is_none_or(|end| end > max) {
            let got = format!("{t} from {offset}");
            return Err(invalid(OP, "x", format!("positions below max_len {max}"), got));
        }
        same_dtype(OP, x, &pe)?;
        let y = x.add(&pe.narrow(0, offset, t)?)?;
        match &self.dropout {
            Some(drop) => hooks::layer("dropout", drop, &y),
            None => Ok(y),
        }
    }
}

impl Layer for PositionalEncoding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_at(x, 0)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("pe", &self.pe);
        if let Some(d) = &self.dropout {
            v.child("dropout", d);
        }
    }
}

/// Adds a trained vector for each position to `[B, T, D]` or `[T, D]`, as BERT and GPT do.
///
/// State: `weight [max_len, D]`, from N(0, 0.02^2) unless set otherwise.
#[derive(Debug)]
pub struct PositionalEmbedding {
    weight: Param,
}

const LEARNED: &str = "PositionalEmbedding";

impl PositionalEmbedding {
    /// Width `d_model`, positions below `max_len`. Errors: a size of 0.
    pub fn new(cx: &InitContext, d_model: usize, max_len: usize) -> Result<Self> {
        positive(LEARNED, "d_model", &[d_model])?;
        positive(LEARNED, "max_len", &[max_len])?;
        let normal = Init::Normal { mean: 0.0, std: 0.02 };
        Ok(PositionalEmbedding { weight: normal.param(cx, &[max_len, d_model], max_len, d_model)? })
    }

    /// Fills the table anew.
    pub fn init(self, cx: &InitContext, init: Init) -> Result<Self> {
        let shape = self.weight.get().shape().to_vec();
        Ok(PositionalEmbedding { weight: init.param(cx, &shape, shape[0], shape[1])? })
    }

    /// The table `[max_len, D]`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// As `forward` for a sequence whose first step has position `offset`. Errors: positions beyond the table, another width.
    pub fn forward_at(&self, x: &Tensor, offset: usize) -> Result<Tensor> {
        let w = self.weight.get();
        let (max, width) = (w.shape()[0], w.shape()[1]);
        let &[.., steps, d] = x.shape() else {
            return Err(invalid(LEARNED, "x", "shape [B, T, D] or [T, D]", format!("{:?}", x.shape())));
        };
        if d != width || offset.checked_add(steps).is_none_or(|end| end > max) {
            let want = format!("at most {max} positions of width {width}");
            return Err(invalid(LEARNED, "x", want, format!("{:?} from position {offset}", x.shape())));
        }
        same_dtype(LEARNED, x, &w)?;
        x.add(&w.narrow(0, offset, steps)?)
    }
}

impl Layer for PositionalEmbedding {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_at(x, 0)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("weight", &self.weight);
    }
}

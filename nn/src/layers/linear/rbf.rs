//! Radial basis functions.

use trefoil::ops::random::Rng;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::{named, positive};
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "Rbf";

/// Gaussian radial basis functions (Broomhead and Lowe, 1988), `[.., D] -> [.., J]`: exp(-|x - c_j|^2 / (2 s_j^2)) with trainable centers c
/// and widths s, of which max(|s_j|, floor) is used.
///
/// State: `centers [J, D]` from N(0, 1), `widths [J]` = 1.
///
/// Errors of `forward`: a last axis other than D.
#[derive(Debug)]
pub struct Rbf {
    cx: InitContext,
    centers: Param,
    widths: Param,
    floor: f64,
}

impl Rbf {
    /// `in_features -> out_features` with widths of at least 1e-6. Errors: a size of 0.
    pub fn new(cx: &InitContext, in_features: usize, out_features: usize) -> Result<Self> {
        positive(OP, "in_features", &[in_features])?;
        positive(OP, "out_features", &[out_features])?;
        let normal = Init::Normal { mean: 0.0, std: 1.0 };
        Ok(Rbf {
            cx: cx.clone(),
            centers: normal.param(cx, &[out_features, in_features], in_features, out_features)?,
            widths: Init::Constant(1.0).param(cx, &[out_features], in_features, out_features)?,
            floor: 1e-6,
        })
    }

    /// Sets the widths, and the least that they count as. Errors: a number that is not finite, a floor below 0, widths of 0 without a floor.
    pub fn widths(mut self, width: f64, floor: f64) -> Result<Self> {
        if !(floor >= 0.0 && floor.is_finite()) {
            return Err(invalid(OP, "width_floor", "a finite number of at least 0", format!("{floor}")));
        }
        if !width.is_finite() || (width == 0.0 && floor == 0.0) {
            let expected = "a finite number, not 0 without a floor";
            return Err(invalid(OP, "width_init", expected, format!("{width} with a floor of {floor}")));
        }
        self.widths.get().fill(width)?;
        self.floor = floor;
        Ok(self)
    }

    /// Puts the centers at different random rows of data `[N, D]`. Errors: another shape, fewer rows than centers.
    pub fn init_from(self, data: &Tensor) -> Result<Self> {
        let centers = self.centers.get();
        let (j, d) = (centers.shape()[0], centers.shape()[1]);
        let n = match *data.shape() {
            [n, width] if n >= j && width == d => n,
            _ => {
                let expected = format!("shape [N, {d}] with at least {j} rows");
                return Err(invalid(OP, "data", expected, format!("shape {:?}", data.shape())));
            }
        };
        let rng = Rng::new(self.cx.seed()).at(self.cx.next_stream(), 0);
        let rows = Tensor::permutation(data.device(), n, rng)?.narrow(0, 0, j)?;
        let chosen = data.detach().index_select(0, &rows)?;
        centers.detach().assign(&chosen.to_dtype(centers.dtype())?.to_device(centers.device())?)?;
        Ok(self)
    }
}

impl Layer for Rbf {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let centers = self.centers.get();
        let (j, d) = (centers.shape()[0], centers.shape()[1]);
        let lead = match x.shape() {
            [lead @ .., n] if *n == d => lead,
            other => return Err(invalid(OP, "x", format!("shape [.., {d}]"), format!("shape {other:?}"))),
        };
        same_dtype(OP, x, &centers)?;
        let widths = self.widths.get().abs()?.clamp(Some(self.floor), None)?;
        let rows = x.reshape(&[x.numel() / d, d])?;
        let y = named(OP, rows.cdist(&centers, 2.0))?.div(&widths)?.square()?.mul_scalar(-0.5)?.exp()?;
        y.reshape(&[lead, &[j]].concat())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("centers", &self.centers);
        v.param("widths", &self.widths);
    }
}

//! The linear layers around attention, as layers that attend with a projection for each role share them.

use trefoil::ops::gemm::Precision;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::Dense;
use crate::layers::attention::scores::{AttentionMasks, Scores, check_width};
use crate::module::Init;
use crate::module::hooks;
use crate::module::{InitContext, Visitor};

/// Projections of query, key, value and result, each a [`Dense`] under a name of its own, and the attention between them.
#[derive(Debug)]
pub(crate) struct Projections {
    op: &'static str,
    names: [&'static str; 4],
    layers: [Dense; 4],
    widths: [usize; 2],
    heads: usize,
    scores: Scores,
}

impl Projections {
    /// From queries of width `d` and contexts of width `dc` to `heads` heads of together `inner` numbers, and back to `d`. `bias`: in the
    /// first three projections, and in the last.
    pub(crate) fn new(
        cx: &InitContext,
        op: &'static str,
        names: [&'static str; 4],
        [d, dc, inner]: [usize; 3],
        heads: usize,
        bias: [bool; 2],
    ) -> Result<Self> {
        let dense = |inputs, outputs, bias| {
            let l = Dense::new(cx, inputs, outputs)?;
            Ok::<Dense, NnError>(if bias { l } else { l.no_bias() })
        };
        let (q, k) = (dense(d, inner, bias[0])?, dense(dc, inner, bias[0])?);
        let layers = [q, k, dense(dc, inner, bias[0])?, dense(inner, d, bias[1])?];
        Ok(Projections { op, names, layers, widths: [d, dc], heads, scores: Scores::new(cx) })
    }

    /// Widths of queries and contexts.
    pub(crate) fn widths(&self) -> [usize; 2] {
        self.widths
    }

    pub(crate) fn dropout(mut self, p: f64) -> Result<Self> {
        self.scores.dropout(self.op, p)?;
        Ok(self)
    }

    pub(crate) fn precision(mut self, precision: Precision) -> Self {
        self.layers = self.layers.map(|l| l.precision(precision));
        self
    }

    /// Fills all weights and biases anew.
    pub(crate) fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
        let [q, k, v, out] = self.layers;
        let fill = |l: Dense| l.init(weight, bias);
        self.layers = [fill(q)?, fill(k)?, fill(v)?, fill(out)?];
        Ok(self)
    }

    /// The last projection without bias.
    pub(crate) fn no_out_bias(mut self) -> Self {
        let [q, k, v, out] = self.layers;
        self.layers = [q, k, v, out.no_bias()];
        self
    }

    /// Fills the last projection anew.
    pub(crate) fn init_out(mut self, weight: Init, bias: Init) -> Result<Self> {
        let [q, k, v, out] = self.layers;
        self.layers = [q, k, v, out.init(weight, bias)?];
        Ok(self)
    }

    fn apply(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        hooks::layer(self.names[i], &self.layers[i], x)
    }

    /// Queries `[B, Tq, D]` over contexts `[B, Tk, Dc]`; a context of batch 1 serves all.
    pub(crate) fn attend(&self, q: &Tensor, c: &Tensor, masks: &AttentionMasks) -> Result<Tensor> {
        let [d, dc] = self.widths;
        check_width(self.op, "query", q, d)?;
        check_width(self.op, "context", c, dc)?;
        let (b, bc) = (q.shape()[0], c.shape()[0]);
        if bc != b && bc != 1 {
            return Err(invalid(self.op, "context", format!("a batch of {b} or 1"), format!("{bc}")));
        }
        let heads = |i: usize, x: &Tensor| -> Result<Tensor> {
            let t = self.apply(i, x)?.split_heads(1, self.heads)?.swap_remove(0);
            let shape = [&[b], &t.shape()[1..]].concat();
            t.expand(&shape)
        };
        let (q, k, v) = (heads(0, q)?, heads(1, c)?, heads(2, c)?);
        let o = self.scores.operation(self.op, &q, &k, masks)?.forward(&q, &k, &v)?;
        self.apply(3, &o.merge_heads()?)
    }

    /// What `forward_all` of these layers does: `[query]` or `[query, context]`.
    pub(crate) fn listed(
        &self,
        inputs: &[Tensor],
        attend: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let (q, c) = match inputs {
            [q] => (q, None),
            [q, c] => (q, Some(c)),
            _ => {
                return Err(invalid(
                    self.op,
                    "inputs",
                    "1 or 2 tensors",
                    format!("{} tensors", inputs.len()),
                ));
            }
        };
        Ok(vec![attend(q, c)?])
    }

    pub(crate) fn visit(&self, v: &mut Visitor<'_>) {
        for (name, l) in self.names.iter().zip(&self.layers) {
            v.child(name, l);
        }
        self.scores.visit(v);
    }
}

//! All gradients of a layer with few inputs and outputs, by one pass over the rows.

use super::gradients;
use super::plan::GemmProblem;
use super::product::MatrixOperand;
use crate::buffer::View;
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, adds, dims};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::gemm::*;
use crate::spec::kernels::gemm::*;

/// The most inputs and outputs of `gemm/narrow.c`, and its rows in local memory.
const INPUTS: usize = 16;
const OUTPUTS: usize = 64;
const ROWS: usize = 64;
/// Numbers of a block's part.
const PART: usize = (INPUTS + 1) * OUTPUTS;

/// What decides whether `gemm/narrow.c` serves the gradients of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NarrowLayer {
    e: Extents,
    dtype: DType,
    /// Whether dY and what is saved lie in rows of whole items of 16 bytes.
    rows: bool,
    /// Whether nothing else is asked of it: no transposed A, no factor of 0, a bias of the columns.
    plain: bool,
}

impl NarrowLayer {
    /// Whether the kernel can serve it.
    fn fits(&self) -> bool {
        let e = self.e;
        let some = e.m > 0 && e.n > 0 && e.k > 0;
        let small = e.batch == 1 && e.n <= OUTPUTS && e.k <= INPUTS && e.n.is_multiple_of(4);
        self.dtype == DType::F32 && self.rows && self.plain && some && small
    }

    /// Rows of a block, two of which run on a unit at a time, and blocks.
    fn blocks(&self, caps: &Caps) -> [usize; 2] {
        let units = (caps.compute_units as usize).max(1);
        let rows = self.e.m.div_ceil(2 * units).next_multiple_of(ROWS);
        [rows, self.e.m.div_ceil(rows)]
    }
}

/// The gradients of a layer: all of them at once by this kernel, or by products.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerGradients<'a> {
    layer: NarrowLayer,
    /// One of the products.
    product: GemmProblem<'a>,
}

impl<'a> LayerGradients<'a> {
    /// Of a layer with operands in rows and nothing else asked of it.
    pub(super) fn plain(e: Extents, product: GemmProblem<'a>) -> Self {
        LayerGradients { layer: NarrowLayer { e, dtype: product.dtype, rows: true, plain: true }, product }
    }
}

/// Number of the variant that serves all gradients at once; those before it are of products.
const NARROW: usize = GemmProblem::VARIANTS.len();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GradientPlan {
    /// At once, by blocks of so many rows.
    Narrow { rows: usize, blocks: usize },
    /// One after the other.
    Products,
}

impl Problem for LayerGradients<'_> {
    type Plan = GradientPlan;

    const VARIANTS: &'static [Variant] = &{
        let own = Variant { name: "narrow_inputs", source: "kernels/common/gemm/narrow.c" };
        let mut all = [own; NARROW + 1];
        let (before, _) = all.split_at_mut(NARROW);
        before.copy_from_slice(GemmProblem::VARIANTS);
        all
    };

    fn plan(&self, variant: usize, caps: &Caps) -> Result<GradientPlan, Reason> {
        if variant != NARROW {
            return self.product.plan(variant, caps).map(|_| GradientPlan::Products);
        }
        if !self.layer.fits() {
            return Err("it is no layer in f32 with at most 16 inputs and 64 outputs, in rows of whole items of 16 bytes".into());
        }
        let [rows, blocks] = self.layer.blocks(caps);
        Ok(GradientPlan::Narrow { rows, blocks })
    }

    /// A pass and the sum of its parts are two launches; products, the activation's gradient before and sums for a bias behind them are up to six.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant == NARROW || !self.layer.fits() && self.product.prefers(variant, caps)
    }
}

fn narrow_layer(p: &Gemm, io: &GemmBwd<'_>, e: Extents) -> NarrowLayer {
    let in_rows = |v: &View<'_>| {
        let m = MatrixOperand::new(v, steps(v, false));
        m.aligned && m.steps[1] == 1 && m.steps[0].is_multiple_of(4)
    };
    let rows = io.dy.shape().len() == 2 && in_rows(&io.dy) && io.saved.as_ref().is_none_or(in_rows);
    let bias =
        p.bias_axis == GemmAxis::Col && io.dbias.as_ref().is_none_or(|g| g.out.as_view().is_contiguous());
    let plain = !p.trans_a && bias && io.a.shape().len() == 2 && p.alpha != 0.0;
    NarrowLayer { e, dtype: io.a.dtype(), rows, plain }
}

impl Engine {
    /// Computes all gradients if one kernel serves them, and says whether it did.
    pub(super) fn narrow_gradients(&self, p: &Gemm, io: &GemmBwd<'_>, e: Extents) -> Result<bool> {
        let layer = narrow_layer(p, io, e);
        if !layer.fits() {
            return Ok(false);
        }
        let Some(product) = gradients(p, io, &io.dy, e).into_iter().flatten().next() else {
            return Ok(false);
        };
        let plans = self.vendor_plans("gemm_bwd", &product.q, false);
        let problem = LayerGradients { layer, product: plans.problem(&product.q) };
        let GradientPlan::Narrow { rows, blocks } = self.plan("gemm_bwd", &problem)? else {
            return Ok(false);
        };
        self.narrow_pass(p, io, e, [rows, blocks])?;
        Ok(true)
    }

    fn narrow_pass(&self, p: &Gemm, io: &GemmBwd<'_>, e: Extents, [rows, blocks]: [usize; 2]) -> Result<()> {
        let summed = io.db.is_some() || io.dbias.is_some();
        let part = summed.then(|| self.scratch(DType::F32, blocks * PART)).transpose()?;
        let part = part.as_ref().map(|b| b.view());
        let act = fused_act("gemm_bwd", p.act)?;
        let saved = io.saved.as_ref().filter(|_| act.0 != 0);
        let two = |v: &View<'_>| [v.layout().strides()[0], v.layout().strides()[1]];
        let [b_k, b_n, _] = steps(&io.b, p.trans_b);
        let dx = io.da.as_ref().map_or([0; 2], |g| two(&g.out.as_view()));
        let (y, x) = (two(&io.dy)[0], two(&io.a));
        let args = GemmNarrowBwdArgs {
            dy: self.arg_in(&io.dy),
            saved: self.arg_opt(saved),
            x: self.arg_in(&io.a),
            b: self.arg_in(&io.b),
            dx: self.arg_grad(&io.da),
            part: self.arg_opt(part.as_ref()),
            size: dims([e.m, e.n, e.k, rows]),
            steps: dims([y, saved.map_or(0, |v| two(v)[0]), x[0], x[1], dx[0], dx[1], b_k, b_n]),
            alpha: p.alpha,
            act: if saved.is_some() { act.0 } else { 0 },
            p: act.1,
            from_y: i32::from(p.act.reads_output()),
            accumulate: adds(&io.da),
        };
        self.launch(&GEMM_NARROW_BWD, DType::F32, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        let Some(part) = part else { return Ok(()) };
        let db = io.db.as_ref().map_or([0; 3], |g| steps(&g.out.as_view(), p.trans_b));
        let args = GemmNarrowCombineArgs {
            part: self.arg_in(&part),
            db: self.arg_grad(&io.db),
            dbias: self.arg_grad(&io.dbias),
            size: dims([e.n, e.k, db[0], db[1], blocks]),
            alpha: p.alpha,
            accumulate: adds(&io.db) + 2 * adds(&io.dbias),
        };
        self.launch(&GEMM_NARROW_COMBINE, DType::F32, "", Grid::Blocks([INPUTS + 1, 1, 1]), &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;

    #[test]
    fn layers_of_few_inputs_and_outputs_have_a_kernel_of_their_own() {
        let e = Extents { batch: 1, m: 200_000, n: 64, k: 8 };
        let layer = NarrowLayer { e, dtype: DType::F32, rows: true, plain: true };
        assert!(layer.fits());
        let caps = Caps { compute_units: 132, ..gpu() };
        assert_eq!(layer.blocks(&caps), [768, 261]);
        let few = NarrowLayer { e: Extents { m: 100, ..e }, ..layer };
        assert!(few.fits());
        assert_eq!(few.blocks(&caps), [64, 2]);
        for other in [
            NarrowLayer { dtype: DType::Bf16, ..layer },
            NarrowLayer { rows: false, ..layer },
            NarrowLayer { plain: false, ..layer },
            NarrowLayer { e: Extents { n: 68, ..e }, ..layer },
            NarrowLayer { e: Extents { n: 63, ..e }, ..layer },
            NarrowLayer { e: Extents { k: 17, ..e }, ..layer },
            NarrowLayer { e: Extents { m: 0, ..e }, ..layer },
        ] {
            assert!(!other.fits(), "{other:?}");
        }
    }
}

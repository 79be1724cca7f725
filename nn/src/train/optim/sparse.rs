//! Optimizer steps on the rows of a table that a batch used.

use trefoil::ops::optimizer::{OptimRule, RowSlot, STATES, Step};

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device};
use crate::module::Param;

/// The optimizer of one table `[N, ..]` whose batches use few of its rows: a step changes parameter and state of the rows that it is given,
/// no others, so that decay and momentum act when a row is used. Gradients of one row are added up. The table must not belong to an
/// [`Optimizer`](crate::Optimizer) at the same time ([freeze](Param::set_requires_grad) it before that is built). Source
/// `torch.optim.SparseAdam`, whose eps is outside of the bias correction; for other rules the dense rule on these rows.
///
/// ```
/// use trefoil::{Registry, Selector, ops::embedding::EmbeddingGrad};
/// use trefoil_nn::optim::{OptimRule, SparseOptimizer};
/// use trefoil_nn::{Param, Tensor};
///
/// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
/// let table = Param::buffer(Tensor::ones(&device, trefoil::DType::F32, &[1000, 2])?);
/// let mut optimizer = SparseOptimizer::new(&table, OptimRule::Sgd { wd: 0.0 }, 0.5)?;
/// let ids = Tensor::from_slice(&device, &[7i64, 3], &[2])?;
/// // The rows are a leaf of the graph in place of the table.
/// let rows = table.get().embedding(&ids, &EmbeddingGrad::new())?.with_grad();
/// rows.square()?.sum()?.backward()?;
/// if let Some(grad) = rows.grad() {
///     optimizer.step(&ids, &grad)?;
/// }
/// assert_eq!(table.get().narrow(0, 6, 2)?.to_vec::<f32>()?, [1., 1., 0., 0.]);
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
#[derive(Debug)]
pub struct SparseOptimizer {
    table: Param,
    rule: OptimRule,
    lr: f64,
    steps: u64,
    state: Vec<Tensor>,
}

impl SparseOptimizer {
    /// For a table of floats `[N, ..]`, with states of zeros. Errors: `Invalid` for a scalar, a learning rate that is negative or not
    /// finite; the rules that look at whole tensors (LARS, LAMB, Adan, Sophia, adaptive ones) are refused by the first step.
    pub fn new(table: &Param, rule: OptimRule, lr: f64) -> Result<Self> {
        const OP: &str = "SparseOptimizer";
        let t = table.get();
        if t.rank() == 0 || !t.dtype().is_float() {
            let got = format!("{} {:?}", t.dtype().name(), t.shape());
            return Err(invalid(OP, "table", "floats of shape [N, ..]", got));
        }
        let state =
            rule.states().iter().map(|_| Tensor::zeros(t.device(), t.dtype().accumulator(), t.shape()));
        let state = state.collect::<Result<_>>()?;
        let mut o = SparseOptimizer { table: table.clone(), rule, lr: 0.0, steps: 0, state };
        o.set_lr(lr)?;
        Ok(o)
    }

    /// Sets the learning rate. Errors: `Invalid` for a negative one and one that is not finite.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        if !(lr.is_finite() && lr >= 0.0) {
            let expected = "a finite learning rate of at least 0";
            return Err(invalid("SparseOptimizer", "lr", expected, format!("{lr}")));
        }
        self.lr = lr;
        Ok(())
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of steps, with [`state_tensors`](SparseOptimizer::state_tensors) what a run that goes on needs.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// The states by name, each of the table's shape, f32 (f64 for f64 tables); they share memory with the optimizer.
    pub fn state_tensors(&self) -> Vec<(&'static str, Tensor)> {
        self.rule.states().iter().copied().zip(self.state.iter().cloned()).collect()
    }

    /// One update of the rows `ids` (i32 or i64 `[k]`, any order, repeated ones too) from their gradients `[k, ..]`. An id out of range
    /// changes nothing and is reported by the next call that waits. Errors: `Invalid` for shapes and dtypes that do not fit, and for a rule
    /// without a sparse form; nothing is changed then.
    pub fn step(&mut self, ids: &Tensor, grads: &Tensor) -> Result<()> {
        const OP: &str = "optimizer_step_rows";
        let w = self.table.get().detach();
        same_device(OP, &w, ids)?;
        same_device(OP, &w, grads)?;
        let (ids, grads) = (ids.detach().contiguous()?, grads.detach().contiguous()?);
        let (wo, io, go) = (w.operand(), ids.operand(), grads.operand());
        let state: Vec<Operand> = self.state.iter().map(Tensor::operand).collect();
        let mut slots = [const { None }; STATES];
        for (slot, s) in slots.iter_mut().zip(&state) {
            *slot = Some(s.view_mut()?);
        }
        let slot = RowSlot::new(wo.view_mut()?, io.view()?, go.view()?).state(slots);
        w.device().optimizer_step_rows(&self.rule, &Step::host(self.lr, self.steps + 1), slot)?;
        w.storage().touch();
        self.state.iter().for_each(|s| s.storage().touch());
        self.steps += 1;
        Ok(())
    }
}

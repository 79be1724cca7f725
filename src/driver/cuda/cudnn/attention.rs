//! Attention as a graph of products, pointwise operations and reductions, which the library recognizes as a whole and runs as one kernel or a few.

use std::sync::Arc;

use cudarc::cudnn::sys as dnn;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::cudnnBackendNumericalNote_t as Note;
use dnn::cudnnDataType_t as DataType;
use dnn::cudnnPointwiseMode_t as Pointwise;
use dnn::cudnnReduceTensorOp_t as Reduction;

use super::descriptor::{Api, Descriptor, Value, data_type};
use super::graph::{Graph, Notes, Way};
use crate::driver::{AttentionTensor, VendorAttentionProblem};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// The first version that is asked: 9.10.
const FIRST_VERSION: usize = 91_000;
/// Columns of a head at most.
const MAX_COLUMNS: usize = 128;
/// The most workspace that a call may want, and scores of gradients that one stores at most, in bytes.
const MAX_WORKSPACE: usize = 3 << 29;
const MAX_SCORES: usize = 1 << 30;
/// A multiple at which parts of the workspace begin.
const PART: usize = 256;

/// Whether the problem is one that the library is asked about at all.
pub(super) fn eligible(version: usize, p: &VendorAttentionProblem) -> std::result::Result<(), String> {
    if version < FIRST_VERSION {
        return Err(format!("version {version} is older than {FIRST_VERSION}"));
    }
    if !matches!(p.dtype, DType::F16 | DType::Bf16) {
        return Err(format!("attention in {}", p.dtype));
    }
    let [d, dv] = [&p.q, &p.v].map(|t| t.extents[3]);
    if [d, dv].iter().any(|n| !n.is_multiple_of(8) || !(8..=MAX_COLUMNS).contains(n)) {
        return Err(format!("heads of {d} and {dv} columns"));
    }
    let gradients = p.gradients.iter().flatten();
    let all: Vec<&AttentionTensor> = [&p.q, &p.k, &p.v, &p.o].into_iter().chain(gradients).collect();
    if all.iter().any(|t| t.extents.contains(&0)) {
        return Err("an extent is 0".into());
    }
    let gapless = |t: &AttentionTensor| t.strides[3] == 1 && t.strides.iter().all(|&s| s > 0);
    if !all.iter().all(|t| gapless(t)) {
        return Err("a tensor repeats".into());
    }
    if all.iter().any(|t| t.extents.iter().zip(t.strides).any(|(&n, s)| n.saturating_mul(s) > 1 << 40)) {
        return Err("a tensor is too large".into());
    }
    Ok(())
}

/// Where the address of a tensor comes from when a graph runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// Of the operands, by their number.
    Operand(usize),
    /// The factor of the scores.
    Scale,
    /// A number of the graph.
    Constant(f32),
    /// Of the workspace, from this byte on.
    Workspace(usize),
}

/// Attention, ready to run.
#[derive(Debug)]
pub(super) struct AttentionPlan {
    way: Way,
    _graph: Graph,
    /// The names of the tensors in memory.
    ids: Vec<i64>,
    sources: Vec<Source>,
    /// Bytes of the workspace in front of the kernel's own.
    parts: usize,
    /// What each call adds to the addresses of the operands.
    calls: Vec<Vec<u64>>,
}

impl AttentionPlan {
    /// The first kernel that the library proposes, repeats bit by bit if it must, and is content with the workspace.
    pub(super) fn new(
        api: &Arc<Api>,
        handle: u64,
        p: &VendorAttentionProblem,
        repeats: bool,
    ) -> std::result::Result<Self, String> {
        let text = |e: GpuError| e.to_string();
        let part = match p.gradients.is_some() && repeats {
            true => part(p),
            false => [p.q.extents[0], p.k.extents[1]],
        };
        let calls = calls(p, part);
        let p = &narrowed(p, part);
        let mut b = Builder::new(api, p).map_err(text)?;
        match p.gradients {
            None => b.forward(),
            Some(gradients) => b.backward(&gradients, repeats),
        }
        .map_err(text)?;
        let Builder { parts, operations, ids, sources, workspace, .. } = b;
        let graph = Graph::new(api, handle, parts, |i| operations.contains(&i)).map_err(text)?;
        let mut why = "the library has no kernel for it".to_string();
        for config in graph.configs(Mode::CUDNN_HEUR_MODE_A).map_err(text)? {
            let way = Notes::of(&config).and_then(|found| {
                let allowed = !(repeats && found.0.has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
                allowed.then(|| Way::new(handle, config, found)).transpose()
            });
            match way {
                Ok(Some(way)) if way.workspace + workspace <= MAX_WORKSPACE => {
                    log::debug!("cuDNN: attention: engine {}, {:?}", way.engine, way.notes);
                    return Ok(AttentionPlan { way, _graph: graph, ids, sources, parts: workspace, calls });
                }
                Ok(Some(way)) => {
                    why = format!("its kernels want {} bytes of workspace", way.workspace + workspace)
                }
                Ok(None) => why = "no kernel of the library repeats".into(),
                Err(e) => why = e.to_string(),
            }
        }
        Err(why)
    }

    /// Bytes of workspace.
    pub(super) fn workspace(&self) -> usize {
        self.parts + self.way.workspace
    }

    /// Queues the work on the handle's stream.
    ///
    /// # Safety
    /// The operands and the workspace are addresses of live memory of the sizes that the problem and the plan say.
    pub(super) unsafe fn execute(
        &self,
        handle: u64,
        operands: &[u64],
        scale: f32,
        workspace: u64,
    ) -> Result<()> {
        let number = |s: &Source| match *s {
            Source::Scale => scale,
            Source::Constant(c) => c,
            _ => 0.0,
        };
        let numbers: Vec<f32> = self.sources.iter().map(number).collect();
        self.calls.iter().try_for_each(|from| {
            let address = |(s, number): (&Source, &f32)| match *s {
                Source::Operand(i) => operands[i] + from[i],
                Source::Workspace(at) => workspace + at as u64,
                // Numbers are read by the call, from the host.
                Source::Scale | Source::Constant(_) => std::ptr::from_ref(number) as u64,
            };
            let addresses: Vec<u64> = self.sources.iter().zip(&numbers).map(address).collect();
            // SAFETY: forwarded; the numbers outlive the call.
            unsafe { self.way.execute(handle, (&self.ids, &addresses), workspace + self.parts as u64) }
        })
    }
}

/// The largest divisor of `n` that is no larger than `most`; 1 at least.
fn divisor(n: usize, most: usize) -> usize {
    (1..=most.min(n)).rev().find(|d| n.is_multiple_of(*d)).unwrap_or(1)
}

/// Batches and heads of keys of a call, so that the scores of gradients that it stores are not too many: all heads of some batches, or some of one.
fn part(p: &VendorAttentionProblem) -> [usize; 2] {
    let ([batch, heads, lq, _], [_, kv_heads, lk, _]) = (p.q.extents, p.k.extents);
    let head = lq.saturating_mul(lk).saturating_mul(p.dtype.size());
    let of_batch = head.saturating_mul(heads);
    if of_batch <= MAX_SCORES {
        return [divisor(batch, MAX_SCORES / of_batch), kv_heads];
    }
    let group = head.saturating_mul(heads / kv_heads);
    [1, divisor(kv_heads, MAX_SCORES / group)]
}

/// The problem of one call.
fn narrowed(p: &VendorAttentionProblem, [batch, kv_heads]: [usize; 2]) -> VendorAttentionProblem {
    let group = p.q.extents[1] / p.k.extents[1];
    let narrow = |t: &AttentionTensor, heads: usize| {
        let [_, _, rows, columns] = t.extents;
        AttentionTensor { extents: [batch, heads, rows, columns], ..*t }
    };
    let (wide, keys) =
        (|t: &AttentionTensor| narrow(t, kv_heads * group), |t: &AttentionTensor| narrow(t, kv_heads));
    VendorAttentionProblem {
        q: wide(&p.q),
        k: keys(&p.k),
        v: keys(&p.v),
        o: wide(&p.o),
        gradients: p.gradients.map(|[o, q, k, v]| [wide(&o), wide(&q), keys(&k), keys(&v)]),
        ..*p
    }
}

/// Where the operands of each call begin, in bytes.
fn calls(p: &VendorAttentionProblem, [batches, kv_heads]: [usize; 2]) -> Vec<Vec<u64>> {
    let ([batch, heads, lq, _], all_kv) = (p.q.extents, p.k.extents[1]);
    let group = heads / all_kv;
    let size = p.dtype.size();
    let parts = (0..batch).step_by(batches).flat_map(|b| (0..all_kv).step_by(kv_heads).map(move |h| (b, h)));
    parts
        .map(|(b, h)| {
            let at = |t: &AttentionTensor, h: usize| ((b * t.strides[0] + h * t.strides[1]) * size) as u64;
            let logarithms = ((b * heads + h * group) * lq * DType::F32.size()) as u64;
            let (wide, keys) = (|t: &AttentionTensor| at(t, h * group), |t: &AttentionTensor| at(t, h));
            let mut from = vec![wide(&p.q), keys(&p.k), keys(&p.v), wide(&p.o), logarithms];
            from.extend(p.gradients.iter().flat_map(|[o, q, k, v]| [wide(o), wide(q), keys(k), keys(v)]));
            from
        })
        .collect()
}

/// A tensor of a graph that is being built: the number of its descriptor.
type Tensor = usize;

/// A graph that is being built.
struct Builder<'a> {
    api: &'a Arc<Api>,
    p: &'a VendorAttentionProblem,
    /// The library's name of the storage type.
    storage: DataType,
    parts: Vec<Descriptor>,
    /// Which of the parts are operations, in their order.
    operations: Vec<usize>,
    ids: Vec<i64>,
    sources: Vec<Source>,
    workspace: usize,
}

const F32: DataType = DataType::CUDNN_DATA_FLOAT;
const NUMBER: [usize; 4] = [1; 4];

/// Rows as columns.
fn transposed(t: &AttentionTensor) -> AttentionTensor {
    let mut t = *t;
    t.extents.swap(2, 3);
    t.strides.swap(2, 3);
    t
}

impl<'a> Builder<'a> {
    fn new(api: &'a Arc<Api>, p: &'a VendorAttentionProblem) -> Result<Self> {
        let storage = data_type(p.dtype).ok_or_else(|| GpuError::driver("cudnn", 0, "type of a tensor"))?;
        let (parts, operations, ids, sources) = (vec![], vec![], vec![], vec![]);
        Ok(Builder { api, p, storage, parts, operations, ids, sources, workspace: 0 })
    }

    fn part(&mut self, kind: Kind, attributes: &[(Name, Value<'_>)]) -> Result<usize> {
        self.parts.push(Descriptor::with(self.api, kind, attributes)?);
        Ok(self.parts.len() - 1)
    }

    /// A tensor in memory or, without a source, one that is never stored.
    fn tensor(&mut self, ty: DataType, t: &AttentionTensor, source: Option<Source>) -> Result<Tensor> {
        let ints = |v: &[usize; 4]| v.map(|x| x as i64);
        let id = self.parts.len() as i64 + 1;
        let by_value = matches!(source, Some(Source::Scale | Source::Constant(_)));
        let attributes = [
            (Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Value::DataType(ty)),
            (Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Value::Ints(&ints(&t.extents))),
            (Name::CUDNN_ATTR_TENSOR_STRIDES, Value::Ints(&ints(&t.strides))),
            (Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Value::Ints(&[id])),
            (Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Value::Ints(&[16])),
            (Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Value::Flag(source.is_none())),
            (Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, Value::Flag(by_value)),
        ];
        if let Some(source) = source {
            self.ids.push(id);
            self.sources.push(source);
        }
        self.part(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR, &attributes)
    }

    fn operand(&mut self, i: usize, t: &AttentionTensor) -> Result<Tensor> {
        self.tensor(self.storage, t, Some(Source::Operand(i)))
    }

    fn number(&mut self, source: Source) -> Result<Tensor> {
        self.tensor(F32, &AttentionTensor::packed(NUMBER), Some(source))
    }

    /// A tensor in f32 in the workspace.
    fn part_of_workspace(&mut self, t: &AttentionTensor) -> Result<Tensor> {
        let at = self.workspace;
        self.workspace += (4 * t.extents.iter().product::<usize>()).next_multiple_of(PART);
        self.tensor(F32, t, Some(Source::Workspace(at)))
    }

    fn operation(&mut self, kind: Kind, desc: Name, made: usize, tensors: &[(Name, Tensor)]) -> Result<()> {
        let made = [&self.parts[made]];
        let tensors: Vec<_> = tensors.iter().map(|&(name, t)| (name, [&self.parts[t]])).collect();
        let mut attributes = vec![(desc, Value::Descriptors(&made))];
        attributes.extend(tensors.iter().map(|(name, t)| (*name, Value::Descriptors(t))));
        let operation = Descriptor::with(self.api, kind, &attributes)?;
        self.operations.push(self.parts.len());
        self.parts.push(operation);
        Ok(())
    }

    /// y = f(x, b), or t ? x : b.
    fn pointwise_to(&mut self, f: Pointwise, ty: DataType, from: &[Tensor], to: Tensor) -> Result<()> {
        self.pointwise_along(f, ty, None, from, to)
    }

    /// y = the position of an element along an axis.
    fn positions(&mut self, like: Tensor, axis: i64, shape: &AttentionTensor) -> Result<Tensor> {
        let to = self.tensor(DataType::CUDNN_DATA_INT32, shape, None)?;
        self.pointwise_along(Pointwise::CUDNN_POINTWISE_GEN_INDEX, F32, Some(axis), &[like], to)?;
        Ok(to)
    }

    fn pointwise_along(
        &mut self,
        f: Pointwise,
        ty: DataType,
        axis: Option<i64>,
        from: &[Tensor],
        to: Tensor,
    ) -> Result<()> {
        use Name::*;
        let mut attributes = vec![
            (CUDNN_ATTR_POINTWISE_MODE, Value::Pointwise(f)),
            (CUDNN_ATTR_POINTWISE_MATH_PREC, Value::DataType(ty)),
        ];
        let axis = axis.as_slice();
        if !axis.is_empty() {
            attributes.push((CUDNN_ATTR_POINTWISE_AXIS, Value::Ints(axis)));
        }
        let made = self.part(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &attributes)?;
        let names = [
            CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
            CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        ];
        let mut tensors: Vec<_> = names.into_iter().zip(from.iter().copied()).collect();
        tensors.push((CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to));
        let desc = CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR;
        self.operation(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, desc, made, &tensors)
    }

    /// A result in f32 that is never stored.
    fn pointwise(&mut self, f: Pointwise, from: &[Tensor], like: &AttentionTensor) -> Result<Tensor> {
        let to = self.tensor(F32, like, None)?;
        self.pointwise_to(f, F32, from, to)?;
        Ok(to)
    }

    fn matmul(&mut self, a: Tensor, b: Tensor, to: Tensor) -> Result<()> {
        use Name::*;
        let attributes = [(CUDNN_ATTR_MATMUL_COMP_TYPE, Value::DataType(F32))];
        let made = self.part(Kind::CUDNN_BACKEND_MATMUL_DESCRIPTOR, &attributes)?;
        let tensors = [
            (CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
            (CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
            (CUDNN_ATTR_OPERATION_MATMUL_CDESC, to),
        ];
        let desc = CUDNN_ATTR_OPERATION_MATMUL_DESC;
        self.operation(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, desc, made, &tensors)
    }

    fn reduce_to(&mut self, f: Reduction, x: Tensor, to: Tensor) -> Result<()> {
        use Name::*;
        let attributes = [
            (CUDNN_ATTR_REDUCTION_OPERATOR, Value::Reduction(f)),
            (CUDNN_ATTR_REDUCTION_COMP_TYPE, Value::DataType(F32)),
        ];
        let made = self.part(Kind::CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &attributes)?;
        let tensors = [(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x), (CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to)];
        let desc = CUDNN_ATTR_OPERATION_REDUCTION_DESC;
        self.operation(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, desc, made, &tensors)
    }

    fn reduce(&mut self, f: Reduction, x: Tensor, to: &AttentionTensor) -> Result<Tensor> {
        let to = self.tensor(F32, to, None)?;
        self.reduce_to(f, x, to)?;
        Ok(to)
    }

    /// The same elements under other extents, in the storage type.
    fn reshape(&mut self, x: Tensor, like: &AttentionTensor) -> Result<Tensor> {
        use Name::*;
        let to = self.tensor(self.storage, like, None)?;
        let kind = Kind::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
        let tensors = [(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to)];
        self.operation(kind, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, &tensors)?;
        Ok(to)
    }

    /// Scores, and a number per query.
    fn shapes(&self) -> [AttentionTensor; 2] {
        let [b, h, lq, _] = self.p.q.extents;
        [[b, h, lq, self.p.k.extents[2]], [b, h, lq, 1]].map(AttentionTensor::packed)
    }

    /// -inf where a key is later than the query.
    fn hide_later(&mut self, s: Tensor) -> Result<Tensor> {
        let [scores, _] = self.shapes();
        let (row, column) = (self.positions(s, 2, &scores)?, self.positions(s, 3, &scores)?);
        let truth = DataType::CUDNN_DATA_BOOLEAN;
        let visible = self.tensor(truth, &scores, None)?;
        self.pointwise_to(Pointwise::CUDNN_POINTWISE_CMP_GE, truth, &[row, column], visible)?;
        let hidden = self.number(Source::Constant(f32::NEG_INFINITY))?;
        self.pointwise(Pointwise::CUDNN_POINTWISE_BINARY_SELECT, &[s, hidden, visible], &scores)
    }

    fn forward(&mut self) -> Result<()> {
        use Pointwise::*;
        let p = self.p;
        let [scores, rows] = self.shapes();
        let (q, kt) = (self.operand(0, &p.q)?, self.operand(1, &transposed(&p.k))?);
        let s = self.tensor(F32, &scores, None)?;
        self.matmul(q, kt, s)?;
        let scale = self.number(Source::Scale)?;
        let mut s = self.pointwise(CUDNN_POINTWISE_MUL, &[s, scale], &scores)?;
        if p.causal {
            s = self.hide_later(s)?;
        }
        let max = self.reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, s, &rows)?;
        let below = self.pointwise(CUDNN_POINTWISE_SUB, &[s, max], &scores)?;
        let e = self.pointwise(CUDNN_POINTWISE_EXP, &[below], &scores)?;
        let sum = self.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, e, &rows)?;
        let log = self.pointwise(CUDNN_POINTWISE_LOG, &[sum], &rows)?;
        let logarithms = self.tensor(F32, &rows, p.logarithms.then_some(Source::Operand(4)))?;
        self.pointwise_to(CUDNN_POINTWISE_ADD, F32, &[max, log], logarithms)?;
        let probabilities = self.tensor(self.storage, &scores, None)?;
        self.pointwise_to(CUDNN_POINTWISE_DIV, F32, &[e, sum], probabilities)?;
        let (v, o) = (self.operand(2, &p.v)?, self.operand(3, &p.o)?);
        self.matmul(probabilities, v, o)
    }

    /// A product whose result is summed over the query heads that share a head of `to`.
    fn matmul_over_heads(&mut self, a: Tensor, b: Tensor, i: usize, to: &AttentionTensor) -> Result<()> {
        let [n, _, rows, columns] = to.extents;
        let heads = self.p.q.extents[1];
        let result = self.operand(i, to)?;
        if heads == to.extents[1] {
            return self.matmul(a, b, result);
        }
        let each = self.tensor(self.storage, &AttentionTensor::packed([n, heads, rows, columns]), None)?;
        self.matmul(a, b, each)?;
        self.reduce_to(Reduction::CUDNN_REDUCE_TENSOR_ADD, each, result)
    }

    /// `repeats`: dQ is a product of stored dS rather than a sum by atomic additions.
    fn backward(&mut self, [dout, dq, dk, dv]: &[AttentionTensor; 4], repeats: bool) -> Result<()> {
        use Pointwise::*;
        let p = self.p;
        let [scores, rows] = self.shapes();
        let [b, h, lq, _] = p.q.extents;
        let (o, dout) = (self.operand(3, &p.o)?, self.operand(5, dout)?);
        let parts = AttentionTensor::packed([b, h, lq, p.v.extents[3]]);
        let products = self.pointwise(CUDNN_POINTWISE_MUL, &[dout, o], &parts)?;
        let sums = self.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, products, &rows)?;
        let one = self.number(Source::Constant(1.0))?;
        let delta = self.part_of_workspace(&rows)?;
        self.pointwise_to(CUDNN_POINTWISE_MUL, F32, &[sums, one], delta)?;

        let (q, kt) = (self.operand(0, &p.q)?, self.operand(1, &transposed(&p.k))?);
        let s = self.tensor(F32, &scores, None)?;
        self.matmul(q, kt, s)?;
        let scale = self.number(Source::Scale)?;
        let s = self.pointwise(CUDNN_POINTWISE_MUL, &[s, scale], &scores)?;
        let logarithms = self.tensor(F32, &rows, Some(Source::Operand(4)))?;
        let mut s = self.pointwise(CUDNN_POINTWISE_SUB, &[s, logarithms], &scores)?;
        if p.causal {
            s = self.hide_later(s)?;
        }
        let e = self.pointwise(CUDNN_POINTWISE_EXP, &[s], &scores)?;
        let across = transposed(&scores);
        let et = self.reshape(e, &across)?;
        self.matmul_over_heads(et, dout, 8, dv)?;

        let vt = self.operand(2, &transposed(&p.v))?;
        let dp = self.tensor(F32, &scores, None)?;
        self.matmul(dout, vt, dp)?;
        let ds = self.pointwise(CUDNN_POINTWISE_SUB, &[dp, delta], &scores)?;
        let ds = self.pointwise(CUDNN_POINTWISE_MUL, &[ds, e], &scores)?;
        let ds = self.pointwise(CUDNN_POINTWISE_MUL, &[ds, scale], &scores)?;
        let dst = self.reshape(ds, &across)?;
        self.matmul_over_heads(dst, q, 7, dk)?;

        let k = self.reshape(kt, &p.k)?;
        let result = self.operand(6, dq)?;
        if repeats {
            return self.matmul(ds, k, result);
        }
        let sums = self.part_of_workspace(&AttentionTensor::packed(p.q.extents))?;
        self.matmul(ds, k, sums)?;
        self.pointwise_to(CUDNN_POINTWISE_IDENTITY, F32, &[sums], result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem([batch, heads, kv_heads, l, d]: [usize; 5]) -> VendorAttentionProblem {
        let [wide, keys] = [heads, kv_heads].map(|h| AttentionTensor::packed([batch, h, l, d]));
        let gradients = Some([wide, wide, keys, keys]);
        let (q, k, v, o) = (wide, keys, keys, wide);
        VendorAttentionProblem { q, k, v, o, gradients, logarithms: true, causal: true, dtype: DType::Bf16 }
    }

    #[test]
    fn gradients_are_cut_so_that_a_call_stores_a_gibibyte_of_scores() {
        assert_eq!(part(&problem([8, 12, 12, 1024, 64])), [8, 12]);
        assert_eq!(part(&problem([4, 16, 16, 4096, 64])), [2, 16]);
        assert_eq!(part(&problem([3, 16, 16, 4096, 64])), [1, 16]);
        assert_eq!(part(&problem([2, 16, 16, 8192, 128])), [1, 8]);
        assert_eq!(part(&problem([2, 32, 8, 8192, 128])), [1, 2]);
        assert_eq!(part(&problem([2, 32, 1, 65_536, 128])), [1, 1]);
    }

    #[test]
    fn calls_begin_where_the_one_before_ends() {
        let p = problem([2, 4, 2, 8, 16]);
        assert_eq!(calls(&p, [2, 2]), vec![vec![0; 9]]);
        let (head, bytes) = (8 * 16 * 2, |n: usize| n as u64);
        let of = |b: usize, h: usize| {
            let (wide, keys) = (bytes((4 * b + 2 * h) * head), bytes((2 * b + h) * head));
            let logarithms = bytes((4 * b + 2 * h) * 8 * 4);
            vec![wide, keys, keys, wide, logarithms, wide, wide, keys, keys]
        };
        assert_eq!(calls(&p, [1, 1]), [of(0, 0), of(0, 1), of(1, 0), of(1, 1)]);
        let one = narrowed(&p, [1, 1]);
        assert_eq!((one.q.extents, one.k.extents), ([1, 2, 8, 16], [1, 1, 8, 16]));
        assert_eq!(one.gradients.map(|g| g[3].extents), Some([1, 1, 8, 16]));
        assert_eq!(one.q.strides, p.q.strides);
    }

    #[test]
    fn unfit_problems_are_refused_with_a_reason() {
        let p = problem([2, 4, 2, 8, 16]);
        let why = |p: VendorAttentionProblem| eligible(91_900, &p).unwrap_err();
        eligible(91_900, &p).unwrap();
        assert!(eligible(90_900, &p).is_err_and(|why| why.contains("90900")));
        assert!(why(VendorAttentionProblem { dtype: DType::F32, ..p }).contains("f32"));
        assert!(why(problem([2, 4, 2, 8, 20])).contains("20 and 20 columns"));
        assert!(why(problem([2, 4, 2, 8, 136])).contains("136"));
        assert!(why(problem([2, 4, 2, 0, 16])).contains("extent is 0"));
        let repeated = AttentionTensor { strides: [0, 0, 16, 1], ..p.k };
        assert!(why(VendorAttentionProblem { k: repeated, ..p }).contains("repeats"));
    }
}

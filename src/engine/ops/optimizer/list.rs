//! Lists of tensors, and the tables with which one launch serves many of them.

use super::ARRAYS;
use super::plan::{ListPlan, ListProblem};
use crate::buffer::View;
use crate::driver::{Ptr, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::spec::BLOCK;

/// Elements per block and pass: `GK_CHUNK` of the kernels.
const CHUNK: usize = BLOCK as usize * 32;

/// Tensors of one launch: base pointers, and the words of the table that the kernels of `kernels/common/optimizer` read.
pub(super) struct List<const N: usize = ARRAYS> {
    pub(super) bases: [Ptr; N],
    pub(super) words: Vec<i64>,
    pub(super) tensors: usize,
    pub(super) chunks: usize,
}

impl<const N: usize> List<N> {
    /// Blocks that share a chunk, a power of two: as many as fill a device that has room for `target` of them, of which each thread has 16 bytes at least.
    pub(super) fn parts(&self, dtype: DType, target: usize) -> usize {
        let most = CHUNK / (BLOCK as usize * 16 / dtype.size()).max(CHUNK / 8);
        (target / self.chunks.max(1)).clamp(1, most).next_power_of_two().min(most)
    }

    pub(super) fn grid(&self) -> Grid {
        Grid::Blocks([self.chunks.min(1 << 20), 1, 1])
    }
}

/// Cuts a list into launches.
pub(super) fn cut<const N: usize>(tensors: &[[Option<View<'_>>; N]], plan: ListPlan) -> Vec<List<N>> {
    let addresses = plan == ListPlan::Fused;
    let mut lists: Vec<(List<N>, [Option<RawMem>; N])> = vec![];
    for t in tensors {
        let len = t.iter().flatten().next().map_or(0, View::numel);
        if len == 0 {
            continue;
        }
        let raw = t.map(|v| v.and_then(|v| v.block().raw()));
        let fits = lists.last().is_some_and(|(_, bases)| addresses || *bases == raw);
        if !fits {
            let base = |m: Option<RawMem>| Ptr(m.filter(|_| !addresses).map(|m| (m, 0)));
            lists.push((List { bases: raw.map(base), words: vec![], tensors: 0, chunks: 0 }, raw));
        }
        let Some((list, _)) = lists.last_mut() else { continue };
        list.words.extend([list.chunks as i64, len as i64]);
        for (v, m) in t.iter().zip(raw) {
            let offset = v.map_or(0, |v| {
                let base = if addresses { m.map_or(0, |m| m.0) as usize } else { 0 };
                base / v.dtype().size() + v.layout().offset()
            });
            list.words.push(offset as i64);
        }
        list.tensors += 1;
        list.chunks += len.div_ceil(CHUNK);
    }
    lists
        .into_iter()
        .map(|(mut l, _)| {
            l.words.push(l.chunks as i64);
            l
        })
        .collect()
}

impl Engine {
    /// The launches that serve a list of tensors. All of them count as written: kernels that get addresses do not show which they write.
    pub(super) fn lists<const N: usize>(
        &self,
        op: &'static str,
        tensors: &[[Option<View<'_>>; N]],
    ) -> Result<Vec<List<N>>> {
        let plan = self.plan(op, &ListProblem)?;
        self.wrote(tensors.iter().flatten().flatten().filter_map(|v| v.block().raw()));
        Ok(cut(tensors, plan))
    }
}

/// Gradients stand in the second place of a table row.
pub(super) fn grad_tensors<'a>(grads: impl Iterator<Item = View<'a>>) -> Vec<[Option<View<'a>>; ARRAYS]> {
    grads.map(|g| [None, Some(g), None, None, None, None]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_lists_have_more_blocks() {
        let list = |chunks| List::<1> { bases: [Ptr::NULL], words: vec![], tensors: 1, chunks };
        let parts = |chunks, dtype| list(chunks).parts(dtype, 1056);
        assert_eq!([1, 33, 300, 600, 100_000].map(|n| parts(n, DType::F32)), [8, 8, 4, 1, 1]);
        assert_eq!([parts(33, DType::Bf16), parts(33, DType::F64), parts(0, DType::F32)], [4, 8, 8]);
    }
}

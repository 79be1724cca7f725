//! From operands to a launch: arguments, geometry, checks, counting.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Engine;
use super::capture::About;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{Arg, DimsArg, LaunchConfig, Ptr, RawFunction, RawMem};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::index_error;
use crate::layout::{Layout, MAX_RANK};
use crate::spec::{BLOCK, Kernel, KernelArgs, KernelSpec, Role};

/// How many blocks a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grid {
    /// A grid-stride loop over this many threads; the loop runs more than once only where the grid is capped.
    Stride(usize),
    /// Exactly this many blocks per axis. The kernel loops where a count could exceed the device's limit.
    Blocks([usize; 3]),
    /// The same, with so many bytes for the kernel's `GK_LOCAL_DYNAMIC`.
    BlocksWithLocal([usize; 3], usize),
    /// So many blocks on the first axis, of so many threads instead of [`BLOCK`], with bytes of `GK_LOCAL_DYNAMIC`.
    BlocksOf { blocks: usize, threads: u32, local: usize },
    /// Blocks that all run at a time, with bytes for `GK_LOCAL_DYNAMIC`.
    Cooperative([usize; 3], usize),
}

/// Arguments of a kernel that takes the named fields over from those of another, `$from`.
macro_rules! args_from {
    ($from:ident => $to:ident [$($field:ident)*] { $($own:tt)* }) => {
        $to { $($field: $from.$field,)* $($own)* }
    };
}
pub(in crate::engine) use args_from;

/// Blocks per axis that every device takes on the second and third axis.
pub(crate) const MAX_GRID_YZ: usize = 65_535;

impl Engine {
    /// Queues a kernel of the table for a storage type, specialised for `op` (empty for units without).
    pub(crate) fn launch<A: KernelArgs>(
        &self,
        kernel: &'static Kernel<A>,
        dtype: DType,
        op: &'static str,
        grid: Grid,
        args: &A,
    ) -> Result<()> {
        args.with(dtype, |args| self.launch_checked(&kernel.spec, dtype, op, grid, args))
    }

    /// [`Engine::launch`] with the arguments in the order of the prototype.
    fn launch_checked(
        &self,
        kernel: &'static KernelSpec,
        dtype: DType,
        op: &'static str,
        grid: Grid,
        args: &[Arg<'_>],
    ) -> Result<()> {
        self.check_poison()?;
        debug_assert!(kernel.has_unit(dtype, op), "{} has no unit for {dtype} and {op:?}", kernel.entry);
        let d = &self.inner.device;
        let Some(cfg) = self.geometry(grid).map(LaunchConfig::waits) else { return Ok(()) };
        let mut compiled = 0;
        let f = d.programs.function(&*d.driver, kernel, dtype, op, &mut compiled);
        if compiled > 0 {
            d.counts.compiles.fetch_add(compiled, Ordering::Relaxed);
        }
        let f = f?;
        let code_at = match f.code_at.map(|at| &args[at]) {
            Some(&Arg::I32(code)) if self.records() => {
                self.note_report(code);
                None
            }
            _ => f.code_at,
        };
        // Held until the kernel is queued: its report must not be cleared with those of earlier ones.
        let mut may_report = code_at.map(|_| super::lock(&self.inner.may_report));
        if let (Some(list), Some(&Arg::I32(code))) = (&mut may_report, code_at.map(|at| &args[at])) {
            if list.iter().all(|(c, _)| *c != code) {
                list.push((code, index_error::now()));
            }
            self.inner.reports_pending.store(true, Ordering::Release);
        }
        let outputs = kernel.args.iter().zip(args).filter(|(spec, _)| matches!(spec.role, Role::Out(_)));
        self.wrote(outputs.filter_map(|(_, arg)| memory_of(arg)));
        self.enqueue(f.raw, kernel.entry, &cfg, args, About::known(kernel, dtype, op))
    }

    /// Notes that work on this stream, which is about to be queued, writes `memory`, if that may ever be asked for.
    pub(crate) fn wrote(&self, memory: impl IntoIterator<Item = RawMem>) {
        let d = &self.inner.device;
        let mut memory = memory.into_iter();
        if self.note_recorded(&mut memory) {
            return;
        }
        if self.inner.reports_pending.load(Ordering::Acquire) || d.index_errors.any() {
            d.writes.wrote(self.inner.stream_id, memory);
        }
    }

    /// Queues a kernel whose arguments fit it and whose outputs were noted.
    pub(crate) fn enqueue(
        &self,
        f: RawFunction,
        name: &str,
        cfg: &LaunchConfig,
        args: &[Arg<'_>],
        about: About,
    ) -> Result<()> {
        if let Some(recorded) = self.record_launch(f, name, cfg, args, about) {
            return recorded;
        }
        let (d, stream) = (&self.inner.device, self.inner.stream);
        d.counts.launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the arguments are those of the prototype: of kernels of the table because their struct was made from it, of a user's because
        // `launch_raw` checked them; that the kernel stays within its views was validated by the caller, or is vouched for by its author.
        self.timed(name, || unsafe { d.driver.launch(stream, f, cfg, args) })
            .map_err(|e| self.refused(name_kernel(e, name)))?;
        if d.sync_each {
            // SAFETY: the stream is the driver's and lives as long as the pool.
            unsafe { d.driver.synchronize(stream) }.map_err(|e| self.poison(name_kernel(e, name)))?;
        }
        Ok(())
    }

    /// Queues a copy of `bytes` between places that do not overlap and whose write was noted.
    pub(crate) fn queue_copy(&self, from: (RawMem, u64), to: (RawMem, u64), bytes: usize) -> Result<()> {
        if let Some(recorded) = self.record_copy(from, to, bytes) {
            return recorded;
        }
        // SAFETY: the callers checked that both ranges are live memory of this driver, whose stream it is, and that they do not overlap.
        self.timed("copy", || unsafe { self.driver().copy(self.inner.stream, from, to, bytes) })
            .map_err(|e| self.refused(e))
    }

    /// Grid and block; `None` for an empty grid.
    pub(super) fn geometry(&self, grid: Grid) -> Option<LaunchConfig> {
        let caps = self.device_caps();
        let (mut local, mut block) = (0, BLOCK);
        let together = matches!(grid, Grid::Cooperative(..));
        let grid = match grid {
            Grid::Stride(items) => {
                // A GPU streams best with one short-lived block per 256 items (measured: 97 % of copy bandwidth against 91 % for blocks
                // that loop); a CPU gains nothing from more than a few blocks per core.
                let most = if caps.is_cpu { caps.compute_units as usize * 2 } else { i32::MAX as usize };
                [items.div_ceil(BLOCK as usize).min(most.max(1)), 1, 1]
            }
            Grid::Blocks(b) => b,
            Grid::BlocksWithLocal(b, bytes) | Grid::Cooperative(b, bytes) => {
                local = bytes;
                b
            }
            Grid::BlocksOf { blocks, threads, local: bytes } => {
                (block, local) = (threads, bytes);
                [blocks, 1, 1]
            }
        };
        if grid.contains(&0) {
            return None;
        }
        let grid = grid.map(|g| g.min(i32::MAX as usize) as u32);
        let cfg = LaunchConfig::new(grid, [block, 1, 1]).local_bytes(local as u32);
        Some(if together { cfg.cooperative() } else { cfg })
    }

    /// Pointer argument of a view: its memory and the byte offset of its first element.
    pub(crate) fn arg_in(&self, v: &View<'_>) -> Ptr {
        let at = v.layout().offset() * v.dtype().size();
        Ptr(v.block().raw().map(|m| (m, at as u64)))
    }

    /// Pointer argument of an output.
    pub(crate) fn arg_out(&self, v: &ViewMut<'_>) -> Ptr {
        self.arg_in(&v.as_view())
    }

    /// Pointer argument of an optional input; null without.
    pub(crate) fn arg_opt(&self, v: Option<&View<'_>>) -> Ptr {
        v.map_or(Ptr::NULL, |v| self.arg_in(v))
    }

    /// Pointer argument of an optional output; null without.
    pub(crate) fn arg_opt_out(&self, v: Option<&ViewMut<'_>>) -> Ptr {
        v.map_or(Ptr::NULL, |v| self.arg_out(v))
    }

    /// Pointer argument of an optional gradient; null without.
    pub(crate) fn arg_grad(&self, g: &Option<GradMut<'_>>) -> Ptr {
        self.arg_opt_out(g.as_ref().map(|g| &g.out))
    }

    /// The `err` parameter of kernels that check indices.
    pub(crate) fn arg_error(&self) -> Ptr {
        self.arg_in(&self.inner.error_word.view())
    }

    /// Refuses views of another device or stream. Every operation calls it for each operand before anything else touches them.
    pub(crate) fn check_owner(&self, op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
        let id = self.device_caps().id;
        if v.device() != id || v.block().raw().is_none() {
            return Err(GpuError::invalid(
                op,
                arg,
                format!("a buffer on {id}"),
                format!("one on {}", v.device()),
            ));
        }
        if v.block().stream() != self.inner.stream_id {
            return Err(GpuError::invalid(
                op,
                arg,
                "a buffer of this handle's stream (CoreOps::adopt moves one over)",
                "one of another stream of the device",
            ));
        }
        self.keep_recorded(v);
        self.profile_operand(op, v);
        Ok(())
    }

    /// [`Engine::check_owner`] for a list of operands; absent ones are fine.
    pub(crate) fn check_owner_all<'a, V>(&self, op: &'static str, views: &[(&'static str, V)]) -> Result<()>
    where
        V: Into<Option<View<'a>>> + Copy,
    {
        views.iter().try_for_each(|&(arg, v)| v.into().map_or(Ok(()), |v| self.check_owner(op, arg, &v)))
    }

    /// Scratch memory; it returns to the pool when dropped, and the stream's order keeps it valid for work queued until then.
    pub(crate) fn scratch(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.alloc_buffer(dtype, len)
    }

    /// A table of 64-bit numbers in device memory, uploaded once per content. Lists of tensors travel this way.
    pub(crate) fn table(&self, words: &[i64]) -> Result<Table> {
        let table = self.find_table(words)?;
        self.keep_table(&table);
        Ok(table)
    }

    /// The table of a name, made at its first use.
    pub(crate) fn named_table(
        &self,
        name: (&'static str, usize, DType),
        words: impl FnOnce() -> Vec<i64>,
    ) -> Result<Table> {
        let tables = || self.inner.tables.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(t) = tables().named.get(&name).cloned() {
            self.keep_table(&t);
            return Ok(t);
        }
        let table = self.table(&words())?;
        tables().named.insert(name, table.clone());
        Ok(table)
    }

    fn find_table(&self, words: &[i64]) -> Result<Table> {
        // Its contents are the same in every replay.
        let _run = self.suspend();
        let mut tables = self.inner.tables.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(t) = tables.map.get(words) {
            return Ok(t.clone());
        }
        if tables.map.len() >= TableCache::MAX {
            tables.clear();
        }
        let memory = match &tables.slab {
            Some(slab) if slab.len() - tables.used >= words.len() => slab.clone(),
            _ => {
                let slab = Arc::new(self.alloc_buffer(DType::I64, words.len().max(TableCache::SLAB))?);
                (tables.slab, tables.used) = (Some(slab.clone()), 0);
                slab
            }
        };
        let view = memory.view().range(tables.used, words.len())?;
        let arg = self.arg_in(&view);
        if let Some(raw) = view.block().raw() {
            self.inner.device.counts.uploads.fetch_add(1, Ordering::Relaxed);
            let at = (tables.used * size_of::<i64>()) as u64;
            // SAFETY: the range lies in the slab, no table has it yet, and the stream is the driver's.
            unsafe { self.driver().copy_in(self.inner.stream, raw, at, bytemuck::cast_slice(words))? };
        }
        let table = Table { memory, arg };
        tables.used += words.len();
        tables.map.insert(words.into(), table.clone());
        Ok(table)
    }
}

/// A table in device memory; lives as long as this does.
#[derive(Clone)]
pub(crate) struct Table {
    memory: Arc<Buffer>,
    /// What a kernel gets.
    pub(crate) arg: Ptr,
}

impl Table {
    /// The memory in which it lies.
    pub(crate) fn memory(&self) -> Option<RawMem> {
        self.memory.view().block().raw()
    }
}

/// Argument tables by content. Small: a training loop uses a handful; when full, the whole cache is dropped.
///
/// They lie in memory of their own: one that took a block of the pool would move the tensors of the next step, whose addresses then need
/// another table.
#[derive(Default)]
pub(crate) struct TableCache {
    map: HashMap<Box<[i64]>, Table>,
    named: HashMap<(&'static str, usize, DType), Table>,
    slab: Option<Arc<Buffer>>,
    /// Words of the slab that tables have.
    used: usize,
}

impl TableCache {
    const MAX: usize = 256;
    /// Words of a slab.
    const SLAB: usize = 1 << 15;

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Threads per block.
pub(crate) const LANES: usize = BLOCK as usize;

/// Smallest power of two that is not below `n`, at most `max` (a power of two).
pub(crate) fn pow2(n: usize, max: usize) -> usize {
    n.clamp(1, max).next_power_of_two()
}

/// An `int` argument.
pub(crate) fn int(v: usize) -> i32 {
    v as i32
}

/// A `gk_i64` argument.
pub(crate) fn long(v: usize) -> i64 {
    v as i64
}

/// A `gk_dims` parameter.
pub(crate) fn dims(v: impl IntoIterator<Item = usize>) -> DimsArg {
    let mut d = [0i64; MAX_RANK];
    for (o, x) in d.iter_mut().zip(v) {
        *o = x as i64;
    }
    DimsArg(d)
}

/// The memory of a pointer argument.
pub(crate) fn memory_of(arg: &Arg<'_>) -> Option<RawMem> {
    match arg {
        Arg::Mem(m) => m.map(|(memory, _)| memory),
        Arg::Map(map) => Some(map.place.0),
        _ => None,
    }
}

pub(crate) fn name_kernel(e: GpuError, kernel: &str) -> GpuError {
    match e {
        GpuError::Driver(mut d) => {
            d.kernel.get_or_insert_with(|| kernel.to_string());
            GpuError::Driver(d)
        }
        e => e,
    }
}

/// 1 for a gradient that is added to what its memory holds, else 0.
pub(crate) fn adds(g: &Option<GradMut<'_>>) -> i32 {
    i32::from(g.as_ref().is_some_and(|g| g.accumulate))
}

/// Number under which kernels report an index out of range of `op`, and back.
pub(crate) fn code_of_op(op: &'static str) -> i32 {
    crate::ops::all_ops().position(|o| o.name == op).map_or(i32::MAX, |p| p as i32 + 1)
}

pub(crate) fn op_of_code(code: i32) -> &'static str {
    crate::ops::all_ops().nth((code - 1).max(0) as usize).map_or("kernel", |o| o.name)
}

/// Layouts of several operands of one shape with axes merged where all of them step uniformly; the innermost axis is last.
#[derive(Debug, Clone)]
pub(crate) struct Merged<const N: usize> {
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: [Vec<usize>; N],
}

impl<const N: usize> Merged<N> {
    /// All layouts have the same shape.
    pub(crate) fn new(layouts: [&Layout; N]) -> Self {
        Merged::of_axes(layouts, 0..layouts[0].rank())
    }

    /// As [`new`](Merged::new) for operations that may take the elements in any order: in that in which those of operand `k` lie.
    pub(crate) fn in_order_of(k: usize, layouts: [&Layout; N]) -> Self {
        let mut axes: Vec<usize> = (0..layouts[k].rank()).collect();
        if !layouts[k].is_contiguous() {
            axes.sort_by_key(|&a| std::cmp::Reverse(layouts[k].strides()[a]));
        }
        Merged::of_axes(layouts, axes)
    }

    fn of_axes(layouts: [&Layout; N], axes: impl IntoIterator<Item = usize>) -> Self {
        let mut m = Merged { shape: vec![], strides: [const { vec![] }; N] };
        for axis in axes {
            let n = layouts[0].shape()[axis];
            if n == 1 {
                continue;
            }
            let step = |k: usize| layouts[k].strides()[axis];
            let joins = !m.shape.is_empty() && (0..N).all(|k| m.strides[k].last() == Some(&(step(k) * n)));
            if let (true, Some(last)) = (joins, m.shape.last_mut()) {
                *last *= n;
                (0..N).for_each(|k| *m.strides[k].last_mut().unwrap_or(&mut 0) = step(k));
            } else {
                m.shape.push(n);
                (0..N).for_each(|k| m.strides[k].push(step(k)));
            }
        }
        if m.shape.is_empty() {
            m.shape.push(1);
            m.strides.iter_mut().for_each(|s| s.push(1));
        }
        m
    }

    /// Whether operand `k` is contiguous in this order.
    pub(crate) fn is_flat(&self, k: usize) -> bool {
        self.shape.len() == 1 && (self.strides[k][0] == 1 || self.shape[0] == 1)
    }
}

/// Whether a view's first element lies at a multiple of 16 bytes (blocks are 256-byte aligned).
pub(crate) fn aligned16(v: &View<'_>) -> bool {
    (v.layout().offset() * v.dtype().size()).is_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_all_operands_allow_it() {
        let y = Layout::contiguous(&[4, 3, 5]).unwrap();
        let m = Merged::new([&y, &y]);
        assert_eq!((m.shape.as_slice(), m.strides[0].as_slice()), (&[60][..], &[1][..]));
        let b = Layout::contiguous(&[5]).unwrap().broadcast_to(&[4, 3, 5]).unwrap();
        let m = Merged::new([&y, &b]);
        assert_eq!(m.shape, [12, 5]);
        assert_eq!(m.strides, [vec![5, 1], vec![0, 1]]);
        let last = Layout::channels_last(&[2, 3, 4, 5]).unwrap();
        let m = Merged::in_order_of(1, [&last, &last]);
        assert!(m.is_flat(0) && m.is_flat(1));
        let channel = Layout::contiguous(&[3, 1, 1]).unwrap().broadcast_to(&[2, 3, 4, 5]).unwrap();
        let m = Merged::in_order_of(0, [&last, &channel]);
        assert_eq!((m.shape, m.strides), (vec![40, 3], [vec![3, 1], vec![0, 1]]));
    }

    #[test]
    fn op_codes_are_found_again() {
        for o in crate::ops::all_ops() {
            assert_eq!(op_of_code(code_of_op(o.name)), o.name);
        }
    }
}

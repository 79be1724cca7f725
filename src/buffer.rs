//! Device memory and views of it.
//!
//! A [`Buffer`] owns a block of one backend's memory and tags it with an element type. Operations take [`View`]s (shared, `Copy`)
//! and [`ViewMut`]s (exclusive); both carry a [`Layout`], so any strided part of a buffer can be an operand. A buffer may be dropped
//! while work on it is queued: the block returns to the pool of the same in-order stream.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use half::{bf16, f16};

use crate::device::DeviceId;
use crate::driver::{Driver, RawMem, RawStream};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::index_error::Write;
use crate::layout::{Layout, LayoutError};

/// Memory of the CPU backend: one vector per element type, so that no cast is ever needed.
#[derive(Debug, Clone)]
pub(crate) enum HostData {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

/// A block of the CPU backend.
#[derive(Debug)]
pub(crate) struct HostMem {
    pub(crate) data: RwLock<HostData>,
    /// The last write.
    pub(crate) write: Mutex<Write>,
}

/// What keeps imported memory alive: dropped when the memory is no longer used, by views or by work on the stream.
pub type Owner = Box<dyn Any + Send>;

/// Where a block's memory is.
pub(crate) enum Mem {
    /// Memory of a driver.
    Device(RawMem),
    /// Memory of a driver that somebody else owns, with what keeps it alive.
    Foreign(RawMem, Mutex<Option<Owner>>),
    /// Memory of a backend outside this crate.
    Custom(Box<dyn Any + Send + Sync>),
    /// Memory of the CPU backend.
    Host(HostMem),
}

/// Takes back the memory of dropped blocks.
pub(crate) trait Reclaimer: Send + Sync {
    fn reclaim(&self, mem: Mem, bytes: usize);
    /// Gives up a live block of this size: its memory moves to another reclaimer.
    fn release(&self, bytes: usize);
    /// The stream whose order protects the blocks; `None` where work is done before calls return.
    fn stream(&self) -> Option<RawStream>;
    /// Whether the memory stays the reclaimer's, so that a block cannot move to another.
    fn lends(&self) -> bool {
        false
    }
    /// The driver that the memory is of, if it is a driver's.
    fn driver(&self) -> Option<&Arc<dyn Driver>> {
        None
    }
}

/// A reference-counted piece of device memory. Opaque; reached through [`Buffer`].
pub struct Block {
    id: u64,
    device: DeviceId,
    stream: u64,
    bytes: usize,
    mem: Option<Mem>,
    reclaimer: Option<Arc<dyn Reclaimer>>,
}

static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);

impl Block {
    /// `reclaimer` is `None` for memory that is freed by its own destructor.
    pub(crate) fn new(
        device: DeviceId,
        stream: u64,
        bytes: usize,
        mem: Mem,
        reclaimer: Option<Arc<dyn Reclaimer>>,
    ) -> Self {
        let id = NEXT_BLOCK.fetch_add(1, Ordering::Relaxed);
        Block { id, device, stream, bytes, mem: Some(mem), reclaimer }
    }

    /// Unique over the life of the process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its size, after rounding to a size class.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream whose pool it came from.
    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// Driver memory, if this block is a driver's.
    pub(crate) fn raw(&self) -> Option<RawMem> {
        match &self.mem {
            Some(Mem::Device(m) | Mem::Foreign(m, _)) => Some(*m),
            _ => None,
        }
    }

    /// CPU memory, if this block is the CPU backend's.
    pub(crate) fn host(&self) -> Option<&HostMem> {
        match &self.mem {
            Some(Mem::Host(h)) => Some(h),
            _ => None,
        }
    }
}

impl Block {
    /// The stream whose order protects it, if it belongs to a pool that has one.
    pub(crate) fn pool_stream(&self) -> Option<RawStream> {
        self.reclaimer.as_ref()?.stream()
    }

    /// Whether its memory must go back to where it came from.
    pub(crate) fn is_lent(&self) -> bool {
        self.reclaimer.as_ref().is_some_and(|r| r.lends())
    }

    /// Driver of the pool that it goes back to.
    pub(crate) fn pool_driver(&self) -> Option<&Arc<dyn Driver>> {
        self.reclaimer.as_ref()?.driver()
    }

    /// Takes the memory out, so that another reclaimer can be given to it.
    pub(crate) fn take(mut self) -> (Option<Mem>, usize, Option<Arc<dyn Reclaimer>>) {
        (self.mem.take(), self.bytes, self.reclaimer.take())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (Some(mem), Some(reclaimer)) = (self.mem.take(), self.reclaimer.take()) {
            reclaimer.reclaim(mem, self.bytes);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes on {})", self.bytes, self.device)
    }
}

/// Typed, owned device memory. Made by [`CoreOps::alloc`](crate::ops::core::CoreOps::alloc); freed (to the pool) when dropped.
#[derive(Debug)]
pub struct Buffer {
    block: Arc<Block>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(block: Arc<Block>, dtype: DType, len: usize) -> Self {
        Buffer { block, dtype, len }
    }

    /// A buffer over memory of a backend outside this crate: `len` elements of `dtype`. The memory is dropped with the last holder of the
    /// buffer; [`View::custom`] gives it back to the backend. `Invalid` for 2^59 elements or more.
    pub fn custom(
        device: DeviceId,
        memory: Box<dyn Any + Send + Sync>,
        dtype: DType,
        len: usize,
    ) -> Result<Self> {
        let bytes = crate::engine::checked_bytes("custom", dtype, len)?;
        Ok(Buffer::new(Arc::new(Block::new(device, 0, bytes, Mem::Custom(memory), None)), dtype, len))
    }

    /// The block, if nothing else holds it.
    pub(crate) fn into_block(self) -> Option<Block> {
        Arc::try_unwrap(self.block).ok()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device it lives on.
    pub fn device(&self) -> DeviceId {
        self.block.device
    }

    /// A number that no other live or dead buffer of this process has.
    pub fn id(&self) -> u64 {
        self.block.id
    }

    fn flat(&self) -> Layout {
        Layout::contiguous(&[self.len]).unwrap_or_else(|e| unreachable!("buffers keep to the bound: {e}"))
    }

    /// All of it as a vector.
    pub fn view(&self) -> View<'_> {
        View { block: &self.block, dtype: self.dtype, layout: self.flat(), len: self.len }
    }

    /// All of it as a vector, writable.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.alias_mut()
    }

    /// A writable view through a shared reference, for frameworks that share buffers between tensors and keep track of writes
    /// themselves. Operations still refuse overlapping operands at run time, and work on one stream is ordered, so this is sound;
    /// what it gives up is only the compile-time check.
    pub fn alias_mut(&self) -> ViewMut<'_> {
        ViewMut { block: &self.block, dtype: self.dtype, layout: self.flat(), len: self.len }
    }

    /// All of it in row-major order under `shape`. Errors with `Invalid` if the sizes differ.
    pub fn shaped(&self, shape: &[usize]) -> Result<View<'_>> {
        self.view().reshape(shape)
    }

    /// All of it in row-major order under `shape`, writable. Errors with `Invalid` if the sizes differ.
    pub fn shaped_mut(&mut self, shape: &[usize]) -> Result<ViewMut<'_>> {
        self.alias_mut().reshape(shape)
    }
}

macro_rules! view_methods {
    () => {
        /// Element type.
        pub fn dtype(&self) -> DType {
            self.dtype
        }

        /// Shape, strides and offset.
        pub fn layout(&self) -> &Layout {
            &self.layout
        }

        /// Sizes.
        pub fn shape(&self) -> &[usize] {
            self.layout.shape()
        }

        /// Number of elements.
        pub fn numel(&self) -> usize {
            self.layout.numel()
        }

        /// Whether the elements lie row-major without gaps.
        pub fn is_contiguous(&self) -> bool {
            self.layout.is_contiguous()
        }

        /// Device it lives on.
        pub fn device(&self) -> DeviceId {
            self.block.device
        }

        /// The memory that [`Buffer::custom`] was given; `None` for buffers of this crate's backends.
        pub fn custom(&self) -> Option<&'a (dyn Any + Send + Sync)> {
            match &self.block.mem {
                Some(Mem::Custom(memory)) => Some(&**memory),
                _ => None,
            }
        }

        pub(crate) fn block(&self) -> &'a Arc<Block> {
            self.block
        }

        /// The same buffer under another layout. Errors with `Invalid` if the layout reaches beyond the buffer.
        pub fn with_layout(mut self, layout: Layout) -> Result<Self> {
            let span = layout.span();
            if span.end > self.len {
                return Err(GpuError::invalid(
                    "view",
                    "layout",
                    format!("at most {} elements", self.len),
                    format!("a layout that reaches element {}", span.end),
                ));
            }
            self.layout = layout;
            Ok(self)
        }

        /// Applies a transformation of [`Layout`]; `Invalid` where it does not apply.
        pub fn map(
            self,
            what: &'static str,
            f: impl FnOnce(&Layout) -> std::result::Result<Layout, LayoutError>,
        ) -> Result<Self> {
            match f(&self.layout) {
                Ok(l) => self.with_layout(l),
                Err(why) => Err(GpuError::invalid(
                    "view",
                    what,
                    format!(
                        "arguments that fit shape {:?} strides {:?}",
                        self.layout.shape(),
                        self.layout.strides()
                    ),
                    why.to_string(),
                )),
            }
        }

        /// The same elements under another shape, without copying.
        pub fn reshape(self, shape: &[usize]) -> Result<Self> {
            match self.layout.reshape(shape) {
                Ok(l) => self.with_layout(l),
                Err(why) => Err(GpuError::invalid(
                    "view",
                    "shape",
                    format!("{} elements that need no copy", self.layout.numel()),
                    format!(
                        "{shape:?} over shape {:?} strides {:?}: {why}",
                        self.layout.shape(),
                        self.layout.strides()
                    ),
                )),
            }
        }

        /// Elements `start..start + len` of the flat buffer, as a vector.
        pub fn range(self, start: usize, len: usize) -> Result<Self> {
            match Layout::contiguous(&[len]).and_then(|l| l.shifted(start)) {
                Ok(l) => self.with_layout(l),
                Err(why) => Err(GpuError::invalid(
                    "view",
                    "range",
                    format!("a part of {} elements", self.len),
                    format!("{len} elements from {start}: {why}"),
                )),
            }
        }
    };
}

/// Shared view of a buffer: element type, layout and the memory behind it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    block: &'a Arc<Block>,
    dtype: DType,
    layout: Layout,
    len: usize,
}

impl<'a> View<'a> {
    view_methods!();

    /// Broadcast to `shape` with stride 0 on the repeated axes.
    pub fn broadcast_to(self, shape: &[usize]) -> Result<Self> {
        if shape == self.layout.shape() {
            return Ok(self);
        }
        self.map("shape", |l| l.broadcast_to(shape))
    }
}

/// Exclusive view of a buffer.
#[derive(Debug)]
pub struct ViewMut<'a> {
    block: &'a Arc<Block>,
    dtype: DType,
    layout: Layout,
    len: usize,
}

impl<'a> ViewMut<'a> {
    view_methods!();

    /// The same range, shared.
    pub fn as_view(&self) -> View<'a> {
        View { block: self.block, dtype: self.dtype, layout: self.layout, len: self.len }
    }

    /// A shorter-lived view of the same range.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { block: self.block, dtype: self.dtype, layout: self.layout, len: self.len }
    }

    /// As a gradient output that adds to what is there.
    pub fn accumulate(self) -> GradMut<'a> {
        GradMut { out: self, accumulate: true }
    }

    /// As a gradient output that overwrites (`false`) or adds (`true`).
    pub fn grad(self, accumulate: bool) -> GradMut<'a> {
        GradMut { out: self, accumulate }
    }

    /// Two disjoint flat views: elements before and from `at`. The view must be contiguous.
    pub fn split_at(self, at: usize) -> Result<(ViewMut<'a>, ViewMut<'a>)> {
        if !self.is_contiguous() || at > self.numel() {
            return Err(GpuError::invalid(
                "split_at",
                "at",
                format!("a position within a contiguous view of {} elements", self.numel()),
                format!("{at}"),
            ));
        }
        let (o, n) = (self.layout.offset(), self.numel());
        let b = ViewMut { block: self.block, dtype: self.dtype, layout: self.layout, len: self.len };
        Ok((self.range(o, at)?, b.range(o + at, n - at)?))
    }
}

/// What a call does with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It is read.
    Read,
    /// It is overwritten or, by some operations, changed.
    Change,
    /// A gradient overwrites it.
    Overwrite,
    /// A gradient is added to it.
    Add,
}

/// A view that shares its block: what is kept of an operand.
#[derive(Debug, Clone)]
pub(crate) struct OwnedView {
    pub(crate) block: Arc<Block>,
    pub(crate) access: Access,
    dtype: DType,
    layout: Layout,
    len: usize,
}

impl OwnedView {
    pub(crate) fn new(v: &View<'_>, access: Access) -> Self {
        OwnedView { block: v.block.clone(), access, dtype: v.dtype, layout: v.layout, len: v.len }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { block: &self.block, dtype: self.dtype, layout: self.layout, len: self.len }
    }

    pub(crate) fn view_mut(&self) -> ViewMut<'_> {
        ViewMut { block: &self.block, dtype: self.dtype, layout: self.layout, len: self.len }
    }
}

/// A gradient output: a view and whether the gradient overwrites it (previous contents are never read) or is added to it.
#[derive(Debug)]
pub struct GradMut<'a> {
    /// Where the gradient goes.
    pub out: ViewMut<'a>,
    /// Add instead of overwrite.
    pub accumulate: bool,
}

impl<'a> From<ViewMut<'a>> for GradMut<'a> {
    fn from(out: ViewMut<'a>) -> Self {
        GradMut { out, accumulate: false }
    }
}

impl<'a> From<ViewMut<'a>> for Option<GradMut<'a>> {
    fn from(out: ViewMut<'a>) -> Self {
        Some(out.into())
    }
}

impl GradMut<'_> {
    /// A shorter-lived copy.
    pub fn reborrow(&mut self) -> GradMut<'_> {
        GradMut { out: self.out.reborrow(), accumulate: self.accumulate }
    }
}

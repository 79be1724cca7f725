//! Device tensors, and the nodes of the autograd graph to which they refer.
//!
//! A tensor refers to the node that made it, and a node to its inputs and saved tensors, so that both are types of this module; what is
//! done with them stands in [`autograd`](crate::autograd).

mod backward;
mod format;
mod graph;
mod storage;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use trefoil::{BackendExt, BackendKind, Buffer, DType, Element, GradMut, IGpuBackend, Layout, View, ViewMut};

use crate::core::error::{NnError, Result, invalid};
use crate::core::limits;

use self::storage::Place;
pub(crate) use self::storage::{Storage, Watched};

pub use self::backward::{BackwardCtx, GradTarget};
pub(crate) use self::backward::{Collected, Saved, out};
pub use self::format::MemoryFormat;
pub(crate) use self::graph::{Edge, Function, Meta, Node, Role, Slot, lock, set_recording};

/// A device handle: a device plus one in-order stream. Tensors work together if they live on clones of one handle; another handle of the
/// same device (opened or forked) is another place, to and from which [`Tensor::to_device`] moves them.
pub type Device = Arc<dyn IGpuBackend>;

struct Inner {
    storage: Arc<Storage>,
    layout: Layout,
    device: Device,
    edge: Option<Edge>,
}

/// A tensor on a device: shared memory, a layout, and its place in the autograd graph. Cloning copies a pointer.
///
/// Operations return new tensors and queue their work; the host waits only in [`to_vec`](Tensor::to_vec) and [`item`](Tensor::item).
/// Axes are counted from the end where negative.
#[derive(Clone)]
pub struct Tensor {
    inner: Arc<Inner>,
}

/// A tensor that does not keep its memory alive.
#[derive(Clone)]
pub(crate) struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    /// The tensor, if it still lives.
    pub(crate) fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(|inner| Tensor { inner })
    }
}

/// A tensor's memory, held for the duration of a backend call.
///
/// For operations of your own: `device.unary(op, x.operand().view()?, y.operand().view_mut()?)`.
pub struct Operand {
    buffer: Arc<Buffer>,
    layout: Layout,
    /// Element of the buffer at which the tensor's storage begins.
    base: usize,
}

impl Operand {
    /// The elements, shared.
    pub fn view(&self) -> Result<View<'_>> {
        Ok(self.buffer.view().map("storage", |_| self.layout.shifted(self.base))?)
    }

    /// The elements, writable. Work on a stream is ordered, so writing is safe; that nothing else still needs the old values is the
    /// caller's concern.
    pub fn view_mut(&self) -> Result<ViewMut<'_>> {
        Ok(self.buffer.alias_mut().map("storage", |_| self.layout.shifted(self.base))?)
    }

    /// The elements as a gradient that is overwritten or added to.
    pub fn grad(&self, accumulate: bool) -> Result<GradMut<'_>> {
        Ok(self.view_mut()?.grad(accumulate))
    }
}

/// The contiguous layout of a shape, as an error of `op` where there is none.
pub(crate) fn contiguous(op: &'static str, shape: &[usize]) -> Result<Layout> {
    Layout::contiguous(shape).map_err(|_| {
        invalid(op, "shape", "at most 8 axes and fewer than 2^59 elements", format!("{shape:?}"))
    })
}

impl Tensor {
    fn build(storage: Arc<Storage>, layout: Layout, device: Device, edge: Option<Edge>) -> Self {
        Tensor { inner: Arc::new(Inner { storage, layout, device, edge }) }
    }

    /// A tensor with unspecified contents. Errors: `OutOfMemory`, `Unsupported` dtype.
    pub fn empty(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        let layout = contiguous("empty", shape)?;
        if is_trial(device) && layout.numel() > limits::ELEMENTS {
            let expected = format!("at most {} elements in a tensor", limits::ELEMENTS);
            return Err(invalid("empty", "shape", expected, format!("{shape:?}")));
        }
        let buffer = device.alloc(dtype, layout.numel())?;
        Ok(Self::build(Storage::new(buffer), layout, device.clone(), None))
    }

    /// A tensor of zeros.
    pub fn zeros(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        Self::full(device, dtype, shape, 0.0)
    }

    /// A tensor of ones.
    pub fn ones(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        Self::full(device, dtype, shape, 1.0)
    }

    /// A tensor filled with one value, converted to the dtype.
    pub fn full(device: &Device, dtype: DType, shape: &[usize], value: f64) -> Result<Self> {
        let t = Self::empty(device, dtype, shape)?;
        device.fill(value, t.operand().view_mut()?)?;
        Ok(t)
    }

    /// A copy of host data. Errors: `Invalid` if `data` has another number of elements than `shape`.
    pub fn from_slice<T: Element>(device: &Device, data: &[T], shape: &[usize]) -> Result<Self> {
        let layout = contiguous("from_slice", shape)?;
        if layout.numel() != data.len() {
            return Err(invalid(
                "from_slice",
                "data",
                format!("{} elements for shape {shape:?}", layout.numel()),
                format!("{}", data.len()),
            ));
        }
        Ok(Self::build(Storage::new(device.upload(data)?), layout, device.clone(), None))
    }

    /// Takes over a buffer in row-major order.
    pub fn from_buffer(device: &Device, buffer: Buffer, shape: &[usize]) -> Result<Self> {
        let layout = contiguous("from_buffer", shape)?;
        if layout.numel() != buffer.len() {
            return Err(invalid(
                "from_buffer",
                "buffer",
                format!("{} elements for shape {shape:?}", layout.numel()),
                format!("{}", buffer.len()),
            ));
        }
        if buffer.device() != device.id() {
            return Err(NnError::DeviceMismatch { op: "from_buffer", a: device.id(), b: buffer.device() });
        }
        Ok(Self::build(Storage::new(buffer), layout, device.clone(), None))
    }

    /// A tensor over part of a shared buffer (an arena).
    pub(crate) fn over(device: &Device, buffer: &Arc<Buffer>, base: usize, shape: &[usize]) -> Result<Self> {
        let layout = contiguous("arena", shape)?;
        let storage = Storage::at(buffer.clone(), base, layout.numel(), buffer.dtype());
        Ok(Self::build(storage, layout, device.clone(), None))
    }

    /// `start, start + step, ...`, `n` elements.
    pub fn arange(device: &Device, dtype: DType, start: f64, step: f64, n: usize) -> Result<Self> {
        let t = Self::empty(device, dtype, &[n])?;
        device.arange(start, step, t.operand().view_mut()?)?;
        Ok(t)
    }

    /// `n` elements from `start` to `end` in equal steps.
    pub fn linspace(device: &Device, dtype: DType, start: f64, end: f64, n: usize) -> Result<Self> {
        let t = Self::empty(device, dtype, &[n])?;
        device.linspace(start, end, t.operand().view_mut()?)?;
        Ok(t)
    }

    /// Zeros of this tensor's shape, dtype and device.
    pub fn zeros_like(&self) -> Result<Self> {
        self.full_like(0.0)
    }

    /// Ones of this tensor's shape, dtype and device.
    pub fn ones_like(&self) -> Result<Self> {
        self.full_like(1.0)
    }

    /// One value in this tensor's shape, dtype and device.
    pub fn full_like(&self, value: f64) -> Result<Self> {
        Self::full(self.device(), self.dtype(), self.shape(), value)
    }

    /// An uninitialised tensor like this one (dtype, device) of another shape.
    pub(crate) fn like(&self, shape: &[usize]) -> Result<Self> {
        Self::empty(self.device(), self.dtype(), shape)
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        self.inner.layout.shape()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.inner.layout.rank()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.inner.layout.numel()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.inner.storage.dtype
    }

    /// Shape, strides and offset within the tensor's storage.
    pub fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// Whether the elements lie row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.inner.layout.is_contiguous()
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether both tensors are views of the same memory.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.inner.storage, &other.inner.storage)
    }

    /// The memory, for a backend call.
    pub fn operand(&self) -> Operand {
        let Place { buffer, base } = self.inner.storage.place();
        Operand { buffer, layout: self.inner.layout, base }
    }

    /// Whether this handle alone keeps the memory, all of which it covers without gaps.
    pub(crate) fn is_sole(&self) -> bool {
        let s = &self.inner.storage;
        Arc::strong_count(&self.inner) == 1
            && Arc::strong_count(s) == 1
            && Arc::strong_count(&s.place.read().unwrap_or_else(|p| p.into_inner()).buffer) == 1
            && self.memory_format().describes(self.layout())
            && s.len == self.numel()
    }

    pub(crate) fn downgrade(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.inner))
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.inner.storage
    }

    pub(crate) fn version(&self) -> u64 {
        self.inner.storage.version.load(Ordering::Relaxed)
    }

    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.inner.edge.as_ref()
    }

    /// The same memory under another layout, outside of the graph.
    pub(crate) fn relayout(&self, layout: Layout) -> Tensor {
        Self::build(self.inner.storage.clone(), layout, self.inner.device.clone(), None)
    }

    pub(crate) fn with_edge(&self, edge: Option<Edge>) -> Tensor {
        Self::build(self.inner.storage.clone(), self.inner.layout, self.inner.device.clone(), edge)
    }

    /// The same, in place where this is the only handle.
    pub(crate) fn into_edge(mut self, edge: Option<Edge>) -> Tensor {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => {
                inner.edge = edge;
                self
            }
            None => self.with_edge(edge),
        }
    }

    /// Whether gradients flow to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        self.inner.edge.is_some()
    }

    /// Whether this tensor is a leaf of the graph that collects a gradient.
    pub fn is_leaf(&self) -> bool {
        self.edge().is_none_or(|e| e.node.is_leaf())
    }

    /// The same memory as a new leaf that collects a gradient. Integer tensors carry none and come back detached.
    pub fn with_grad(&self) -> Tensor {
        if !self.dtype().is_float() {
            return self.detach();
        }
        self.with_edge(Some(Edge { node: Node::leaf(self), index: 0 }))
    }

    /// The same memory, cut from the graph. A [`copy`](Tensor::copy) has memory of its own.
    pub fn detach(&self) -> Tensor {
        if self.inner.edge.is_none() { self.clone() } else { self.with_edge(None) }
    }

    /// The gradient collected so far: of a leaf, or of an intermediate tensor after [`retain_grad`](Tensor::retain_grad).
    pub fn grad(&self) -> Option<Tensor> {
        self.edge().and_then(|e| e.node.grad(e.index))
    }

    /// Keeps the gradient of an intermediate tensor in the next `backward`.
    pub fn retain_grad(&self) -> Result<()> {
        self.edge().ok_or(NnError::NoGraph).map(|e| e.node.retain(e.index))
    }

    /// Forgets the collected gradient; a gradient in an optimizer's arena is filled with zeros.
    pub fn zero_grad(&self) -> Result<()> {
        match self.edge() {
            Some(e) => e.node.zero_grad(),
            None => Ok(()),
        }
    }

    /// Overwrites the elements of a contiguous tensor from raw bytes. Operations that saved this tensor will refuse their backward.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.device().write_bytes(self.operand().view_mut()?, bytes)?;
        self.storage().touch();
        Ok(())
    }

    /// Overwrites the elements with another tensor's, in place: equal shape, dtype and device. Operations that saved this tensor will
    /// refuse their backward.
    pub fn assign(&self, src: &Tensor) -> Result<()> {
        same_device("assign", self, src)?;
        self.device().strided_copy(src.operand().view()?, self.operand().grad(false)?)?;
        self.storage().touch();
        Ok(())
    }

    /// Overwrites all elements with one value, in place.
    pub fn fill(&self, value: f64) -> Result<()> {
        self.device().fill(value, self.operand().view_mut()?)?;
        self.storage().touch();
        Ok(())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {}", self.dtype(), self.shape(), self.device().id())?;
        if self.requires_grad() {
            write!(f, ", {}", if self.is_leaf() { "leaf" } else { "in graph" })?;
        }
        f.write_str(")")
    }
}

/// Whether a device is [`Engine::shapes`](trefoil::Engine::shapes), on which networks run on trial and nothing is computed.
pub(crate) fn is_trial(device: &Device) -> bool {
    let caps = device.caps();
    caps.id.kind == BackendKind::Custom && caps.arch == "shapes"
}

/// Whether two handles are one, or belong to the CPU backend, any of whose handles may use all of its memory.
pub(crate) fn same_handle(a: &Device, b: &Device) -> bool {
    a.id() == b.id() && (std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)) || a.id().kind == BackendKind::Cpu)
}

/// Error unless both tensors live on the same handle.
pub(crate) fn same_device(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if same_handle(a.device(), b.device()) {
        return Ok(());
    }
    Err(NnError::mixed(op, a.device().id(), b.device().id()))
}

/// Error unless an input has the dtype of a layer's parameters (or buffers), of which the operations would say that theirs is wrong.
pub(crate) fn same_dtype(op: &'static str, x: &Tensor, weight: &Tensor) -> Result<()> {
    let want = weight.dtype();
    if x.dtype() == want {
        return Ok(());
    }
    let expected = format!(
        "dtype {want}, as the layer's parameters have (convert the input with `to_dtype(DType::{want:?})`)"
    );
    Err(invalid(op, "x", expected, x.dtype().name()))
}

/// The shapes of several tensors.
pub(crate) fn shapes(tensors: &[&Tensor]) -> Vec<Vec<usize>> {
    tensors.iter().map(|t| t.shape().to_vec()).collect()
}

/// The position that a possibly negative axis means. Errors: `Invalid` outside of the rank.
pub(crate) fn axis(op: &'static str, axis: isize, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis + rank as isize } else { axis };
    if at >= 0 && (at as usize) < rank {
        return Ok(at as usize);
    }
    Err(invalid(op, "axis", format!("an axis of a tensor of rank {rank}"), format!("{axis}")))
}

/// The positions of several axes.
pub(crate) fn axes(op: &'static str, list: &[isize], rank: usize) -> Result<Vec<usize>> {
    list.iter().map(|&a| axis(op, a, rank)).collect()
}

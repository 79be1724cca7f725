//! Memory formats: in which order the elements of `[N, C, S..]` lie.

use trefoil::{DType, Layout};

use super::{BackwardCtx, Device, Tensor};
use crate::core::error::{Result, invalid};

/// The order of a tensor's elements in memory, `torch.memory_format`. Shapes and results do not depend on it (but for the order of sums).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryFormat {
    /// Row-major, `torch.contiguous_format`.
    #[default]
    Contiguous,
    /// `[N, C, S..]` in the order [N, S.., C], `torch.channels_last` and `channels_last_3d`: what convolutions on matrix cores read without a
    /// change of layout.
    ChannelsLast,
}

impl MemoryFormat {
    /// The layout of a shape in this format, or the contiguous one below three axes.
    fn layout(self, op: &'static str, shape: &[usize]) -> Result<Layout> {
        let rows = super::contiguous(op, shape)?;
        match self {
            MemoryFormat::ChannelsLast if shape.len() > 2 => Ok(Layout::channels_last(shape).unwrap_or(rows)),
            _ => Ok(rows),
        }
    }

    /// Whether a layout has this format.
    pub(crate) fn describes(self, l: &Layout) -> bool {
        match self {
            MemoryFormat::ChannelsLast if l.rank() > 2 => l.is_channels_last(),
            _ => l.is_contiguous(),
        }
    }

    /// The format of a layout: channels last where it is that and not contiguous as well.
    pub(crate) fn of(l: &Layout) -> Self {
        match l.rank() > 2 && !l.is_contiguous() && l.is_channels_last() {
            true => MemoryFormat::ChannelsLast,
            false => MemoryFormat::Contiguous,
        }
    }
}

impl Tensor {
    /// The tensor's format: [`ChannelsLast`](MemoryFormat::ChannelsLast) where its elements lie so (and not contiguously as well, as with one
    /// channel), else [`Contiguous`](MemoryFormat::Contiguous), also for views that are neither.
    pub fn memory_format(&self) -> MemoryFormat {
        MemoryFormat::of(self.layout())
    }

    /// The same elements in a memory format: this tensor itself where it has it, a copy otherwise. `Tensor.contiguous(memory_format=...)`.
    /// Convolutions, batch normalization, pooling, concatenation and elementwise operations of channels-last tensors give channels-last tensors;
    /// other operations read any format and give contiguous ones. Errors: `Invalid` for channels last of less than 3 or more than 5 axes.
    pub fn to_memory_format(&self, format: MemoryFormat) -> Result<Tensor> {
        const OP: &str = "to_memory_format";
        if format == MemoryFormat::ChannelsLast && !(3..=5).contains(&self.rank()) {
            let expected = "a tensor [N, C, S..] of 3 to 5 axes for channels last";
            return Err(invalid(OP, "self", expected, format!("shape {:?}", self.shape())));
        }
        self.in_format(format)
    }

    /// [`to_memory_format`](Tensor::to_memory_format) where tensors of few axes are contiguous.
    pub(crate) fn in_format(&self, format: MemoryFormat) -> Result<Tensor> {
        if format.describes(self.layout()) {
            return Ok(self.clone());
        }
        let y = self.empty_in(format, self.dtype(), self.shape())?;
        self.device().strided_copy(self.operand().view()?, y.operand().grad(false)?)?;
        Ok(y.record("to_memory_format", &[self], || {
            |cx: &mut BackwardCtx<'_>| {
                let dy = cx.dy()?;
                cx.give(0, dy)
            }
        }))
    }

    /// An uninitialised tensor on this tensor's device in a format.
    pub(crate) fn empty_in(&self, format: MemoryFormat, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        Tensor::empty_on(self.device(), format, dtype, shape)
    }

    /// An uninitialised tensor in a format.
    pub(crate) fn empty_on(
        device: &Device,
        format: MemoryFormat,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor> {
        let plain = Tensor::empty(device, dtype, shape)?;
        let layout = format.layout("empty", shape)?;
        Ok(if layout == *plain.layout() { plain } else { plain.relayout(layout) })
    }

    /// An uninitialised result of that shape of an elementwise operation: in the format of the first operand that has the shape.
    pub(crate) fn result_of(operands: &[&Tensor], dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let full = operands
            .iter()
            .find(|t| t.shape() == shape)
            .map_or(MemoryFormat::Contiguous, |t| t.memory_format());
        operands[0].empty_in(full, dtype, shape)
    }
}

//! Pooling layers.

use trefoil::ops::activation::Activation;
use trefoil::ops::pool::Window;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{PerAxis, batched, named, positive};
use crate::module::Layer;

/// Means of windows of images, `torch.nn.AvgPool2d`: `[B, C, H, W] -> [B, C, H', W']`.
pub type AveragePooling = AvgPoolNd<2>;

/// Means of windows of sequences, `torch.nn.AvgPool1d`: `[B, C, L] -> [B, C, L']`.
pub type AvgPool1D = AvgPoolNd<1>;

/// Maxima of windows of sequences, `torch.nn.MaxPool1d`: `[B, C, L] -> [B, C, L']`.
pub type MaxPool1D = MaxPoolNd<1>;

/// Maxima of windows of images, `torch.nn.MaxPool2d`: `[B, C, H, W] -> [B, C, H', W']`.
pub type MaxPooling = MaxPoolNd<2>;

/// Maxima of windows of volumes, `torch.nn.MaxPool3d`: `[B, C, D, H, W] -> [B, C, D', H', W']`.
pub type MaxPool3D = MaxPoolNd<3>;

/// Means of a given number of windows of images, `torch.nn.AdaptiveAvgPool2d`: `[B, C, H, W] -> [B, C, oH, oW]`.
pub type AdaptiveAveragePooling = AdaptiveAvgPoolNd<2>;

/// Means of a given number of windows of sequences, `torch.nn.AdaptiveAvgPool1d`: `[B, C, L] -> [B, C, oL]`.
pub type AdaptiveAvgPool1D = AdaptiveAvgPoolNd<1>;

/// Means of windows over N = 1 to 3 spatial axes. Also takes inputs without the batch axis. Output axes have
/// floor((n + 2*padding - k) / stride) + 1 cells.
///
/// Errors of `forward`: rank; padding above half the window; windows larger than the padded input; a stride or divisor of 0.
#[derive(Debug, Clone, Copy)]
pub struct AvgPoolNd<const N: usize> {
    window: Window,
}

impl<const N: usize> AvgPoolNd<N> {
    const KIND: &'static str = match N {
        1 => "AvgPool1D",
        2 => "AveragePooling",
        _ => "AvgPool3D",
    };

    /// Windows side by side. Errors: a size of 0.
    pub fn new(kernel_size: impl PerAxis<usize, N>) -> Result<Self> {
        let kernel_size = kernel_size.per_axis();
        positive(Self::KIND, "kernel_size", &kernel_size)?;
        Ok(AvgPoolNd { window: Window::new(&kernel_size) })
    }

    /// Sets the stride, the distance of neighbouring windows (default: the window's size).
    pub fn stride(mut self, stride: impl PerAxis<usize, N>) -> Self {
        self.window = self.window.stride(&stride.per_axis());
        self
    }

    /// Sets the padding: zeros on both sides of each axis (default 0).
    pub fn padding(mut self, padding: impl PerAxis<usize, N>) -> Self {
        self.window = self.window.padding(&padding.per_axis());
        self
    }

    /// Whether windows may reach beyond the end (default false).
    pub fn ceil_mode(mut self, on: bool) -> Self {
        self.window = self.window.ceil_mode(on);
        self
    }

    /// Whether padding counts as cells of a window (default true).
    pub fn count_include_pad(mut self, on: bool) -> Self {
        self.window = self.window.count_include_pad(on);
        self
    }

    /// Sets what sums are divided by, in place of the number of cells.
    pub fn divisor(mut self, divisor: i64) -> Self {
        self.window = self.window.divisor(divisor);
        self
    }
}

impl<const N: usize> Layer for AvgPoolNd<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| x.avg_pool(&self.window))
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }
}

/// Maxima of windows over N = 1 to 3 spatial axes. Also takes inputs without the batch axis. Output axes have
/// floor((n + 2*padding - dilation*(k-1) - 1) / stride) + 1 cells. Padding is never chosen; of equal elements the first is chosen and
/// receives the gradient; NaN counts as the largest.
///
/// Errors of `forward`: rank; padding above half the window; windows larger than the padded input; a stride or dilation of 0.
#[derive(Debug, Clone, Copy)]
pub struct MaxPoolNd<const N: usize> {
    window: Window,
    return_indices: bool,
}

impl<const N: usize> MaxPoolNd<N> {
    const KIND: &'static str = match N {
        1 => "MaxPool1D",
        2 => "MaxPooling",
        _ => "MaxPool3D",
    };

    /// Windows side by side. Errors: a size of 0.
    pub fn new(kernel_size: impl PerAxis<usize, N>) -> Result<Self> {
        let kernel_size = kernel_size.per_axis();
        positive(Self::KIND, "kernel_size", &kernel_size)?;
        Ok(MaxPoolNd { window: Window::new(&kernel_size), return_indices: false })
    }

    /// Sets the stride, the distance of neighbouring windows (default: the window's size).
    pub fn stride(mut self, stride: impl PerAxis<usize, N>) -> Self {
        self.window = self.window.stride(&stride.per_axis());
        self
    }

    /// Sets the padding: cells on both sides of each axis, which are never chosen (default 0).
    pub fn padding(mut self, padding: impl PerAxis<usize, N>) -> Self {
        self.window = self.window.padding(&padding.per_axis());
        self
    }

    /// Sets the dilation, the distance of a window's cells (default 1).
    pub fn dilation(mut self, dilation: impl PerAxis<usize, N>) -> Self {
        self.window = self.window.dilation(&dilation.per_axis());
        self
    }

    /// Whether windows may reach beyond the end (default false).
    pub fn ceil_mode(mut self, on: bool) -> Self {
        self.window = self.window.ceil_mode(on);
        self
    }

    setters! {
        /// Whether `forward_all` gives the positions of the maxima as a second output (default false).
        return_indices: bool => return_indices;
    }

    /// Maxima and their positions (i32, row-major in the unpadded plane).
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut index = None;
        let y = batched(Self::KIND, N, x, |x| {
            let (y, i) = x.max_pool_with_index(&self.window)?;
            index = Some(i);
            Ok(y)
        })?;
        let index = index.unwrap_or_else(|| unreachable!("the pooling succeeded"));
        let index = index.reshape(y.shape())?;
        Ok((y, index))
    }
}

impl<const N: usize> Layer for MaxPoolNd<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| x.max_pool(&self.window))
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] if self.return_indices => self.forward_with_indices(x).map(|(y, i)| vec![y, i]),
            [x] => Ok(vec![self.forward(x)?]),
            _ => Err(invalid(Self::KIND, "inputs", "1 tensor", format!("{} tensors", inputs.len()))),
        }
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }
}

/// Means of as many windows as the output has cells over N = 1 to 3 spatial axes, `torch.nn.AdaptiveAvgPool1d`, `2d` and `3d`: window i of m
/// over n cells is [floor(i n / m), ceil((i + 1) n / m)). More windows than cells are allowed. Also takes inputs without the batch axis.
///
/// Errors of `forward`: rank.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveAvgPoolNd<const N: usize> {
    size: [Option<usize>; N],
}

impl<const N: usize> Default for AdaptiveAvgPoolNd<N> {
    /// One window, the whole plane.
    fn default() -> Self {
        AdaptiveAvgPoolNd { size: [Some(1); N] }
    }
}

impl<const N: usize> AdaptiveAvgPoolNd<N> {
    const KIND: &'static str = match N {
        1 => "AdaptiveAvgPool1D",
        2 => "AdaptiveAveragePooling",
        _ => "AdaptiveAvgPool3D",
    };

    /// Outputs of a given size. Errors: a size of 0.
    pub fn new(output_size: impl PerAxis<usize, N>) -> Result<Self> {
        Self::keeping(output_size.per_axis().map(Some))
    }

    /// As [`new`](AdaptiveAvgPoolNd::new), but axes with `None` keep their size.
    pub fn keeping(size: [Option<usize>; N]) -> Result<Self> {
        positive(Self::KIND, "output_size", &size.map(|n| n.unwrap_or(1)))?;
        Ok(AdaptiveAvgPoolNd { size })
    }
}

impl<const N: usize> Layer for AdaptiveAvgPoolNd<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        batched(Self::KIND, N, x, |x| {
            let size: Vec<usize> =
                self.size.iter().zip(&x.shape()[2..]).map(|(s, &n)| s.unwrap_or(n)).collect();
            x.adaptive_avg_pool(&size)
        })
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }
}

/// Mean or maximum of whole planes, `AdaptiveAvgPool(1)` and `AdaptiveMaxPool(1)`: `[B, C, spatial..] -> [B, C, 1..]`, or `[B, C]` without
/// the spatial axes (one to three). The gradient of a maximum goes to the first of equals. Inputs need the batch axis.
///
/// Errors of `forward`: rank; empty planes.
#[derive(Debug, Clone, Copy)]
pub struct GlobalPooling {
    max: bool,
    keepdim: bool,
    act: Activation,
}

impl GlobalPooling {
    /// Means.
    pub fn avg() -> Self {
        GlobalPooling { max: false, keepdim: true, act: Activation::Identity }
    }

    /// Maxima.
    pub fn max() -> Self {
        GlobalPooling { max: true, ..GlobalPooling::avg() }
    }

    setters! {
        /// Whether spatial axes stay with size 1 (default true).
        keepdim: bool => keepdim;
        /// Sets the activation.
        activation: Activation => act;
    }

    fn pool(&self, x: &Tensor) -> Result<Tensor> {
        let y = if self.max { x.global_max_pool()? } else { x.global_avg_pool()? };
        let y = y.activation(self.act)?;
        if !self.keepdim {
            return Ok(y);
        }
        let mut shape = vec![1; x.rank()];
        shape[..2].copy_from_slice(&x.shape()[..2]);
        y.reshape(&shape)
    }
}

impl Layer for GlobalPooling {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named("GlobalPooling", self.pool(x))
    }
}

/// Maxima or means of windows of images as one type, `torch.nn.MaxPool2d` and `AvgPool2d` without padding: `[B, C, H, W] -> [B, C,
/// floor((H-k)/stride) + 1, floor((W-k)/stride) + 1]`. Also takes inputs without the batch axis. Of equal elements the first is the maximum.
///
/// Errors of `forward`: rank; windows larger than the input.
#[derive(Debug, Clone, Copy)]
pub struct Pooling {
    windows: Windows,
}

#[derive(Debug, Clone, Copy)]
enum Windows {
    Max(MaxPooling),
    Average(AveragePooling),
}

impl Pooling {
    const KIND: &'static str = "Pooling";

    /// Maxima. Errors: a size or stride of 0.
    pub fn max(pool_size: impl PerAxis<usize, 2>, stride: impl PerAxis<usize, 2>) -> Result<Self> {
        let (size, stride) = Self::sizes(pool_size, stride)?;
        Ok(Pooling { windows: Windows::Max(MaxPooling::new(size)?.stride(stride)) })
    }

    /// Means. Errors: a size or stride of 0.
    pub fn average(pool_size: impl PerAxis<usize, 2>, stride: impl PerAxis<usize, 2>) -> Result<Self> {
        let (size, stride) = Self::sizes(pool_size, stride)?;
        Ok(Pooling { windows: Windows::Average(AveragePooling::new(size)?.stride(stride)) })
    }

    fn sizes(
        pool_size: impl PerAxis<usize, 2>,
        stride: impl PerAxis<usize, 2>,
    ) -> Result<([usize; 2], [usize; 2])> {
        let (pool_size, stride) = (pool_size.per_axis(), stride.per_axis());
        positive(Self::KIND, "pool_size", &pool_size)?;
        positive(Self::KIND, "stride", &stride)?;
        Ok((pool_size, stride))
    }
}

impl Layer for Pooling {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        named(
            Self::KIND,
            match &self.windows {
                Windows::Max(pool) => pool.forward(x),
                Windows::Average(pool) => pool.forward(x),
            },
        )
    }
}

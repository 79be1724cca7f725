//! Initial values of parameters, and the context in which layers make them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trefoil::DType;
use trefoil::ops::random::{Distribution, Rng};

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::module::param::Param;

/// What layer constructors need: device, dtype and a seed from which every parameter gets its own random sequence, in the order of
/// construction. Two models built alike from equal seeds have equal parameters on every backend.
#[derive(Debug, Clone)]
pub struct InitContext {
    device: Device,
    dtype: DType,
    seed: u64,
    next: Arc<AtomicU64>,
}

impl InitContext {
    /// f32 parameters on `device`.
    pub fn new(device: &Device, seed: u64) -> Self {
        InitContext { device: device.clone(), dtype: DType::F32, seed, next: Arc::default() }
    }

    /// Parameters of another dtype (floats).
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of parameters.
    pub fn param_dtype(&self) -> DType {
        self.dtype
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next unused stream of random numbers.
    pub fn next_stream(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// How a parameter is filled. `fan_in` and `fan_out` are the numbers of inputs and outputs that one weight connects.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Init {
    /// U(-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for linear and convolution layers
    #[default]
    Lin,
    /// U(-a, a), a = sqrt(6 / (fan_in + fan_out)); Glorot and Bengio (2010)
    Glorot,
    /// U(-a, a), a = sqrt(6 / fan_in); He et al. (2015)
    He,
    /// U(-a, a), a = sqrt(3 / fan_in); LeCun et al. (1998)
    LeCun,
    /// All zeros
    Zeros,
    /// One value
    Constant(f64),
    /// Normal numbers
    Normal {
        /// mean
        mean: f64,
        /// standard deviation
        std: f64,
    },
    /// Uniform numbers
    Uniform {
        /// lower bound
        lo: f64,
        /// upper bound
        hi: f64,
    },
}

impl Init {
    /// A tensor filled by this rule. Errors: a rule that divides by a fan of 0.
    pub fn tensor(&self, cx: &InitContext, shape: &[usize], fan_in: usize, fan_out: usize) -> Result<Tensor> {
        let bound = |numerator: f64, fan: usize| {
            if fan == 0 {
                return Err(invalid("init", "fan_in", "at least 1", "0"));
            }
            let a = (numerator / fan as f64).sqrt();
            Ok(Distribution::Uniform { lo: -a, hi: a })
        };
        let dist = match *self {
            Init::Zeros => return Tensor::zeros(cx.device(), cx.param_dtype(), shape),
            Init::Constant(c) => return Tensor::full(cx.device(), cx.param_dtype(), shape, c),
            Init::Lin => bound(1.0, fan_in)?,
            Init::Glorot => bound(6.0, fan_in.saturating_add(fan_out))?,
            Init::He => bound(6.0, fan_in)?,
            Init::LeCun => bound(3.0, fan_in)?,
            Init::Normal { mean, std } => Distribution::Normal { mean, std },
            Init::Uniform { lo, hi } => Distribution::Uniform { lo, hi },
        };
        let rng = Rng::new(cx.seed()).at(cx.next_stream(), 0);
        Tensor::random(cx.device(), cx.param_dtype(), shape, dist, rng)
    }

    /// A trainable parameter filled by this rule.
    pub fn param(&self, cx: &InitContext, shape: &[usize], fan_in: usize, fan_out: usize) -> Result<Param> {
        Ok(Param::new(self.tensor(cx, shape, fan_in, fan_out)?))
    }
}

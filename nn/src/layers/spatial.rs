//! What image layers share: sizes per axis, parameters made at the first forward, inputs without a batch axis.

use once_cell::sync::OnceCell;

use trefoil::GpuError;

use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Init;
use crate::module::{InitContext, Param, Visitor};

/// One value for all N axes, or an array with one for each: `3` or `[3, 5]`.
pub trait PerAxis<T, const N: usize> {
    /// The value of each axis.
    fn per_axis(self) -> [T; N];
}

impl<T: Copy, const N: usize> PerAxis<T, N> for T {
    fn per_axis(self) -> [T; N] {
        [self; N]
    }
}

impl<T, const N: usize> PerAxis<T, N> for [T; N] {
    fn per_axis(self) -> [T; N] {
        self
    }
}

/// Lets errors about arguments name the layer instead of the operation that found them.
pub(crate) fn named<T>(layer: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|e| match e {
        NnError::Gpu(GpuError::Invalid(mut what)) => {
            what.op = layer;
            NnError::Gpu(GpuError::Invalid(what))
        }
        other => other,
    })
}

/// Lets an error about an argument of a part name the argument of the whole.
pub(crate) fn argument<T>(arg: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|e| match e {
        NnError::Gpu(GpuError::Invalid(mut what)) => {
            what.arg = arg;
            NnError::Gpu(GpuError::Invalid(what))
        }
        other => other,
    })
}

/// Runs `f` on x [B, C, `axes` spatial axes]; a missing batch axis is inserted and removed again. Errors name the layer.
pub(crate) fn batched(
    layer: &'static str,
    axes: usize,
    x: &Tensor,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let y = match x.rank() {
        r if r == axes + 2 => f(solid(layer, x, 1)?),
        r if r == axes + 1 => f(&solid(layer, x, 0)?.unsqueeze(0)?).and_then(|y| y.squeeze(0)),
        _ => {
            let expected = format!("[B, C, ..] or [C, ..] with {axes} spatial axes");
            Err(invalid(layer, "x", expected, format!("shape {:?}", x.shape())))
        }
    };
    named(layer, y)
}

/// Error if an axis from `from` on is empty.
fn solid<'a>(layer: &'static str, x: &'a Tensor, from: usize) -> Result<&'a Tensor> {
    if x.shape()[from..].contains(&0) {
        let got = format!("shape {:?}", x.shape());
        return Err(invalid(layer, "x", "at least one channel and one cell per axis", got));
    }
    Ok(x)
}

/// Error if a size of a constructor is 0.
pub(crate) fn positive(layer: &'static str, arg: &'static str, sizes: &[usize]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(invalid(layer, arg, "at least 1", format!("{sizes:?}"))),
        false => Ok(()),
    }
}

/// Numbers of inputs and outputs of one weight; `usize::MAX` where they do not fit.
pub(crate) fn fans(inputs: usize, outputs: usize, kernel: &[usize]) -> (usize, usize) {
    let taps = kernel.iter().fold(1usize, |n, &k| n.saturating_mul(k));
    (inputs.saturating_mul(taps), outputs.saturating_mul(taps))
}

/// Error unless `groups` divides both numbers of channels.
pub(crate) fn check_groups(layer: &'static str, groups: usize, inputs: usize, outputs: usize) -> Result<()> {
    if groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups) {
        return Ok(());
    }
    let expected = format!("a divisor of {inputs} input and {outputs} output channels");
    Err(invalid(layer, "groups", expected, format!("{groups}")))
}

/// What layers with a field `weights: Weights` have in common; `known`: what must be known for them to exist.
macro_rules! weight_access {
    (impl[$($generics:tt)*] $layer:ty, weight $weight:literal, bias $bias:literal, $known:literal) => {
        impl<$($generics)*> $layer {
            /// Without bias.
            pub fn no_bias(mut self) -> Self {
                self.weights.no_bias();
                self
            }

            #[doc = concat!("The weight `", $weight, "`, once ", $known, " is known.")]
            pub fn weight(&self) -> Option<&Param> {
                self.weights.weight()
            }

            #[doc = concat!("The bias `", $bias, "`, if there is one and ", $known, " is known.")]
            pub fn bias(&self) -> Option<&Param> {
                self.weights.bias()
            }
        }
    };
}
pub(crate) use weight_access;

/// What layers with a field `weights: Weights` and a method `params(inputs)` that makes them have in common.
macro_rules! weight_methods {
    (impl[$($generics:tt)*] $layer:ty, weight $weight:literal, bias $bias:literal) => {
        impl<$($generics)*> $layer {
            /// Makes the parameters now.
            pub(crate) fn inputs(self, inputs: usize) -> Result<Self> {
                positive(Self::KIND, "in_channels", &[inputs])?;
                self.params(inputs)?;
                Ok(self)
            }

            /// Makes the parameters anew if they were made.
            fn anew(mut self) -> Result<Self> {
                match self.weights.reset() {
                    Some(inputs) => self.inputs(inputs),
                    None => Ok(self),
                }
            }

            /// Sets how weight and bias are filled and fills them anew.
            pub fn init(mut self, weight: Init, bias: Init) -> Result<Self> {
                (self.weights.weight_init, self.weights.bias_init) = (weight, bias);
                self.anew()
            }
        }

        weight_access!(impl[$($generics)*] $layer, weight $weight, bias $bias, "the number of input channels");
    };
}
pub(crate) use weight_methods;

/// Weight and bias of a layer, made when the number of input channels is known.
#[derive(Debug)]
pub(crate) struct Weights {
    cx: InitContext,
    pub(crate) weight_init: Init,
    pub(crate) bias_init: Init,
    /// Each filter that is drawn stands this many times in a row.
    pub(crate) repeat: usize,
    with_bias: bool,
    inputs: OnceCell<usize>,
    params: OnceCell<(Param, Option<Param>)>,
}

impl Weights {
    /// Both filled by one rule.
    pub(crate) fn new(cx: &InitContext, init: Init) -> Self {
        Weights {
            cx: cx.clone(),
            weight_init: init,
            bias_init: init,
            repeat: 1,
            with_bias: true,
            inputs: OnceCell::new(),
            params: OnceCell::new(),
        }
    }

    pub(crate) fn no_bias(&mut self) {
        self.with_bias = false;
        if let Some((_, b)) = self.params.get_mut() {
            *b = None;
        }
    }

    /// Forgets the parameters; the number of input channels that was known.
    pub(crate) fn reset(&mut self) -> Option<usize> {
        self.params.take();
        self.inputs.take()
    }

    /// Channels of x [B, C, ..]. Error unless they are as many as at first.
    pub(crate) fn channels(&self, layer: &'static str, x: &Tensor) -> Result<usize> {
        let c = x.shape()[1];
        match self.inputs.get() {
            Some(&n) if n != c => {
                Err(invalid(layer, "x", format!("{n} channels"), format!("shape {:?} with {c}", x.shape())))
            }
            _ => Ok(c),
        }
    }

    /// The parameters for `inputs` channels, made in the first call with these shapes.
    pub(crate) fn get(
        &self,
        inputs: usize,
        weight: &[usize],
        bias: &[usize],
        (fan_in, fan_out): (usize, usize),
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (w, b) = self.params.get_or_try_init(|| {
            let mut drawn = weight.to_vec();
            drawn[0] /= self.repeat;
            let w = self.weight_init.tensor(&self.cx, &drawn, fan_in, fan_out)?;
            let w = Param::new(if self.repeat > 1 { w.repeat_interleave(0, self.repeat)? } else { w });
            let b = match self.with_bias {
                true => Some(self.bias_init.param(&self.cx, bias, fan_in, fan_out)?),
                false => None,
            };
            self.inputs.get_or_init(|| inputs);
            Ok::<_, NnError>((w, b))
        })?;
        Ok((w.get(), b.as_ref().map(Param::get)))
    }

    pub(crate) fn weight(&self) -> Option<&Param> {
        self.params.get().map(|(w, _)| w)
    }

    pub(crate) fn bias(&self) -> Option<&Param> {
        self.params.get().and_then(|(_, b)| b.as_ref())
    }

    /// Shows both under `prefix` (empty, or ending in a dot).
    pub(crate) fn visit(&self, prefix: &str, v: &mut Visitor<'_>) {
        for (name, p) in [("weight", self.weight()), ("bias", self.bias())] {
            if let Some(p) = p {
                v.param(&format!("{prefix}{name}"), p);
            }
        }
    }
}

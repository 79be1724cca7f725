//! What the fields of a layer show of themselves, for the derive macro.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64};

use trefoil::DType;
use trefoil::ops::activation::Activation;

use crate::module::layer::{Layer, Visitor};
use crate::module::param::Param;

/// A field of a struct with `#[derive(Layer)]`: shows the state that it holds under a name.
///
/// ```
/// use trefoil_nn::layers::Dense;
/// use trefoil_nn::{InitContext, Layer, LayerExt, Param, Result, Tensor};
///
/// #[derive(Debug, Layer)]
/// struct Scaled {
///     inner: Dense,
///     scale: Param,
/// }
///
/// impl Scaled {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.inner.forward(x)? * self.scale.get()
///     }
/// }
///
/// # let device: trefoil_nn::Device = std::sync::Arc::new(trefoil::CpuBackend::new());
/// let cx = InitContext::new(&device, 1);
/// let scale = Param::new(Tensor::ones(&device, cx.param_dtype(), &[2])?);
/// let model = Scaled { inner: Dense::new(&cx, 3, 2)?, scale };
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["inner.weight", "inner.bias", "scale"]);
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
///
/// A struct without a method `forward` of its own is refused, since the derived one would call itself:
///
/// ```compile_fail
/// use trefoil_nn::Layer;
///
/// #[derive(Debug, Layer)]
/// struct Nothing {
///     size: usize,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known as a field of a layer",
    label = "neither a layer, a parameter nor a plain setting",
    note = "implement `Layer` for it, or leave the field out with `#[layer(skip)]`"
)]
pub trait LayerField {
    /// Shows what the field holds.
    fn visit_field(&self, name: &str, v: &mut Visitor<'_>);
}

/// A field that holds buffers, marked `#[layer(buffer)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` holds no buffers",
    label = "expected `Param`, or `Option` or `Vec` of it"
)]
pub trait BufferField {
    /// Shows the buffers that the field holds.
    fn visit_buffer(&self, name: &str, v: &mut Visitor<'_>);
}

impl<T: Layer> LayerField for T {
    fn visit_field(&self, name: &str, v: &mut Visitor<'_>) {
        v.child(name, self);
    }
}

impl LayerField for Param {
    fn visit_field(&self, name: &str, v: &mut Visitor<'_>) {
        v.param(name, self);
    }
}

impl LayerField for AtomicU64 {
    fn visit_field(&self, name: &str, v: &mut Visitor<'_>) {
        v.counter(name, self);
    }
}

impl LayerField for AtomicBool {
    fn visit_field(&self, _name: &str, v: &mut Visitor<'_>) {
        v.training(self);
    }
}

impl BufferField for Param {
    fn visit_buffer(&self, name: &str, v: &mut Visitor<'_>) {
        v.buffer(name, self);
    }
}

macro_rules! collections {
    ($($trait:ident $visit:ident;)*) => {$(
        impl<T: $trait> $trait for Option<T> {
            fn $visit(&self, name: &str, v: &mut Visitor<'_>) {
                if let Some(field) = self {
                    field.$visit(name, v);
                }
            }
        }
        impl<T: $trait> $trait for Vec<T> {
            fn $visit(&self, name: &str, v: &mut Visitor<'_>) {
                for (i, field) in self.iter().enumerate() {
                    field.$visit(&format!("{name}.{i}"), v);
                }
            }
        }
        impl<T: $trait, const N: usize> $trait for [T; N] {
            fn $visit(&self, name: &str, v: &mut Visitor<'_>) {
                for (i, field) in self.iter().enumerate() {
                    field.$visit(&format!("{name}.{i}"), v);
                }
            }
        }
    )*};
}
collections! {
    LayerField visit_field;
    BufferField visit_buffer;
}

/// Settings, which hold no state.
macro_rules! settings {
    ($($t:ty)*) => {$(
        impl LayerField for $t {
            fn visit_field(&self, _name: &str, _v: &mut Visitor<'_>) {}
        }
    )*};
}
settings!(bool char f32 f64 i32 i64 isize u8 u32 u64 usize String &'static str DType Activation);

impl<T: ?Sized> LayerField for PhantomData<T> {
    fn visit_field(&self, _name: &str, _v: &mut Visitor<'_>) {}
}

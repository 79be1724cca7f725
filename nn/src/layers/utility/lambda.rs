//! A function as a layer.

use std::fmt;
use std::sync::Arc;

use trefoil::ops::activation::Activation;

use crate::core::autograd::{BackwardCtx, CustomOp, apply};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::{argument, named};
use crate::layers::utility::sequence::Input;
use crate::module::Layer;

const OP: &str = "Lambda";

type Function = Arc<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;
type Gradient = Arc<dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync>;

/// A function as a layer, followed by an activation; Keras' `Lambda`. Its gradient is that of the operations which it is made of, unless it
/// has [one of its own](Lambda::backward). It has no state, so that nothing of it is saved, and no type in JSON, which cannot hold a function.
///
/// Errors of `forward`: those of the function; a result of another shape than [declared](Lambda::output_shape). The backward pass refuses a
/// function whose result does not depend on its input by differentiable operations and that has no gradient of its own.
///
/// ```
/// use trefoil::{DType, Registry, Selector};
/// use trefoil_nn::{Layer, Tensor};
/// use trefoil_nn::layers::Lambda;
///
/// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
/// let halves = Lambda::new(|x| x.mul_scalar(0.5)).output_shape(&[3])?;
/// let y = halves.forward(&Tensor::ones(&device, DType::F32, &[2, 3])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.5; 6]);
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
#[derive(Clone)]
pub struct Lambda {
    function: Function,
    gradient: Option<Gradient>,
    output: Option<Input>,
    act: Activation,
}

impl Lambda {
    /// The layer of a function, without activation.
    pub fn new(function: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Lambda { function: Arc::new(function), gradient: None, output: None, act: Activation::Identity }
    }

    /// Sets the gradient of the function: of x and the gradient of the function's result it makes that of x, in the shape of x. The function
    /// then runs without recording.
    pub fn backward(
        mut self,
        gradient: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.gradient = Some(Arc::new(gradient));
        self
    }

    /// Declares the shape of an item of the result, behind the batch axis; -1 is any size. Errors: an empty shape, a size of 0 or below -1.
    pub fn output_shape(mut self, shape: &[isize]) -> Result<Self> {
        self.output = Some(argument("output_shape", named(OP, Input::new(shape)))?);
        Ok(self)
    }

    setters! {
        /// Sets the activation of the result.
        activation: Activation => act;
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(OP).field("output", &self.output).field("act", &self.act).finish_non_exhaustive()
    }
}

impl Layer for Lambda {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.gradient {
            None => (self.function)(x)?,
            Some(gradient) => {
                let op = WithGradient { function: self.function.clone(), gradient: gradient.clone() };
                apply(op, std::slice::from_ref(x))?.remove(0)
            }
        };
        if let Some(output) = &self.output {
            argument("function", named(OP, output.forward(&y)))?;
        }
        let detached = y.dtype().is_float() && !y.requires_grad();
        let y = if detached { y.record(OP, &[x], || refuse) } else { y };
        y.activation(self.act)
    }
}

/// The backward pass of a function that lost the graph of its input.
fn refuse(_: &mut BackwardCtx<'_>) -> Result<()> {
    Err(invalid(OP, "backward", "a gradient for a function without differentiable operations", "none"))
}

/// A function with its gradient.
struct WithGradient {
    function: Function,
    gradient: Gradient,
}

impl CustomOp for WithGradient {
    fn name(&self) -> &'static str {
        OP
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        save.push(inputs[0].clone());
        Ok(vec![(self.function)(&inputs[0])?])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let dx = (self.gradient)(&saved[0], &cx.dy()?)?;
        cx.give(0, dx)
    }
}

//! A kernel of one's own in a network, with its own gradient.
//!
//!     TREFOIL_BACKEND=opencl cargo run --release -p trefoil-nn --example kernel_with_gradient
//!
//! The activation y = x + sin(a x)^2 / a ("snake": Ziyin, Hartwig and Ueda, 2020) lets a network go on with a wave beyond the data that
//! it has seen. Function and gradient are one text for CUDA, HIP and OpenCL. The CPU backend has no kernel compiler: `compile_raw` says
//! `Unsupported` there, and the same formula runs as tensor operations, which differentiate themselves. Where the kernel runs, both are
//! compared first.

mod common;

use common::{Outcome, Steady, device, learned};
use std::sync::Arc;
use trefoil::ops::core::{CoreOps, RawArg, RawKernel};
use trefoil::spec::BLOCK;
use trefoil::{DType, GpuError};
use trefoil_nn::autograd::{self, BackwardCtx, CustomOp};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::{Device, InitContext, Layer, MseLoss, Optimizer, Result, Tensor};

/// See `docs/KERNEL_DIALECT.md`. `gk_t` is the storage type, `gk_f` that of the arithmetic; the gradient overwrites or adds. A launch passes the
/// lengths `x_len` and so on by itself.
const SNAKE: &str = r#"
GK_KERNEL(snake)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float a)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < x_len && i < y_len; i += gk_gsize()) {
        gk_f v = gk_load(x, i), s = gk_sin((gk_f)a * v);
        gk_store(y, i, v + s * s / (gk_f)a);
    }
}

GK_KERNEL(snake_bwd)(GK_IN(gk_t, dy), gk_i64 dy_len, GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, dx), gk_i64 dx_len, float a, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < dy_len && i < x_len && i < dx_len; i += gk_gsize()) {
        gk_f g = gk_load(dy, i) * (GK_R(1.0) + gk_sin(GK_R(2.0) * (gk_f)a * gk_load(x, i)));
        gk_store(dx, i, accumulate ? gk_load(dx, i) + g : g);
    }
}
"#;

/// The activation as a layer without parameters.
#[derive(Debug, Clone)]
struct Snake {
    a: f32,
    /// Function and gradient, where the device compiles kernels.
    kernels: Option<Arc<[RawKernel; 2]>>,
}

impl Snake {
    fn new(device: &Device, a: f32) -> Result<Self> {
        // SAFETY: the prototypes are in effect as written, and the loops end with the shortest buffer.
        let compile = |entry| unsafe { device.compile_raw(SNAKE, entry, DType::F32) };
        let kernels = match (compile("snake"), compile("snake_bwd")) {
            (Ok(forward), Ok(backward)) => Some(Arc::new([forward, backward])),
            (Err(GpuError::Unsupported { why, .. }), _) => {
                println!("no kernels on this backend ({why}): tensor operations instead");
                None
            }
            (Err(e), _) | (_, Err(e)) => return Err(e.into()),
        };
        Ok(Snake { a, kernels })
    }

    /// A grid-stride loop takes any number of blocks.
    fn launch(&self, which: usize, device: &Device, n: usize, args: &mut [RawArg<'_>]) -> Result<()> {
        let Some(kernels) = &self.kernels else { return Ok(()) };
        let blocks = n.div_ceil(BLOCK as usize).clamp(1, 1024) as u32;
        Ok(device.launch_raw(&kernels[which], [blocks, 1, 1], args)?)
    }

    /// The formula as tensor operations.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let a = f64::from(self.a);
        x.add(&x.mul_scalar(a)?.sin()?.square()?.mul_scalar(1.0 / a)?)
    }
}

/// What autograd needs to know: the function, what it saves, and the gradient of its input.
impl CustomOp for Snake {
    fn name(&self) -> &'static str {
        "snake"
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous()?;
        let y = Tensor::empty(x.device(), x.dtype(), x.shape())?;
        let (from, to, n) = (x.operand(), y.operand(), x.numel());
        let mut args = [RawArg::In(from.view()?), RawArg::Out(to.view_mut()?), RawArg::F32(self.a)];
        self.launch(0, x.device(), n, &mut args)?;
        save.push(x);
        Ok(vec![y])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        // Memory for the gradient, or for what must be added to one that is there already.
        let Some(target) = cx.target(0)? else { return Ok(()) };
        let (dy, x, n) = (cx.dy()?.contiguous()?, &saved[0], saved[0].numel());
        let (dy, from, to) = (dy.operand(), x.operand(), target.tensor().operand());
        let mut args = [
            RawArg::In(dy.view()?),
            RawArg::In(from.view()?),
            RawArg::Out(to.view_mut()?),
            RawArg::F32(self.a),
            RawArg::I32(target.accumulate().into()),
        ];
        self.launch(1, x.device(), n, &mut args)
    }
}

impl Layer for Snake {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.kernels {
            Some(_) => Ok(autograd::apply(self.clone(), std::slice::from_ref(x))?.remove(0)),
            None => self.composed(x),
        }
    }
}

/// Largest distance of the kernel's results and gradients from those of the formula.
fn distance(device: &Device, snake: &Snake) -> Result<f32> {
    let run = |f: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f32>> {
        let x = Tensor::linspace(device, DType::F32, -4.0, 4.0, 1000)?.with_grad();
        // The input is used twice: its gradient is a sum.
        let y = f(&x)?.mul(&f(&x)?)?;
        y.sum()?.backward()?;
        let gradient = x.grad().map_or(Ok(vec![]), |g| g.to_vec::<f32>())?;
        Ok([y.to_vec::<f32>()?, gradient].concat())
    };
    let (kernel, formula) = (run(&|x| Layer::forward(snake, x))?, run(&|x| snake.composed(x))?);
    Ok(kernel.iter().zip(&formula).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max))
}

fn main() -> Outcome {
    let device = device()?;
    let snake = Snake::new(&device, 4.0)?;
    if snake.kernels.is_some() {
        let apart = distance(&device, &snake)?;
        println!("the kernels' results and gradients differ by {apart:.1e} from the formula's");
        assert!(apart < 1e-4);
    }

    // A wave between -2 and 2; the network is asked about the next two thirds of a period on either side.
    let wave = |x: &Tensor| x.mul_scalar(5.0)?.sin();
    let seen = Tensor::linspace(&device, DType::F32, -2.0, 2.0, 256)?.reshape(&[256, 1])?;
    let beyond = Tensor::linspace(&device, DType::F32, 2.0, 2.8, 64)?.reshape(&[64, 1])?;
    let beyond = Tensor::concat(0, &[&beyond, &beyond.neg()?])?;
    let (y, unseen) = (wave(&seen)?, wave(&beyond)?);

    let cx = InitContext::new(&device, 1);
    let model = Sequential::new()
        .push(Dense::new(&cx, 1, 64)?)
        .push(snake.clone())
        .push(Dense::new(&cx, 64, 64)?)
        .push(snake)
        .push(Dense::new(&cx, 64, 1)?);
    let mut optimizer = Optimizer::adamw(&model, 3e-3, 0.01)?;
    let (steady, steps) = (Steady::new(&device, 3), 2000);
    for step in 1..=steps {
        optimizer.set_lr(3e-3 * (1.0 - step as f64 / (steps + 1) as f64))?;
        optimizer.zero_grad()?;
        let loss = MseLoss::default().forward(&model.forward(&seen)?, &y)?;
        loss.backward()?;
        optimizer.step()?;
        steady.step();
        if step % 400 == 0 {
            println!("step {step:>4}  loss {:.6}", loss.item::<f32>()?);
            steady.pause();
        }
    }
    steady.finish();

    let answer = autograd::no_grad(|| model.forward(&beyond))?;
    let error = MseLoss::default().forward(&answer, &unseen)?.item::<f32>()?;
    learned(format!("squared error beyond the data {error:.4}, at most 0.1 wanted"), error < 0.1)
}

use std::sync::Arc;

use trefoil::ops::core::{RawArg, RawKernel};
use trefoil::spec::BLOCK;
use trefoil::{BackendExt, CpuBackend, DType, Registry, Selector};
use trefoil_nn::autograd::{self, BackwardCtx, CustomOp};
use trefoil_nn::{Device, Result, Tensor};

const SQUAREPLUS: &str = r#"
GK_KERNEL(squareplus)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float b)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < x_len && i < y_len; i += gk_gsize()) {
        gk_f v = gk_load(x, i);
        gk_store(y, i, GK_R(0.5) * (v + gk_sqrt(v * v + (gk_f)b)));
    }
}
"#;

/// Compiles the kernel `name` of `text` for f32.
fn compile(device: &Device, text: &str, name: &str) -> Result<RawKernel> {
    // SAFETY: the prototype is in effect as written, and the loop stays inside the shortest buffer.
    Ok(unsafe { device.compile_raw(text, name, DType::F32) }?)
}

/// Queues a kernel with enough blocks of threads for `n` elements; the grid-stride loop does the rest.
fn launch(device: &Device, kernel: &RawKernel, n: usize, args: &mut [RawArg<'_>]) -> Result<()> {
    let blocks = n.div_ceil(BLOCK as usize).clamp(1, 1024) as u32;
    Ok(device.launch_raw(kernel, [blocks, 1, 1], args)?)
}

/// The kernel on five numbers.
fn first_launch(device: &Device) -> Result<Vec<f32>> {
    let kernel = compile(device, SQUAREPLUS, "squareplus")?;
    let x = device.upload(&[-2.0f32, -1.0, 0.0, 1.0, 2.0])?;
    let mut y = device.alloc(DType::F32, 5)?;
    let mut args = [RawArg::In(x.view()), RawArg::Out(y.view_mut()), RawArg::F32(4.0)];
    launch(device, &kernel, 5, &mut args)?;
    Ok(device.download(y.view())?) // waits for the device
}

/// The formula as operations of tensors, on any device and in any floating-point type.
fn reference(x: &Tensor, b: f64) -> Result<Tensor> {
    x.square()?.add_scalar(b)?.sqrt()?.add(x)?.mul_scalar(0.5)
}

/// The largest error, relative to values of 1 and more.
fn largest_error(got: &Tensor, want: &Tensor) -> Result<f64> {
    let (got, want) = (got.to_vec::<f32>()?, want.to_vec::<f64>()?);
    Ok(got.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).abs() / w.abs().max(1.0)).fold(0.0, f64::max))
}

const SQUAREPLUS_BWD: &str = r#"
GK_KERNEL(squareplus_bwd)(GK_IN(gk_t, dy), gk_i64 dy_len, GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, dx), gk_i64 dx_len, float b, int accumulate)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, dx);
    for (gk_i64 i = gk_gid(); i < dy_len && i < x_len && i < dx_len; i += gk_gsize()) {
        gk_f v = gk_load(x, i);
        gk_f g = gk_load(dy, i) * GK_R(0.5) * (GK_R(1.0) + v / gk_sqrt(v * v + (gk_f)b));
        gk_store(dx, i, accumulate ? gk_load(dx, i) + g : g);
    }
}
"#;

#[derive(Clone)]
struct Squareplus {
    b: f32,
    forward: RawKernel,
    backward: RawKernel,
}

impl Squareplus {
    fn new(device: &Device, b: f32) -> Result<Self> {
        let forward = compile(device, SQUAREPLUS, "squareplus")?;
        let backward = compile(device, SQUAREPLUS_BWD, "squareplus_bwd")?;
        Ok(Squareplus { b, forward, backward })
    }

    /// Runs it on a tensor and records it for `backward`.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        Ok(autograd::apply(self.clone(), std::slice::from_ref(x))?.remove(0))
    }
}

impl CustomOp for Squareplus {
    fn name(&self) -> &'static str {
        "squareplus"
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous()?;
        let y = Tensor::empty(x.device(), x.dtype(), x.shape())?;
        let (from, to) = (x.operand(), y.operand());
        let mut args = [RawArg::In(from.view()?), RawArg::Out(to.view_mut()?), RawArg::F32(self.b)];
        launch(x.device(), &self.forward, x.numel(), &mut args)?;
        save.push(x);
        Ok(vec![y])
    }

    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        // Memory for the gradient of input 0; none if nobody asked for it.
        let Some(target) = cx.target(0)? else { return Ok(()) };
        let (dy, x) = (cx.dy()?.contiguous()?, &saved[0]);
        let (dy, from, to) = (dy.operand(), x.operand(), target.tensor().operand());
        let mut args = [
            RawArg::In(dy.view()?),
            RawArg::In(from.view()?),
            RawArg::Out(to.view_mut()?),
            RawArg::F32(self.b),
            RawArg::I32(target.accumulate().into()),
        ];
        launch(x.device(), &self.backward, x.numel(), &mut args)
    }
}

/// Errors of values and gradients against the CPU in f64.
fn compare(device: &Device) -> Result<[f64; 2]> {
    let cpu: Device = Arc::new(CpuBackend::new());
    let values: Vec<f32> = (-500..500).map(|i| i as f32 / 50.0).collect();
    let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();

    let x = Tensor::from_slice(device, &values, &[1000])?.with_grad();
    let y = Squareplus::new(device, 4.0)?.apply(&x)?;
    y.square()?.add(&x)?.sum()?.backward()?;

    let x64 = Tensor::from_slice(&cpu, &wide, &[1000])?.with_grad();
    let y64 = reference(&x64, 4.0)?;
    y64.square()?.add(&x64)?.sum()?.backward()?;

    match (x.grad(), x64.grad()) {
        (Some(dx), Some(dx64)) => Ok([largest_error(&y, &y64)?, largest_error(&dx, &dx64)?]),
        _ => Ok([f64::INFINITY; 2]), // no gradient arrived
    }
}

fn main() -> Result<()> {
    let device = Registry::default().open(&Selector::from_env()?)?;
    println!("on {}: {:?}", device.id(), first_launch(&device)?);
    let [values, gradients] = compare(&device)?;
    println!("largest error of values {values:.1e}, of gradients {gradients:.1e}");
    assert!(values < 1e-5 && gradients < 1e-5);
    Ok(())
}

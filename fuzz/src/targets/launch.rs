//! Argument lists of users' kernels.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use trefoil::ops::core::{CoreOps, RawArg, RawKernel};
use trefoil::{BackendExt, Buffer, DType, Engine, GpuError, IGpuBackend};

use super::chain::{Step, number};
use super::{Generate, Run, Target, Verdict, devices};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "launch",
    about: "argument lists and grids of users' kernels: a launch runs exactly where they fit the prototype, and stays between guards",
    generate: Generate::Random { most: 96 },
    open: || {
        let shapes = Site::new(Arc::new(Engine::shapes()))?;
        let other = devices::opencl()?.map(Site::new).transpose()?;
        Ok(Box::new(move |input: &Input| {
            let site = other.as_ref().filter(|_| input.one_in(16)).unwrap_or(&shapes);
            site.run(&input.bytes).unwrap_or_else(Verdict::Wrong)
        }) as Run)
    },
};

/// Elements of a buffer.
const LEN: usize = 32;

/// Adds `n` times `a` to what it reads, as far as both buffers go.
const SOURCE: &str = r"
GK_KERNEL(shift)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float a, int n, gk_i64 last)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < last && i < x_len && i < y_len; i += gk_gsize())
        gk_store(y, i, gk_load(x, i) + (gk_f)a * (gk_f)n);
}
";

struct Site {
    gpu: Arc<dyn IGpuBackend>,
    kernel: RawKernel,
    buffers: Vec<Buffer>,
    /// Whether anything is computed.
    computes: bool,
}

/// One argument as data.
#[derive(Debug, Clone)]
enum Given {
    In(usize, Vec<Step>),
    Out(usize, Vec<Step>),
    I32(i32),
    I64(i64),
    F32(f32),
}

impl Given {
    fn draw(u: &mut Unstructured<'_>, place: usize) -> Result<Self> {
        let place = if u.ratio(1, 12)? { u.int_in_range(0..=4)? } else { place };
        let part = |u: &mut Unstructured<'_>| -> Result<(usize, Vec<Step>)> {
            let start = u.int_in_range(0..=LEN)?;
            let mut steps = vec![Step::Narrow(0, start, u.int_in_range(0..=LEN - start)?)];
            if u.ratio(1, 8)? {
                steps.push(Step::Slice(0, 0, number(u)?, number(u)?));
            }
            let buffer = if u.ratio(1, 10)? { u.int_in_range(0..=3)? } else { place };
            Ok((buffer, steps))
        };
        Ok(match place {
            0 => part(u).map(|(b, s)| Given::In(b, s))?,
            1 => part(u).map(|(b, s)| Given::Out(b, s))?,
            2 => Given::F32(u.arbitrary()?),
            3 => Given::I32(u.arbitrary()?),
            _ => Given::I64(number(u)? as i64),
        })
    }
}

impl Site {
    fn new(gpu: Arc<dyn IGpuBackend>) -> std::result::Result<Self, String> {
        // SAFETY: the kernel keeps to the lengths that the launch passes, and its prototype is what the text says.
        let kernel = unsafe { gpu.compile_raw(SOURCE, "shift", DType::F32) }.map_err(|e| e.to_string())?;
        let buffers = [DType::F32, DType::F32, DType::F32, DType::I32].iter().map(|&d| gpu.alloc(d, LEN));
        let buffers = buffers.collect::<trefoil::Result<_>>().map_err(|e| e.to_string())?;
        let computes = gpu.id().kind != trefoil::BackendKind::Custom;
        Ok(Site { gpu, kernel, buffers, computes })
    }

    fn run(&self, bytes: &[u8]) -> std::result::Result<Verdict, String> {
        let mut u = Unstructured::new(bytes);
        let Ok((grid, given)) = draw(&mut u) else { return Ok(Verdict::Rejected) };
        let layout = |steps: &[Step]| {
            let inside = |l: &trefoil::Layout| l.span().end <= LEN;
            let flat = trefoil::Layout::contiguous(&[LEN]).unwrap_or_else(|e| unreachable!("{e}"));
            steps.iter().fold(flat, |l, s| s.apply(&l).ok().filter(inside).unwrap_or(l))
        };
        let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
        self.buffers[..3]
            .iter()
            .try_for_each(|b| self.gpu.write(b.alias_mut(), &values))
            .map_err(|e| e.to_string())?;
        let args: trefoil::Result<Vec<RawArg<'_>>> = given
            .iter()
            .map(|g| {
                Ok(match g {
                    Given::In(b, s) => RawArg::In(self.buffers[*b].view().with_layout(layout(s))?),
                    Given::Out(b, s) => RawArg::Out(self.buffers[*b].alias_mut().with_layout(layout(s))?),
                    Given::I32(n) => RawArg::I32(*n),
                    Given::I64(n) => RawArg::I64(*n),
                    Given::F32(a) => RawArg::F32(*a),
                })
            })
            .collect();
        let mut args = args.map_err(|e| e.to_string())?;
        let done = self.gpu.launch_raw(&self.kernel, grid, &mut args);
        let said = |what: &str| Err(format!("{what}: grid {grid:?}, {given:?}"));
        match (&done, fits(&given, &layout) && grid_fits(grid)) {
            (Ok(()), true) => {}
            (Ok(()), false) => return said("launched"),
            (Err(GpuError::Invalid(_)), false) => return self.untouched(&given, &values),
            (Err(e), _) => return said(&format!("refused with {e}")),
        }
        if self.computes { self.compare(&given, &layout, &values) } else { Ok(Verdict::Accepted) }
    }

    /// A refused launch writes nothing.
    fn untouched(&self, given: &[Given], values: &[f32]) -> std::result::Result<Verdict, String> {
        for b in self.buffers[..3].iter().filter(|_| self.computes) {
            if self.gpu.download::<f32>(b.view()).map_err(|e| e.to_string())? != values {
                return Err(format!("a refused launch wrote: {given:?}"));
            }
        }
        Ok(Verdict::Rejected)
    }

    /// The output is right, and around it nothing has changed.
    fn compare(
        &self,
        given: &[Given],
        layout: &impl Fn(&[Step]) -> trefoil::Layout,
        values: &[f32],
    ) -> std::result::Result<Verdict, String> {
        let [Given::In(_, xs), Given::Out(to, ys), Given::F32(a), Given::I32(n), Given::I64(last)] = given
        else {
            return Err(format!("launched: {given:?}"));
        };
        let (x, y) = (layout(xs), layout(ys));
        let count = x.numel().min(y.numel()).min(usize::try_from(*last).unwrap_or(0));
        let mut want = values.to_vec();
        for i in 0..count {
            want[y.offset() + i] = values[x.offset() + i] + a * *n as f32;
        }
        let got = self.gpu.download::<f32>(self.buffers[*to].view()).map_err(|e| e.to_string())?;
        // One rounding more or less, where the compiler fuses the product with the sum.
        let near = |(g, w): (&f32, &f32)| g == w || (g - w).abs() <= 1e-5 * (1.0 + w.abs()) || !w.is_finite();
        if got.iter().zip(&want).all(near) {
            return Ok(Verdict::Accepted);
        }
        Err(format!("{given:?} gave {got:?}, not {want:?}"))
    }
}

fn draw(u: &mut Unstructured<'_>) -> Result<([u32; 3], Vec<Given>)> {
    // Beyond every limit where not small: what lies between would take minutes on a CPU.
    let hostile = [0, 1 << 31, u32::MAX];
    let axis = |u: &mut Unstructured<'_>| {
        if u.ratio(1, 10)? { u.choose(&hostile).copied() } else { u.int_in_range(1..=2) }
    };
    let grid = [axis(u)?, axis(u)?, axis(u)?];
    let n = if u.ratio(1, 10)? { u.int_in_range(0..=7)? } else { 5 };
    Ok((grid, (0..n).map(|i| Given::draw(u, i)).collect::<Result<_>>()?))
}

/// At least one block along each axis, and no more than every device takes.
fn grid_fits(grid: [u32; 3]) -> bool {
    grid[0] > 0 && grid[0] < 1 << 31 && grid[1..].iter().all(|&n| n > 0 && n < 1 << 16)
}

/// Whether the list is what the prototype says, and the output apart from the input.
fn fits(given: &[Given], layout: &impl Fn(&[Step]) -> trefoil::Layout) -> bool {
    let [Given::In(x, xs), Given::Out(y, ys), Given::F32(_), Given::I32(_), Given::I64(_)] = given else {
        return false;
    };
    let (lx, ly) = (layout(xs).span(), layout(ys).span());
    let apart = x != y || lx.end <= ly.start || ly.end <= lx.start;
    let whole = |s: &[Step]| layout(s).is_contiguous();
    *x < 3 && *y < 3 && whole(xs) && whole(ys) && apart
}

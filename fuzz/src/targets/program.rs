//! Whole programs over the trait, on the CPU and on OpenCL.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::reduce::{ArgReduce, Reduce};
use trefoil::ops::shape::Triangle;
use trefoil::ops::sort::SortIo;
use trefoil::{Buffer, CpuBackend, DType, Engine, GpuError, IGpuBackend, View, ViewMut};

use super::chain::Step;
use super::{Generate, Run, Target, Verdict, devices};
use crate::input::Input;
use crate::rng::Rng;

pub(crate) const TARGET: Target = Target {
    name: "program",
    about: "programs of exact operations over views of a few small buffers: the CPU against OpenCL, bit by bit",
    generate: Generate::Random { most: 400 },
    open: || {
        let cpu = Pool::new(Arc::new(CpuBackend::new()))?;
        let shapes = Pool::new(Arc::new(Engine::shapes()))?;
        let other = devices::opencl()?.map(Pool::new).transpose()?;
        if let Some(other) = &other {
            // Kernels are compiled before anybody looks at the time.
            let mut rng = Rng::new(TARGET.name, 0, 0);
            (0..WARM).try_for_each(|_| run(&rng.bytes(400), &cpu, &shapes, Some(other)).map(drop))?;
        }
        Ok(Box::new(move |input: &Input| {
            // Launches take a thousand times as long there.
            let on = other.as_ref().filter(|_| input.one_in(32));
            run(&input.bytes, &cpu, &shapes, on).unwrap_or_else(Verdict::Wrong)
        }) as Run)
    },
};

/// Programs that have used nearly every kernel.
const WARM: usize = 300;
/// Elements of a buffer.
const LEN: usize = 24;
/// Elements of an operand, which may repeat those of a buffer.
const MOST: usize = 4096;
/// Two buffers of each, so that operands need not be one.
const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::I32,
    DType::I32,
    DType::I64,
    DType::I64,
    DType::U8,
    DType::U8,
    DType::F16,
];

/// A device and its buffers.
struct Pool {
    gpu: Arc<dyn IGpuBackend>,
    buffers: Vec<Buffer>,
}

impl Pool {
    fn new(gpu: Arc<dyn IGpuBackend>) -> std::result::Result<Self, String> {
        let buffers = DTYPES.iter().map(|&d| gpu.alloc(d, LEN)).collect::<trefoil::Result<_>>();
        Ok(Pool { buffers: buffers.map_err(|e| e.to_string())?, gpu })
    }

    /// Small whole numbers everywhere.
    fn reset(&self) -> trefoil::Result<()> {
        for (k, b) in self.buffers.iter().enumerate() {
            let bytes: Vec<u8> =
                (0..LEN).flat_map(|i| element(b.dtype(), ((i * 7 + k * 3) % 11) as i8 - 3)).collect();
            self.gpu.write_bytes(b.alias_mut(), &bytes)?;
        }
        self.gpu.synchronize()
    }

    fn bytes(&self, k: usize) -> trefoil::Result<Vec<u8>> {
        let b = &self.buffers[k];
        let mut bytes = vec![0; LEN * b.dtype().size()];
        self.gpu.read_bytes(b.view(), &mut bytes)?;
        Ok(bytes)
    }
}

/// A small number as an element.
fn element(dtype: DType, x: i8) -> Vec<u8> {
    match dtype {
        DType::F32 => f32::from(x).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(x.into()).to_le_bytes().to_vec(),
        DType::I32 => i32::from(x).to_le_bytes().to_vec(),
        DType::I64 => i64::from(x).to_le_bytes().to_vec(),
        _ => vec![x.unsigned_abs()],
    }
}

/// Bytes of elements such that equal values have equal bytes: of zeros and of NaN there are several.
fn normal(dtype: DType, bytes: Vec<u8>) -> Vec<u8> {
    match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned::<f32>)
            .flat_map(|x| if x.is_nan() { f32::NAN } else { x + 0.0 }.to_le_bytes())
            .collect(),
        DType::F16 => bytes
            .chunks_exact(2)
            .map(bytemuck::pod_read_unaligned::<half::f16>)
            .flat_map(|x| {
                if x.is_nan() { half::f16::NAN } else { half::f16::from_f32(x.to_f32() + 0.0) }.to_le_bytes()
            })
            .collect(),
        _ => bytes,
    }
}

/// The part of a buffer that an operand is.
#[derive(Debug, Clone)]
struct Part {
    buffer: usize,
    steps: Vec<Step>,
}

impl Part {
    fn draw(u: &mut Unstructured<'_>) -> Result<Self> {
        let buffer = u.choose_index(DTYPES.len())?;
        let mut l = flat();
        let mut steps = vec![];
        // Two axes, mostly, and sometimes a part of them.
        let sizes = [[4, 6], [6, 4], [2, 12], [8, 3]][u.choose_index(4)?];
        steps.push(Step::Reshape(sizes.to_vec()));
        for _ in 0..u.int_in_range(0..=2u8)? {
            l = steps.last().and_then(|s: &Step| s.apply(&l).ok()).unwrap_or(l);
            steps.push(Step::draw(u, &l)?);
        }
        Ok(Part { buffer, steps })
    }

    /// As [`Part::draw`], of this type.
    fn of(dtype: DType, u: &mut Unstructured<'_>) -> Result<Self> {
        let mut part = Part::draw(u)?;
        let fitting: Vec<usize> = (0..DTYPES.len()).filter(|&k| DTYPES[k] == dtype).collect();
        part.buffer = *u.choose(&fitting)?;
        Ok(part)
    }

    /// The layout, with the steps that apply.
    fn layout(&self) -> trefoil::Layout {
        // A broadcast to billions of elements is honest work, and too much of it.
        let inside = |l: &trefoil::Layout| l.span().end <= LEN && l.numel() <= MOST;
        self.steps.iter().fold(flat(), |l, s| s.apply(&l).ok().filter(inside).unwrap_or(l))
    }

    fn view<'a>(&self, pool: &'a Pool) -> trefoil::Result<View<'a>> {
        pool.buffers[self.buffer].view().with_layout(self.layout())
    }

    fn out<'a>(&self, pool: &'a Pool) -> trefoil::Result<ViewMut<'a>> {
        pool.buffers[self.buffer].alias_mut().with_layout(self.layout())
    }

    /// A contiguous part of this type and shape, where one fits.
    fn like(shape: &[usize], dtype: DType, u: &mut Unstructured<'_>) -> Result<Self> {
        let mut part = Part::of(dtype, u)?;
        let n = shape.iter().product::<usize>();
        if n <= LEN && !u.ratio(1, 10)? {
            let start = u.int_in_range(0..=LEN - n)?;
            part.steps = vec![Step::Slice(0, start, start + n, 1), Step::Reshape(shape.to_vec())];
        }
        Ok(part)
    }
}

fn flat() -> trefoil::Layout {
    trefoil::Layout::contiguous(&[LEN]).unwrap_or_else(|e| unreachable!("{e}"))
}

/// One operation.
#[derive(Debug, Clone)]
struct Call {
    op: u8,
    variant: u8,
    axis: usize,
    x: Part,
    a: Part,
    b: Part,
    y: Part,
}

const UNARY: [Unary; 6] =
    [Unary::Neg, Unary::Abs, Unary::Square, Unary::Floor, Unary::LogicalNot, Unary::BitwiseNot];
const BINARY: [Binary; 14] = [
    Binary::Add { alpha: 1.0 },
    Binary::Sub,
    Binary::Mul,
    Binary::Maximum,
    Binary::Minimum,
    Binary::Eq,
    Binary::Lt,
    Binary::Ge,
    Binary::LogicalAnd,
    Binary::LogicalXor,
    Binary::BitwiseAnd,
    Binary::BitwiseXor,
    Binary::Shl,
    Binary::Shr,
];

impl Call {
    /// Operands that fit each other, mostly.
    fn draw(u: &mut Unstructured<'_>) -> Result<Self> {
        let (op, variant) = (u.int_in_range(0..=15u8)?, u.arbitrary::<u8>()?);
        let x = Part::draw(u)?;
        let (shape, dtype) = (x.layout().shape().to_vec(), DTYPES[x.buffer]);
        let axis = u.int_in_range(0..=shape.len())?;
        let reduced =
            || shape.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, &n)| n).collect::<Vec<_>>();
        let masks = matches!(op, 1) && BINARY[usize::from(variant) % BINARY.len()].is_predicate();
        let (a, b) = match op {
            2 => (Part::like(&shape, dtype, u)?, Part::like(&shape, DType::U8, u)?),
            6 | 7 => (Part::like(&shape, DType::I64, u)?, Part::like(&shape, dtype, u)?),
            8 => (Part::like(&shape[..shape.len().min(1)], DType::I32, u)?, Part::draw(u)?),
            _ => (Part::like(&shape, dtype, u)?, Part::like(&shape, dtype, u)?),
        };
        let y = match op {
            0 if UNARY[usize::from(variant) % UNARY.len()].is_predicate() => {
                Part::like(&shape, DType::U8, u)?
            }
            1 if masks => Part::like(&shape, DType::U8, u)?,
            3 => Part::like(&shape, DTYPES[usize::from(variant) % DTYPES.len()], u)?,
            9 if dtype.is_float() => Part::like(&reduced(), dtype, u)?,
            9 if variant % 3 > 0 => Part::like(&reduced(), dtype, u)?,
            9 | 10 => Part::like(&reduced(), DType::I64, u)?,
            8 => {
                let mut rows = shape.clone();
                if let (Some(n), Some(&m)) = (rows.get_mut(axis), a.layout().shape().first()) {
                    *n = m;
                }
                Part::like(&rows, dtype, u)?
            }
            _ => Part::like(&shape, dtype, u)?,
        };
        Ok(Call { op, variant, axis, x, a, b, y })
    }

    /// Runs it.
    fn run(&self, p: &Pool) -> trefoil::Result<()> {
        let (gpu, v, axis) = (&*p.gpu, usize::from(self.variant), self.axis);
        let (x, a, b, y) = (self.x.view(p)?, self.a.view(p)?, self.b.view(p)?, self.y.out(p)?);
        match self.op {
            0 => gpu.unary(UNARY[v % UNARY.len()], x, y),
            1 => gpu.binary(BINARY[v % BINARY.len()], x, a, y),
            2 => gpu.ternary(Ternary::Where, b, x, a, y),
            3 => gpu.cast(x, y),
            4 => gpu.strided_copy(x, y.into()),
            5 => gpu.flip(&[axis], x, y.into()),
            6 => gpu.gather(axis, x, a, y.into()),
            7 => gpu.scatter(axis, a, b, y),
            8 => gpu.index_select(axis, x, a, y.into()),
            // Sums of floats depend on their order; extremes do not.
            9 if DTYPES[self.x.buffer].is_float() || v % 3 > 0 => {
                gpu.reduce(if v % 2 == 0 { Reduce::Max } else { Reduce::Min }, &[axis], x, y)
            }
            9 => gpu.reduce(Reduce::Sum, &[axis], x, y),
            10 => gpu.arg_reduce(if v % 2 == 0 { ArgReduce::Max } else { ArgReduce::Min }, axis, x, y, None),
            11 => gpu.roll(&[v as isize - 128], &[axis], x, y.into()),
            12 => gpu.triangle(
                if v % 2 == 0 { Triangle::Lower } else { Triangle::Upper },
                v as isize % 7 - 3,
                x,
                y.into(),
            ),
            13 => gpu.sort(axis, v % 2 == 0, SortIo::new(x).y(y)),
            14 => gpu.fill(f64::from(self.variant) - 100.0, y),
            _ => gpu.copy(x, y),
        }
    }
}

/// The sort of an error: all devices agree about it, not about its words.
fn kind(r: &trefoil::Result<()>) -> &'static str {
    match r {
        Ok(()) => "done",
        Err(GpuError::Invalid(_)) => "Invalid",
        Err(GpuError::Unsupported { .. }) => "Unsupported",
        Err(GpuError::IndexOutOfRange { .. }) => "IndexOutOfRange",
        Err(_) => "another error",
    }
}

fn run(
    bytes: &[u8],
    cpu: &Pool,
    shapes: &Pool,
    other: Option<&Pool>,
) -> std::result::Result<Verdict, String> {
    let mut u = Unstructured::new(bytes);
    let mut calls = vec![];
    while !u.is_empty() && calls.len() < 20 {
        let Ok(call) = Call::draw(&mut u) else { break };
        calls.push(call);
    }
    let mut done = 0;
    for pool in std::iter::once(cpu).chain(other) {
        pool.reset().map_err(|e| format!("reset of {}: {e}", pool.gpu.id()))?;
    }
    for (i, call) in calls.iter().enumerate() {
        let want = call.run(cpu);
        done += usize::from(want.is_ok());
        for pool in std::iter::once(shapes).chain(other) {
            let got = call.run(pool);
            let (k, w) = (kind(&got), kind(&want));
            // A device may lack a type; an index out of range is seen when it is waited for.
            if k != w && k != "Unsupported" && w != "IndexOutOfRange" && k != "IndexOutOfRange" {
                return Err(format!(
                    "call {i} on {}: {k}, on the CPU {w}: {call:?}: {got:?} {want:?}",
                    pool.gpu.id()
                ));
            }
        }
    }
    let indices = cpu.gpu.synchronize().is_err();
    if let Some(other) = other
        && other.gpu.synchronize().is_err() == indices
        && !indices
    {
        for (k, &dtype) in DTYPES.iter().enumerate() {
            let [want, got] = [cpu, other].map(|p| p.bytes(k).map(|b| normal(dtype, b)));
            let (want, got) = (want.map_err(|e| e.to_string())?, got.map_err(|e| e.to_string())?);
            if want != got {
                return Err(format!("buffer {k} of {dtype}: {got:?}, on the CPU {want:?} after {calls:?}"));
            }
        }
    }
    Ok(if done > 0 { Verdict::Accepted } else { Verdict::Rejected })
}

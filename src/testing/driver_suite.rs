//! What every driver has to do, asked from outside.

use std::error::Error;
use std::sync::Arc;

use crate::backend::BackendExt;
use crate::cpu::CpuBackend;
use crate::driver::{CompileUnit, Driver, RawMem, RawStream};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::error::GpuError;
use crate::ops::IGpuBackend;
use crate::ops::core::{CoreOps, RawArg};
use crate::ops::elementwise::{Binary, ElementwiseOps, Unary};
use crate::ops::reduce::Reduce;
use crate::ops::softmax::Softmax;

type Check = std::result::Result<(), Box<dyn Error>>;

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+).into());
        }
    };
}

/// Checks that a driver keeps the contract of [`Driver`]: memory and copies, streams and events, compilation and its errors, and, with an
/// [`Engine`] over it, a user's kernel, a few operations of the table against the CPU backend, several streams and threads.
///
/// Errors: one line per part that fails, with the reason.
///
/// ```
/// # fn my_driver() -> trefoil::Result<std::sync::Arc<dyn trefoil::driver::Driver>> {
/// #     Err(trefoil::GpuError::driver("open", 1, "NONE"))
/// # }
/// # if let Ok(driver) = my_driver() {
/// trefoil::testing::driver_suite(driver)?;
/// # }
/// # Ok::<(), String>(())
/// ```
pub fn driver_suite(driver: Arc<dyn Driver>) -> std::result::Result<(), String> {
    type Part = (&'static str, fn(&Arc<dyn Driver>) -> Check);
    const PARTS: [Part; 9] = [
        ("capabilities", |d| capabilities(&**d)),
        ("copies", |d| copies(&**d)),
        ("memory", |d| memory(&**d)),
        ("streams and events", |d| streams(&**d)),
        ("compilation errors", |d| compilation_errors(&**d)),
        ("a kernel of the user", user_kernel),
        ("operations", operations),
        ("the pool", pool),
        ("streams and threads of an engine", threads),
    ];
    let failures: Vec<String> =
        PARTS.iter().filter_map(|(name, part)| part(&driver).err().map(|e| format!("{name}: {e}"))).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn capabilities(d: &dyn Driver) -> Check {
    let c = d.caps();
    ensure!(!c.name.is_empty() && !c.arch.is_empty(), "a device without name or architecture: {c:?}");
    ensure!(c.max_block >= crate::spec::BLOCK, "blocks of {} threads", c.max_block);
    ensure!(c.compute_units > 0 && c.warp_size > 0 && c.cluster > 0, "a count of 0: {c:?}");
    ensure!(!d.compiler_id().is_empty(), "no name of the compiler");
    Ok(())
}

/// Bytes that differ along the buffer.
fn pattern(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8 ^ seed).collect()
}

/// A stream and memory, given back to the driver at the end.
struct Bench<'a> {
    driver: &'a dyn Driver,
    stream: RawStream,
    memory: Vec<RawMem>,
}

impl<'a> Bench<'a> {
    fn new<const N: usize>(driver: &'a dyn Driver, sizes: [usize; N]) -> crate::Result<(Self, [RawMem; N])> {
        let mut bench = Bench { driver, stream: driver.new_stream()?, memory: vec![] };
        let mut all = [RawMem(0); N];
        for (mem, size) in all.iter_mut().zip(sizes) {
            *mem = driver.alloc(size)?;
            bench.memory.push(*mem);
        }
        Ok((bench, all))
    }

    fn read(&self, mem: RawMem, offset: u64, bytes: usize) -> crate::Result<Vec<u8>> {
        let mut out = vec![0; bytes];
        // SAFETY: the callers read within the memory of the bench.
        unsafe { self.driver.copy_out(self.stream, mem, offset, &mut out)? };
        Ok(out)
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: stream and memory are the driver's, and nothing uses them once the stream is idle.
        unsafe {
            if let Err(e) = self.driver.synchronize(self.stream) {
                log::warn!("{e}");
            }
            self.memory.iter().for_each(|&m| self.driver.free(m));
            self.driver.destroy_stream(self.stream);
        }
    }
}

fn copies(d: &dyn Driver) -> Check {
    const N: usize = 100_003;
    let (bench, [a, b]) = Bench::new(d, [N + 64, N + 64])?;
    let mut data = pattern(N, 7);
    let want = data.clone();
    // SAFETY: all ranges lie within both pieces of memory.
    unsafe {
        d.copy_in(bench.stream, a, 5, &data)?;
        // Taken before the call returned.
        data.fill(0);
        d.copy(bench.stream, (a, 5), (b, 64), N)?;
        d.copy_in(bench.stream, a, 5, &data)?;
        d.copy_in(bench.stream, b, 64, &[])?;
        d.copy(bench.stream, (a, 5), (b, 64), 0)?;
    }
    ensure!(bench.read(b, 64, N)? == want, "bytes differ behind a copy in, a copy and a copy out");
    ensure!(bench.read(b, 64 + 3, 10)? == want[3..13], "a part that begins inside differs");
    ensure!(bench.read(a, 5, N)?.iter().all(|&x| x == 0), "a second copy in is not behind the first copy");
    Ok(())
}

fn memory(d: &dyn Driver) -> Check {
    let (bench, [one, two]) = Bench::new(d, [1, 1])?;
    // SAFETY: one byte of each.
    unsafe {
        d.copy_in(bench.stream, one, 0, &[1])?;
        d.copy_in(bench.stream, two, 0, &[2])?;
    }
    ensure!((bench.read(one, 0, 1)?, bench.read(two, 0, 1)?) == (vec![1], vec![2]), "one byte each");
    match d.alloc(usize::MAX / 2) {
        Err(GpuError::OutOfMemory { .. }) => Ok(()),
        other => Err(format!("more memory than there is gave {other:?} instead of OutOfMemory").into()),
    }
}

fn streams(d: &dyn Driver) -> Check {
    const N: usize = 1 << 20;
    let (first, [a, b]) = Bench::new(d, [N, N])?;
    let (second, [c]) = Bench::new(d, [N])?;
    for round in 0..8 {
        let data = pattern(N, round);
        // SAFETY: ranges are whole pieces of memory; events are destroyed once, when both streams have passed them.
        let ns = unsafe {
            let from = d.record(first.stream)?;
            d.copy_in(first.stream, a, 0, &data)?;
            d.copy(first.stream, (a, 0), (b, 0), N)?;
            let to = d.record(first.stream)?;
            d.wait(second.stream, to)?;
            d.copy(second.stream, (b, 0), (c, 0), N)?;
            d.event_synchronize(to)?;
            let ns = d.elapsed_ns(from, to)?;
            d.synchronize(second.stream)?;
            [from, to].into_iter().for_each(|e| d.destroy_event(e));
            ns
        };
        ensure!(ns < 60_000_000_000, "two copies took {ns} ns");
        ensure!(
            second.read(c, 0, N)? == data,
            "the second stream did not wait for the first (round {round})"
        );
    }
    Ok(())
}

fn compilation_errors(d: &dyn Driver) -> Check {
    match d.compile(&CompileUnit::new("broken_unit", "this is no kernel;")) {
        Err(GpuError::Compile(e)) => {
            ensure!(
                e.unit == "broken_unit" && !e.log.is_empty(),
                "unit `{}` with the log `{}`",
                e.unit,
                e.log
            );
            Ok(())
        }
        Err(e) => Err(format!("a text that does not compile gave {e} instead of Compile").into()),
        Ok(_) => Err("a text that is no kernel compiles".into()),
    }
}

/// Geometry, every kind of argument, the offset of a pointer, local memory and a barrier.
const KERNEL: &str = r#"
GK_KERNEL(suite)(GK_IN(gk_t, x), gk_i64 x_len, GK_OUT(gk_t, y), gk_i64 y_len, float a, int n, gk_u32 u, gk_i64 w)
{
    GK_BIND_IN(gk_t, x);
    GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_f tile[GK_BLOCK];
    int l = gk_lid();
    gk_i64 i = gk_gid();
    gk_i64 m = x_len < y_len ? x_len : y_len;
    tile[l] = i < m ? gk_load(x, i) : (gk_f)0;
    GK_BARRIER();
    /* The block's elements in reverse. */
    if (i < m && i < n) gk_store(y, i, (gk_f)a * tile[GK_BLOCK - 1 - l] + (gk_f)u + (gk_f)w);
}
"#;

fn user_kernel(d: &Arc<dyn Driver>) -> Check {
    let gpu = Engine::new(d.clone())?;
    // SAFETY: the prototype is in effect as written, and elements beyond the shorter buffer are not touched.
    let kernel = unsafe { gpu.compile_raw(KERNEL, "suite", DType::F32)? };
    let block = crate::spec::BLOCK as usize;
    let data: Vec<f32> = (0..4 * block).map(|i| i as f32).collect();
    let (x, mut y) = (gpu.upload(&data)?, gpu.upload(&vec![-1f32; 4 * block])?);
    let n = 3 * block - 5;
    let mut args = [
        RawArg::In(x.view().range(block, 3 * block)?),
        RawArg::Out(y.view_mut().range(7, 3 * block)?),
        RawArg::F32(2.0),
        RawArg::I32(n as i32),
        RawArg::U32(100),
        RawArg::I64(-1),
    ];
    gpu.launch_raw(&kernel, [3, 1, 1], &mut args)?;
    let got: Vec<f32> = gpu.download(y.view())?;
    let want = |i: usize| match i.checked_sub(7).filter(|&i| i < n) {
        Some(i) => 2.0 * (block + i / block * block + block - 1 - i % block) as f32 + 99.0,
        None => -1.0,
    };
    let wrong = got.iter().enumerate().find(|&(i, &y)| y != want(i));
    ensure!(wrong.is_none(), "element {wrong:?} of the result");
    // SAFETY: not launched.
    let missing =
        unsafe { gpu.compile_raw(&KERNEL.replace("gk_lid()", "no_such_thing()"), "suite", DType::F32) };
    ensure!(matches!(missing, Err(GpuError::Compile(_))), "an unknown function gave {missing:?}");
    Ok(())
}

/// exp(x) + x, softmax of rows and sums of columns.
fn answers<T: crate::Element>(gpu: &dyn IGpuBackend, data: &[T]) -> crate::Result<[Vec<T>; 3]> {
    let (rows, cols) = (data.len() / 37, 37);
    let shape = [rows, cols];
    let x = gpu.upload(data)?;
    let mut y = gpu.alloc(T::DTYPE, data.len())?;
    let mut z = gpu.alloc(T::DTYPE, data.len())?;
    let mut sums = gpu.alloc(T::DTYPE, cols)?;
    gpu.unary(Unary::Exp, x.view(), y.view_mut())?;
    gpu.binary(Binary::Add { alpha: 1.0 }, y.view(), x.view(), z.view_mut())?;
    gpu.softmax(Softmax::Softmax, 1, x.shaped(&shape)?, y.shaped_mut(&shape)?)?;
    gpu.reduce(Reduce::Sum, &[0], x.shaped(&shape)?, sums.view_mut())?;
    Ok([gpu.download(z.view())?, gpu.download(y.view())?, gpu.download(sums.view())?])
}

fn operations(d: &Arc<dyn Driver>) -> Check {
    fn compare<T: crate::Element + Into<f64>>(d: &Arc<dyn Driver>, data: Vec<T>, tolerance: f64) -> Check {
        let gpu = Engine::new(d.clone())?;
        let (got, want) = (answers(&gpu, &data)?, answers(&CpuBackend::new(), &data)?);
        for (what, (got, want)) in ["exp(x) + x", "softmax", "sum"].iter().zip(got.iter().zip(&want)) {
            let near = |(a, b): (&T, &T)| {
                let (a, b): (f64, f64) = ((*a).into(), (*b).into());
                (a - b).abs() <= tolerance * (1.0 + b.abs())
            };
            let wrong = got.iter().zip(want).position(|pair| !near(pair));
            ensure!(wrong.is_none(), "{what} in {} differs at element {wrong:?}", T::DTYPE.name());
        }
        let bits = |all: &[Vec<T>; 3]| {
            all.iter().map(|v| bytemuck::cast_slice(v).to_vec()).collect::<Vec<Vec<u8>>>()
        };
        ensure!(bits(&got) == bits(&answers(&gpu, &data)?), "the same calls gave other bits");
        Ok(())
    }
    let value = |i: usize| (i * 7919 % 1000) as f64 * 0.006 - 3.0;
    compare::<f32>(d, (0..3700).map(|i| value(i) as f32).collect(), 1e-5)?;
    if d.caps().f64 {
        compare::<f64>(d, (0..3700).map(value).collect(), 1e-13)?;
    }
    Ok(())
}

fn pool(d: &Arc<dyn Driver>) -> Check {
    let gpu = Engine::new(d.clone())?;
    for round in 0..20 {
        let x = gpu.upload(&vec![round as f32; 10_000])?;
        let mut y = gpu.alloc(DType::F32, 10_000)?;
        gpu.unary(Unary::Neg, x.view(), y.view_mut())?;
        ensure!(gpu.download::<f32>(y.view())?.iter().all(|&v| v == -(round as f32)), "round {round}");
    }
    let m = gpu.memory();
    ensure!(m.peak < 2 * 64 * 1024, "memory is not used again: {m:?}");
    gpu.trim()?;
    ensure!(gpu.memory().cached == 0, "trim left {:?}", gpu.memory());
    Ok(())
}

fn threads(d: &Arc<dyn Driver>) -> Check {
    let gpu = Engine::new(d.clone())?;
    let one = &|t: i32| -> crate::Result<bool> {
        let stream = gpu.fork_stream()?;
        for round in 0..20 {
            let v = t * 1000 + round;
            let x = stream.upload(&vec![v; 1000])?;
            let mut y = stream.alloc(DType::I32, 1000)?;
            stream.unary(Unary::Neg, x.view(), y.view_mut())?;
            // The buffer moves to the other handle, whose stream waits for it.
            let y = gpu.adopt(y)?;
            if gpu.download::<i32>(y.view())?.iter().any(|&got| got != -v) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|t| scope.spawn(move || one(t))).collect();
        for thread in running {
            match thread.join() {
                Ok(right) => ensure!(right?, "a thread read what is not its own"),
                Err(_) => return Err("a thread panicked".into()),
            }
        }
        Ok(())
    })
}

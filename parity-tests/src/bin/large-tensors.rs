//! Tensors of more than 2^31 elements: copy, fill, elementwise, reductions, softmax and embedding, checked where 32-bit offsets would go wrong.
//!
//! Needs 18 GB on the device: not part of the tests.

use std::process::ExitCode;

use clap::Parser;
use half::bf16;
use parity_tests::backends;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::reduce::Reduce;
use trefoil::ops::softmax::Softmax;
use trefoil::{BackendExt, Buffer, DType, IGpuBackend, Result};

/// Checks operations on tensors of more than 2^31 elements.
#[derive(Parser)]
struct Args {
    /// cuda, hip or opencl, each with an optional :N.
    #[arg(long)]
    backend: String,
}

const ROWS: usize = (1 << 16) + 1;
const COLS: usize = 1 << 15;
const N: usize = ROWS * COLS;
const DT: DType = DType::Bf16;

/// Failed checks by name.
struct Bed<'a> {
    gpu: &'a dyn IGpuBackend,
    failed: usize,
}

impl Bed<'_> {
    /// Elements `at..` of `b` must have these values.
    fn expect(&mut self, what: &str, b: &Buffer, at: usize, want: &[f32]) -> Result<()> {
        let got = self.gpu.download::<bf16>(b.view().range(at, want.len())?)?;
        let ok = got.iter().zip(want).all(|(g, w)| (g.to_f32() - w).abs() <= 0.01 * w.abs());
        println!("{what} [{at}..]: {}", if ok { "ok" } else { "FAILED" });
        if !ok {
            println!("  got {got:?}, expected {want:?}");
            self.failed += 1;
        }
        Ok(())
    }
}

fn run(gpu: &dyn IGpuBackend) -> Result<usize> {
    let mut t = Bed { gpu, failed: 0 };
    let mut x = gpu.alloc(DT, N)?;
    gpu.fill(1.0, x.view_mut())?;
    let marks: Vec<bf16> = [2.0, 3.0, 4.0].map(bf16::from_f32).to_vec();
    gpu.write(x.alias_mut().range(N - 3, 3)?, &marks)?;
    t.expect("fill", &x, (1 << 31) - 2, &[1.0; 4])?;

    let mut y = gpu.alloc(DT, N)?;
    gpu.copy(x.view(), y.view_mut())?;
    t.expect("copy", &y, 0, &[1.0; 4])?;
    t.expect("copy", &y, N - 4, &[1.0, 2.0, 3.0, 4.0])?;
    gpu.unary(Unary::Neg, x.view(), y.view_mut())?;
    t.expect("unary", &y, (1 << 31) - 2, &[-1.0; 4])?;
    t.expect("unary", &y, N - 4, &[-1.0, -2.0, -3.0, -4.0])?;
    let mut z = gpu.alloc(DT, N)?;
    gpu.binary(Binary::Sub, x.view(), y.view(), z.view_mut())?;
    t.expect("binary", &z, N - 4, &[2.0, 4.0, 6.0, 8.0])?;

    let mut column = gpu.alloc(DT, ROWS)?;
    gpu.reduce(Reduce::Max, &[1], x.shaped(&[ROWS, COLS])?, column.view_mut())?;
    t.expect("row maxima", &column, ROWS - 3, &[1.0, 1.0, 4.0])?;
    gpu.reduce(Reduce::Sum, &[1], x.shaped(&[ROWS, COLS])?, column.view_mut())?;
    t.expect("row sums", &column, ROWS - 2, &[32768.0, 32774.0])?;
    let mut row = gpu.alloc(DT, COLS)?;
    gpu.reduce(Reduce::Max, &[0], x.shaped(&[ROWS, COLS])?, row.view_mut())?;
    t.expect("column maxima", &row, COLS - 4, &[1.0, 2.0, 3.0, 4.0])?;
    let mut one = gpu.alloc(DT, 1)?;
    gpu.reduce(Reduce::Max, &[0], x.view(), one.view_mut())?;
    t.expect("maximum of all", &one, 0, &[4.0])?;

    // One element of the last row outweighs all others.
    gpu.write(x.alias_mut().range(N - 1, 1)?, &[bf16::from_f32(64.0)])?;
    gpu.softmax(Softmax::Softmax, 1, x.shaped(&[ROWS, COLS])?, y.shaped_mut(&[ROWS, COLS])?)?;
    t.expect("softmax", &y, (1 << 31) - 2, &[1.0 / COLS as f32; 2])?;
    t.expect("softmax", &y, N - 1, &[1.0])?;

    let ids: Vec<i64> = (0..ROWS as i64).rev().collect();
    let ids = gpu.upload(&ids)?;
    gpu.embedding(None, ids.view(), x.shaped(&[ROWS, COLS])?, z.shaped_mut(&[ROWS, COLS])?)?;
    t.expect("embedding", &z, COLS - 3, &[2.0, 3.0, 64.0])?;
    t.expect("embedding", &z, N - 4, &[1.0; 4])?;
    gpu.synchronize()?;
    Ok(t.failed)
}

fn main() -> ExitCode {
    let outcome = backends::open(&Args::parse().backend).and_then(|gpu| run(&*gpu));
    match outcome {
        Ok(0) => {
            println!("all as expected for {N} elements");
            ExitCode::SUCCESS
        }
        Ok(n) => {
            println!("{n} checks failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

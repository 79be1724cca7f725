//! Scatters along the innermost axis whose rows are long enough to be sorted one by one, against sums and last writers in plain Rust, on every
//! backend. Values are small whole numbers, whose sums are exact.

mod common;

use common::backends;
use trefoil::ops::index::{IndexOps, ScatterReduce};
use trefoil::{BackendExt, GpuError};

/// Rows, cells of a row of the table, sources of a row: the last are neither a power of two nor a multiple of a block.
const SHAPE: [usize; 3] = [5, 700, 601];

/// Indices that leave some cells out and meet others several times, differently in each row.
fn indices() -> Vec<i32> {
    let [rows, size, n] = SHAPE;
    (0..rows * n).map(|i| ((i % n * 37 + i / n * 101) % (size / 2) * 2 % size) as i32).collect()
}

fn sources() -> Vec<f32> {
    (0..SHAPE[0] * SHAPE[2]).map(|i| (i % 23) as f32 - 11.0).collect()
}

#[test]
fn long_rows_are_scattered_as_short_ones_are() {
    let [rows, size, n] = SHAPE;
    let (index, src) = (indices(), sources());
    let (mut last, mut sum) = (vec![0.5f32; rows * size], vec![0.5f32; rows * size]);
    for (i, (&to, &v)) in index.iter().zip(&src).enumerate() {
        let cell = i / n * size + to as usize;
        last[cell] = v;
        sum[cell] += v;
    }
    for gpu in backends() {
        let (to, from) = (gpu.upload(&index).unwrap(), gpu.upload(&src).unwrap());
        let (to, from) = (to.shaped(&[rows, n]).unwrap(), from.shaped(&[rows, n]).unwrap());
        let mut y = gpu.upload(&vec![0.5f32; rows * size]).unwrap();
        gpu.scatter(1, to, from, y.shaped_mut(&[rows, size]).unwrap()).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), last, "{}", gpu.id());
        let mut y = gpu.upload(&vec![0.5f32; rows * size]).unwrap();
        gpu.scatter_reduce(ScatterReduce::Sum, 1, true, to, from, y.shaped_mut(&[rows, size]).unwrap())
            .unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), sum, "{}", gpu.id());
    }
}

#[test]
fn an_index_out_of_range_in_a_long_row_is_reported() {
    let [rows, size, n] = SHAPE;
    let mut index = indices();
    index[n + 7] = size as i32;
    for gpu in backends() {
        let (to, from) = (gpu.upload(&index).unwrap(), gpu.upload(&sources()).unwrap());
        let mut y = gpu.upload(&vec![0.5f32; rows * size]).unwrap();
        let (to, from) = (to.shaped(&[rows, n]).unwrap(), from.shaped(&[rows, n]).unwrap());
        gpu.scatter(1, to, from, y.shaped_mut(&[rows, size]).unwrap()).unwrap();
        let got = gpu.download::<f32>(y.view());
        assert!(matches!(got, Err(GpuError::IndexOutOfRange { op: "scatter" })), "{}: {got:?}", gpu.id());
    }
}

//! Tensors as text, in the layout of NumPy's `str`: shortest digits that tell the values of the dtype apart (at most 8 behind the point), columns
//! aligned, three elements at each end of long axes.

use std::fmt::{self, Write};

use trefoil::{DType, bf16_from_f64, f16_from_f64};

use crate::core::error::Result;
use crate::core::host_tensor::convert;
use crate::core::tensor::Tensor;

/// Tensors of more elements are shortened.
const THRESHOLD: usize = 1000;
/// Elements that are shown at each end of an axis of a shortened tensor.
const EDGE: usize = 3;
/// Columns of a line.
const WIDTH: usize = 75;
/// Most digits behind the point.
const PRECISION: usize = 8;

impl fmt::Display for Tensor {
    /// The values, read from the device: the host waits. Where they cannot be read, the error in angle brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match cells(self) {
            Ok((cells, shape)) if shape.is_empty() => f.write_str(cells.first().map_or("", |c| c.trim())),
            Ok((_, shape)) if shape.contains(&0) => write!(f, "[] (shape {shape:?})"),
            Ok((cells, shape)) => {
                let shortened = self.numel() > THRESHOLD;
                let long: Vec<bool> = self.shape().iter().map(|&n| shortened && n > 2 * EDGE).collect();
                let mut text = String::new();
                let table = Table { cells: &cells, shape: &shape, long: &long };
                table.write(&mut text, 0, 0)?;
                f.write_str(&text)
            }
            Err(e) => write!(f, "<{} {:?}: {e}>", self.dtype(), self.shape()),
        }
    }
}

/// The part of a tensor that is shown: the whole, or its ends along every long axis.
fn shown(t: &Tensor) -> Result<Tensor> {
    let mut t = t.detach();
    if t.numel() <= THRESHOLD {
        return Ok(t);
    }
    for axis in 0..t.rank() {
        let n = t.shape()[axis];
        if n > 2 * EDGE {
            let layout = |start: usize, end: usize| t.layout().slice(axis, start, end, 1);
            let mut shape = t.shape().to_vec();
            shape[axis] = 2 * EDGE;
            let both = Tensor::empty(t.device(), t.dtype(), &shape)?;
            for (from, to) in [(0, 0), (n - EDGE, EDGE)] {
                let source = layout(from, from + EDGE).map(|l| t.relayout(l));
                let target = both.layout().slice(axis, to, to + EDGE, 1).map(|l| both.relayout(l));
                if let (Ok(source), Ok(target)) = (source, target) {
                    target.assign(&source)?;
                }
            }
            t = both;
        }
    }
    Ok(t)
}

/// The elements that are shown as text of equal width, and the shape that they have.
fn cells(t: &Tensor) -> Result<(Vec<String>, Vec<usize>)> {
    let part = shown(t)?;
    let shape = part.shape().to_vec();
    let (dtype, bytes) = (part.dtype(), host_bytes(&part)?);
    let texts = if dtype.is_float() {
        let wide = convert(&bytes, dtype, DType::F64)?;
        floats(dtype, &wide.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect::<Vec<f64>>())
    } else {
        let wide = convert(&bytes, dtype, DType::I64)?;
        wide.chunks_exact(8).map(|c| bytemuck::pod_read_unaligned::<i64>(c).to_string()).collect()
    };
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    Ok((texts.into_iter().map(|s| format!("{s:>width$}")).collect(), shape))
}

/// The elements in row-major order.
fn host_bytes(t: &Tensor) -> Result<Vec<u8>> {
    let whole = Tensor::empty(t.device(), t.dtype(), t.shape())?;
    whole.assign(t)?;
    whole.to_bytes()
}

/// Whether a text reads as this value of the dtype.
fn reads_as(dtype: DType, text: &str, value: f64) -> bool {
    let read: f64 = text.parse().unwrap_or(f64::NAN);
    match dtype {
        DType::F16 => f16_from_f64(read).to_f64() == value,
        DType::Bf16 => bf16_from_f64(read).to_f64() == value,
        DType::F32 => f64::from(read as f32) == value,
        _ => read == value,
    }
}

/// Values as NumPy prints them: with an exponent where they differ by more than a factor of 1000 and some are small, or some are large.
fn floats(dtype: DType, values: &[f64]) -> Vec<String> {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let sizes = || finite().map(f64::abs).filter(|&x| x > 0.0);
    let (most, least) = (sizes().fold(0.0, f64::max), sizes().fold(f64::INFINITY, f64::min));
    let exponent = most >= 1e8 || (most > 0.0 && (least < 1e-4 || most / least > 1000.0));
    let print = |x: f64, digits: usize| match exponent {
        true => format!("{x:.digits$e}"),
        false => format!("{x:.digits$}"),
    };
    let needed = |x: f64| (0..PRECISION).find(|&d| reads_as(dtype, &print(x, d), x)).unwrap_or(PRECISION);
    let digits = finite().map(needed).max().unwrap_or(0);
    let text = |&x: &f64| match (x.is_finite(), exponent) {
        (false, _) if x.is_nan() => "nan".to_string(),
        (false, _) => if x > 0.0 { "inf" } else { "-inf" }.to_string(),
        (true, true) => scientific(&print(x, digits)),
        (true, false) => {
            // Digits that the value does not need are blanks; the point stays.
            let own = print(x, needed(x));
            let point = if own.contains('.') { own } else { format!("{own}.") };
            let blanks = digits.saturating_sub(needed(x));
            format!("{point}{}", " ".repeat(blanks))
        }
    };
    values.iter().map(text).collect()
}

/// `1.5e-5` as `1.5e-05`, `2e0` as `2.e+00`.
fn scientific(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text.to_string() };
    let point = if mantissa.contains('.') { "" } else { "." };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}{point}e{sign}{digits:0>2}")
}

/// The cells of a tensor by its shape.
struct Table<'a> {
    cells: &'a [String],
    shape: &'a [usize],
    long: &'a [bool],
}

impl Table<'_> {
    /// Writes the part that begins with cell `from`, an element of axis `axis - 1`.
    fn write(&self, out: &mut String, axis: usize, from: usize) -> fmt::Result {
        let size: usize = self.shape[axis + 1..].iter().product();
        out.push('[');
        if axis + 1 == self.shape.len() {
            self.row(out, axis, from)?;
        } else {
            for i in 0..self.shape[axis] {
                if i > 0 {
                    let blank = "\n".repeat(self.shape.len() - axis - 1);
                    write!(out, "{blank}{}", " ".repeat(axis + 1))?;
                }
                if self.long[axis] && i == EDGE {
                    let blank = "\n".repeat(self.shape.len() - axis - 1);
                    write!(out, "...{blank}{}", " ".repeat(axis + 1))?;
                }
                self.write(out, axis + 1, from + i * size)?;
            }
        }
        out.push(']');
        Ok(())
    }

    /// The elements of the last axis, over several lines where one is too short.
    fn row(&self, out: &mut String, axis: usize, from: usize) -> fmt::Result {
        let mut column = axis + 1;
        let mut put = |out: &mut String, text: &str, first: bool| -> fmt::Result {
            let gap = usize::from(!first);
            if !first && column + gap + text.chars().count() >= WIDTH {
                write!(out, "\n{}", " ".repeat(axis + 1))?;
                column = axis + 1;
            } else if !first {
                out.push(' ');
                column += 1;
            }
            out.push_str(text);
            column += text.chars().count();
            Ok(())
        };
        for i in 0..self.shape[axis] {
            if self.long[axis] && i == EDGE {
                put(out, "...", false)?;
            }
            put(out, &self.cells[from + i], i == 0)?;
        }
        Ok(())
    }
}

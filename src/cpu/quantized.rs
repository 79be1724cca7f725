//! Quantization, and products of operands in 8 and 4 bits and of sparse ones, on the CPU: decoded to f64 and multiplied.

use crate::cpu::scratch::*;
use crate::cpu::values::{Share, each_chunk, sort_positions};
use crate::cpu::*;
use crate::ops::quantized::*;

fn int8(b: u8) -> f64 {
    f64::from(b as i8)
}

/// A [m, k] times the transpose of b [n, k].
fn product(a: &[f64], b: &[f64], e: Low) -> Result<Vec<f64>> {
    if e.n == 0 {
        return Ok(Vec::new());
    }
    let mut y = filled(e.m * e.n, 0.0)?;
    each_chunk(&mut y, e.n, Share::ANY, &|m, row| {
        for (n, y) in row.iter_mut().enumerate() {
            let (a, b) = (&a[m * e.k..(m + 1) * e.k], &b[n * e.k..(n + 1) * e.k]);
            *y = a.iter().zip(b).map(|(a, b)| a * b).sum();
        }
    });
    Ok(y)
}

/// Rows of a coded matrix: `value(row, k)` times the scale there.
fn decoded(
    rows: usize,
    k: usize,
    f: Form,
    scale: &[f64],
    value: impl Fn(usize, usize) -> f64,
) -> Result<Vec<f64>> {
    (0..rows)
        .flat_map(|r| (0..k).map(move |c| (r, c)))
        .map(|(r, c)| value(r, c) * scale[f.scale_of(r, c)])
        .try_vec()
}

fn fp8_value(b: u8, format: Fp8) -> f64 {
    let (exponent_bits, bias) = match format {
        Fp8::E4m3 => (4, 7),
        Fp8::E5m2 => (5, 15),
    };
    let mantissa_bits = 7 - exponent_bits;
    let (e, m) = (i32::from(b & 0x7f) >> mantissa_bits, f64::from(b & ((1 << mantissa_bits) - 1)));
    let unit = 2f64.powi(-mantissa_bits);
    let top = e == (1 << exponent_bits) - 1;
    let size = match format {
        Fp8::E4m3 if b & 0x7f == 0x7f => f64::NAN,
        Fp8::E5m2 if top && m == 0.0 => f64::INFINITY,
        Fp8::E5m2 if top => f64::NAN,
        _ if e == 0 => m * unit * 2f64.powi(1 - bias),
        _ => (1.0 + m * unit) * 2f64.powi(e - bias),
    };
    if b & 0x80 != 0 { -size } else { size }
}

/// The code nearest to `r`, even at ties.
fn code_of(format: QuantFormat, r: f64) -> u8 {
    let most = format.max();
    let integer = || if r.is_nan() { 0.0 } else { r.round_ties_even().clamp(-most, most) };
    match format {
        QuantFormat::Int8 => integer() as i8 as u8,
        QuantFormat::Int4 => (integer() + 8.0) as u8,
        QuantFormat::Fp8(_) if r.is_nan() => 0x7f,
        QuantFormat::Fp8(format) => {
            // Codes of positive numbers are in their order: the first one not below, or the one before it.
            let last = if format == Fp8::E4m3 { 0x7e } else { 0x7b };
            let size = r.abs().min(most);
            let above = (0..last).find(|&c| fp8_value(c, format) >= size).unwrap_or(last);
            let below = above.saturating_sub(1);
            let (up, down) = (fp8_value(above, format) - size, size - fp8_value(below, format));
            let nearest = if down < up || (down == up && below % 2 == 0) { below } else { above };
            if r < 0.0 { nearest | 0x80 } else { nearest }
        }
    }
}

/// Pairs of kept values back in their places.
fn expand(values: &[f64], index: &[u8]) -> Result<Vec<f64>> {
    let mut y = filled(4 * index.len(), 0.0)?;
    for ((four, pair), &i) in y.chunks_exact_mut(4).zip(values.chunks_exact(2)).zip(index) {
        four[usize::from(i >> 2 & 3)] = pair[1];
        four[usize::from(i & 3)] = pair[0];
    }
    Ok(y)
}

impl QuantizedOps for Kernels {
    fn gemm_quantized(&self, x: View<'_>, w: QuantWeight<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gemm_quantized";
        let (e, f) = check_gemm_quantized(&x, &w, &y)?;
        let _timed = self.count("gemm_quantized");
        let x = gather_f64(OP, x)?;
        let w = match w {
            QuantWeight::Int8 { q, scale } => {
                let (q, scale) = (gather::<u8>(OP, q)?, gather_f64(OP, scale)?);
                decoded(e.n, e.k, f, &scale, |r, c| int8(q[r * e.k + c]))?
            }
            QuantWeight::Int4 { q, scale, zero } => {
                let (q, scale) = (gather::<u8>(OP, q)?, gather_f64(OP, scale)?);
                let zero = zero.map(|z| gather_f64(OP, z)).transpose()?;
                decoded(e.n, e.k, f, &scale, |r, c| {
                    let byte = q[r * f.pitch + c / 2];
                    let code = if c % 2 == 0 { byte & 15 } else { byte >> 4 };
                    f64::from(code) - zero.as_ref().map_or(8.0, |z| z[f.scale_of(r, c)])
                })?
            }
        };
        store_f64(OP, &y, &product(&x, &w, e)?)
    }

    fn gemm_w8a8(&self, io: GemmW8A8<'_>) -> Result<()> {
        const OP: &str = "gemm_w8a8";
        let e = check_gemm_w8a8(&io)?;
        let _timed = self.count("gemm_w8a8");
        let codes = |v| gather::<u8>(OP, v)?.into_iter().map(int8).try_vec();
        // Integers of this size are exact in f64.
        let mut y = product(&codes(io.xq)?, &codes(io.wq)?, e)?;
        let (xs, ws) = (gather_f64(OP, io.x_scale)?, gather_f64(OP, io.w_scale)?);
        y.iter_mut().enumerate().for_each(|(i, y)| *y *= xs[i / e.n] * ws[i % e.n]);
        store_f64(OP, &io.y, &y)
    }

    fn gemm_fp8(&self, io: GemmFp8<'_>) -> Result<()> {
        const OP: &str = "gemm_fp8";
        let (e, fa, fb) = check_gemm_fp8(&io)?;
        let _timed = self.count("gemm_fp8");
        let operand = |v, f, format, scale, rows| {
            let (q, scale) = (gather::<u8>(OP, v)?, gather_f64(OP, scale)?);
            decoded(rows, e.k, f, &scale, |r, c| fp8_value(q[r * e.k + c], format))
        };
        let a = operand(io.a, fa, io.fmt_a, io.scale_a, e.m)?;
        let b = operand(io.b, fb, io.fmt_b, io.scale_b, e.n)?;
        store_f64(OP, &io.y, &product(&a, &b, e)?)
    }

    fn quantize(&self, format: QuantFormat, x: View<'_>, q: ViewMut<'_>, scale: ViewMut<'_>) -> Result<()> {
        const OP: &str = "quantize";
        let (g, _) = check_quantize(format, &x, &q, &scale)?;
        let _timed = self.count("quantize");
        let x = gather_f64(OP, x)?;
        let largest = |x: &[f64]| {
            x.iter().fold(0.0, |m: f64, x| if x.is_nan() || m.is_nan() { f64::NAN } else { m.max(x.abs()) })
        };
        // Codes are those of the scale as it is stored.
        let scale_of = |x: &[f64]| match (largest(x) / format.max()) as f32 {
            0.0 => 1.0,
            s => f64::from(s),
        };
        let groups = || x.chunks(g.size.max(1));
        let mut scales = groups().map(scale_of).try_vec()?;
        let mut codes: Vec<u8> = with_capacity(x.len())?;
        for (x, s) in groups().zip(&scales) {
            codes.try_extend(x.iter().map(|x| code_of(format, x / s)))?;
        }
        if format.per_byte() == 2 {
            codes = codes.chunks_exact(2).map(|c| c[0] | c[1] << 4).try_vec()?;
        }
        // Without elements a scale is that of zeros.
        scales.try_extend((scales.len()..scale.numel()).map(|_| 1.0))?;
        store(OP, &q, &codes)?;
        store_f64(OP, &scale, &scales)
    }

    fn dequantize(&self, format: QuantFormat, q: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "dequantize";
        let (g, f) = check_dequantize(format, &q, &scale, &y)?;
        let _timed = self.count("dequantize");
        let (q, scale) = (gather::<u8>(OP, q)?, gather_f64(OP, scale)?);
        let value = |r: usize, c: usize| match format {
            QuantFormat::Int8 => int8(q[r * g.k + c]),
            QuantFormat::Int4 => f64::from(q[r * f.pitch + c / 2] >> (4 * (c % 2)) & 15) - 8.0,
            QuantFormat::Fp8(format) => fp8_value(q[r * g.k + c], format),
        };
        store_f64(OP, &y, &decoded(g.rows, g.k, f, &scale, value)?)
    }

    fn sparse_compress(&self, x: View<'_>, values: ViewMut<'_>, index: ViewMut<'_>) -> Result<()> {
        const OP: &str = "sparse_compress";
        check_sparse_compress(&x, &values, &index)?;
        let _timed = self.count("sparse_compress");
        let x = gather_f64(OP, x)?;
        let (mut kept, mut places) = (with_capacity(x.len() / 2)?, with_capacity(x.len() / 4)?);
        for four in x.chunks_exact(4) {
            let size = |i: usize| if four[i].is_nan() { f64::INFINITY } else { four[i].abs() };
            let mut by = [0, 1, 2, 3];
            sort_positions(&mut by, &|a, b| size(b).total_cmp(&size(a)).then(a.cmp(&b)));
            let (lo, hi) = (by[0].min(by[1]), by[0].max(by[1]));
            kept.try_extend([four[lo], four[hi]])?;
            places.try_push((lo + 4 * hi) as u8)?;
        }
        store_f64(OP, &values, &kept)?;
        store(OP, &index, &places)
    }

    fn sparse_decompress(&self, values: View<'_>, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "sparse_decompress";
        check_sparse_decompress(&values, &index, &y)?;
        let _timed = self.count("sparse_decompress");
        let dense = expand(&gather_f64(OP, values)?, &gather::<u8>(OP, index)?)?;
        store_f64(OP, &y, &dense)
    }

    fn gemm_2to4(&self, values: View<'_>, index: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gemm_2to4";
        let e = check_gemm_2to4(&values, &index, &b, &y)?;
        let _timed = self.count("gemm_2to4");
        let a = expand(&gather_f64(OP, values)?, &gather::<u8>(OP, index)?)?;
        let columns = gather_f64(OP, b.map("columns", |l| l.transpose(0, 1))?)?;
        store_f64(OP, &y, &product(&a, &columns, e)?)
    }
}

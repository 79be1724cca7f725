//! Products of coded operands: codes decoded exactly, products summed in f64. f32 may be off by the bound of every product over an axis of length
//! K, (8 + sqrt K) roundings of the sum of magnitudes.

use trefoil::DType;

use super::{Answer, Input, Question, U};

/// A matrix [rows, k] in f64.
struct Matrix {
    rows: usize,
    k: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, k: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * k).map(|i| value(i / k, i % k)).collect();
        Matrix { rows, k, values }
    }

    fn plain(x: &Input) -> Self {
        Matrix { rows: x.shape[0], k: x.shape[1], values: x.values.clone() }
    }

    fn row(&self, r: usize) -> &[f64] {
        &self.values[r * self.k..(r + 1) * self.k]
    }
}

/// a times the transpose of b, in `dtype`.
fn product(dtype: DType, a: &Matrix, b: &Matrix) -> Vec<Answer> {
    let (mut y, mut errors) = (vec![], vec![]);
    let factor = (8.0 + (a.k as f64).sqrt()) * U;
    for i in 0..a.rows {
        for j in 0..b.rows {
            let terms = a.row(i).iter().zip(b.row(j)).map(|(a, b)| a * b);
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            y.push(sum);
            errors.push(factor * size);
        }
    }
    vec![Answer::rounded("y", dtype, &[a.rows, b.rows], &y, errors)]
}

fn signed(byte: f64) -> f64 {
    if byte > 127.0 { byte - 256.0 } else { byte }
}

/// Weights in signed bytes with a scale per row, or in 4 bits (the even element in the low half) with scale and zero point per group.
pub(crate) fn quantized(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (x, codes, scale, zero) = (q.x("x")?, q.x("q")?, q.x("scale")?, q.opt("zero"));
    let (n, k) = (codes.shape[0], x.shape[1]);
    let weight = if q.u("bits")? == 8 {
        Matrix::new(n, k, |r, c| signed(codes.values[r * k + c]) * scale.values[r])
    } else {
        let groups = scale.shape[1];
        let group = k / groups.max(1);
        Matrix::new(n, k, |r, c| {
            let byte = codes.values[r * (k / 2) + c / 2] as u8;
            let code = if c % 2 == 0 { byte % 16 } else { byte / 16 };
            let at = r * groups + c / group;
            (f64::from(code) - zero.as_ref().map_or(8.0, |z| z.values[at])) * scale.values[at]
        })
    };
    Ok(product(q.dtype(), &Matrix::plain(&x), &weight))
}

/// Integers multiplied exactly (their sum is below 2^31), then two scales: the conversion and two products are rounded.
pub(crate) fn w8a8(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let [x, w] = [q.x("xq")?, q.x("wq")?];
    let [xs, ws] = [q.x("xscale")?, q.x("wscale")?];
    let k = x.shape[1];
    let code = |t: &Input, r: usize, c: usize| signed(t.values[r * k + c]) as i64;
    let mut y = vec![];
    for i in 0..x.shape[0] {
        for j in 0..w.shape[0] {
            let sum: i64 = (0..k).map(|c| code(&x, i, c) * code(&w, j, c)).sum();
            y.push(sum as f64 * (xs.values[i] * ws.values[j]));
        }
    }
    let errors = y.iter().map(|v| 3.0 * U * v.abs()).collect();
    Ok(vec![Answer::rounded("y", DType::F32, &[x.shape[0], w.shape[0]], &y, errors)])
}

/// An 8-bit floating-point number: a sign, `exponent` bits, and a mantissa with an implicit 1 above the lowest exponent.
pub(crate) fn decode(byte: u8, format: &str) -> Result<f64, String> {
    let exponent = match format {
        "e4m3" => 4,
        "e5m2" => 5,
        f => return Err(format!("format {f} is unknown")),
    };
    let mantissa = 7 - exponent;
    let bias = (1 << (exponent - 1)) - 1;
    let (e, m) = ((byte & 127) >> mantissa, byte & ((1 << mantissa) - 1));
    let fraction = f64::from(m) / f64::from(1 << mantissa);
    // e5m2 has IEEE 754's infinities and NaN; e4m3 has only NaN, where all bits are set.
    let size = match (format, e, m) {
        ("e5m2", 31, 0) => f64::INFINITY,
        ("e5m2", 31, _) | ("e4m3", 15, 7) => f64::NAN,
        (_, 0, _) => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(i32::from(e) - bias),
    };
    Ok(if byte > 127 { -size } else { size })
}

/// Operands in 8-bit floats with one scale, a scale per row, or a scale per block.
pub(crate) fn fp8(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let operand = |name: &str, rows_per: usize| -> Result<Matrix, String> {
        let (codes, scale) = (q.x(name)?, q.x(&format!("scale_{name}"))?);
        let table: Vec<f64> =
            (0..=255).map(|b| decode(b, q.s(&format!("fmt_{name}"))?)).collect::<Result<_, _>>()?;
        let [rows, k] = [codes.shape[0], codes.shape[1]];
        let block = q.opt_f("block")?.map(|b| b as usize);
        let at = |r: usize, c: usize| match block {
            Some(block) => r / rows_per * (k / block) + c / block,
            None if scale.values.len() == 1 => 0,
            None => r,
        };
        Ok(Matrix::new(rows, k, |r, c| table[codes.values[r * k + c] as usize] * scale.values[at(r, c)]))
    };
    let block = q.opt_f("block")?.map_or(1, |b| b as usize);
    Ok(product(DType::F32, &operand("a", 1)?, &operand("b", block)?))
}

/// The code of the number nearest to |r|, at ties the even one; `value` gives the magnitudes of the codes 0 to `last`.
fn nearest(r: f64, last: u8, value: impl Fn(u8) -> f64) -> u8 {
    let away = |c: &u8| (value(*c) - r.abs()).abs();
    (0..=last).min_by(|a, b| away(a).total_cmp(&away(b)).then((a % 2).cmp(&(b % 2)))).unwrap_or(0)
}

/// Elements per scale for the granularity of a case.
fn group_of(q: &Question<'_>, x: &Input) -> Result<usize, String> {
    let last = x.shape.last().copied().unwrap_or(1);
    match q.s("per")? {
        "tensor" => Ok(x.values.len()),
        "row" => Ok(last),
        _ => Ok(q.opt_f("group")?.map_or(last, |g| g as usize)),
    }
}

/// Codes and scales: quotients are taken of the scale in f32. The cases' quotients are exact in f32, so codes are, too.
fn quantize(
    q: &Question<'_>,
    most: f64,
    code: impl Fn(f64) -> u8,
    signed: bool,
) -> Result<Vec<Answer>, String> {
    let x = q.x("x")?;
    let group = group_of(q, &x)?;
    let (mut codes, mut scales) = (vec![], vec![]);
    for part in x.values.chunks(group) {
        let nan = part.iter().any(|v| v.is_nan());
        let largest = if nan { f64::NAN } else { part.iter().fold(0.0f64, |m, v| m.max(v.abs())) };
        let scale = if largest == 0.0 { 1.0 } else { f64::from((largest / most) as f32) };
        codes.extend(part.iter().map(|v| i64::from(code(v / scale))));
        scales.push(scale);
    }
    let mut shape = x.shape.clone();
    let last = shape.len() - 1;
    let scale_shape = match q.s("per")? {
        "tensor" => vec![1],
        "row" => shape[..last].to_vec(),
        _ => [&shape[..last], &[shape[last] / group]].concat(),
    };
    if most == 7.0 {
        codes = codes.chunks(2).map(|c| c[0] + 16 * c[1]).collect();
        shape[last] /= 2;
    }
    if signed {
        codes.iter_mut().for_each(|c| *c = i64::from(*c as u8));
    }
    let errors = scales.iter().map(|s| 4.0 * U * s).collect();
    Ok(vec![
        Answer::integers("q", DType::U8, &shape, &codes),
        Answer::rounded("scale", DType::F32, &scale_shape, &scales, errors),
    ])
}

fn integer(r: f64, most: f64) -> i8 {
    let size = if r.is_nan() { 0 } else { nearest(r, most as u8, f64::from) as i8 };
    if r < 0.0 { -size } else { size }
}

/// Signed bytes.
pub(crate) fn quantize_int8(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    quantize(q, 127.0, |r| integer(r, 127.0) as u8, true)
}

/// 4 bits offset by 8.
pub(crate) fn quantize_int4(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    quantize(q, 7.0, |r| (integer(r, 7.0) + 8) as u8, false)
}

/// 8-bit floats.
pub(crate) fn quantize_fp8(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let table: Vec<f64> = (0..=126).map(|b| decode(b, "e4m3")).collect::<Result<_, _>>()?;
    let code = |r: f64| match r.is_nan() {
        true => 127,
        false => nearest(r, 126, |c| table[usize::from(c)]) | if r < 0.0 { 128 } else { 0 },
    };
    quantize(q, 448.0, code, false)
}

/// Codes times scales: one product, rounded once.
pub(crate) fn dequantize(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (codes, scale) = (q.x("q")?, q.x("scale")?);
    let format = q.s("format")?;
    let mut shape = codes.shape.clone();
    let last = shape.len() - 1;
    let byte = |i: usize| codes.values[i] as u8;
    if format == "int4" {
        shape[last] *= 2;
    }
    let n = shape.iter().product::<usize>();
    let group = q.opt_f("group")?.map_or(shape[last], |g| g as usize);
    let value = |i: usize| match format {
        "int8" => Ok(signed(f64::from(byte(i)))),
        "int4" => Ok(f64::from(byte(i / 2) >> (4 * (i % 2)) & 15) - 8.0),
        _ => decode(byte(i), "e4m3"),
    };
    let values =
        (0..n).map(|i| Ok(value(i)? * scale.values[i / group])).collect::<Result<Vec<_>, String>>()?;
    let errors = values.iter().map(|v| U * v.abs()).collect();
    Ok(vec![Answer::rounded("y", q.dtype(), &shape, &values, errors)])
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn known_codes() {
        let value = |b, f| decode(b, f).unwrap();
        assert_eq!(
            [0x00, 0x01, 0x08, 0x38, 0x7e].map(|b| value(b, "e4m3")),
            [0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0, 448.0]
        );
        assert_eq!(
            [0x01, 0x3c, 0x7b, 0xfc].map(|b| value(b, "e5m2")),
            [1.0 / 65536.0, 1.0, 57344.0, f64::NEG_INFINITY]
        );
        assert!(value(0xff, "e4m3").is_nan() && value(0x7d, "e5m2").is_nan());
    }
}

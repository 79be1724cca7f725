//! Tensors in host memory: what files hold before it goes to a device.

use half::{bf16, f16};
use trefoil::{DType, Element, bf16_from_f64, f16_from_f64};

use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// A tensor in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Elements, little-endian, row-major.
    pub bytes: Vec<u8>,
}

/// A number as wide as its kind needs.
#[derive(Clone, Copy)]
enum Number {
    Float(f64),
    Int(i64),
}

trait Convert: Element {
    fn widen(self) -> Number;
    fn narrow(n: Number) -> Self;
}

macro_rules! convert {
    ($($t:ty, $kind:ident, $x:ident => $widen:expr, $f:ident => $from_float:expr, $i:ident => $from_int:expr;)*) => {$(
        impl Convert for $t {
            #[inline]
            fn widen(self) -> Number {
                let $x = self;
                Number::$kind($widen)
            }
            #[inline]
            fn narrow(n: Number) -> Self {
                match n {
                    Number::Float($f) => $from_float,
                    Number::Int($i) => $from_int,
                }
            }
        }
    )*};
}
convert! {
    f64, Float, x => x, f => f, i => i as f64;
    f32, Float, x => x.into(), f => f as f32, i => i as f32;
    f16, Float, x => x.to_f64(), f => f16_from_f64(f), i => f16_from_f64(i as f64);
    bf16, Float, x => x.to_f64(), f => bf16_from_f64(f), i => bf16_from_f64(i as f64);
    i64, Int, x => x, f => f as i64, i => i;
    i32, Int, x => x.into(), f => f as i32, i => i as i32;
    u8, Int, x => x.into(), f => f as u8, i => i as u8;
}

fn map<A: Convert, B: Convert>(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![];
    limits::reserve(&mut out, (bytes.len() / size_of::<A>()).saturating_mul(size_of::<B>()))?;
    for c in bytes.chunks_exact(size_of::<A>()) {
        let x: A = bytemuck::pod_read_unaligned(c);
        out.extend_from_slice(bytemuck::bytes_of(&B::narrow(x.widen())));
    }
    Ok(out)
}

fn map_from<A: Convert>(bytes: &[u8], to: DType) -> Option<Result<Vec<u8>>> {
    Some(match to {
        DType::F32 => map::<A, f32>(bytes),
        DType::F16 => map::<A, f16>(bytes),
        DType::Bf16 => map::<A, bf16>(bytes),
        DType::F64 => map::<A, f64>(bytes),
        DType::I32 => map::<A, i32>(bytes),
        DType::I64 => map::<A, i64>(bytes),
        DType::U8 => map::<A, u8>(bytes),
        _ => return None,
    })
}

/// Elements of one dtype as another: floats round to nearest even, float to integer truncates and saturates, integers wrap. Errors:
/// `OutOfMemory`.
pub(crate) fn convert(bytes: &[u8], from: DType, to: DType) -> Result<Vec<u8>> {
    let done = match from {
        _ if from == to => Some(limits::copy(bytes)),
        DType::F32 => map_from::<f32>(bytes, to),
        DType::F16 => map_from::<f16>(bytes, to),
        DType::Bf16 => map_from::<bf16>(bytes, to),
        DType::F64 => map_from::<f64>(bytes, to),
        DType::I32 => map_from::<i32>(bytes, to),
        DType::I64 => map_from::<i64>(bytes, to),
        DType::U8 => map_from::<u8>(bytes, to),
        _ => None,
    };
    done.ok_or_else(|| invalid("convert", "dtype", "dtypes of host tensors", format!("{from} to {to}")))?
}

/// Number of elements of a shape, `None` if it does not fit.
pub(crate) fn numel(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s))
}

impl HostTensor {
    /// Checks that the bytes fit dtype and shape. Errors: `Invalid`.
    pub fn new(dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Self> {
        let want = numel(shape).and_then(|n| n.checked_mul(dtype.size()));
        if want != Some(bytes.len()) {
            let expected = format!("{want:?} bytes for {dtype} {shape:?}");
            return Err(invalid("HostTensor", "bytes", expected, format!("{}", bytes.len())));
        }
        Ok(HostTensor { dtype, shape: shape.to_vec(), bytes })
    }

    /// A copy of values. Errors: another number of values than the shape has.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Result<Self> {
        HostTensor::new(T::DTYPE, shape, limits::copy(bytemuck::cast_slice(values))?)
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The elements. Errors: `Invalid` for another dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(invalid("to_vec", "dtype", self.dtype.name(), T::DTYPE.name()));
        }
        limits::collect(self.bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned))
    }

    /// Converted to another dtype: floats round to nearest even, float to integer truncates and saturates with NaN giving 0, integers wrap,
    /// as [`Tensor::to_dtype`] does.
    pub fn to_dtype(&self, dtype: DType) -> Result<HostTensor> {
        let bytes = convert(&self.bytes, self.dtype, dtype)?;
        Ok(HostTensor { dtype, shape: self.shape.clone(), bytes })
    }

    /// A copy on a device. Errors: `OutOfMemory`, a dtype that the device does not have.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        let t = Tensor::empty(device, self.dtype, &self.shape)?;
        t.write_bytes(&self.bytes)?;
        Ok(t)
    }

    /// Rows of the first axis, in this order and as often as they are named. Errors: a scalar, a row that is not there.
    pub fn rows(&self, rows: &[usize]) -> Result<HostTensor> {
        let Some((&n, item)) = self.shape.split_first() else {
            return Err(invalid("rows", "self", "at least one axis", "a scalar"));
        };
        // The fields are public: a shape that does not fit the bytes must not be followed.
        let width = self.bytes.len().checked_div(n).unwrap_or(0);
        if numel(&self.shape).and_then(|all| all.checked_mul(self.dtype.size())) != Some(self.bytes.len()) {
            let got = format!("{} for {} {:?}", self.bytes.len(), self.dtype, self.shape);
            return Err(invalid("rows", "bytes", "as many as the shape has", got));
        }
        let mut bytes = vec![];
        limits::reserve(&mut bytes, rows.len().saturating_mul(width))?;
        for &r in rows {
            if r >= n {
                return Err(invalid("rows", "rows", format!("rows below {n}"), format!("{r}")));
            }
            bytes.extend_from_slice(&self.bytes[r * width..(r + 1) * width]);
        }
        Ok(HostTensor { dtype: self.dtype, shape: [&[rows.len()], item].concat(), bytes })
    }

    /// Tensors of one dtype and shape along a new first axis. Errors: none, or unequal ones.
    pub fn stack(parts: &[&HostTensor]) -> Result<HostTensor> {
        let Some(first) = parts.first() else {
            return Err(invalid("stack", "parts", "at least one tensor", "none"));
        };
        let mut bytes = vec![];
        limits::reserve(&mut bytes, parts.len().saturating_mul(first.bytes.len()))?;
        for (i, p) in parts.iter().enumerate() {
            if p.dtype != first.dtype || p.shape != first.shape {
                let expected = format!("{} {:?}, as the first has", first.dtype, first.shape);
                let got = format!("{} {:?} at position {i}", p.dtype, p.shape);
                return Err(invalid("stack", "parts", expected, got));
            }
            bytes.extend_from_slice(&p.bytes);
        }
        Ok(HostTensor { dtype: first.dtype, shape: [&[parts.len()], first.shape.as_slice()].concat(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_the_middle_of_two_are_rounded_to_the_nearer() {
        let (tiny, number) = (2f64.powi(-40), |x: f64| bf16::narrow(Number::Float(x)).to_f64());
        assert_eq!(number(-20.0625), -20.0);
        assert_eq!(number(-20.0625 - tiny), -20.125);
        assert_eq!(f16::narrow(Number::Float(1.0 + 2f64.powi(-11) + tiny)).to_f64(), 1.0 + 2f64.powi(-10));
    }
}

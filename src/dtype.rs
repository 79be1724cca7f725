//! Element types.

use std::fmt;

use half::{bf16, f16};

/// Type of the elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16; arithmetic is done in f32.
    F16,
    /// bfloat16; arithmetic is done in f32.
    Bf16,
    /// IEEE 754 binary64.
    F64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer; also masks (0 = false, anything else = true).
    U8,
}

impl DType {
    /// All element types.
    pub const ALL: [DType; 7] =
        [DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I64, DType::U8];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::U8 => 1,
        }
    }

    /// True for the four floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16 | DType::F64)
    }

    /// True for the two 16-bit floating-point types.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16)
    }

    /// True for the index types, i32 and i64.
    pub const fn is_index(self) -> bool {
        matches!(self, DType::I32 | DType::I64)
    }

    /// The type in which statistics and losses of data of this type are kept: f64 for f64, f32 for the other floats.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            _ => DType::F32,
        }
    }

    /// The largest finite value.
    pub const fn largest(self) -> f64 {
        match self {
            DType::F32 => f32::MAX as f64,
            DType::F16 => 65504.0,
            DType::Bf16 => 3.3895313892515355e38,
            DType::F64 => f64::MAX,
            DType::I32 => i32::MAX as f64,
            DType::I64 => i64::MAX as f64,
            DType::U8 => u8::MAX as f64,
        }
    }

    /// Lower-case name, as in case files and safetensors-like tables: `f32`, `bf16`, `i64`, `u8`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the host form of a [`DType`]. Sealed.
pub trait Element: bytemuck::Pod + sealed::Sealed + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The matching element type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
element!(f32 => F32, f16 => F16, bf16 => Bf16, f64 => F64, i32 => I32, i64 => I64, u8 => U8);

/// x as binary16, rounded once, to nearest even. `half::f16::from_f64` takes numbers just beside the middle of two for the middle, since it drops the
/// lower 32 bits of x.
pub fn f16_from_f64(x: f64) -> f16 {
    f16::from_f32(to_odd(x))
}

/// x as bfloat16, rounded once, to nearest even; `half::bf16::from_f64` errs as that of [`f16_from_f64`] does.
pub fn bf16_from_f64(x: f64) -> bf16 {
    bf16::from_f32(to_odd(x))
}

/// f32 rounded to odd where the value does not fit: the second rounding, to 16 bits, then gives what a single one would.
fn to_odd(x: f64) -> f32 {
    let y = x as f32;
    let back = f64::from(y);
    if back == x || x.is_nan() || y.to_bits() & 1 == 1 {
        return y;
    }
    f32::from_bits(if back.abs() < x.abs() { y.to_bits() + 1 } else { y.to_bits() - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_are_rounded_once() {
        let (step, tiny) = (2f64.powi(-7), 2f64.powi(-45));
        let (middle, above) = (1.0 + step / 2.0, 1.0 + step);
        assert_eq!(bf16_from_f64(middle).to_f64(), 1.0);
        assert_eq!(bf16_from_f64(middle + tiny).to_f64(), above);
        assert_eq!(bf16_from_f64(above + step / 2.0 - tiny).to_f64(), above);
        assert_eq!(f16_from_f64(-(1.0 + 2f64.powi(-11) + tiny)).to_f64(), -(1.0 + 2f64.powi(-10)));
        assert_eq!(f16_from_f64(65_520.0).to_f64(), f64::INFINITY);
        assert_eq!(f16_from_f64(65_520.0 - tiny.sqrt()).to_f64(), 65_504.0);
        assert!(bf16_from_f64(f64::NAN).is_nan());
    }
}

//! Positions along an axis, which count from the end where they are negative.

use crate::core::error::{Result, invalid};

/// A position along an axis, from 0, or from the end where it is negative (-1: the last). Integers of the host are positions.
pub trait Position: Copy + std::fmt::Display {
    /// The position in an axis of `size` elements; one beyond the last is a position only for a start (`end` is true). Errors: one that the
    /// axis does not have.
    fn resolve(self, op: &'static str, arg: &'static str, size: usize, end: bool) -> Result<usize>;
}

macro_rules! positions {
    ($($t:ty)*) => {$(
        impl Position for $t {
            fn resolve(self, op: &'static str, arg: &'static str, size: usize, end: bool) -> Result<usize> {
                // i128 holds every host integer and every sum of one with a size.
                let (given, size) = (self as i128, size as i128);
                let at = if given < 0 { given + size } else { given };
                if (0..size + i128::from(end)).contains(&at) {
                    return Ok(at as usize);
                }
                let limit = if end { size } else { size - 1 };
                let expected = match limit {
                    -1 => "an axis with elements".to_string(),
                    _ => format!("{} to {limit} for an axis of {size} elements", -size),
                };
                Err(invalid(op, arg, expected, format!("{self}")))
            }
        }
    )*};
}
positions!(usize isize i32 i64 u32);

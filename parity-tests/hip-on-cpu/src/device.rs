//! The one device.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use hip_sys::*;

use crate::error::status;

/// Bytes of `hipDeviceProp_t` since ROCm 6, and where `gcnArchName` stands in it; `name` is its beginning.
const PROPERTY_BYTES: usize = 1472;
const PROPERTY_ARCH: usize = 1160;
const NAME: &str = "the host's processor";
/// Work-items per block at most.
const MAX_BLOCK: c_int = 1024;
/// Bytes of shared memory that a block may use, as on AMD's devices up to generation 12.
pub(crate) const SHARED_BYTES: usize = 64 << 10;
/// Compute units; as many as a small device has, so that plans for few blocks are met, too.
const COMPUTE_UNITS: c_int = 8;
/// Bytes of memory that the device states.
pub(crate) const MEMORY_BYTES: usize = 8 << 30;

/// The architecture that the device states.
pub(crate) fn arch() -> &'static str {
    static ARCH: OnceLock<String> = OnceLock::new();
    ARCH.get_or_init(|| {
        let named = std::env::var("TREFOIL_HIP_ON_CPU_ARCH").ok().filter(|v| !v.is_empty());
        named.unwrap_or_else(|| "gfx90a".into())
    })
}

/// Lanes of a wavefront of an architecture: 64 up to generation 9 (`gfx9` and two digits), 32 from generation 10 (`gfx1` and three) on.
fn lanes_of(arch: &str) -> u32 {
    if arch.strip_prefix("gfx1").is_some_and(|rest| rest.len() >= 3) { 32 } else { 64 }
}

/// Lanes of a wavefront of the device.
pub(crate) fn wave_lanes() -> u32 {
    lanes_of(arch())
}

/// Writes a value to a place that a caller gave.
///
/// # Safety
/// The place is null or valid.
pub(crate) unsafe fn answer<T>(place: *mut T, value: T) -> hipError_t {
    if place.is_null() {
        return hipErrorInvalidValue;
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { place.write(value) };
    hipSuccess
}

fn check(ordinal: c_int) -> Result<(), hipError_t> {
    if ordinal == 0 { Ok(()) } else { Err(hipErrorInvalidDevice) }
}

/// # Safety
/// As in AMD's documentation; so for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: the caller vouches for the place; so below.
    unsafe { answer(count, 1) }
}

/// # Safety
/// See `hipGetDeviceCount`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int) -> hipError_t {
    // SAFETY: see `hipGetDeviceCount`.
    check(ordinal).map_or_else(|e| e, |()| unsafe { answer(device, ordinal) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipSetDevice(ordinal: c_int) -> hipError_t {
    status(check(ordinal))
}

/// # Safety
/// See `hipGetDeviceCount`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGetName(
    name: *mut c_char,
    len: c_int,
    device: hipDevice_t,
) -> hipError_t {
    let room = usize::try_from(len).unwrap_or(0);
    if name.is_null() || room == 0 {
        return hipErrorInvalidValue;
    }
    status(check(device).map(|()| {
        let text = &NAME.as_bytes()[..NAME.len().min(room - 1)];
        // SAFETY: the text and a zero fit in the room.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            name.add(text.len()).write(0);
        }
    }))
}

/// # Safety
/// See `hipGetDeviceCount`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    // SAFETY: see `hipGetDeviceCount`.
    check(device).map_or_else(|e| e, |()| unsafe { answer(bytes, MEMORY_BYTES) })
}

/// # Safety
/// See `hipGetDeviceCount`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    key: hipDeviceAttribute_t,
    ordinal: c_int,
) -> hipError_t {
    #[allow(non_upper_case_globals)]
    let known = match key {
        hipDeviceAttributeMaxThreadsPerBlock => MAX_BLOCK,
        hipDeviceAttributeMaxSharedMemoryPerBlock => SHARED_BYTES as c_int,
        hipDeviceAttributeWarpSize => wave_lanes() as c_int,
        hipDeviceAttributeMultiprocessorCount => COMPUTE_UNITS,
        _ => return hipErrorInvalidValue,
    };
    // SAFETY: see `hipGetDeviceCount`.
    check(ordinal).map_or_else(|e| e, |()| unsafe { answer(value, known) })
}

/// # Safety
/// `place` has room for the structure of ROCm 6.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipGetDevicePropertiesR0600(
    place: *mut c_void,
    ordinal: c_int,
) -> hipError_t {
    let mut bytes = [0u8; PROPERTY_BYTES];
    for (at, text) in [(0, NAME), (PROPERTY_ARCH, arch())] {
        // Each text has 256 bytes, of which the last is 0.
        let len = text.len().min(255);
        bytes[at..at + len].copy_from_slice(&text.as_bytes()[..len]);
    }
    // SAFETY: see `hipGetDeviceCount`; bytes have no alignment.
    check(ordinal).map_or_else(|e| e, |()| unsafe { answer(place.cast::<[u8; PROPERTY_BYTES]>(), bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wavefronts_are_those_of_the_generation() {
        assert_eq!(["gfx906", "gfx90a", "gfx942"].map(lanes_of), [64; 3]);
        assert_eq!(["gfx1030", "gfx1100", "gfx1201"].map(lanes_of), [32; 3]);
    }
}

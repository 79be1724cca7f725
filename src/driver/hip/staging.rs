//! Copies from the host through pinned memory.
//!
//! HIP copies from ordinary host memory either synchronously or, in some releases, while the caller's bytes are still being read. A ring of
//! pinned memory avoids both: the bytes are taken before the call returns, and the host does not wait for the device unless the ring is full.

use std::collections::VecDeque;
use std::ops::Range;
use std::ptr;

use hip_sys::Hip;

use super::{check, number, pointer};
use crate::error::Result;

/// Bytes of the ring.
const RING: usize = 8 << 20;
/// Longest piece of one copy: two fit, so that one is filled while the other is on its way.
const PIECE: usize = RING / 2;
/// Copies under way at most.
const IN_FLIGHT: usize = 256;
/// Pieces start at multiples of this.
const ALIGN: usize = 256;

/// The ring of one driver. Its methods need the driver's device to be current.
pub(super) struct Staging {
    hip: &'static Hip,
    /// Address of the ring; 0 before the first copy.
    ring: u64,
    next: usize,
    /// Ranges of the ring with the event that follows their copy, oldest first.
    in_flight: VecDeque<(Range<usize>, u64)>,
}

impl Staging {
    pub(super) fn new(hip: &'static Hip) -> Staging {
        Staging { hip, ring: 0, next: 0, in_flight: VecDeque::new() }
    }

    /// Queues a copy of `src` to the address `dst`.
    ///
    /// # Safety
    /// `src.len()` bytes from `dst` lie within live memory of the current device; the stream is of this device.
    pub(super) unsafe fn copy_in(
        &mut self,
        stream: hip_sys::hipStream_t,
        dst: u64,
        src: &[u8],
    ) -> Result<()> {
        let hip = self.hip;
        for (i, piece) in src.chunks(PIECE).enumerate() {
            let range = self.reserve(piece.len())?;
            let host = pointer(self.ring + range.start as u64);
            // SAFETY: the range lies in the ring and no copy that is under way reads it.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), host.cast::<u8>(), piece.len()) };
            let to = pointer(dst + (i * PIECE) as u64);
            let mut event = ptr::null_mut();
            // SAFETY: the place is valid.
            let status = unsafe { hip.hipEventCreateWithFlags(&mut event, hip_sys::hipEventDisableTiming) };
            check(hip, "hipEventCreateWithFlags", status)?;
            // SAFETY: the caller vouches for the device's side; the ring's is kept until the event has passed.
            let (copied, recorded) = unsafe {
                (hip.hipMemcpyHtoDAsync(to, host, piece.len(), stream), hip.hipEventRecord(event, stream))
            };
            self.in_flight.push_back((range, number(event)));
            check(hip, "hipMemcpyHtoDAsync", copied)?;
            check(hip, "hipEventRecord", recorded).inspect_err(|_| {
                // Without a recorded event, the stream itself has to say when the range is free again.
                // SAFETY: the stream is live.
                unsafe { hip.hipStreamSynchronize(stream) };
            })?;
        }
        Ok(())
    }

    /// A range of the ring that no copy under way reads; waits for such copies.
    fn reserve(&mut self, bytes: usize) -> Result<Range<usize>> {
        if self.ring == 0 {
            let mut ring = ptr::null_mut();
            // SAFETY: the place is valid.
            let status = unsafe { self.hip.hipHostMalloc(&mut ring, RING, hip_sys::hipHostMallocDefault) };
            check(self.hip, "hipHostMalloc", status)?;
            self.ring = number(ring);
        }
        let range = place(self.next, bytes);
        let overlaps = |r: &Range<usize>| r.start < range.end && range.start < r.end;
        while self.in_flight.len() >= IN_FLIGHT || self.in_flight.iter().any(|(r, _)| overlaps(r)) {
            self.retire()?;
        }
        self.next = range.end.next_multiple_of(ALIGN);
        Ok(range)
    }

    /// Waits for the oldest copy.
    fn retire(&mut self) -> Result<()> {
        let Some((_, event)) = self.in_flight.pop_front() else { return Ok(()) };
        // SAFETY: the event is live and known to nobody else.
        let status = unsafe {
            let status = self.hip.hipEventSynchronize(pointer(event));
            self.hip.hipEventDestroy(pointer(event));
            status
        };
        check(self.hip, "hipEventSynchronize", status)
    }

    /// Waits for all copies and frees the ring.
    pub(super) fn release(&mut self) {
        while !self.in_flight.is_empty() {
            if let Err(e) = self.retire() {
                log::debug!("while closing: {e}");
            }
        }
        if self.ring != 0 {
            // SAFETY: no copy is under way any more.
            unsafe { self.hip.hipHostFree(pointer(self.ring)) };
            self.ring = 0;
        }
    }
}

/// Where the next piece goes: behind the last, or at the start where it would run over the end.
fn place(next: usize, bytes: usize) -> Range<usize> {
    let start = if next + bytes <= RING { next } else { 0 };
    start..start + bytes
}

#[cfg(test)]
mod tests {
    use super::{PIECE, RING, place};

    #[test]
    fn pieces_stay_within_the_ring() {
        assert_eq!(place(0, PIECE), 0..PIECE);
        assert_eq!(place(PIECE, PIECE), PIECE..RING);
        assert_eq!(place(PIECE + 256, PIECE), 0..PIECE);
        assert_eq!(place(RING, 1), 0..1);
        assert_eq!(place(RING - 4, 4), RING - 4..RING);
    }
}

//! Page-locked memory through which host bytes reach the device.
//!
//! A copy from ordinary memory may or may not have read its source when the call returns, and one from memory that the user page-locked
//! certainly has not. Copying into page-locked chunks of our own settles it, and the host waits only when all chunks are in flight.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys as cu;

use super::preflight::Api;
use crate::error::Result;

const CHUNK: usize = 1 << 20;
const CHUNKS: usize = 16;
/// Copies begin at multiples of this.
const ALIGN: usize = 256;

#[derive(Debug)]
struct Chunk {
    /// Page-locked memory of `CHUNK` bytes.
    at: u64,
    /// Recorded behind the chunk's last copy.
    event: u64,
    /// The event was recorded and not yet waited for.
    in_flight: bool,
}

/// The chunks of one stream. Each is filled from its start; the next is taken when it is full.
#[derive(Debug, Default)]
pub(super) struct Staging {
    chunks: Vec<Chunk>,
    current: usize,
    used: usize,
}

impl Staging {
    /// Queues a copy of `src` to the device address `dst`.
    ///
    /// # Safety
    /// The context is current, `stream` is the stream of this object, and `dst` has room.
    pub(super) unsafe fn copy_in(
        &mut self,
        api: &Api,
        stream: u64,
        mut dst: u64,
        mut src: &[u8],
    ) -> Result<()> {
        while !src.is_empty() {
            // SAFETY: forwarded.
            unsafe { self.make_room(api, stream)? };
            let n = src.len().min(CHUNK - self.used);
            let at = self.chunks[self.current].at + self.used as u64;
            // SAFETY: `at..at + n` lies in the current chunk, which no copy reads (it was waited for, and this part of it is unused).
            unsafe {
                ptr::copy_nonoverlapping(src.as_ptr(), at as *mut u8, n);
                let code =
                    (api.table.cuMemcpyHtoDAsync_v2)(dst, at as *const c_void, n, stream as cu::CUstream);
                api.check("cuMemcpyHtoDAsync", code)?;
            }
            self.used = (self.used + n).next_multiple_of(ALIGN).min(CHUNK);
            dst += n as u64;
            src = &src[n..];
        }
        Ok(())
    }

    /// Makes `current` a chunk with room.
    ///
    /// # Safety
    /// As for [`Staging::copy_in`].
    unsafe fn make_room(&mut self, api: &Api, stream: u64) -> Result<()> {
        if self.chunks.is_empty() {
            // SAFETY: the context is current.
            self.chunks.push(unsafe { new_chunk(api)? });
            return Ok(());
        }
        if self.used < CHUNK {
            return Ok(());
        }
        let full = &mut self.chunks[self.current];
        // SAFETY: event and stream are live.
        let code = unsafe { (api.table.cuEventRecord)(full.event as cu::CUevent, stream as cu::CUstream) };
        api.check("cuEventRecord", code)?;
        full.in_flight = true;
        let next = (self.current + 1) % CHUNKS;
        if next == self.chunks.len() {
            // SAFETY: the context is current.
            self.chunks.push(unsafe { new_chunk(api)? });
        }
        let chunk = &mut self.chunks[next];
        if chunk.in_flight {
            // SAFETY: the event is live.
            api.check("cuEventSynchronize", unsafe {
                (api.table.cuEventSynchronize)(chunk.event as cu::CUevent)
            })?;
            chunk.in_flight = false;
        }
        self.current = next;
        self.used = 0;
        Ok(())
    }

    /// Frees the chunks.
    ///
    /// # Safety
    /// The context is current and the stream idle.
    pub(super) unsafe fn free(&mut self, api: &Api) {
        for c in self.chunks.drain(..) {
            // SAFETY: each chunk was made by `new_chunk` and is given up here.
            unsafe {
                (api.table.cuEventDestroy_v2)(c.event as cu::CUevent);
                (api.table.cuMemFreeHost)(c.at as *mut c_void);
            }
        }
    }
}

/// # Safety
/// The context is current.
unsafe fn new_chunk(api: &Api) -> Result<Chunk> {
    let (mut at, mut event) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: both calls write one pointer.
    unsafe {
        api.check("cuMemHostAlloc", (api.table.cuMemHostAlloc)(&mut at, CHUNK, 0))?;
        let flags = cu::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        if let Err(e) = api.check("cuEventCreate", (api.table.cuEventCreate)(&mut event, flags)) {
            (api.table.cuMemFreeHost)(at);
            return Err(e);
        }
    }
    Ok(Chunk { at: at as u64, event: event as u64, in_flight: false })
}

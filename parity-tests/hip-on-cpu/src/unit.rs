//! Code objects: shared objects of the host, loaded into the process.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::sync::{Mutex, PoisonError};

use hip_sys::{hipError_t, hipErrorNotFound};
use libloading::Library;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::compiler::SHARED_SECTION;
use crate::device::{SHARED_BYTES, wave_lanes};
use crate::error::{INVALID_IMAGE, LAUNCH_FAILURE, OUT_OF_RESOURCES};
use crate::execute::{CALLS, Calls, Dim, Entry, Launch};

/// Begins every code object; its length in 8 bytes follows, since `hipModuleLoadData` is not told it.
const MAGIC: &[u8; 8] = b"hip-cpu\x01";
const HEADER: usize = 16;

/// A shared object as a code object.
pub(crate) fn seal(object: &[u8]) -> Vec<u8> {
    [MAGIC, (object.len() as u64).to_le_bytes().as_slice(), object].concat()
}

/// The shared object in a code object.
///
/// # Safety
/// The image is readable to the end of its header, and if that is this library's, to the end that it states.
unsafe fn open<'a>(image: *const u8) -> Option<&'a [u8]> {
    // SAFETY: the caller vouches for the header.
    let header: &[u8; HEADER] = unsafe { image.cast::<[u8; HEADER]>().as_ref()? };
    let len = u64::from_le_bytes(header[8..].try_into().ok()?);
    let len = usize::try_from(len).ok().filter(|_| header[..8] == *MAGIC)?;
    // SAFETY: the caller vouches for the length.
    Some(unsafe { std::slice::from_raw_parts(image.add(HEADER), len) })
}

/// A range of static memory, by address.
#[derive(Debug, Clone, Copy, Default)]
struct Range {
    first: usize,
    bytes: usize,
}

impl Range {
    /// Sets all bits, with what no sanitizer sees: redzones between variables lie within.
    fn fill(self) {
        for at in 0..self.bytes {
            // SAFETY: the range is writable memory of a loaded unit, which its lock keeps to this thread.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(self.first + at).write_volatile(0xff) };
        }
    }
}

/// A loaded code object.
#[derive(Debug)]
pub(crate) struct Unit {
    library: Library,
    /// `__shared__` variables.
    shared: Range,
    dynamic: Range,
    /// Held while a kernel of it runs: shared memory is static.
    lock: Mutex<()>,
    functions: Mutex<HashMap<String, Box<Function>>>,
}

/// A kernel of a loaded code object.
#[derive(Debug)]
pub(crate) struct Function {
    unit: *const Unit,
    kernel: Entry,
    bound: u32,
}

// SAFETY: units outlive their functions, and what they point to is shared by lock only.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

fn section(file: &object::File<'_>, name: &str, base: usize) -> Range {
    file.section_by_name(name)
        .map_or(Range::default(), |s| Range { first: base + s.address() as usize, bytes: s.size() as usize })
}

impl Unit {
    /// Loads a code object.
    ///
    /// # Safety
    /// The image is null or one of `hiprtcGetCode`'s.
    pub(crate) unsafe fn load(image: *const u8) -> Result<Box<Self>, hipError_t> {
        // SAFETY: the caller vouches for the image.
        let bytes = unsafe { open(image) }.ok_or(INVALID_IMAGE)?;
        // SAFETY: as above: a shared object of this library's compiler.
        unsafe { Self::link(bytes) }.map_err(|why| {
            eprintln!("hip-on-cpu: {why}");
            INVALID_IMAGE
        })
    }

    /// # Safety
    /// The bytes are a shared object of this library's compiler.
    unsafe fn link(bytes: &[u8]) -> Result<Box<Self>, String> {
        let file = object::File::parse(bytes).map_err(|e| e.to_string())?;
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let path = dir.path().join("unit.so");
        std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
        // SAFETY: it has no initialisers but the sanitizers'.
        let library = unsafe { Library::new(&path) }.map_err(|e| e.to_string())?;
        // SAFETY: device.h declares it so; nothing of the unit runs yet.
        let place = unsafe { library.get::<*mut *const Calls>("host_library") }.map_err(|e| e.to_string())?;
        let place: *mut *const Calls = *place;
        // SAFETY: as above.
        unsafe { place.write(&CALLS) };
        let symbol = file
            .dynamic_symbols()
            .find(|s| s.name() == Ok("host_library"))
            .ok_or("the unit has no host_library")?;
        let base = place.expose_provenance() - symbol.address() as usize;
        let dynamic = section(&file, &format!("{SHARED_SECTION}.dynamic"), base);
        let shared = section(&file, SHARED_SECTION, base);
        Ok(Box::new(Unit { library, shared, dynamic, lock: Mutex::default(), functions: Mutex::default() }))
    }

    /// A kernel by name.
    pub(crate) fn function(&self, name: &CStr) -> Result<*const Function, hipError_t> {
        let name = name.to_string_lossy().into_owned();
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = functions.get(&name) {
            return Ok(&raw const **known);
        }
        // SAFETY: device.h declares them so.
        let found = unsafe {
            let kernel = self.library.get::<Entry>(format!("host_call_{name}"));
            let bound = self.library.get::<*const c_int>(format!("host_bound_{name}"));
            kernel.and_then(|kernel| Ok((*kernel, **bound?)))
        };
        let (kernel, bound) = found.map_err(|_| hipErrorNotFound)?;
        let function = Box::new(Function { unit: self, kernel, bound: bound.unsigned_abs() });
        Ok(&raw const **functions.entry(name).or_insert(function))
    }
}

impl Function {
    /// Runs a launch to its end.
    ///
    /// # Safety
    /// The arguments are the kernel's, and all memory that it uses is live.
    pub(crate) unsafe fn launch(
        &self,
        blocks: Dim,
        threads: Dim,
        shared_bytes: usize,
        arguments: *mut *mut std::ffi::c_void,
    ) -> Result<(), hipError_t> {
        // SAFETY: units are unloaded only when none of their kernels are used any more.
        let unit = unsafe { &*self.unit };
        // Only what the launch asks for: a unit's static memory is that of all its kernels.
        if threads.count().is_none_or(|n| n == 0 || n > self.bound) || shared_bytes > SHARED_BYTES {
            return Err(OUT_OF_RESOURCES);
        }
        let _guard = unit.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let dynamic = Range { bytes: shared_bytes, ..unit.dynamic };
        let fill_shared = || {
            unit.shared.fill();
            dynamic.fill();
        };
        let launch = Launch {
            kernel: self.kernel,
            arguments,
            blocks,
            threads,
            lanes: wave_lanes(),
            fill_shared: &fill_shared,
        };
        launch.run().map_err(|why| {
            eprintln!("hip-on-cpu: {why}");
            LAUNCH_FAILURE
        })
    }
}

//! Contexts, queues and memory that another library made. The test plays that library, through the vendor's own functions.
#![cfg(any(feature = "driver-cuda", feature = "driver-opencl"))]

use std::sync::Arc;

use libloading::Library;
use trefoil::ops::elementwise::Unary;
use trefoil::{BackendExt, DType, IGpuBackend, Registry};

/// Opens a library by the variable that names it, or by its name; prints why it is not there.
fn library(backend: &str, var: &str, name: &str) -> Option<Library> {
    let path = std::env::var(var).unwrap_or_else(|_| name.into());
    // SAFETY: a vendor's library, which trefoil opens as well.
    match unsafe { Library::new(&path) } {
        Ok(lib) => Some(lib),
        Err(e) => {
            assert!(!trefoil::is_required(backend), "TREFOIL_REQUIRE names {backend}: {e}");
            println!("skipped on {backend}: {e}");
            None
        }
    }
}

/// Calls a function of a library by its name and prototype.
macro_rules! call {
    ($lib:expr, $name:ident($($arg:expr => $ty:ty),*) -> $ret:ty) => {{
        // SAFETY: the prototype is that of the vendor's header, and the arguments are live.
        unsafe {
            let f = $lib.get::<unsafe extern "system" fn($($ty),*) -> $ret>(stringify!($name)).unwrap();
            f($($arg),*)
        }
    }};
}

/// -x of four numbers in imported memory, in place: what is read back through the backend, and later by the other library.
fn negate(gpu: &Arc<dyn IGpuBackend>, memory: u64) -> Vec<f32> {
    use trefoil::driver::RawMem;
    // SAFETY: 16 bytes of the adopted context, which outlive the buffer; the work is on the queue of both.
    let x = unsafe { gpu.import(RawMem::from_raw(memory), DType::F32, 4, None) }.unwrap();
    let mut y = gpu.alloc(DType::F32, 4).unwrap();
    gpu.unary(Unary::Neg, x.view(), y.view_mut()).unwrap();
    gpu.copy(y.view(), x.alias_mut()).unwrap();
    gpu.download(x.view()).unwrap()
}

const INPUT: [f32; 4] = [1.0, -2.0, 0.5, 1e30];
const NEGATED: [f32; 4] = [-1.0, 2.0, -0.5, -1e30];

#[cfg(feature = "driver-opencl")]
mod opencl {
    use super::*;
    use std::ptr::{null, null_mut};
    use std::sync::{Mutex, PoisonError};
    use trefoil::driver::{RawContext, RawDevice, RawStream};

    type Handle = *mut std::ffi::c_void;
    type Callback = Option<extern "C" fn()>;

    const OUT_OF_ORDER: u64 = 1;
    const PROFILING: u64 = 2;

    /// Some drivers set themselves up in the first query and answer a second thread, meanwhile, that there is no device.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// The first device of a library, if it has any.
    fn device(cl: &Library) -> Option<Handle> {
        let mut platforms = [null_mut::<std::ffi::c_void>(); 8];
        let mut count = 0u32;
        call!(cl, clGetPlatformIDs(8 => u32, platforms.as_mut_ptr() => *mut Handle, &mut count => *mut u32) -> i32);
        platforms.iter().take(count.min(8) as usize).find_map(|&p| {
            let (mut device, mut found) = (null_mut(), 0u32);
            let all = u64::from(u32::MAX);
            let code = call!(cl, clGetDeviceIDs(p => Handle, all => u64, 1 => u32, &mut device => *mut Handle, &mut found => *mut u32) -> i32);
            (code == 0 && found > 0).then_some(device)
        })
    }

    fn context(cl: &Library, device: Handle) -> Handle {
        let mut code = 0;
        let context = call!(cl, clCreateContext(
            null() => *const isize, 1 => u32, &device => *const Handle, None => Callback, null_mut() => Handle, &mut code => *mut i32
        ) -> Handle);
        assert_eq!(code, 0);
        context
    }

    fn queue(cl: &Library, context: Handle, device: Handle, properties: u64) -> Handle {
        let mut code = 0;
        let queue = call!(cl, clCreateCommandQueue(
            context => Handle, device => Handle, properties => u64, &mut code => *mut i32
        ) -> Handle);
        assert_eq!(code, 0);
        queue
    }

    fn references(cl: &Library, context: Handle) -> u32 {
        const CL_CONTEXT_REFERENCE_COUNT: u32 = 0x1080;
        let mut n = 0u32;
        let code = call!(cl, clGetContextInfo(
            context => Handle, CL_CONTEXT_REFERENCE_COUNT => u32, 4 => usize, &mut n => *mut u32, null_mut() => *mut usize
        ) -> i32);
        assert_eq!(code, 0);
        n
    }

    fn adopt(context: Handle, device: Handle, queue: Handle) -> trefoil::Result<Arc<dyn IGpuBackend>> {
        // SAFETY: live objects of the library that trefoil opens, too.
        unsafe {
            let (context, queue) = (RawContext::from_raw(context as u64), RawStream::from_raw(queue as u64));
            Registry::default().adopt_opencl(context, RawDevice::from_raw(device as u64), queue)
        }
    }

    #[test]
    fn a_backend_in_a_context_of_another_library() {
        let Some(cl) = library("opencl", "TREFOIL_OPENCL_LIB", "libOpenCL.so.1") else { return };
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = device(&cl) else {
            assert!(!trefoil::is_required("opencl"), "TREFOIL_REQUIRE names opencl");
            return println!("skipped on opencl: no device");
        };
        let ctx = context(&cl, device);
        let q = queue(&cl, ctx, device, PROFILING);
        let before = references(&cl, ctx);
        let gpu = adopt(ctx, device, q).unwrap();
        // The backend holds the queue by itself.
        call!(cl, clReleaseCommandQueue(q => Handle) -> i32);

        const COPY_HOST_PTR: u64 = 32;
        let mut code = 0;
        let mem = call!(cl, clCreateBuffer(
            ctx => Handle, COPY_HOST_PTR => u64, 16 => usize, INPUT.as_ptr() => *const f32, &mut code => *mut i32
        ) -> Handle);
        assert_eq!(code, 0);
        assert_eq!(gpu.raw_stream().unwrap().as_raw(), q as u64);
        assert_eq!(negate(&gpu, mem as u64), NEGATED);
        let mut out = [0f32; 4];
        let code = call!(cl, clEnqueueReadBuffer(
            q => Handle, mem => Handle, 1 => u32, 0 => usize, 16 => usize, out.as_mut_ptr() => *mut f32,
            0 => u32, null() => *const Handle, null_mut() => *mut Handle
        ) -> i32);
        assert_eq!((code, out), (0, NEGATED));

        // A device that was opened apart has another context: its memory cannot move over.
        let apart = Registry::default().open(&trefoil::Selector::Exact(gpu.id())).unwrap();
        let refused = gpu.adopt(apart.upload(&[1f32]).unwrap());
        assert!(matches!(refused, Err(trefoil::GpuError::Invalid(_))), "{refused:?}");

        drop(gpu);
        call!(cl, clReleaseMemObject(mem => Handle) -> i32);
        // The test's queue is gone as well, which held a reference if the implementation counts so.
        assert!(references(&cl, ctx) <= before, "the backend left references");
        call!(cl, clReleaseContext(ctx => Handle) -> i32);
    }

    #[test]
    fn a_queue_that_does_not_fit_is_refused() {
        let Some(cl) = library("opencl", "TREFOIL_OPENCL_LIB", "libOpenCL.so.1") else { return };
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = device(&cl) else { return println!("skipped on opencl: no device") };
        let (ctx, other) = (context(&cl, device), context(&cl, device));
        for (q, why) in [
            (queue(&cl, ctx, device, OUT_OF_ORDER), "out of order"),
            (queue(&cl, other, device, 0), "another"),
        ] {
            match adopt(ctx, device, q) {
                Err(trefoil::GpuError::Invalid(e)) => assert!(e.got.contains(why), "{e}"),
                other => panic!("{other:?}"),
            }
            call!(cl, clReleaseCommandQueue(q => Handle) -> i32);
        }
        for c in [ctx, other] {
            call!(cl, clReleaseContext(c => Handle) -> i32);
        }
    }
}

#[cfg(feature = "driver-cuda")]
mod cuda {
    use super::*;
    use std::ptr::null_mut;
    use trefoil::driver::{RawContext, RawStream};

    type Handle = *mut std::ffi::c_void;

    #[test]
    fn a_backend_in_a_context_of_another_library() {
        let Some(cu) = library("cuda", "TREFOIL_CUDA_LIB", "libcuda.so.1") else { return };
        let mut device = 0;
        let (ready, first) = (
            call!(cu, cuInit(0 => u32) -> i32),
            call!(cu, cuDeviceGet(&mut device => *mut i32, 0 => i32) -> i32),
        );
        if (ready, first) != (0, 0) {
            assert!(!trefoil::is_required("cuda"), "TREFOIL_REQUIRE names cuda");
            return println!("skipped on cuda: cuInit answers {ready}, cuDeviceGet {first}");
        }
        let (mut ctx, mut stream, mut mem) = (null_mut(), null_mut(), 0u64);
        for code in [
            call!(cu, cuCtxCreate_v2(&mut ctx => *mut Handle, 0 => u32, device => i32) -> i32),
            call!(cu, cuStreamCreate(&mut stream => *mut Handle, 1 => u32) -> i32),
            call!(cu, cuMemAlloc_v2(&mut mem => *mut u64, 16 => usize) -> i32),
            call!(cu, cuMemcpyHtoD_v2(mem => u64, INPUT.as_ptr() => *const f32, 16 => usize) -> i32),
        ] {
            assert_eq!(code, 0);
        }
        for with_stream in [true, false] {
            // SAFETY: both outlive the backend.
            let gpu = unsafe {
                let raw = RawStream::from_raw(stream as u64);
                Registry::default().adopt_cuda(RawContext::from_raw(ctx as u64), with_stream.then_some(raw))
            }
            .unwrap();
            assert_eq!(gpu.raw_stream().unwrap().as_raw() == stream as u64, with_stream);
            assert_eq!(negate(&gpu, mem), if with_stream { NEGATED } else { INPUT });
        }
        let mut out = [0f32; 4];
        // The context is still current, and alive without the backend.
        for code in [
            call!(cu, cuMemcpyDtoH_v2(out.as_mut_ptr() => *mut f32, mem => u64, 16 => usize) -> i32),
            call!(cu, cuMemFree_v2(mem => u64) -> i32),
            call!(cu, cuStreamDestroy_v2(stream => Handle) -> i32),
            call!(cu, cuCtxDestroy_v2(ctx => Handle) -> i32),
        ] {
            assert_eq!(code, 0);
        }
        assert_eq!(out, INPUT);
    }
}

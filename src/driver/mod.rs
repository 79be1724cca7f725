//! The thin layer that is written once per vendor API.
//!
//! A [`Driver`] moves bytes, compiles text and launches kernels; it knows nothing of tensors or operations. Everything above it is the one
//! [`Engine`](crate::Engine). The engine proves the `unsafe` contracts: it keeps handles to the driver that made them, validates ranges before
//! each copy and builds argument lists from a table that tests hold against the kernels' prototypes.

use std::fmt;

use crate::device::Caps;
use crate::error::Result;

// Each driver's tests use a part of it.
#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl")))]
#[cfg_attr(not(all(feature = "driver-cuda", feature = "driver-opencl")), allow(dead_code))]
pub(crate) mod blas_reference;
#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-hip")))]
#[cfg_attr(not(feature = "driver-hip"), allow(dead_code))]
pub(crate) mod conv_reference;
#[cfg(feature = "driver-cuda")]
pub(crate) mod cuda;
mod dnn;
mod fft;
#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-opencl")))]
#[cfg_attr(not(feature = "driver-cuda"), allow(dead_code))]
pub(crate) mod fft_reference;
mod graph;
#[cfg(feature = "driver-hip")]
pub(crate) mod hip;
#[cfg(feature = "driver-hip")]
#[doc(hidden)]
pub use hip::hiprtc::{compile_for as hiprtc_compile_for, version as hiprtc_version};
// Each driver uses a part of it.
#[cfg_attr(not(all(feature = "driver-cuda", feature = "driver-opencl")), allow(dead_code))]
pub(crate) mod loader;
#[cfg(any(feature = "driver-cuda", feature = "driver-hip"))]
mod lt;
#[cfg(feature = "driver-opencl")]
pub(crate) mod opencl;
#[cfg(any(feature = "driver-cuda", feature = "driver-hip", feature = "driver-opencl"))]
// Each driver uses a part of it.
#[cfg_attr(not(all(feature = "driver-cuda", feature = "driver-hip")), allow(dead_code))]
mod plan_cache;
pub(crate) mod shapes;

pub use self::dnn::{
    AttentionTensor, ConvPass, ConvTensor, VendorAttention, VendorAttentionProblem, VendorConv,
    VendorConvProblem,
};
pub use self::fft::{FftKind, VendorFft, VendorFftProblem};
pub use self::graph::StreamGraphs;

macro_rules! handles {
    ($($(#[$m:meta])* $name:ident;)*) => {$(
        $(#[$m])*
        ///
        /// It belongs to the driver, or the library, that made it. Every method that takes one is `unsafe`: a handle says nothing of whose it
        /// is or whether it is still alive.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// A handle from the number that the vendor's API knows it by.
            ///
            /// # Safety
            /// `raw` names a live object of this kind of the driver that the handle is given to.
            pub const unsafe fn from_raw(raw: u64) -> Self {
                $name(raw)
            }

            /// The number that the vendor's API knows it by.
            pub const fn as_raw(self) -> u64 {
                self.0
            }
        }
    )*};
}

handles! {
    /// Memory of a driver: a device address (CUDA, HIP) or an object (OpenCL's `cl_mem`).
    RawMem;
    /// An in-order stream.
    RawStream;
    /// A recorded event.
    RawEvent;
    /// A kernel of a loaded module.
    RawFunction;
    /// A loaded module; its functions live as long as it does.
    RawModule;
    /// A recorded graph that is ready to launch: `CUgraphExec` or `hipGraphExec_t`.
    RawGraph;
    /// A context: `CUcontext` or `cl_context`.
    RawContext;
    /// A device as OpenCL knows it: `cl_device_id`.
    RawDevice;
}

/// Whether a status of CUDA, or of HIP, which has the same numbers, says that the context is lost: every later call in it fails. Errors of running
/// kernels are of this kind; wrong arguments and a lack of memory are not.
#[cfg(any(feature = "driver-cuda", feature = "driver-hip"))]
pub(crate) fn context_lost(code: u32) -> bool {
    match code {
        // Deinitialized; the device is unavailable.
        4 | 46 => true,
        // Uncorrectable memory errors of the device and its links.
        214 | 220 => true,
        // Illegal address, time-out, destroyed context, assertion; errors of the hardware, instructions and addresses; launch failure; contained.
        700 | 702 | 709 | 710 | 714..=719 | 721 => true,
        // Unknown: what the drivers call an internal failure.
        999 => true,
        _ => false,
    }
}

/// `GK_DIMS` in kernels: eight 64-bit numbers passed by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DimsArg(pub [i64; 8]);

/// A pointer argument: memory plus a byte offset; `None` is a null pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ptr(pub(crate) Option<(RawMem, u64)>);

impl Ptr {
    /// The null pointer, for an operand that is absent.
    pub(crate) const NULL: Ptr = Ptr(None);
}

/// A tensor of 16-bit numbers that the tensor memory accelerator copies to local memory, in boxes of 64 x 64 x 1 numbers whose rows have the order of chunks
/// that `kernels/common/prelude/matrix.h` describes (CUDA's 128-byte swizzle).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Where it begins: memory and an offset in bytes, together a multiple of 16.
    pub place: (RawMem, u64),
    /// Numbers along its axes, innermost first; none is 0.
    pub shape: [u64; 3],
    /// Bytes from one to the next along the second and the third axis, multiples of 16.
    pub strides: [u64; 2],
}

/// One kernel argument.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// A pointer parameter (`GK_IN`, `GK_OUT`): memory plus a byte offset. CUDA and HIP pass the sum; OpenCL passes the object and the offset
    /// in bytes as a 64-bit integer. `None` is a null pointer.
    Mem(Option<(RawMem, u64)>),
    /// `int`
    I32(i32),
    /// `gk_u32`
    U32(u32),
    /// `gk_i64`
    I64(i64),
    /// `float`
    F32(f32),
    /// `double`; only in units for f64
    F64(f64),
    /// A struct by value (`GK_BY_VALUE`, `GK_DIMS`): its bytes, with C's padding.
    Struct(&'a [u8]),
    /// A tensor that is copied in boxes (`GK_TENSOR_MAP`). Only on devices that have [`Caps::tensor_maps`].
    Map(TensorMap),
}

impl Arg<'_> {
    /// The bytes of a scalar or of a struct; none for memory and maps, which each interface passes in its own way.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Arg::Mem(_) | Arg::Map(_) => &[],
            Arg::I32(x) => bytemuck::bytes_of(x),
            Arg::U32(x) => bytemuck::bytes_of(x),
            Arg::I64(x) => bytemuck::bytes_of(x),
            Arg::F32(x) => bytemuck::bytes_of(x),
            Arg::F64(x) => bytemuck::bytes_of(x),
            Arg::Struct(bytes) => bytes,
        }
    }
}

/// For interfaces whose devices do not copy by maps of tensors.
#[cfg(any(feature = "driver-hip", feature = "driver-opencl"))]
pub(crate) fn refuse_maps(call: &'static str, args: &[Arg<'_>]) -> Result<()> {
    match args.iter().any(|arg| matches!(arg, Arg::Map(_))) {
        true => Err(crate::error::GpuError::driver(call, 0, "the device has no maps of tensors")),
        false => Ok(()),
    }
}

/// Refuses a launch whose blocks must all run at a time, for drivers without such launches.
#[cfg(any(feature = "driver-hip", feature = "driver-opencl"))]
pub(crate) fn refuse_cooperative(call: &'static str, cfg: &LaunchConfig) -> Result<()> {
    match cfg.cooperative {
        true => Err(crate::error::GpuError::driver(call, 0, "the driver has no cooperative launches")),
        false => Ok(()),
    }
}

/// A launch: blocks, threads per block, local memory that is not declared by the kernel, and how its blocks may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchConfig {
    /// Blocks per axis.
    pub grid: [u32; 3],
    /// Threads per block and axis.
    pub block: [u32; 3],
    /// Bytes of the array `GK_LOCAL_DYNAMIC` of a block (CUDA, HIP); OpenCL's kernels declare it themselves.
    pub local_bytes: u32,
    /// Whether the kernel waits for the one before it (`GK_BIND_OUT` of the CUDA dialect), so that a driver may begin it while that one ends.
    pub waits: bool,
    /// Whether all blocks must run at a time, since they wait for each other ([`Caps::cooperative`](crate::Caps)). A driver that cannot, or a device
    /// on which they do not fit, refuses the launch.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// Blocks, and threads per block.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        LaunchConfig { grid, block, local_bytes: 0, waits: false, cooperative: false }
    }

    /// Sets the local memory beside what the kernel declares.
    #[must_use]
    pub const fn local_bytes(mut self, bytes: u32) -> Self {
        self.local_bytes = bytes;
        self
    }

    /// Says that the kernel waits for the one before it, as all in `kernels/common` do.
    #[must_use]
    pub const fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Says that all blocks must run at a time.
    #[must_use]
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }
}

/// What [`Driver::compile`] is given.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompileUnit<'a> {
    /// Name for messages: file, dtype, defines.
    pub name: &'a str,
    /// Complete text; all includes are resolved, `#line` names the files.
    pub source: &'a str,
    /// Additional options beyond the driver's own.
    pub options: &'a [String],
}

impl<'a> CompileUnit<'a> {
    /// A unit without additional options.
    pub const fn new(name: &'a str, source: &'a str) -> Self {
        CompileUnit { name, source, options: &[] }
    }

    /// Sets the additional options.
    #[must_use]
    pub const fn options(mut self, options: &'a [String]) -> Self {
        self.options = options;
        self
    }
}

/// One vendor API on one device. Object-safe; all handles are plain numbers, so that every method that takes one is `unsafe`. Methods may be
/// called from any thread.
///
/// A failure after which the device or its context is lost is marked as such
/// ([`DriverFailure::fatal`](crate::error::DriverFailure::fatal)); after any other, later calls work as before.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Capabilities, read once at open.
    fn caps(&self) -> &Caps;

    /// Name of the dialect whose header precedes every unit: `cuda`, `hip`, `opencl`, or another for which the driver has a
    /// [header](Driver::dialect_header).
    fn dialect(&self) -> &'static str;

    /// The text of the dialect's header, for a language that is not among this crate's: it defines what `kernels/lint/dialect.h` does.
    fn dialect_header(&self) -> Option<&str> {
        None
    }

    /// Compiler, its version and the options the driver always passes: part of the cache key.
    fn compiler_id(&self) -> String;

    /// Device memory of at least `bytes` (> 0), aligned to 256 bytes. `OutOfMemory` when there is none (the numbers are filled by the caller).
    fn alloc(&self, bytes: usize) -> Result<RawMem>;

    /// Frees memory.
    ///
    /// # Safety
    /// `mem` came from [`Driver::alloc`] of this driver, is not used again, and no queued work reads or writes it.
    unsafe fn free(&self, mem: RawMem);

    /// A new in-order stream.
    fn new_stream(&self) -> Result<RawStream>;

    /// Destroys a stream after its work is done.
    ///
    /// # Safety
    /// `s` came from [`Driver::new_stream`] and is not used again.
    unsafe fn destroy_stream(&self, s: RawStream);

    /// Frees what the driver keeps for a stream that it did not make and that an engine no longer uses. The stream stays.
    ///
    /// # Safety
    /// `s` is a live stream of the driver's context, and idle.
    unsafe fn forget_stream(&self, s: RawStream) {
        let _ = s;
    }

    /// Queues a copy from the host. The bytes are taken before the call returns (staged if need be).
    ///
    /// # Safety
    /// `dst[offset..offset + src.len()]` lies within live memory of this driver, on which `s` is a live stream.
    unsafe fn copy_in(&self, s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()>;

    /// Waits for the stream, then copies to the host.
    ///
    /// # Safety
    /// `src[offset..offset + dst.len()]` lies within live memory of this driver, on which `s` is a live stream.
    unsafe fn copy_out(&self, s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()>;

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// `s` is a live stream of this driver. Both ranges of `bytes` lie within live memory of this driver and do not overlap.
    unsafe fn copy(&self, s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()>;

    /// Compiles a unit to an image for exactly this device. `Compile` holds the log.
    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>>;

    /// Loads an image. `Driver` error if the API refuses it.
    ///
    /// # Safety
    /// `image` was made by [`Driver::compile`] for an equal device, driver and compiler: vendors' loaders trust its contents.
    unsafe fn load(&self, image: &[u8]) -> Result<RawModule>;

    /// The kernel `entry` of a module. `Driver` error if it has none.
    ///
    /// # Safety
    /// `module` came from [`Driver::load`] of this driver.
    unsafe fn function(&self, module: RawModule, entry: &str) -> Result<RawFunction>;

    /// Queues a kernel.
    ///
    /// # Safety
    /// `s` and `f` are of this driver and alive; `args` match the prototype of `f` in count, order and type; the kernel stays within the memory
    /// of its pointer arguments for all indices that it computes, and touches none before it has waited where `cfg.waits` says that it does.
    unsafe fn launch(&self, s: RawStream, f: RawFunction, cfg: &LaunchConfig, args: &[Arg<'_>])
    -> Result<()>;

    /// Waits until the stream is idle; returns the first failure of its work.
    ///
    /// # Safety
    /// `s` is of this driver and alive.
    unsafe fn synchronize(&self, s: RawStream) -> Result<()>;

    /// Records an event with a time stamp at the current end of the stream.
    ///
    /// # Safety
    /// `s` is of this driver and alive.
    unsafe fn record(&self, s: RawStream) -> Result<RawEvent>;

    /// Lets the stream wait for an event of any stream of this driver.
    ///
    /// # Safety
    /// `s` and `e` are of this driver and alive.
    unsafe fn wait(&self, s: RawStream, e: RawEvent) -> Result<()>;

    /// Waits on the host for an event.
    ///
    /// # Safety
    /// `e` is of this driver and alive.
    unsafe fn event_synchronize(&self, e: RawEvent) -> Result<()>;

    /// Device time between two passed events, in nanoseconds.
    ///
    /// # Safety
    /// Both events are of this driver and alive.
    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64>;

    /// Destroys an event.
    ///
    /// # Safety
    /// `e` came from [`Driver::record`] and is not used again.
    unsafe fn destroy_event(&self, e: RawEvent);

    /// Whether kernels run. Where they do not, units come without text.
    #[doc(hidden)]
    fn runs_kernels(&self) -> bool {
        true
    }

    /// Matrix products of a vendor library; the reason if there is none.
    fn vendor_blas(&self) -> std::result::Result<&dyn VendorBlas, &str> {
        Err("no vendor library was found")
    }

    /// Graphs of the interface; the reason if it has none.
    fn stream_graphs(&self) -> std::result::Result<&dyn StreamGraphs, &str> {
        Err("its driver interface records no graphs")
    }

    /// Convolutions of a vendor library; the reason if there is none.
    fn vendor_conv(&self) -> std::result::Result<&dyn VendorConv, &str> {
        Err("no vendor library was found")
    }

    /// Attention of a vendor library; the reason if there is none.
    fn vendor_attention(&self) -> std::result::Result<&dyn VendorAttention, &str> {
        Err("no vendor library was found")
    }

    /// Fourier transforms of a vendor library; the reason if there is none.
    fn vendor_fft(&self) -> std::result::Result<&dyn VendorFft, &str> {
        Err("no vendor library was found")
    }
}

/// One matrix product for a vendor library, row-major: D [M, N] = alpha op(A) op(B) + beta C, then bias and activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct BlasProblem {
    /// Rows of D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// Length of the products.
    pub k: usize,
    /// Batches.
    pub batch: usize,
    /// A is stored [K, M].
    pub trans_a: bool,
    /// B is stored [N, K].
    pub trans_b: bool,
    /// Row strides of A, B, C and D in elements.
    pub ld: [usize; 4],
    /// Batch strides of A, B, C and D in elements.
    pub batch_stride: [usize; 4],
    /// Type of A and B.
    pub dtype: crate::DType,
    /// Type of C and D.
    pub out_dtype: crate::DType,
    /// f32 products may be rounded to TF32.
    pub tf32: bool,
    /// Whether a bias per column (N values of `dtype`) is added.
    pub bias: bool,
    /// Activation after the bias: identity, relu or gelu_tanh.
    pub act: BlasAct,
}

/// Activations that vendor libraries fuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlasAct {
    /// None.
    Identity,
    /// max(x, 0).
    Relu,
    /// The tanh form of gelu.
    GeluTanh,
}

/// Matrix products of a vendor library, loaded at run time.
pub trait VendorBlas: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// Whether the library has products of operands of this type into results of that; the reason if not.
    fn types(&self, dtype: crate::DType, out: crate::DType) -> std::result::Result<(), String> {
        let _ = (dtype, out);
        Ok(())
    }

    /// Whether it computes in TF32 where a problem allows that. If not, it is given no such problem.
    fn tf32(&self) -> bool {
        true
    }

    /// Whether products that need a workspace have kernels of their own; then these are checked by themselves before they are used.
    fn workspace_kernels(&self) -> bool {
        false
    }

    /// Whether all matrices must begin at multiples of 16 bytes.
    fn aligned_only(&self) -> bool {
        false
    }

    /// Whether C must be D: beta D is what it adds.
    fn in_place(&self) -> bool {
        false
    }

    /// Whether the library takes this problem; the reason if not. Cheap after the first call of a problem.
    fn applicable(&self, p: &BlasProblem) -> std::result::Result<(), String>;

    /// Bytes of workspace that [`VendorBlas::gemm`] wants for this problem.
    fn workspace(&self, p: &BlasProblem) -> usize;

    /// Queues the product. Memory arguments are (memory, byte offset) of A, B, C, D; C may equal D.
    ///
    /// Errors: `Unsupported`, with nothing queued, where the library takes the problem but not at these addresses (a matrix that does not
    /// begin at a multiple of 16 bytes); then another variant must serve it.
    ///
    /// # Safety
    /// All memory is live, large enough for the problem, and D overlaps neither A nor B.
    #[allow(clippy::too_many_arguments)]
    unsafe fn gemm(
        &self,
        s: RawStream,
        p: &BlasProblem,
        alpha: f64,
        beta: f64,
        a: (RawMem, u64),
        b: (RawMem, u64),
        c: (RawMem, u64),
        d: (RawMem, u64),
        bias: Option<(RawMem, u64)>,
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()>;
}

#[cfg(feature = "driver-hip")]
#[doc(hidden)]
pub fn hip_open(ordinal: u32) -> Result<std::sync::Arc<dyn Driver>> {
    Ok(std::sync::Arc::new(hip::HipDriver::open(ordinal)?))
}

/// The OpenCL driver without an engine, for tests and tools.
#[cfg(feature = "driver-opencl")]
#[doc(hidden)]
pub fn opencl_open(ordinal: u32) -> Result<std::sync::Arc<dyn Driver>> {
    Ok(std::sync::Arc::new(opencl::OpenClDriver::open(ordinal)?))
}

/// The CUDA driver without an engine, for tests and tools.
#[cfg(feature = "driver-cuda")]
#[doc(hidden)]
pub fn cuda_open(ordinal: u32) -> Result<std::sync::Arc<dyn Driver>> {
    Ok(std::sync::Arc::new(cuda::CudaDriver::open(ordinal)?))
}

#[cfg(all(test, any(feature = "driver-cuda", feature = "driver-hip")))]
mod tests {
    #[test]
    fn only_failures_of_kernels_and_devices_lose_the_context() {
        // Invalid value and handle, out of memory, no image for the device, launch out of resources.
        for code in [1, 2, 100, 209, 400, 500, 701] {
            assert!(!super::context_lost(code), "{code}");
        }
        for code in [46, 214, 700, 702, 710, 716, 719, 999] {
            assert!(super::context_lost(code), "{code}");
        }
    }
}

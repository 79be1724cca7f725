//! Names and capabilities of devices.

use std::fmt;

use crate::dtype::DType;

/// The backends this crate knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BackendKind {
    /// NVIDIA's CUDA driver.
    Cuda,
    /// AMD's HIP runtime.
    Hip,
    /// OpenCL 1.2 or later.
    OpenCl,
    /// The CPU implementation of this crate.
    Cpu,
    /// A backend registered by a third party.
    Custom,
}

impl BackendKind {
    /// Lower-case name as in selectors: `cuda`, `hip`, `opencl`, `cpu`.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Cuda => "cuda",
            BackendKind::Hip => "hip",
            BackendKind::OpenCl => "opencl",
            BackendKind::Cpu => "cpu",
            BackendKind::Custom => "custom",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A backend and the ordinal of one of its devices; printed as `cuda:0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The backend.
    pub kind: BackendKind,
    /// Position in the backend's list of devices.
    pub ordinal: u32,
}

impl DeviceId {
    /// Device `ordinal` of backend `kind`.
    pub const fn new(kind: BackendKind, ordinal: u32) -> Self {
        DeviceId { kind, ordinal }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

/// How kernels reach matrix cores (`kernels/common/prelude/matrix.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatrixCores {
    /// NVIDIA's from sm_80 on, by inline PTX: `mma.sync` and asynchronous copies (`cp.async`).
    Ptx,
    /// AMD's of CDNA, by MFMA instructions.
    Mfma,
    /// AMD's of RDNA from generation 3 on, by WMMA instructions: for f16 and bf16 alone.
    Wmma,
}

/// What a device is and can do, read once when it is opened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Caps {
    /// Which device.
    pub id: DeviceId,
    /// The vendor's name for it.
    pub name: String,
    /// Full architecture name for the run-time compiler: `sm_90`, `gfx90a:sramecc+:xnack-`, or OpenCL's device and driver version.
    pub arch: String,
    /// Driver or runtime version, as text.
    pub driver_version: String,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Streaming SMs or compute units.
    pub compute_units: u32,
    /// Threads per block at most.
    pub max_block: u32,
    /// Bytes of local (shared) memory a block may use; on CUDA those above 48 KiB only by `GK_LOCAL_DYNAMIC`.
    pub shared_bytes: u32,
    /// The matrix cores of the device that kernels use, if any.
    pub matrix_cores: Option<MatrixCores>,
    /// Whether groups of four warps of a block multiply together, and hand registers and turns to each other (`wgmma` and `setmaxnreg` of Hopper).
    pub warp_groups: bool,
    /// Whether kernels can take maps of tensors, of which boxes are copied to local memory in one piece (the tensor memory accelerator of Hopper).
    pub tensor_maps: bool,
    /// Width of a warp or wavefront; 1 where the device has none or does not say.
    pub warp_size: u32,
    /// Whether kernels exchange values between the threads of a warp without local memory (`GK_SHUFFLE_WIDTH`).
    pub lane_exchange: bool,
    /// Blocks that run at a time by guarantee, so that they may wait for each other (CUDA's clusters); 1 where there is no such thing.
    pub cluster: u32,
    /// Whether all blocks of a launch can be made to run at a time, as many as fit (cooperative launches).
    pub cooperative: bool,
    /// Whether the device computes in f64.
    pub f64: bool,
    /// Whether kernels can use plain device addresses (CUDA, HIP); OpenCL 1.2 cannot.
    pub device_addresses: bool,
    /// Whether the device is a CPU (PoCL, the CPU backend).
    pub is_cpu: bool,
}

impl Caps {
    /// Blocks that keep the device busy.
    pub(crate) fn target_blocks(&self) -> usize {
        (self.compute_units as usize * if self.is_cpu { 2 } else { 8 }).max(1)
    }

    /// Whether kernels use NVIDIA's matrix cores and asynchronous copies, by inline PTX.
    pub(crate) fn ptx(&self) -> bool {
        self.matrix_cores == Some(MatrixCores::Ptx)
    }

    /// The matrix cores that kernels use for operands of a type.
    pub(crate) fn matrix_cores_for(&self, dtype: DType) -> Option<MatrixCores> {
        let narrow = matches!(dtype, DType::F16 | DType::Bf16);
        self.matrix_cores.filter(|&cores| cores != MatrixCores::Wmma || narrow)
    }

    /// Capabilities with conservative values: 256 threads per block, 32 KiB of local memory, no f64, no addresses.
    pub fn new(id: DeviceId, name: impl Into<String>, arch: impl Into<String>) -> Self {
        Caps {
            id,
            name: name.into(),
            arch: arch.into(),
            driver_version: String::new(),
            memory_bytes: 0,
            compute_units: 1,
            max_block: 256,
            shared_bytes: 32 * 1024,
            matrix_cores: None,
            warp_groups: false,
            tensor_maps: false,
            warp_size: 1,
            lane_exchange: false,
            cluster: 1,
            cooperative: false,
            f64: false,
            device_addresses: false,
            is_cpu: false,
        }
    }

    /// Whether kernels can load and store this element type.
    pub fn supports(&self, dtype: DType) -> bool {
        dtype != DType::F64 || self.f64
    }
}

/// A figure of `/proc/meminfo` in bytes; `None` where the system has no such file.
pub(crate) fn memory_figure(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory of this machine, if the system tells.
pub(crate) fn physical_memory() -> Option<u64> {
    static MEMORY: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    *MEMORY.get_or_init(|| memory_figure("MemTotal"))
}

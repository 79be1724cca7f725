//! The table of kernels: the single source for compilation, argument checks, compile checks and the status page.
//!
//! One file per family, the same names as in `kernels/common`, `src/ops`, `src/engine/ops` and `src/cpu`. A test holds the rows against the
//! prototypes in the C text, in both directions.

pub use self::prototype::{Parameter, prototypes};
use crate::dtype::DType;
use crate::ops::Family;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod distance;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gated;
pub(crate) mod gemm;
pub(crate) mod gnn;
pub(crate) mod index;
pub(crate) mod lm;
pub(crate) mod loss;
pub(crate) mod loss_batch;
pub(crate) mod loss_margin;
pub(crate) mod loss_rows;
pub(crate) mod loss_seq;
pub(crate) mod loss_stft;
pub(crate) mod mesh;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod optimizer_forms;
pub(crate) mod order;
pub(crate) mod pool;
pub(crate) mod prototype;
pub(crate) mod quantised;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod resample;
pub(crate) mod rnn;
pub(crate) mod rnn_conv;
pub(crate) mod rnn_fused;
pub(crate) mod scan;
pub(crate) mod shape;
pub(crate) mod softmax;
pub(crate) mod sort;

/// Type and direction of a kernel's parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// `GK_IN(T, name)`: pointer that is read; the C type.
    In(&'static str),
    /// `GK_OUT(T, name)`: pointer that is written (and perhaps read); the C type.
    Out(&'static str),
    /// `int`
    I32,
    /// `gk_u32`
    U32,
    /// `gk_i64`
    I64,
    /// `float`
    F32,
    /// `gk_f`: float, or double in f64 units
    Real,
    /// `gk_dims`
    Dims,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArgSpec {
    /// Name in the C text.
    pub name: &'static str,
    /// Type and direction.
    pub role: Role,
}

/// One kernel of the portable text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSpec {
    /// Name of the `GK_KERNEL`.
    pub entry: &'static str,
    /// File under `kernels/common` whose unit contains it.
    pub file: &'static str,
    /// Family.
    pub family: Family,
    /// Parameters in order.
    pub args: &'static [ArgSpec],
    /// Storage types for which its unit is compiled.
    pub dtypes: &'static [DType],
    /// Values of `GK_OP` for which its unit is specialised; empty for a unit without.
    pub ops: &'static [&'static str],
}

/// Work-items per block of the portable kernels (`GK_BLOCK`): OpenCL guarantees no more than 256 on common devices.
pub const BLOCK: u32 = 256;

/// f32, f16, bf16.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// f32, f16, bf16, f64.
pub(crate) const FLOATS64: &[DType] = &[DType::F32, DType::F16, DType::Bf16, DType::F64];
/// Everything.
pub(crate) const ALL: &[DType] = &DType::ALL;
/// i32, i64, u8.
pub(crate) const INTS: &[DType] = &[DType::I32, DType::I64, DType::U8];

/// `args![x: In("gk_t"), y: Out("gk_t"), n: I64]`
macro_rules! args {
    ($($name:ident : $role:ident $(($t:literal))?),* $(,)?) => {
        &[$($crate::spec::ArgSpec { name: stringify!($name), role: $crate::spec::Role::$role $(($t))? }),*]
    };
}
pub(crate) use args;

/// Declares `pub(crate) static NAME: KernelSpec` rows and the list `KERNELS` of them.
macro_rules! kernels {
    (family: $family:ident; $( $(#[$m:meta])* $name:ident = $file:literal $entry:literal, dtypes: $dtypes:expr, ops: $ops:expr, args: [$($args:tt)*]; )*) => {
        $(
            $(#[$m])*
            pub(crate) static $name: $crate::spec::KernelSpec = $crate::spec::KernelSpec {
                entry: $entry,
                file: $file,
                family: $crate::ops::Family::$family,
                args: $crate::spec::args![$($args)*],
                dtypes: $dtypes,
                ops: $ops,
            };
        )*
        pub(crate) static KERNELS: &[&$crate::spec::KernelSpec] = &[$(&$name),*];
    };
}
pub(crate) use kernels;

/// Every kernel of the portable text.
pub fn all_kernels() -> impl Iterator<Item = &'static KernelSpec> {
    [
        elementwise::KERNELS,
        elementwise::INT_KERNELS,
        activation::KERNELS,
        gated::KERNELS,
        loss::KERNELS,
        loss_batch::KERNELS,
        loss_rows::KERNELS,
        loss_margin::KERNELS,
        loss_seq::KERNELS,
        loss_stft::KERNELS,
        optimizer::KERNELS,
        optimizer_forms::KERNELS,
        random::KERNELS,
        reduce::KERNELS,
        shape::KERNELS,
        softmax::KERNELS,
        index::KERNELS,
        sort::KERNELS,
        order::KERNELS,
        gemm::KERNELS,
        quantised::KERNELS,
        distance::KERNELS,
        scan::KERNELS,
        mesh::KERNELS,
        gnn::KERNELS,
        rnn::KERNELS,
        rnn_conv::KERNELS,
        rnn_fused::KERNELS,
        embedding::KERNELS,
        lm::KERNELS,
        attention::KERNELS,
        resample::KERNELS,
        pool::KERNELS,
        norm::KERNELS,
        conv::KERNELS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// One thing to compile: a file for a storage type, specialised for an op where the file has such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// File under `kernels/common`.
    pub file: &'static str,
    /// Storage type (`GK_DTYPE`).
    pub dtype: DType,
    /// Value of `GK_OP`; empty for none.
    pub op: &'static str,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.file, self.dtype)?;
        if self.op.is_empty() { Ok(()) } else { write!(f, "+{}", self.op) }
    }
}

/// Every unit that the table can ask for, sorted.
pub fn all_units() -> Vec<Unit> {
    let mut units = std::collections::BTreeSet::new();
    for k in all_kernels() {
        for &dtype in k.dtypes {
            if k.ops.is_empty() {
                units.insert(Unit { file: k.file, dtype, op: "" });
            }
            for &op in k.ops {
                units.insert(Unit { file: k.file, dtype, op });
            }
        }
    }
    units.into_iter().collect()
}

/// The complete text of a unit in a dialect (`cuda`, `hip`, `opencl`, `lint`), as handed to the compiler.
pub fn expand(unit: &Unit, dialect: &str) -> Result<String, String> {
    crate::engine::program::assemble(unit, dialect)
}

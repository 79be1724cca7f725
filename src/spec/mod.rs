//! The table of kernels: the single source for compilation, argument checks, compile checks and the status page.
//!
//! `kernels` is written by `cargo xtask spec` from the prototypes in the C text; the other files name, per family, the functions for which units
//! are compiled.

pub use self::prototype::{Parameter, prototypes};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::ops::Family;

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod gemm;
pub(crate) mod graph;
#[rustfmt::skip]
pub(crate) mod kernels;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod optimizer;
pub(crate) mod prototype;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod resample;
pub(crate) mod softmax;
pub(crate) mod user;

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
    /// For what its unit is compiled.
    pub units: &'static [UnitSet],
}

impl KernelSpec {
    /// Storage types for which it is compiled.
    pub fn dtypes(&self) -> impl Iterator<Item = DType> + use<> {
        let units = self.units;
        DType::ALL.into_iter().filter(move |d| units.iter().any(|(dtypes, _)| dtypes.contains(d)))
    }

    /// Whether there is a unit for this storage type and function (empty: none).
    pub fn has_unit(&self, dtype: DType, op: &str) -> bool {
        let fits = |ops: &[&str]| if op.is_empty() { ops.is_empty() } else { ops.contains(&op) };
        self.units.iter().any(|(dtypes, ops)| dtypes.contains(&dtype) && fits(ops))
    }
}

/// Storage types, and values of `GK_OP` for which a unit is specialised (none for a unit without).
pub type UnitSet = (&'static [DType], &'static [&'static str]);

/// A kernel whose arguments are an `A`.
#[derive(Debug)]
pub(crate) struct Kernel<A> {
    pub(crate) spec: KernelSpec,
    arguments: std::marker::PhantomData<fn(A)>,
}

impl<A> Kernel<A> {
    pub(crate) const fn new(spec: KernelSpec) -> Self {
        Kernel { spec, arguments: std::marker::PhantomData }
    }
}

/// The arguments of a kernel, with the names of its parameters.
pub(crate) trait KernelArgs {
    /// Parameters in order.
    const PARAMETERS: &'static [ArgSpec];

    /// Calls `f` with the arguments as the unit for `dtype` takes them.
    fn with<R>(&self, dtype: DType, f: impl FnOnce(&[Arg]) -> R) -> R;
}

/// Work-items per block of the portable kernels (`GK_BLOCK`): OpenCL guarantees no more than 256 on common devices.
pub const BLOCK: u32 = 256;

/// f32, f16, bf16.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// f32, f16, bf16, f64.
pub(crate) const FLOATS64: &[DType] = &[DType::F32, DType::F16, DType::Bf16, DType::F64];
/// f32 and f64: 16-bit data is computed in f32.
pub(crate) const REALS: &[DType] = &[DType::F32, DType::F64];
/// Everything.
pub(crate) const ALL: &[DType] = &DType::ALL;
/// Everything but u8.
pub(crate) const REDUCIBLE: &[DType] =
    &[DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I64];
/// i32, i64, u8.
pub(crate) const INTS: &[DType] = &[DType::I32, DType::I64, DType::U8];
/// i32 and i64: indices, and keys of 32 and 64 bits.
pub(crate) const INDICES: &[DType] = &[DType::I32, DType::I64];
/// One type per size, through which the bits of all types are copied.
pub(crate) const SIZES: &[DType] = &[DType::U8, DType::F16, DType::I32, DType::I64];
/// f32.
pub(crate) const F32: &[DType] = &[DType::F32];
/// i32.
pub(crate) const I32: &[DType] = &[DType::I32];
/// i64.
pub(crate) const I64: &[DType] = &[DType::I64];
/// u8.
pub(crate) const U8: &[DType] = &[DType::U8];

/// Declares a struct of named arguments: pointers are [`Ptr`](crate::driver::Ptr)s, `Real` is an f64 that is passed in the unit's arithmetic type.
macro_rules! kernel_args {
    ($(#[$doc:meta])* $name:ident { $($param:ident: $role:ident $(($c:literal))?,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $param: $crate::spec::role_type!($role),)*
        }

        impl $crate::spec::KernelArgs for $name {
            const PARAMETERS: &'static [$crate::spec::ArgSpec] = &[
                $($crate::spec::ArgSpec { name: stringify!($param), role: $crate::spec::Role::$role $(($c))? },)*
            ];

            #[allow(unused_variables)]
            fn with<R>(&self, dtype: $crate::dtype::DType, f: impl FnOnce(&[$crate::driver::Arg]) -> R) -> R {
                f(&[$($crate::spec::role_arg!($role, dtype, self.$param),)*])
            }
        }
    };
}
pub(crate) use kernel_args;

/// Rust type of a parameter.
macro_rules! role_type {
    (In) => {
        $crate::driver::Ptr
    };
    (Out) => {
        $crate::driver::Ptr
    };
    (I32) => {
        i32
    };
    (U32) => {
        u32
    };
    (I64) => {
        i64
    };
    (F32) => {
        f32
    };
    (Real) => {
        f64
    };
    (Dims) => {
        $crate::driver::DimsArg
    };
}
pub(crate) use role_type;

/// Argument of a parameter.
macro_rules! role_arg {
    (In, $dtype:expr, $v:expr) => {
        $crate::driver::Arg::Mem($v.0)
    };
    (Out, $dtype:expr, $v:expr) => {
        $crate::driver::Arg::Mem($v.0)
    };
    (Real, $dtype:expr, $v:expr) => {
        $crate::spec::real($dtype, $v)
    };
    ($role:ident, $dtype:expr, $v:expr) => {
        $crate::driver::Arg::$role($v)
    };
}
pub(crate) use role_arg;

/// A scalar of a unit's arithmetic type.
pub(crate) fn real(dtype: DType, x: f64) -> Arg {
    match dtype {
        DType::F64 => Arg::F64(x),
        DType::I32 | DType::U8 => Arg::I32(x as i32),
        DType::I64 => Arg::I64(x as i64),
        _ => Arg::F32(x as f32),
    }
}

/// Declares `static NAME: Kernel<Arguments>` rows and the list `KERNELS` of them.
macro_rules! kernel_table {
    ($family:ident; $( $name:ident: $args:ident = $file:literal $entry:literal [$($unit:expr),*]; )*) => {
        $(
            pub(crate) static $name: $crate::spec::Kernel<$args> = $crate::spec::Kernel::new($crate::spec::KernelSpec {
                entry: $entry,
                file: $file,
                family: $crate::ops::Family::$family,
                args: <$args as $crate::spec::KernelArgs>::PARAMETERS,
                units: &[$($unit),*],
            });
        )*
        pub(crate) static KERNELS: &[&$crate::spec::KernelSpec] = &[$(&$name.spec),*];
    };
}
pub(crate) use kernel_table;

/// Every kernel of the portable text.
pub fn all_kernels() -> impl Iterator<Item = &'static KernelSpec> {
    kernels::FAMILIES.iter().copied().flatten().copied()
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
        for &(dtypes, ops) in k.units {
            for &dtype in dtypes {
                let ops = if ops.is_empty() { &[""] } else { ops };
                units.extend(ops.iter().map(|op| Unit { file: k.file, dtype, op }));
            }
        }
    }
    units.into_iter().collect()
}

/// The complete text of a unit in a dialect (`cuda`, `hip`, `opencl`, `lint`), as handed to the compiler.
pub fn expand(unit: &Unit, dialect: &str) -> Result<String, String> {
    crate::engine::program::assemble(unit, dialect)
}

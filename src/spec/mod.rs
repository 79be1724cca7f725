//! The table of kernels: the single source for compilation, argument checks, compile checks and the status page.
//!
//! `kernels` is written by `cargo xtask spec` from the prototypes in the C text; the other files name, per family, the functions for which units
//! are compiled.

pub use self::prototype::{Parameter, prototypes, structs};
use crate::driver::{Arg, DimsArg};
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
pub(crate) mod state_space;
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
    /// `GK_TENSOR_MAP`: a tensor that is read in boxes
    Map,
    /// `GK_BY_VALUE`: a struct of scalars by value; its members in order
    Struct(&'static [ArgSpec]),
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
    fn with<R>(&self, dtype: DType, f: impl FnOnce(&[Arg<'_>]) -> R) -> R;
}

/// Threads per block of the portable kernels (`GK_BLOCK`): OpenCL guarantees no more than 256 on common devices.
pub const BLOCK: u32 = 256;

/// f32, f16, bf16.
pub(crate) const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];
/// f16, bf16.
pub(crate) const HALVES: &[DType] = &[DType::F16, DType::Bf16];
/// bf16: parts of f32 numbers.
pub(crate) const BF16: &[DType] = &[DType::Bf16];
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
/// The fields of the second list are the members of the last parameter, a struct.
macro_rules! kernel_args {
    (
        $(#[$doc:meta])* $name:ident { $($param:ident: $role:ident $(($c:literal))?,)* }
        $($by_value:ident { $($member:ident: $kind:ident,)* })?
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $param: $crate::spec::role_type!($role),)*
            $($(pub(crate) $member: $crate::spec::role_type!($kind),)*)?
        }

        impl $crate::spec::KernelArgs for $name {
            const PARAMETERS: &'static [$crate::spec::ArgSpec] = &[
                $($crate::spec::ArgSpec { name: stringify!($param), role: $crate::spec::Role::$role $(($c))? },)*
                $($crate::spec::ArgSpec {
                    name: stringify!($by_value),
                    role: $crate::spec::Role::Struct(&[
                        $($crate::spec::ArgSpec { name: stringify!($member), role: $crate::spec::Role::$kind },)*
                    ]),
                },)?
            ];

            #[allow(unused_variables)]
            fn with<R>(&self, dtype: $crate::dtype::DType, f: impl FnOnce(&[$crate::driver::Arg<'_>]) -> R) -> R {
                $(
                    const WORDS: usize = $crate::spec::words(&[$($crate::spec::Role::$kind),*]);
                    let mut $by_value = $crate::spec::StructBytes::<WORDS>::new();
                    $($by_value.push($crate::spec::role_arg!($kind, dtype, self.$member));)*
                )?
                f(&[
                    $($crate::spec::role_arg!($role, dtype, self.$param),)*
                    $($by_value.arg(),)?
                ])
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
    (Map) => {
        $crate::driver::TensorMap
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
    (Dims, $dtype:expr, $v:expr) => {
        $crate::driver::Arg::Struct(bytemuck::cast_slice(&$v.0))
    };
    ($role:ident, $dtype:expr, $v:expr) => {
        $crate::driver::Arg::$role($v)
    };
}
pub(crate) use role_arg;

/// 64-bit words that a struct of these members takes at most.
pub(crate) const fn words(members: &[Role]) -> usize {
    let (mut bytes, mut i) = (0, 0);
    while i < members.len() {
        bytes += match members[i] {
            Role::Dims => size_of::<DimsArg>(),
            Role::I32 | Role::U32 | Role::F32 => 4,
            _ => 8,
        };
        i += 1;
    }
    bytes.div_ceil(8)
}

/// The bytes of a struct that a kernel takes by value.
///
/// Its members stand in the order of falling size (`cargo xtask spec` refuses others): C pads at the end alone, to a multiple of the largest.
pub(crate) struct StructBytes<const WORDS: usize> {
    words: [u64; WORDS],
    len: usize,
    align: usize,
}

impl<const WORDS: usize> StructBytes<WORDS> {
    pub(crate) fn new() -> Self {
        StructBytes { words: [0; WORDS], len: 0, align: 4 }
    }

    /// Appends a member.
    pub(crate) fn push(&mut self, member: Arg<'_>) {
        let bytes = member.bytes();
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        all[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self.align = self.align.max(bytes.len().min(8));
    }

    /// The whole struct.
    pub(crate) fn arg(&self) -> Arg<'_> {
        let all: &[u8] = bytemuck::cast_slice(&self.words);
        Arg::Struct(&all[..self.len.next_multiple_of(self.align)])
    }
}

/// A scalar of a unit's arithmetic type.
pub(crate) fn real(dtype: DType, x: f64) -> Arg<'static> {
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
    crate::engine::program::assemble(unit, crate::engine::program::Dialect::named(dialect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Ptr;

    kernel_args! {
        /// Members of every kind, and an odd number of 4-byte ones.
        MixedArgs {
            x: In("gk_t"),
            code: I32,
        }
        args {
            shape: Dims,
            n: I64,
            p: Real,
            q: Real,
            keep: F32,
            seed: U32,
            rank: I32,
        }
    }

    #[test]
    fn a_struct_is_laid_out_as_c_does() {
        let shape = DimsArg([1, 2, 3, 4, 5, 6, 7, 8]);
        let args =
            MixedArgs { x: Ptr::NULL, code: 7, shape, n: -9, p: 2.0, q: 3.0, keep: 0.5, seed: 6, rank: -1 };
        for dtype in DType::ALL {
            let real = |x| real(dtype, x).bytes().to_vec();
            args.with(dtype, |list| {
                assert_eq!(list[..2], [Arg::Mem(None), Arg::I32(7)]);
                let mut want: Vec<u8> = bytemuck::cast_slice(&[1i64, 2, 3, 4, 5, 6, 7, 8, -9]).to_vec();
                want.extend([real(2.0), real(3.0)].concat());
                want.extend(
                    [0.5f32.to_ne_bytes(), 6u32.to_ne_bytes(), (-1i32).to_ne_bytes(), [0; 4]].concat(),
                );
                assert_eq!(list[2..], [Arg::Struct(&want)], "{dtype}");
            });
        }
        assert_eq!(real(DType::F64, 2.0).bytes().len(), 8);
        assert_eq!(real(DType::I64, 2.0).bytes(), 2i64.to_ne_bytes());
        assert_eq!(real(DType::U8, 2.0).bytes(), 2i32.to_ne_bytes());
        assert_eq!(real(DType::Bf16, 2.0).bytes(), 2f32.to_ne_bytes());
    }

    kernel_args! {
        /// Members as large as the unit's arithmetic type.
        SmallArgs {}
        args {
            p: Real,
            q: Real,
            n: I32,
        }
    }

    #[test]
    fn a_struct_ends_at_a_multiple_of_its_largest_member() {
        for (dtype, size) in [(DType::F16, 12), (DType::F64, 24), (DType::U8, 12), (DType::I64, 24)] {
            SmallArgs { p: 1.0, q: 2.0, n: 3 }.with(dtype, |list| assert_eq!(list[0].bytes().len(), size));
        }
    }

    #[test]
    fn arguments_follow_their_parameters() {
        let roles: Vec<Role> = MixedArgs::PARAMETERS.iter().map(|p| p.role).collect();
        let [Role::In("gk_t"), Role::I32, Role::Struct(members)] = roles[..] else { panic!("{roles:?}") };
        assert_eq!(members.last(), Some(&ArgSpec { name: "rank", role: Role::I32 }));
    }
}

/// The backends that the build names (`cargo test --features cuda`): they must be there. The default features name none.
pub(crate) const ASKED: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "hip")]
    "hip",
    #[cfg(feature = "opencl")]
    "opencl",
];

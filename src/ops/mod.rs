//! The operations: one object-safe trait per family, bundled by [`IGpuBackend`].
//!
//! Rules that hold for every operation:
//!
//! * **Order.** All work of a handle goes to one in-order stream. Nothing blocks the host except `read_bytes`, `synchronize` and `Event` waits.
//! * **Checks first.** Shapes, dtypes, ranges and aliasing are checked before anything is launched; an error leaves outputs untouched.
//! * **Dtypes.** There is no implicit promotion. f16 and bf16 are computed in f32 and rounded once to nearest-even at the store. Statistics,
//!   losses and optimizer state are f32 (f64 for f64 data).
//! * **Aliasing.** An elementwise output may be exactly one of its inputs (same buffer, shape, strides, offset). Any other overlap is `Invalid`.
//! * **Gradients** go to [`GradMut`]s, which overwrite or accumulate.
//! * **Broadcasting** is NumPy's: aligned right, size 1 repeats.
//! * **Indices** are i32 or i64; an index out of range reads 0 and drops the write. The handle that queued the operation reports it as
//!   `IndexOutOfRange`, with its name, when `synchronize` is next called or when something that was written since is read. What the handle wrote
//!   between the operation and that report cannot be read until it is written anew. Negative indices are out of range.
//! * **Determinism.** The same call on the same device gives the same bits.
//! * **Empty tensors** launch nothing.
//!
//! [`GradMut`]: crate::GradMut

/// One operation of a family, as declared by its trait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpInfo {
    /// Method name.
    pub name: &'static str,
    /// Family.
    pub family: Family,
    /// The trait that declares it.
    pub trait_name: &'static str,
    /// Path of the module that declares it: `trefoil::ops::softmax`.
    pub module: &'static str,
}

/// Declares a family trait, its table of [`OpInfo`] rows, the forwarding to `Arc` and `Box`, and the recording by the CPU backend, from one list of
/// methods; `[unsafe]` precedes those that are.
macro_rules! op_family {
    (
        $(#[$tm:meta])*
        pub trait $tr:ident : $family:ident => $table:ident {
            $( $(#[$m:meta])* $([$unsafe:ident])? fn $name:ident(&self $(, $arg:ident : $ty:ty)* $(,)?) $(-> $ret:ty)?; )*
        }
    ) => {
        $(#[$tm])*
        pub trait $tr: Send + Sync {
            $( $(#[$m])* $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)?; )*
        }

        #[doc = concat!("The operations of [`", stringify!($tr), "`].")]
        pub const $table: &[$crate::ops::OpInfo] = &[
            $( $crate::ops::OpInfo {
                name: stringify!($name),
                family: $crate::ops::Family::$family,
                trait_name: stringify!($tr),
                module: module_path!(),
            }, )*
        ];

        impl<T: ?Sized + $tr> $tr for std::sync::Arc<T> {
            // SAFETY: an unsafe method's contract is forwarded as it is.
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $($unsafe)? { (**self).$name($($arg),*) } } )*
        }
        impl<T: ?Sized + $tr> $tr for Box<T> {
            // SAFETY: as above.
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $($unsafe)? { (**self).$name($($arg),*) } } )*
        }
        impl<T: $tr> $tr for $crate::testing::Recorder<T> {
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
                self.note(stringify!($name));
                // SAFETY: as above.
                $($unsafe)? { self.inner.$name($($arg),*) }
            } )*
        }
        $crate::cpu::recorded_ops! { $family $tr { $( fn $name($($arg : $ty),*) $(-> $ret)?; )* } }
        $crate::testing::replayed_ops! { $family $tr { $( $([$unsafe])? fn $name($($arg : $ty),*) $(-> $ret)?; )* } }
    };
}

pub(crate) mod check;
#[macro_use]
pub(crate) mod operand;
#[macro_use]
mod io_struct;

/// Declares, from one list of families, their modules, [`Family`], [`all_ops`] and the traits that [`IGpuBackend`] bundles.
///
/// [`IGpuBackend`]: crate::IGpuBackend
macro_rules! families {
    ($( $(#[$doc:meta])* $family:ident = $module:ident { $($tr:ident => $table:ident),* } )*) => {
        $( $(#[$doc])* pub mod $module; )*

        /// The kernel families.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Family {
            $( $(#[$doc])* $family, )*
        }

        impl Family {
            /// Its name, which is that of its module here and of its folder under `kernels/common`.
            pub const fn name(self) -> &'static str {
                match self { $( Family::$family => stringify!($module), )* }
            }
        }

        /// Every operation of every family.
        pub fn all_ops() -> impl Iterator<Item = &'static OpInfo> {
            [$($( $module::$table, )*)*].into_iter().flatten()
        }

        /// The traits of all families, for code that calls operations on a backend's own type: `use trefoil::prelude::*;`. On `dyn IGpuBackend`
        /// and on what is bound by it, the methods are there without.
        pub mod prelude {
            $($( pub use super::$module::$tr; )*)*
            pub use super::IGpuBackend;
            pub use crate::backend::BackendExt;
        }

        /// Everything a device does, behind one object. A handle is a device plus one in-order stream.
        ///
        /// Implemented for whatever implements the family traits; `&dyn IGpuBackend` coerces to a reference to any of them.
        pub trait IGpuBackend: std::fmt::Debug $($( + $module::$tr )*)* {}

        impl<T: ?Sized + std::fmt::Debug $($( + $module::$tr )*)*> IGpuBackend for T {}
    };
}

families! {
    /// Memory, streams, introspection.
    Core = core { CoreOps => CORE_OPS, InteropOps => INTEROP_OPS, CaptureOps => CAPTURE_OPS }
    /// Unary, binary and ternary arithmetic with broadcasting.
    Elementwise = elementwise { ElementwiseOps => ELEMENTWISE_OPS }
    /// Activation functions and gated linear units.
    Activation = activation { ActivationOps => ACTIVATION_OPS, GatedOps => GATED_OPS }
    /// Softmax and log-softmax.
    Softmax = softmax { SoftmaxOps => SOFTMAX_OPS }
    /// Reductions along axes.
    Reduce = reduce { ReduceOps => REDUCE_OPS }
    /// Movement and creation.
    Shape = shape { ShapeOps => SHAPE_OPS }
    /// Gather and scatter along an axis.
    Index = index { IndexOps => INDEX_OPS }
    /// Matrix products with fused epilogues.
    Gemm = gemm { GemmOps => GEMM_OPS, BilinearOps => BILINEAR_OPS }
    /// Matrix products with quantized or 2:4 sparse operands.
    Quantized = quantized { QuantizedOps => QUANTIZED_OPS }
    /// Convolution of one to three axes, its transpose, and their unfolded form.
    Conv = conv { ConvOps => CONV_OPS, CausalConvOps => CAUSAL_CONV_OPS, DeformableConvOps => DEFORMABLE_CONV_OPS }
    /// Normalization over batches, rows, groups and instances.
    Norm = norm { NormOps => NORM_OPS, NormBackwardOps => NORM_BACKWARD_OPS }
    /// Pooling with windows, adaptive and global.
    Pool = pool { PoolOps => POOL_OPS }
    /// Interpolation and sampling of images and volumes, and non-maximum suppression.
    Resample = resample { ResampleOps => RESAMPLE_OPS }
    /// Scaled dot-product attention, rotary position embedding, decoding with a cache.
    Attention = attention { AttentionOps => ATTENTION_OPS, RopeOps => ROPE_OPS, DecodeOps => DECODE_OPS }
    /// Table lookup and its sparse gradient.
    Embedding = embedding { EmbeddingOps => EMBEDDING_OPS }
    /// Recurrent cells and sequences.
    Rnn = rnn { RnnOps => RNN_OPS, RnnBackwardOps => RNN_BACKWARD_OPS, ConvLstmOps => CONV_LSTM_OPS }
    /// Message passing on graphs.
    Graph = graph { CsrOps => CSR_OPS, GraphOps => GRAPH_OPS, GraphAttentionOps => GRAPH_ATTENTION_OPS }
    /// Convolution, heat diffusion and pooling on meshes.
    Mesh = mesh { MeshOps => MESH_OPS, DiffusionOps => DIFFUSION_OPS, MeshPoolOps => MESH_POOL_OPS }
    /// Losses.
    Loss = loss { LossOps => LOSS_OPS, RowLossOps => ROW_LOSS_OPS, BatchLossOps => BATCH_LOSS_OPS, SequenceLossOps => SEQUENCE_LOSS_OPS, StftLossOps => STFT_LOSS_OPS }
    /// Optimizer steps and gradient clipping.
    Optimizer = optimizer { OptimizerOps => OPTIMIZER_OPS, AdaptiveOptimizerOps => ADAPTIVE_OPTIMIZER_OPS, SparseOptimizerOps => SPARSE_OPTIMIZER_OPS, PackedOptimizerOps => PACKED_OPTIMIZER_OPS }
    /// Random numbers and dropout.
    Random = random { RandomOps => RANDOM_OPS }
    /// Prefix sums and segment reductions.
    Scan = scan { ScanOps => SCAN_OPS }
    /// Sorting, selection and search.
    Sort = sort { SortOps => SORT_OPS }
    /// Distances and similarities of vectors.
    Distance = distance { DistanceOps => DISTANCE_OPS, SearchOps => SEARCH_OPS }
    /// Losses of language models fused with their output layer, and the choice of tokens.
    LanguageModel = language_model { LanguageModelOps => LANGUAGE_MODEL_OPS, SamplingOps => SAMPLING_OPS }
    /// Neural fields: features of positions and directions, samples along rays, volume rendering, Gaussian splatting.
    Field = field { FieldOps => FIELD_OPS, RayOps => RAY_OPS, GaussianOps => GAUSSIAN_OPS, SplattingOps => SPLATTING_OPS }
    /// Discrete Fourier transforms.
    Fourier = fourier { FourierOps => FOURIER_OPS }
    /// Factorisations of matrices and the systems that are solved with them.
    Linalg = linalg { LinalgOps => LINALG_OPS, DecompositionOps => DECOMPOSITION_OPS, LdlOps => LDL_OPS }
    /// Mixture of experts.
    Moe = moe { MoeOps => MOE_OPS }
    /// State-space models, linear attention and linear recurrences.
    StateSpace = state_space { StateSpaceOps => STATE_SPACE_OPS }
}

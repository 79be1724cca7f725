//! The operations: one object-safe trait per family, bundled by [`IGpuBackend`](crate::IGpuBackend).
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
pub struct OpInfo {
    /// Method name.
    pub name: &'static str,
    /// Family.
    pub family: Family,
}

/// The kernel families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Family {
    /// Memory, streams, introspection.
    Core,
    /// Unary, binary and ternary arithmetic with broadcasting.
    Elementwise,
    /// Activations and softmax.
    Activation,
    /// Reductions along axes.
    Reduce,
    /// Movement and creation.
    Shape,
    /// Gather and scatter along an axis.
    Index,
    /// Matrix products with fused epilogues.
    Gemm,
    /// Losses.
    Loss,
    /// Optimizer steps and gradient clipping.
    Optimizer,
    /// Random numbers and dropout.
    Random,
    /// Convolution of one to three axes, its transpose, and their unfolded form.
    Conv,
    /// Normalization over batches, rows, groups and instances.
    Norm,
    /// Pooling with windows, adaptive and global.
    Pool,
    /// Interpolation and sampling of images and volumes.
    Resample,
    /// Scaled dot-product attention.
    Attention,
    /// Rotary embedding, mixture of experts, fused output losses.
    Lm,
    /// Table lookup and its sparse gradient.
    Embedding,
    /// Recurrent cells and sequences.
    Rnn,
    /// Message passing on graphs.
    Gnn,
    /// Convolution on meshes.
    Mesh,
    /// Prefix sums and segment reductions.
    Scan,
    /// Sorting, selection and search.
    Sort,
    /// Distances and similarities of vectors.
    Distance,
}

/// Declares a family trait, its table of [`OpInfo`] rows and the forwarding to `Arc` and `Box`, from one list of methods; `[unsafe]` precedes
/// those that are.
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
            $( $crate::ops::OpInfo { name: stringify!($name), family: $crate::ops::Family::$family }, )*
        ];

        impl<T: ?Sized + $tr> $tr for std::sync::Arc<T> {
            // SAFETY: an unsafe method's contract is forwarded as it is.
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $($unsafe)? { (**self).$name($($arg),*) } } )*
        }
        impl<T: ?Sized + $tr> $tr for Box<T> {
            // SAFETY: as above.
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { $($unsafe)? { (**self).$name($($arg),*) } } )*
        }
        impl<T: $tr> $tr for $crate::ops::Recorder<T> {
            $( $($unsafe)? fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
                self.note(stringify!($name));
                // SAFETY: as above.
                $($unsafe)? { self.inner.$name($($arg),*) }
            } )*
        }
    };
}

/// A backend that writes down which operations are called on it and passes them on. For tests that prove what a composition uses.
#[derive(Debug, Default)]
pub struct Recorder<T> {
    inner: T,
    called: std::sync::Mutex<std::collections::BTreeSet<&'static str>>,
}

impl<T> Recorder<T> {
    /// Records what is called on `inner`.
    pub fn new(inner: T) -> Self {
        Recorder { inner, called: std::sync::Mutex::default() }
    }

    /// Names of the operations called since the last question.
    pub fn take(&self) -> std::collections::BTreeSet<&'static str> {
        std::mem::take(&mut *self.called.lock().unwrap_or_else(|p| p.into_inner()))
    }

    fn note(&self, name: &'static str) {
        self.called.lock().unwrap_or_else(|p| p.into_inner()).insert(name);
    }
}

mod activation;
mod attention;
pub(crate) mod check;
mod conv;
mod conv_causal;
mod conv_deform;
mod core;
mod distance;
mod elementwise;
mod embedding;
mod gated;
mod gemm;
mod gnn;
pub(crate) mod gnn_check;
mod gnn_check_more;
mod index;
mod lm;
mod loss;
mod loss_batch;
pub(crate) mod loss_rows;
mod loss_seq;
mod loss_stft;
mod mesh;
mod norm;
mod norm_check;
mod optimizer;
mod optimizer_forms;
mod optimizer_rules;
mod pool;
mod quantised;
mod random;
mod reduce;
mod resample;
mod rnn;
mod rnn_conv;
mod scan;
mod shape;
mod softmax;
mod sort;

pub use self::activation::*;
pub use self::attention::*;
pub use self::conv::*;
pub(crate) use self::conv_causal::*;
pub(crate) use self::conv_deform::*;
pub use self::core::*;
pub use self::distance::*;
pub use self::elementwise::*;
pub use self::embedding::*;
pub use self::gated::*;
pub use self::gemm::*;
pub use self::gnn::*;
pub(crate) use self::gnn_check::*;
pub(crate) use self::gnn_check_more::*;
pub use self::index::*;
pub use self::lm::*;
pub use self::loss::*;
pub use self::loss_batch::*;
pub use self::loss_rows::*;
pub use self::loss_seq::*;
pub use self::loss_stft::*;
pub use self::mesh::*;
pub use self::norm::*;
pub(crate) use self::norm_check::*;
pub use self::optimizer::*;
pub use self::optimizer_forms::*;
pub use self::optimizer_rules::*;
pub use self::pool::*;
pub use self::quantised::*;
pub use self::random::*;
pub use self::reduce::*;
pub use self::resample::*;
pub use self::rnn::*;
pub use self::rnn_conv::*;
pub use self::scan::*;
pub use self::shape::*;
pub(crate) use self::softmax::*;
pub use self::sort::*;

/// Every operation of every family.
pub fn all_ops() -> impl Iterator<Item = &'static OpInfo> {
    [
        CORE_OPS,
        ELEMENTWISE_OPS,
        ACTIVATION_OPS,
        REDUCE_OPS,
        SHAPE_OPS,
        INDEX_OPS,
        GEMM_OPS,
        LOSS_OPS,
        ROW_LOSS_OPS,
        BATCH_LOSS_OPS,
        SEQ_LOSS_OPS,
        STFT_LOSS_OPS,
        OPTIMIZER_OPS,
        OPTIMIZER_FORM_OPS,
        RANDOM_OPS,
        DISTANCE_OPS,
        SORT_OPS,
        SCAN_OPS,
        MESH_OPS,
        GNN_OPS,
        RNN_OPS,
        EMBEDDING_OPS,
        LM_OPS,
        ATTENTION_OPS,
        RESAMPLE_OPS,
        POOL_OPS,
        NORM_OPS,
        CONV_OPS,
    ]
    .into_iter()
    .flatten()
}

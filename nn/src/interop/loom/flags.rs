//! Where Loom's numbers and the intended ones differ.

use std::fmt;

/// A set of [`Flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Profile {
    /// The numbers of Loom's CPU path at commit 730ea77.
    Faithful,
    /// What the layers are meant to compute.
    #[default]
    Corrected,
}

macro_rules! flags {
    ($($name:ident / $variant:ident : $ty:ty = $faithful:expr, $corrected:expr; $doc:literal,)*) => {
        /// Each difference between Loom's CPU path and the intended network, to be switched alone. A flag that is `true` asks for what Loom
        /// does.
        ///
        /// | Flag | Faithful | Corrected | Meaning |
        /// |---|---|---|---|
        $(#[doc = concat!(
            "| `", stringify!($name), "` | ", stringify!($faithful), " | ", stringify!($corrected), " | ", $doc, " |"
        )])*
        ///
        /// ```
        /// use trefoil_nn::loom::Flags;
        ///
        /// // Everything as intended, but for rectifiers of slope 1.
        /// let flags = Flags { relu_scale: 1.0, ..Flags::corrected() };
        /// # let _ = flags;
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Flags {
            $(#[doc = $doc] pub $name: $ty,)*
        }

        impl Flags {
            /// Those of [`Profile::Faithful`].
            pub const fn faithful() -> Self {
                Flags { $($name: $faithful,)* }
            }

            /// Those of [`Profile::Corrected`].
            pub const fn corrected() -> Self {
                Flags { $($name: $corrected,)* }
            }
        }

        /// Name of a field of [`Flags`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Flag {
            $(#[doc = concat!("[`Flags::", stringify!($name), "`].")] $variant,)*
        }

        impl Flag {
            /// All of them.
            pub const ALL: &[Flag] = &[$(Flag::$variant,)*];

            /// The field's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Flag::$variant => stringify!($name),)*
                }
            }
        }
    };
}

flags! {
    relu_scale / ReluScale: f64 = 1.1, 1.1; "factor of `relu`: max(0, s x); 1 gives the usual one",
    leaky_slope / LeakySlope: f64 = 0.1, 0.1; "slope of `leaky_relu` below 0",
    linear_is_relu / LinearIsRelu: bool = true, false; "`linear` or no activation is `relu`; otherwise the identity",
    unknown_activation / UnknownActivation: bool = true, false; "an unknown activation is `relu`; otherwise an error",
    unknown_softmax / UnknownSoftmax: bool = true, false; "an unknown softmax variant is `standard`; otherwise an error",
    unknown_combine_mode / UnknownCombineMode: bool = true, false;
        "a `parallel` layer of an unknown mode passes its input on; otherwise an error",
    layer_norm_rows / LayerNormRows: bool = true, false;
        "`layer_norm` normalizes the first batch_size rows and zeroes the others; otherwise all rows",
    mha_unprojected / MhaUnprojected: bool = true, false;
        "`mha` gives the heads side by side without the output projection",
    mha_zero_head_dim / MhaZeroHeadDim: bool = true, false;
        "an `mha` from JSON (or from a branch of a bundle) has heads of size 0 and gives zeros",
    mha_one_sequence / MhaOneSequence: bool = true, false;
        "`mha` reads the whole batch as one sequence; otherwise each sample is one",
    swiglu_json_is_dense / SwigluJsonIsDense: bool = true, false;
        "a `swiglu` from JSON is a dense layer with leaky relu",
    implicit_residual / ImplicitResidual: bool = true, true;
        "norms, `mha` and `swiglu` carry a residual along the chain",
    parallel_concat_batch_major / ParallelConcatBatchMajor: bool = true, false;
        "`concat` puts whole branch buffers one after another; otherwise samples",
    grid_cell_overwrite / GridCellOverwrite: bool = true, false;
        "of two branches on one cell the last wins; otherwise an error",
    sequential_skips / SequentialSkips: bool = true, false;
        "`sequential` skips every child but `dense` and `softmax`",
    sequential_uninitialised / SequentialUninitialised: bool = true, false;
        "initialisation leaves children of `sequential` alone",
    softmax_sparse_bug / SoftmaxSparseBug: bool = true, false;
        "the threshold of `sparse` counts each kept value twice",
    entmax_blend / EntmaxBlend: bool = true, false;
        "`entmax` between 1 and 2 blends softmax and sparsemax; otherwise it is the entmax of Peters et al. (2019)",
    softmax_unimplemented / SoftmaxUnimplemented: bool = true, false;
        "`adaptive` and `mixture` are plain softmax",
    softmax_fallback / SoftmaxFallback: bool = true, false;
        "sizes that do not fit a softmax's rows, levels or mask make it `standard` (a longer grid is cut); otherwise an error",
    softmax_branch_buffer / SoftmaxBranchBuffer: bool = true, false;
        "a softmax in a branch runs over the whole batch at once",
    conv2d_stride_zero / Conv2dStrideZero: bool = true, false;
        "a `conv2d` without stride reads one window for all places; otherwise its stride is 1",
    residual_layer_is_activation / ResidualLayerIsActivation: bool = true, false;
        "`residual` applies its activation; otherwise it adds the previous layer's input where sizes agree",
    width_height_one / WidthHeightOne: bool = true, false;
        "width 1 and height 1 of a `dense` layer win over its real sizes",
    conv1d_guide_keys / Conv1dGuideKeys: bool = true, false;
        "the guide's `conv1d_*` keys are ignored, which makes an output of length 0",
    grid_keys_required / GridKeysRequired: bool = true, false;
        "a file without grid keys is refused; otherwise it is one cell",
    build_uninitialised / BuildUninitialised: bool = true, false;
        "`dense` and `conv2d` are 0 until `initialize_weights`",
}

impl Flags {
    /// Those of a profile.
    pub const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Faithful => Flags::faithful(),
            Profile::Corrected => Flags::corrected(),
        }
    }
}

impl Default for Flags {
    fn default() -> Self {
        Flags::corrected()
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

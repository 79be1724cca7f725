//! Networks of Loom (`openfluke/loom`, Go) from its JSON and its bundles, trained and run on any backend.
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::loom::{Flags, LoomConfig, LoomNetwork};
//! use trefoil_nn::{Layer, LayerExt, MseLoss, Optimizer, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let config = LoomConfig::from_json(r#"{
//!     "id": "xor", "batch_size": 4, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 2, "seed": 7,
//!     "layers": [
//!         { "type": "dense", "activation": "tanh", "input_height": 2, "output_height": 8 },
//!         { "type": "dense", "activation": "sigmoid", "input_height": 8, "output_height": 1 }
//!     ] }"#)?;
//! let network = LoomNetwork::new(&config.init_context(&device), &config, &Flags::corrected())?;
//! println!("{:?}\n{}", network.report().flags(), network.describe());
//!
//! let x = Tensor::from_slice(&device, &[0f32, 0., 0., 1., 1., 0., 1., 1.], &[8])?;
//! let y = Tensor::from_slice(&device, &[0f32, 1., 1., 0.], &[4, 1])?;
//! let mut optimizer = Optimizer::adam(&network, 0.05)?;
//! for _ in 0..20 {
//!     optimizer.zero_grad()?;
//!     MseLoss::default().forward(&network.forward(&x)?, &y)?.backward()?;
//!     optimizer.step()?;
//! }
//! assert_eq!(network.get_layer(0, 0, 1).unwrap().weight("kernel")?.len(), 8);
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```
//!
//! The reference is Loom's package `nn` at commit 730ea77, the version of its GPU layer guide. Its CPU path computes in several places something
//! else than what the layer's name says. [`Flags`] names every such difference; [`Profile::Faithful`] follows Loom's numbers,
//! [`Profile::Corrected`], the default, what was meant. [`check`] and [`LoomNetwork::report`] tell which flags a given file depends on, and
//! where. Gradients are in both profiles the true ones of what the forward computes.
//!
//! | | largest distance to Loom's 59 recorded outputs |
//! |---|---|
//! | Faithful, CPU | below 2e-7 (absolute; 1.6e-7 was measured) |
//! | Faithful, other devices | below 1e-6 (1.5e-7 was measured with OpenCL on a CPU) |
//! | Corrected, every device, against f64 | below 1e-6 |
//!
//! # Layers
//!
//! A sample is a flat row of numbers, as in Loom; each layer reads it by its own sizes. Sizes that do not chain, unknown keys, types and words
//! are errors that name the place in the file (`layers[2].branches[0].filters`). Keys that Loom knows but a layer does not read are listed in
//! [`Report::unused`].
//!
//! | `type` | reads `[batch, n]` as | gives |
//! |---|---|---|
//! | `dense` | `[in]` | `[out]` |
//! | `conv1d` | `[C][L]` | `[F][OL]`; the guide's `conv1d_*` keys count too |
//! | `conv2d` | `[C][H][W]` | `[F][OH][OW]` |
//! | `rnn`, `lstm` | `[T][I]` | `[T][H]`, states start at 0 in every call |
//! | `mha`, `multi_head_attention` | `[T][D]` | `[T][D]`; rotary, causal, grouped with `num_kv_heads` |
//! | `swiglu` | rows `[in]` | rows `[in]` |
//! | `layer_norm`, `layernorm`, `rms_norm`, `rmsnorm` | rows of `norm_size` | the same |
//! | `softmax` | one row, see [`SoftmaxVariant`](crate::layers::SoftmaxVariant) | the same; `mixture` a K-th of it |
//! | `embedding` | n ids | `[n][D]`; rows of zeros for ids outside of the table |
//! | `parallel` | each branch the same | `concat`, `add`, `avg`, `grid_scatter`, `filter` (without gate: the mean, short branches padded with zeros) |
//! | `sequential` | one child after the other | |
//! | `residual` | | plus the input of the layer before |
//!
//! Norms, `mha` and `swiglu` at the top level carry a residual along ([`Flags::implicit_residual`]): `rms_norm` stores its input; `mha` and
//! `swiglu` add what is stored to their output and store the sum; `layer_norm` adds it to its input and stores its output if there was any.
//! [`LoomNetwork::describe`] draws every such edge.
//!
//! # Loom's calls
//!
//! | Loom | here |
//! |---|---|
//! | `BuildNetworkFromJSON`, `BuildNetworkFromFile` | [`LoomConfig::from_json`], [`from_file`](LoomConfig::from_file), then [`LoomNetwork::new`] |
//! | `NewNetwork`, `SetLayer`, `GetLayer` | [`LoomConfig::new`], [`set_layer`](LoomConfig::set_layer), [`LoomNetwork::get_layer`] |
//! | `InitializeWeights` | done by `new`; again with [`initialize_weights`](LoomNetwork::initialize_weights), from the file's seed with [`LoomConfig::init_context`] |
//! | `BatchSize`, `IsDisabled` | [`set_batch_size`](LoomNetwork::set_batch_size), [`set_disabled`](LoomNetwork::set_disabled) |
//! | `WeightsToGPU`, `IsGPUMounted` | build with the device, or [`to_device`](crate::LayerExt::to_device) (as often as you like); [`is_mounted_on`](LoomNetwork::is_mounted_on) |
//! | `WeightsToCPU`, `ReleaseGPUWeights` | `to_device` with a CPU device: all weights move, the GPU's memory is free, the network works on; [`LoomLayer::weight`] copies one array |
//! | `Forward`, `ForwardCPU` | [`Layer::forward`](crate::Layer::forward) |
//! | `Backward`, `ApplyGradients(lr)` | [`Tensor::backward_with`](crate::Tensor::backward_with), then [`Optimizer::sgd`](crate::Optimizer::sgd) with a step; gradients of all parameters and of the input |
//! | `Train`, `TrainStandard` | [`Trainer`](crate::Trainer) |
//! | `SaveModel`, `LoadModel`, `SaveBundle`, `LoadBundle` | [`LoomNetwork::save`], [`LoomNetwork::load`], [`Bundle`] |
//! | loss `mse` | [`MseLoss`](crate::MseLoss): the mean over all elements in both |
//! | loss `cross_entropy` | [`LoomCrossEntropy`] |
//! | both losses of later versions | [`MseLoss`](crate::MseLoss) with the reduction `Sum`, times 1 / (2 batch) |
//! | SGD with momentum, dampening, Nesterov | [`OptimRule::Momentum`](trefoil::ops::optimizer::OptimRule) (`damp`, `nesterov`) |
//! | AdamW without decay of biases | two [`Group`](crate::optim::Group)s of `OptimRule::AdamW`, one with `wd: 0.0` |
//! | RMSprop with eps inside of the root | [`Optimizer::rmsprop`](crate::Optimizer::rmsprop) has it outside, as PyTorch; at 1e-8 they differ for tiny gradients only |
//! | schedulers: constant, linear, cosine (restarts), exponential, warm-up, step, polynomial | [`Schedule`](crate::optim::Schedule)`::{Constant, Linear, Cosine, CosineRestarts, Exponential, Warmup, Step, Polynomial}` |
//! | CPU against GPU parity | [`compare_models`](crate::compare::compare_models): every layer, forward and backward, raw values |

mod bundle;
mod definition;
mod flags;
mod layer;
mod loss;
mod network;
mod plan;

pub use bundle::Bundle;
pub use definition::{GridPosition, LayerDefinition, LoomConfig, LoomType, Origin, types};
pub use flags::{Flag, Flags, Profile};
pub use layer::LoomLayer;
pub use loss::LoomCrossEntropy;
pub use network::{LoomNetwork, check};
pub use plan::Report;

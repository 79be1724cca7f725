//! Named reference models on the public interface of this crate. Those of images have the layers, constructors and names of states of
//! `torchvision.models`, whose state dictionaries they load, [`UNet`] those of milesial's `Pytorch-UNet`; transformers load the files of
//! Hugging Face (`from_hugging_face`).
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::models::{ResNet, ResNetConfig, resnet18};
//! use trefoil_nn::{DType, InitContext, Layer, LayerExt, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = InitContext::new(&device, 42);
//! // One channel, 10 classes, an eighth of the channels, for digits of 28x28 pixels.
//! let config = ResNetConfig::resnet18(10).in_channels(1).width(8).small_images();
//! let model = ResNet::new(&cx, &config)?;
//! assert_eq!(model.forward(&Tensor::zeros(&device, DType::F32, &[2, 1, 28, 28])?)?.shape(), [2, 10]);
//!
//! # fn pretrained(cx: &InitContext) -> trefoil_nn::Result<()> {
//! // torchvision's weights, saved by `safetensors.torch.save_file(model.state_dict(), ..)`.
//! use trefoil_nn::StateFile;
//! use trefoil_nn::state_file::LoadOptions;
//! let model = resnet18(cx, 1000)?;
//! StateFile::open("resnet18.safetensors")?.load(&model, &LoadOptions::new())?;
//! model.eval();
//! # Ok(())
//! # }
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

mod bert;
mod densenet;
mod generation;
mod gpt2;
mod hugging_face;
mod llama;
mod lstm;
mod mamba;
mod mobilenet;
mod resnet;
mod unet;
mod vit;

pub use self::bert::{Bert, BertConfig};
pub use self::densenet::{DenseNet, DenseNetConfig, densenet121};
pub use self::generation::Generation;
pub use self::gpt2::{Gpt2, Gpt2Config};
pub use self::llama::{Llama, LlamaConfig};
pub use self::lstm::{LstmLanguageModel, LstmLanguageModelConfig};
pub use self::mamba::{MambaConfig, MambaLanguageModel};
pub use self::mobilenet::{MobileNetV2, MobileNetV2Config, mobilenet_v2};
pub use self::resnet::{ResNet, ResNetConfig, resnet18, resnet34, resnet50};
pub use self::unet::{UNet, UNetConfig};
pub use self::vit::{VisionTransformer, VisionTransformerConfig};

use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::layers::Convolutional;
use crate::module::{Init, InitContext, Layer, Visitor};

/// A convolution without bias, of weights from N(0, 2 / fan); stride 1 keeps the size of the image.
fn conv(
    cx: &InitContext,
    [inputs, outputs]: [usize; 2],
    kernel_size: usize,
    stride: usize,
    fan: usize,
) -> Result<Convolutional> {
    let weight = Init::Normal { mean: 0.0, std: (2.0 / fan as f64).sqrt() };
    let conv = Convolutional::new(cx, inputs, outputs, kernel_size)?.stride(stride).padding(kernel_size / 2);
    conv.no_bias().init(weight, Init::Zeros)
}

/// Implements [`Layer`] for a model that is one [`Sequential`](crate::layers::Sequential).
macro_rules! sequential_model {
    ($($model:ident)*) => {$(
        impl Layer for $model {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.0.forward(x)
            }

            fn visit(&self, v: &mut Visitor<'_>) {
                v.flattened(&self.0);
            }
        }
    )*};
}
sequential_model!(DenseNet MobileNetV2 ResNet);

//! Named reference models on the public interface of this crate.

mod bert;
mod generation;
mod gpt2;
mod hugging_face;
mod llama;
mod lstm;
mod vit;

pub use self::bert::{Bert, BertConfig};
pub use self::generation::Generation;
pub use self::gpt2::{Gpt2, Gpt2Config};
pub use self::llama::{Llama, LlamaConfig};
pub use self::lstm::{LstmLanguageModel, LstmLanguageModelConfig};
pub use self::vit::{VisionTransformer, VisionTransformerConfig};

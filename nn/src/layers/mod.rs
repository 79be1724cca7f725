//! Layers. Shapes, parameters and names follow `torch.nn`.

mod activation;
mod dense;
mod dropout;
mod sequential;
mod shape;

pub use activation::{Activate, LogSoftmax, Softmax, activation_from_name};
pub use dense::Dense;
pub use dropout::Dropout;
pub use sequential::Sequential;
pub use shape::{Flatten, Reshape};

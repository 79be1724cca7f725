//! Kernels of embedding.

use super::kernels;

kernels! {
    family: Embedding;
}
